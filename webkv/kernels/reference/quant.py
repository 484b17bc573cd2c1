"""The numpy twin of `shaders/quant_*.wgsl`: planes back to the weights they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from webkv.kernels.quant import BLOCK, TILE, Packed

Floats = npt.NDArray[np.float32]


def unpack(packed: Packed) -> Floats:
    """`w[rows][cols]` f32, exactly as the GPU sees it."""
    blocks = packed.cols // BLOCK
    weights = _CODECS[packed.codec](packed, blocks)  # [tile][block][8 rows][32]
    flat = weights.transpose(0, 2, 1, 3).reshape(-1, packed.cols)
    return np.ascontiguousarray(flat[: packed.rows], np.float32)


def _plane(packed: Packed, index: int, kind: Any, *shape: int) -> npt.NDArray[Any]:
    return packed.planes[index].view(kind).reshape(-1, *shape)


def _nibbles(packed: Packed, blocks: int) -> npt.NDArray[np.uint8]:
    raw = _plane(packed, 0, np.uint8, blocks, TILE, 16)
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _halves(packed: Packed, index: int, blocks: int) -> tuple[Floats, Floats]:
    pair = _plane(packed, index, np.float16, blocks, TILE, 2).astype(np.float32)
    return pair[..., :1], pair[..., 1:]


def _q4(packed: Packed, blocks: int) -> Floats:
    scale, minimum = _halves(packed, 1, blocks)
    return scale * _nibbles(packed, blocks) + minimum


def _q5(packed: Packed, blocks: int) -> Floats:
    scale, minimum = _halves(packed, 2, blocks)
    highs = np.unpackbits(_plane(packed, 1, np.uint8, blocks, TILE, 4), axis=-1, bitorder="little")
    return scale * (_nibbles(packed, blocks) | highs << 4) + minimum


def _q8(packed: Packed, blocks: int) -> Floats:
    quants = _plane(packed, 0, np.int8, blocks, 2, TILE, 16).transpose(0, 1, 3, 2, 4)
    pairs = _plane(packed, 1, np.float16, (blocks + 1) // 2, TILE, 2).transpose(0, 1, 3, 2)
    scales = pairs.reshape(len(pairs), -1, TILE)[:, :blocks, :, None].astype(np.float32)
    return scales * quants.reshape(*quants.shape[:3], 32)


def _q4_k(packed: Packed, blocks: int) -> Floats:
    steps = _plane(packed, 1, np.uint8, blocks // 2, TILE, 2, 2).transpose(0, 1, 3, 2, 4)
    steps = steps.reshape(-1, blocks, TILE, 2).astype(np.float32)
    d, dmin = (np.repeat(half, 8, axis=1) for half in _halves(packed, 2, blocks // 8))
    return d * steps[..., :1] * _nibbles(packed, blocks) - dmin * steps[..., 1:]


def _q6_k(packed: Packed, blocks: int) -> Floats:
    words = _plane(packed, 1, np.uint8, blocks, 2, TILE, 1, 4).transpose(0, 1, 3, 2, 4, 5)
    upper = (words >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    quants = (_nibbles(packed, blocks) | upper.reshape(*words.shape[:3], 32) << 4).astype(np.float32) - 32
    d = _halves(packed, 2, blocks)[0]
    halves = _plane(packed, 2, np.int8, blocks, TILE, 4)[..., 2:].astype(np.float32)
    return d * (np.repeat(halves, 16, axis=-1) * quants)


def _f16(packed: Packed, blocks: int) -> Floats:
    raw = _plane(packed, 0, np.float16, blocks, 4, TILE, 8).transpose(0, 1, 3, 2, 4)
    return raw.reshape(*raw.shape[:3], 32).astype(np.float32)


def _f32(packed: Packed, blocks: int) -> Floats:
    raw = _plane(packed, 0, np.float32, blocks, 8, TILE, 4).transpose(0, 1, 3, 2, 4)
    return raw.reshape(*raw.shape[:3], 32)


_CODECS: dict[str, Callable[[Packed, int], Floats]] = {
    "f32": _f32,
    "f16": _f16,
    "q4": _q4,
    "q5": _q5,
    "q8": _q8,
    "q4_k": _q4_k,
    "q6_k": _q6_k,
}
