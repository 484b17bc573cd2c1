"""Elementwise kernels against their twins; rows past n stay."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.test_matmul import filled, step_of, stream_of
from tests.support import device, random, read_array
from webkv.kernels import activation, reference


@pytest.mark.parametrize("name", ["silu_mul", "gelu_mul"])
@pytest.mark.parametrize(("n", "cols"), [(1, 4), (3, 260), (2, 1536)])
async def test_gated_product_is_its_twin(name: str, n: int, cols: int) -> None:
    gpu = await device()
    gate, up = random(1, n, cols) * 6, random(2, n, cols)
    gate[0, :3] = -90, 90, 0
    y = filled(gpu, np.full((n, cols), np.nan))
    with gpu.batch() as batch:
        getattr(activation, name)(
            batch, gate=filled(gpu, gate), up=filled(gpu, up), y=y, step=step_of(gpu, n), n=n
        )
    got = await read_array(gpu, y.buffer, np.float32, (n + 1, cols))
    assert np.allclose(got[:n], getattr(reference, name)(gate, up), rtol=1e-5, atol=1e-5)
    assert np.isnan(got[n:]).all()


async def test_add_is_its_twin() -> None:
    gpu = await device()
    x, y = random(3, 3, 96), random(4, 3, 96)
    rows = filled(gpu, y)
    with gpu.batch() as batch:
        activation.add(batch, x=filled(gpu, x), y=rows, step=step_of(gpu, 3), n=3)
    got = await read_array(gpu, rows.buffer, np.float32, (4, 96))
    assert (got[:3] == reference.add(y, x)).all() and np.isnan(got[3]).all()


async def test_gather_rows_takes_both_halves_of_a_stream() -> None:
    gpu = await device()
    x, gain = random(5, 20, 96), random(6, 96)
    y = stream_of(gpu, np.full((2, 96), np.nan, np.float32), gain)
    indices = np.array([19, 4], np.uint32)
    with gpu.batch() as batch:
        activation.gather_rows(
            batch, x=stream_of(gpu, x, gain), y=y, indices=gpu.buffer(8, data=indices),
            step=step_of(gpu, 2), n=2,
        )  # fmt: skip
    got = await read_array(gpu, y.both.buffer, np.float32, (2, y.rows, 96))
    assert (got[0, :2] == reference.gather_rows(x, indices)).all()
    assert (got[1, :2] == reference.gather_rows(x, indices) * gain).all()
    assert np.isnan(got[:, 2:]).all()
