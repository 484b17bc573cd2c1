"""Metadata of format version 2: any layer groups, layouts, dtypes and sequences.

A page group is one layer's pages as declared bytes; a page that several sequences share is in it once, and
each sequence lists the numbers of its pages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from webkv.cache import PagedKVCache
from webkv.errors import CacheFullError, CheckpointError, DamageError, IdentityError
from webkv.layout import PageLayout
from webkv.layout.identity import layout_id

FORMAT = 2
CACHE_TYPE = "webkv.PagedKVCache"
_LARGEST_LENGTH = 2**31 - 1

Tables = list[dict[int, tuple[int, list[int]]]]
"""Per layer group, by sequence: (first block, numbers of its pages)."""


@dataclass(frozen=True)
class GroupLayout:
    """A layer group's name and declared page."""

    name: str
    declared: PageLayout


def places(cache: PagedKVCache) -> list[tuple[int, int, GroupLayout]]:
    """(layer, its pool in the page, its group's layout) of every page group, in order."""
    found = []
    for group in cache.config.groups:
        layout = GroupLayout(group.name, cache.layout(group.name))
        found += [(layer, pool, layout) for pool, layer in enumerate(group.layers)]
    return found


def unique_pages(cache: PagedKVCache, group: str, sequences: Sequence[int]) -> dict[int, int]:
    """The pages that sequences hold, in order of appearance, each with its number of filled slots."""
    size = cache.config.page_tokens
    pages: dict[int, int] = {}
    for seq in sequences:
        first, held = cache.sequence_pages(seq, group)
        length = cache.get_sequence_length(seq)
        for at, page in enumerate(held):
            pages.setdefault(page, min(size, length - (first + at) * size))
    return pages


def _layout_fields(cache: PagedKVCache) -> dict[str, Any]:
    return {
        "format_version": FORMAT,
        "cache_type": CACHE_TYPE,
        "page_size": cache.config.page_tokens,
        "layer_groups": [
            {
                "name": group.name, "layers": list(group.layers), "kind": group.kind, "window": group.window,
                "layout_id": layout_id(cache.layout(group.name)),
                "rope": json.loads(json.dumps(asdict(group.rope))),
            }
            for group in cache.config.groups
        ],
    }  # fmt: skip


def layout_hash(cache: PagedKVCache) -> str:
    """SHA-256 over all that must be equal, 64 hex digits."""
    return hashlib.sha256(json.dumps(_layout_fields(cache), sort_keys=True).encode()).hexdigest()


def to_text(cache: PagedKVCache, sequences: Sequence[int]) -> str:
    """The metadata's JSON."""
    tables: dict[int, list[dict[str, Any]]] = {seq: [] for seq in sequences}
    groups = []
    for group in cache.config.groups:
        numbers = {page: at for at, page in enumerate(unique_pages(cache, group.name, sequences))}
        for seq in sequences:
            first, held = cache.sequence_pages(seq, group.name)
            pages = [numbers[page] for page in held]
            tables[seq].append({"name": group.name, "first_page": first, "pages": pages})
        sizes = cache.layout(group.name).slot_bytes
        for layer, size in zip(group.layers, sizes, strict=True):
            count = len(numbers)
            groups.append({"layer": layer, "name": group.name, "num_pages": count, "nbytes": count * size})
    listed = [
        {"seq_id": seq, "seq_length": cache.get_sequence_length(seq), "layer_groups": tables[seq]}
        for seq in sequences
    ]
    whole = {
        **_layout_fields(cache),
        "layout_hash": layout_hash(cache),
        "sequences": listed,
        "groups": groups,
    }
    return json.dumps(whole, separators=(",", ":"))


def check(cache: PagedKVCache, found: Mapping[str, Any]) -> tuple[dict[int, int], Tables]:
    """Lengths and page tables of the sequences that metadata describes, if this cache can import them.

    Changes nothing.  Raises `IdentityError` for a field of another layout, `DamageError` for one that is
    missing or inconsistent, `CheckpointError` for a sequence id that is taken, `CacheFullError` for too few
    pages.
    """
    for name, expected in _layout_fields(cache).items():
        there = _typed(found, name, type(expected))
        if name == "layer_groups":
            _same_groups(there, expected)
        elif there != expected:
            raise IdentityError(name, there, expected)
    if _typed(found, "layout_hash", str) != layout_hash(cache):
        raise IdentityError("layout hash", found["layout_hash"], layout_hash(cache))
    lengths: dict[int, int] = {}
    tables: Tables = [{} for _ in cache.config.groups]
    for item in _typed(found, "sequences", list):
        seq, length = _typed(item, "seq_id", int), _typed(item, "seq_length", int)
        if not 0 <= length <= _LARGEST_LENGTH:
            raise DamageError(f"seq_length: found {length}, expected 0 to {_LARGEST_LENGTH}")
        if seq in lengths:
            raise DamageError(f"seq_id: found {seq} twice")
        lengths[seq] = length
        _add_tables(cache, seq, length, _typed(item, "layer_groups", list), tables)
    _check_room(cache, lengths, tables)
    _check_page_groups(cache, tables, _typed(found, "groups", list))
    return lengths, tables


