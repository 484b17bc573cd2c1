"""Rows of activations on the GPU, and how kernels bind them.

A software adapter loads a uniform binding twice as fast as a storage binding (measured on lavapipe: 45 against
92 cycles for a vec4 of 8 lanes, because it checks the bounds of storage loads lane by lane), so matmul reads its
input there through windows of 64 KiB, WebGPU's default limit of a uniform binding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import wgpu

from webkv.gpu import Device, Slice
from webkv.gpu.device import STORAGE, UNIFORM

WINDOW_BYTES = 65536
ALIGNMENT = 256  # WebGPU's minUniformBufferOffsetAlignment


@dataclass(frozen=True, eq=False)
class Rows:
    """f32 `[rows][cols]`, from row `first` of `buffer` on.

    `bases`: uniform u32x4 entries, 256 bytes apart: the number of the first row of each window.
    """

    buffer: wgpu.GPUBuffer
    bases: wgpu.GPUBuffer
    first: int
    rows: int
    cols: int
    window: int

    @property
    def storage(self) -> Slice:
        """These rows as a storage binding."""
        return Slice(self.buffer, self.first * self.cols * 4, self.rows * self.cols * 4)

    def part(self, first: int, rows: int) -> Rows:
        """Rows `first .. first + rows - 1`; they must start at a multiple of 256 bytes."""
        assert first >= 0 and first + rows <= self.rows
        assert (self.first + first) * self.cols * 4 % ALIGNMENT == 0, "rows start at no multiple of 256 bytes"
        return Rows(self.buffer, self.bases, self.first + first, rows, self.cols, self.window)

    def inputs(self, n: int) -> Iterator[tuple[int, Slice, Slice]]:
        """(rows, rows' binding, base entry) of each window of the first `n` rows."""
        if not self.window:
            yield n, self.storage, Slice(self.bases, 0, 16)
            return
        for index, first in enumerate(range(0, n, self.window)):
            offset = (self.first + first) * self.cols * 4
            base = Slice(self.bases, index * ALIGNMENT, 16)
            yield min(self.window, n - first), Slice(self.buffer, offset, WINDOW_BYTES), base


def new_rows(device: Device, rows: int, cols: int, label: str) -> Rows:
    """Zeroed rows; readable through uniform windows on software adapters where four rows fit in one."""
    window = WINDOW_BYTES // (cols * 4) // 4 * 4
    if device.facts.adapter_type != "CPU" or window * cols * 4 % ALIGNMENT:
        window = 0
    count = -(-rows // window) if window else 1
    bases = np.zeros((count, ALIGNMENT // 4), np.uint32)
    bases[:, 0] = np.arange(count) * window
    slack = WINDOW_BYTES if window else 0  # the last window may start at the last row
    buffer = device.buffer(rows * cols * 4 + slack, label=label, usage=STORAGE | UNIFORM)
    return Rows(
        buffer, device.buffer(bases.nbytes, label=label, data=bases, usage=UNIFORM), 0, rows, cols, window
    )


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

    @property
    def plain(self) -> Rows:
        """x."""
        return self.both.part(0, self.rows)

    @property
    def scaled(self) -> Rows:
        """x times the gain."""
        return self.both.part(self.rows, self.rows)


def new_stream(device: Device, rows: int, cols: int, label: str) -> Stream:
    """A zeroed stream of at least `rows` rows."""
    rows = -(-rows // 16) * 16  # so that both halves start at a multiple of 256 bytes (cols is one of 4)
    return Stream(new_rows(device, 2 * rows, cols, label))
