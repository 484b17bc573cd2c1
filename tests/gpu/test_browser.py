"""What only a page's WebGPU does: errors that come later, memory that moves, a device that goes away."""

from __future__ import annotations

import asyncio
import gc
import sys

import numpy as np
import pytest
import wgpu

from tests.support import device, read_array
from webkv.errors import DeviceError, DeviceLostError
from webkv.gpu import open_device

pytestmark = pytest.mark.skipif(sys.platform != "emscripten", reason="runs in a page")
if sys.platform == "emscripten":
    from pyodide.code import run_js

    from webkv.gpu.browser_bridge import Table, named_error


async def test_a_wrong_command_is_named_at_the_next_read() -> None:
    gpu = await device()
    small, large = gpu.buffer(16, label="small"), gpu.buffer(64, label="large")
    with gpu.batch() as batch:
        batch.copy(large, 0, small, 0, 64)
    with pytest.raises(DeviceError, match="small"):
        await gpu.read(large)
    assert await gpu.read(large) == bytes(64)  # the error is told once; the device goes on


async def test_an_operand_beyond_32_bits_is_refused() -> None:
    gpu = await device()
    buffer, other = gpu.buffer(16), gpu.buffer(16)
    with pytest.raises(DeviceError, match="operand"):  # noqa: SIM117
        with gpu.batch() as batch:
            batch.copy(buffer, 1 << 40, other, 0, 16)


async def test_too_large_a_mapped_buffer_is_out_of_memory() -> None:
    gpu = await device()
    with pytest.raises(DeviceError, match="out of memory"):
        gpu.guard(
            lambda: gpu.raw.create_buffer(
                size=(256 << 20) * 4096, usage=wgpu.BufferUsage.COPY_SRC, mapped_at_creation=True
            )
        )


def test_error_kinds_are_wgpus() -> None:
    assert isinstance(named_error("GPUOutOfMemoryError", "x"), wgpu.GPUOutOfMemoryError)
    assert isinstance(named_error("GPUValidationError", "x"), wgpu.GPUValidationError)
    assert isinstance(named_error("GPUInternalError", "x"), wgpu.GPUInternalError)
    assert "lost" in str(named_error("AbortError", "x"))


async def test_error_scope_catches_what_the_device_would_report() -> None:
    gpu = await device()
    gpu.raw.push_error_scope("validation")
    gpu.raw.create_buffer(size=16, usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.STORAGE)
    kind, _ = await gpu.raw.pop_error_scope_async()
    assert kind == "GPUValidationError"
    assert gpu.failure is None


async def test_a_lost_device_is_known_without_a_call() -> None:
    gpu = await open_device()
    run_js("(device) => device.destroy()")(Table.object(gpu.raw._internal))
    while gpu.lost is None:
        await asyncio.sleep(0.01)
    with pytest.raises(DeviceLostError, match="destroyed"):
        gpu.batch()


async def test_pending_read_of_a_lost_device_is_named() -> None:
    gpu = await open_device()
    read = gpu.read(gpu.buffer(1 << 20))
    waiting = asyncio.ensure_future(read)
    await asyncio.sleep(0)
    gpu.raw.destroy()
    with pytest.raises(DeviceLostError):
        await waiting


async def test_strided_data_is_refused_and_copied_by_the_device() -> None:
    gpu = await device()
    rows = np.arange(64, dtype=np.float32).reshape(8, 8)
    buffer = gpu.buffer(32)
    with pytest.raises(ValueError, match="C-contiguous"):
        gpu.queue.write_buffer(buffer, 0, rows[:, 3])
    gpu.write(buffer, rows[:, 3])
    assert np.array_equal(await read_array(gpu, buffer, np.float32, (8,)), rows[:, 3])


async def test_half_precision_data_is_written_as_bytes() -> None:
    gpu = await device()
    values = np.array([1.5, -2.0, 65504.0, 0.0], np.float16)
    buffer = gpu.buffer(8)
    gpu.queue.write_buffer(buffer, 0, values)
    assert np.array_equal(await read_array(gpu, buffer, np.float16, (4,)), values)


async def test_writes_stay_right_while_the_heap_grows() -> None:
    gpu = await device()
    buffer, held = gpu.buffer(1 << 20), []
    for value in range(8):
        gpu.write(buffer, np.full(1 << 18, value, np.uint32))
        held.append(np.ones(8 << 20, np.uint8))
        assert set(np.frombuffer(await gpu.read(buffer), np.uint32)) == {value}


async def test_dropped_buffers_are_destroyed_and_their_numbers_used_again() -> None:
    gpu = await device()
    gc.collect()
    first = gpu.raw.create_buffer(size=16, usage=wgpu.BufferUsage.STORAGE)
    number = first._internal
    del first
    gc.collect()
    second = gpu.raw.create_buffer(size=16, usage=wgpu.BufferUsage.STORAGE)
    assert second._internal == number


async def test_a_bind_group_keeps_its_buffers() -> None:
    gpu = await device()
    code = "@group(0) @binding(0) var<storage, read_write> y: array<u32>;"
    code += "@compute @workgroup_size(1) fn main() { y[0] = 7u; }"
    stage = {"module": gpu.raw.create_shader_module(code=code), "entry_point": "main"}
    pipeline = gpu.raw.create_compute_pipeline(layout="auto", compute=stage)
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffer = gpu.raw.create_buffer(size=16, usage=usage)
    number = buffer._internal
    entries = [{"binding": 0, "resource": {"buffer": buffer}}]
    group = gpu.raw.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    del buffer, entries
    gc.collect()
    assert gpu.raw.create_buffer(size=16, usage=usage)._internal != number
    del group


async def test_blocking_calls_work_where_the_page_can_switch_stacks() -> None:
    adapter = wgpu.gpu.request_adapter_sync()
    raw = adapter.request_device_sync()
    usage = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    buffer = raw.create_buffer_with_data(data=b"abcdefgh", usage=usage)
    assert bytes(raw.queue.read_buffer(buffer, 4)) == b"efgh"


async def test_wgpus_own_stub_cannot_take_the_backends_place() -> None:
    from wgpu.backends.auto import gpu as automatic

    assert automatic is wgpu.gpu
    assert [type(a).__module__ for a in await automatic.enumerate_adapters_async()] == [
        type(wgpu.gpu).__module__
    ]
