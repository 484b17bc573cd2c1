"""How close is decode attention to reading the same KV bytes once, and how far ahead of others' kernels?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.attention import (
    BATCHES,
    CONFIGS,
    CONTEXTS,
    DTYPES,
    TOLERANCE,
    Case,
    OnDevice,
    Pages,
    difference,
    too_large,
    wrong,
)  # fmt: skip
from benchmarks.harness import Bench, Comparison, Goal, Row, on_gpu
from benchmarks.limit import Reader
from benchmarks.peers import onnxruntime, tvm
from webkv.gpu import Batch, Device
from webkv.kernels.attention import attend_decode, decode_scratch_bytes
from webkv.kernels.variants import kv_tiles

QUESTION = "How close is decode attention to one plain read of the same KV bytes?"
LIMIT = "read limit"
TEXTURE = "read of texture"
OTHER_DTYPE = "f16 pages"
GROWTH = "linear growth"

QUICK = (
    Case("9/3x64", "f32", 1024), Case("9/3x64", "f32", 4096), Case("9/3x64", "f32", 16384),
    Case("9/3x64", "f16", 1024), Case("9/3x64", "f16", 4096), Case("9/3x64", "f16", 16384),
    Case("9/3x64", "int8", 4096), Case("9/3x64", "int8", 16384),
    Case("32/8x64", "f32", 1024, 8), Case("32/8x64", "f16", 1024, 8), Case("32/8x64", "int8", 1024, 8),
    Case("32/8x128", "f32", 4096), Case("32/8x128", "f16", 4096), Case("32/8x128", "int8", 4096),
    Case("4/1x256", "f32", 4096), Case("4/1x256", "f16", 4096), Case("4/1x256", "int8", 4096),
)  # fmt: skip
FULL = tuple(
    Case(config, dtype, context, batch)
    for config in CONFIGS for dtype in DTYPES for batch in BATCHES for context in CONTEXTS
)  # fmt: skip


def _of(dtype: str, least_mb: float = 0, least_context: int = 0) -> Callable[[Row], bool]:
    def applies(row: Row) -> bool:
        facts = row.facts
        return facts["dtype"] == dtype and facts["kv_mb"] >= least_mb and facts["context"] >= least_context

    return applies


GOALS = (
    Goal(LIMIT, 0.75, "median, f32, KV >= 4 MB", _of("f32", 4)),
    Goal(LIMIT, 0.65, "median, f16, KV >= 4 MB", _of("f16", 4)),
    Goal(tvm.NAME, 30, "median, f32, context >= 1k", _of("f32", 0, 1024)),
    Goal(tvm.NAME, 45, "median, f16, context >= 1k", _of("f16", 0, 1024)),
    Goal(onnxruntime.NAME, 15, "median, f32", _of("f32")),
    Goal(OTHER_DTYPE, 1.5, "median, int8, KV >= 4 MB", _of("int8", 4)),
    Goal(GROWTH, 0.91, "worst, 16k against 4k", lambda row: True, min),
)


class Decode:
    """webkv's decode attention over a case's pages."""

    def __init__(self, device: Device, host: Pages) -> None:
        case = host.case
        self._shape, self._batch = case.shape, case.batch
        self._on = OnDevice(device, host)
        self.out, self.numpy_dtype = self._on.out, np.float32
        self.pages, self.texture = self._on.pages, self._on.texture
        self._tiles = kv_tiles(0, case.context)
        size = decode_scratch_bytes(case.batch, self._tiles, self._shape)
        self._scratch = self._on.buffer("scratch", max(size, 4))
        self.dispatches = 0

    def record(self, batch: Batch) -> None:
        """One step of one layer."""
        on, before = self._on, batch.dispatches
        attend_decode(
            batch, q=on.q, pages=on.pages, table=on.table, out=on.out, scratch=self._scratch,
            sequences=self._batch, max_tiles=self._tiles, shape=self._shape, q_stride=on.q_stride,
            closed=on.texture,
        )  # fmt: skip
        self.dispatches = batch.dispatches - before

    def close(self) -> None:
        """Free its buffers."""
        self._on.close()


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """One row per case: webkv against the read limit, TVM, ONNX Runtime, and int8 against f16 pages."""
    peer = await tvm.open_peer(bench.device, bench.needs)
    for case in FULL if bench.full else QUICK:
        bench.say(f"decode {name(case)}")
        yield await _row(bench, peer, case)
    if peer is not None:
        peer.destroy()


def name(case: Case) -> str:
    """A case in the table's words."""
    return f"{case.config} {case.dtype} {case.context} x{case.batch}"


async def _row(bench: Bench, peer: Device | None, case: Case) -> Row:
    skipped = too_large(case, bench.largest_binding)
    if skipped:
        return Row(name(case), note=skipped, facts=case.facts)
    host, device = Pages(case), bench.device
    expected = host.expected()
    ours = Decode(device, host)
    reader = Reader(device, ours.pages, case.dtype)
    candidates = [on_gpu("webkv", device, ours.record), on_gpu(LIMIT, device, reader.record)]
    closing: list[Any] = [ours, reader]
    if ours.texture is not None:
        closing.append(Reader(device, ours.texture, case.dtype))
        candidates.append(on_gpu(TEXTURE, device, closing[-1].record))
    notes = [await wrong(device, ours, expected, case.dtype)]
    if peer is not None and tvm.supports(peer, case):
        other = tvm.TvmAttention(peer, host, "decode")
        closing.append(other)
        problem = await wrong(peer, other, expected, case.dtype)
        notes.append(problem and f"{tvm.NAME} {problem}")
        candidates.append(on_gpu(tvm.NAME, peer, other.record))
    if onnxruntime.supports(device, case):
        session = onnxruntime.GroupQueryAttention(host)
        off = difference(session.first_output(), expected)
        notes.append(f"{onnxruntime.NAME} WRONG by {off:.2g}" if off > TOLERANCE[case.dtype] else "")
        candidates.append(session.candidate)
        closing.append(session)
    for label, related in _related(case):
        also = Decode(device, Pages(related))
        closing.append(also)
        candidates.append(on_gpu(label, device, also.record))
    result = await bench.compare(candidates)
    for made in closing:
        made.close()
    return _measured(case, result, ours.dispatches, [note for note in notes if note])


def _related(case: Case) -> list[tuple[str, Case]]:
    """Other cases to run beside one: f16 pages for int8, a quarter of the context for the longest."""
    found = []
    if case.dtype == "int8":
        found.append((OTHER_DTYPE, replace(case, dtype="f16")))
    if case.context == max(CONTEXTS):
        found.append((GROWTH, replace(case, context=case.context // 4)))
    return found


def _measured(case: Case, result: Comparison, dispatches: int, notes: list[str]) -> Row:
    ratios = {other: result.speedup("webkv", other) for other in result.costs if other != "webkv"}
    if GROWTH in ratios:
        ratios[GROWTH] *= 4  # four times the cost is linear
    rate = f"{case.kv_bytes / result.ms('webkv') / 1e6:.3g} GB/s"
    return Row(
        name(case), result.ms("webkv", "cpu"), result.ms("webkv", "wall"), rate,
        ratios, ", ".join(notes),
        {**case.facts, "dispatches": dispatches, "ms": {n: result.ms(n) for n in result.costs}},
    )  # fmt: skip