def _same_groups(found: list[Any], expected: list[dict[str, Any]]) -> None:
    if len(found) != len(expected):
        raise IdentityError("number of layer groups", len(found), len(expected))
    for item, wanted in zip(found, expected, strict=True):
        for name, value in wanted.items():
            if not isinstance(item, Mapping) or name not in item:
                raise DamageError(f"layer_groups is missing field {name!r}")
            if item[name] != value:
                raise IdentityError(f"{name} of layer group {wanted['name']!r}", item[name], value)


def _add_tables(cache: PagedKVCache, seq: int, length: int, listed: list[Any], tables: Tables) -> None:
    if len(listed) != len(tables):
        raise DamageError(f"layer_groups of sequence {seq}: found {len(listed)}, expected {len(tables)}")
    size = cache.config.page_tokens
    for group, item, table in zip(cache.config.groups, listed, tables, strict=True):
        where = f"sequence {seq} in layer group {group.name!r}"
        first, pages = _typed(item, "first_page", int), _typed(item, "pages", list)
        blocks = -(-length // size)
        needed = 0 if group.window is None else max(0, length - group.window + 1) // size
        if first + len(pages) != blocks or not 0 <= first <= needed:
            raise DamageError(
                f"{where}: found pages {first} to {first + len(pages)}, expected {needed} to {blocks}"
            )
        if any(type(page) is not int or page < 0 for page in pages) or len(set(pages)) != len(pages):
            raise DamageError(f"{where}: its page numbers are not different numbers")
        table[seq] = (first, pages)


def _check_page_groups(cache: PagedKVCache, tables: Tables, listed: list[Any]) -> None:
    """Every page group has the pages that the tables name, 0 to its number of pages."""
    expected = places(cache)
    if len(listed) != len(expected):
        raise DamageError(f"groups: found {len(listed)}, expected {len(expected)}")
    names = [group.name for group in cache.config.groups]
    for at, (item, (layer, pool, layout)) in enumerate(zip(listed, expected, strict=True)):
        table = tables[names.index(layout.name)]
        numbers = {page for _, pages in table.values() for page in pages}
        count = len(numbers)
        if numbers != set(range(count)):
            raise DamageError(f"layer group {layout.name!r}: its page numbers are not 0 to {count - 1}")
        size = layout.declared.slot_bytes[pool]
        for name, value in (("layer", layer), ("num_pages", count), ("nbytes", count * size)):
            if _typed(item, name, int) != value:
                raise DamageError(f"groups[{at}].{name}: found {item[name]}, expected {value}")


def _check_room(cache: PagedKVCache, lengths: Mapping[int, int], tables: Tables) -> None:
    there = cache.manager.sequences
    for seq in lengths:
        if seq in there:
            raise CheckpointError(f"sequence id {seq} is in the cache already")
    if len(there) + len(lengths) > cache.config.reserved_num_seqs:
        raise CheckpointError(
            f"{len(lengths)} sequences do not fit: reserved_num_seqs is "
            f"{cache.config.reserved_num_seqs}, {len(there)} are in the cache"
        )
    for group, table in zip(cache.config.groups, tables, strict=True):
        listed = [number for _, numbers in table.values() for number in numbers]
        apart = unfinished(table, lengths, cache.config.page_tokens)
        # Sequences share full pages; of an unfinished one each needs its own.
        needed = len(set(listed) - apart) + sum(number in apart for number in listed)
        if needed > cache.num_available_pages(group.name):
            raise CacheFullError(needed, cache.num_available_pages(group.name), group.name)


def unfinished(
    table: Mapping[int, tuple[int, list[int]]], lengths: Mapping[int, int], page_tokens: int
) -> set[int]:
    """The numbers of pages that are not full in some sequence."""
    return {numbers[-1] for seq, (_, numbers) in table.items() if numbers and lengths[seq] % page_tokens}


def _typed(found: Any, name: str, kind: type) -> Any:
    if not isinstance(found, Mapping) or name not in found:
        raise DamageError(f"metadata is missing field {name!r}")
    if type(found[name]) is not kind:
        raise DamageError(f"metadata field {name!r}: found {found[name]!r:.60}, expected {kind.__name__}")
    return found[name]
