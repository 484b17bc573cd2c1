"""From a layout plan to work for the GPU: tables of runs for a sequence's pages, and doing them.

A plan between two page layouts repeats every `lcm` of their page sizes, so one such period is planned (about
8 us a run) and numpy shifts it along the sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
import wgpu
from numpy.typing import NDArray

from webkv.gpu import Batch, Device, Slice
from webkv.kernels.convert import convert_runs
from webkv.kernels.pages import copy_runs
from webkv.layout import CONVERTERS, DTYPE_BYTES, BufferPair, Held, PageLayout, Run, plan

COPIES_AT_MOST = 24
"""Most buffer copies per layer and pair of buffers; more runs go to a kernel.  Both give the same bytes.

Measured over 16 layers (wgpu-py 0.32 on llvmpipe, host time): a recorded copy costs 4 us, a dispatch with its
bind group and share of the upload 0.1 ms, whatever the number of runs.
"""

_WORD = 4
# At most 65535 workgroups in a dimension; a table's parts start at multiples of 256 bytes, as bindings must.
_RUNS_PER_DISPATCH = 65280

Numbers = NDArray[np.int64]
Holder = tuple[PageLayout, Held]
LayerBuffers = tuple[Sequence[Sequence[wgpu.GPUBuffer]], Sequence[wgpu.GPUBuffer]]
"""Of one layer: `buffers[rank][pool]` of the sources, `buffers[pool]` of the destination."""


@dataclass(frozen=True)
class PageIds:
    """Where a sequence's pages are in their buffers: page `first + i` of the sequence has id `ids[i]`."""

    first: int
    ids: Numbers

    def at(self, pages: Numbers) -> Numbers:
        """The ids of `pages`, which are all held."""
        assert pages.size == 0 or (pages.min() >= self.first and pages.max() < self.first + len(self.ids))
        return self.ids[pages - self.first]


@dataclass(frozen=True)
class RunTable:
    """Runs between one pair of buffers (`ends.dst_rank` is 0), in the form of their kernel.

    `rows`: u32, without `converter` (source word, destination word, words), with one (first source element,
    first destination element, elements, scale word).
    """

    ends: BufferPair
    converter: str
    rows: NDArray[np.uint32]


