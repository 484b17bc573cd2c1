"""The layers of a cache: their page buffers and the shapes their kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import wgpu

from webkv.cache.config import CacheConfig, LayerGroup
from webkv.errors import CacheError, LayoutError
from webkv.gpu import Device
from webkv.kernels.shape import AttentionShape
from webkv.kernels.texels import MOST_BYTES, page_texture
from webkv.kernels.variants import reads_textures


@dataclass(frozen=True)
class Layer:
    """One attention layer: its number, its group and that group's place, its pages, its shape.

    `texture`: for a copy of the pages, where attention reads that; see `webkv.cache.textures`.
    `rope_full`: (cos, sin) of every position in the cache, for rope mode `inline`; else None.
    """

    number: int
    group: LayerGroup
    at: int
    pages: wgpu.GPUBuffer
    texture: wgpu.GPUTextureView | None
    shape: AttentionShape
    rope_full: wgpu.GPUBuffer | None
    _scaled: dict[float, AttentionShape] = field(default_factory=dict)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of this layer."""
        return 4 * self.shape.page_words

    def scaled(self, sm_scale: float | None) -> AttentionShape:
        """The shape with another factor for its scores; None keeps its own."""
        if sm_scale is None or sm_scale == self.shape.sm_scale:
            return self.shape
        found = self._scaled.get(sm_scale)
        if found is None:
            found = self._scaled[sm_scale] = replace(self.shape, sm_scale=sm_scale)
        return found


def make_layers(device: Device, config: CacheConfig) -> dict[int, Layer]:
    """Every layer of `config`, by number, with its pages allocated.  Raises `CacheError` or `DeviceError`."""
    for group in config.groups:
        _check_size(device, config, group)
    layers: dict[int, Layer] = {}
    for at, group in enumerate(config.groups):
        layout = config.layout(group)
        rope_full = _rope_full(device, config, group)
        for pool, number in enumerate(group.layers):
            shape = _shape(config, group, number)
            size = config.num_pages(group) * layout.slot_bytes[pool]
            label = f"pages of layer {number}"
            pages = device.buffer(size, label=label)
            textured = size <= MOST_BYTES and reads_textures(device, shape)
            texture = page_texture(device, size, label) if textured else None
            layers[number] = Layer(number, group, at, pages, texture, shape, rope_full)
    return layers


def _check_size(device: Device, config: CacheConfig, group: LayerGroup) -> None:
    limits = device.facts.limits
    limit = min(limits["max-buffer-size"], limits["max-storage-buffer-binding-size"])
    page, pages = max(config.layout(group).slot_bytes), config.num_pages(group)
    if pages * page > limit:
        most = limit // page * config.page_tokens
        raise CacheError(
            f"layer group {group.name!r}: {pages} pages of {page} bytes per layer are over the "
            f"device's limit of {limit} bytes; a max_total_len of about {most} tokens fits"
        )


def _shape(config: CacheConfig, group: LayerGroup, layer: int) -> AttentionShape:
    rope = group.rope
    rules = {"v_dim": group.value_dim} if group.kind == "mla" else {}
    # Keys of a windowed group never move, so turning them when stored or when read is the same.
    mode = "normal" if rope.mode == "inline" and group.window is not None else rope.mode
    try:
        return AttentionShape.of(
            config.layout(group), layer, q_heads=group.q_heads, rope=mode,
            rotary_dim=0 if mode == "none" else rope.rotary_dim,
            pairing=rope.pairing, window=group.window or 0, sm_scale=group.head_dim**-0.5,
            softcap=group.softcap, **rules,
        )  # fmt: skip
    except LayoutError as error:
        raise CacheError(f"layer group {group.name!r}: {error}") from error


def _rope_full(device: Device, config: CacheConfig, group: LayerGroup) -> wgpu.GPUBuffer | None:
    if group.rope.mode != "inline" or group.window is not None:
        return None
    positions = np.arange(config.num_pages(group) * config.page_tokens)
    table = group.rope.table(positions)
    return device.buffer(table.nbytes, label=f"rope of group {group.name}", data=table)
