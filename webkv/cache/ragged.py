"""Index arrays that only the parts of attention need: the new rows alone, and the pages before them."""

from __future__ import annotations

import numpy as np
import wgpu

from webkv.cache.aux_data import StepViews
from webkv.cache.config import CacheConfig
from webkv.cache.layers import Layer
from webkv.cache.step import Step
from webkv.gpu import Device
from webkv.kernels.shape import PageTable


class RaggedArrays:
    """Buffers made when first used, and written when first used in a step."""

    def __init__(self, device: Device, config: CacheConfig) -> None:
        self._device = device
        self._config = config
        self._buffers: dict[str, wgpu.GPUBuffer] = {}
        self._written: dict[str, Step] = {}

    def _buffer(self, name: str, ints: int) -> wgpu.GPUBuffer:
        if name not in self._buffers:
            self._buffers[name] = self._device.buffer(4 * ints, label=name)
        return self._buffers[name]

    def new_rows(self, step: Step, views: StepViews) -> PageTable:
        """The step's rows as pages of one token each, page r being row r."""
        seqs, rows = self._config.reserved_num_seqs, self._config.prefill_chunk_size
        fresh = "row_indices" not in self._buffers
        indices, info = self._buffer("row_indices", rows), self._buffer("row_length_info", 4 * seqs)
        if fresh:
            self._device.write(indices, np.arange(rows, dtype=np.int32))
        if self._written.get("rows") is not step:
            numbers = np.zeros((4, len(step.sequences)), np.int32)
            numbers[0], numbers[3] = 1, step.before
            self._device.write(info, numbers)
            self._written["rows"] = step
        return PageTable(views.qo_indptr, indices, info)

    def past(self, step: Step, layer: Layer) -> PageTable:
        """The pages of `layer` with the tokens before the step alone."""
        config, at = self._config, layer.at
        seqs, pages = config.reserved_num_seqs, config.num_pages(layer.group)
        indptr = self._buffer(f"{at}.past_page_indptr", seqs + 1)
        indices = self._buffer(f"{at}.past_page_indices", seqs * pages)
        info = self._buffer(f"{at}.past_length_info", 4 * seqs)
        if self._written.get(f"{at}.past") is not step:
            for buffer, array in zip((indptr, indices, info), self._past_arrays(step, at), strict=True):
                self._device.write(buffer, array)
            self._written[f"{at}.past"] = step
        return PageTable(indptr, indices, info)

    def _past_arrays(self, step: Step, at: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokens = self._config.page_tokens
        slots = np.array([s.slots - n for s, n in zip(step.sequences, step.lengths, strict=True)])
        lists = [
            found.pages[at].view[: -(-int(used) // tokens) - found.pages[at].first_block]
            for found, used in zip(step.sequences, slots, strict=True)
        ]
        indptr = np.zeros(len(lists) + 1, np.int32)
        np.cumsum([len(pages) for pages in lists], out=indptr[1:])
        info = step.groups[at].length_info.copy()
        info[0] = np.where(slots > 0, (slots - 1) % tokens + 1, 0)
        return indptr, np.concatenate(lists), info
