"""TVM 0.27's confirmed defects, one test each: here the dense model decides."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cache.books import snapshot
from tests.cache.harness import NO_ROPE, Pair, config, group
from tests.cache.scenario import Runner, Scenario
from tests.support import device
from webkv.cache import CacheConfig, LayerGroup, RopeConfig
from webkv.errors import CacheError, CacheFullError

both = pytest.mark.parametrize("aux", ["plain", "cached"])


def local(**fields: object) -> LayerGroup:
    return group("local", (1,), window=20, **fields)


def mixed(rope: RopeConfig = NO_ROPE, **fields: object) -> CacheConfig:
    return config(group(rope=rope), local(rope=rope), **fields)


async def opened(made: CacheConfig, aux: str = "plain", sequences: int = 1) -> Pair:
    pair = Pair(await device(), made, aux)
    for seq in range(sequences):
        pair.do("add_sequence", seq)
    return pair


@both
async def test_01_global_layers_do_not_read_the_sliding_page_table(aux: str) -> None:
    plain, healthy = Scenario.load("p1_plain_alias"), Scenario.load("p0_layer_sliding_cpu")
    assert plain.ops == healthy.ops and plain.settings["seed"] == healthy.settings["seed"]
    for keep in (True, False):
        runner = Runner(await device(), healthy, aux, keep)
        await runner.run()
        assert runner.worst < 1e-5


@both
async def test_02_inline_positions_of_global_layers_are_not_those_of_sliding_ones(aux: str) -> None:
    pair = await opened(mixed(RopeConfig(mode="inline")), aux)
    await pair.agrees([0], [20])
    await pair.agrees([0], [15])
    for _ in range(3):
        await pair.agrees([0], [1])


async def test_03_the_plain_manager_serves_more_than_one_sequence_and_node() -> None:
    pair = await opened(mixed(), "plain", 3)
    await pair.agrees([0, 1, 2], [30, 21, 2])
    await pair.agrees([0, 1, 2], [1, 1, 1])
    pair = await opened(config(), "plain", 2)
    await pair.agrees([0, 1], [3, 3], [-1, 0, 0, -1, -1, 1])
    pair.do("commit_accepted_token_tree_nodes", [0, 1], [2, 2])
    await pair.same_kv(0)
    await pair.same_kv(1)


@both
async def test_04_a_tree_of_many_nodes_is_masked_as_a_tree(aux: str) -> None:
    pair = await opened(config(), aux, 2)
    await pair.agrees([0, 1], [5, 40])
    await pair.agrees([0, 1], [9, 7], [-1, 0, 0, 1, 1, 2, 2, 3, 3, -1, -1, 0, 1, 2, 3, 3])


@both
async def test_05_shared_prefixes_may_list_more_pages_than_there_are(aux: str) -> None:
    pair = await opened(config(max_total_len=80, reserved_num_seqs=6), aux)
    await pair.agrees([0], [48])
    for child in range(1, 4):
        pair.do("fork_sequence", 0, child)
    await pair.agrees([3], [1])
    await pair.agrees([0, 1], [1, 1])
    for _ in range(3):
        await pair.agrees([0, 1, 3], [1, 1, 1])
    listed = sum(len(found.pages[0]) for found in pair.cache.manager.sequences.values())
    assert listed > pair.cache.manager.pools[0].num_pages


async def test_06_a_chunk_longer_than_the_window_is_windowed_inside() -> None:
    pair = await opened(config(local()))
    await pair.agrees([0], [61])
    await pair.agrees([0], [61])


async def test_07_a_row_that_sees_nothing_cached_is_not_nan() -> None:
    pair = await opened(config(local()))
    await pair.agrees([0], [7])
    await pair.agrees([0], [45])


async def test_08_a_window_spans_a_fork() -> None:
    pair = await opened(mixed())
    await pair.agrees([0], [32])
    pair.do("fork_sequence", 0, 1)
    await pair.agrees([0, 1], [9, 3])
    for _ in range(3):
        await pair.agrees([0, 1], [1, 1])


async def test_09_windows_of_a_batch_of_forks_are_each_their_own() -> None:
    pair = await opened(mixed())
    await pair.agrees([0], [32])
    pair.do("fork_sequence", 0, 1)
    pair.do("fork_sequence", 0, 2)
    await pair.agrees([0, 1, 2], [7, 18, 25])


@both
async def test_10_all_layers_may_slide(aux: str) -> None:
    pair = await opened(config(local()), aux, 2)
    await pair.agrees([0, 1], [30, 4])
    await pair.agrees([0, 1], [1, 1])


async def test_11_inline_rope_of_a_sliding_layer_uses_its_own_theta_and_scale() -> None:
    pair = await opened(mixed(RopeConfig(mode="inline", theta=100.0, scale=0.5)))
    await pair.agrees([0], [30])
    await pair.agrees([0], [10])
    await pair.agrees([0], [1])


async def test_12_each_tree_is_compacted_by_itself() -> None:
    pair = await opened(config(), sequences=2)
    await pair.agrees([0, 1], [10, 10])
    await pair.agrees([0, 1], [4, 3], [-1, 0, 0, 2, -1, 0, 1])
    pair.do("commit_accepted_token_tree_nodes", [0, 1], [3, 2])
    await pair.same_kv(0)
    await pair.agrees([0, 1], [1, 1])


async def test_13_commits_may_come_in_another_order() -> None:
    pair = await opened(config(), sequences=3)
    await pair.agrees([0, 1, 2], [10, 20, 30])
    await pair.agrees([0, 1, 2], [3, 4, 2], [-1, 0, 0, -1, -1, 1, 1, -1, -1])
    pair.do("commit_accepted_token_tree_nodes", [2, 0, 1], [1, 2, 3])
    for seq in range(3):
        await pair.same_kv(seq)
    await pair.agrees([1, 0, 2], [1, 1, 1])


async def test_14_trees_may_grow_over_rounds_before_the_commit() -> None:
    pair = await opened(config())
    await pair.agrees([0], [10])
    await pair.agrees([0], [3], [-1, 0, 0])
    await pair.agrees([0], [3], [1, 2, 4])
    pair.do("commit_accepted_token_tree_nodes", [0], [5])
    await pair.same_kv(0)
    await pair.agrees([0], [1])


async def test_15_trees_of_forked_and_unforked_sequences_are_all_masked() -> None:
    pair = await opened(config(), sequences=2)
    await pair.agrees([0, 1], [32, 12])
    pair.do("fork_sequence", 0, 2)
    pair.do("fork_sequence", 2, 3, 32)
    await pair.agrees([1, 2, 0, 3], [4, 3, 3, 4], [-1, 0, 0, 2, -1, -1, 0, -1, 0, 1, -1, 0, -1, 2])
    pair.do("commit_accepted_token_tree_nodes", [3, 1, 2, 0], [3, 1, 2, -1])
    await pair.agrees([0, 1, 2, 3], [1, 1, 1, 1])


async def test_16_popn_after_a_window_has_slid_counts_its_offset() -> None:
    pair = await opened(config(group(rope=RopeConfig(mode="inline")), support_sliding_window=True))
    pair.do("enable_sliding_window_for_seq", 0, 40, 4)
    await pair.agrees([0], [90])
    for _ in range(9):
        await pair.agrees([0], [1])
    pair.do("popn", 0, 21)
    await pair.same_kv(0)
    await pair.agrees([0], [1])
    await pair.agrees([0], [30])


async def test_17_a_failing_begin_forward_leaves_lengths_and_pages() -> None:
    pair = await opened(config(max_total_len=64), sequences=2)
    await pair.agrees([0, 1], [33, 16])
    before = snapshot(pair.cache.manager)
    with pytest.raises(CacheFullError):
        pair.cache.begin_forward([0, 1], [1, 17])
    with pytest.raises(CacheError, match="prefill_chunk_size"):
        pair.cache.begin_forward([0, 1], [90, 17])
    assert snapshot(pair.cache.manager) == before
    await pair.agrees([0, 1], [1, 1])


async def test_18_a_committed_tree_leaves_an_ordinary_sequence() -> None:
    pair = await opened(config())
    await pair.agrees([0], [15])
    await pair.agrees([0], [2], [-1, -1])
    pair.do("commit_accepted_token_tree_nodes", [0], [1])
    first, pages = pair.cache.sequence_pages(0, "global")
    assert (first, len(pages), pair.cache.get_sequence_length(0)) == (0, 1, 16)
    pair.do("fork_sequence", 0, 1)
    await pair.same_kv(1)


def test_19_both_halves_of_a_yarn_pair_turn_by_one_angle() -> None:
    rope = RopeConfig(
        rotary_dim=64, scaling="yarn", factor=8.0, original_max_position=64, attention_factor=1.0
    )
    table = rope.table(np.arange(200))
    assert table.shape == (200, 32, 2)
    assert np.allclose(np.hypot(table[..., 0], table[..., 1]), 1, atol=1e-6)
