"""Writing new keys and values into pages."""

from __future__ import annotations

from typing import Any

from webkv.gpu import Batch
from webkv.kernels.shape import AttentionShape, Binding

_LANES = 32


def append_kv(
    batch: Batch,
    *,
    qkv: Binding,
    pages: Binding,
    append_position_map: Binding,
    rope_table: Binding,
    step: Binding,
    n: int,
    shape: AttentionShape,
) -> None:
    """Rotate the queries of `n` fused rows in place, and write rotated keys, and values, to pages.

    `qkv[n][fused_width]` f32: `[q_heads][head_dim] | [kv_heads][head_dim] | [kv_heads][v_dim]`.
    `append_position_map[n]` int32: page * page_tokens + slot, or -1 to write nothing.
    `rope_table[n][rotary_dim / 2]` f32 pairs (cos, sin); not read when `shape.rope` is "none"; "inline"
    rotates queries only.  `step`: uniform u32x4, n first.  int8 pages hold levels of absmax / 127 per
    (token, head), halves rounded to even.
    """


def append_mla_kv(
    batch: Batch,
    *,
    latent: Binding,
    pages: Binding,
    append_position_map: Binding,
    step: Binding,
    n: int,
    shape: AttentionShape,
) -> None:
    """Write `n` rows of `latent[n][head_dim]` f32 to pages (MLA of DeepSeek-V2); rotated rope part included.

    `append_position_map` and `step` as in `append_kv`.
    """


def fuse_qkv(
    batch: Batch,
    *,
    q: Binding,
    k: Binding,
    v: Binding,
    qkv: Binding,
    step: Binding,
    n: int,
    shape: AttentionShape,
) -> None:
    """Copy separate rows to the fused rows `qkv[n][fused_width]` of `append_kv`.

    `q[n][q_heads][head_dim]`, `k[n][kv_heads][head_dim]`, `v[n][kv_heads][v_dim]`, all f32.
    """


__all__ = ["append_kv", "append_mla_kv", "fuse_qkv"]
_ = Any, _LANES
