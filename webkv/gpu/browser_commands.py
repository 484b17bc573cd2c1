"""Command encoders of the browser backend: recorded as integers, replayed by one JavaScript call.

A decode step of 300 dispatches takes well under a millisecond to replay; one crossing per command would cost
several times that.  The codes are those of `web/gpu.js`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wgpu import _classes

_ENCODER, _PASS, _END, _PIPELINE, _GROUP, _DISPATCH, _INDIRECT, _COPY, _CLEAR, _RESOLVE, _FINISH = range(11)


class _Labels:
    """Debug labels say nothing to a browser; they are accepted and dropped."""

    def push_debug_group(self, group_label: str) -> None:
        pass

    def pop_debug_group(self) -> None:
        pass

    def insert_debug_marker(self, marker_label: str) -> None:
        pass


class GPUComputePassEncoder(_Labels, _classes.GPUComputePassEncoder):
    """Records into its encoder's list.  `_keep` holds every object named there until it is submitted."""

    def __init__(self, label: str, encoder: GPUCommandEncoder, device: Any) -> None:
        super().__init__(label, 0, device)
        self._words = encoder._words
        self._keep = encoder._keep

    def set_pipeline(self, pipeline: Any) -> None:
        self._words += (_PIPELINE, pipeline._internal)
        self._keep.append(pipeline)

    def set_bind_group(
        self,
        index: int,
        bind_group: Any,
        dynamic_offsets_data: Sequence[int] = (),
        dynamic_offsets_data_start: int | None = None,
        dynamic_offsets_data_length: int | None = None,
    ) -> None:
        offsets = dynamic_offsets_data
        if dynamic_offsets_data_start is not None or dynamic_offsets_data_length is not None:
            start = dynamic_offsets_data_start or 0
            length = dynamic_offsets_data_length
            offsets = offsets[start : None if length is None else start + length]
        self._words += (_GROUP, index, bind_group._internal, len(offsets), *offsets)
        self._keep.append(bind_group)

    def dispatch_workgroups(
        self, workgroup_count_x: int, workgroup_count_y: int = 1, workgroup_count_z: int = 1
    ) -> None:
        self._words += (_DISPATCH, workgroup_count_x, workgroup_count_y, workgroup_count_z)

    def dispatch_workgroups_indirect(self, indirect_buffer: Any, indirect_offset: int) -> None:
        self._words += (_INDIRECT, indirect_buffer._internal, indirect_offset)
        self._keep.append(indirect_buffer)

    def end(self) -> None:
        self._words.append(_END)


class GPUCommandBuffer(_classes.GPUCommandBuffer):
    """A finished list of commands; JavaScript sees it when it is submitted."""

    def __init__(self, label: str, encoder: GPUCommandEncoder, device: Any) -> None:
        super().__init__(label, 0, device)
        self._words: list[int] | None = encoder._words
        self._keep = encoder._keep

    def take(self) -> list[int]:
        """The commands, once: a command buffer is used up by submitting it."""
        if self._words is None:
            raise _classes.GPUValidationError("the command buffer was submitted before")
        words, self._words = self._words, None
        return words


class GPUCommandEncoder(_Labels, _classes.GPUCommandEncoder):
    """Records buffer copies and compute passes."""

    def __init__(self, label: str, device: Any) -> None:
        super().__init__(label, 0, device)
        self._words: list[int] = [_ENCODER]
        self._keep: list[Any] = []

    def begin_compute_pass(self, *, label: str = "", timestamp_writes: Any = None) -> GPUComputePassEncoder:
        query_set, begin, end = 0, 0, 0
        if timestamp_writes:
            query_set = timestamp_writes["query_set"]._internal
            self._keep.append(timestamp_writes["query_set"])
            first = timestamp_writes.get("beginning_of_pass_write_index")
            last = timestamp_writes.get("end_of_pass_write_index")
            begin, end = (0 if i is None else i + 1 for i in (first, last))
        self._words += (_PASS, query_set, begin, end)
        return GPUComputePassEncoder(label, self, self._device)

    def copy_buffer_to_buffer(
        self,
        source: Any,
        source_offset: int,
        destination: Any,
        destination_offset: int,
        size: int | None = None,
    ) -> None:
        size = source.size - source_offset if size is None else size
        operands = (source._internal, source_offset, destination._internal, destination_offset, size)
        self._words += (_COPY, *operands)
        self._keep += (source, destination)

    def clear_buffer(self, buffer: Any, offset: int = 0, size: int | None = None) -> None:
        self._words += (_CLEAR, buffer._internal, offset, buffer.size - offset if size is None else size)
        self._keep.append(buffer)

    def resolve_query_set(
        self, query_set: Any, first_query: int, query_count: int, destination: Any, destination_offset: int
    ) -> None:
        operands = (first_query, query_count, destination._internal, destination_offset)
        self._words += (_RESOLVE, query_set._internal, *operands)
        self._keep += (query_set, destination)

    def finish(self, *, label: str = "") -> GPUCommandBuffer:
        self._words.append(_FINISH)
        return GPUCommandBuffer(label, self, self._device)
