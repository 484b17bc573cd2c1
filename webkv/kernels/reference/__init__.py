"""Numpy twins of the kernels: the same names, plain arrays in, new arrays out, float64 inside where it sums.

A twin is written for reading, not for speed; tests hold each kernel against it.
"""

from __future__ import annotations

from webkv.kernels.reference.append import append_kv, append_mla_kv, fuse_qkv, rotate
from webkv.kernels.reference.attention import attend_decode, attend_prefill, kv_positions, merge_state
from webkv.kernels.reference.pages import (
    compact_kv,
    copy_pages,
    copy_runs,
    export_pages,
    get_kv,
    import_pages,
    set_kv,
)
from webkv.kernels.reference.quant import unpack

__all__ = [
    "append_kv",
    "append_mla_kv",
    "attend_decode",
    "attend_prefill",
    "compact_kv",
    "copy_pages",
    "copy_runs",
    "export_pages",
    "fuse_qkv",
    "get_kv",
    "import_pages",
    "kv_positions",
    "merge_state",
    "rotate",
    "set_kv",
    "unpack",
]
