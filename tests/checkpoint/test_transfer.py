from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import device, random
from webkv.cache import CacheConfig, LayerGroup, PagedKVCache
from webkv.checkpoint import Group, Identity
from webkv.checkpoint.transfer import CachePages
from webkv.errors import CacheFullError, DeviceError

P = 4


async def cache_of(**changes: Any) -> tuple[PagedKVCache, Identity]:
    """Two layer groups, one with a window of 6, over NaN-free random page bytes."""
    full = LayerGroup("full", (0, 2), kv_heads=2, q_heads=4, head_dim=8)
    local = LayerGroup("local", (1,), kv_heads=1, q_heads=4, head_dim=4, window=6)
    sizes = {"max_total_len": 64, "page_tokens": P, "reserved_num_seqs": 4, "prefill_chunk_size": 32}
    config = CacheConfig(groups=(full, local), **{**sizes, **changes})
    cache = PagedKVCache(await device(), config)
    for layer in (0, 1, 2):
        pages = cache.layer_pages(layer)
        cache.device.write(pages, random(layer, pages.size // 4))
    groups = tuple(Group(g.name, g.name, config.layout(g).page_bytes, g.window) for g in config.groups)
    return cache, Identity("w", "t", "r", groups, P)


def grow(cache: PagedKVCache, seq: int, tokens: int) -> None:
    cache.begin_forward([seq], [tokens])
    cache.end_forward()


async def page_bytes(cache: PagedKVCache, layer: int, page: int) -> bytes:
    layout = cache.layout("local" if layer == 1 else "full")
    pool = 1 if layer == 2 else 0
    size = layout.slot_bytes[pool]
    return await cache.device.read(cache.layer_pages(layer), page * size, size)


async def stored(cache: PagedKVCache, seq: int, group: str, block: int) -> bytes:
    first, ids = cache.sequence_pages(seq, group)
    layers = (1,) if group == "local" else (0, 2)
    return b"".join([await page_bytes(cache, layer, ids[block - first]) for layer in layers])


@pytest.mark.parametrize("dtype", ["f16", "f32", "int8"])
async def test_an_exported_page_is_its_layers_slots_in_order(dtype: str) -> None:
    cache, identity = await cache_of(page_dtype=dtype)
    cache.add_sequence(0)
    cache.add_sequence(1)
    for _ in range(3):
        grow(cache, 0, 5)
        grow(cache, 1, 3)
    wanted = [("full", 0), ("local", 2), ("full", 2), ("full", 1), ("full", 9), ("local", 0)]
    found = CachePages(cache, 0, identity).export(wanted)
    assert [item is None for item in found] == [False, False, False, False, True, True]
    for (group, block), item in zip(wanted, found, strict=True):
        if item is not None:
            assert await item == await stored(cache, 0, group, block)


async def test_an_export_holds_what_was_there_when_it_started() -> None:
    cache, identity = await cache_of()
    cache.add_sequence(0)
    grow(cache, 0, 4)
    before = await stored(cache, 0, "full", 0)
    (item,) = CachePages(cache, 0, identity).export([("full", 0)])
    assert item is not None
    pages = cache.layer_pages(0)
    cache.device.write(pages, np.zeros(pages.size // 4, np.float32))
    assert await item == before


async def test_imported_pages_hold_their_bytes() -> None:
    cache, identity = await cache_of()
    cache.add_sequence(0)
    grow(cache, 0, 21)
    wanted = [(g.name, block) for g in identity.groups for block in g.needed(20, P)]
    data = [await item for item in CachePages(cache, 0, identity).export(wanted) if item is not None]
    assert len(data) == len(wanted) == 5 + 2
    cache.add_sequence(1)
    target = CachePages(cache, 1, identity)
    target.reserve(20)
    for (group, block), page in zip(wanted, data, strict=True):
        target.write(group, block, page)
    target.seal()
    assert cache.get_sequence_length(1) == 20
    assert [await stored(cache, 1, *page) for page in wanted] == data
    assert [await stored(cache, 0, *page) for page in wanted] == data
    cache.check()


async def test_a_cancelled_import_gives_its_pages_back() -> None:
    cache, identity = await cache_of()
    cache.add_sequence(0)
    free = [cache.num_available_pages(group.name) for group in identity.groups]
    target = CachePages(cache, 0, identity)
    target.reserve(20)
    target.write("full", 0, bytes(identity.groups[0].page_bytes))
    target.cancel()
    assert [cache.num_available_pages(group.name) for group in identity.groups] == free
    assert cache.get_sequence_length(0) == 0
    target.reserve(8)
    target.cancel()
    cache.check()


async def test_too_few_pages_say_need_and_have_and_change_nothing() -> None:
    cache, identity = await cache_of(max_total_len=32)
    cache.add_sequence(0)
    grow(cache, 0, 24)
    cache.add_sequence(1)
    with pytest.raises(CacheFullError, match="5 free pages of group 'full' needed, 3 available"):
        CachePages(cache, 1, identity).reserve(20)
    assert cache.get_sequence_length(1) == 0
    grow(cache, 1, 8)
    cache.check()


@pytest.mark.parametrize("late", [False, True])
async def test_refused_work_fails_an_export_and_is_told_to_who_asked_for_it(late: bool) -> None:
    cache, identity = await cache_of()
    cache.add_sequence(0)
    grow(cache, 0, P)
    pages = CachePages(cache, 0, identity)
    if late:
        (export,) = pages.export([("full", 0)])
    cache.device.failure = "an invalid pipeline"
    with pytest.raises(DeviceError, match="the GPU refused: an invalid pipeline"):
        if late:
            await export
        else:
            pages.export([("full", 0)])
    with pytest.raises(DeviceError, match="the GPU refused: an invalid pipeline"):
        await cache.device.read(cache.layer_pages(0))
    cache.device.check()


async def test_exports_make_no_buffer_after_the_first() -> None:
    cache, identity = await cache_of()
    cache.add_sequence(0)
    grow(cache, 0, 16)
    pages = CachePages(cache, 0, identity)
    await pages.export([("full", 0)])[0]  # type: ignore[misc]
    made = cache.device.created.buffers
    for block in (1, 2, 3):
        await pages.export([("full", block)])[0]  # type: ignore[misc]
    assert cache.device.created.buffers == made
