"""Rows of activations on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import wgpu

from webkv.gpu import Device, Slice
from webkv.gpu.device import STORAGE, UNIFORM

ALIGNMENT = 256  # WebGPU's minStorageBufferOffsetAlignment


@dataclass(eq=False)
class Rows:
    """f32 `[rows][cols]`, from row `first` of `buffer` on; `texture`: where a matmul keeps a copy to read."""

    buffer: wgpu.GPUBuffer
    first: int
    rows: int
    cols: int
    texture: wgpu.GPUTextureView | None = None

    @cached_property
    def storage(self) -> Slice:
        """These rows as a storage binding."""
        return Slice(self.buffer, self.first * self.cols * 4, self.rows * self.cols * 4)

    def part(self, first: int, rows: int) -> Rows:
        """Rows `first .. first + rows - 1`; they must start at a multiple of 256 bytes."""
        assert first >= 0 and first + rows <= self.rows
        assert (self.first + first) * self.cols * 4 % ALIGNMENT == 0, "rows start at no multiple of 256 bytes"
        return Rows(self.buffer, self.first + first, rows, self.cols)


def new_rows(device: Device, rows: int, cols: int, label: str) -> Rows:
    """Zeroed rows."""
    buffer = device.buffer(rows * cols * 4, label=label, usage=STORAGE | UNIFORM)
    return Rows(buffer, 0, rows, cols)


@dataclass(frozen=True, eq=False)
class Stream:
    """The residual stream x, and beside it x times the gain of the norm that reads it next.

    With it, `W rms_norm(x)` is `W (gain * x)` over x's root mean square, one scalar per row, so a norm costs
    its matmul nothing per weight.
    """

    both: Rows

    @property
    def rows(self) -> int:
        """How many rows of x there are."""
        return self.both.rows // 2

    @cached_property
    def plain(self) -> Rows:
        """x."""
        return self.both.part(0, self.rows)

    @cached_property
    def scaled(self) -> Rows:
        """x times the gain."""
        return self.both.part(self.rows, self.rows)


def new_stream(device: Device, rows: int, cols: int, label: str) -> Stream:
    """A zeroed stream of at least `rows` rows."""
    rows = -(-rows // 16) * 16  # so that both halves start at a multiple of 256 bytes (cols is one of 4)
    return Stream(new_rows(device, 2 * rows, cols, label))
