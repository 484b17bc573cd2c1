"""The header of a GGUF file, read with every count and length checked against the bytes that exist.

Layout (GGUF version 2 and 3, little-endian): magic, version, tensor count, key count; keys with typed values;
tensor infos (name, dimensions fastest first, type, offset); padding to the alignment; tensor data.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from webkv.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4

# GGML type id -> (name, weights per block, bytes per block)
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    14: ("Q6_K", 256, 210),
}
# Types of the GGUF metadata values: id -> little-endian numpy dtype
SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
BOOL, STRING, ARRAY = 7, 8, 9
# The least bytes of a key (empty name, type, 1-byte value) and of a tensor info (empty name, no dimension).
MIN_KEY_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 4 + 8


class Truncated(ModelError):
    """The header needs bytes past the end of what was given."""


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: `shape` row-major, `offset` and `nbytes` in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int
    offset: int


@dataclass(frozen=True)
class Header:
    metadata: dict[str, Any]
    tensors: list[TensorInfo]


def parse_header(name: str, data: memoryview) -> Header:
    """The header of the GGUF that `data` begins with; `name` is the file's name for messages."""
    cursor = _Cursor(name, data)
    tensor_count, key_count = _preamble(cursor)
    metadata: dict[str, Any] = {}
    for index in range(key_count):
        key = cursor.string(f"metadata key {index}")
        if key in metadata:
            raise ModelError(f"{name} is damaged: metadata key {key!r} occurs twice")
        metadata[key] = cursor.value(cursor.u32(f"the type of {key!r}"), key)
    raw = [_tensor_info(cursor, index) for index in range(tensor_count)]
    alignment = _alignment(name, metadata)
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in raw:
        if info.name in tensors:
            raise ModelError(f"{name} is damaged: tensor {info.name!r} occurs twice")
        if info.offset % alignment:
            raise ModelError(
                f"{name} is damaged: tensor {info.name} starts at offset {info.offset}, "
                f"expected a multiple of {alignment}"
            )
        tensors[info.name] = TensorInfo(info.name, info.shape, info.type, info.nbytes, start + info.offset)
    return Header(metadata, list(tensors.values()))


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    """Magic, version and the two counts; returns (tensors, keys)."""
    name, magic = cursor.name, bytes(cursor.data[:4])
    if len(magic) < len(MAGIC) and MAGIC.startswith(magic):
        raise Truncated(f"{name} is truncated: it has {len(magic)} bytes")
    if magic != MAGIC:
        raise ModelError(f"{name} is not a GGUF file: it starts with {magic!r}, expected {MAGIC!r}")
    cursor.at = 4
    version = cursor.u32("the version")
    if version and version & 0xFFFF == 0:
        raise ModelError(f"{name} is a big-endian GGUF file, only little-endian files are supported")
    if version not in VERSIONS:
        raise ModelError(f"{name} has GGUF version {version}, supported are 2 and 3")
    tensor_count, key_count = cursor.u64("the tensor count"), cursor.u64("the key count")
    limits = (("keys", key_count, MIN_KEY_BYTES), ("tensors", tensor_count, MIN_TENSOR_BYTES))
    for what, count, least in limits:
        if count * least > len(cursor.data) - cursor.at:
            raise Truncated(
                f"{name} is damaged or truncated: it declares {count} {what}, "
                f"more than its {len(cursor.data)} bytes can hold"
            )
    return tensor_count, key_count


