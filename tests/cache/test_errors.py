"""What a forward refuses, by name, before anything has changed; and what a configuration refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cache.books import snapshot
from tests.cache.harness import config, group
from tests.support import device
from webkv.cache import CacheConfig, PagedKVCache, RopeConfig
from webkv.errors import CacheError
from webkv.gpu import DEFAULT_LIMITS, open_device


async def opened(**fields: Any) -> PagedKVCache:
    cache = PagedKVCache(await device(), config(**fields))
    cache.add_sequence(0)
    return cache


@pytest.mark.parametrize(
    "operation",
    [
        lambda c: c.begin_forward([0], [1]),
        lambda c: c.add_sequence(1),
        lambda c: c.remove_sequence(0),
        lambda c: c.fork_sequence(0, 1),
        lambda c: c.popn(0, 1),
        lambda c: c.enable_sliding_window_for_seq(0, 4, 0),
        lambda c: c.commit_accepted_token_tree_nodes([0], [-1]),
        lambda c: c.adopt_pages(0, "global", 0, 1),
        lambda c: c.seal(0, 1),
    ],
)
async def test_nothing_changes_inside_a_forward(operation: Callable[[PagedKVCache], object]) -> None:
    cache = await opened()
    cache.begin_forward([0], [3])
    before = snapshot(cache.manager)
    with pytest.raises(CacheError, match="inside a forward"):
        operation(cache)
    assert snapshot(cache.manager) == before


@pytest.mark.parametrize("name", ["end_forward", "abort_forward", "get_query_positions"])
async def test_ending_what_was_not_begun(name: str) -> None:
    with pytest.raises(CacheError, match="needs an open forward"):
        getattr(await opened(), name)()


async def test_attention_outside_a_forward_or_of_an_unknown_layer() -> None:
    cache = await opened()
    rows = cache.device.buffer(4 * 128)
    with cache.device.batch() as batch:
        with pytest.raises(CacheError, match="needs an open forward"):
            cache.attention(batch, 0, rows, rows)
        cache.begin_forward([0], [1])
        with pytest.raises(CacheError, match=r"layer id 7 is out of range, the cache holds \[0\]"):
            cache.attention(batch, 7, rows, rows)
        assert batch.dispatches == 0


async def test_rows_that_are_too_small_or_elsewhere() -> None:
    cache = await opened()
    gpu, other = cache.device, await open_device()
    cache.begin_forward([0], [3])
    fits, short, foreign = gpu.buffer(4 * 3 * 128), gpu.buffer(4 * 3 * 128 - 4), other.buffer(4 * 3 * 128)
    with gpu.batch() as batch:
        for qkv, out, message in (
            (short, fits, "qkv has 1532 bytes, expected 1536 at least"),
            (fits, gpu.buffer(4 * 3 * 64 - 4), "out has 764 bytes, expected 768"),
            (foreign, fits, "qkv is a buffer of another device"),
        ):
            with pytest.raises(CacheError, match=message):
                cache.attention(batch, 0, qkv, out)
        with pytest.raises(CacheError, match="lse has 8 bytes"):
            cache.attention(batch, 0, fits, fits, lse=gpu.buffer(8))
        assert batch.dispatches == 0
    with other.batch() as batch, pytest.raises(CacheError, match="batch belongs to another device"):
        cache.attention(batch, 0, fits, fits)
    other.destroy()


async def test_a_mode_that_does_not_fit_the_lengths() -> None:
    cache = await opened()
    rows = cache.device.buffer(4 * 3 * 128)
    cache.begin_forward([0], [3])
    with cache.device.batch() as batch:
        with pytest.raises(CacheError, match=r"mode 'decode' with append lengths \[3\]"):
            cache.attention(batch, 0, rows, rows, mode="decode")
        with pytest.raises(CacheError, match="mode is 'fast'"):
            cache.attention(batch, 0, rows, rows, mode="fast")


async def test_a_damaged_page_table_never_reaches_a_kernel() -> None:
    cache = await opened()
    cache.begin_forward([0], [20])
    cache.end_forward()
    cache.manager.sequences[0].pages[0].view[0] = 99
    with pytest.raises(CacheError, match="page table entry 99 of group 'global' is out of range"):
        cache.begin_forward([0], [1])
    assert cache.get_sequence_length(0) == 20
    with pytest.raises(AssertionError, match="out of range"):
        cache.check()


@pytest.mark.parametrize(
    ("fields", "what"),
    [({"window": 5}, "a window"), ({"rope": RopeConfig(mode="inline")}, "inline rope")],
)
async def test_trees_where_they_do_not_work(fields: dict[str, Any], what: str) -> None:
    cache = PagedKVCache(await device(), config(group(**fields)))
    cache.add_sequence(0)
    with pytest.raises(CacheError, match=f"token trees do not work with {what}"):
        cache.begin_forward([0], [2], [-1, 0])


@pytest.mark.parametrize(
    ("ids", "leaves", "message"),
    [
        ([0], [1, 2], "mismatch"),
        ([0, 0], [-1, -1], "each sequence once"),
        ([9], [-1], "9 cannot be found"),
        ([0], [2], "leaf 2 of sequence 0 is out of range, its tree has 2 nodes"),
        ([0], [-2], "leaf -2"),
        ([0, 1], [1, 0], "leaf 0 of sequence 1: its token tree is committed already"),
    ],
)
async def test_commits_that_are_refused(ids: list[int], leaves: list[int], message: str) -> None:
    cache = await opened()
    cache.add_sequence(1)
    cache.begin_forward([0], [2], [-1, 0])
    cache.end_forward()
    before = snapshot(cache.manager)
    with pytest.raises(CacheError, match=message):
        cache.commit_accepted_token_tree_nodes(ids, leaves)
    assert snapshot(cache.manager) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: group(layers=()), "layers is"),
        (lambda: group(layers=(1, 1)), "layers is"),
        (lambda: group(q_heads=3), "q_heads is 3, expected a multiple of kv_heads = 2"),
        (lambda: group(window=0), "window is 0"),
        (lambda: group(kind="gru"), "kind is 'gru'"),
        (lambda: group(page_dtype="f8"), "page_dtype is 'f8'"),
        (lambda: group(rope=RopeConfig(rotary_dim=32)), "rotary_dim is 32, expected at most head_dim = 16"),
        (lambda: group(kind="mla"), "kv_heads is 2, expected 1 for mla"),
        (lambda: group(kind="mla", kv_heads=1), "rope mode is 'normal', expected none for mla"),
        (lambda: config(group(), group("b")), "each layer once"),
        (lambda: config(group(), group(layers=(1,))), "expected different names"),
        (lambda: config(page_tokens=0), "page_tokens is 0"),
        (lambda: config(page_dtype="q4"), "page_dtype is 'q4'"),
        (lambda: config(packing="planes"), "packing is 'planes'"),
        (lambda: config(group(window=4), support_sliding_window=True), "windows per sequence need global"),
    ],
)
def test_a_configuration_names_its_wrong_field(make: Callable[[], object], message: str) -> None:
    with pytest.raises(CacheError, match=message):
        make()


@pytest.mark.parametrize(
    ("fields", "pages"),
    [
        ({"max_total_len": 512}, 33),
        ({"max_total_len": 0}, 1),
        ({"max_total_len": 513}, 34),
        ({"max_total_len": 512, "support_sliding_window": True}, 49),
        ({"max_total_len": 512, "page_tokens": 32}, 17),
    ],
)
def test_page_counts_are_tvms(fields: dict[str, Any], pages: int) -> None:
    made = config(**fields)
    assert made.num_pages(made.groups[0]) == pages


def test_a_windowed_pool_holds_all_windows_and_one_chunk() -> None:
    made = config(group(window=20), max_total_len=10_000, prefill_chunk_size=96, reserved_num_seqs=4)
    assert made.num_pages(made.groups[0]) == 4 * 3 + 96 // 16 + 4


async def test_pages_beyond_the_devices_limits_say_what_fits() -> None:
    gpu = await device()
    assert all(gpu.facts.limits[name] == limit for name, limit in DEFAULT_LIMITS.items())
    with pytest.raises(CacheError, match=r"group 'global'.* a max_total_len of about 524288 tokens fits"):
        PagedKVCache(gpu, config(max_total_len=600_000))
    made: CacheConfig = config()
    with pytest.raises(CacheError, match="aux is 'none'"):
        PagedKVCache(gpu, made, aux="none")


async def test_debug_set_kv_names_a_wrong_shape() -> None:
    cache = await opened()
    cache.begin_forward([0], [5])
    cache.end_forward()
    k, v = np.zeros((1, 3, 2, 16)), np.zeros((1, 3, 2, 8))
    with pytest.raises(CacheError, match=r"v has shape \(1, 3, 2, 8\), expected \(1, 3, 2, 16\)"):
        cache.debug_set_kv(0, 0, k, v)
    with pytest.raises(CacheError, match="out-of-range end_pos 6"):
        cache.debug_set_kv(0, 3, k, k)