@dataclass(frozen=True)
class SequencePlan:
    """How tokens of one layer get from `src` (by rank) to `dst`: runs of page ranges, and where they repeat.

    `pieces`: runs planned from page 0 on, and the periods (of `period` tokens) that they are shifted by.
    """

    src: tuple[Holder, ...]
    dst: Holder
    period: int
    pieces: tuple[tuple[tuple[Run, ...], Numbers], ...]

    @classmethod
    def of(
        cls, src: Sequence[Holder], dst: Holder, tokens: range, converters: Collection[str]
    ) -> SequencePlan:
        """The plan for `tokens`; raises `LayoutError` as `webkv.layout.plan` does."""
        period = lcm(*(layout.page_tokens for layout, _ in (*src, dst)))
        parts: dict[tuple[int, int], list[int]] = {}
        for at in range(tokens.start // period, -(-tokens.stop // period)):
            start, stop = max(0, tokens.start - at * period), min(period, tokens.stop - at * period)
            parts.setdefault((start, stop), []).append(at)
        pieces = tuple(
            (plan(src, [dst], part, converters=converters), np.array(shifts))
            for part, shifts in parts.items()
        )
        return cls(tuple(src), dst, period, pieces)

    def tables(self, src_pages: Sequence[PageIds], dst_pages: PageIds) -> list[RunTable]:
        """The runs with their places in the buffers, given the pages of each source rank and of `dst`."""
        found: dict[tuple[BufferPair, str], list[Numbers]] = {}
        for runs, shifts in self.pieces:
            groups: dict[tuple[BufferPair, str], list[Run]] = {}
            for run in runs:
                groups.setdefault((run.ends, run.converter), []).append(run)
            for key, group in groups.items():
                made = self._placed(*key, group, shifts, src_pages[key[0].src_rank], dst_pages)
                found.setdefault(key, []).append(made)
        return [RunTable(*key, np.concatenate(rows).astype(np.uint32)) for key, rows in sorted(found.items())]

    def _placed(
        self, ends: BufferPair, converter: str, runs: list[Run], shifts: Numbers,
        src_pages: PageIds, dst_pages: PageIds,
    ) -> Numbers:  # fmt: skip
        """Rows of a table, for every run at every shift."""
        source, target = self.src[ends.src_rank][0], self.dst[0]
        from_dtype, to_dtype = CONVERTERS.get(converter, ("f32", "f32"))
        int8_pool = ends.dst_pool if to_dtype == "int8" else ends.src_pool
        assert all(run.scale_pool in (-1, int8_pool) for run in runs)
        columns = [
            (run.src_page, run.src_offset, run.dst_page, run.dst_offset, run.nbytes, run.scale_offset)
            for run in runs
        ]
        src_page, src_at, dst_page, dst_at, nbytes, scale = np.array(columns, np.int64).T
        pages = src_pages.at(src_page + shifts[:, None] * (self.period // source.page_tokens))
        src_base = pages * source.slot_bytes[ends.src_pool]
        pages = dst_pages.at(dst_page + shifts[:, None] * (self.period // target.page_tokens))
        dst_base = pages * target.slot_bytes[ends.dst_pool]
        dst_unit = DTYPE_BYTES[to_dtype]
        start, to = (src_base + src_at) // DTYPE_BYTES[from_dtype], (dst_base + dst_at) // dst_unit
        table = [start, to, np.broadcast_to(nbytes // dst_unit, start.shape)]
        if converter:
            base = dst_base if to_dtype == "int8" else src_base
            table.append(np.where(scale < 0, 0, (base + scale) // _WORD))
        return np.stack(table, axis=-1).reshape(-1, len(table))


def joined(rows: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Word runs in destination order, with those that continue each other on both sides made one."""
    rows = rows[np.argsort(rows[:, 1], kind="stable")]
    start, to, words = rows.T
    follows = (start[1:] == start[:-1] + words[:-1]) & (to[1:] == to[:-1] + words[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~follows]))
    return np.stack([start[first], to[first], np.add.reduceat(words, first)], axis=1)


def run_tables(
    device: Device, tables: Iterable[RunTable], layers: Sequence[LayerBuffers], copies_at_most: int
) -> None:
    """Do the runs in every layer; a table is uploaded once for all of them."""
    uploads: list[wgpu.GPUBuffer] = []
    try:
        with device.batch() as batch:
            for table in tables:
                ends = table.ends
                pairs = [(src[ends.src_rank][ends.src_pool], dst[ends.dst_pool]) for src, dst in layers]
                copies = joined(table.rows) if not table.converter else None
                if copies is not None and len(copies) <= copies_at_most:
                    for source, target in pairs:
                        for start, to, words in copies.tolist():
                            batch.copy(source, _WORD * start, target, _WORD * to, _WORD * words)
                else:
                    uploads.append(device.buffer(table.rows.nbytes, label="page runs", data=table.rows))
                    _dispatch(batch, table, uploads[-1], pairs)
    finally:
        for buffer in uploads:
            device.release(buffer)


def _dispatch(
    batch: Batch,
    table: RunTable,
    upload: wgpu.GPUBuffer,
    pairs: Sequence[tuple[wgpu.GPUBuffer, wgpu.GPUBuffer]],
) -> None:
    for at in range(0, len(table.rows), _RUNS_PER_DISPATCH):
        rows = table.rows[at : at + _RUNS_PER_DISPATCH]
        runs = Slice(upload, at * rows.strides[0], rows.nbytes)
        count, longest = len(rows), int(rows[:, 2].max())
        for src, dst in pairs:
            if table.converter:
                convert_runs(
                    batch, src=src, dst=dst, runs=runs, count=count, max_elements=longest,
                    converter=table.converter,
                )  # fmt: skip
            else:
                copy_runs(batch, src=src, dst=dst, runs=runs, count=count, max_words=longest)
