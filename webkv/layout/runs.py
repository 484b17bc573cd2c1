"""Byte runs: what a plan between two layouts is made of, and their form for buffer copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from webkv.errors import LayoutError
from webkv.layout.declare import DTYPE_BYTES, WORD, PageLayout, refuse

CONVERTERS = {
    "f32_to_f16": ("f32", "f16"),
    "f16_to_f32": ("f16", "f32"),
    "f32_to_int8": ("f32", "int8"),
    "int8_to_f32": ("int8", "f32"),
    "f16_to_int8": ("f16", "int8"),
    "int8_to_f16": ("int8", "f16"),
}
"""Value changes that a plan may ask for, by name: source and destination dtype.  Others are refused.

f32 to f16 rounds to nearest even.  int8 is symmetric per row: `value = int8 * scale`, one f32 scale for the
dims of one (head, token), in the `<role>_scale` tensor beside the int8 one.
"""


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """`nbytes` contiguous destination bytes, from contiguous source bytes.

    Pages are numbered along the sequence (page = token // page_tokens); offsets are bytes in a pool's slot.
    With a `converter` the values change; if one side is int8 the run is one row, and its scale is at
    `scale_offset` of pool `scale_pool` in the int8 side's page (-1 where there is none).
    """

    dst_rank: int
    dst_pool: int
    dst_page: int
    dst_offset: int
    src_rank: int
    src_pool: int
    src_page: int
    src_offset: int
    nbytes: int
    converter: str = ""
    scale_pool: int = -1
    scale_offset: int = -1

    @property
    def src_nbytes(self) -> int:
        """Source bytes read, which a converter makes more or fewer than `nbytes`."""
        if not self.converter:
            return self.nbytes
        source, destination = CONVERTERS[self.converter]
        return self.nbytes // DTYPE_BYTES[destination] * DTYPE_BYTES[source]

    @property
    def ends(self) -> BufferPair:
        """The two buffers the run is between."""
        return BufferPair(self.src_rank, self.src_pool, self.dst_rank, self.dst_pool)


class BufferPair(NamedTuple):
    """A source buffer and a destination buffer: one per pool of each rank."""

    src_rank: int
    src_pool: int
    dst_rank: int
    dst_pool: int


class WordRun(NamedTuple):
    """One copy in u32 words between two buffers; three u32 in the run buffer of `copy_runs.wgsl`."""

    src_word: int
    dst_word: int
    words: int


def merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs sorted by destination, with neighbours joined that are adjacent in one page pair on both sides."""
    joined: list[Run] = []
    for run in sorted(runs):
        last = joined[-1] if joined else None
        if last is not None and _continues(last, run):
            joined[-1] = replace(last, nbytes=last.nbytes + run.nbytes)
        else:
            joined.append(run)
    return tuple(joined)


def _continues(last: Run, run: Run) -> bool:
    return (
        last.dst_offset + last.nbytes == run.dst_offset
        and last.src_offset + last.src_nbytes == run.src_offset
        and (last.dst_page, last.src_page) == (run.dst_page, run.src_page)
        and last.ends == run.ends
        and last.converter == run.converter
        and last.scale_pool == run.scale_pool == -1
    )


def word_runs(
    runs: Iterable[Run],
    src: Sequence[PageLayout],
    dst: Sequence[PageLayout],
    *,
    src_pages: Sequence[int] | None = None,
    dst_pages: Sequence[int] | None = None,
) -> dict[BufferPair, list[WordRun]]:
    """Copies in u32 words for each pair of buffers, in destination order, joined across neighbouring pages.

    `src` and `dst` are the layouts by rank, as planned.  `src_pages[page]` and `dst_pages[page]` are the page
    ids where that page of the sequence is in its pools' buffers (None: page p has id p).  Raises
    `LayoutError` naming the run that is not whole words or changes values.
    """
    copies: dict[BufferPair, list[WordRun]] = {}
    for run in runs:
        source = _page_id("src", run.src_page, src_pages) * src[run.src_rank].slot_bytes[run.src_pool]
        target = _page_id("dst", run.dst_page, dst_pages) * dst[run.dst_rank].slot_bytes[run.dst_pool]
        _check_words(run)
        copy = WordRun(
            (source + run.src_offset) // WORD, (target + run.dst_offset) // WORD, run.nbytes // WORD
        )
        copies.setdefault(run.ends, []).append(copy)
    return {ends: _joined(copies[ends]) for ends in sorted(copies)}


def copy_bytes(
    runs: Iterable[Run],
    src: Sequence[PageLayout],
    src_pools: Sequence[Sequence[bytes | bytearray | memoryview]],
    dst: Sequence[PageLayout],
    dst_pools: Sequence[Sequence[bytearray]],
) -> None:
    """Do the runs on the CPU, page p of a sequence at byte p * slot_bytes of `pools[rank][pool]`.

    Raises `LayoutError` naming the run that changes values or does not fit, before any byte is written.
    """
    copies = []
    for run in runs:
        start = run.src_page * src[run.src_rank].slot_bytes[run.src_pool] + run.src_offset
        target = run.dst_page * dst[run.dst_rank].slot_bytes[run.dst_pool] + run.dst_offset
        source, destination = src_pools[run.src_rank][run.src_pool], dst_pools[run.dst_rank][run.dst_pool]
        if run.converter:
            raise LayoutError(f"{_where(run)}: found converter {run.converter}, expected plain bytes")
        for side, pool, first in (("src", source, start), ("dst", destination, target)):
            if first + run.nbytes > len(pool):
                raise refuse(f"{_where(run)}: {side} bytes", len(pool), f"at least {first + run.nbytes}")
        copies.append((destination, target, source, start, run.nbytes))
    for destination, target, source, start, nbytes in copies:
        destination[target : target + nbytes] = source[start : start + nbytes]


def _page_id(side: str, page: int, pages: Sequence[int] | None) -> int:
    if pages is None:
        return page
    if page >= len(pages):
        raise refuse(f"{side}_pages", len(pages), f"more than {page} page ids")
    return pages[page]


def _where(run: Run) -> str:
    return f"run to rank {run.dst_rank}, pool {run.dst_pool}, page {run.dst_page}, offset {run.dst_offset}"


def _check_words(run: Run) -> None:
    if run.converter:
        raise LayoutError(f"{_where(run)}: found converter {run.converter}, expected plain bytes")
    for name in ("dst_offset", "src_offset", "nbytes"):
        if getattr(run, name) % WORD:
            raise refuse(f"{_where(run)}: {name}", getattr(run, name), f"a multiple of {WORD}")


def _joined(copies: list[WordRun]) -> list[WordRun]:
    joined: list[WordRun] = []
    for copy in sorted(copies, key=lambda copy: copy.dst_word):
        if joined:
            last = joined[-1]
            after = (last.src_word + last.words, last.dst_word + last.words)
            if after == (copy.src_word, copy.dst_word):
                joined[-1] = last._replace(words=last.words + copy.words)
                continue
        joined.append(copy)
    return joined
