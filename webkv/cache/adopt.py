"""Pages from and to elsewhere: what a checkpoint reads, and the two-phase import that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from webkv.cache.manager import PageCopy, SequenceManager
from webkv.errors import CacheError


def adopt_pages(
    manager: SequenceManager,
    seq: int,
    at: int,
    first_block: int,
    count: int,
    shared: Mapping[int, int] = MappingProxyType({}),
) -> list[int]:
    """Give an empty sequence `count` pages of group `at`, from block `first_block` on; it is importing then.

    `shared`: by place among them, pages that another sequence holds and that are full in both.  Raises
    `CacheError` or `CacheFullError`, changing nothing.
    """
    found, group = manager.get(seq), manager.groups[at]
    what = f"adopt_pages of sequence {seq} in group {group.name!r}"
    if found.length or found.window is not None:
        raise CacheError(f"{what}: its length is {found.length}, expected an empty sequence without a window")
    if len(found.pages[at]):
        raise CacheError(f"{what}: {len(found.pages[at])} pages are adopted already")
    if count < 0 or first_block < 0:
        raise CacheError(f"{what}: first_block {first_block} and {count} pages, expected neither below 0")
    if first_block and group.window is None:
        raise CacheError(f"{what}: first_block is {first_block}, expected 0 without a window")
    pool = manager.pools[at]
    if any(not 0 <= place < count or pool.refs(page) < 1 for place, page in shared.items()):
        raise CacheError(f"{what}: shared is {dict(shared)}, expected held pages for places 0 to {count - 1}")
    pool.require(count - len(shared))
    pool.share(shared.values())
    fresh = iter(pool.take(count - len(shared)))
    pages = [shared[place] if place in shared else next(fresh) for place in range(count)]
    found.pages[at].first_block = first_block
    found.pages[at].extend(pages)
    found.importing = True
    return pages


def seal(manager: SequenceManager, seq: int, length: int) -> None:
    """End an import: the adopted pages of every group hold the first `length` tokens, as far as a window
    needs.

    Raises `CacheError`, changing nothing.
    """
    found = manager.get(seq)
    if not found.importing:
        raise CacheError(f"seal: sequence {seq} is not being imported")
    blocks = -(-length // manager.page_tokens)
    for group, pages in zip(manager.groups, found.pages, strict=True):
        if length < 0 or pages.end_block != blocks:
            raise CacheError(
                f"seal: the pages of sequence {seq} in group {group.name!r} end at block "
                f"{pages.end_block}, expected {blocks} for {length} tokens"
            )
    manager.require_held(found, length, "seal")
    found.length, found.importing = length, False
    manager.release_left(found)


def own_pages(manager: SequenceManager, seq: int, at: int, start: int, end: int) -> list[PageCopy]:
    """Make the pages of tokens `start .. end - 1` the sequence's own, so that they may be written.

    Returns the copies to do.  Raises `CacheFullError`, changing nothing.
    """
    found, pool, tokens = manager.get(seq), manager.pools[at], manager.page_tokens
    pages = found.pages[at]
    blocks = {found.slot(index) // tokens - pages.first_block for index in range(start, end)}
    shared = [place for place in sorted(blocks) if pool.refs(int(pages.view[place])) > 1]
    pool.require(len(shared))
    copies = []
    for place, fresh in zip(shared, pool.take(len(shared)), strict=True):
        source = int(pages.view[place])
        pool.drop([source])
        pages.view[place] = fresh
        copies.append((source, fresh, tokens))
    return copies
