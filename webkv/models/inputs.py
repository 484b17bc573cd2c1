"""What a forward pass is given by the host, in one buffer that one write fills."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webkv.gpu import Device, Slice
from webkv.gpu.device import STORAGE, UNIFORM

_ALIGNMENT = 256


class Inputs:
    """Token ids, row counts, and the number of each sequence's last row.

    `step`, `last_step`: uniform u32x4 with the number of rows, and of last rows.  `ids[rows]`,
    `last[sequences]`: u32.
    """

    def __init__(self, device: Device, rows: int, sequences: int) -> None:
        self._device = device
        self._last_at = 2 * _ALIGNMENT
        self._ids_at = self._last_at + -(-4 * sequences // _ALIGNMENT) * _ALIGNMENT
        size = self._ids_at + 4 * rows
        self._buffer = device.buffer(size, label="inputs", usage=STORAGE | UNIFORM)
        self._words = np.zeros(size // 4, np.uint32)
        self.step = Slice(self._buffer, 0, 16)
        self.last_step = Slice(self._buffer, _ALIGNMENT, 16)
        self.last = Slice(self._buffer, self._last_at, 4 * sequences)
        self.ids = Slice(self._buffer, self._ids_at, 4 * rows)

    def write(self, tokens: Sequence[int], last: Sequence[int]) -> None:
        """Queue the write of `tokens` and of the rows `last` whose logits are wanted."""
        words = self._words
        words[0] = len(tokens)
        words[_ALIGNMENT // 4] = len(last)
        words[self._last_at // 4 : self._last_at // 4 + len(last)] = last
        end = self._ids_at // 4 + len(tokens)
        words[self._ids_at // 4 : end] = tokens
        self._device.write(self._buffer, words[:end])