def _alignment(name: str, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(value) is not int or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise ModelError(f"{name} is damaged: general.alignment is {value!r}, expected a power of two")
    return value


def _tensor_info(cursor: _Cursor, index: int) -> TensorInfo:
    """One tensor info, its offset still relative to the start of the tensor data."""
    tensor = cursor.string(f"the name of tensor {index}")
    dims = cursor.u32(f"the dimensions of tensor {tensor}")
    if not 1 <= dims <= MAX_DIMS:
        raise ModelError(f"{cursor.name} is damaged: tensor {tensor} has {dims} dimensions, expected 1 to 4")
    sizes = [cursor.u64(f"the dimensions of tensor {tensor}") for _ in range(dims)]
    type_id = cursor.u32(f"the type of tensor {tensor}")
    offset = cursor.u64(f"the offset of tensor {tensor}")
    if type_id not in TENSOR_TYPES:
        known = ", ".join(kind for kind, _, _ in TENSOR_TYPES.values())
        found = _foreign_type(type_id)
        raise ModelError(f"{cursor.name}: tensor {tensor} has unsupported type {found}, known are {known}")
    kind, block, block_bytes = TENSOR_TYPES[type_id]
    if 0 in sizes:
        raise ModelError(f"{cursor.name} is damaged: tensor {tensor} has shape {tuple(reversed(sizes))}")
    if sizes[0] % block:
        raise ModelError(
            f"{cursor.name} is damaged: tensor {tensor} of type {kind} has rows of {sizes[0]} weights, "
            f"expected a multiple of {block}"
        )
    nbytes = math.prod(sizes) // block * block_bytes
    return TensorInfo(tensor, tuple(reversed(sizes)), kind, nbytes, offset)


def _foreign_type(type_id: int) -> str:
    """The name of a GGML type that webkv does not run, where the gguf package is there to tell it."""
    try:
        from gguf import GGMLQuantizationType

        return GGMLQuantizationType(type_id).name
    except (ImportError, ValueError):
        return f"number {type_id}"


class _Cursor:
    """A position in the header that refuses to pass its end."""

    def __init__(self, name: str, data: memoryview) -> None:
        self.name = name
        self.data = data
        self.at = 0

    def take(self, size: int, what: str) -> memoryview:
        if size > len(self.data) - self.at:
            raise Truncated(
                f"{self.name} is damaged or truncated: {what} needs {size} bytes at byte {self.at}, "
                f"the file has {len(self.data)}"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def string(self, what: str) -> str:
        raw = self.take(self.u64(what), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            start = self.at - len(raw)
            raise ModelError(f"{self.name} is damaged: {what} at byte {start} is not UTF-8") from None

    def value(self, kind: int, key: str) -> Any:
        """A metadata value as a plain int, float, bool, str or list of them."""
        what = f"the value of {key!r}"
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            item, count = self.u32(what), self.u64(what)
            return self._strings(count, what) if item == STRING else self._scalars(item, count, what)
        return self._scalars(kind, 1, what)[0]

    def _scalars(self, kind: int, count: int, what: str) -> list[Any]:
        if kind not in SCALARS:
            raise ModelError(f"{self.name}: {what} has type number {kind}, which is not supported")
        dtype = np.dtype(SCALARS[kind])
        values = np.frombuffer(self.take(count * dtype.itemsize, what), dtype)
        if kind == BOOL:
            if count and values.max() > 1:
                raise ModelError(f"{self.name} is damaged: {what} holds {values.max()}, expected 0 or 1")
            return values.astype(bool).tolist()
        return values.tolist()

    def _strings(self, count: int, what: str) -> list[str]:
        """`count` strings; the loop is written out because a vocabulary has up to 262 k of them."""
        if count * 8 > len(self.data) - self.at:
            self.take(count * 8, what)
        data, at, end = self.data, self.at, len(self.data)
        length_at = struct.Struct("<Q").unpack_from
        strings = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(data, at)[0]
                if at > end:
                    raise struct.error
                strings.append(str(data[start:at], "utf-8"))
        except struct.error:
            raise Truncated(
                f"{self.name} is damaged or truncated: {what} runs past the end "
                f"at string {len(strings)} of {count}"
            ) from None
        except UnicodeDecodeError:
            raise ModelError(
                f"{self.name} is damaged: {what} is not UTF-8 in string {len(strings)}"
            ) from None
        self.at = at
        return strings
