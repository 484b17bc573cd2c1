"""Moving bytes between pages when sequences change: copies of partial pages, and tree compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items

import numpy as np
import wgpu

from webkv.cache.config import CacheConfig
from webkv.cache.layers import Layer
from webkv.cache.tree import MAX_TREE_SIZE
from webkv.gpu import Device
from webkv.kernels.pages import compact_kv, copy_pages

_COPIES = 64
"""Page copies of one dispatch."""

TokenMoves = list[list[tuple[int, int]]]
"""Per sequence, (source, destination) as page * page_tokens + slot."""


class PageMoves:
    """Does what the sequence manager asks for, at once, on every layer of a group.

    `changed` is told the number of a group and the pages of it that get other bytes.
    """

    def __init__(
        self,
        device: Device,
        config: CacheConfig,
        layers: dict[int, Layer],
        changed: Callable[[int, Iterable[int]], None],
    ) -> None:
        self._device = device
        self._changed, self._tokens = changed, config.page_tokens
        self._groups = [[layers[number] for number in group.layers] for group in config.groups]
        self._sequences = config.reserved_num_seqs
        self._copies = [self._device.buffer(12 * _COPIES, label="page copies") for _ in self._groups]
        self._moves: list[tuple[wgpu.GPUBuffer, wgpu.GPUBuffer]] = []

    def copy(self, copies: Items[Items[tuple[int, int, int]]]) -> None:
        """Copy (source page, destination page, valid slots), one list per group."""
        for at, (layers, buffer, wanted) in enumerate(zip(self._groups, self._copies, copies, strict=True)):
            self._changed(at, [to for _, to, _ in wanted])
            for start in range(0, len(wanted), _COPIES):
                part = np.array(wanted[start : start + _COPIES], np.int32)
                self._device.write(buffer, part)
                with self._device.batch() as batch:
                    for layer in layers:
                        copy_pages(
                            batch, pages=layer.pages, copies=buffer, count=len(part), shape=layer.shape
                        )

    def compact(self, moves: Items[TokenMoves]) -> None:
        """Move tokens, one list per group of one list per sequence, each in order."""
        for at, (layers, wanted) in enumerate(zip(self._groups, moves, strict=True)):
            parts = [part for part in wanted if part]
            if not parts:
                continue
            self._changed(at, [to // self._tokens for part in parts for _, to in part])
            pairs, indptr = self._buffers()[at]
            counts = np.cumsum([0, *map(len, parts)]).astype(np.int32)
            self._device.write(pairs, np.array([pair for part in parts for pair in part], np.int32))
            self._device.write(indptr, counts)
            with self._device.batch() as batch:
                for layer in layers:
                    compact_kv(
                        batch, pages=layer.pages, moves=pairs, move_indptr=indptr, sequences=len(parts),
                        shape=layer.shape,
                    )  # fmt: skip

    def _buffers(self) -> list[tuple[wgpu.GPUBuffer, wgpu.GPUBuffer]]:
        if not self._moves:
            size, device = self._sequences, self._device
            self._moves = [
                (
                    device.buffer(8 * MAX_TREE_SIZE * size, label="token moves"),
                    device.buffer(4 * (size + 1), label="token move indptr"),
                )
                for _ in self._groups
            ]
        return self._moves
