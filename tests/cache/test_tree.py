"""Token trees: who sees whom, who stands where."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webkv.cache.tree import TokenTree
from webkv.errors import CacheError


def tree(*parents: int) -> TokenTree:
    return TokenTree(0, (), ()).extended(parents, 7)


def test_order_of_a_binary_tree() -> None:
    assert tree(-1, 0, 0, 1, 1).order().tolist() == [[0, 5], [1, 4], [4, 5], [2, 3], [3, 4]]


def test_order_of_two_roots() -> None:
    assert tree(-1, -1).order().tolist() == [[0, 1], [1, 2]]


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=40))
def test_a_node_sees_itself_and_its_ancestors_only(numbers: list[int]) -> None:
    parents = [number % (node + 1) - 1 for node, number in enumerate(numbers)]
    made = tree(*parents)
    first, end = made.order().T
    seen = (first[None, :] <= first[:, None]) & (first[:, None] < end[None, :])
    for node in range(made.size):
        assert np.flatnonzero(seen[node]).tolist() == sorted(made.path(node))


def test_depths_count_from_each_root() -> None:
    assert tree(-1, 0, 1, -1, 3).depths == (0, 1, 2, 0, 1)


def test_a_later_round_hangs_on_any_earlier_node() -> None:
    made = tree(-1, 0).extended([0, 2], 7)
    assert made.parents == (-1, 0, 0, 2) and made.depths == (0, 1, 1, 2)


def test_path_runs_from_the_root() -> None:
    assert tree(-1, 0, 0, 2).path(3) == [0, 2, 3]
    assert tree(-1, 0).path(-1) == []


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-2,), (-1, 0, 5)])
def test_a_parent_that_is_no_earlier_node_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(CacheError, match=r"sequence 7: node \d has parent"):
        tree(*parents)


def test_a_tree_of_more_than_256_nodes_is_refused() -> None:
    with pytest.raises(CacheError, match="257 nodes, at most 256"):
        tree(*[-1] * 257)
