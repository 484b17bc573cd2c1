"""The free list and the reference counts."""

from __future__ import annotations

import numpy as np
import pytest

from webkv.cache.pool import PagePool
from webkv.errors import CacheFullError


def test_pages_come_lowest_first_then_last_freed_first() -> None:
    pool = PagePool(5, "g")
    assert pool.take(3) == [0, 1, 2]
    pool.drop([0, 2])
    assert pool.take(3) == [2, 0, 3]


def test_a_shared_page_is_free_after_the_last_drop() -> None:
    pool = PagePool(2, "g")
    pool.share(pool.take(1))
    pool.drop([0])
    assert (pool.available, pool.refs(0)) == (1, 1)
    pool.drop([0])
    assert (pool.available, pool.refs(0)) == (2, 0)


def test_too_few_pages_says_needed_available_and_group() -> None:
    pool = PagePool(2, "local")
    pool.require(3, freed=1)
    with pytest.raises(
        CacheFullError, match="KV cache is full: 3 free pages of group 'local' needed, 2 avail"
    ) as e:
        pool.require(3)
    assert (e.value.needed, e.value.available, e.value.group) == (3, 2, "local")


def test_check_finds_a_page_that_is_held_once_too_often() -> None:
    pool = PagePool(2, "g")
    pool.take(1)
    pool.check(np.array([1, 0]))
    with pytest.raises(AssertionError, match="page"):
        pool.check(np.array([2, 0]))


def test_check_finds_a_lost_page() -> None:
    pool = PagePool(2, "g")
    pool._free.pop()
    with pytest.raises(AssertionError, match="free list"):
        pool.check(np.array([0, 0]))
