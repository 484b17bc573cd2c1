"""What a page's bytes are.  Pure data: no numpy, no GPU.

A cache declares its layout once, as a `PageLayout` (`declare`, and `build` for the usual ones).  Kernels get
their strides from it, checkpoints its bytes and id, copies and exports their byte runs; no other room may
know an offset.
"""

from __future__ import annotations

from webkv.layout.build import Section, kv, latent, state, with_replicated
from webkv.layout.declare import DTYPE_BYTES, Axis, PageLayout, Strides, Tensor
from webkv.layout.identity import (
    canonical_json,
    content_id,
    declaration,
    layout_id,
    parse,
    tvm_descriptor,
    tvm_layout_hash,
)

__all__ = [
    "DTYPE_BYTES",
    "Axis",
    "PageLayout",
    "Section",
    "Strides",
    "Tensor",
    "canonical_json",
    "content_id",
    "declaration",
    "kv",
    "latent",
    "layout_id",
    "parse",
    "state",
    "tvm_descriptor",
    "tvm_layout_hash",
    "with_replicated",
]
