"""What a page's bytes are.  Pure data: no numpy, no GPU.

A cache declares its layout once, as a `PageLayout` (`declare`, and `build` for the usual ones).  Kernels get
their strides from it (`PageLayout.strides`), checkpoints its bytes and id (`identity`), copies and exports
their byte runs (`plan`, `runs`); no other room may know an offset.  Which share of the heads a holder has is
a `Held`, beside the layout.  Other engines' arrays are declared in `formats`.
"""

from __future__ import annotations

from webkv.layout.build import Section, kv, latent, state, with_replicated
from webkv.layout.declare import DTYPE_BYTES, Axis, PageLayout, Strides, Tensor
from webkv.layout.held import Held, share
from webkv.layout.identity import (
    canonical_json,
    content_id,
    declaration,
    layout_id,
    parse,
    tvm_descriptor,
    tvm_layout_hash,
)
from webkv.layout.plan import plan
from webkv.layout.runs import CONVERTERS, BufferPair, Run, WordRun, copy_bytes, merged, word_runs

__all__ = [
    "CONVERTERS",
    "DTYPE_BYTES",
    "Axis",
    "BufferPair",
    "Held",
    "PageLayout",
    "Run",
    "Section",
    "Strides",
    "Tensor",
    "WordRun",
    "canonical_json",
    "content_id",
    "copy_bytes",
    "declaration",
    "kv",
    "latent",
    "layout_id",
    "merged",
    "parse",
    "plan",
    "share",
    "state",
    "tvm_descriptor",
    "tvm_layout_hash",
    "with_replicated",
    "word_runs",
]
