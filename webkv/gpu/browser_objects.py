"""Buffers, bind groups, pipelines and the queue of the browser backend.  Pyodide only.

Each class holds its object's number in the JavaScript table (`_internal`) and frees it when Python drops the
object.  A dropped buffer is destroyed: JavaScript's collector does not see GPU memory, so it would wait.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from wgpu import _classes, flags
from wgpu._coreutils import str_flag_to_int

from webkv.gpu.browser_bridge import GPUPromise, Table
from webkv.gpu.browser_commands import GPUCommandBuffer, GPUCommandEncoder


def contiguous_bytes(data: Any) -> memoryview:
    """`data` as bytes, without a copy; `getBuffer` would give a wrong span of a strided array."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("the data must be C-contiguous")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class _Owned:
    """Frees its place in the table."""

    _internal: int

    def _release(self) -> None:
        if self._internal:
            Table.forget(self._internal)
            self._internal = 0


class GPUBuffer(_Owned, _classes.GPUBuffer):
    """A buffer; mapping copies between it and Python's memory."""

    _size: int
    _map_state: str
    _mapped = (0, 0)

    def map_async(self, mode: int | str, offset: int = 0, size: int | None = None) -> GPUPromise:
        bits = str_flag_to_int(flags.MapMode, mode) if isinstance(mode, str) else mode
        size = self._size - offset if size is None else size

        def mapped(_: Any) -> None:
            self._map_state, self._mapped = "mapped", (offset, size)

        promise = GPUPromise("buffer.map", mapped, keepalive=self)
        self._map_state = "pending"
        return promise.follow(Table.map(self._internal, bits, offset, size))

    def unmap(self) -> None:
        Table.unmap(self._internal)
        self._map_state = "unmapped"

    def _range(self, offset: int | None, size: int | None) -> Any:
        start, length = self._mapped
        offset = start if offset is None else offset
        size = start + length - offset if size is None else size
        return Table.range(self._internal, offset, size)

    def read_mapped(
        self, buffer_offset: int | None = None, size: int | None = None, *, copy: bool = True
    ) -> memoryview:
        return self._range(buffer_offset, size).to_memoryview()

    def write_mapped(self, data: Any, buffer_offset: int | None = None) -> None:
        view = memoryview(data)
        view = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        self._range(buffer_offset, view.nbytes).assign(view)

    def destroy(self) -> None:
        if self._internal:
            Table.destroy(self._internal)
        self._map_state = "unmapped"

    def _release(self) -> None:
        self.destroy()
        super()._release()


class GPUBindGroup(_Owned, _classes.GPUBindGroup):
    """Holds its buffers, because a dropped buffer is destroyed."""

    def __init__(self, label: str, internal: int, device: Any, keep: list[Any]) -> None:
        super().__init__(label, internal, device)
        self._keep = keep


class GPUBindGroupLayout(_Owned, _classes.GPUBindGroupLayout):
    pass


class GPUPipelineLayout(_Owned, _classes.GPUPipelineLayout):
    pass


class GPUShaderModule(_Owned, _classes.GPUShaderModule):
    def get_compilation_info_async(self) -> GPUPromise:
        # As natively: always empty.  What is wrong with a shader arrives as a validation error.
        promise = GPUPromise("shader.compilation_info", None)
        promise._wgpu_set_input([])
        return promise


class GPUComputePipeline(_Owned, _classes.GPUComputePipeline):
    def get_bind_group_layout(self, index: int) -> GPUBindGroupLayout:
        return GPUBindGroupLayout("", Table.layout_of(self._internal, index), self._device)


class GPUQuerySet(_Owned, _classes.GPUQuerySet):
    def destroy(self) -> None:
        Table.destroy(self._internal)


class GPUQueue(_classes.GPUQueue):
    """The queue; it shares its device's number."""

    def submit(self, command_buffers: Sequence[GPUCommandBuffer]) -> None:
        words: list[int] = []
        for buffer in command_buffers:
            words += buffer.take()
        try:
            flat = array("I", words)
        except OverflowError as error:
            raise _classes.GPUValidationError(f"a command's operand is outside 0..2^32-1: {error}") from None
        Table.submit(self._internal, flat)
        for buffer in command_buffers:
            buffer._keep.clear()

    def write_buffer(
        self, buffer: Any, buffer_offset: int, data: Any, data_offset: int = 0, size: int | None = None
    ) -> None:
        view = contiguous_bytes(data)
        if data_offset or size is not None:
            view = view[data_offset : None if size is None else data_offset + size]
        if view.nbytes:
            Table.write(self._internal, buffer._internal, buffer_offset, view)

    def read_buffer(self, buffer: Any, buffer_offset: int = 0, size: int | None = None) -> memoryview:
        size = buffer.size - buffer_offset if size is None else size
        usage = flags.BufferUsage.MAP_READ | flags.BufferUsage.COPY_DST
        staging = self._device.create_buffer(size=size, usage=usage)
        encoder = self._device.create_command_encoder()
        encoder.copy_buffer_to_buffer(buffer, buffer_offset, staging, 0, size)
        self.submit([encoder.finish()])
        staging.map_async("READ").sync_wait()
        return staging.read_mapped()

    def on_submitted_work_done_async(self) -> GPUPromise:
        return GPUPromise("queue.on_submitted_work_done", lambda _: None).follow(Table.done(self._internal))


