"""Sequences and the pages they hold, without a GPU; pages have 16 tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cache.books import forward, free, manager, snapshot
from tests.cache.harness import group
from webkv.cache.manager import SequenceManager
from webkv.cache.step import begin_step, end_step
from webkv.errors import CacheError, CacheFullError


def test_fork_at_a_page_boundary_copies_nothing() -> None:
    made = manager()
    forward(made, [0], [32])
    assert made.fork(0, 1) == [[]]
    assert free(made) == [31]
    forward(made, [0, 1], [1, 1])
    assert free(made) == [29]


def test_fork_inside_a_page_copies_the_slots_before_it() -> None:
    made = manager()
    forward(made, [0], [32])
    assert made.fork(0, 1, 17) == [[(1, 2, 1)]]
    assert made.sequences[1].pages[0].view.tolist() == [0, 2]


def test_fork_at_zero_is_an_empty_sequence() -> None:
    made = manager()
    forward(made, [0], [20])
    assert made.fork(0, 1, 0) == [[]]
    assert (made.sequences[1].length, free(made)) == (0, [31])


def test_fork_of_a_fork_shares_with_both() -> None:
    made = manager()
    forward(made, [0], [48])
    made.fork(0, 1, 32)
    made.fork(1, 2, 16)
    assert [made.pools[0].refs(page) for page in range(3)] == [3, 2, 1]


def test_removing_the_root_leaves_what_its_forks_share() -> None:
    made = manager()
    forward(made, [0], [40])
    made.fork(0, 1, 32)
    made.remove(0)
    made.check()
    assert free(made) == [31]


def test_popn_into_a_shared_page_copies_what_stays() -> None:
    made = manager()
    forward(made, [0], [32])
    made.fork(0, 1, 16)
    forward(made, [1], [3])
    assert made.popn(1, 10) == [[(0, 2, 9)]]
    made.check()
    assert made.sequences[1].length == 9


def test_popn_to_a_shared_boundary_copies_nothing() -> None:
    made = manager()
    forward(made, [0], [32])
    made.fork(0, 1)
    assert made.popn(1, 16) == [[]]
    assert free(made) == [31]


def test_popn_into_a_shared_page_may_use_a_page_it_frees() -> None:
    made = manager(max_total_len=32)
    forward(made, [0], [16])
    made.fork(0, 1)
    forward(made, [1], [20])
    assert free(made) == [0]
    assert made.popn(1, 25) == [[(0, 2, 11)]]
    made.check()


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 18, 32, 33])
def test_a_window_bounds_the_pages_between_decode_steps(window: int) -> None:
    made = manager(group(window=window), max_total_len=2048)
    forward(made, [0], [1])
    for _ in range(100):
        forward(made, [0], [1])
        assert len(made.sequences[0].pages[0]) <= -(-(window - 1) // 16) + 1


@pytest.mark.parametrize("window", [5, 16, 20])
@pytest.mark.parametrize("length", [5, 16, 31, 32, 33, 90])
def test_one_token_can_always_be_popped(window: int, length: int) -> None:
    made = manager(group(window=window))
    forward(made, [0], [length])
    made.popn(0, 1)
    made.check()
    forward(made, [0], [1])


def test_popn_beyond_what_a_window_holds_is_refused() -> None:
    made = manager(group(), group("local", (1,), window=5))
    forward(made, [0], [90])
    with pytest.raises(CacheError, match="group 'local' of window 5 holds sequence 0 from token 64 on"):
        made.popn(0, 40)


def test_rollback_keeps_more_for_popn() -> None:
    made = manager(group(window=5, rollback=40))
    forward(made, [0], [90])
    made.popn(0, 40)
    made.check()


def test_popping_everything_needs_no_window() -> None:
    made = manager(group(window=5))
    forward(made, [0], [90])
    made.popn(0, 90)
    made.check()
    assert free(made) == [made.pools[0].num_pages]


def test_fork_of_a_windowed_group_shares_the_last_pages_only() -> None:
    made = manager(group(window=5, rollback=90))
    forward(made, [0], [80])
    made.fork(0, 1, 40)
    pages = made.sequences[1].pages[0]
    assert (pages.first_block, len(pages)) == (0, 3)
    with pytest.raises(CacheError, match="fork at 40"):
        small = manager(group(window=5))
        forward(small, [0], [80])
        small.fork(0, 1, 40)


def test_a_prompt_longer_than_the_window_keeps_its_pages_until_the_step_ends() -> None:
    made = manager(group(window=5))
    made.add(0)
    step = begin_step(made, [0], [90], None)
    assert len(made.sequences[0].pages[0]) == 6
    end_step(made, step)
    assert len(made.sequences[0].pages[0]) == 2


def sliding(window: int, sink: int, **fields: object) -> SequenceManager:
    made = manager(support_sliding_window=True, **fields)
    made.add(0)
    made.enable_sliding(0, window, sink)
    return made


def test_a_sequence_window_keeps_sinks_and_drops_whole_pages() -> None:
    made = sliding(20, 6)
    forward(made, [0], [24])
    found = made.sequences[0]
    assert (found.length, found.sink, found.offset) == (20, 6, 10)
    for _ in range(21):
        forward(made, [0], [1])
    assert (found.length, found.offset, len(found.pages[0])) == (20, 31, 3)
    forward(made, [0], [1])
    assert (found.length, found.offset, len(found.pages[0])) == (20, 16, 2)


def test_popn_after_a_slide_is_bounded_by_the_sinks() -> None:
    made = sliding(20, 6)
    forward(made, [0], [60])
    with pytest.raises(CacheError, match="holds only 14 tokens after its 6 sinks"):
        made.popn(0, 15)
    made.popn(0, 14)
    made.check()
    found = made.sequences[0]
    assert (found.length, found.slid, len(found.pages[0])) == (6, False, 1)


def test_a_shared_prefix_stays_whole_as_sinks() -> None:
    made = manager(support_sliding_window=True)
    forward(made, [0], [32])
    made.fork(0, 1)
    made.enable_sliding(1, 40, 4)
    assert made.sequences[1].sink_size == 32
    with pytest.raises(CacheError, match="32 tokens that sequence 0 shares"):
        made.enable_sliding(0, 32, 4)


def test_forking_a_sliding_sequence_stops_at_its_sinks() -> None:
    made = sliding(20, 6)
    forward(made, [0], [60])
    with pytest.raises(CacheError, match="past its 6 sinks"):
        made.fork(0, 1, 7)
    assert made.fork(0, 1, 6) == [[(0, 1, 6)]]
    made.check()


def test_begin_takes_pages_in_every_group_or_in_none() -> None:
    made = manager(group(), group("small", (1,), num_pages=2))
    forward(made, [0], [20])
    before = snapshot(made)
    with pytest.raises(CacheFullError, match="1 free pages of group 'small' needed, 0 available"):
        begin_step(made, [0], [20], None)
    assert snapshot(made) == before
    forward(made, [0], [12])


Operation = Callable[[SequenceManager], object]


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda m: m.add(0), "already in the KV cache"),
        (lambda m: m.add(1.5), "expected an integer"),
        (lambda m: m.remove(9), "9 cannot be found"),
        (lambda m: m.fork(9, 4), "parent sequence 9 cannot be found"),
        (lambda m: m.fork(0, 1), "1 is already in the KV cache"),
        (lambda m: m.fork(0, 4, 41), "41 should not exceed the length 40"),
        (lambda m: m.fork(0, 4, -2), "-2, expected a non-negative"),
        (lambda m: m.fork(2, 4), "uncommitted token tree"),
        (lambda m: m.popn(0, 41), "exceeds the whole length 40"),
        (lambda m: m.popn(0, -1), "cannot be negative"),
        (lambda m: m.popn(9, 0), "9 cannot be found"),
        (lambda m: m.popn(2, 1), "uncommitted token tree of 2 nodes"),
        (lambda m: m.enable_sliding(0, 8, 1), "does not support sliding"),
        (lambda m: begin_step(m, [0, 1], [1], None), "mismatch"),
        (lambda m: begin_step(m, [], [], None), "batch of 0 sequences"),
        (lambda m: begin_step(m, [0, 0], [1, 1], None), "each sequence once"),
        (lambda m: begin_step(m, [0, 9], [1, 1], None), "9 cannot be found"),
        (lambda m: begin_step(m, [0, 1], [1, 0], None), "sequence 1 is 0, expected at least 1"),
        (lambda m: begin_step(m, [0, 1], [90, 7], None), "97 new tokens exceeds prefill_chunk_size = 96"),
        (lambda m: begin_step(m, [1, 2], [1, 1], None), "sequence 2 has an uncommitted token tree"),
        (lambda m: begin_step(m, [0, 1], [90, 6], None), "KV cache is full"),
        (lambda m: begin_step(m, [0, 1], [2, 1], [-1, 0]), "2 entries, expected 3"),
        (lambda m: begin_step(m, [0, 1], [2, 1], [-1, 1, 0]), "node 1 has parent 1"),
        (lambda m: begin_step(m, [0, 1], [2, 1], [-1, 0, 0]), "node 0 has parent 0"),
    ],
)
def test_a_refused_operation_changes_nothing(operation: Operation, message: str) -> None:
    made = manager(max_total_len=96)
    forward(made, [0, 1], [40, 3])
    forward(made, [2], [2], [-1, 0])
    before = snapshot(made)
    with pytest.raises(CacheError, match=message):
        operation(made)
    assert snapshot(made) == before
    made.check()


def test_too_many_sequences_is_refused_for_add_and_fork() -> None:
    made = manager(reserved_num_seqs=2)
    forward(made, [0, 1], [1, 1])
    for refused in (lambda: made.add(2), lambda: made.fork(0, 2)):
        with pytest.raises(CacheError, match="too many sequences: 2"):
            refused()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window": 0, "sink": 0}, "window size is 0"),
        ({"window": 8, "sink": -1}, "sink size is -1"),
        ({"window": 8, "sink": 8}, "less than window size 8"),
    ],
)
def test_a_wrong_window_is_named(fields: dict[str, int], message: str) -> None:
    made = manager(support_sliding_window=True)
    made.add(0)
    with pytest.raises(CacheError, match=message):
        made.enable_sliding(0, **fields)
    made.enable_sliding(0, 8, 2)
    with pytest.raises(CacheError, match="has a sliding window of 8 already"):
        made.enable_sliding(0, 8, 2)
