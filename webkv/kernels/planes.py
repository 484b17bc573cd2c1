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

WIDTH = 1024
"""Texels in a row; with WebGPU's 8192 rows a texture of 16-byte texels holds 128 MiB, as a binding does."""
_USAGE = wgpu.TextureUsage.STORAGE_BINDING | wgpu.TextureUsage.COPY_DST


def in_textures(device: Device) -> bool:
    """Whether this device's planes are textures."""
    return "llvmpipe" in device.facts.name and device.facts.backend == "Vulkan"


def planes_import(device: Device) -> str:
    """The file for a shader's `planes`."""
    return "planes_texture" if in_textures(device) else "planes_buffer"


def upload_planes(device: Device, name: str, planes: Sequence[Words]) -> tuple[Plane, ...]:
    """New buffers or textures labelled `name`: the first plane in items of four words, the rest in words."""
    if not in_textures(device):
        return tuple(device.buffer(plane.nbytes, label=name, data=plane) for plane in planes)
    return tuple(_texture_with(device, name, plane, 1 if at else 4) for at, plane in enumerate(planes))


def new_texture(device: Device, size: int, words: int, label: str) -> wgpu.GPUTextureView:
    """A texture for `size` words, in texels of `words` words, `WIDTH` texels wide."""
    kind = "rgba32uint" if words == 4 else "r32uint"
    extent = (WIDTH, -(-size // (WIDTH * words)), 1)
    view: wgpu.GPUTextureView = device.guard(
        lambda: device.raw.create_texture(size=extent, format=kind, usage=_USAGE, label=label).create_view()
    )
    return view


def _texture_with(device: Device, name: str, plane: Words, words: int) -> wgpu.GPUTextureView:
    view = new_texture(device, plane.size, words, name)
    extent = view.texture.size
    data = np.zeros((extent[1], WIDTH, words), np.uint32)
    data.reshape(-1)[: plane.size] = plane
    target, layout = {"texture": view.texture}, {"bytes_per_row": 4 * words * WIDTH}
    device.guard(lambda: device.queue.write_texture(target, data, layout, extent))
    return view
