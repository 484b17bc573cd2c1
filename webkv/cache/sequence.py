"""One sequence: its length, the pages it holds in every layer group, its window and its token tree."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from webkv.cache.tree import TokenTree


class PageList:
    """The pages of one sequence in one group, in order; the first holds tokens from `first_block` on.

    `first_block` counts in pages and is above 0 once the first pages have left the group's window.
    `missing`: tokens at the start of the first page that are not there, because the sequence came from a
    cache of other page size whose window had let go of them.
    """

    __slots__ = ("_pages", "_start", "_stop", "first_block", "missing")

    def __init__(self, pages: Items[int] = (), first_block: int = 0, missing: int = 0) -> None:
        self.first_block = first_block
        self.missing = missing
        self._start, self._stop = 0, len(pages)
        self._pages = np.empty(max(8, len(pages)), np.int32)
        self._pages[: len(pages)] = pages

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def view(self) -> np.ndarray:
        """The page ids, int32; valid until the list changes."""
        return self._pages[self._start : self._stop]

    @property
    def end_block(self) -> int:
        """One past the last page, counted from the sequence's start."""
        return self.first_block + len(self)

    def first_token(self, page_tokens: int) -> int:
        """The first token that is held."""
        return self.first_block * page_tokens + self.missing

    def extend(self, pages: Items[int]) -> None:
        """Append `pages`."""
        if not pages:
            return
        held = len(self)
        if self._stop + len(pages) > len(self._pages):
            grown = np.empty(2 * (held + len(pages)), np.int32)
            grown[:held] = self.view
            self._pages, self._start, self._stop = grown, 0, held
        self._pages[self._stop : self._stop + len(pages)] = pages
        self._stop += len(pages)

    def tail(self, end_block: int) -> list[int]:
        """The pages from block `end_block` on."""
        return self.view[max(0, end_block - self.first_block) :].tolist()

    def truncate(self, end_block: int) -> list[int]:
        """Take off and return the pages from block `end_block` on."""
        taken = self.tail(end_block)
        self._stop -= len(taken)
        if not len(self):
            self.missing = 0
        return taken

    def advance(self, first_block: int) -> list[int]:
        """Take off and return the pages before block `first_block`, which counts on."""
        taken = self.view[: max(0, first_block - self.first_block)].tolist()
        self._start += len(taken)
        self.first_block += len(taken)
        if taken:
            self.missing = 0
        return taken

    def cut(self, start: int, stop: int) -> list[int]:
        """Take out and return the pages at list places `start .. stop - 1`; later ones move up."""
        kept = self.view
        taken = kept[start:stop].tolist()
        left = np.concatenate([kept[:start], kept[stop:]])
        self._start, self._stop = 0, len(left)
        self._pages[: len(left)] = left
        return taken

    def replace_last(self, page: int) -> None:
        """Put another page id in the last place."""
        assert len(self)
        self._pages[self._stop - 1] = page


@dataclass(eq=False)
class Sequence:
    """What is known of one sequence; `length` counts the tokens it stands for.

    Token i is in slot i, or, once a per-sequence window has slid (`slid`), in slot i for i < `sink` and
    i - `sink` + `offset` after.  `sink` and `offset` are 0 until then; slots between them are dead.
    `block_starts`: where the blocks of TVM's chain would start; a sequence keeps whole earlier blocks as
    sinks.
    """

    id: int
    pages: list[PageList]
    length: int = 0
    window: int | None = None
    sink_size: int = 0
    slid: bool = False
    sink: int = 0
    offset: int = 0
    tree: TokenTree | None = None
    importing: bool = False
    block_starts: list[int] = field(default_factory=lambda: [0])

    @property
    def slots(self) -> int:
        """Slots in use, dead ones included."""
        return self.length - self.sink + self.offset

    @property
    def committed(self) -> int:
        """Tokens before the uncommitted token tree."""
        return self.tree.base if self.tree else self.length

    def slot(self, index: int) -> int:
        """The slot of token `index`."""
        return index if index < self.sink else index - self.sink + self.offset
