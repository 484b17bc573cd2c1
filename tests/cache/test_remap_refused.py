"""Sequences that cannot move to another cache: refused by name, and nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.cache.books import snapshot
from tests.cache.harness import config, fill, group, poisoned
from tests.support import device
from webkv.cache import RopeConfig
from webkv.cache.remap import Share, copy_sequence, copy_shares
from webkv.errors import CacheError, CacheFullError, LayoutError, WebkvError

REFUSED: list[tuple[dict[str, Any], dict[str, Any], type[WebkvError], str]] = [
    ({"kv_heads": 4}, {}, LayoutError, "nobody holds head 2"),
    ({"kv_heads": 1}, {}, CacheError, "kv_heads of the source is 2, expected 1"),
    ({"layers": (0, 1)}, {}, LayoutError, r"\(1, key\): no source declares it"),
    ({"head_dim": 12}, {}, CacheError, r"dim of \(0, key\) in the source is 16, expected 12"),
    ({"v_dim": 8}, {}, CacheError, r"dim of \(0, value\) in the source is 16, expected 8"),
    ({}, {"page_dtype": "f16"}, LayoutError, r"\(0, key\): dtype differs, a named converter is needed"),
    ({"rope": RopeConfig(theta=5e5)}, {}, CacheError, "rope of the source"),
    ({"rope": RopeConfig(mode="inline")}, {}, CacheError, "rope of the source"),
    ({}, {"max_total_len": 20}, CacheFullError, "4 free pages of group 'global' needed, 3 available"),
    ({}, {"reserved_num_seqs": 1}, CacheError, "too many sequences"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "sizes", "error", "message"), REFUSED)
async def test_what_does_not_fit_is_refused_and_nothing_changes(
    fields: dict[str, Any], sizes: dict[str, Any], error: type[WebkvError], message: str
) -> None:
    gpu = await device()
    src = poisoned(gpu, config())
    dst = poisoned(gpu, config(group(**{"q_heads": 4, **fields}), **sizes))
    fill(src, 0, 60)
    dst.add_sequence(5)
    before = snapshot(src.manager), snapshot(dst.manager)
    with pytest.raises(error, match=message):
        copy_sequence(src, 0, dst, 1)
    assert (snapshot(src.manager), snapshot(dst.manager)) == before
    assert set(await gpu.read(dst.layer_pages(0))) == {255}


async def test_only_settled_sequences_of_different_caches_move() -> None:
    gpu = await device()
    src, dst = (poisoned(gpu, config(support_sliding_window=sliding)) for sliding in (True, False))
    other = poisoned(gpu, config(support_sliding_window=True))
    for seq in (0, 1):
        src.add_sequence(seq)
    src.enable_sliding_window_for_seq(1, 20, 4)
    dst.add_sequence(3)

    def refused(message: str, sources: Sequence[Share], targets: Sequence[Share]) -> None:
        before = [snapshot(cache.manager) for cache in (src, dst, other)]
        with pytest.raises(CacheError, match=message):
            copy_shares(sources, targets)
        assert [snapshot(cache.manager) for cache in (src, dst, other)] == before

    refused("a cache is named twice", [Share(src, 0)], [Share(src, 5)])
    refused("1 sources and 0 targets", [Share(src, 0)], [])
    refused("has a window of its own, 20", [Share(src, 1)], [Share(other, 5)])
    refused("the sequence 9 cannot be found", [Share(src, 9)], [Share(other, 5)])
    refused("rope of the source", [Share(src, 0)], [Share(dst, 5)])
    refused("sequence id is True", [Share(src, 0)], [Share(other, True)])
    src.begin_forward([0], [3])
    refused("inside a forward", [Share(src, 0)], [Share(other, 5)])
    src.end_forward()
    refused("hold \\[0, 3\\] tokens", [Share(dst, 3), Share(src, 0)], [Share(other, 5)])
    dst.begin_forward([3], [2], [-1, 0])
    dst.end_forward()
    refused("uncommitted token tree of 2 nodes", [Share(dst, 3)], [Share(other, 5)])


async def test_a_second_target_that_refuses_leaves_the_first_as_it_was() -> None:
    gpu = await device()
    src, first, second = (poisoned(gpu, config()) for _ in range(3))
    src.add_sequence(0)
    second.add_sequence(1)
    before = snapshot(first.manager)
    with pytest.raises(CacheError, match="the sequence 1 is already in the KV cache"):
        copy_shares([Share(src, 0)], [Share(first, 1), Share(second, 1)])
    assert snapshot(first.manager) == before
