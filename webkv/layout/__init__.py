"""What a page's bytes are.  Pure data: no numpy, no GPU.

A cache declares its layout once, as a `PageLayout` (`declare`, and `build` for the usual ones).  Kernels get
their strides from it, checkpoints its bytes and id, copies and exports their byte runs; no other room may
know an offset.
"""

from __future__ import annotations

from webkv.layout.build import Section, kv, latent, state, with_replicated
from webkv.layout.declare import DTYPE_BYTES, Axis, PageLayout, Strides, Tensor

__all__ = [
    "DTYPE_BYTES",
    "Axis",
    "PageLayout",
    "Section",
    "Strides",
    "Tensor",
    "kv",
    "latent",
    "state",
    "with_replicated",
]
