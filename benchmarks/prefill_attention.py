"""How much of the device's arithmetic does prefill attention use, and how far ahead of TVM's kernel is it?"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import numpy as np

from benchmarks.attention import BATCHES, CONFIGS, CONTEXTS, DTYPES, Case, OnDevice, Pages, too_large, wrong
from benchmarks.harness import Bench, Comparison, Goal, Row, on_gpu
from benchmarks.limit import Multiplier
from benchmarks.peers import tvm
from webkv.gpu import Batch, Device
from webkv.kernels.attention import attend_prefill

QUESTION = "How much of the multiply-add peak does prefill attention reach?"
PEAK = "fma peak"
CHUNK = 256
"""New rows of a chunk whose last row sees the whole context."""

QUICK = (
    Case("9/3x64", "f32", 512, rows=512), Case("9/3x64", "f16", 512, rows=512),
    Case("9/3x64", "f16", 1024, rows=128), Case("9/3x64", "int8", 1024, rows=128),
    Case("32/8x64", "f32", 512, rows=64), Case("32/8x64", "f16", 512, rows=64),
    Case("32/8x128", "f32", 512, rows=64), Case("32/8x128", "f16", 512, rows=64),
    Case("4/1x256", "f32", 1024, rows=128), Case("4/1x256", "f16", 1024, rows=128),
    Case("4/1x256", "int8", 1024, rows=128),
)  # fmt: skip
FULL = tuple(
    Case(config, dtype, context, batch, rows=min(CHUNK, context))
    for config in CONFIGS for dtype in DTYPES for batch in BATCHES for context in CONTEXTS
)  # fmt: skip
PEER_SECONDS = {False: 4.0, True: 20.0}
"""TVM's kernel runs only where one call should take no longer than this, by whether the whole grid runs."""

PEER_FLOPS = {"f32": 0.2e9, "f16": 0.35e9}
"""TVM's speed on a software adapter, per core; only decides which rows it is left out of."""


def _of(dtype: str | None, least_context: int = 0) -> Callable[[Row], bool]:
    return lambda row: dtype in (None, row.facts["dtype"]) and row.facts["context"] >= least_context


GOALS = (
    Goal(PEAK, 0.25, "median, f32, context >= 512", _of("f32", 512)),
    Goal(PEAK, 0.35, "median, f16, context >= 512", _of("f16", 512)),
    Goal(tvm.NAME, 40, "median", _of(None)),
)


class Prefill:
    """webkv's prefill attention over a case's pages."""

    def __init__(self, device: Device, host: Pages) -> None:
        self._case, self._on = host.case, OnDevice(device, host)
        self._shape = host.case.shape
        self._new = host.new_pages()
        self.out, self.numpy_dtype = self._on.out, np.float32

    def record(self, batch: Batch) -> None:
        """One chunk of one layer."""
        on = self._on
        pages = on.source(batch, self._new)
        attend_prefill(
            batch, q=on.q, pages=pages, table=on.table, qo_indptr=on.index["qo_indptr"], out=on.out,
            sequences=self._case.batch, max_rows=self._case.rows, shape=self._shape, q_stride=on.q_stride,
        )  # fmt: skip

    def close(self) -> None:
        """Free its buffers."""
        self._on.close()


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """One row per case: webkv against the multiply-add peak and TVM."""
    peer = await tvm.open_peer(bench.device, bench.needs)
    multiplier = Multiplier(bench.device, 5e8 if bench.software else 5e10)
    for case in FULL if bench.full else QUICK:
        bench.say(f"prefill {name(case)}")
        skipped = too_large(case, bench.largest_binding)
        if skipped:
            yield Row(name(case), note=skipped, facts=case.facts)
        else:
            yield await _row(bench, peer, multiplier, case)
    multiplier.close()
    if peer is not None:
        peer.destroy()


def name(case: Case) -> str:
    """A case in the table's words."""
    return f"{case.config} {case.dtype} {case.rows} of {case.context} x{case.batch}"


async def _row(bench: Bench, peer: Device | None, multiplier: Multiplier, case: Case) -> Row:
    host, device = Pages(case), bench.device
    expected = host.expected()
    ours = Prefill(device, host)
    begun = time.perf_counter()
    notes = [await wrong(device, ours, expected, case.dtype)]
    first_s = time.perf_counter() - begun
    candidates = [on_gpu("webkv", device, ours.record), on_gpu(PEAK, device, multiplier.record)]
    closing: list[Prefill | tvm.TvmAttention] = [ours]
    if peer is not None and tvm.supports(peer, case):
        if bench.software and case.flop / PEER_FLOPS[case.dtype] / 2 > PEER_SECONDS[bench.full]:
            notes.append(f"{tvm.NAME} left out: too slow")
        else:
            other = tvm.TvmAttention(peer, host, "prefill")
            closing.append(other)
            problem = await wrong(peer, other, expected, case.dtype)
            if problem:
                # llvmpipe ends loops after 65535 turns: a workgroup with many tiles leaves rows out.
                notes.append(f"{tvm.NAME} left out: {problem.lower() if bench.software else problem}")
            else:
                candidates.append(on_gpu(tvm.NAME, peer, other.record))
    result = await bench.compare(candidates)
    for made in closing:
        made.close()
    row = _measured(case, result, multiplier.flop, [note for note in notes if note])
    return replace(row, facts={**row.facts, "first_use_s": round(first_s, 3)})


def _measured(case: Case, result: Comparison, peak_flop: float, notes: list[str]) -> Row:
    # Both did different amounts of work, so the share of the peak is per flop.
    ratios = {PEAK: result.speedup("webkv", PEAK) * case.flop / peak_flop}
    if tvm.NAME in result.costs:
        ratios[tvm.NAME] = result.speedup("webkv", tvm.NAME)
    rate = f"{case.flop / result.ms('webkv') / 1e6:.3g} GFLOP/s"
    ms = {n: result.ms(n) for n in result.costs}
    return Row(
        name(case), result.ms("webkv", "cpu"), result.ms("webkv", "wall"), rate, ratios, ", ".join(notes),
        {**case.facts, "ms": ms},
    )  # fmt: skip
