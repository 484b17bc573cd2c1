"""Matrix times one row, for every kind of weights: how close to one plain read of their bytes?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gguf
import numpy as np

from benchmarks.harness import Bench, Candidate, Goal, Row, on_gpu
from benchmarks.limit import Reader
from webkv.gpu import Batch
from webkv.gpu.device import UNIFORM
from webkv.kernels.matmul import matmul
from webkv.kernels.quant import SUPPORTED, Weight, upload
from webkv.kernels.rows import new_rows

QUESTION = "How close is a matrix times one row to one plain read of the matrix?"
READ = "a plain read of the weights"
GOALS = (Goal(READ, 0.6, "every kind of weights", lambda row: True, min),)
COLS = 2048
BYTES = {False: 8 << 20, True: 64 << 20}
ROWS_OF_X = 16


def bytes_of_row(kind: str, cols: int) -> int:
    """Bytes of one row of `cols` weights in GGUF files."""
    per_block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return cols // per_block * size


def weights_of(bench: Bench, kind: str) -> tuple[Weight, int]:
    """A matrix of about `BYTES` small weights of that kind, and its bytes."""
    row_bytes = bytes_of_row(kind, COLS)
    rows = BYTES[bench.full] // row_bytes // 64 * 64
    raw: Any = np.zeros(rows * row_bytes, np.uint8)  # times do not depend on the values
    return upload(bench.device, kind, kind, raw, rows, COLS), rows * row_bytes


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """One row per kind of weights."""
    for kind in SUPPORTED:
        bench.say(f"{kind} weights")
        yield await against_read(bench, kind)


async def against_read(bench: Bench, kind: str) -> Row:
    """One product against one read of as many bytes."""
    device = bench.device
    weight, nbytes = weights_of(bench, kind)
    x, y = new_rows(device, ROWS_OF_X, COLS, "x"), new_rows(device, 1, weight.rows, "y")
    step = device.buffer(16, label="step", data=np.array([1, 0, 0, 0], np.uint32), usage=UNIFORM)
    source = device.buffer(nbytes, label="as many bytes")
    reader = Reader(device, source, "f32")

    def record(batch: Batch) -> None:
        matmul(batch, x=x, weight=weight, y=y, step=step, n=1)

    work: list[Candidate] = [on_gpu(READ, device, reader.record), on_gpu(kind, device, record)]
    compared = await bench.compare(work)
    reader.close()
    for buffer in (x.buffer, y.buffer, step, source):
        device.release(buffer)
    return Row(
        f"{kind} {weight.rows}x{COLS}", compared.ms(kind, "cpu"), compared.ms(kind, "wall"),
        f"{nbytes / compared.ms(kind) / 1e6:.2f} GB/s", {READ: compared.speedup(kind, READ)},
    )  # fmt: skip
