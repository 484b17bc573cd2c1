"""Copies of pages in textures for attention to read, on devices where that is faster than their buffers.

The buffers stay the truth: everything that writes pages writes them there and says so here, and what
attention is about to read is copied again where it changed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from webkv.cache.config import CacheConfig
from webkv.cache.layers import Layer
from webkv.cache.step import Step
from webkv.gpu import Batch
from webkv.kernels.shape import PageSource
from webkv.kernels.texels import closed_blocks, copy_to_texture

Ids = NDArray[np.int32]
_NONE: Ids = np.empty(0, np.int32)


class PageTextures:
    """Which pages of which layer's texture are not as in its buffer; every page in the beginning.

    Copies are recorded in the batch that reads them, which is submitted before the step ends.
    """

    def __init__(self, config: CacheConfig, layers: dict[int, Layer]) -> None:
        self._tokens = config.page_tokens
        self._stale: list[NDArray[np.bool_] | None] = []
        self._rows: dict[int, NDArray[np.bool_]] = {}
        for group in config.groups:
            textured = layers[group.layers[0]].texture is not None
            size = (len(group.layers), config.num_pages(group))
            stale = np.ones(size, np.bool_) if textured else None
            self._stale.append(stale)
            if stale is not None:
                self._rows |= dict(zip(group.layers, stale, strict=True))
        self._closed = [_NONE] * len(self._stale)
        self._written = [_NONE] * len(self._stale)
        self._copied: list[tuple[NDArray[np.bool_], Ids]] = []

    def changed(self, at: int, pages: Iterable[int]) -> None:
        """The buffers of group `at` have, or are about to get, other bytes in `pages`."""
        stale = self._stale[at]
        if stale is not None:
            stale[:, list(pages)] = True

    def begin(self, step: Step) -> None:
        """A step opens; what decode of it will read is known now."""
        self._copied.clear()
        for at, (stale, arrays) in enumerate(zip(self._stale, step.groups, strict=True)):
            if stale is None:
                continue
            self._written[at] = arrays.append_position_map // self._tokens
            closed = self._closed_pages(step, at) if arrays.max_tiles > 1 else _NONE
            self._closed[at] = closed[stale[:, closed].any(axis=0)]

    def abort(self) -> None:
        """Forget what was copied since `begin`, as nobody may ever submit it."""
        for row, pages in self._copied:
            row[pages] = True
        self._copied.clear()

    def closed(self, batch: Batch, layer: Layer) -> None:
        """Copy what decode of the open step will read in `layer`."""
        if self._closed[layer.at].size:
            self._copy(batch, layer, self._closed[layer.at])

    def appended(self, layer: Layer) -> None:
        """The step's new tokens are about to be written to the buffer of `layer`."""
        row = self._rows.get(layer.number)
        if row is not None:
            row[self._written[layer.at]] = True

    def source(self, batch: Batch, layer: Layer, step: Step) -> PageSource:
        """Where prefill reads the step's sequences in `layer`."""
        if layer.texture is None:
            return layer.pages
        self._copy(batch, layer, step.groups[layer.at].page_indices)
        return layer.texture

    def _copy(self, batch: Batch, layer: Layer, pages: Ids) -> None:
        row = self._rows[layer.number]
        stale = np.unique(pages[row[pages]])
        if stale.size:
            assert layer.texture is not None
            copy_to_texture(batch, layer.pages, layer.texture, layer.page_bytes, stale)
            row[stale] = False
            self._copied.append((row, stale))

    def _closed_pages(self, step: Step, at: int) -> Ids:
        parts = [
            found.pages[at].view[: closed_blocks(found.pages[at].first_block, found.slots, self._tokens)]
            for found in step.sequences
        ]
        return np.concatenate(parts)
