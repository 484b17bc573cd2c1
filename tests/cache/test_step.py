"""The index arrays of a step, number by number; pages have 16 tokens."""

from __future__ import annotations

import numpy as np

from tests.cache.books import forward, free, manager, snapshot
from tests.cache.harness import group
from webkv.cache.step import abort_step, begin_step


def test_arrays_of_a_ragged_batch_describe_the_state_after_append() -> None:
    made = manager()
    forward(made, [0, 1], [20, 15])
    step = begin_step(made, [1, 0], [3, 1], None)
    (arrays,) = step.groups
    assert step.qo_indptr.tolist() == [0, 3, 4]
    assert step.positions.tolist() == [15, 16, 17, 20]
    assert arrays.page_indptr.tolist() == [0, 2, 4]
    assert arrays.page_indices.tolist() == [2, 3, 0, 1]
    assert arrays.length_info.tolist() == [[2, 5], [0, 0], [0, 0], [0, 0]]
    assert arrays.append_position_map.tolist() == [47, 48, 49, 20]
    assert arrays.max_tiles == 1


def test_a_windowed_group_lists_held_pages_and_says_where_they_start() -> None:
    made = manager(group(), group("local", (1,), window=20))
    forward(made, [0], [90])
    step = begin_step(made, [0], [1], None)
    everything, local = step.groups
    assert everything.length_info.tolist() == [[11], [0], [0], [0]]
    assert local.length_info.tolist() == [[11], [0], [0], [3]]
    assert local.page_indices.tolist() == [3, 4, 5]
    assert local.append_position_map.tolist() == [5 * 16 + 10]


def test_a_slid_sequence_states_offset_and_sinks() -> None:
    made = manager(support_sliding_window=True)
    made.add(0)
    made.enable_sliding(0, 20, 6)
    forward(made, [0], [24])
    step = begin_step(made, [0], [2], None)
    assert step.positions.tolist() == [20, 21]
    assert step.groups[0].length_info.tolist() == [[10], [10], [6], [0]]


def test_groups_with_their_own_theta_get_their_own_rope_rows() -> None:
    from webkv.cache import RopeConfig

    local = group("local", (1,), rope=RopeConfig(theta=1e6))
    made = manager(group(), local)
    step = begin_step(made, [made.add(0) or 0], [3], None)
    first, second = (arrays.rope_table for arrays in step.groups)
    assert first is not None and second is not None
    assert first.shape == second.shape == (3, 8, 2)
    assert not np.array_equal(first[1:], second[1:])


def test_a_tree_step_lists_orders_after_their_sizes() -> None:
    made = manager()
    forward(made, [0, 1], [4, 7])
    step = begin_step(made, [0, 1], [3, 2], [-1, 0, 0, -1, -1])
    assert step.positions.tolist() == [4, 5, 5, 7, 7]
    assert step.tree is not None
    assert step.tree.tolist() == [0, 3, 5, 0, 3, 1, 2, 2, 3, 0, 1, 1, 2]


def test_an_aborted_step_leaves_no_trace() -> None:
    made = manager(group(), group("local", (1,), window=20))
    forward(made, [0, 1], [40, 3])
    before, pages = snapshot(made), free(made)
    abort_step(made, begin_step(made, [1, 0], [30, 20], None))
    made.check()
    assert (snapshot(made)[0], free(made)) == (before[0], pages)  # type: ignore[index]


def test_an_aborted_tree_step_goes_back_to_the_tree_before() -> None:
    made = manager()
    forward(made, [0], [4])
    forward(made, [0], [2], [-1, 0])
    abort_step(made, begin_step(made, [0], [2], [0, 2]))
    assert made.sequences[0].length == 6
    assert made.sequences[0].tree is not None and made.sequences[0].tree.size == 2
