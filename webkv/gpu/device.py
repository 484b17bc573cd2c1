"""One GPU device: buffers, kernels, recorded work and read-back, on wgpu's API only.

The same code runs over wgpu-native and, in a browser page, over `navigator.gpu`; only how a device is opened
differs (`native.py`, `browser.py`).  After warm-up a repeated step makes no buffer, bind group or pipeline:
all three are cached here, and `Device.created` counts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import wgpu

from webkv.errors import DeviceError, DeviceLostError
from webkv.gpu.batch import Batch, PassCalls
from webkv.gpu.shaders import shader_source

# WebGPU's defaults (the specification, "Limits"): what every conforming adapter grants.
DEFAULT_LIMITS: Mapping[str, int] = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-buffer-size": 256 << 20,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-workgroups-per-dimension": 65535,
    "max-uniform-buffer-binding-size": 65536,
}
STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
UNIFORM = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
_TEXTURE = wgpu.TextureUsage.STORAGE_BINDING | wgpu.TextureUsage.COPY_SRC | wgpu.TextureUsage.COPY_DST
_LOST = re.compile(r"\bdevice\b.*\b(lost|destroyed)\b", re.IGNORECASE)
_READ = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST


@dataclass(frozen=True)
class DeviceFacts:
    """What is fixed for a device's life.  Kernel variants depend on this and on lengths, on nothing else."""

    name: str
    backend: str
    adapter_type: str
    limits: Mapping[str, int]
    features: frozenset[str]

    @property
    def subgroups_of_8(self) -> bool:
        """llvmpipe runs 8 lanes of 32 bits at once, as its name says: "llvmpipe (LLVM 15.0.6, 256 bits)"."""
        return "subgroup" in self.features and "llvmpipe" in self.name and "256 bits" in self.name


@dataclass
class Created:
    """How many GPU objects were made so far."""

    buffers: int = 0
    bind_groups: int = 0
    pipelines: int = 0


@dataclass(frozen=True)
class Slice:
    """`size` bytes of a buffer from `offset` (a multiple of 256), to bind instead of the whole buffer."""

    buffer: wgpu.GPUBuffer
    offset: int
    size: int


@dataclass(eq=False)
class Kernel:
    """A compute pipeline and the bind groups made for it so far."""

    name: str
    pipeline: wgpu.GPUComputePipeline
    device: Device
    _groups: dict[tuple[int, ...], wgpu.GPUBindGroup] = field(default_factory=dict)
    _layout: Any = None

    def bind(self, *resources: wgpu.GPUBuffer | wgpu.GPUTextureView | Slice | None) -> wgpu.GPUBindGroup:
        """The bind group with `resources` at bindings 0, 1, 2, ... (None: not bound), made once."""
        key: list[int] = []
        for r in resources:
            # uids are never reused, as the ids of dropped buffers are.
            key += (r.buffer.uid, r.offset, r.size) if isinstance(r, Slice) else (0 if r is None else r.uid,)
        found = self._groups.get(tuple(key))
        return found if found is not None else self._make_group(tuple(key), resources)

    def _make_group(
        self, key: tuple[int, ...], resources: Iterable[wgpu.GPUBuffer | wgpu.GPUTextureView | Slice | None]
    ) -> wgpu.GPUBindGroup:
        if self._layout is None:
            self._layout = self.pipeline.get_bind_group_layout(0)
        entries = []
        for binding, r in enumerate(resources):
            if r is None:
                continue
            entries.append({"binding": binding, "resource": _resource(r)})
        raw, layout = self.device.raw, self._layout
        group = self.device.guard(lambda: raw.create_bind_group(layout=layout, entries=entries))
        self.device.created.bind_groups += 1
        self._groups[key] = group
        return group

    def forget(self, buffer: wgpu.GPUBuffer) -> None:
        """Drop the bind groups that hold `buffer`, and so the buffer itself."""
        for key in [k for k in self._groups if buffer.uid in k]:
            del self._groups[key]


def _resource(r: wgpu.GPUBuffer | wgpu.GPUTextureView | Slice) -> Any:
    if isinstance(r, wgpu.GPUTextureView):
        return r
    s = r if isinstance(r, Slice) else Slice(r, 0, r.size)
    return {"buffer": s.buffer, "offset": s.offset, "size": s.size}


