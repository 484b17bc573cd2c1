"""What each page dtype costs in exactness: the bounds that `CacheConfig` states."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cache.harness import NO_ROPE, Pair, config, group
from tests.support import device


@pytest.mark.parametrize(
    ("dtype", "output", "stored"), [("f32", 1e-5, 0.0), ("f16", 2e-3, 2**-11), ("int8", 4e-2, 1 / 254)]
)
async def test_errors_are_within_the_stated_bounds(dtype: str, output: float, stored: float) -> None:
    pair = Pair(await device(), config(group(head_dim=64, rope=NO_ROPE), page_dtype=dtype))
    pair.do("add_sequence", 0)
    for length in (5, 60, 60, 1):
        assert await pair.forward([0], [length]) <= output
    for found, exact in zip(await pair.cache.debug_get_kv(0, 0, 126), pair.dense.stored(0, 0), strict=True):
        largest = np.abs(exact).max(axis=-1, keepdims=True)
        assert (np.abs(found[0] - exact) <= stored * largest * 1.01).all()
