"""The pages of one layer group: which are free, and how many sequences hold each of the others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from webkv.errors import CacheFullError


class PagePool:
    """Reference-counted page ids `0 .. num_pages - 1`, handed out lowest first, then last freed first."""

    def __init__(self, num_pages: int, group: str) -> None:
        self.num_pages = num_pages
        self.group = group
        self.clear()

    def clear(self) -> None:
        """All pages free, in the initial order."""
        self._free = list(range(self.num_pages - 1, -1, -1))
        self._refs = [0] * self.num_pages

    @property
    def available(self) -> int:
        """How many pages are free."""
        return len(self._free)

    def refs(self, page: int) -> int:
        """How many sequences hold `page`."""
        return self._refs[page]

    def free_pages(self) -> np.ndarray:
        """The ids of all free pages, int32."""
        return np.array(self._free, np.int32)

    def require(self, needed: int, freed: int = 0) -> None:
        """Raise `CacheFullError` unless `needed` pages are free once `freed` more have been given back."""
        available = len(self._free) + freed
        if needed > available:
            raise CacheFullError(needed, available, self.group)

    def take(self, count: int) -> list[int]:
        """`count` free pages, each now held once.  The caller has checked that there are enough."""
        assert 0 <= count <= len(self._free), (count, len(self._free))
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._refs[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Hold each of `pages` once more."""
        for page in pages:
            assert self._refs[page] > 0, f"page {page} is free"
            self._refs[page] += 1

    def drop(self, pages: Iterable[int]) -> None:
        """Hold each of `pages` once less; those that nobody holds are free."""
        for page in pages:
            assert self._refs[page] > 0, f"page {page} is free"
            self._refs[page] -= 1
            if not self._refs[page]:
                self._free.append(page)

    def would_free(self, pages: Iterable[int]) -> int:
        """How many of `pages` nobody else holds."""
        return sum(self._refs[page] == 1 for page in pages)

    def check(self, held: np.ndarray) -> None:
        """Assert that page p is held `held[p]` times, and is on the free list, once, iff that is 0."""
        refs = np.array(self._refs)
        wrong = np.flatnonzero(refs != held)
        where = f"group {self.group!r}"
        assert not wrong.size, f"{where}: pages {wrong}: {refs[wrong]} references, held {held[wrong]} times"
        free = sorted(self._free)
        assert free == np.flatnonzero(held == 0).tolist(), f"{where}: free list {free} does not fit {held}"
