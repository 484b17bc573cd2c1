"""Buffers, cached kernels, recorded work and read-back, on a real device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import device, read_array
from webkv.errors import DeviceError, DeviceLostError
from webkv.gpu import DEFAULT_LIMITS, Slice, open_device, shaders
from webkv.gpu.device import UNIFORM

DOUBLE = """
override FACTOR: f32 = 2.0;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> step: vec4<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < step.x) { y[id.x] = FACTOR * x[id.x]; }
}
"""


@pytest.fixture
def shader(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A shader named after the test, so that no other test's cached pipeline is met."""
    name = f"{request.node.name}"
    texts = {name: DOUBLE, "broken": "fn main( {"}
    monkeypatch.setattr(shaders, "_text", texts.__getitem__)
    return name


async def test_read_returns_what_was_written() -> None:
    gpu = await device()
    buffer = gpu.buffer(12, data=np.array([1, 2, 3], np.uint32))
    assert (await read_array(gpu, buffer, np.uint32, (3,))).tolist() == [1, 2, 3]


async def test_read_of_an_odd_size_at_an_offset() -> None:
    gpu = await device()
    buffer = gpu.buffer(8, data=bytes(range(8)))
    assert await gpu.read(buffer, 4, 3) == bytes([4, 5, 6])


async def test_dispatch_uses_overrides_and_uniform(shader: str) -> None:
    gpu = await device()
    x, y = gpu.buffer(16, data=np.arange(4, dtype=np.float32)), gpu.buffer(16)
    step = gpu.buffer(16, data=np.array([3, 0, 0, 0], np.uint32), usage=UNIFORM)
    kernel = gpu.kernel(shader, {"FACTOR": 10})
    with gpu.batch() as batch:
        batch.dispatch(kernel, kernel.bind(x, y, step), 1)
    assert (await read_array(gpu, y, np.float32, (4,))).tolist() == [0, 10, 20, 0]


async def test_repeating_work_makes_no_gpu_object(shader: str) -> None:
    gpu = await device()
    x, y = gpu.buffer(16), gpu.buffer(16)
    step = gpu.buffer(16, usage=UNIFORM)

    async def repeat() -> None:
        kernel = gpu.kernel(shader, {"FACTOR": 3})
        with gpu.batch() as batch:
            batch.dispatch(kernel, kernel.bind(x, y, step), 1)
        await gpu.read(y)

    await repeat()
    before = (gpu.created.buffers, gpu.created.bind_groups, gpu.created.pipelines)
    await repeat()
    assert (gpu.created.buffers, gpu.created.bind_groups, gpu.created.pipelines) == before


async def test_slices_of_one_buffer_bind_apart(shader: str) -> None:
    gpu = await device()
    x = gpu.buffer(512, data=np.arange(128, dtype=np.float32))
    y, step = gpu.buffer(16), gpu.buffer(16, data=np.array([4, 0, 0, 0], np.uint32), usage=UNIFORM)
    kernel = gpu.kernel(shader)
    with gpu.batch() as batch:
        batch.dispatch(kernel, kernel.bind(Slice(x, 256, 16), y, step), 1)
    assert (await read_array(gpu, y, np.float32, (4,))).tolist() == [128, 130, 132, 134]


async def test_released_buffer_leaves_no_bind_group(shader: str) -> None:
    gpu = await device()
    x, y, step = gpu.buffer(16), gpu.buffer(16), gpu.buffer(16, usage=UNIFORM)
    kernel = gpu.kernel(shader)
    kernel.bind(x, y, step)
    gpu.release(x)
    made = gpu.created.bind_groups
    kernel.bind(gpu.buffer(16), y, step)
    assert gpu.created.bind_groups == made + 1


async def test_broken_shader_is_a_named_error(shader: str) -> None:
    gpu = await device()
    with pytest.raises(DeviceError, match=r"expected identifier|broken"):
        gpu.kernel("broken")
        await gpu.fence()


async def test_oversized_buffer_names_label_and_limit() -> None:
    gpu = await device()
    with pytest.raises(DeviceError, match="'weights' needs 268435460 bytes, the device allows 268435456"):
        gpu.buffer((256 << 20) + 4, label="weights")


async def test_device_has_exactly_the_default_limits() -> None:
    gpu = await device()
    assert dict(gpu.facts.limits) == dict(DEFAULT_LIMITS)
    assert gpu.facts.features == frozenset()


async def test_lost_device_is_named_and_stays_lost() -> None:
    gpu = await open_device()
    buffer = gpu.buffer(4)
    gpu.raw.destroy()
    with pytest.raises(DeviceLostError):
        await gpu.read(buffer)
    with pytest.raises(DeviceLostError):
        gpu.buffer(4)
