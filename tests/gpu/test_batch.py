"""Recording, repeating and refusing work."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import device, read_array
from webkv.errors import DeviceError
from webkv.gpu.device import UNIFORM

COLS = {"COLS": 4}


async def test_kept_work_is_repeated() -> None:
    gpu = await device()
    x = gpu.buffer(16, data=np.array([1, 2, 3, 4], np.float32))
    y, step = gpu.buffer(16), gpu.buffer(16, data=np.array([1, 0, 0, 0], np.uint32), usage=UNIFORM)
    kernel = gpu.kernel("add", COLS)
    with gpu.batch() as batch:
        kept = batch.keep(lambda: batch.dispatch(kernel, kernel.bind(step, x, y), 1))
        batch.repeat(kept)
    with gpu.batch() as batch:
        batch.repeat(kept)
    assert (await read_array(gpu, y, np.float32, (4,))).tolist() == [3, 6, 9, 12]


async def test_a_bind_group_of_another_kernel_is_refused() -> None:
    gpu = await device()
    x, step = gpu.buffer(16, data=np.ones(4, np.float32)), gpu.buffer(16, usage=UNIFORM)
    kernel, other = gpu.kernel("add", COLS), gpu.kernel("gated_mul", COLS, {"activation": "silu"})
    group = kernel.bind(step, x, gpu.buffer(16))
    batch = gpu.batch()
    with pytest.raises(DeviceError, match="BindGroup"):
        batch.dispatch(other, group, 1)
        batch.submit()
        await gpu.fence()  # a page tells later
