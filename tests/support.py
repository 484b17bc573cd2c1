"""What tests share: one device for the whole run, array helpers, and how much of a long test a page runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
import pytest

from webkv.gpu import Device, open_device
from webkv.kernels import attention, variants
from webkv.kernels.matmul import FEATURES

# In a page pure Python takes ten times as long; its own traps do not need many examples.
IN_PAGE = sys.platform == "emscripten"
T = TypeVar("T")

_device: Device | None = None


def examples(count: int) -> int:
    """How many random examples a property is tried with: `count`, in a page at most 5."""
    return min(count, 5) if IN_PAGE else count


def cases(parameters: Iterable[Any], *, natively: Collection[Any]) -> list[Any]:
    """All parameters; a page skips those in `natively`, each of which would only compile one more variant.

    On a software adapter that takes a second.  What is left has every kernel, page dtype and kind of mask.
    """
    mark = pytest.mark.skipif(IN_PAGE, reason="natively only: one more variant of a kernel")
    return [pytest.param(p, marks=mark) if p in natively else p for p in parameters]


def sampled(cases: Sequence[T], every: int = 10) -> Sequence[T]:
    """All cases of a long list, in a page each of them that a fixed stride meets."""
    return cases[::every] if IN_PAGE else cases


async def device() -> Device:
    """The device all tests share, with WebGPU's default limits exactly and no optional feature."""
    global _device
    if _device is None or _device.lost is not None:
        _device = await open_device()
    return _device


@cache
def featured_device() -> Device:
    """A device with the optional features that kernels make use of, as far as the adapter has them."""
    return asyncio.run(open_device(features=FEATURES))


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


def set_part(monkeypatch: pytest.MonkeyPatch, tokens: int = 256) -> None:
    """Prefill walks parts of `tokens`; one tile is the shortest there can be."""
    for module in (attention, variants):
        monkeypatch.setattr(module, "PREFILL_PART", tokens)
