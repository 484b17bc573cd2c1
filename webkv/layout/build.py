"""Builders: the usual page layouts, from their sizes.  They only compute strides and offsets.

Every builder takes model layer numbers in `layers` and how many of them share one slot in `layers_in_slot`
(None: all).  A cache declares one layer per slot and gives each layer its own buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from webkv.layout.declare import DTYPE_BYTES, Axis, PageLayout, Tensor, refuse, require_int

ORDERS = {"head_major": ("head", "token"), "token_major": ("token", "head")}
PACKINGS = ("slot", "planes", "packed")

Shape = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One row-major array of a recurrent state, such as `Section("conv", (("chan", 32), ("tap", 3)))`."""

    role: str
    shape: Shape
    dtype: str = "f16"


def row_major(shape: Shape, itemsize: int) -> tuple[Axis, ...]:
    """Axes of a dense array, outermost first."""
    for name, count in shape:
        require_int(f"{name} count", count, 1)
    strides = [itemsize * prod(count for _, count in shape[at + 1 :]) for at in range(len(shape))]
    return tuple(Axis(name, count, stride) for (name, count), stride in zip(shape, strides, strict=True))


class _Slots:
    """Places tensors back to back in each pool."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.sizes: dict[int, int] = {}

    def reserve(self, pool: int, nbytes: int) -> int:
        """The offset of the next `nbytes` bytes of a pool's slot."""
        start = self.sizes.get(pool, 0)
        self.sizes[pool] = start + nbytes
        return start

    def dense(self, pool: int, layer: int, role: str, dtype: str, shape: Shape, part: int = 0) -> None:
        axes = row_major(shape, _itemsize(dtype))
        nbytes = prod(axis.count for axis in axes) * _itemsize(dtype)
        self.tensors.append(Tensor(layer, role, part, pool, self.reserve(pool, nbytes), dtype, axes))

    def layout(self, page_tokens: int, kind: str = "attention") -> PageLayout:
        sizes = tuple(self.sizes[pool] for pool in range(len(self.sizes)))
        return PageLayout(page_tokens, sizes, tuple(self.tensors), kind)


