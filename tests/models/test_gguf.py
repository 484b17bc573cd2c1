"""Reading GGUF: the same as the gguf package reads, and every kind of damage refused in one line."""

from __future__ import annotations

import hashlib
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.tiny import write_tiny_gemma3, write_tiny_llama
from tests.support import examples
from webkv.errors import ModelError
from webkv.models.gguf import open_gguf
from webkv.models.locate import locate

GOLDEN = Path(__file__).parent.parent / "golden"


def tiny(tmp_path: Path, write: Any = write_tiny_llama) -> Path:
    path = tmp_path / "tiny.gguf"
    write(path)
    return path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<{len(dims)}Q", *dims)
    return text(name) + struct.pack("<I", len(dims)) + sizes + struct.pack("<IQ", kind, offset)


def make(keys: list[bytes], tensors: list[bytes], data: int = 0, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys + tensors)
    return head + bytes(-len(head) % 32 + data)


@pytest.mark.parametrize("write", [write_tiny_llama, write_tiny_gemma3])
def test_agrees_with_the_gguf_package(tmp_path: Path, write: Any) -> None:
    path = tiny(tmp_path, write)
    expected, found = oracle.GGUFReader(path), open_gguf(path)
    fields = {k: field.contents() for k, field in expected.fields.items() if not k.startswith("GGUF.")}
    assert found.metadata == fields
    assert [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.name, t.data.tobytes()) for t in expected.tensors
    ] == [(t.name, t.shape[::-1], t.type, bytes(t.data)) for t in found.tensors.values()]


def test_values_are_plain_python(tmp_path: Path) -> None:
    metadata = open_gguf(tiny(tmp_path, write_tiny_gemma3)).metadata
    assert {type(value) for value in metadata.values()} == {str, int, float, bool, list}
    assert {type(value) for value in metadata["tokenizer.ggml.scores"]} == {float}


def test_tensor_bytes_cannot_be_written(tmp_path: Path) -> None:
    data = open_gguf(bytearray(tiny(tmp_path).read_bytes())).tensors["token_embd.weight"].data
    with pytest.raises(TypeError):
        data[0] = 0


