"""Matmuls with quantised weights against their twin, and row invariance bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.test_quant import dequantised, quantised
from tests.support import device, random, read_array
from webkv.gpu import Device, open_device
from webkv.gpu.device import UNIFORM
from webkv.kernels import matmul, planes, quant, reference
from webkv.kernels.quant import Weight
from webkv.kernels.rows import Rows, Stream, new_rows, new_stream

NAN = np.float32(np.nan)
EPS = 1e-5


@dataclass
class Matrix:
    """A weight on the GPU and the values it stands for."""

    weight: Weight
    values: np.ndarray


def matrix(gpu: Device, kind: str, rows: int, cols: int, seed: int = 1) -> Matrix:
    raw = quantised(kind, rows, cols, seed)
    return Matrix(quant.upload(gpu, kind, kind, raw, rows, cols), dequantised(kind, raw))


def step_of(gpu: Device, n: int) -> Any:
    return gpu.buffer(16, data=np.array([n, 0, 0, 0], np.uint32), usage=UNIFORM)


def filled(gpu: Device, values: np.ndarray, spare: int = 3) -> Rows:
    """Rows on the GPU with `spare` rows of NaN after them."""
    n, cols = values.shape
    rows = new_rows(gpu, n + spare, cols, "x")
    gpu.write(rows.buffer, np.concatenate([values, np.full((spare, cols), NAN)]).astype(np.float32))
    return rows


def stream_of(gpu: Device, x: np.ndarray, gain: np.ndarray) -> Stream:
    """A stream holding x and x * gain, NaN in its unused rows."""
    n, cols = x.shape
    stream = new_stream(gpu, n + 1, cols, "stream")
    both = np.full((2, stream.rows, cols), NAN, np.float32)
    both[0, :n], both[1, :n] = x, x * gain
    gpu.write(stream.both.buffer, both)
    return stream


async def product(gpu: Device, m: Matrix, x: np.ndarray) -> np.ndarray:
    n = len(x)
    y = filled(gpu, np.full((n, m.weight.rows), NAN), spare=1)
    with gpu.batch() as batch:
        matmul.matmul(batch, x=filled(gpu, x), weight=m.weight, y=y, step=step_of(gpu, n), n=n)
    got = await read_array(gpu, y.buffer, np.float32, (n + 1, m.weight.rows))
    assert np.isnan(got[n]).all(), "wrote past the last row"
    return got[:n]


@pytest.mark.parametrize("kind", quant.SUPPORTED)
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (72, 5), (299, 3)])
async def test_every_codec_multiplies_as_its_twin(kind: str, rows: int, n: int) -> None:
    gpu = await device()
    m = matrix(gpu, kind, rows, 256)
    x = random(2, n, 256)
    got = await product(gpu, m, x)
    scale = np.abs(x.astype(np.float64)) @ np.abs(m.values.astype(np.float64)).T
    assert np.max(np.abs(got - reference.matmul(x, m.values)) / scale) < 2e-6


@pytest.mark.parametrize("cols", [32, 96, 576])
async def test_row_lengths_of_an_odd_number_of_blocks(cols: int) -> None:
    gpu = await device()
    m = matrix(gpu, "Q8_0", 24, cols)
    x = random(3, 2, cols)
    assert np.allclose(await product(gpu, m, x), reference.matmul(x, m.values), atol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
async def test_a_row_has_the_same_bits_in_a_batch_of_any_size(kind: str) -> None:
    gpu = await device()
    m = matrix(gpu, kind, 200, 576)
    x = random(4, 61, 576)  # many groups of four, the last one ragged
    alone = [await product(gpu, m, x[t : t + 1]) for t in (0, 3, 29, 60)]
    for n in (2, 3, 4, 61):
        batch = await product(gpu, m, x[:n] if n < 61 else x)
        for t, row in zip((0, 3, 29, 60), alone, strict=True):
            if t < n:
                assert batch[t].tobytes() == row[0].tobytes(), f"row {t} of {n}"


async def test_rows_too_long_for_a_uniform_window() -> None:
    gpu = await device()
    m = matrix(gpu, "Q4_0", 16, 8192)
    x = random(5, 5, 8192)
    assert np.allclose(await product(gpu, m, x), reference.matmul(x, m.values), atol=5e-4)


async def test_columns_of_y_outside_the_product_stay() -> None:
    gpu = await device()
    m = matrix(gpu, "F32", 20, 64)
    x = random(6, 3, 64)
    y = filled(gpu, np.full((3, 50), 7.0))
    with gpu.batch() as batch:
        matmul.matmul(batch, x=filled(gpu, x), weight=m.weight, y=y, step=step_of(gpu, 3), n=3, column=10)
    got = await read_array(gpu, y.buffer, np.float32, (3, 50))
    assert np.allclose(got[:, 10:30], reference.matmul(x, m.values), atol=1e-4)
    assert (got[:, :10] == 7).all() and (got[:, 30:] == 7).all()


@pytest.mark.parametrize("n", [1, 6])
async def test_matmul_add_adds_to_the_stream_and_scales_for_the_next_norm(n: int) -> None:
    gpu = await device()
    m = matrix(gpu, "Q4_1", 96, 64)
    x, old, gain = random(7, n, 64), random(8, n, 96), random(9, 96)
    stream = stream_of(gpu, old, gain)
    with gpu.batch() as batch:
        matmul.matmul_add(
            batch, x=filled(gpu, x), weight=m.weight, stream=stream, gain=gpu.buffer(384, data=gain),
            step=step_of(gpu, n), n=n,
        )  # fmt: skip
    got = await read_array(gpu, stream.both.buffer, np.float32, (2, stream.rows, 96))
    want = old + reference.matmul(x, m.values)
    assert np.allclose(got[0, :n], want, atol=1e-4)
    assert (got[1, :n] == got[0, :n] * gain).all()
    assert np.isnan(got[:, n:]).all()


@pytest.mark.parametrize("n", [1, 2, 5])
async def test_norm_matmul_normalises_its_rows(n: int) -> None:
    gpu = await device()
    m = matrix(gpu, "Q4_1", 40, 96)
    x, gain = random(10, n, 96) * 3, random(11, 96)
    y = filled(gpu, np.full((n, 40), NAN))
    with gpu.batch() as batch:
        matmul.norm_matmul(
            batch, stream=stream_of(gpu, x, gain), weight=m.weight, y=y, eps=EPS, step=step_of(gpu, n), n=n
        )
    got = await read_array(gpu, y.buffer, np.float32, (n, 40))
    assert np.allclose(got, reference.matmul(reference.rms_norm(x, gain, EPS), m.values), atol=1e-4)


async def test_norm_of_a_zero_row_is_zero() -> None:
    gpu = await device()
    m = matrix(gpu, "Q4_1", 8, 32)
    x, gain = np.zeros((1, 32), np.float32), np.ones(32, np.float32)
    y = filled(gpu, np.full((1, 8), NAN))
    with gpu.batch() as batch:
        matmul.norm_matmul(
            batch, stream=stream_of(gpu, x, gain), weight=m.weight, y=y, eps=EPS, step=step_of(gpu, 1), n=1
        )
    assert (await read_array(gpu, y.buffer, np.float32, (1, 8)) == 0).all()


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize(("n", "width"), [(1, 32), (3, 96), (9, 224)])
async def test_norm_gated_matmul_is_the_gate_of_two_products(activation: str, n: int, width: int) -> None:
    gpu = await device()
    gate, up = (quantised("Q4_1", width, 64, seed) for seed in (1, 2))
    weight = quant.upload(gpu, "gate, up", "Q4_1", quant.gated(gate, up, width), 2 * width, 64)
    x, gain = random(12, n, 64) * 4, random(13, 64)
    y = filled(gpu, np.full((n, width), NAN))
    with gpu.batch() as batch:
        matmul.norm_gated_matmul(
            batch, stream=stream_of(gpu, x, gain), weight=weight, y=y, activation=activation, eps=EPS,
            step=step_of(gpu, n), n=n,
        )  # fmt: skip
    got = await read_array(gpu, y.buffer, np.float32, (n, width))
    h = reference.rms_norm(x, gain, EPS)
    gated = {"silu": reference.silu_mul, "gelu": reference.gelu_mul}[activation]
    want = gated(*(reference.matmul(h, dequantised("Q4_1", half)) for half in (gate, up)))
    assert np.max(np.abs(got - want)) < 2e-5 * np.max(np.abs(want)) + 1e-5


async def test_weights_in_parts_make_one_product() -> None:
    gpu = await device()
    raw = quantised("Q8_0", 52, 64)
    whole = quant.upload(gpu, "w", "Q8_0", raw, 52, 64)
    pieces = [quant.upload(gpu, "w", "Q8_0", raw[a:b], b - a, 64).parts[0] for a, b in ((0, 24), (24, 52))]
    parts = tuple(quant.Part(first, p.rows, p.planes) for first, p in zip((0, 24), pieces, strict=True))
    x = random(14, 3, 64)
    split = Matrix(Weight("q8", 52, 64, parts), np.empty(0))
    assert (await product(gpu, split, x)).tobytes() == (
        await product(gpu, Matrix(whole, np.empty(0)), x)
    ).tobytes()


async def test_a_repeated_product_makes_no_gpu_object() -> None:
    gpu = await device()
    m = matrix(gpu, "Q4_1", 64, 64)
    x, y, step = filled(gpu, random(15, 20, 64)), filled(gpu, np.zeros((20, 64))), step_of(gpu, 20)
    made = []
    for _ in range(2):
        with gpu.batch() as batch:
            matmul.matmul(batch, x=x, weight=m.weight, y=y, step=step, n=20)
        made.append((gpu.created.buffers, gpu.created.bind_groups, gpu.created.pipelines))
    assert made[0] == made[1]


@pytest.mark.parametrize("kind", quant.SUPPORTED)
async def test_planes_in_buffers_and_in_textures_give_the_same_bits(kind: str) -> None:
    gpu = await device()
    if not planes.in_textures(gpu):
        pytest.skip("this adapter has its planes in buffers")
    buffers = Device(gpu.raw, replace(gpu.facts, name="a device that keeps its planes in buffers"))
    x = random(17, 17, 256)
    got = [await product(at, matrix(at, kind, 200, 256), x) for at in (gpu, buffers)]
    assert got[0].tobytes() == got[1].tobytes()


async def test_the_subgroup_variant_has_the_portable_bits() -> None:
    plain = await device()
    fast = await open_device(features=matmul.FEATURES)
    if not fast.facts.features:
        pytest.skip("this adapter has no optional features")
    x = random(16, 19, 576)
    for kind in ("Q4_1", "Q8_0"):
        portable = await product(plain, matrix(plain, kind, 200, 576), x)
        assert (await product(fast, matrix(fast, kind, 200, 576), x)).tobytes() == portable.tobytes()
    fast.destroy()