class GPUDevice(_Owned, _classes.GPUDevice):
    """A device.  Its validation errors arrive later, at the functions given to `watch`."""

    _internal: int

    def create_buffer(
        self, *, label: str = "", size: int, usage: int | str, mapped_at_creation: bool = False
    ) -> GPUBuffer:
        bits = str_flag_to_int(flags.BufferUsage, usage) if isinstance(usage, str) else usage
        number = Table.buffer(self._internal, label, size, bits, mapped_at_creation)
        made = GPUBuffer(label, number, self, size, bits, "mapped" if mapped_at_creation else "unmapped")
        made._mapped = (0, size)
        return made

    def create_buffer_with_data(self, *, label: str = "", data: Any, usage: int | str) -> GPUBuffer:
        view = contiguous_bytes(data)
        size = max(4, (view.nbytes + 3) & ~3)
        made = self.create_buffer(label=label, size=size, usage=usage, mapped_at_creation=True)
        made.write_mapped(bytes(view).ljust(size, b"\0"))
        made.unmap()
        return made

    def create_bind_group_layout(
        self, *, label: str = "", entries: Sequence[Mapping[str, Any]]
    ) -> GPUBindGroupLayout:
        names = {"has_dynamic_offset": "hasDynamicOffset", "min_binding_size": "minBindingSize"}
        listed = []
        for entry in entries:
            buffer = {names.get(k, k): v for k, v in dict(entry["buffer"]).items()}
            visible = entry["visibility"]
            bits = str_flag_to_int(flags.ShaderStage, visible) if isinstance(visible, str) else visible
            listed.append({"binding": entry["binding"], "visibility": bits, "buffer": buffer})
        return GPUBindGroupLayout(label, Table.group_layout(self._internal, label, json.dumps(listed)), self)

    def create_pipeline_layout(
        self,
        *,
        label: str = "",
        bind_group_layouts: Sequence[GPUBindGroupLayout],
        immediate_size: int = 0,
    ) -> GPUPipelineLayout:
        numbers = json.dumps([layout._internal for layout in bind_group_layouts])
        return GPUPipelineLayout(label, Table.pipeline_layout(self._internal, label, numbers), self)

    def create_bind_group(
        self, *, label: str = "", layout: GPUBindGroupLayout, entries: Sequence[Mapping[str, Any]]
    ) -> GPUBindGroup:
        flat, keep = array("d"), []
        for entry in entries:
            resource = entry["resource"]
            whole = isinstance(resource, GPUBuffer)
            buffer = resource if whole else resource["buffer"]
            offset = 0 if whole else resource.get("offset") or 0
            size = 0 if whole else resource.get("size") or 0
            flat.extend((entry["binding"], buffer._internal, offset, size))
            keep.append(buffer)
        return GPUBindGroup(label, Table.group(self._internal, label, layout._internal, flat), self, keep)

    def create_shader_module(
        self, *, label: str = "", code: str, compilation_hints: Any = ()
    ) -> GPUShaderModule:
        return GPUShaderModule(label, Table.shader(self._internal, label, code), self)

    def _stage(self, label: str, layout: Any, compute: Mapping[str, Any]) -> tuple[Any, ...]:
        constants = json.dumps(dict(compute.get("constants") or {}))
        number = 0 if layout == "auto" else layout._internal
        module = compute["module"]._internal
        return (self._internal, label, number, module, compute.get("entry_point") or "", constants)

    def create_compute_pipeline(
        self, *, label: str = "", layout: Any, compute: Mapping[str, Any]
    ) -> GPUComputePipeline:
        return GPUComputePipeline(label, Table.pipeline(*self._stage(label, layout, compute)), self)

    def create_compute_pipeline_async(
        self, *, label: str = "", layout: Any, compute: Mapping[str, Any]
    ) -> GPUPromise:
        promise = GPUPromise("compute_pipeline", lambda number: GPUComputePipeline(label, number, self))
        return promise.follow(Table.pipeline_async(*self._stage(label, layout, compute)))

    def create_command_encoder(self, *, label: str = "") -> GPUCommandEncoder:
        return GPUCommandEncoder(label, self)

    def create_query_set(self, *, label: str = "", type: str, count: int) -> GPUQuerySet:
        number = Table.query_set(self._internal, label, type, count)
        return GPUQuerySet(label, number, self, type, count)

    def push_error_scope(self, filter: str) -> None:
        """Collect errors of one kind: "validation", "out-of-memory" or "internal".  Not in wgpu-py's API."""
        Table.push_scope(self._internal, filter)

    def pop_error_scope_async(self) -> GPUPromise:
        """The scope's first error as [kind, message], or None.  Not in wgpu-py's API."""
        return GPUPromise("device.pop_error_scope", json.loads).follow(Table.pop_scope(self._internal))

    def destroy(self) -> None:
        Table.destroy(self._internal)
