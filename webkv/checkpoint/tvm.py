"""TVM's checkpoint metadata, byte for byte: what its `PagedAttentionKVCache` writes and accepts.

Format version 1 covers what TVM covers: one sequence with id 0, every layer plain attention with equal head
dims for keys and values, pages `[2][kv_heads][page_size][head_dim]`.  All else has the extended format,
`extended.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from webkv.cache import PagedKVCache
from webkv.cache.config import LayerGroup
from webkv.checkpoint.nesting import parse_json
from webkv.errors import CheckpointError, DamageError, IdentityError
from webkv.layout.formats import Format, declare
from webkv.layout.identity import TVM_DTYPES, TVM_PAGE_GROUP_LAYOUT, tvm_layout_hash

FORMAT = 1
CACHE_TYPE = "relax.vm.PagedAttentionKVCache"
_LARGEST_LENGTH = 2**31 - 1
_LAYOUT_FIELDS = (
    "cache_type", "page_size", "num_layers", "layer_begin", "layer_end", "num_qo_heads", "num_kv_heads",
    "qk_head_dim", "v_head_dim", "dtype", "attn_kinds", "rope_mode", "rotary_scale", "rotary_theta",
    "has_rope_ext_factors", "support_sliding_window", "support_layer_sliding_window", "page_group_layout",
)  # fmt: skip
_OPERATIONAL_FIELDS = ("reserved_num_seqs", "num_total_pages", "prefill_chunk_size")


def group_of(cache: PagedKVCache) -> LayerGroup:
    """The cache's one layer group; `CheckpointError` naming what TVM's format cannot say."""
    groups = cache.config.groups
    first = groups[0]
    layers = list(cache.config.layers)
    for holds, what in (
        (len(groups) == 1, f"{len(groups)} layer groups"),
        (layers == list(range(layers[0], layers[0] + len(layers))), f"layers {layers}"),
        (list(first.layers) == layers, f"layers in the order {first.layers}"),
        (first.kind == "mha", f"layers of kind {first.kind}"),
        (first.window is None, f"a window of {first.window}"),
        (first.head_dim == first.value_dim, f"head dims {first.head_dim} and {first.value_dim}"),
        (not cache.config.support_sliding_window, "windows per sequence"),
        (first.page_dtype in ("f32", "f16"), f"{first.page_dtype} pages"),
        (first.rope.scaling == "default", f"rope scaling {first.rope.scaling!r}"),
        (first.rope.pairing == "half", f"rope pairing {first.rope.pairing!r}"),
        (first.rope.rotary_dim == first.head_dim, f"a rotary_dim of {first.rope.rotary_dim}"),
        ((cache.config.order, cache.config.packing) == ("head_major", "slot"), "another page layout"),
    ):
        if not holds:
            raise CheckpointError(f"TVM's checkpoint format has no place for {what}: use format version 2")
    return first


def page_group(cache: PagedKVCache) -> Format:
    """One layer's pages as TVM's arrays have them, `(1, pages, 2, kv_heads, page_size, head_dim)`."""
    group = group_of(cache)
    return declare(
        "tvm", page_tokens=cache.config.page_tokens, heads=group.kv_heads, dim=group.head_dim,
        dtype=str(group.page_dtype),
    )  # fmt: skip


def layout_hash(cache: PagedKVCache) -> str:
    """TVM's layout hash: equal for equal layouts, whatever the capacities."""
    group = group_of(cache)
    return tvm_layout_hash(
        page_group(cache).layout,
        num_layers=len(group.layers), layer_begin=group.layers[0], num_qo_heads=group.q_heads,
        rope_mode=group.rope.mode, rotary_scale=group.rope.scale, rotary_theta=group.rope.theta,
    )  # fmt: skip


def metadata(cache: PagedKVCache, length: int) -> dict[str, Any]:
    """The fields of TVM's metadata, in its order, for a sequence 0 of `length` tokens."""
    group, config = group_of(cache), cache.config
    first = group.layers[0]
    return {
        "format_version": FORMAT,
        "cache_type": CACHE_TYPE,
        "page_size": config.page_tokens,
        "num_layers": len(group.layers),
        "layer_begin": first,
        "layer_end": first + len(group.layers),
        "num_qo_heads": group.q_heads,
        "num_kv_heads": group.kv_heads,
        "qk_head_dim": group.head_dim,
        "v_head_dim": group.value_dim,
        "reserved_num_seqs": config.reserved_num_seqs,
        "num_total_pages": config.num_pages(group),
        "prefill_chunk_size": config.prefill_chunk_size,
        "dtype": TVM_DTYPES[str(group.page_dtype)],
        "attn_kinds": ["mha"] * len(group.layers),
        "rope_mode": group.rope.mode,
        "rotary_scale": float(group.rope.scale),
        "rotary_theta": float(group.rope.theta),
        "has_rope_ext_factors": False,
        "support_sliding_window": False,
        "support_layer_sliding_window": False,
        "page_group_layout": TVM_PAGE_GROUP_LAYOUT,
        "layout_hash": layout_hash(cache),
        "seq_id": 0,
        "seq_length": length,
        **_pages(cache, group, length),
    }


