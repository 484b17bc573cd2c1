"""RMSNorm, alone, before a sum and per head, against its twins."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.test_matmul import filled, step_of, stream_of
from tests.support import device, random, read_array
from webkv.kernels import norm, reference


async def normed(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    gpu = await device()
    n, cols = x.shape
    y = filled(gpu, np.full((n, cols), np.nan))
    with gpu.batch() as batch:
        norm.rms_norm(
            batch, x=filled(gpu, x), weight=gpu.buffer(4 * cols, data=weight), y=y, eps=eps,
            step=step_of(gpu, n), n=n,
        )  # fmt: skip
    return await read_array(gpu, y.buffer, np.float32, (n, cols))


@pytest.mark.parametrize(("n", "cols"), [(1, 4), (3, 64), (2, 100), (5, 576)])
async def test_rms_norm_is_its_twin(n: int, cols: int) -> None:
    x, weight = random(1, n, cols) * 7, random(2, cols)
    assert np.allclose(await normed(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), atol=1e-5)


async def test_a_row_is_normed_alone() -> None:
    x, weight = random(3, 4, 96), random(4, 96)
    together = await normed(x, weight, 1e-5)
    assert together[2].tobytes() == (await normed(x[2:3], weight, 1e-5))[0].tobytes()


async def added(x: np.ndarray, weight: np.ndarray, y: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    """Both halves of the stream, its unused rows too."""
    gpu = await device()
    n, cols = x.shape
    stream = stream_of(gpu, y, gain)
    with gpu.batch() as batch:
        norm.norm_add(
            batch, x=filled(gpu, x), weight=gpu.buffer(4 * cols, data=weight), stream=stream,
            gain=gpu.buffer(4 * cols, data=gain), eps=eps, step=step_of(gpu, n), n=n,
        )  # fmt: skip
    return await read_array(gpu, stream.both.buffer, np.float32, (2, stream.rows, cols))


@pytest.mark.parametrize(("n", "cols"), [(1, 4), (3, 100), (5, 640)])
async def test_norm_add_is_its_twin_and_scales_for_the_next_norm(n: int, cols: int) -> None:
    x, weight, y, gain = random(1, n, cols) * 7, random(2, cols), random(3, n, cols), random(4, cols)
    got = await added(x, weight, y, gain, 1e-6)
    assert np.allclose(got[0, :n], reference.norm_add(x, weight, y, 1e-6), atol=1e-5)
    assert (got[1, :n] == got[0, :n] * gain).all()
    assert np.isnan(got[:, n:]).all()


async def test_a_row_is_normed_and_added_alone() -> None:
    x, weight, y, gain = random(5, 4, 96), random(6, 96), random(7, 4, 96), random(8, 96)
    together = await added(x, weight, y, gain, 1e-5)
    alone = await added(x[2:3], weight, y[2:3], gain, 1e-5)
    assert together[:, 2].tobytes() == alone[:, 0].tobytes()


async def head_normed(rows: np.ndarray, weights: np.ndarray, q_heads: int, kv_heads: int) -> np.ndarray:
    gpu = await device()
    n, width = rows.shape
    on_gpu = filled(gpu, rows)
    with gpu.batch() as batch:
        norm.head_norm(
            batch, rows=on_gpu, weights=gpu.buffer(weights.nbytes, data=weights), q_heads=q_heads,
            kv_heads=kv_heads, head_dim=weights.shape[1], eps=1e-6, step=step_of(gpu, n), n=n,
        )  # fmt: skip
    return await read_array(gpu, on_gpu.buffer, np.float32, (n + 1, width))


@pytest.mark.parametrize(("n", "q_heads", "kv_heads", "dim"), [(1, 4, 1, 256), (3, 6, 2, 32), (2, 1, 1, 100)])
async def test_head_norm_is_its_twin_and_leaves_values_and_other_rows(
    n: int, q_heads: int, kv_heads: int, dim: int
) -> None:
    rows, weights = random(1, n, (q_heads + 2 * kv_heads) * dim) * 5, random(2, 2, dim)
    got = await head_normed(rows, weights, q_heads, kv_heads)
    assert np.allclose(got[:n], reference.head_norm(rows, weights, q_heads, kv_heads, 1e-6), atol=1e-5)
    values = (q_heads + kv_heads) * dim
    assert got[:n, values:].tobytes() == rows[:, values:].tobytes()
    assert np.isnan(got[n]).all()


async def test_heads_of_a_row_are_normed_alone() -> None:
    rows, weights = random(3, 4, 4 * 64), random(4, 2, 64)
    together = await head_normed(rows, weights, 2, 1)
    assert together[2].tobytes() == (await head_normed(rows[2:3], weights, 2, 1))[0].tobytes()
