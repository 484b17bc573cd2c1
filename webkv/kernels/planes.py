"""Where a weight's planes lie: in buffers, or in textures where a device loads those faster.

Mesa's llvmpipe runs a load from a storage buffer as a loop over its lanes with a branch or more for each, and
one from a read-only storage texture as straight code: about 2.5 times as fast for 16 bytes per lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import wgpu

from webkv.gpu import Device

Plane: TypeAlias = "wgpu.GPUBuffer | wgpu.GPUTextureView"
Words = npt.NDArray[np.uint32]

GATHERED = 8
"""Neighbouring tiles whose quants lie together, block by block: one stream of loads rather than eight."""

SIDES = 4
"""Neighbouring tiles whose words share a texel: single words are costly to load one by one."""

LARGEST = 8192
"""Texels in a row and rows in a texture: WebGPU's default limit."""

STAGED_WIDTH = 1024
"""Texels in a row of a texture that holds rows of activations; 8192 rows are 128 MiB, as in a binding."""


def in_textures(device: Device) -> bool:
    """Whether this device's planes are textures."""
    return "llvmpipe" in device.facts.name and device.facts.backend == "Vulkan"


def planes_import(device: Device) -> str:
    """The file for a shader's `planes`."""
    return "planes_texture" if in_textures(device) else "planes_buffer"


def most_tiles(device: Device, tile_bytes: int) -> int:
    """How many tiles of a plane with `tile_bytes` bytes per tile fit one binding."""
    limits = device.facts.limits
    fitting = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"]) // tile_bytes
    if not in_textures(device):
        return fitting
    return min(fitting, LARGEST // _lines(tile_bytes // 16 * GATHERED) * GATHERED)


def upload_planes(
    device: Device, name: str, planes: Sequence[Words], tiles: int, blocks: int
) -> tuple[Plane, ...]:
    """New buffers or textures labelled `name`: the first plane in items of four words, the rest in words."""
    if not in_textures(device):
        return tuple(device.buffer(plane.nbytes, label=name, data=plane) for plane in planes)
    lines = [_gathered(planes[0], tiles, blocks), *(_side_by_side(plane, tiles) for plane in planes[1:])]
    return tuple(_texture_with(device, name, plane) for plane in lines)


def staged_rows(device: Device, size: int) -> wgpu.GPUTextureView:
    """A texture for `size` words of activations."""
    return device.texture(STAGED_WIDTH, -(-size // (STAGED_WIDTH * 4)), "staged rows")


def _gathered(plane: Words, tiles: int, blocks: int) -> Words:
    """`[tiles][blocks][items][4]` words as `[tiles / 8][blocks][8][items][4]`, as a workgroup reads them."""
    items = plane.size // (tiles * blocks)
    padded = np.zeros((-(-tiles // GATHERED) * GATHERED, blocks, items), np.uint32)
    padded[:tiles] = plane.reshape(tiles, blocks, items)
    shaped = padded.reshape(-1, GATHERED, blocks, items).transpose(0, 2, 1, 3)
    return shaped.reshape(len(shaped), -1, 4)


def _side_by_side(plane: Words, tiles: int) -> Words:
    """`[tiles][size]` words as `[tiles / SIDES][size][SIDES]`."""
    padded = np.zeros((-(-tiles // SIDES) * SIDES, plane.size // tiles), np.uint32)
    padded[:tiles] = plane.reshape(tiles, -1)
    return padded.reshape(-1, SIDES, padded.shape[1]).transpose(0, 2, 1)


def _lines(texels: int) -> int:
    """Texture rows that so many texels of a tile take."""
    return -(-texels // LARGEST)


def _texture_with(device: Device, name: str, plane: Words) -> wgpu.GPUTextureView:
    """`plane[tiles][texels][4]` in a new texture."""
    tiles, texels, _ = plane.shape
    lines = _lines(texels)
    width = texels if lines == 1 else LARGEST
    view = device.texture(width, tiles * lines, name)
    data = np.zeros((tiles, lines * width, 4), np.uint32)
    data[:, :texels] = plane
    target, layout = {"texture": view.texture}, {"bytes_per_row": 16 * width}
    device.guard(lambda: device.queue.write_texture(target, data, layout, (width, tiles * lines, 1)))
    return view
