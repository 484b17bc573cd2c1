"""RMSNorm against its twin."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.test_matmul import filled, step_of
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
