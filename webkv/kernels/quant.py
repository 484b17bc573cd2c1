"""Quantised weights as the GPU reads them: ggml's blocks taken apart into planes of whole 32-bit words.

ggml's blocks (18 to 210 bytes) are not word-aligned.  Here every matrix is cut into *tiles* of 8 rows and
*blocks* of 32 columns, and each plane (quants, high bits, scales) is an array `[tile][block]...[8 rows]`: so
eight neighbouring lanes, each with a row of its own, read neighbouring words.  Bits stay as they were, and
`w` is exactly ggml's dequantised value; Q4_0 and Q5_0 become Q4_1 and Q5_1 with minimum -8 or -16 scales.
`shaders/quant_<codec>.wgsl` says how each plane is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from webkv.errors import ModelError
from webkv.gpu import Device
from webkv.kernels.planes import Plane, most_tiles, upload_planes

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]

TILE = 8
BLOCK = 32
GATED = 4 * TILE
"""Rows of the gate, then as many of up, that lie together in a gated matrix."""


@dataclass(frozen=True)
class Packed:
    """A matrix `w[rows][cols]` as planes of u32, flat; `codec` names its `shaders/quant_<codec>.wgsl`."""

    codec: str
    rows: int
    cols: int
    planes: tuple[Words, ...]


@dataclass(frozen=True, eq=False)
class Part:
    """`rows` rows of a matrix from row `first` (a multiple of 8) on, in planes on the GPU."""

    first: int
    rows: int
    planes: tuple[Plane, ...]


@dataclass(frozen=True, eq=False)
class Weight:
    """A matrix `w[rows][cols]` on the GPU; in several parts where a plane is over the binding limit.

    `launches`: what `kernels.matmul` prepared for it, by use, so that a step looks up and no more.
    """

    codec: str
    rows: int
    cols: int
    parts: tuple[Part, ...]
    launches: dict[Any, Any] = field(default_factory=dict, repr=False)


def pack(kind: str, raw: Any, rows: int, cols: int) -> Packed:
    """Planes of a ggml matrix of type `kind` ("Q4_1", ...): `raw` holds its bytes, row after row.

    Raises `ModelError` for a type or a row length that no codec reads.
    """
    if kind not in _PACKERS:
        raise ModelError(f"weight type {kind} is not supported, known are {', '.join(sorted(_PACKERS))}")
    codec, per_block, block_bytes, packer = _PACKERS[kind]
    if cols % per_block:
        raise ModelError(
            f"{kind} rows of {cols} weights are not supported, expected a multiple of {per_block}"
        )
    blocks = cols // per_block
    data = np.frombuffer(raw, np.uint8)
    assert data.size == rows * blocks * block_bytes, f"{kind} {rows}x{cols}: {data.size} bytes"
    if rows % TILE:
        padding = np.zeros(-rows % TILE * blocks * block_bytes, np.uint8)
        data = np.concatenate([data, padding])
    planes = packer(data.reshape(-1, blocks, block_bytes))
    return Packed(codec, rows, cols, tuple(plane.reshape(-1).view(np.uint32) for plane in planes))


def upload(device: Device, name: str, kind: str, raw: Any, rows: int, cols: int) -> Weight:
    """Pack a matrix and write it to new buffers or textures, split by rows so that every plane can be bound.

    `name` labels them.  Raises `ModelError` as `pack` does, `DeviceError` when the GPU has no room.
    """
    data = np.frombuffer(raw, np.uint8)
    step = _rows_per_part(device, kind, rows, cols)
    row_bytes = data.size // rows
    parts = []
    codec = ""
    for first in range(0, rows, step):
        count = min(step, rows - first)
        packed = pack(kind, data[first * row_bytes : (first + count) * row_bytes], count, cols)
        codec = packed.codec
        planes = upload_planes(device, name, packed.planes, -(-count // TILE), cols // BLOCK)
        parts.append(Part(first, count, planes))
    return Weight(codec, rows, cols, tuple(parts))


def fits(device: Device, kind: str, rows: int, cols: int) -> bool:
    """Whether `upload` would make one part of it."""
    return rows <= _rows_per_part(device, kind, rows, cols)


def gated(gate: Any, up: Any, rows: int) -> Bytes:
    """The bytes of a matrix for `norm_gated_matmul`: 32 of gate's `rows` rows, 32 of up's, and so on."""
    halves = [np.frombuffer(half, np.uint8).reshape(rows // GATED, -1) for half in (gate, up)]
    return np.stack(halves, axis=1).reshape(-1)


def _rows_per_part(device: Device, kind: str, rows: int, cols: int) -> int:
    planes = pack(kind, bytes(_row_bytes(kind, cols)), 1, cols).planes
    most = TILE * most_tiles(device, max(plane.nbytes for plane in planes))
    return -(-rows // (-(-rows // most) * TILE)) * TILE


def _row_bytes(kind: str, cols: int) -> int:
    _, per_block, block_bytes, _ = _PACKERS.get(kind, ("", 1, 0, None))
    return cols // per_block * block_bytes


def _tile(plane: npt.NDArray[Any], groups: int = 1) -> npt.NDArray[Any]:
    """`[rows][blocks][groups * width]` items as `[tile][block][groups][8 rows][width]`, each contiguous."""
    rows, blocks = plane.shape[:2]
    shaped = plane.reshape(rows // TILE, TILE, blocks, groups, -1)
    return np.ascontiguousarray(shaped.transpose(0, 2, 3, 1, 4))


def _bytes_at(blocks: Bytes, start: int, stop: int) -> npt.NDArray[Any]:
    """Bytes start..stop of each block as one opaque item, which numpy moves at once."""
    size = stop - start
    fields = np.dtype(
        {"names": ["it"], "formats": [f"V{size}"], "offsets": [start], "itemsize": blocks.shape[2]}
    )
    return blocks.view(fields)["it"]


def _pairs(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Words:
    """Two 16-bit arrays as the low and high halves of words."""
    low, high = (half.view(np.uint16).astype(np.uint32) for half in (first, second))
    return low | high << np.uint32(16)


def _f16(blocks: Bytes, start: int) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view(np.float16)


def _with_minimum(blocks: Bytes, zero_point: int) -> Words:
    """(scale, minimum) pairs for a type whose quants are offset by `zero_point`; exact in f16."""
    scale = _f16(blocks, 0)
    with np.errstate(over="ignore"):
        minimum = scale * np.float16(-zero_point)
    if not np.isfinite(minimum).all():
        raise ModelError(f"a weight scale is over {65504 // zero_point}, which is not supported")
    return _pairs(scale, minimum)


def _q4_0(blocks: Bytes) -> Sequence[npt.NDArray[Any]]:
    return _tile(_bytes_at(blocks, 2, 18)), _tile(_with_minimum(blocks, 8))


def _q4_1(blocks: Bytes) -> Sequence[npt.NDArray[Any]]:
    return _tile(_bytes_at(blocks, 4, 20)), _tile(_bytes_at(blocks, 0, 4))


def _q5_0(blocks: Bytes) -> Sequence[npt.NDArray[Any]]:
    return _tile(_bytes_at(blocks, 6, 22)), _tile(_bytes_at(blocks, 2, 6)), _tile(_with_minimum(blocks, 16))


def _q5_1(blocks: Bytes) -> Sequence[npt.NDArray[Any]]:
    return _tile(_bytes_at(blocks, 8, 24)), _tile(_bytes_at(blocks, 4, 8)), _tile(_bytes_at(blocks, 0, 4))


def _q8_0(blocks: Bytes) -> Sequence[npt.NDArray[Any]]:
    halves = np.ascontiguousarray(blocks[:, :, 2:]).view("V16")
    scales = _f16(blocks, 0)[:, :, 0]
    if scales.shape[1] % 2:
        scales = np.concatenate([scales, np.zeros_like(scales[:, :1])], axis=1)
    return _tile(halves, groups=2), _tile(np.ascontiguousarray(scales).view(np.uint32)[:, :, None])


def _nibbles(quants: Bytes) -> npt.NDArray[Any]:
    """Low four bits of `[..., 32]` as 16 bytes: weights 0..15 in the low, 16..31 in the high nibbles."""
    return np.ascontiguousarray(quants[..., :16] & 15 | quants[..., 16:] << 4).view("V16")


def _q4_k(blocks: Bytes) -> Sequence[npt.NDArray[Any]]:
    rows, count, _ = blocks.shape
    raw = blocks[:, :, 16:].reshape(rows, count, 4, 1, 32)  # 4 x 32 bytes of two blocks' nibbles
    quants = np.concatenate([raw & 15, raw >> 4], axis=3).reshape(rows, count * 8, 32)
    packed = blocks[:, :, 4:16]
    low, high = packed[:, :, 0:4], packed[:, :, 4:8]
    upper = packed[:, :, 8:12]
    steps = np.empty((rows, count, 8, 2), np.uint8)
    steps[:, :, :4, 0], steps[:, :, :4, 1] = low & 63, high & 63
    steps[:, :, 4:, 0] = (upper & 15) | (low >> 6 << 4)
    steps[:, :, 4:, 1] = (upper >> 4) | (high >> 6 << 4)
    pairs = steps.reshape(rows, count * 4, 4).view(np.uint32)
    return _tile(_nibbles(quants)), _tile(pairs), _tile(_bytes_at(blocks, 0, 4))


def _q6_k(blocks: Bytes) -> Sequence[npt.NDArray[Any]]:
    rows, count, _ = blocks.shape
    low = blocks[:, :, :128].reshape(rows, count, 2, 2, 32)
    quants = np.stack([low[:, :, :, 0], low[:, :, :, 1], low[:, :, :, 0] >> 4, low[:, :, :, 1] >> 4], axis=3)
    high = blocks[:, :, 128:192].reshape(rows, count, 2, 1, 32)
    upper = (high >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3  # [rows][count][2][4][32]
    # Weight 16h + 4f + b of a block goes to bits 2f of byte b of word h.
    fields = upper.reshape(rows, count * 8, 2, 4, 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    words = np.bitwise_or.reduce(fields, axis=3).reshape(rows, count * 8, 8)
    scales = np.empty((rows, count * 8, 4), np.uint8)
    scales[:, :, :2] = np.repeat(blocks[:, :, 208:210], 8, axis=1)
    scales[:, :, 2:] = blocks[:, :, 192:208].reshape(rows, count * 8, 2)
    nibbles = _nibbles(quants.reshape(rows, count * 8, 32))
    return _tile(nibbles), _tile(words.view("V4"), groups=2), _tile(scales.view(np.uint32))


def _plain(groups: int) -> Callable[[Bytes], Sequence[npt.NDArray[Any]]]:
    return lambda blocks: (_tile(blocks.view("V16"), groups),)


# ggml type -> (codec, weights per block, bytes per block, packer).  F16 and F32 are cut into blocks of 32.
_PACKERS: dict[str, tuple[str, int, int, Callable[[Bytes], Sequence[npt.NDArray[Any]]]]] = {
    "F32": ("f32", 32, 128, _plain(8)),
    "F16": ("f16", 32, 64, _plain(4)),
    "Q4_0": ("q4", 32, 18, _q4_0),
    "Q4_1": ("q4", 32, 20, _q4_1),
    "Q5_0": ("q5", 32, 22, _q5_0),
    "Q5_1": ("q5", 32, 24, _q5_1),
    "Q8_0": ("q8", 32, 34, _q8_0),
    "Q4_K": ("q4_k", 256, 144, _q4_k),
    "Q6_K": ("q6_k", 256, 210, _q6_k),
}

SUPPORTED = tuple(sorted(_PACKERS))
"""ggml weight types that `pack` reads."""
