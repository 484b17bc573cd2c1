"""Which page holds which token: sequences, shared pages and windows, on the host alone.

Operations that need bytes moved return what to move; `PagedKVCache` has the GPU do it.  Each one checks
everything first, so that one that raises has changed nothing.
"""

from __future__ import annotations

import numpy as np

from webkv.cache.config import CacheConfig, LayerGroup
from webkv.cache.pool import PagePool
from webkv.cache.sequence import PageList, Sequence
from webkv.errors import CacheError

PageCopy = tuple[int, int, int]
"""(source page, destination page, valid slots)."""


class SequenceManager:
    """All sequences of a cache and the pages they hold; a page shared by two of them is never written.

    The partial last page of a sequence is its own: forks and `popn` copy it at once when it is not.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.groups = config.groups
        self.page_tokens = config.page_tokens
        self.pools = [PagePool(config.num_pages(group), group.name) for group in config.groups]
        self.sequences: dict[int, Sequence] = {}

    def clear(self) -> None:
        """Forget all sequences; every page is free, in the initial order."""
        self.sequences.clear()
        for pool in self.pools:
            pool.clear()

    def get(self, seq: int, role: str = "sequence") -> Sequence:
        """The sequence of that id; `CacheError` if there is none."""
        found = self.sequences.get(seq)
        if found is None:
            raise CacheError(f"the {role} {seq!r} cannot be found in the KV cache")
        return found

    def _settled(self, seq: int, what: str, role: str = "sequence") -> Sequence:
        found = self.get(seq, role)
        if found.importing:
            raise CacheError(f"{what}: the {role} {seq} is being imported, finish that first")
        if found.tree is not None:
            raise CacheError(
                f"{what}: the {role} {seq} has an uncommitted token tree of {found.tree.size} nodes"
            )
        return found

    def _require_new(self, seq: int) -> None:
        if isinstance(seq, bool) or not isinstance(seq, (int, np.integer)):
            raise CacheError(f"sequence id is {seq!r}, expected an integer")
        if seq in self.sequences:
            raise CacheError(f"the sequence {seq} is already in the KV cache")
        limit = self.config.reserved_num_seqs
        if len(self.sequences) >= limit:
            raise CacheError(
                f"too many sequences: {len(self.sequences)} in the KV cache, reserved_num_seqs is {limit}"
            )

    def add(self, seq: int) -> None:
        """A new empty sequence."""
        self._require_new(seq)
        self.sequences[seq] = Sequence(int(seq), [PageList() for _ in self.groups])

    def remove(self, seq: int) -> None:
        """Forget a sequence; pages that no other one shares are free."""
        found = self.get(seq)
        for pool, pages in zip(self.pools, found.pages, strict=True):
            pool.drop(pages.view.tolist())
        del self.sequences[seq]

    def require_held(self, found: Sequence, length: int, what: str) -> None:
        """Raise unless every windowed group still holds what a query after `length` tokens would see."""
        for group, pages in zip(self.groups, found.pages, strict=True):
            if group.window is None or length == 0:
                continue
            first, needed = pages.first_token(self.page_tokens), max(0, length - group.window + 1)
            if first > needed:
                raise CacheError(
                    f"{what}: group {group.name!r} of window {group.window} holds sequence "
                    f"{found.id} from token {first} on, token {needed} is needed"
                )

    def fork(self, parent: int, child: int, pos: int = -1) -> list[list[PageCopy]]:
        """Add `child` with the first `pos` tokens of `parent` (-1: all); returns each group's page copies.

        Full pages are shared; a partial last page is copied into a fresh one.
        """
        found = self._settled(parent, "fork", "parent sequence")
        self._require_new(child)
        if pos < -1:
            raise CacheError(f"fork position is {pos}, expected a non-negative one, or -1 for the end")
        if pos > found.length:
            raise CacheError(
                f"fork position {pos} should not exceed the length {found.length} of sequence {parent}"
            )
        pos = found.length if pos == -1 else pos
        if found.window is not None and pos > found.sink_size:
            raise CacheError(
                f"fork position {pos} of the sliding sequence {parent} is past its {found.sink_size} sinks"
            )
        self.require_held(found, pos, f"fork at {pos}")
        full, part = divmod(pos, self.page_tokens)
        if part:
            for pool in self.pools:
                pool.require(1)
        lists, copies = [], []
        for group, pool, pages in zip(self.groups, self.pools, found.pages, strict=True):
            made, copy = self._shared(group, pool, pages, full, part)
            lists.append(made)
            copies.append(copy)
        start = full * self.page_tokens
        inherited = [at for at in found.block_starts if at < start]
        self.sequences[child] = Sequence(int(child), lists, pos, block_starts=[*inherited, start])
        if start > found.block_starts[-1]:
            found.block_starts.append(start)
        return copies

    def _shared(
        self, group: LayerGroup, pool: PagePool, pages: PageList, full: int, part: int
    ) -> tuple[PageList, list[PageCopy]]:
        """A list of `pages` up to block `full`, and a copy of the first `part` slots of the next."""
        if not full and not part:
            return PageList(), []
        held = group.held_pages(self.page_tokens)
        first = pages.first_block
        if held is not None:
            first = max(first, full + (part > 0) - held)
        shared = pages.view[first - pages.first_block : full - pages.first_block].tolist()
        pool.share(shared)
        made = PageList(shared, first, pages.missing if first == pages.first_block else 0)
        if not part:
            return made, []
        source, (fresh,) = int(pages.view[full - pages.first_block]), pool.take(1)
        made.extend([fresh])
        return made, [(source, fresh, part)]

    def popn(self, seq: int, n: int) -> list[list[PageCopy]]:
        """Take the last `n` tokens off; returns each group's page copies, for a last page that is shared."""
        found = self.get(seq)
        if n < 0:
            raise CacheError(f"the length of popping {n} cannot be negative")
        if n > found.length:
            raise CacheError(
                f"the length of popping {n} exceeds the whole length {found.length} of sequence {seq}"
            )
        if n == 0:
            return [[] for _ in self.groups]
        self._settled(seq, "popn")
        length = found.length - n
        if found.slid and length < found.sink:
            raise CacheError(
                f"popn of {n}: the window of sequence {seq} holds only "
                f"{found.length - found.sink} tokens after its {found.sink} sinks"
            )
        self.require_held(found, length, f"popn of {n}")
        return self.shorten(found, length)

    def shorten(self, found: Sequence, length: int) -> list[list[PageCopy]]:
        """Cut `found` to `length` tokens, all of them held, making its last page its own."""
        unslid = found.slid and length == found.sink
        slots = length if unslid else length - found.sink + found.offset
        end, part = -(-slots // self.page_tokens), slots % self.page_tokens
        shared = []
        for pool, pages in zip(self.pools, found.pages, strict=True):
            last = end - 1 - pages.first_block
            shared.append(end > pages.first_block and pool.refs(int(pages.view[last])) > 1)
            if part and shared[-1]:
                pool.require(1, pool.would_free(pages.tail(end)))
        copies: list[list[PageCopy]] = []
        for pool, pages, own in zip(self.pools, found.pages, shared, strict=True):
            pool.drop(pages.truncate(end))
            if not end:
                pages.first_block = 0
            copies.append(self._own_last(pool, pages, part) if part and own else [])
        found.length = length
        if unslid:
            found.slid, found.sink, found.offset = False, 0, 0
        self._cut_blocks(found, length, shared[0])
        return copies

    def _own_last(self, pool: PagePool, pages: PageList, part: int) -> list[PageCopy]:
        source, (fresh,) = int(pages.view[-1]), pool.take(1)
        pool.drop([source])
        pages.replace_last(fresh)
        return [(source, fresh, part)]

    def _cut_blocks(self, found: Sequence, length: int, shared: bool) -> None:
        starts = [at for at in found.block_starts if at <= length]
        begin = length // self.page_tokens * self.page_tokens
        if shared and begin > starts[-1]:
            starts.append(begin)
        found.block_starts = starts

    def enable_sliding(self, seq: int, window: int, sink: int) -> None:
        """Let a sequence keep its first `sink` tokens and the last ones, `window` together (StreamingLLM)."""
        if not self.config.support_sliding_window:
            raise CacheError(
                "the KV cache does not support sliding windows: support_sliding_window is not set"
            )
        found = self._settled(seq, "enable_sliding_window_for_seq")
        if sink < 0:
            raise CacheError(f"sink size is {sink}, it should be non-negative")
        if window <= 0:
            raise CacheError(f"window size is {window}, it should be positive")
        if sink >= window:
            raise CacheError(f"sink size {sink} should be less than window size {window}")
        if found.window is not None:
            raise CacheError(f"sequence {seq} has a sliding window of {found.window} already")
        sinks = max(sink, found.block_starts[-1])
        if sinks >= window:
            raise CacheError(
                f"window size {window} should exceed the {sinks} tokens that sequence {seq} shares, "
                f"which all stay as sinks"
            )
        found.window, found.sink_size = window, sinks

    def release_left(self, found: Sequence) -> None:
        """After a step: slide the sequence's own window, and free pages that left a group's window."""
        if found.window is not None and found.length > found.window:
            self._slide(found)
        end = -(-found.committed // self.page_tokens)
        for group, pool, pages in zip(self.groups, self.pools, found.pages, strict=True):
            held = group.held_pages(self.page_tokens)
            if held is not None and end - held > pages.first_block:
                pool.drop(pages.advance(end - held))

    def _slide(self, found: Sequence) -> None:
        assert found.window is not None
        if not found.slid:
            found.slid, found.sink, found.offset = True, found.sink_size, found.sink_size
        found.offset += found.length - found.window
        found.length = found.window
        sinks, first = -(-found.sink // self.page_tokens), found.offset // self.page_tokens
        if first > sinks:
            for pool, pages in zip(self.pools, found.pages, strict=True):
                pool.drop(pages.cut(sinks, first))
            found.offset -= (first - sinks) * self.page_tokens

    def check(self) -> None:
        """Assert that every page is held exactly as often as its count says, and holds what it should."""
        for at, (group, pool) in enumerate(zip(self.groups, self.pools, strict=True)):
            held = np.zeros(pool.num_pages, np.int64)
            for found in self.sequences.values():
                pages = found.pages[at]
                self._check_pages(found, group, pool, pages)
                np.add.at(held, pages.view, 1)
            pool.check(held)

    def _check_pages(self, found: Sequence, group: LayerGroup, pool: PagePool, pages: PageList) -> None:
        where = f"sequence {found.id} in group {group.name!r}"
        inside = (pages.view >= 0) & (pages.view < pool.num_pages)
        assert inside.all(), f"{where} holds pages out of range: {pages.view[~inside]}"
        assert len(set(pages.view.tolist())) == len(pages), f"{where} holds a page twice: {pages.view}"
        if found.importing:
            return
        blocks = -(-found.slots // self.page_tokens)
        assert pages.end_block == blocks, f"{where} ends at block {pages.end_block}, expected {blocks}"
        if found.slots % self.page_tokens and len(pages):
            assert pool.refs(int(pages.view[-1])) == 1, f"{where} shares its partial page {pages.view[-1]}"
        if group.window is None:
            assert pages.first_block == 0, f"{where} lost {pages.first_block} pages"
        else:
            first = max(0, found.committed - group.window + 1)
            assert pages.first_token(self.page_tokens) <= first, f"{where} lost token {first}"
