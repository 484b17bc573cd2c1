"""Rows of logits on the GPU, and the few numbers of them that the host wants."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from webkv.gpu import Batch, Device
from webkv.kernels.rows import new_rows
from webkv.kernels.select import MOST, argmax, blocks_bytes, picked_bytes, top_k
from webkv.sampling import CANDIDATES, Candidates


class Logits:
    """f32 `[rows][vocab]` in `values`, one row per sequence, and greedy and top-k choice on the GPU."""

    def __init__(self, device: Device, rows: int, vocab: int) -> None:
        self._device = device
        self.vocab = vocab
        self.values = new_rows(device, rows, vocab, "logits")
        self._blocks = device.buffer(blocks_bytes(rows, vocab), label="logits blocks")
        self._ids = device.buffer(4 * rows, label="greedy ids")
        self._k = min(CANDIDATES, MOST, vocab)
        self._picked = device.buffer(picked_bytes(rows, self._k), label="candidates")

    # `work`: the forward pass, recorded but not submitted; one submission does all.

    async def greedy(self, rows: int, work: Batch | None = None) -> npt.NDArray[np.uint32]:
        """Each row's most likely id, the lowest among equals; reads 4 bytes a row."""
        work = work or self._device.batch()
        argmax(
            work, logits=self.values.buffer, blocks=self._blocks, ids=self._ids, rows=rows, vocab=self.vocab
        )
        return np.frombuffer(await self._device.read(self._ids, 0, 4 * rows, work), np.uint32)

    async def candidates(self, rows: int, work: Batch | None = None) -> list[Candidates]:
        """Each row's `CANDIDATES` largest logits and the logsumexp of all; reads about 0.5 KB a row."""
        k, work = self._k, work or self._device.batch()
        top_k(
            work, logits=self.values.buffer, blocks=self._blocks, picked=self._picked, rows=rows,
            vocab=self.vocab, k=k,
        )  # fmt: skip
        data = await self._device.read(self._picked, 0, picked_bytes(rows, k), work)
        words = np.frombuffer(data, np.uint32).reshape(rows, 1 + 2 * k)
        floats = words.view(np.float32)
        return [
            Candidates(words[row, 1 : 1 + k].astype(np.int64), floats[row, 1 + k :], float(floats[row, 0]))
            for row in range(rows)
        ]

    async def full(self, rows: int, work: Batch | None = None) -> npt.NDArray[np.float32]:
        """All logits, `[rows][vocab]`."""
        data = await self._device.read(self.values.buffer, 0, 4 * rows * self.vocab, work)
        return np.frombuffer(data, np.float32).reshape(rows, self.vocab)
