"""What GPU tests share: one device for the whole run, and array helpers."""

from __future__ import annotations

from typing import Any

import numpy as np

from webkv.gpu import Device, open_device

_device: Device | None = None


async def device() -> Device:
    """The device all tests share, with WebGPU's default limits exactly and no optional feature."""
    global _device
    if _device is None or _device.lost is not None:
        _device = await open_device()
    return _device


async def read_array(
    gpu: Device, buffer: Any, dtype: Any, shape: tuple[int, ...], offset: int = 0
) -> np.ndarray:
    """A buffer's content as an array of `shape`."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(await gpu.read(buffer, offset, size), dtype).reshape(shape).copy()


def upload(gpu: Device, *arrays: np.ndarray) -> list[Any]:
    """A buffer with each array's content."""
    return [gpu.buffer(array.nbytes, data=np.ascontiguousarray(array)) for array in arrays]


def random(seed: int, *shape: int) -> np.ndarray:
    """Reproducible float32 values of unit variance."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
