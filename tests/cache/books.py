"""Helpers for tests of the host side alone."""

from __future__ import annotations

from collections.abc import Sequence

from tests.cache.harness import config, group
from webkv.cache import LayerGroup
from webkv.cache.manager import SequenceManager
from webkv.cache.step import Step, begin_step, end_step


def manager(*groups: LayerGroup, **fields: object) -> SequenceManager:
    """An empty one, with small pools."""
    return SequenceManager(config(*(groups or (group(),)), **fields))


def forward(
    made: SequenceManager, ids: Sequence[int], lengths: Sequence[int], parents: Sequence[int] | None = None
) -> Step:
    """Append tokens, adding sequences that are not there, and check the books."""
    for seq in ids:
        if seq not in made.sequences:
            made.add(seq)
    step = begin_step(made, ids, lengths, parents)
    made.check()
    end_step(made, step)
    made.check()
    return step


def free(made: SequenceManager) -> list[int]:
    """Free pages of every group."""
    return [pool.available for pool in made.pools]


def snapshot(made: SequenceManager) -> object:
    """Everything that an operation could change."""
    sequences = {
        seq: ([(p.first_block, p.view.tolist()) for p in s.pages], s.length, s.window, s.sink, s.offset,
              s.slid, s.tree, s.importing, list(s.block_starts))
        for seq, s in made.sequences.items()
    }  # fmt: skip
    pools = [(p.free_pages().tolist(), [p.refs(i) for i in range(p.num_pages)]) for p in made.pools]
    return sequences, pools
