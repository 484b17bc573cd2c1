"""The page list of one sequence in one group."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from webkv.cache.sequence import PageList, Sequence


def test_pages_left_at_the_front_move_the_first_block() -> None:
    pages = PageList([5, 6, 7])
    assert pages.advance(2) == [5, 6]
    assert (pages.first_block, pages.end_block, pages.view.tolist()) == (2, 3, [7])


def test_cut_takes_pages_out_of_the_middle() -> None:
    pages = PageList([1, 2, 3, 4])
    assert pages.cut(1, 3) == [2, 3]
    assert (pages.view.tolist(), pages.first_block) == ([1, 4], 0)


def test_truncate_counts_blocks_from_the_start_of_the_sequence() -> None:
    pages = PageList([1, 2, 3], first_block=4)
    assert pages.tail(6) == [3]
    assert pages.truncate(6) == [3]
    assert pages.view.tolist() == [1, 2]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_it_is_a_list_with_a_moving_start(steps: list[tuple[int, int]]) -> None:
    pages, plain, fresh = PageList(), [], 0
    for grow, leave in steps:
        new = list(range(fresh, fresh + grow))
        fresh += grow
        pages.extend(new)
        plain += new
        pages.advance(pages.first_block + min(leave, len(plain)))
        plain = plain[leave:]
        assert pages.view.tolist() == plain


def test_tokens_after_the_sinks_are_in_moved_slots() -> None:
    found = Sequence(0, [], length=10, slid=True, sink=3, offset=7)
    assert [found.slot(i) for i in (0, 2, 3, 9)] == [0, 2, 7, 13]
    assert found.slots == 14
