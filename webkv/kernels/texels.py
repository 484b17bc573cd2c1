"""Copies of pages in textures, for devices that load those faster than buffers (see `webkv.kernels.planes`).

The texture of a buffer of pages holds the same bytes at the same places, in rows of 16 KiB.
"""

from __future__ import annotations

from math import lcm

import numpy as np
import wgpu

from webkv.gpu import TEXEL, Batch, Device
from webkv.kernels.planes import LARGEST
from webkv.kernels.variants import kv_tiles

WIDTH = 1024
"""Texels in a row: 8192 rows, WebGPU's default limit, are the 128 MiB of the largest default binding."""

MOST_BYTES = WIDTH * LARGEST * TEXEL
"""Pages that one texture holds."""

_TURNS = 32  # slots after which both quads of a workgroup may end; see quad_tile
_LEAST_OPEN = 64


def page_texture(device: Device, nbytes: int, label: str) -> wgpu.GPUTextureView:
    """A texture, of zeros, for `nbytes` bytes of pages.  Raises `DeviceError`."""
    return device.texture(WIDTH, -(-nbytes // (WIDTH * TEXEL)), label)


def copy_to_texture(
    batch: Batch, pages: wgpu.GPUBuffer, texture: wgpu.GPUTextureView, page_bytes: int, ids: np.ndarray
) -> None:
    """Copy the pages `ids` (ascending) from their buffer; `page_bytes` is a multiple of 16."""
    size = page_bytes // TEXEL
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    for run in np.split(ids, breaks):
        if len(run):
            _copy_texels(batch, pages, texture, int(run[0]) * size, (int(run[-1]) + 1) * size)


def _copy_texels(
    batch: Batch, pages: wgpu.GPUBuffer, texture: wgpu.GPUTextureView, start: int, end: int
) -> None:
    """The rest of a row, whole rows at once, and the beginning of a row."""
    while start < end:
        x, y = start % WIDTH, start // WIDTH
        rows = (end - start) // WIDTH if x == 0 else 0
        width = WIDTH if rows else min(WIDTH - x, end - start)
        batch.copy_to_texture(pages, TEXEL * start, texture, (x, y), (width, max(rows, 1)))
        start += width * max(rows, 1)


def open_tokens(page_tokens: int) -> int:
    """How many tokens are closed at once; see `closed_blocks`."""
    unit = lcm(page_tokens, _TURNS)
    return unit * -(-_LEAST_OPEN // unit)


def closed_blocks(first_block: int, slots: int, page_tokens: int) -> int:
    """How many pages of a sequence, from `first_block` on, `attend_decode` reads from its `closed`.

    `slots`: the end of the last block's slots, counted from block 0.
    """
    if kv_tiles(first_block * page_tokens, slots) <= 1:
        return 0
    step = open_tokens(page_tokens)
    return max(0, (slots - 1) // step * step // page_tokens - first_block)
