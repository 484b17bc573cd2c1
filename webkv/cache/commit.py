"""Committing token trees: which tokens move where, and what is left."""

from __future__ import annotations

from collections.abc import Sequence as Items

from webkv.cache.manager import SequenceManager
from webkv.cache.moves import TokenMoves
from webkv.cache.sequence import Sequence
from webkv.errors import CacheError


def plan_commit(manager: SequenceManager, seq_ids: Items[int], leaves: Items[int]) -> list[TokenMoves]:
    """The moves, per group and sequence, that bring each accepted path to the front of its tree.

    Raises `CacheError`, changing nothing.
    """
    if len(seq_ids) != len(leaves):
        raise CacheError(f"the seq_ids size ({len(seq_ids)}) and leaves size ({len(leaves)}) mismatch")
    if len(set(seq_ids)) != len(seq_ids):
        raise CacheError(f"seq_ids are {list(seq_ids)}, expected each sequence once")
    accepted = [_path(manager.get(seq), leaf) for seq, leaf in zip(seq_ids, leaves, strict=True)]
    return [
        [_moves(manager, at, manager.get(seq), path) for seq, path in zip(seq_ids, accepted, strict=True)]
        for at in range(len(manager.groups))
    ]


def apply_commit(manager: SequenceManager, seq_ids: Items[int], leaves: Items[int]) -> None:
    """Cut each sequence to its accepted path; pages of the rest are free."""
    for seq, leaf in zip(seq_ids, leaves, strict=True):
        found = manager.get(seq)
        if found.tree is not None:
            length = found.tree.base + len(found.tree.path(leaf))
            found.tree = None
            manager.shorten(found, length)


def _path(found: Sequence, leaf: int) -> list[int]:
    if found.tree is None:
        if leaf != -1:
            raise CacheError(f"leaf {leaf} of sequence {found.id}: its token tree is committed already")
        return []
    if not -1 <= leaf < found.tree.size:
        raise CacheError(
            f"leaf {leaf} of sequence {found.id} is out of range, its tree has {found.tree.size} nodes"
        )
    return found.tree.path(leaf)


def _moves(manager: SequenceManager, at: int, found: Sequence, path: list[int]) -> list[tuple[int, int]]:
    tokens, pages = manager.page_tokens, found.pages[at]

    def place(index: int) -> int:
        block, slot = divmod(index, tokens)
        return int(pages.view[block - pages.first_block]) * tokens + slot

    base = found.committed
    return [(place(base + node), place(base + rank)) for rank, node in enumerate(path) if node != rank]