class Device:
    """A GPU device and everything made on it.  Open one with `webkv.gpu.open_device`."""

    def __init__(
        self,
        raw: wgpu.GPUDevice,
        facts: DeviceFacts,
        pass_calls: Callable[[wgpu.GPUComputePassEncoder], PassCalls] = lambda encoder: encoder,
        map_mode: str = "READ",
    ) -> None:
        self.raw = raw
        self.pass_calls = pass_calls
        self.map_mode = map_mode
        self.queue = raw.queue
        self.facts = facts
        self.created = Created()
        self.lost: str | None = None
        self.failure: str | None = None
        self._kernels: dict[tuple[object, ...], Kernel] = {}
        self._staging: dict[int, list[wgpu.GPUBuffer]] = {}
        self._fence: wgpu.GPUBuffer | None = None

    def guard(self, call: Any) -> Any:
        """Run `call`, turning wgpu's errors into `DeviceError` or `DeviceLostError`."""
        self.check()
        try:
            return call()
        except (wgpu.GPUError, RuntimeError) as error:
            raise self.translate(error) from error

    def translate(self, error: Exception) -> DeviceError:
        """The named error for one that wgpu raised; notes the loss of the device."""
        text = " ".join(str(error).split())
        if _LOST.search(text):
            self.lost = self.lost or text
            return DeviceLostError(f"the GPU device was lost: {text}")
        return DeviceError(f"the GPU refused: {text}")

    def check(self, keep: bool = False) -> None:
        """Raise if the device was lost or an asynchronous validation error arrived (browser).

        Such an error is told once.  `keep` leaves it to be told again, to whoever asked for the work that
        was refused.
        """
        if self.lost is not None:
            raise DeviceLostError(f"the GPU device was lost: {self.lost}")
        if self.failure is not None:
            failure = self.failure
            self.failure = failure if keep else None
            raise DeviceError(f"the GPU refused: {failure}")

    def buffer(self, size: int, *, label: str = "", data: Any = None, usage: int = STORAGE) -> wgpu.GPUBuffer:
        """A buffer of `size` bytes (rounded up to 4), zeroed, or holding `data` (C-contiguous) at its start.

        Raises `DeviceError` naming the label when `size` is over the device's limits.
        """
        size = max(4, (size + 3) & ~3)
        limit = self.facts.limits["max-buffer-size"]
        if size > limit:
            raise DeviceError(f"buffer {label!r} needs {size} bytes, the device allows {limit}")
        made = self.guard(lambda: self.raw.create_buffer(size=size, usage=usage, label=label))
        self.created.buffers += 1
        if data is not None:
            self.write(made, data)
        return made

    def texture(self, width: int, height: int, label: str) -> wgpu.GPUTextureView:
        """A texture of `height` rows of `width` texels, 16 bytes each, that kernels only read."""
        size, usage = (width, height, 1), _TEXTURE
        made = self.guard(
            lambda: self.raw.create_texture(size=size, format="rgba32uint", usage=usage, label=label)
        )
        view: wgpu.GPUTextureView = made.create_view()
        return view

    def write(self, buffer: wgpu.GPUBuffer, data: Any, offset: int = 0) -> None:
        """Queue a write of `data` (any C-contiguous buffer, a multiple of 4 bytes) at byte `offset`."""
        view = data if isinstance(data, bytes) else np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        if len(view):
            self.guard(lambda: self.queue.write_buffer(buffer, offset, view))

    def release(self, buffer: wgpu.GPUBuffer) -> None:
        """Destroy a buffer and every bind group that holds it."""
        for kernel in self._kernels.values():
            kernel.forget(buffer)
        buffer.destroy()

    def kernel(
        self,
        shader: str,
        constants: Mapping[str, float] | None = None,
        imports: Mapping[str, str] | None = None,
    ) -> Kernel:
        """The pipeline of `shaders/<shader>.wgsl` with these override constants; compiled once."""
        constants, imports = constants or {}, imports or {}
        key = (shader, *sorted(constants.items()), *sorted(imports.items()))
        found = self._kernels.get(key)
        if found is not None:
            return found
        source = shader_source(shader, imports)
        values = {k: float(v) for k, v in constants.items()}

        def make() -> wgpu.GPUComputePipeline:
            module = self.raw.create_shader_module(code=source, label=shader)
            compute = {"module": module, "entry_point": "main", "constants": values}
            return self.raw.create_compute_pipeline(layout="auto", compute=compute, label=shader)

        made = Kernel(shader, self.guard(make), self)
        self.created.pipelines += 1
        self._kernels[key] = made
        return made

    def batch(self) -> Batch:
        """An empty list of GPU work; see `Batch`."""
        self.check()
        return Batch(self)

    async def read(
        self, buffer: wgpu.GPUBuffer, offset: int = 0, size: int | None = None, work: Batch | None = None
    ) -> bytes:
        """Read `size` bytes at `offset` back, after all submitted work; staging buffers are reused.

        `work`: recorded, not yet submitted work to do first; it is submitted together with the copy.
        """
        size = buffer.size - offset if size is None else size
        padded = (size + 3) & ~3
        staging = self._take_staging(padded)
        with work or self.batch() as batch:
            batch.copy(buffer, offset, staging, 0, padded)
        try:
            await staging.map_async(self.map_mode)
            self.check()
            data = bytes(staging.read_mapped(0, padded)[:size])
            staging.unmap()
        except (wgpu.GPUError, RuntimeError) as error:
            raise self.translate(error) from error
        self._staging[staging.size].append(staging)
        return data

    async def fence(self, work: Batch | None = None) -> None:
        """Wait until the GPU has done all submitted work, and `work`, which is submitted first."""
        # A tiny read-back: wgpu-py's on_submitted_work_done raises natively.
        if self._fence is None:
            self._fence = self.buffer(4, label="fence")
        await self.read(self._fence, work=work)

    def _take_staging(self, size: int) -> wgpu.GPUBuffer:
        size = max(256, 1 << (size - 1).bit_length()) if size else 256
        free = self._staging.setdefault(size, [])
        return free.pop() if free else self.buffer(size, label="staging", usage=_READ)

    def destroy(self) -> None:
        """Give the device back; every later use raises `DeviceLostError`."""
        self.lost = self.lost or "destroyed by its owner"
        self.raw.destroy()
        if hasattr(self.raw, "_poll"):
            # wgpu-native's destroy ends the thread that would tell those who wait in `read`.
            self.raw._poll_wait()
