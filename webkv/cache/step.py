"""One forward: the pages it takes, and the index arrays by which kernels find them."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from webkv.cache.config import LayerGroup
from webkv.cache.manager import SequenceManager
from webkv.cache.rope import RopeConfig
from webkv.cache.sequence import Sequence
from webkv.cache.tree import TokenTree
from webkv.errors import CacheError
from webkv.kernels.variants import kv_parts, kv_tiles


@dataclass(frozen=True)
class GroupArrays:
    """The index arrays of one layer group, int32; `webkv.kernels.shape` says what they mean.

    `max_tiles`: the most KV tiles of one sequence, for the grid of decode; `max_parts`: parts, for prefill's.
    """

    page_indptr: np.ndarray
    page_indices: np.ndarray
    length_info: np.ndarray
    append_position_map: np.ndarray
    rope_table: np.ndarray | None
    max_tiles: int
    max_parts: int


@dataclass(frozen=True)
class Step:
    """An open forward of `rows` new tokens.

    `positions[rows]` int32: the position, for RoPE, of every new token.  `tree` int32: prefix sums of tree
    sizes, then (first, end) of every node, or None.  `before` and `trees` are what an abort goes back to:
    slots, lengths and trees.
    """

    sequences: tuple[Sequence, ...]
    lengths: tuple[int, ...]
    rows: int
    qo_indptr: np.ndarray
    positions: np.ndarray
    tree: np.ndarray | None
    groups: tuple[GroupArrays, ...]
    before: tuple[int, ...]
    trees: tuple[TokenTree | None, ...]


def begin_step(
    manager: SequenceManager, seq_ids: Items[int], lengths: Items[int], parents: Items[int] | None
) -> Step:
    """Append `lengths` tokens to the sequences and describe them.  Raises `CacheError`, changing nothing."""
    sequences = _batch(manager, seq_ids, lengths)
    trees = _trees(manager, sequences, lengths, parents)
    needs = [
        [_pages_needed(manager, s, at, n) for s, n in zip(sequences, lengths, strict=True)]
        for at in range(len(manager.groups))
    ]
    for pool, need in zip(manager.pools, needs, strict=True):
        pool.require(sum(need))
    old_trees = tuple(s.tree for s in sequences)
    before, slots = tuple(s.length for s in sequences), [s.slots for s in sequences]
    for row, found in enumerate(sequences):
        for pool, pages, need in zip(manager.pools, found.pages, needs, strict=True):
            pages.extend(pool.take(need[row]))
        found.length += lengths[row]
        found.tree = trees[row] if trees is not None else None
    qo_indptr = _prefix_sums(lengths)
    positions = _positions(sequences, lengths, before)
    tables: dict[RopeConfig, np.ndarray] = {}
    groups = tuple(
        _arrays(manager, at, group, sequences, slots, lengths, positions, tables)
        for at, group in enumerate(manager.groups)
    )
    tree = _tree_array(sequences) if parents is not None else None
    rows = int(qo_indptr[-1])
    step = Step(tuple(sequences), tuple(lengths), rows, qo_indptr, positions, tree, groups, before, old_trees)
    _require_range(manager, step)
    return step


def end_step(manager: SequenceManager, step: Step) -> None:
    """Let windows move on past the new tokens."""
    for found in step.sequences:
        manager.release_left(found)


def abort_step(manager: SequenceManager, step: Step) -> None:
    """Take the new tokens off again."""
    for found, length, tree in zip(step.sequences, step.before, step.trees, strict=True):
        manager.shorten(found, length)
        found.tree = tree


def _require_range(manager: SequenceManager, step: Step) -> None:
    for pool, arrays in zip(manager.pools, step.groups, strict=True):
        low, high = int(arrays.page_indices.min()), int(arrays.page_indices.max())
        if low < 0 or high >= pool.num_pages:
            abort_step(manager, step)
            raise CacheError(
                f"page table entry {low if low < 0 else high} of group {pool.group!r} is out of range, "
                f"there are {pool.num_pages} pages"
            )


def _batch(manager: SequenceManager, seq_ids: Items[int], lengths: Items[int]) -> list[Sequence]:
    config = manager.config
    if len(seq_ids) != len(lengths):
        raise CacheError(
            f"the seq_ids size ({len(seq_ids)}) and append_lengths size ({len(lengths)}) mismatch"
        )
    if not 1 <= len(seq_ids) <= config.reserved_num_seqs:
        raise CacheError(
            f"a batch of {len(seq_ids)} sequences, expected 1 to "
            f"reserved_num_seqs = {config.reserved_num_seqs}"
        )
    if len(set(seq_ids)) != len(seq_ids):
        raise CacheError(f"seq_ids are {list(seq_ids)}, expected each sequence once")
    sequences = [manager.get(seq) for seq in seq_ids]
    for found, length in zip(sequences, lengths, strict=True):
        if length < 1:
            raise CacheError(f"append length of sequence {found.id} is {length}, expected at least 1")
        if found.importing:
            raise CacheError(f"cannot begin a forward of sequence {found.id} before its import is finished")
    if sum(lengths) > config.prefill_chunk_size:
        raise CacheError(
            f"a batch of {sum(lengths)} new tokens exceeds prefill_chunk_size = {config.prefill_chunk_size}"
        )
    return sequences


def _trees(
    manager: SequenceManager, sequences: list[Sequence], lengths: Items[int], parents: Items[int] | None
) -> list[TokenTree] | None:
    if parents is None:
        for found in sequences:
            if found.tree is not None:
                raise CacheError(
                    f"sequence {found.id} has an uncommitted token tree, and this forward is no tree"
                )
        return None
    if len(parents) != sum(lengths):
        raise CacheError(
            f"tree_parents has {len(parents)} entries, expected {sum(lengths)}, one per new token"
        )
    for group in manager.groups:
        for holds, what in (
            (group.kind == "mla", "kind mla"), (group.window is not None, "a window"),
            (group.rope.mode == "inline", "inline rope"),
        ):  # fmt: skip
            if holds:
                raise CacheError(
                    f"tree_parents: token trees do not work with {what} (layer group {group.name!r})"
                )
    trees, at = [], 0
    for found, length in zip(sequences, lengths, strict=True):
        if found.window is not None:
            raise CacheError(
                f"tree_parents: sequence {found.id} has a sliding window, which takes no token tree"
            )
        tree = found.tree or TokenTree(found.length, (), ())
        trees.append(tree.extended(parents[at : at + length], found.id))
        at += length
    return trees


def _pages_needed(manager: SequenceManager, found: Sequence, at: int, length: int) -> int:
    return -(-(found.slots + length) // manager.page_tokens) - found.pages[at].end_block


def _prefix_sums(counts: Items[int]) -> np.ndarray:
    made = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=made[1:])
    return made


def _positions(sequences: list[Sequence], lengths: Items[int], before: Items[int]) -> np.ndarray:
    parts = []
    for found, length, start in zip(sequences, lengths, before, strict=True):
        if found.tree is not None:
            parts.append(np.array(found.tree.depths[-length:], np.int32) + found.tree.base)
        else:
            parts.append(np.arange(start, start + length, dtype=np.int32))
    return np.concatenate(parts)


def _tree_array(sequences: list[Sequence]) -> np.ndarray:
    orders = [found.tree.order().reshape(-1) for found in sequences if found.tree is not None]
    indptr = _prefix_sums([order.size // 2 for order in orders])
    return np.concatenate([indptr, *orders]).astype(np.int32)


def _arrays(
    manager: SequenceManager, at: int, group: LayerGroup, sequences: list[Sequence], slots: list[int],
    lengths: Items[int], positions: np.ndarray, tables: dict[RopeConfig, np.ndarray],
) -> GroupArrays:  # fmt: skip
    tokens = manager.page_tokens
    lists = [found.pages[at] for found in sequences]
    info = np.empty((4, len(sequences)), np.int32)
    maps = []
    for row, (found, pages, start, length) in enumerate(zip(sequences, lists, slots, lengths, strict=True)):
        last = (found.slots - 1) % tokens + 1
        info[:, row] = last, found.offset, found.sink, pages.first_block
        places = np.arange(start, start + length)
        page = pages.view[places // tokens - pages.first_block]
        maps.append(page * tokens + places % tokens)
    table = None
    if group.rope.mode != "none":
        table = tables.get(group.rope)
        if table is None:
            table = tables[group.rope] = group.rope.table(positions)
    spans = [(p.first_block * tokens, s.slots) for p, s in zip(lists, sequences, strict=True)]
    return GroupArrays(
        page_indptr=_prefix_sums([len(pages) for pages in lists]),
        page_indices=np.concatenate([pages.view for pages in lists]),
        length_info=info,
        append_position_map=np.concatenate(maps).astype(np.int32),
        rope_table=table,
        max_tiles=max(kv_tiles(*ends) for ends in spans),
        max_parts=max(kv_parts(*ends) for ends in spans),
    )
