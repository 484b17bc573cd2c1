"""Reading and writing single tokens' keys and values, for tests and tools."""

from __future__ import annotations

import numpy as np

from webkv.cache.config import CacheConfig
from webkv.cache.layers import Layer
from webkv.cache.manager import SequenceManager
from webkv.errors import CacheError
from webkv.gpu import Device
from webkv.kernels.pages import get_kv, set_kv


def token_positions(manager: SequenceManager, seq: int, at: int, start: int, end: int) -> np.ndarray:
    """page * page_tokens + slot of tokens `start .. end - 1` in group `at`, int32.  Raises `CacheError`."""
    found, group, tokens = manager.get(seq), manager.groups[at], manager.page_tokens
    if found.importing:
        raise CacheError(f"sequence {seq} is being imported, finish that first")
    if not 0 <= start < end:
        raise CacheError(f"start_pos >= end_pos is not accepted: {start} and {end}")
    if end > found.length:
        raise CacheError(f"out-of-range end_pos {end}: sequence {seq} has {found.length} tokens")
    pages = found.pages[at]
    if start < pages.first_token(tokens):
        raise CacheError(
            f"start_pos {start}: group {group.name!r} of window {group.window} holds sequence "
            f"{seq} from token {pages.first_token(tokens)} on"
        )
    slots = np.array([found.slot(index) for index in range(start, end)])
    return (pages.view[slots // tokens - pages.first_block] * tokens + slots % tokens).astype(np.int32)


async def read_tokens(
    device: Device, layers: list[Layer], positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(k, v) at `positions` in every layer, f32 (layers, n, kv_heads, head_dim) and (..., v_dim)."""
    shape, count = layers[0].shape, len(positions)
    k_shape, v_shape = (count, shape.kv_heads, shape.head_dim), (count, shape.kv_heads, shape.v_dim)
    places = device.buffer(4 * count, label="debug positions", data=positions)
    k, v = (device.buffer(4 * int(np.prod(size)), label="debug kv") for size in (k_shape, v_shape))
    read = []
    try:
        for layer in layers:
            with device.batch() as batch:
                get_kv(batch, pages=layer.pages, positions=places, k=k, v=v, count=count, shape=layer.shape)
            read.append([np.frombuffer(await device.read(b), np.float32) for b in (k, v)])
    finally:
        for buffer in (places, k, v):
            device.release(buffer)
    ks, vs = (np.stack([layer[part] for layer in read]) for part in (0, 1))
    return ks.reshape(len(layers), *k_shape), vs.reshape(len(layers), *v_shape)


def write_tokens(
    device: Device, layers: list[Layer], positions: np.ndarray, k: np.ndarray, v: np.ndarray
) -> None:
    """Write (k, v), shaped as `read_tokens` returns them, at `positions`."""
    places = device.buffer(4 * len(positions), label="debug positions", data=positions)
    for layer, keys, values in zip(layers, k, v, strict=True):
        with device.batch() as batch:
            made = [device.buffer(rows.nbytes, label="debug kv", data=rows) for rows in (keys, values)]
            set_kv(
                batch, pages=layer.pages, positions=places, k=made[0], v=made[1], count=len(positions),
                shape=layer.shape,
            )  # fmt: skip
        for buffer in made:
            device.release(buffer)
    device.release(places)


def same_shape(config: CacheConfig, groups: list[int]) -> None:
    """Raise unless the groups' tokens have one shape, so that one array can hold them."""
    shapes = {(g.kind, g.kv_heads, g.head_dim, g.value_dim) for g in (config.groups[at] for at in groups)}
    if len(shapes) > 1:
        raise CacheError(
            f"layer groups differ in (kind, kv_heads, head_dim, v_dim): {sorted(shapes)}; name one group"
        )
