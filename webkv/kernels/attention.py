"""Attention over pages: softmax(q k^T * sm_scale) v, for rows of many lengths, and merging partial results.

Both kernels walk a sequence's keys in tiles that start at absolute multiples of their size, so a row's bits
depend neither on the other rows of the batch nor on where a prompt was cut into chunks.

Each kernel has variants, between which the device's facts and the shape choose; see `variants`.
"""

from __future__ import annotations

from dataclasses import dataclass

import wgpu

from webkv.gpu import Batch
from webkv.kernels.shape import AttentionShape, Binding, PageSource, PageTable
from webkv.kernels.texels import open_tokens
from webkv.kernels.variants import (
    KV_TILE,
    PREFILL_PART,
    appends,
    attention_constants,
    attention_parts,
    decode_rows,
    decode_share,
    key_part,
    prefill_rows,
    prefill_share,
    prefill_teams,
    turns,
)

NO_LSE = -5e4
"""The lse of a row that sees no key, as in TVM; its weight in a merge is 0."""


def decode_scratch_bytes(sequences: int, max_tiles: int, shape: AttentionShape) -> int:
    """Bytes `attend_decode` needs in `scratch`; 0 if every sequence has one tile at most."""
    return 0 if max_tiles <= 1 else 4 * sequences * scratch_floats(max_tiles + 1, shape)


def scratch_floats(parts: int, shape: AttentionShape) -> int:
    """Floats that the records of `parts` parts of each query row take in scratch."""
    return parts * shape.q_heads * (shape.v_dim + 4)


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
    append: bool = False,
    rope_table: Binding | None = None,
    closed: wgpu.GPUTextureView | None = None,
) -> None:
    """One query row per sequence: `out[sequences][q_heads][v_dim]`, split over tiles (Flash-Decoding).

    `q`: f32 rows of `q_stride` floats (0: `shape.fused_width`) that start with `[q_heads][head_dim]`; row s
    is the last token of sequence s.  `max_tiles`: the largest `kv_tiles` of the batch.  `scratch`: at least
    `decode_scratch_bytes` long.  `lse[sequences][q_heads]`: f32, base 2, optional (not for "inline" shapes).
    `rope_full[max length][rotary_dim / 2]` pairs (cos, sin): for "inline" shapes.  A row without keys gives
    0 and `NO_LSE`.

    `append`: the last tokens are not in their pages yet, and `q` are their fused rows, queries not rotated.
    The kernel then writes the same bits to pages as `append_kv` with this `rope_table`, and attends with
    the same rotated queries, but leaves `q` alone.  For shapes that `appends` approves.

    `closed`: a texture that has the first `closed_blocks` of each sequence's pages, for shapes that
    `reads_textures` approves.  With more than one tile, and no `lse`, they are read from there.
    """
    assert (rope_full is not None) == (shape.rope == "inline"), "rope_full belongs to inline shapes"
    assert not append or appends(batch.device, shape), "this shape's tokens are appended by append_kv"
    turning = rope_table if append and turns(shape) else None
    run = _Decode(batch, q, table, sequences, shape, q_stride, append, turning)
    extra = lse if rope_full is None else rope_full
    if max_tiles <= 1:
        run.dispatch(pages, out, 1, {"store": "attend_store" if lse is None else "attend_store_lse"}, extra)
    elif closed is None or extra is not None:
        run.dispatch(pages, scratch, max_tiles, {"store": "attend_store_split"}, rope_full)
        _merge(batch, scratch, out, lse, sequences, shape, table=table)
    else:
        both = {"store": "attend_store_split", "open": "attend_open"}
        run.dispatch(closed, scratch, max_tiles, {**both, "part": "attend_part_closed"})
        last = {**both, "part": "attend_part_open", "merge": "merge_parts"}
        run.dispatch(pages, scratch, 1, last, None, out)