def _itemsize(dtype: str) -> int:
    if dtype not in DTYPE_BYTES:
        raise refuse("dtype", dtype, f"one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


def _slot_of(layers: Sequence[int], layers_in_slot: int | None) -> dict[int, int]:
    """Which slot of a page each layer is in."""
    if not layers or len(set(layers)) != len(layers):
        raise refuse("layers", tuple(layers), "each layer once, at least one")
    share = len(layers) if layers_in_slot is None else layers_in_slot
    require_int("layers_in_slot", share, 1)
    return {layer: at // share for at, layer in enumerate(layers)}


def kv(
    *,
    page_tokens: int,
    heads: int,
    dim: int,
    v_dim: int | None = None,
    dtype: str = "f16",
    order: str = "head_major",
    packing: str = "slot",
    layers: Sequence[int] = (0,),
    layers_in_slot: int | None = None,
) -> PageLayout:
    """Keys and values of attention; roles `key` and `value`, axes head, token, dim.

    `heads` are KV heads; `dim` is the head dim of keys, `v_dim` of values (None: the same).  `order` is
    `head_major` `[H][P][D]` or `token_major` `[P][H][D]`.  `packing` is `slot` (K, then V: the default with
    head-major is TVM's and FlashInfer's HND page `[2][H][P][D]`), `planes` (K and V in pools of their own)
    or `packed` (`[H][P][2 * D]`).  int8 adds `key_scale` and `value_scale`, f32, one per (head, token), after
    K and V in the same slot.  Raises `LayoutError` naming the argument.
    """
    if order not in ORDERS:
        raise refuse("order", order, f"one of {', '.join(ORDERS)}")
    if packing not in PACKINGS:
        raise refuse("packing", packing, f"one of {', '.join(PACKINGS)}")
    require_int("page_tokens", page_tokens, 1)
    counts = {"head": heads, "token": page_tokens}
    rows: Shape = tuple((name, counts[name]) for name in ORDERS[order])
    dims = {"key": dim, "value": dim if v_dim is None else v_dim}
    slots = _Slots()
    for layer, slot in _slot_of(layers, layers_in_slot).items():
        pools = {"key": 2 * slot, "value": 2 * slot + 1} if packing == "planes" else dict.fromkeys(dims, slot)
        if packing == "packed":
            _pack(slots, slot, layer, dtype, rows, dims)
        else:
            for role, width in dims.items():
                slots.dense(pools[role], layer, role, dtype, (*rows, ("dim", width)))
        if dtype == "int8":
            for role, pool in pools.items():
                slots.dense(pool, layer, f"{role}_scale", "f32", rows)
    return slots.layout(page_tokens)


def _pack(slots: _Slots, pool: int, layer: int, dtype: str, rows: Shape, dims: dict[str, int]) -> None:
    """One row-major array whose rows hold a key followed by its value."""
    size = _itemsize(dtype)
    for role, width in dims.items():
        require_int(f"{role} dim", width, 1)
    outer = row_major((*rows, ("dim", sum(dims.values()))), size)[:-1]
    at = slots.reserve(pool, outer[0].count * outer[0].stride)
    for role, width in dims.items():
        slots.tensors.append(Tensor(layer, role, 0, pool, at, dtype, (*outer, Axis("dim", width, size))))
        at += width * size


def latent(
    *,
    page_tokens: int,
    dim: int,
    dtype: str = "f16",
    layers: Sequence[int] = (0,),
    layers_in_slot: int | None = None,
) -> PageLayout:
    """MLA's compressed row per token (latent and rope part together), role `latent`, `[P][D]`, no heads.

    Every rank holds all of it (DeepSeek-V2).  int8 adds `latent_scale`, f32, one per token.
    """
    require_int("page_tokens", page_tokens, 1)
    slots = _Slots()
    for layer, slot in _slot_of(layers, layers_in_slot).items():
        slots.dense(slot, layer, "latent", dtype, (("token", page_tokens), ("dim", dim)))
        if dtype == "int8":
            slots.dense(slot, layer, "latent_scale", "f32", (("token", page_tokens),))
    return slots.layout(page_tokens)


def state(*sections: Section, layers: Sequence[int] = (0,), layers_in_slot: int | None = None) -> PageLayout:
    """The recurrent state of one sequence: sections back to back, each split over ranks on its own.

    Sections of one role become its parts 0, 1, ...: Mamba's conv state x|B|C is three `conv` sections.
    """
    slots = _Slots()
    for layer, slot in _slot_of(layers, layers_in_slot).items():
        parts: dict[str, int] = {}
        for section in sections:
            part = parts.get(section.role, 0)
            parts[section.role] = part + 1
            slots.dense(slot, layer, section.role, section.dtype, section.shape, part)
    return slots.layout(0, "state")


def with_replicated(
    layout: PageLayout, *, role: str, dim: int, dtype: str = "f16", layer: int = 0, pool: int = 0
) -> PageLayout:
    """`layout` with one more `[P][D]` tensor at the end of a slot, without heads: the same on every rank.

    Sparse attention's `index_key` is such a tensor.
    """
    if not 0 <= pool < len(layout.slot_bytes):
        raise refuse("pool", pool, f"below {len(layout.slot_bytes)}")
    axes = row_major((("token", layout.page_tokens), ("dim", dim)), _itemsize(dtype))
    tensor = Tensor(layer, role, 0, pool, layout.slot_bytes[pool], dtype, axes)
    sizes = list(layout.slot_bytes)
    sizes[pool] += tensor.nbytes
    return replace(layout, slot_bytes=tuple(sizes), tensors=(*layout.tensors, tensor))
