"""Names of layouts and contents: equal ids mean interchangeable bytes.

`layout_id` says how bytes read, `content_id` what the values mean (which weights, rope, quantizer).  Both
are SHA-256 of canonical JSON: ASCII, sorted keys, no spaces, a field at its default left out.  Changing the
encoding, or what a field means, must raise `VERSION`, so that old bytes are missed rather than misread.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Sequence
from typing import Any

from webkv.errors import LayoutError
from webkv.layout.build import kv
from webkv.layout.declare import Axis, PageLayout, Tensor, refuse, require_int

VERSION = 1
TVM_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
TVM_PAGE_GROUP_LAYOUT = "1,num_logical_pages,2,num_kv_heads,page_size,qk_head_dim"

_TENSOR_FIELDS = ("axes", "dtype", "layer", "offset", "pool", "role")
_FNV_OFFSET, _FNV_PRIME = 14695981039346656037, 1099511628211  # 64-bit FNV-1a


def canonical_json(value: object) -> str:
    """The one JSON text of plain values.  A float is `f64:` and the 16 hex digits of its big-endian bits.

    Raises `LayoutError` on values of other types, keys that are no strings, and text that looks like a float.
    """
    return json.dumps(_plain(value, "value"), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: object, where: str) -> object:
    if isinstance(value, float):
        return "f64:" + struct.pack(">d", value).hex()
    if isinstance(value, str):
        if value.startswith("f64:"):
            raise refuse(where, value, "text that does not start with f64:")
        return value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{at}]") for at, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise refuse(f"{where} key", key, "a string")
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items() if item is not None}
    raise refuse(where, value, "text, a number, a bool, None, a list or a dict")


def _digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def declaration(layout: PageLayout) -> dict[str, Any]:
    """The layout as JSON values, in canonical order; `parse` reads it back.

    Tensors come by (layer, role, part) and axes from outer to inner, so the order of listing does not count.
    """

    def listed(tensor: Tensor) -> dict[str, Any]:
        axes = sorted(tensor.axes, key=lambda axis: (-axis.stride, -axis.count, axis.name))
        fields: dict[str, Any] = {
            "axes": [[axis.name, axis.count, axis.stride] for axis in axes],
            "dtype": tensor.dtype,
            "layer": tensor.layer,
            "offset": tensor.offset,
            "pool": tensor.pool,
            "role": tensor.role,
        }
        if tensor.part:
            fields["part"] = tensor.part
        return fields

    return {
        "kind": layout.kind,
        "page_tokens": layout.page_tokens,
        "slot_bytes": list(layout.slot_bytes),
        "tensors": [listed(tensor) for tensor in sorted(layout.tensors, key=lambda tensor: tensor.key)],
        "v": VERSION,
    }


def layout_id(layout: PageLayout) -> str:
    """64 hex digits that are equal exactly when two layouts' bytes read alike.

    In: version, kind, page_tokens, slot bytes, every tensor with its dtype.  Out: the order of listing, and
    what a layout does not hold at all: page counts, windows, addresses, which heads a rank has.
    """
    return _digest(declaration(layout))


def content_id(**fields: object) -> str:
    """64 hex digits naming what cached values mean: weights digest, tokenizer, rope, quantizer, ...

    Every field counts, by name and by type (1 and 1.0 differ); a field that is None counts as not given.
    """
    if not fields:
        raise refuse("content fields", "none", "at least one")
    return _digest({"v": VERSION, "fields": fields})


def parse(data: object) -> PageLayout:
    """The layout of a stored declaration, checked in full; `LayoutError` names the field that is wrong."""
    fields = _fields("declaration", data, ("kind", "page_tokens", "slot_bytes", "tensors", "v"))
    if fields["v"] != VERSION or type(fields["v"]) is not int:
        raise refuse("v", fields["v"], f"layout version {VERSION}")
    tensors = tuple(
        _tensor(f"tensors[{at}]", item) for at, item in enumerate(_list("tensors", fields["tensors"]))
    )
    slot_bytes = tuple(_list("slot_bytes", fields["slot_bytes"]))
    return PageLayout(fields["page_tokens"], slot_bytes, tensors, fields["kind"])


def _tensor(where: str, data: object) -> Tensor:
    fields = _fields(where, data, _TENSOR_FIELDS, ("part",))
    axes = []
    for at, item in enumerate(_list(f"{where}.axes", fields["axes"])):
        if len(_list(f"{where}.axes[{at}]", item)) != 3:
            raise refuse(f"{where}.axes[{at}]", item, "[name, count, stride]")
        axes.append(Axis(*item))
    return Tensor(
        fields["layer"],
        fields["role"],
        fields.get("part", 0),
        fields["pool"],
        fields["offset"],
        fields["dtype"],
        tuple(axes),
    )


def _fields(where: str, data: object, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise refuse(where, data, "an object")
    missing = [name for name in names if name not in data]
    unknown = [name for name in data if name not in (*names, *optional)]
    if missing or unknown:
        raise refuse(where, sorted(map(str, data)), f"the fields {', '.join(names)}")
    return data


def _list(where: str, data: object) -> list[Any]:
    if not isinstance(data, list):
        raise refuse(where, data, "a list")
    return data


def tvm_descriptor(
    layout: PageLayout,
    *,
    num_layers: int,
    num_qo_heads: int,
    rope_mode: str,
    rotary_scale: float,
    rotary_theta: float,
    layer_begin: int = 0,
    attn_kinds: Sequence[str] | None = None,
    has_rope_ext_factors: bool = False,
    support_sliding_window: bool = False,
    support_layer_sliding_window: bool = False,
) -> dict[str, str]:
    """The `key=value` fields that TVM's PagedAttentionKVCache hashes, in its order; sizes from the layout.

    `layout` must be TVM's page (head-major `kv` with equal K and V dims, layer 0), else `LayoutError`.
    `num_layers` counts the layers of this pipeline stage, which starts at `layer_begin`.
    """
    heads, page_tokens, dim, dtype = _tvm_sizes(layout)
    require_int("num_layers", num_layers, 1)
    require_int("num_qo_heads", num_qo_heads, 1)
    if rope_mode not in ("none", "normal", "inline"):
        raise refuse("rope_mode", rope_mode, "none, normal or inline")
    return {
        "format_version": "1",
        "cache_type": "relax.vm.PagedAttentionKVCache",
        "page_size": str(page_tokens),
        "num_layers": str(num_layers),
        "layer_begin": str(layer_begin),
        "layer_end": str(layer_begin + num_layers),
        "num_qo_heads": str(num_qo_heads),
        "num_kv_heads": str(heads),
        "qk_head_dim": str(dim),
        "v_head_dim": str(dim),
        "dtype": TVM_DTYPES[dtype],
        "rope_mode": rope_mode,
        "rotary_scale": _g17("rotary_scale", rotary_scale),
        "rotary_theta": _g17("rotary_theta", rotary_theta),
        "has_rope_ext_factors": str(int(has_rope_ext_factors)),
        "support_sliding_window": str(int(support_sliding_window)),
        "support_layer_sliding_window": str(int(support_layer_sliding_window)),
        "page_group_layout": TVM_PAGE_GROUP_LAYOUT,
        "attn_kinds": ",".join(_kinds(attn_kinds, num_layers)),
    }


def tvm_layout_hash(layout: PageLayout, **facts: Any) -> str:
    """TVM's layout hash: 64-bit FNV-1a of `tvm_descriptor(layout, **facts)`, 16 hex digits."""
    text = ";".join(f"{name}={value}" for name, value in tvm_descriptor(layout, **facts).items())
    value = _FNV_OFFSET
    for byte in text.encode("ascii"):
        value = (value ^ byte) * _FNV_PRIME % 2**64
    return f"{value:016x}"


