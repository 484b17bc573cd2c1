"""Moving page contents: copies for forks, compaction after a token tree, export, import, runs of words."""

from __future__ import annotations

from webkv.gpu import Batch
from webkv.kernels.shape import AttentionShape, Binding


def copy_pages(batch: Batch, *, pages: Binding, copies: Binding, count: int, shape: AttentionShape) -> None:
    """Copy the first `valid` slots of page `src` to page `dst`, for each of `count` triples in `copies`.

    `copies[count][3]` int32: (src, dst, valid).  No dst may be another triple's src or dst.
    """


def compact_kv(
    batch: Batch,
    *,
    pages: Binding,
    moves: Binding,
    move_indptr: Binding,
    sequences: int,
    shape: AttentionShape,
) -> None:
    """Move tokens: `moves[...][2]` int32 (src, dst), each page * page_tokens + slot, in order.

    `move_indptr[sequences + 1]`: each sequence's part of `moves`.  Moves of one sequence run one after the
    other, so a src may be an earlier move's dst; sequences must not touch each other's tokens.
    """


def export_pages(
    batch: Batch,
    *,
    pages: Binding,
    exports: Binding,
    out: Binding,
    count: int,
    shape: AttentionShape,
) -> None:
    """Gather `count` pages into `out[count][page_words]`; slots from `valid` on, and gaps, become 0.

    `exports[count][2]` int32: (page, valid slots).
    """


def import_pages(
    batch: Batch, *, data: Binding, pages: Binding, imports: Binding, count: int, shape: AttentionShape
) -> None:
    """Scatter `data[count][page_words]` to the pages `imports[count]` int32."""


def copy_runs(batch: Batch, *, src: Binding, dst: Binding, runs: Binding, count: int, max_words: int) -> None:
    """Copy runs of u32 words: `runs[count][3]` u32 (src word, dst word, words), at most `max_words` each.

    Runs must not overlap in `dst`; `src` and `dst` are different buffers.
    """


def get_kv(
    batch: Batch,
    *,
    pages: Binding,
    positions: Binding,
    k: Binding,
    v: Binding,
    count: int,
    shape: AttentionShape,
) -> None:
    """Read tokens as f32: `k[count][kv_heads][head_dim]`, `v[count][kv_heads][v_dim]`.

    `positions[count]` int32: page * page_tokens + slot; -1 gives 0.
    """


def set_kv(
    batch: Batch,
    *,
    pages: Binding,
    positions: Binding,
    k: Binding,
    v: Binding,
    count: int,
    shape: AttentionShape,
) -> None:
    """Write tokens from f32 rows as they are, without rope; shapes as in `get_kv`, -1 writes nothing."""