@dataclass(frozen=True)
class _Decode:
    """What all dispatches of one `attend_decode` have in common."""

    batch: Batch
    q: Binding
    table: PageTable
    sequences: int
    shape: AttentionShape
    q_stride: int
    append: bool
    rope_table: Binding | None

    def dispatch(
        self, pages: PageSource, target: Binding, tiles: int, imports: dict[str, str],
        extra: Binding | None = None, out: Binding | None = None,
    ) -> None:  # fmt: skip
        """Attend to `tiles` parts of every sequence; `imports` say which, and how they are stored."""
        shape, device = self.shape, self.batch.device
        rows, share = decode_rows(device, shape), decode_share(device, shape)
        constants = {**attention_constants(device, shape, self.q_stride, rows, share), "SPLIT": KV_TILE}
        if "open" in imports:
            constants["OPEN"] = open_tokens(shape.page_tokens)
        texture = isinstance(pages, wgpu.GPUTextureView)
        found = {**attention_parts(device, shape, texture, share), "append": "attend_appended"}
        found |= {"part": "attend_part_split", "key": key_part(shape, constants)}
        if self.append:
            self._append(found, constants, texture)
        kernel = device.kernel("attend_decode", constants, {**found, **imports})
        tables = (self.table.page_indptr, self.table.length_info, self.table.page_indices)
        group = kernel.bind(self.q, pages, *tables, target, self.rope_table, extra, out)
        parts = -(-shape.group // rows)
        self.batch.dispatch(kernel, group, shape.kv_heads * parts, tiles, self.sequences)

    def _append(self, imports: dict[str, str], constants: dict[str, float], texture: bool) -> None:
        """Rotate queries, and write the last tokens unless pages are a texture, which lacks them."""
        imports |= {"query": "attend_query_turned", "append": "attend_append", "rope": "attend_no_rope"}
        if turns(self.shape):
            imports["rope"] = "attend_rope"
            constants |= self.shape.constants("ROTARY_DIM", "INTERLEAVED")
        if texture:
            imports["put"] = "attend_put_none"
        else:
            put = imports["page"].replace("page_", "pages_put_")
            imports |= {"put": "attend_put", "encode": f"encode_{self.shape.dtype}", "pages": put}


def _merge(
    batch: Batch, scratch: Binding, out: Binding, lse: Binding | None, rows: int, shape: AttentionShape,
    *, table: PageTable | None = None, parts: int = 0,
) -> None:  # fmt: skip
    """Merge the records of each row: `parts`, or as many as the row's sequence has splits by `table`."""
    constants = {**shape.constants("V_DIM"), "LANES": shape.v_dim // 4}
    imports = {"merge": "merge_parts", "lse": "merge_no_lse" if lse is None else "merge_lse"}
    tables: tuple[Binding | None, ...] = (None, None)
    if table is None:
        imports["splits"] = "splits_of_rows"
        constants["PARTS"] = parts
    else:
        imports |= {"splits": "splits_of_sequence", "page_table": "page_table"}
        constants |= {**shape.constants("PAGE_TOKENS", "WINDOW"), "SPLIT": KV_TILE}
        tables = table.page_indptr, table.length_info
    kernel = batch.device.kernel("merge_splits", constants, imports)
    group = kernel.bind(scratch, None, *tables, None, out, None, lse)
    batch.dispatch(kernel, group, shape.q_heads, rows)


@dataclass(frozen=True)
class Parts:
    """What prefill needs for more than one part of keys.

    `count`: the largest `kv_parts` of the batch.  `rows`: of all sequences.  `scratch`:
    `scratch_floats` for each of them.
    """

    count: int
    rows: int
    scratch: Binding


def attend_prefill(
    batch: Batch,
    *,
    q: Binding,
    pages: PageSource,
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
    parts: Parts | None = None,
) -> None:
    """Ragged query rows: `out[qo_indptr[sequences]][q_heads][v_dim]` f32 (FlashAttention over pages).

    Row r of a sequence's q_len rows sees logical key c if c <= L - q_len + r, and c > L - q_len + r - window
    where the shape has a window; every key if not `causal`.  `max_rows`: the largest q_len.
    `tree` int32: `tree_indptr[sequences + 1]`, then (first, end) pairs, the pre-order numbers of the nodes of
    all trees.  The last T keys of a sequence with T nodes are its tree's; row r is node T - q_len + r and
    sees node j if first_j <= first_r < end_j (T = 0: causal).  At most one of `lse`, `tree` and `rope_full`
    may be given.  `pages`: their buffer, or a texture of it for shapes that `reads_textures` approves.  Other
    arguments as in `attend_decode`.

    `parts`: for batches in which a sequence has several; each is attended to by itself, and all are merged.
    """
    assert (rope_full is not None) == (shape.rope == "inline"), "rope_full belongs to inline shapes"
    extras = [extra for extra in (lse, tree, rope_full) if extra is not None]
    assert len(extras) <= 1, "only one of lse, tree and rope_full fits into eight bindings"
    rows, teams, share = (f(batch.device, shape) for f in (prefill_rows, prefill_teams, prefill_share))
    constants = {**attention_constants(batch.device, shape, q_stride, rows, share), "CAUSAL": causal}
    constants["PART"] = PREFILL_PART
    if teams > 1:
        constants["TEAMS"] = teams
    imports = attention_parts(batch.device, shape, isinstance(pages, wgpu.GPUTextureView), share)
    imports["key"] = key_part(shape, constants)
    imports["mask"] = "attend_mask" if tree is None else "attend_mask_tree"
    imports["store"] = "attend_store" if lse is None else "attend_store_lse"
    target, count = out, 1
    if parts is not None:
        imports["store"] = "attend_store_split"
        target, count = parts.scratch, parts.count
        extras = [extra for extra in extras if extra is not lse]
    kernel = batch.device.kernel("attend_prefill", constants, imports)
    tables = (table.page_indptr, table.length_info, table.page_indices)
    group = kernel.bind(q, pages, *tables, target, qo_indptr, *extras)
    pairs = max_rows * shape.group
    batch.dispatch(kernel, group, -(-pairs // (rows * teams)), shape.kv_heads * count, sequences)
    if parts is not None:
        _merge(batch, parts.scratch, out, lse, parts.rows, shape, parts=count)


def merge_state(
    batch: Batch,
    *,
    out: Binding,
    lse: Binding,
    other_out: Binding,
    other_lse: Binding,
    n: int,
    heads: int,
    v_dim: int,
) -> None:
    """Merge attention over two disjoint sets of keys into `out`, `lse`, in place (FlashInfer's states).

    `out[n][heads][v_dim]`, `lse[n][heads]` f32, base 2.
    """
    kernel = batch.device.kernel("merge_state", {"V_DIM": v_dim, "LANES": v_dim // 4})
    batch.dispatch(kernel, kernel.bind(out, lse, other_out, other_lse), heads, n)