def _tvm_sizes(layout: PageLayout) -> tuple[int, int, int, str]:
    """KV heads, page tokens, head dim and dtype of TVM's page; `LayoutError` for any other page."""
    key = layout.tensor(0, "key")
    head, dim = key.axis("head"), key.axis("dim")
    if key.dtype not in TVM_DTYPES or head is None or dim is None:
        raise refuse("layout", declaration(layout), "TVM's page of f32, f16 or bf16")
    sizes = head.count, layout.page_tokens, dim.count, key.dtype
    page = kv(heads=sizes[0], page_tokens=sizes[1], dim=sizes[2], dtype=sizes[3])
    if layout_id(layout) != layout_id(page):
        raise LayoutError("layout: found another arrangement, expected TVM's page [2][head][token][dim]")
    return sizes


def _kinds(attn_kinds: Sequence[str] | None, num_layers: int) -> Sequence[str]:
    """One attention kind per layer; all `mha` where not given."""
    if attn_kinds is None:
        return ["mha"] * num_layers
    if len(attn_kinds) != num_layers:
        raise refuse("attn_kinds", list(attn_kinds), f"one per layer, {num_layers}")
    return attn_kinds


def _g17(field: str, value: float) -> str:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise refuse(field, value, "a finite number")
    return f"{value:.17g}"
