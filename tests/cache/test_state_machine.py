"""Random lives of a cache: any order of operations, against the dense model, on NaN-poisoned pages.

Refusals are part of it: a full pool or a token that left its window must leave everything as it was.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.cache.books import free, snapshot
from tests.cache.harness import NO_ROPE, Pair, config, group, run
from tests.support import device, examples
from webkv.cache import CacheConfig, LayerGroup, RopeConfig
from webkv.errors import CacheError, CacheFullError

PAGE = 4
LIMIT = 4


def small(name: str = "global", layers: tuple[int, ...] = (0,), **fields: Any) -> LayerGroup:
    return group(name, layers, **{"kv_heads": 1, "q_heads": 2, "head_dim": 8} | fields)


def sized(*groups: LayerGroup, **fields: Any) -> CacheConfig:
    return config(
        *groups, page_tokens=PAGE, max_total_len=92, prefill_chunk_size=24, reserved_num_seqs=LIMIT, **fields
    )


# Per sequence picked, the parents of its new nodes.
TREES = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.integers(0, 99), min_size=1, max_size=6)), min_size=1, max_size=3
)
KINDS = {
    "mixed": sized(small(), small("local", (1,), window=7, rope=NO_ROPE)),
    "trees": sized(small(rope=RopeConfig(pairing="interleaved"))),
    "sliding": sized(small(rope=RopeConfig(mode="inline")), support_sliding_window=True),
}


@cache
def pair_of(kind: str, aux: str) -> Pair:
    async def made() -> Pair:
        return Pair(await device(), KINDS[kind], aux)

    return run(made())


class CacheLife(RuleBasedStateMachine):
    """One cache; sequences are picked by number, modulo how many there are."""

    kind = "mixed"
    pair_of = staticmethod(pair_of)

    @initialize(
        aux=st.sampled_from(["plain", "cached"]),
        lengths=st.tuples(st.integers(1, 16), st.integers(1, 8)),
    )
    def open(self, aux: str, lengths: tuple[int, int]) -> None:
        self.pair = self.pair_of(self.kind, aux)
        self.pair.reset()
        self.manager = self.pair.cache.manager
        self.next_id = 0
        for _ in lengths:
            self.add()
        self.forward(dict(enumerate(lengths)))

    def pick(self, number: int) -> int:
        ids = sorted(self.manager.sequences)
        return ids[number % len(ids)]

    def crowded(self) -> bool:
        return len(self.manager.sequences) > 2

    def has_room(self) -> bool:
        return len(self.manager.sequences) < LIMIT

    def refused(self, error: type[CacheError], operation: str, *args: Any) -> None:
        """The operation raises and changes nothing."""
        before = snapshot(self.manager)
        try:
            getattr(self.pair.cache, operation)(*args)
        except error:
            assert snapshot(self.manager) == before
            return
        raise AssertionError(f"{operation}{args} was not refused")

    def holds(self, seq: int, length: int) -> bool:
        """Whether windowed groups hold what a query after `length` tokens sees."""
        pages = self.manager.get(seq).pages
        return length == 0 or all(
            g.window is None or p.first_block * PAGE <= max(0, length - g.window + 1)
            for g, p in zip(self.pair.config.groups, pages, strict=True)
        )

    @precondition(has_room)
    @rule()
    def add(self) -> None:
        self.pair.do("add_sequence", self.next_id)
        self.next_id += 1

    @precondition(crowded)
    @rule(number=st.integers(0, 9))
    def remove(self, number: int) -> None:
        self.pair.do("remove_sequence", self.pick(number))

    @rule(numbers=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=LIMIT))
    def append(self, numbers: list[tuple[int, int]]) -> None:
        wanted = {self.pick(number): length for number, length in numbers}
        self.forward(wanted)

    @rule()
    def decode_all(self) -> None:
        self.forward(dict.fromkeys(sorted(self.manager.sequences), 1))

    def needed(self, wanted: dict[int, int]) -> int:
        """Fresh pages of a group without window."""
        slots = {seq: self.manager.get(seq).slots for seq in wanted}
        return sum(-(-(slots[seq] + n) // PAGE) - -(-slots[seq] // PAGE) for seq, n in wanted.items())

    def forward(self, wanted: dict[int, int]) -> None:
        wanted = {seq: n for seq, n in wanted.items() if self.manager.get(seq).tree is None}
        while sum(wanted.values()) > 24:
            wanted.popitem()
        if not wanted:
            return
        needed, have = self.needed(wanted), free(self.manager)
        if needed > have[0]:
            self.refused(CacheFullError, "begin_forward", list(wanted), list(wanted.values()))
            return
        run(self.pair.agrees(list(wanted), list(wanted.values())))
        if self.kind != "sliding":
            assert free(self.manager)[0] == have[0] - needed

    @rule(number=st.integers(0, 9), length=st.integers(1, 9))
    def abort(self, number: int, length: int) -> None:
        seq = self.pick(number)
        if self.manager.get(seq).tree is not None:
            return
        before, have = snapshot(self.manager)[0], free(self.manager)  # type: ignore[index]
        try:
            self.pair.cache.begin_forward([seq], [length])
        except CacheFullError:
            return
        self.pair.cache.abort_forward()
        assert (snapshot(self.manager)[0], free(self.manager)) == (before, have)  # type: ignore[index]
        self.pair.poison_freed()

    @precondition(has_room)
    @rule(number=st.integers(0, 9), at=st.integers(0, 99))
    def fork(self, number: int, at: int) -> None:
        parent = self.manager.get(self.pick(number))
        pos = at % (parent.length + 1)
        slid_past = parent.window is not None and pos > parent.sink_size
        if parent.tree is not None or slid_past or not self.holds(parent.id, pos):
            self.refused(CacheError, "fork_sequence", parent.id, self.next_id, pos)
        elif pos % PAGE and not all(free(self.manager)):
            self.refused(CacheFullError, "fork_sequence", parent.id, self.next_id, pos)
        else:
            have = free(self.manager)[0]
            self.pair.do("fork_sequence", parent.id, self.next_id, pos)
            assert free(self.manager)[0] == have - (pos % PAGE > 0)
            self.next_id += 1

    @rule(number=st.integers(0, 9), n=st.integers(0, 99))
    def popn(self, number: int, n: int) -> None:
        found = self.manager.get(self.pick(number))
        n %= found.length + 2
        gone = found.slid and found.length - n < found.sink
        assert n != 1 or n > found.length or self.holds(found.id, found.length - n)
        if n and (n > found.length or found.tree or gone or not self.holds(found.id, found.length - n)):
            self.refused(CacheError, "popn", found.id, n)
            return
        try:
            self.pair.do("popn", found.id, n)
        except CacheFullError:
            assert (found.length - n) % PAGE

    @rule(number=st.integers(0, 9))
    def read_back(self, number: int) -> None:
        seq = self.pick(number)
        if self.manager.get(seq).length:
            run(self.pair.same_kv(seq))


class SlidingLife(CacheLife):
    """Sequences with windows and sinks of their own, rope inline."""

    kind = "sliding"

    @rule(number=st.integers(0, 9), window=st.integers(1, 14), sink=st.integers(0, 9))
    def slide(self, number: int, window: int, sink: int) -> None:
        found = self.manager.get(self.pick(number))
        sinks = max(sink, found.block_starts[-1])
        if found.window is not None or sinks >= window:
            self.refused(CacheError, "enable_sliding_window_for_seq", found.id, window, sink)
            return
        self.pair.cache.enable_sliding_window_for_seq(found.id, window, sink)
        self.pair.dense.enable_sliding_window_for_seq(found.id, window, sinks)


class TreeLife(CacheLife):
    """Token trees over one or more rounds, and their commits."""

    kind = "trees"

    @rule(numbers=TREES)
    def grow_trees(self, numbers: list[tuple[int, list[int]]]) -> None:
        parents: dict[int, list[int]] = {}
        for number, choices in numbers:
            seq = self.pick(number)
            tree = self.manager.get(seq).tree
            size = tree.size if tree else 0
            parents[seq] = [choice % (size + at + 1) - 1 for at, choice in enumerate(choices)]
        lengths = {seq: len(made) for seq, made in parents.items()}
        flat = [parent for made in parents.values() for parent in made]
        if self.needed(lengths) > free(self.manager)[0]:
            self.refused(CacheFullError, "begin_forward", list(lengths), list(lengths.values()), flat)
            return
        run(self.pair.agrees(list(lengths), list(lengths.values()), flat))

    @rule(order=st.randoms(use_true_random=False), choice=st.integers(0, 99))
    def commit_trees(self, order: Any, choice: int) -> None:
        ids = sorted(self.manager.sequences)
        order.shuffle(ids)
        trees = [self.manager.get(seq).tree for seq in ids]
        leaves = [choice % (tree.size + 1) - 1 if tree else -1 for tree in trees]
        self.pair.do("commit_accepted_token_tree_nodes", ids, leaves)

    @rule(numbers=TREES, order=st.randoms(use_true_random=False), choice=st.integers(0, 99))
    def grow_and_commit(self, numbers: Any, order: Any, choice: int) -> None:
        self.grow_trees(numbers)
        self.commit_trees(order, choice)
        self.read_back(choice)


def few(count: int) -> settings:
    """The same `count` examples in every run."""
    return settings(
        max_examples=examples(count), stateful_step_count=16, deadline=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def lives(machine: type[CacheLife], count: int) -> Any:
    """A test of `machine`."""
    made = machine.TestCase
    made.settings = few(count)
    return made


TestMixedLayers = lives(CacheLife, 200)
TestSequenceWindows = lives(SlidingLife, 150)
TestTokenTrees = lives(TreeLife, 150)
