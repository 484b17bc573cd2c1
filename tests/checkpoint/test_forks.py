"""Forks through the extended format: pages that sequences share are in it once, and are shared again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.cache.harness import Pair, config, group
from tests.support import device
from webkv.cache import PagedKVCache
from webkv.checkpoint.primitives import CheckpointPrimitives
from webkv.errors import CacheError, CacheFullError

FORKED = [0, 1, 2]


def full(**fields: Any) -> Any:
    return group("full", (0, 2), **fields)


def local(**fields: Any) -> Any:
    return group("local", (1,), window=20, **fields)


async def forked(pair: Pair) -> None:
    """Three sequences: 1 parts from 0 inside a page, 2 from 1 at a page's end; then each goes its way."""
    pair.do("add_sequence", 0)
    await pair.agrees([0], [40])
    pair.do("fork_sequence", 0, 1, 35)
    await pair.agrees([1], [13])
    pair.do("fork_sequence", 1, 2, 48)
    await pair.agrees([0, 1, 2], [1, 2, 3])


async def exported(cache: PagedKVCache) -> tuple[str, list[np.ndarray]]:
    primitives = CheckpointPrimitives(cache, 2)
    layers = range(len(cache.config.layers))
    text = primitives.get_checkpoint_metadata(FORKED)
    return text, [await primitives.export_page_group(at, FORKED) for at in layers]


def imported(cache: PagedKVCache, text: str, groups: list[np.ndarray]) -> None:
    primitives = CheckpointPrimitives(cache, 2)
    primitives.prepare_import(text)
    for at, data in enumerate(groups):
        primitives.import_page_group(at, data)
    primitives.finish_import()


@pytest.mark.parametrize("windowed", [False, True])
async def test_an_import_takes_no_more_pages_than_were_held_and_goes_on(windowed: bool) -> None:
    pair = Pair(await device(), config(full(), *([local()] if windowed else [])))
    await forked(pair)
    cache = pair.cache
    names = [each.name for each in cache.config.groups]
    before = [cache.num_available_pages(name) for name in names]
    text, groups = await exported(cache)
    for seq in FORKED:
        cache.remove_sequence(seq)
    pair.poison_freed()
    imported(cache, text, groups)
    cache.check()
    assert [cache.num_available_pages(name) for name in names] == before
    assert (await exported(cache))[0] == text
    await pair.agrees(FORKED, [20, 1, 7])
    pair.do("remove_sequence", 0)
    await pair.agrees([1, 2], [1, 1])
    cache.check()


async def test_forks_that_filled_a_pool_fill_it_again_and_no_smaller_one() -> None:
    made = config(group("full", (0,), num_pages=6), prefill_chunk_size=128)
    pair = Pair(await device(), made)
    pair.do("add_sequence", 0)
    await pair.agrees([0], [64])
    for seq in (1, 2):
        pair.do("fork_sequence", 0, seq, 64)
        await pair.agrees([seq], [1])
    assert pair.cache.num_available_pages("full") == 0
    text, groups = await exported(pair.cache)
    again = PagedKVCache(await device(), made)
    imported(again, text, groups)
    again.check()
    small = PagedKVCache(await device(), config(group("full", (0,), num_pages=5), prefill_chunk_size=128))
    with pytest.raises(CacheFullError, match="6 free pages of group 'full' needed, 5 available"):
        CheckpointPrimitives(small, 2).prepare_import(text)
    assert small.empty()


async def test_an_unfinished_page_that_two_sequences_claim_is_given_to_each() -> None:
    cache = PagedKVCache(await device(), config(full()))
    for seq in FORKED:
        cache.add_sequence(seq)
        cache.begin_forward([seq], [20])
        cache.end_forward()
    text, groups = await exported(cache)
    fields = json.loads(text)
    for sequence in fields["sequences"]:
        sequence["layer_groups"][0]["pages"] = [0, 1]
    for item in fields["groups"]:
        item.update(num_pages=2, nbytes=item["nbytes"] // 3)
    cache.clear()
    imported(cache, json.dumps(fields), [data[:2] for data in groups])
    held = [cache.sequence_pages(seq, "full")[1] for seq in FORKED]
    assert len({pages[0] for pages in held}) == 1
    assert len({pages[1] for pages in held}) == 3
    cache.check()


async def test_sharing_what_nobody_holds_is_refused() -> None:
    cache = PagedKVCache(await device(), config(full()))
    cache.add_sequence(0)
    before = cache.num_available_pages("full")
    for shared in ({0: 3}, {2: 0}, {-1: 0}):
        with pytest.raises(CacheError, match="shared is"):
            cache.adopt_pages(0, "full", 0, 2, shared)
    assert cache.num_available_pages("full") == before
    cache.check()