def test_digest_is_the_files_sha256_and_progress_counts_to_its_size(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    seen: list[tuple[int, int]] = []
    digest = open_gguf(path).digest(lambda done, total: seen.append((done, total)))
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert seen == sorted(seen)


@settings(max_examples=examples(25), deadline=None)
@given(cuts=st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_part_files_read_as_their_concatenation(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    whole = tiny(folder)
    raw = whole.read_bytes()
    bounds = [0, *sorted(int(cut * len(raw)) for cut in cuts), len(raw)]
    paths = []
    for index, (low, high) in enumerate(pairwise(bounds)):
        paths.append(folder / f"tiny.gguf.part{index:02d}")
        paths[-1].write_bytes(raw[low:high])
    one, many = open_gguf(whole), open_gguf(paths)
    assert many.name == "tiny.gguf"
    assert many.metadata == one.metadata
    assert many.digest() == one.digest()
    assert all(many.tensors[name].data == tensor.data for name, tensor in one.tensors.items())


@pytest.mark.parametrize("keep", [1, 3, 4, 7, 8, 23, 24, 100, 5000, 20000, 300000, 325919])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    raw = tiny(tmp_path).read_bytes()
    with pytest.raises(ModelError, match=r"truncated|is not a GGUF file"):
        open_gguf(raw[:keep])


def test_truncated_tensor_data_names_the_tensor(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(
        ModelError, match=r"^tiny.gguf is truncated: tensor output_norm.weight ends at byte \d+, the file"
    ):
        open_gguf(path)


RAW: list[bytes] = []


@settings(max_examples=examples(300), deadline=None)
@given(at=st.integers(0, 12_000), value=st.integers(0, 255), width=st.sampled_from([1, 4, 8]))
def test_a_damaged_header_raises_model_error_in_one_line_or_still_parses(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int, width: int
) -> None:
    if not RAW:
        RAW.append(tiny(tmp_path_factory.mktemp("raw")).read_bytes())
    raw = bytearray(RAW[0])
    raw[at : at + width] = bytes([value]) * width
    try:
        open_gguf(raw)
    except ModelError as error:
        assert "\n" not in str(error)


HUGE = 2**62
F32 = struct.pack("<f", 1.0)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"PK\x03\x04" + bytes(40), r"is not a GGUF file: it starts with b'PK\\x03\\x04', expected b'GGUF'"),
        (make([], [], version=1), "has GGUF version 1, supported are 2 and 3"),
        (make([], [], version=4), "has GGUF version 4, supported are 2 and 3"),
        (make([], [], version=3 << 24), "is a big-endian GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), f"declares {HUGE} tensors, more than its 24 bytes"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), f"declares {HUGE} keys, more than its 24 bytes"),
        (make([struct.pack("<Q", HUGE) + bytes(20)], []), f"metadata key 0 needs {HUGE} bytes"),
        (make([key("a", 8, struct.pack("<Q", HUGE))], []), f"the value of 'a' needs {HUGE} bytes"),
        (make([key("a", 9, struct.pack("<IQ", 4, HUGE))], []), f"the value of 'a' needs {4 * HUGE} bytes"),
        (make([key("a", 9, struct.pack("<IQ", 8, HUGE))], []), f"the value of 'a' needs {8 * HUGE} bytes"),
        (
            make([key("a", 9, struct.pack("<IQ", 8, 2) + text("x") + struct.pack("<Q", HUGE))], []),
            "the value of 'a' runs past the end at string 1 of 2",
        ),
        (make([key("a", 9, struct.pack("<IQ", 9, 1) + bytes(12))], []), "the value of 'a' has type number 9"),
        (make([key("a", 13, bytes(8))], []), "the value of 'a' has type number 13, which is not supported"),
        (make([key("a", 7, b"\x02")], []), "the value of 'a' holds 2, expected 0 or 1"),
        (make([key("a", 0, b"\x02"), key("a", 0, b"\x02")], []), "metadata key 'a' occurs twice"),
        (make([struct.pack("<Q", 1) + b"\xff" + bytes(5)], []), "metadata key 0 at byte 32 is not UTF-8"),
        (
            make([key("a", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff")], []),
            "the value of 'a' is not UTF-8 in string 0",
        ),
        (make([key("general.alignment", 4, struct.pack("<I", 24))], []), "general.alignment is 24"),
        (make([key("general.alignment", 6, F32)], []), "general.alignment is 1.0, expected a power of two"),
        (make([], [tensor("w", [])], 64), "tensor w has 0 dimensions, expected 1 to 4"),
        (make([], [tensor("w", [1] * 5)], 64), "tensor w has 5 dimensions"),
        (make([], [tensor("w", [4, 0])], 64), r"tensor w has shape \(0, 4\)"),
        (make([], [tensor("w", [HUGE, HUGE])], 64), "truncated: tensor w ends at byte"),
        (
            make([], [tensor("w", [16], 3)], 64),
            "tensor w of type Q4_1 has rows of 16 weights, expected a mult",
        ),
        (
            make([], [tensor("w", [32], 7)], 64),
            "tensor w has unsupported type Q5_1, known are F32, F16, Q4_0,",
        ),
        (make([], [tensor("w", [32], 999)], 64), "tensor w has unsupported type number 999"),
        (make([], [tensor("w", [4], 0, 8)], 64), "tensor w starts at offset 8, expected a multiple of 32"),
        (make([], [tensor("w", [4]), tensor("w", [4], 0, 32)], 64), "tensor 'w' occurs twice"),
        (make([], [tensor("w", [9]), tensor("x", [4], 0, 32)], 64), "tensors w and x overlap"),
        (b"", "model is empty"),
    ],
)
def test_damage_is_named(raw: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        open_gguf(raw)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read model file .*gone.gguf: No such file"):
        open_gguf(tmp_path / "gone.gguf")
    with pytest.raises(ModelError, match="cannot read model file"):
        open_gguf(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelError, match=r"empty.gguf is empty, expected a GGUF file"):
        open_gguf(tmp_path / "empty.gguf")


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_packaged_weights_dequantise_to_the_golden_digests(name: str) -> None:
    try:
        model = open_gguf(locate(name))
    except ModelError as missing:
        pytest.skip(str(missing))
    golden = json.loads((GOLDEN / f"{name}_dequant.json").read_text())
    assert model.digest() == golden["file_sha256"]
    assert set(model.tensors) == set(golden["tensors"])
    seen = set()
    for tensor in model.tensors.values():
        kind, shape, digest = golden["tensors"][tensor.name]
        assert (tensor.type, list(tensor.shape)) == (kind, shape)
        if kind in seen or tensor.nbytes > 2**21:
            continue  # one tensor of each type is dequantised
        seen.add(kind)
        raw = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape[0] if len(shape) > 1 else 1, -1)
        values = oracle.quants.dequantize(raw, oracle.GGMLQuantizationType[kind])
        assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest() == digest
