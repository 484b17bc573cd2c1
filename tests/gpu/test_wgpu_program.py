"""A program written for wgpu-py alone: it runs over wgpu-native and, unchanged, in a page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import wgpu

import webkv.gpu  # noqa: F401  (in a page: makes wgpu work)

SAXPY = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
override A: f32;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = A * x[id.x] + y[id.x]; }
"""


async def open_raw() -> Any:
    adapter = await wgpu.gpu.request_adapter_async(power_preference="high-performance")
    return await adapter.request_device_async(label="a device")


def explicit_layouts(device: Any) -> tuple[Any, Any]:
    entries = [
        {"binding": 0, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": "read-only-storage"}},
        {"binding": 1, "visibility": "COMPUTE", "buffer": {"type": "storage"}},
    ]
    entries[1]["visibility"] = wgpu.ShaderStage.COMPUTE
    group = device.create_bind_group_layout(entries=entries)
    return group, device.create_pipeline_layout(bind_group_layouts=[group])


@pytest.mark.parametrize("layout", ["auto", "explicit"])
async def test_saxpy(layout: str) -> None:
    device = await open_raw()
    x, y = np.arange(128, dtype=np.float32), np.full(128, 0.5, np.float32)
    x_buffer = device.create_buffer_with_data(data=x, usage=wgpu.BufferUsage.STORAGE)
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    y_buffer = device.create_buffer(size=y.nbytes, usage=usage)
    device.queue.write_buffer(y_buffer, 0, y)
    group_layout, pipeline_layout = explicit_layouts(device)
    module = device.create_shader_module(code=SAXPY)
    pipeline = device.create_compute_pipeline(
        layout="auto" if layout == "auto" else pipeline_layout,
        compute={"module": module, "entry_point": "main", "constants": {"A": 2.0}},
    )
    if layout == "auto":
        group_layout = pipeline.get_bind_group_layout(0)
    buffers = [wgpu.BufferBinding(buffer=b, offset=0, size=b.size) for b in (x_buffer, y_buffer)]
    entries = [{"binding": i, "resource": binding} for i, binding in enumerate(buffers)]
    group = device.create_bind_group(layout=group_layout, entries=entries)
    encoder = device.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(pipeline)
    work.set_bind_group(0, group)
    work.dispatch_workgroups(2)
    work.end()
    read = device.create_buffer(size=512, usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST)
    encoder.copy_buffer_to_buffer(y_buffer, 0, read, 0, 512)
    device.queue.submit([encoder.finish()])
    await read.map_async(wgpu.MapMode.READ)
    assert np.array_equal(np.frombuffer(read.read_mapped(), np.float32), 2 * x + y)
    read.unmap()


async def test_pipeline_made_asynchronously() -> None:
    device = await open_raw()
    module = device.create_shader_module(code=SAXPY)
    stage = {"module": module, "entry_point": "main", "constants": {"A": 1.0}}
    pipeline = await device.create_compute_pipeline_async(layout="auto", compute=stage)
    assert isinstance(pipeline, wgpu.GPUComputePipeline)


async def test_mapped_write_and_clear() -> None:
    device = await open_raw()
    usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
    upload = device.create_buffer(size=16, usage=usage, mapped_at_creation=True)
    upload.write_mapped(np.arange(1, 5, dtype=np.uint32))
    upload.unmap()
    read = device.create_buffer(size=16, usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST)
    encoder = device.create_command_encoder()
    encoder.copy_buffer_to_buffer(upload, 0, read, 0, 16)
    encoder.clear_buffer(read, 8, 4)
    device.queue.submit([encoder.finish()])
    await read.map_async("READ")
    assert np.frombuffer(read.read_mapped(), np.uint32).tolist() == [1, 2, 0, 4]


async def test_unknown_limit_is_refused() -> None:
    adapter = await wgpu.gpu.request_adapter_async()
    with pytest.raises(KeyError, match="no-such-limit"):
        await adapter.request_device_async(required_limits={"no-such-limit": 1})


async def test_adapter_shows_wgpus_names() -> None:
    adapter = await wgpu.gpu.request_adapter_async()
    assert adapter.limits["max-buffer-size"] >= 256 << 20
    assert adapter.limits["max-compute-workgroup-size-x"] >= 256
    assert adapter.limits["max-texture-dimension-1d"] >= 8192
    assert {"vendor", "architecture", "device", "description", "adapter_type"} <= set(adapter.info)
