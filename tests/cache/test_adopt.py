"""Pages to and from a checkpoint: what is held, and the two phases of an import."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cache.books import forward, free, manager, snapshot
from tests.cache.harness import Pair, config, group
from tests.support import device
from webkv.cache.adopt import adopt_pages, own_pages, seal
from webkv.errors import CacheError, CacheFullError


async def moved(pair: Pair, length: int) -> None:
    """Copy sequence 0 to sequence 1 by bytes, as a checkpoint does, and go on with both."""
    gpu, cache = pair.gpu, pair.cache
    cache.add_sequence(1)
    for each in pair.config.groups:
        first, pages = cache.sequence_pages(0, each.name)
        taken = cache.adopt_pages(1, each.name, first, len(pages))
        for pool, layer in enumerate(each.layers):
            buffer, size = cache.layer_pages(layer), cache.layout(each.name).slot_bytes[pool]
            for source, target in zip(pages, taken, strict=True):
                gpu.write(buffer, await gpu.read(buffer, source * size, size), target * size)
    cache.seal(1, length)
    pair.dense.fork_sequence(0, 1)
    pair._free = [set(pool.free_pages().tolist()) for pool in cache.manager.pools]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 60])
async def test_an_imported_sequence_goes_on_like_its_source(length: int) -> None:
    pair = Pair(await device(), config(group(), group("local", (1, 2), window=20)))
    pair.do("add_sequence", 0)
    await pair.agrees([0], [length])
    await moved(pair, length)
    await pair.agrees([0, 1], [1, 1])
    await pair.agrees([1], [23])
    await pair.same_kv(1)


def test_an_importing_sequence_cannot_be_used_until_it_is_sealed() -> None:
    made = manager()
    forward(made, [0], [1])
    made.add(1)
    adopt_pages(made, 1, 0, 0, 2)
    made.check()
    for refused in (lambda: forward(made, [1], [1]), lambda: made.fork(1, 2)):
        with pytest.raises(CacheError, match="import"):
            refused()
    seal(made, 1, 20)
    forward(made, [1], [1])


def test_removing_an_importing_sequence_gives_its_pages_back() -> None:
    made = manager()
    made.add(0)
    have = free(made)
    adopt_pages(made, 0, 0, 0, 3)
    made.remove(0)
    made.check()
    assert free(made) == have


@pytest.mark.parametrize(
    ("first", "count", "message"),
    [(0, 40, "40 free pages"), (1, 2, "first_block is 1"), (0, -1, "neither below 0")],
)
def test_pages_that_cannot_be_adopted(first: int, count: int, message: str) -> None:
    made = manager()
    made.add(0)
    before = snapshot(made)
    with pytest.raises(CacheError, match=message):
        adopt_pages(made, 0, 0, first, count)
    assert snapshot(made) == before


def test_only_an_empty_sequence_adopts_and_only_once() -> None:
    made = manager()
    forward(made, [0], [5])
    with pytest.raises(CacheError, match="length is 5"):
        adopt_pages(made, 0, 0, 0, 1)
    made.add(1)
    adopt_pages(made, 1, 0, 0, 1)
    with pytest.raises(CacheError, match="1 pages are adopted already"):
        adopt_pages(made, 1, 0, 0, 1)


@pytest.mark.parametrize(
    ("length", "message"), [(33, "end at block 2, expected 3"), (16, "expected 1"), (-1, "expected 0")]
)
def test_a_length_that_does_not_fit_the_pages_is_not_sealed(length: int, message: str) -> None:
    made = manager()
    made.add(0)
    adopt_pages(made, 0, 0, 0, 2)
    with pytest.raises(CacheError, match=message):
        seal(made, 0, length)
    assert made.sequences[0].importing


def test_a_window_must_hold_what_the_next_query_sees() -> None:
    made = manager(group(window=20))
    for seq, first in ((0, 3), (1, 2)):
        made.add(seq)
        adopt_pages(made, seq, 0, first, 5 - first)
    with pytest.raises(CacheError, match="holds sequence 0 from token 48 on, token 47 is needed"):
        seal(made, 0, 66)
    seal(made, 1, 66)
    made.check()


def test_own_pages_copies_shared_ones_only() -> None:
    made = manager()
    forward(made, [0], [40])
    made.fork(0, 1, 32)
    assert own_pages(made, 0, 0, 10, 40) == [(0, 3, 16), (1, 4, 16)]
    made.check()


def test_own_pages_of_a_full_pool_changes_nothing() -> None:
    made = manager(max_total_len=16)
    forward(made, [0], [32])
    made.fork(0, 1)
    before = snapshot(made)
    with pytest.raises(CacheFullError):
        own_pages(made, 0, 0, 0, 32)
    assert snapshot(made) == before


async def test_debug_set_kv_writes_what_debug_get_kv_reads_and_spares_forks() -> None:
    pair = Pair(await device(), config(group(layers=(0, 1)), page_dtype="f16"))
    pair.do("add_sequence", 0)
    await pair.agrees([0], [40])
    pair.do("fork_sequence", 0, 1)
    k, v = await pair.cache.debug_get_kv(0, 10, 35)
    pair.cache.debug_set_kv(0, 10, k + 1, v - 1)
    pair.cache.check()
    again_k, again_v = await pair.cache.debug_get_kv(0, 10, 35)
    assert np.abs(again_k - k - 1).max() < 5e-3 and np.abs(again_v - v + 1).max() < 5e-3
    await pair.same_kv(1)
    before, _ = await pair.cache.debug_get_kv(0, 0, 10)
    assert np.abs(before[1] - pair.dense.stored(0, 1)[0][:10]).max() < 1e-2


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [(3, 3, "start_pos >= end_pos"), (-1, 2, "start_pos >= end_pos"), (0, 91, "out-of-range end_pos 91")],
)
async def test_tokens_that_are_not_there_are_refused(start: int, end: int, message: str) -> None:
    pair = Pair(await device(), config())
    pair.do("add_sequence", 0)
    pair.cache.begin_forward([0], [90])
    pair.cache.end_forward()
    with pytest.raises(CacheError, match=message):
        await pair.cache.debug_get_kv(0, start, end)


async def test_tokens_that_left_a_window_are_refused() -> None:
    pair = Pair(await device(), config(group(window=20)))
    pair.cache.add_sequence(0)
    pair.cache.begin_forward([0], [90])
    pair.cache.end_forward()
    with pytest.raises(
        CacheError, match="start_pos 47: group 'global' of window 20 holds sequence 0 from token 48"
    ):
        await pair.cache.debug_get_kv(0, 47, 90)
