"""Twins of the page kernels.  `pages` is a layer's buffer as a 1-d array of uint32 words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from webkv.kernels.shape import ELEMENTS_PER_WORD, AttentionShape
from webkv.layout import Strides

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

PAGE_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "int8": np.dtype("i1")
}  # fmt: skip
"""numpy's dtype of each page dtype."""


def _elements(strides: Strides, positions: Ints, heads: int, dim: int, page_tokens: int) -> NDArray[np.int64]:
    """Element numbers `[n][heads][dim]` of tokens at `positions`."""
    page, slot = np.divmod(positions.astype(np.int64), page_tokens)
    token = strides.base + page * strides.page + slot * strides.token
    head = np.arange(heads, dtype=np.int64) * strides.head
    return token[:, None, None] + head[None, :, None] + np.arange(dim, dtype=np.int64)


def _tensors(shape: AttentionShape) -> list[tuple[Strides, Strides, int]]:
    tensors = [(shape.key, shape.key_scale, shape.head_dim)]
    return tensors if shape.latent else [*tensors, (shape.value, shape.value_scale, shape.v_dim)]


def _read(
    pages: Words, shape: AttentionShape, strides: Strides, scale: Strides, at: Ints, dim: int
) -> Floats:
    index = _elements(strides, at, shape.kv_heads, dim, shape.page_tokens)
    values = pages.view(PAGE_DTYPES[shape.dtype])[index].astype(np.float32)
    if shape.dtype == "int8":
        values *= pages.view(np.float32)[_elements(scale, at, shape.kv_heads, 1, shape.page_tokens)]
    return values


def _write(
    pages: Words, shape: AttentionShape, strides: Strides, scale: Strides, at: Ints, values: Floats
) -> None:
    index = _elements(strides, at, shape.kv_heads, values.shape[-1], shape.page_tokens)
    if shape.dtype == "int8":
        values, scales = quantize(values)
        pages.view(np.float32)[_elements(scale, at, shape.kv_heads, 1, shape.page_tokens)] = scales
    if shape.dtype == "f16":
        values = np.clip(values, -65504, 65504)
    pages.view(PAGE_DTYPES[shape.dtype])[index] = values


def quantize(values: Floats) -> tuple[Floats, Floats]:
    """int8 levels (as floats) of the last axis and its scale, absmax / 127; halves go to even.

    A row of less than 2^-119 becomes zeros: its scale would be subnormal, which a device may flush.
    """
    absmax = np.abs(values).max(axis=-1, keepdims=True).astype(np.float32)
    absmax = np.where(absmax < np.float32(2.0**-119), np.float32(0), absmax)
    with np.errstate(divide="ignore"):
        inverse = np.where(absmax > 0, np.float32(127) / absmax, np.float32(0))
    return np.rint(values * inverse).astype(np.float32), (absmax / np.float32(127)).astype(np.float32)


def get_kv(pages: Words, positions: Ints, shape: AttentionShape) -> tuple[Floats, Floats]:
    """`(k[n][kv_heads][head_dim], v[n][kv_heads][v_dim])` of tokens at `positions`; zeros where -1."""
    at = np.maximum(positions, 0)
    k = _read(pages, shape, shape.key, shape.key_scale, at, shape.head_dim)
    v = _read(pages, shape, shape.value, shape.value_scale, at, shape.v_dim)
    k[positions < 0] = 0
    v[positions < 0] = 0
    return k, v


def set_kv(pages: Words, positions: Ints, k: Floats, v: Floats, shape: AttentionShape) -> Words:
    """`pages` with the tokens at `positions` (-1: none) written from `k` and `v`."""
    made = pages.copy()
    write = positions >= 0
    for (strides, scale, _), values in zip(_tensors(shape), (k, v), strict=False):
        _write(made, shape, strides, scale, positions[write], values[write])
    return made


def slot_words(shape: AttentionShape) -> Ints:
    """For each word of a page, the slot it belongs to; -1 for a gap of the layout."""
    slots = np.full(shape.page_words, -1, np.int32)
    per_word = ELEMENTS_PER_WORD[shape.dtype]
    for strides, scale, dim in _tensors(shape):
        for slot in range(shape.page_tokens):
            at = np.array([slot], np.int32)
            slots[_elements(strides, at, shape.kv_heads, dim, shape.page_tokens).ravel() // per_word] = slot
            if shape.dtype == "int8":
                slots[_elements(scale, at, shape.kv_heads, 1, shape.page_tokens).ravel()] = slot
    return slots


def copy_pages(pages: Words, copies: Ints, shape: AttentionShape) -> Words:
    """`pages` after copying the first `valid` slots of `src` to `dst`, for each row (src, dst, valid)."""
    made = pages.copy().reshape(-1, shape.page_words)
    slots = slot_words(shape)
    for src, dst, valid in copies.reshape(-1, 3):
        copied = (slots >= 0) & (slots < valid)
        made[dst, copied] = made[src, copied]
    return made.ravel()


def compact_kv(pages: Words, moves: Ints, shape: AttentionShape) -> Words:
    """`pages` after moving tokens one after the other, for each row (src, dst) of positions."""
    made = pages.copy().reshape(-1, shape.page_words)
    slots = slot_words(shape)
    for src, dst in moves.reshape(-1, 2):
        src_page, src_slot = divmod(src, shape.page_tokens)
        dst_page, dst_slot = divmod(dst, shape.page_tokens)
        made[dst_page, slots == dst_slot] = made[src_page, slots == src_slot]
    return made.ravel()


def export_pages(pages: Words, exports: Ints, shape: AttentionShape) -> Words:
    """`out[n][page_words]` for each row (page, valid slots); what is not valid is 0."""
    slots = slot_words(shape)
    paged = pages.reshape(-1, shape.page_words)
    out = np.zeros((len(exports), shape.page_words), np.uint32)
    for row, (page, valid) in zip(out, exports.reshape(-1, 2), strict=True):
        row[:] = np.where((slots >= 0) & (slots < valid), paged[page], 0)
    return out


def import_pages(data: Words, pages: Words, imports: Ints, shape: AttentionShape) -> Words:
    """`pages` with page `imports[i]` replaced by `data[i]`."""
    made = pages.copy().reshape(-1, shape.page_words)
    made[imports] = data.reshape(-1, shape.page_words)
    return made.ravel()


def copy_runs(src: Words, dst: Words, runs: NDArray[np.uint32]) -> Words:
    """`dst` after copying each run (src word, dst word, words)."""
    made = dst.copy()
    for start, to, words in runs.reshape(-1, 3):
        made[to : to + words] = src[start : start + words]
    return made
