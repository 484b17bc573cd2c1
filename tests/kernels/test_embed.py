"""Embedding rows straight from quantised blocks, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.test_matmul import step_of, stream_of
from tests.kernels.test_quant import dequantised, quantised
from tests.support import device, random, read_array
from webkv.gpu import Device
from webkv.kernels import embed, quant, reference
from webkv.kernels.quant import Weight


async def embedded(gpu: Device, table: Weight, ids: np.ndarray, gain: np.ndarray, scale: float) -> np.ndarray:
    n = len(ids)
    stream = stream_of(gpu, np.full((n, table.cols), np.nan, np.float32), gain)
    with gpu.batch() as batch:
        embed.embed(
            batch, ids=gpu.buffer(4 * n, data=ids), table=table, gain=gpu.buffer(gain.nbytes, data=gain),
            stream=stream, step=step_of(gpu, n), n=n, scale=scale,
        )  # fmt: skip
    got = await read_array(gpu, stream.both.buffer, np.float32, (2, stream.rows, table.cols))
    assert np.isnan(got[:, n:]).all()
    return got[:, :n]


@pytest.mark.parametrize("kind", quant.SUPPORTED)
async def test_rows_are_ggmls_values_exactly(kind: str) -> None:
    gpu = await device()
    raw = quantised(kind, 21, 256)
    ids, gain = np.array([20, 0, 7, 7, 13], np.uint32), random(1, 256)
    got = await embedded(gpu, quant.upload(gpu, "e", kind, raw, 21, 256), ids, gain, 1.0)
    want = reference.embed(ids, dequantised(kind, raw))
    assert np.array_equal(got[0], want)
    assert np.array_equal(got[1], want * gain)


async def test_scale_and_a_table_in_parts() -> None:
    gpu = await device()
    raw = quantised("Q8_0", 40, 96)
    pieces = [quant.upload(gpu, "e", "Q8_0", raw[a:b], b - a, 96).parts[0] for a, b in ((0, 16), (16, 40))]
    parts = tuple(quant.Part(first, p.rows, p.planes) for first, p in zip((0, 16), pieces, strict=True))
    ids = np.array([15, 16, 39, 0], np.uint32)
    got = await embedded(gpu, Weight("q8", 40, 96, parts), ids, np.ones(96, np.float32), 8.0)
    assert np.array_equal(got[0], reference.embed(ids, dequantised("Q8_0", raw), 8.0))
