"""Twins of the append kernels."""

from __future__ import annotations

import numpy as np

from webkv.kernels.reference.pages import Floats, Ints, Words, set_kv
from webkv.kernels.shape import AttentionShape


def rotate(x: Floats, table: Floats, shape: AttentionShape) -> Floats:
    """Turn the first `rotary_dim` dims of `x[n][heads][head_dim]` by `table[n][rotary_dim / 2][2]` (RoPE)."""
    made = x.copy()
    half = shape.rotary_dim // 2
    if shape.pairing == "half":
        low, high = slice(0, half), slice(half, 2 * half)
    else:
        low, high = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    cos, sin = table[:, None, :, 0], table[:, None, :, 1]
    made[..., low] = x[..., low] * cos - x[..., high] * sin
    made[..., high] = x[..., high] * cos + x[..., low] * sin
    return made


def _split(qkv: Floats, shape: AttentionShape) -> tuple[Floats, Floats, Floats]:
    n, v_base = len(qkv), shape.q_width + shape.kv_heads * shape.head_dim
    q = qkv[:, : shape.q_width].reshape(n, shape.q_heads, shape.head_dim)
    k = qkv[:, shape.q_width : v_base].reshape(n, shape.kv_heads, shape.head_dim)
    return q, k, qkv[:, v_base:].reshape(n, shape.kv_heads, shape.v_dim)


def append_kv(
    qkv: Floats, pages: Words, append_position_map: Ints, rope_table: Floats, shape: AttentionShape
) -> tuple[Floats, Words]:
    """`(qkv with rotated queries, pages with the new tokens)`."""
    q, k, v = _split(qkv, shape)
    turned = qkv.copy()
    if shape.rope != "none":
        turned[:, : shape.q_width] = rotate(q, rope_table, shape).reshape(len(qkv), -1)
    if shape.rope == "normal":
        k = rotate(k, rope_table, shape)
    return turned, set_kv(pages, append_position_map, k, v, shape)


def append_mla_kv(latent: Floats, pages: Words, append_position_map: Ints, shape: AttentionShape) -> Words:
    """`pages` with the rows of `latent[n][head_dim]` written."""
    rows = latent.reshape(-1, 1, shape.head_dim)
    return set_kv(pages, append_position_map, rows, rows, shape)


def fuse_qkv(q: Floats, k: Floats, v: Floats) -> Floats:
    """Fused rows of separate ones."""
    return np.concatenate([x.reshape(len(q), -1) for x in (q, k, v)], axis=1)
