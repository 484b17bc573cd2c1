"""Sequences as numpy arrays in other engines' shapes; their layout changes on the GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import wgpu

from webkv.cache.config import LayerGroup
from webkv.cache.holdings import Holding, fill, plan_layers
from webkv.cache.remap import Share, Source, adopt_and_fill, plan_job, source_of
from webkv.cache.runs import PageIds
from webkv.cache.state import CacheState
from webkv.errors import CacheError, WebkvError
from webkv.gpu import Device
from webkv.layout import Held
from webkv.layout.formats import Format, declare


@dataclass(frozen=True)
class Exported:
    """Pages of a sequence in one layer group: `array` has the shape `format.shape(pages)`.

    Page i of the array is block `first_block + i` of the sequence, which has `length` tokens; those before
    `first_token`, and slots past the length, are zeros.  Keys are as the cache stores them, rotated or not.
    """

    format: Format
    array: np.ndarray
    first_block: int
    first_token: int
    length: int


async def export_sequence(
    cache: CacheState,
    seq: int,
    contract: str,
    *,
    group: str | None = None,
    page_tokens: int | None = None,
    dtype: str | None = None,
    converters: Collection[str] = (),
) -> Exported:
    """All that is held of a sequence in a layer group, in the shape of a contract of `webkv.layout.formats`.

    `group` may be left out where there is one; `page_tokens` and `dtype` (None: the cache's) are the
    array's.  Raises `CacheError`, or `LayoutError` where the contract has no place for the group's pages.
    """
    length = cache.settled_length(seq, "export_sequence")
    source_group = _group(cache, group)
    source = source_of(Share(cache, seq), source_group)
    if source_group.kind == "mha" and source_group.value_dim != source_group.head_dim:
        raise source_group.error("v_dim", source_group.v_dim, f"head_dim for contract {contract!r}")
    size = page_tokens or cache.config.page_tokens
    made = declare(
        contract, page_tokens=size, dim=source_group.head_dim, heads=source_group.kv_heads,
        dtype=dtype or str(source_group.page_dtype), layers=source_group.layers,
    )  # fmt: skip
    first = source.first_token // size
    pages = max(0, -(-length // size) - first)
    holder = (source.holding.layout, source.holding.held)
    plans = plan_layers([holder], (made.layout, Held()), range(source.first_token, length), converters)
    holding = _allocate(cache.device, made, first, pages)
    try:
        fill(cache.device, plans, [source.holding], holding)
        sizes = [pages * nbytes for nbytes in made.layout.slot_bytes]
        pools = [
            await cache.device.read(b, 0, n) if n else b""
            for b, n in zip(holding.buffers, sizes, strict=True)
        ]
    finally:
        _release(cache.device, holding.buffers)
    return Exported(made, made.from_pools(pools), first, source.first_token, length)


def import_sequence(
    cache: CacheState, seq: int, parts: Mapping[str, Exported], *, converters: Collection[str] = ()
) -> None:
    """Add sequence `seq` from one array per layer group (by the cache's group names).

    The keys must be stored as the cache would store them; arrays cannot tell.  Raises as `copy_sequence`
    does, with nothing changed.
    """
    names = sorted(group.name for group in cache.config.groups)
    if sorted(parts) != names:
        raise CacheError(f"arrays are of groups {sorted(parts)}, expected {names}")
    lengths = sorted({part.length for part in parts.values()})
    if len(lengths) != 1 or lengths[0] < 0:
        raise CacheError(f"the arrays are of {lengths} tokens, expected one length")
    pools = {name: _checked(name, part) for name, part in parts.items()}
    buffers: list[wgpu.GPUBuffer] = []
    try:
        jobs = []
        for group in cache.config.groups:
            part = parts[group.name]
            pages = PageIds(part.first_block, np.arange(part.array.shape[_page_axis(part.format)]))
            made = [cache.device.buffer(len(p), label="imported pages", data=p) for p in pools[group.name]]
            buffers += made
            source = Source(Holding(part.format.layout, Held(), pages, tuple(made)), part.first_token)
            jobs.append(plan_job([source], Share(cache, seq), group, part.length, converters))
        adopt_and_fill(jobs, lengths[0])
    finally:
        _release(cache.device, buffers)


def _checked(name: str, part: Exported) -> list[bytes]:
    """The pools of an array that has all the tokens it says."""
    pools = part.format.to_pools(part.array)
    size, pages = part.format.layout.page_tokens, part.array.shape[_page_axis(part.format)]
    first, end = part.first_block * size, (part.first_block + pages) * size
    if not (0 <= first <= part.first_token and part.length <= end):
        raise CacheError(
            f"group {name!r}: the array has tokens {first} to {end}, "
            f"expected {part.first_token} to {part.length}"
        )
    return pools


def _page_axis(made: Format) -> int:
    return [name for name, _ in made.axes].index("page")


def _group(cache: CacheState, name: str | None) -> LayerGroup:
    groups = cache.config.groups
    if name is None and len(groups) == 1:
        return groups[0]
    for group in groups:
        if group.name == name:
            return group
    raise CacheError(f"layer group {name!r} is unknown, the cache has {', '.join(g.name for g in groups)}")


def _allocate(device: Device, made: Format, first: int, pages: int) -> Holding:
    buffers: list[wgpu.GPUBuffer] = []
    try:
        for size in made.layout.slot_bytes:
            buffers.append(device.buffer(pages * size, label=f"pages of {made.contract}"))
    except WebkvError:
        _release(device, buffers)
        raise
    return Holding(made.layout, Held(), PageIds(first, np.arange(pages)), tuple(buffers))


def _release(device: Device, buffers: Sequence[wgpu.GPUBuffer]) -> None:
    for buffer in buffers:
        device.release(buffer)
