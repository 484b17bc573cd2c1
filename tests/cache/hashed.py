"""The inputs of the TVM cases: an integer hash, exact in float16 (see tests/golden/README.md)."""

from __future__ import annotations

import numpy as np


def splitmix64(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def hashed(seed: int, step: int, layer: int, stream: int, *shape: int) -> np.ndarray:
    """The case's inputs: multiples of 1/64 in [-2, 2), float32."""
    key = splitmix64(np.array(seed << 40 ^ step << 24 ^ layer << 12 ^ stream, np.uint64))
    with np.errstate(over="ignore"):
        values = splitmix64(key + np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64))
    return (((values >> np.uint64(56)).astype(np.float32) - 128) / 64).reshape(shape)
