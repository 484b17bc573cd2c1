"""Twins of the attention kernels: dense float64 softmax over the keys of each sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from webkv.kernels.attention import NO_LSE
from webkv.kernels.reference.append import rotate
from webkv.kernels.reference.pages import Floats, Ints, Words, get_kv
from webkv.kernels.shape import AttentionShape

Table = tuple[Ints, Ints, Ints]
"""`(page_indptr, page_indices, length_info)`."""


def kv_positions(table: Table, sequence: int, page_tokens: int) -> Ints:
    """The positions (page * page_tokens + slot) of a sequence's keys in logical order."""
    page_indptr, page_indices, length_info = table
    pages = page_indices[page_indptr[sequence] : page_indptr[sequence + 1]]
    if not len(pages):
        return np.zeros(0, np.int32)
    last, offset, sink, _ = length_info.reshape(4, -1)[:, sequence]
    slots = np.arange((len(pages) - 1) * page_tokens + last)
    slots = np.concatenate([slots[:sink], slots[offset:]])
    return (pages[slots // page_tokens] * page_tokens + slots % page_tokens).astype(np.int32)


def _row_mask(
    q_len: int, length: int, shape: AttentionShape, causal: bool, tree: Ints | None
) -> NDArray[np.bool_]:
    """`[q_len][length]`: which keys each row sees."""
    row, key = np.arange(q_len)[:, None] + length - q_len, np.arange(length)[None, :]
    seen = np.ones((q_len, length), bool)
    if causal:
        seen &= key <= row
    if causal and shape.window:
        seen &= key > row - shape.window
    if tree is not None and len(tree):
        nodes = len(tree)
        first, end = tree[:, 0], tree[:, 1]
        mine = first[nodes - q_len :, None]
        seen[:, length - nodes :] = (first[None, :] <= mine) & (mine < end[None, :])
    return seen


def _attend(
    q: Floats, k: Floats, v: Floats, seen: NDArray[np.bool_], shape: AttentionShape
) -> tuple[Floats, Floats]:
    """`(out[q_len][q_heads][v_dim], lse[q_len][q_heads])` of one sequence."""
    keys, values = (np.repeat(x, shape.group, axis=1).astype(np.float64) for x in (k, v))
    score = np.einsum("rhd,chd->rhc", q.astype(np.float64), keys) * shape.sm_scale
    if shape.softcap:
        score = shape.softcap * np.tanh(score / shape.softcap)
    score = np.where(seen[:, None, :], score * np.log2(np.e), -np.inf)
    top = score.max(axis=-1, keepdims=True, initial=-1e30)
    p = np.exp2(score - top)
    total = p.sum(axis=-1, keepdims=True)
    some = total > 0
    out = np.einsum("rhc,chd->rhd", p, values) / np.where(some, total, 1)
    lse = np.where(some, top + np.log2(np.where(some, total, 1)), NO_LSE)[..., 0]
    return out.astype(np.float32), lse.astype(np.float32)


def attend_prefill(
    q: Floats,
    pages: Words,
    table: Table,
    qo_indptr: Ints,
    shape: AttentionShape,
    *,
    causal: bool = True,
    tree: Ints | None = None,
    rope_full: Floats | None = None,
) -> tuple[Floats, Floats]:
    """`(out[n][q_heads][v_dim], lse[n][q_heads])` for rows `q[n][q_stride]`."""
    sequences = len(qo_indptr) - 1
    out = np.zeros((len(q), shape.q_heads, shape.v_dim), np.float32)
    lse = np.full((len(q), shape.q_heads), NO_LSE, np.float32)
    heads = q[:, : shape.q_width].reshape(len(q), shape.q_heads, shape.head_dim)
    for s in range(sequences):
        rows = slice(qo_indptr[s], qo_indptr[s + 1])
        k, v = get_kv(pages, kv_positions(table, s, shape.page_tokens), shape)
        if rope_full is not None:
            k = rotate(k, rope_full[: len(k)], shape)
        nodes = None
        if tree is not None:
            nodes = tree[sequences + 1 :].reshape(-1, 2)[tree[s] : tree[s + 1]]
        seen = _row_mask(qo_indptr[s + 1] - qo_indptr[s], len(k), shape, causal, nodes)
        out[rows], lse[rows] = _attend(heads[rows], k, v, seen, shape)
    return out, lse


def attend_decode(
    q: Floats, pages: Words, table: Table, shape: AttentionShape, *, rope_full: Floats | None = None
) -> tuple[Floats, Floats]:
    """`attend_prefill` with one row per sequence."""
    return attend_prefill(q, pages, table, np.arange(len(q) + 1, dtype=np.int32), shape, rope_full=rope_full)


def merge_state(out: Floats, lse: Floats, other_out: Floats, other_lse: Floats) -> tuple[Floats, Floats]:
    """`(out[rows][v_dim], lse[rows])` over both sets of keys."""
    top = np.maximum(lse, other_lse).astype(np.float64)
    weight, other = np.exp2(lse - top), np.exp2(other_lse - top)
    merged = (out * weight[:, None] + other_out * other[:, None]) / (weight + other)[:, None]
    return merged.astype(np.float32), (top + np.log2(weight + other)).astype(np.float32)
