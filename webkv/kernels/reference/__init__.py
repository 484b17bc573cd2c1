"""Numpy twins of the kernels: the same names, plain arrays in, new arrays out, float64 inside where it sums.

A twin is written for reading, not for speed; tests hold each kernel against it.
"""

from __future__ import annotations

from webkv.kernels.reference.append import append_kv, append_mla_kv, fuse_qkv, rotate
from webkv.kernels.reference.attention import attend_decode, attend_prefill, kv_positions, merge_state
from webkv.kernels.reference.convert import convert_runs
from webkv.kernels.reference.model import (
    add,
    argmax,
    embed,
    gather_rows,
    gelu_mul,
    head_norm,
    matmul,
    norm_add,
    rms_norm,
    silu_mul,
    top_k,
)
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
    "add",
    "append_kv",
    "append_mla_kv",
    "argmax",
    "attend_decode",
    "attend_prefill",
    "compact_kv",
    "convert_runs",
    "copy_pages",
    "copy_runs",
    "embed",
    "export_pages",
    "fuse_qkv",
    "gather_rows",
    "gelu_mul",
    "get_kv",
    "head_norm",
    "import_pages",
    "kv_positions",
    "matmul",
    "merge_state",
    "norm_add",
    "rms_norm",
    "rotate",
    "set_kv",
    "silu_mul",
    "top_k",
    "unpack",
]
