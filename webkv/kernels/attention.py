"""Attention over pages: softmax(q k^T * sm_scale) v, for rows of many lengths, and merging partial results.

Both kernels walk a sequence's keys in tiles of `KV_TILE` tokens that start at absolute multiples of it, so a
row's bits depend neither on the other rows of the batch nor on where a prompt was cut into chunks.
"""

from __future__ import annotations

from webkv.gpu import Batch
from webkv.kernels.shape import AttentionShape, Binding, PageTable

KV_TILE = 256
"""Tokens of a split of decode; splits start at absolute multiples of it."""

NO_LSE = -5e4
"""The lse of a row that sees no key, as in TVM; its weight in a merge is 0."""


def kv_tiles(first: int, end: int) -> int:
    """How many tiles hold the absolute positions `first` (of the first listed page) `.. end - 1`."""
    return max(0, -(-end // KV_TILE) - first // KV_TILE)


def decode_scratch_bytes(sequences: int, max_tiles: int, shape: AttentionShape) -> int:
    """Bytes `attend_decode` needs in `scratch`; 0 if every sequence has one tile at most."""
    rows = sequences * max_tiles * shape.q_heads
    return 0 if max_tiles <= 1 else 4 * rows * (shape.v_dim + 2)


def attend_decode(
    batch: Batch,
    *,
    q: Binding,
    pages: Binding,
    table: PageTable,
    out: Binding,
    scratch: Binding,
    sequences: int,
    max_tiles: int,
    shape: AttentionShape,
    lse: Binding | None = None,
    q_stride: int = 0,
    rope_full: Binding | None = None,
) -> None:
    """One query row per sequence: `out[sequences][q_heads][v_dim]`, split over tiles (Flash-Decoding).

    `q`: f32 rows of `q_stride` floats (0: `shape.fused_width`) that start with `[q_heads][head_dim]`; row s
    is the last token of sequence s.  `max_tiles`: the largest `kv_tiles` of the batch.  `scratch`: at least
    `decode_scratch_bytes` long.  `lse[sequences][q_heads]`: f32, base 2, optional.
    `rope_full[max length][rotary_dim / 2]` pairs (cos, sin): for "inline" shapes.  A row without keys gives
    0 and `NO_LSE`.
    """


def attend_prefill(
    batch: Batch,
    *,
    q: Binding,
    pages: Binding,
    table: PageTable,
    qo_indptr: Binding,
    out: Binding,
    sequences: int,
    max_rows: int,
    shape: AttentionShape,
    lse: Binding | None = None,
    q_stride: int = 0,
    causal: bool = True,
    tree: Binding | None = None,
    rope_full: Binding | None = None,
) -> None:
    """Ragged query rows: `out[qo_indptr[sequences]][q_heads][v_dim]` f32.

    Row r of a sequence's q_len rows sees logical key c if c <= L - q_len + r, and c > L - q_len + r - window
    where the shape has a window; every key if not `causal`.  `max_rows`: the largest q_len.
    `tree` int32: `tree_indptr[sequences + 1]`, then (first, end) pairs, the pre-order numbers of the nodes of
    all trees.  The last T keys of a sequence with T nodes are its tree's; row r is node T - q_len + r and sees
    node j if first_j <= first_r < end_j (T = 0: causal).  At most one of `lse`, `tree` and `rope_full` may be
    given.  Other arguments as in `attend_decode`.
    """


def merge_state(
    batch: Batch,
    *,
    out: Binding,
    lse: Binding,
    other_out: Binding,
    other_lse: Binding,
    rows: int,
    v_dim: int,
) -> None:
    """Merge attention over two disjoint sets of keys into `out`, `lse`, in place (FlashInfer's states).

    `out[rows][v_dim]`, `lse[rows]` f32, base 2; a row is one (token, query head).
    """
