"""GPU work recorded in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import wgpu

if TYPE_CHECKING:
    from webkv.gpu.device import Device, Kernel

TEXEL = 16
"""Bytes of a texel of the textures that kernels read."""

Dispatch: TypeAlias = "tuple[Kernel, wgpu.GPUBindGroup, int, int, int]"


class PassCalls(Protocol):
    """What a batch calls on a compute pass."""

    def set_pipeline(self, pipeline: wgpu.GPUComputePipeline, /) -> None: ...

    def set_bind_group(self, index: int, group: wgpu.GPUBindGroup, /) -> None: ...

    def dispatch_workgroups(self, x: int, y: int, z: int, /) -> None: ...


class Batch:
    """GPU work recorded in order and submitted at once; `with device.batch() as b:` submits at its end."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.dispatches = 0
        self._encoder: Any = None
        self._pass: Any = None
        self._calls: PassCalls | None = None
        self._pipeline: Any = None
        self._kept: list[Dispatch] | None = None

    def dispatch(self, kernel: Kernel, group: wgpu.GPUBindGroup, x: int, y: int = 1, z: int = 1) -> None:
        """Run `kernel` on x*y*z workgroups; nothing if one of them is 0."""
        if not (x and y and z):
            return
        limit = self.device.facts.limits["max-compute-workgroups-per-dimension"]
        assert max(x, y, z) <= limit, f"{kernel.name}: {x}x{y}x{z} workgroups"
        if self._pass is None:
            self._pass = self._commands().begin_compute_pass()
            self._calls = self.device.pass_calls(self._pass)
            self._pipeline = None
        calls = self._calls
        assert calls is not None
        if kernel is not self._pipeline:
            calls.set_pipeline(kernel.pipeline)
            self._pipeline = kernel
        calls.set_bind_group(0, group)
        calls.dispatch_workgroups(x, y, z)
        self.dispatches += 1
        if self._kept is not None:
            self._kept.append((kernel, group, x, y, z))

    def keep(self, record: Callable[[], None]) -> list[Dispatch]:
        """Run `record`, and return what it dispatched here, for `repeat`."""
        assert self._kept is None
        kept = self._kept = []
        try:
            record()
        finally:
            self._kept = None
        return kept

    def repeat(self, kept: Iterable[Dispatch]) -> None:
        """Dispatch the same work again."""
        for dispatch in kept:
            self.dispatch(*dispatch)

    def copy(
        self, src: wgpu.GPUBuffer, src_offset: int, dst: wgpu.GPUBuffer, dst_offset: int, size: int
    ) -> None:
        """Copy `size` bytes (offsets and size multiples of 4) between two different buffers."""
        self._end_pass()
        self._commands().copy_buffer_to_buffer(src, src_offset, dst, dst_offset, size)

    def copy_to_texture(
        self,
        src: wgpu.GPUBuffer,
        offset: int,
        dst: wgpu.GPUTextureView,
        at: tuple[int, int],
        size: tuple[int, int],
    ) -> None:
        """Copy whole rows, or a part of one, to the texels from (x, y) `at` on; `size`: (texels, rows).

        `offset`: a multiple of 16.
        """
        self._end_pass()
        pitch = -(-TEXEL * size[0] // 256) * 256  # wgpu-py wants a multiple of 256 for a single row, too
        source = {"buffer": src, "offset": offset, "bytes_per_row": pitch}
        target = {"texture": dst.texture, "origin": (*at, 0)}
        self._commands().copy_buffer_to_texture(source, target, (*size, 1))

    def submit(self) -> None:
        """Hand the recorded work to the queue; the batch is empty again."""
        self._end_pass()
        if self._encoder is None:
            return
        encoder, self._encoder = self._encoder, None
        self.device.guard(lambda: self.device.queue.submit([encoder.finish()]))

    def _commands(self) -> Any:
        if self._encoder is None:
            self._encoder = self.device.guard(self.device.raw.create_command_encoder)
        return self._encoder

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.end()
            self._pass = None

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.submit()
