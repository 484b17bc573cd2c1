"""One group's pages of a sequence, wherever they are, and filling them from others layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import wgpu

from webkv.cache.runs import COPIES_AT_MOST, Holder, PageIds, SequencePlan, run_tables
from webkv.gpu import Device
from webkv.layout import Held, PageLayout


@dataclass(frozen=True)
class Holding:
    """Pages of a sequence in GPU buffers: `buffers[pool]` hold the slots of `pages` as `layout` declares."""

    layout: PageLayout
    held: Held
    pages: PageIds
    buffers: tuple[wgpu.GPUBuffer, ...]


@dataclass(frozen=True)
class LayersPlan:
    """One plan for all `layers` that read alike; `ranks` are the sources that hold these layers."""

    plan: SequencePlan
    ranks: tuple[int, ...]
    layers: tuple[int, ...]


def plan_layers(
    sources: Sequence[Holder], target: Holder, tokens: range, converters: Collection[str]
) -> list[LayersPlan]:
    """Plans that fill `tokens` of every layer of `target`, each made once for all layers that read alike.

    Raises `LayoutError` as `webkv.layout.plan` does, which names one layer of those that it is about.
    """
    for layout, held in (*sources, target):
        held.check(layout)
    alike: dict[object, list[int]] = {}
    layer_sets = [set(layout.layers) for layout, _ in sources]
    for layer in target[0].layers:
        ranks = tuple(rank for rank, layers in enumerate(layer_sets) if layer in layers)
        reads = tuple(_reads(*holder, layer) for holder in (*(sources[rank] for rank in ranks), target))
        alike.setdefault((ranks, reads), []).append(layer)
    plans = []
    for (ranks, _), layers in alike.items():  # type: ignore[misc]
        holders = [_of_layer(*sources[rank], layers[0]) for rank in ranks]
        made = SequencePlan.of(holders, _of_layer(*target, layers[0]), tokens, converters)
        plans.append(LayersPlan(made, ranks, tuple(layers)))
    return plans


def fill(
    device: Device,
    plans: Sequence[LayersPlan],
    sources: Sequence[Holding],
    target: Holding,
    copies_at_most: int = COPIES_AT_MOST,
) -> None:
    """Do `plans` on the GPU; `sources` and `target` are what was planned for, in the same order."""
    for each in plans:
        chosen = [sources[rank] for rank in each.ranks]
        tables = each.plan.tables([source.pages for source in chosen], target.pages)
        layers = [
            ([_buffers(source, layer) for source in chosen], _buffers(target, layer)) for layer in each.layers
        ]
        run_tables(device, tables, layers, copies_at_most)


def _pools(layout: PageLayout, layer: int) -> list[int]:
    return sorted({tensor.pool for tensor in layout.tensors if tensor.layer == layer})


def _buffers(holding: Holding, layer: int) -> list[wgpu.GPUBuffer]:
    return [holding.buffers[pool] for pool in _pools(holding.layout, layer)]


def _of_layer(layout: PageLayout, held: Held, layer: int) -> Holder:
    """What a holder has of one layer alone, its pools numbered from 0."""
    pools = _pools(layout, layer)
    tensors = tuple(
        replace(tensor, pool=pools.index(tensor.pool)) for tensor in layout.tensors if tensor.layer == layer
    )
    axes = {axis.name for tensor in tensors for axis in tensor.axes}
    part = Held(
        {name: first for name, first in held.axes.items() if name in axes},
        {key: firsts for key, firsts in held.tensors.items() if key[0] == layer},
    )
    slot_bytes = tuple(layout.slot_bytes[pool] for pool in pools)
    return PageLayout(layout.page_tokens, slot_bytes, tensors, layout.kind), part


def _reads(layout: PageLayout, held: Held, layer: int) -> object:
    """Equal for two layers of one layout exactly when their bytes read alike and are of the same heads."""
    pools = _pools(layout, layer)
    return tuple(
        (
            tensor.role, tensor.part, pools.index(tensor.pool), layout.slot_bytes[tensor.pool], tensor.offset,
            tensor.dtype, tensor.axes, tuple(held.first(tensor, axis.name) for axis in tensor.axes),
        )
        for tensor in sorted(layout.tensors, key=lambda tensor: tensor.key)
        if tensor.layer == layer
    )  # fmt: skip