def _pages(cache: PagedKVCache, group: LayerGroup, length: int) -> dict[str, Any]:
    size = cache.config.page_tokens
    starts = range(0, length, size)
    shape = list(page_group(cache).shape(len(starts)))
    first = group.layers[0]
    return {
        "logical_pages": [
            {"logical_page_index": at, "start_pos": start, "length": min(size, length - start)}
            for at, start in enumerate(starts)
        ],
        "groups": [
            {
                "group_index": at, "layer_begin": first + at, "layer_end": first + at + 1,
                "num_logical_pages": len(starts), "dtype": TVM_DTYPES[str(group.page_dtype)],
                "shape": shape, "nbytes": len(starts) * cache.layout(group.name).slot_bytes[0],
            }
            for at in range(len(group.layers))
        ],
    }  # fmt: skip


def to_text(fields: Mapping[str, Any]) -> str:
    """The JSON as TVM writes it: compact, floats as %.17g, with ".0" where they look like integers."""
    marked = {name: f"\0{name}" if isinstance(value, float) else value for name, value in fields.items()}
    text = json.dumps(marked, separators=(",", ":"))
    for name, value in fields.items():
        if isinstance(value, float):
            number = f"{value:.17g}"
            number += ".0" if number.lstrip("-").isdigit() else ""
            text = text.replace(f'"\\u0000{name}"', number)
    return text


def check(cache: PagedKVCache, found: Mapping[str, Any]) -> int:
    """The length of the sequence that metadata describes, if this cache can import it; changes nothing.

    Unknown fields are ignored, and integers pass for floats, 0 and 1 for booleans, as with TVM.  Raises
    `IdentityError` for a field of another layout, `DamageError` for one that is missing or inconsistent,
    `CheckpointError` if the pages do not fit.
    """
    expected = metadata(cache, 0)
    _same("format_version", _integer(found, "format_version"), FORMAT)
    for name in _LAYOUT_FIELDS:
        _same(name, _typed(found, name, expected[name]), expected[name])
    for name in _OPERATIONAL_FIELDS:
        if _integer(found, name) <= 0:
            raise DamageError(f"metadata field {name!r}: found {found[name]}, it must be positive")
    if _integer(found, "seq_id") != 0:
        raise DamageError(
            f"metadata field 'seq_id': found {found['seq_id']}, TVM's format has sequence id 0 only"
        )
    length = _integer(found, "seq_length")
    if not 0 <= length <= _LARGEST_LENGTH:
        what = "cannot be negative" if length < 0 else f"is over {_LARGEST_LENGTH}"
        raise DamageError(f"metadata field 'seq_length': found {length}, it {what}")
    pages = -(-length // cache.config.page_tokens)
    if pages > min(found["num_total_pages"], cache.config.total_pages):
        fewest = min(found["num_total_pages"], cache.config.total_pages)
        raise CheckpointError(f"metadata field 'seq_length': {length} tokens need {pages} pages of {fewest}")
    listed = _list(found, "logical_pages")
    if len(listed) != pages:
        raise DamageError(
            f"sequence length mismatch: seq_length {length} needs {pages} logical pages, found {len(listed)}"
        )
    expected = metadata(cache, length)
    _same("layout hash", _typed(found, "layout_hash", ""), expected["layout_hash"])
    _items("logical_pages", listed, expected["logical_pages"])
    _items("groups", _list(found, "groups"), expected["groups"])
    return length


def parse(text: str) -> dict[str, Any]:
    """The JSON object of metadata; `DamageError` for anything else."""
    try:
        found = parse_json(text.encode())
    except ValueError as error:
        raise DamageError(f"metadata is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DamageError(f"metadata is a JSON {type(found).__name__}, expected an object")
    return found


def _items(name: str, found: list[Any], expected: list[dict[str, Any]]) -> None:
    if len(found) != len(expected):
        raise DamageError(f"metadata field {name!r}: found {len(found)} items, expected {len(expected)}")
    for at, (item, wanted) in enumerate(zip(found, expected, strict=True)):
        if not isinstance(item, Mapping):
            raise DamageError(f"metadata field {name}[{at}]: found {item!r:.40}, expected an object")
        for key, value in wanted.items():
            there = _typed(item, key, value)
            if there != value:
                raise DamageError(
                    f"metadata field {name}[{at}].{key}: found {there!r:.60}, expected {value!r}"
                )


def _typed(found: Mapping[str, Any], name: str, like: Any) -> Any:
    """A field, of the type of `like`."""
    if name not in found:
        raise DamageError(f"metadata is missing field {name!r}")
    value = found[name]
    accepted: tuple[type, ...] = {bool: (bool, int), float: (float, int)}.get(type(like), (type(like),))
    if type(value) not in accepted or (type(like) is bool and value not in (0, 1)):
        raise DamageError(f"metadata field {name!r}: found {value!r:.60}, expected {type(like).__name__}")
    return value


def _integer(found: Mapping[str, Any], name: str) -> int:
    return int(_typed(found, name, 0))


def _list(found: Mapping[str, Any], name: str) -> list[Any]:
    return list(_typed(found, name, []))


def _same(field: str, found: object, expected: object) -> None:
    if found != expected:
        raise IdentityError(field, found, expected)
