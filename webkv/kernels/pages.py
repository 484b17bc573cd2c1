"""Moving page contents: copies for forks, compaction after a token tree, export, import, runs of words."""

from __future__ import annotations

from webkv.gpu import Batch, Kernel
from webkv.kernels.append import set_kv
from webkv.kernels.shape import ELEMENTS_PER_WORD, STRIDES, AttentionShape, Binding
from webkv.kernels.variants import page_codec

__all__ = [
    "compact_kv",
    "copy_pages",
    "copy_runs",
    "export_pages",
    "get_kv",
    "import_pages",
    "set_kv",
]

_LANES = 32
_WORDS = (*STRIDES, "PAGE_TOKENS", "PAGE_WORDS", "KV_HEADS", "HEAD_DIM", "V_DIM")


def _words_kernel(batch: Batch, name: str, shape: AttentionShape) -> Kernel:
    """A kernel that knows which word of a page belongs to which slot."""
    layout = {"PER_WORD": ELEMENTS_PER_WORD[shape.dtype], "LATENT": shape.latent, "LANES": _LANES}
    imports = {name: name for name in ("page_strides", "page_words")}
    return batch.device.kernel(name, {**shape.constants(*_WORDS), **layout}, imports)


def _groups(lanes: int) -> int:
    return -(-lanes // _LANES)


def copy_pages(batch: Batch, *, pages: Binding, copies: Binding, count: int, shape: AttentionShape) -> None:
    """Copy the first `valid` slots of page `src` to page `dst`, for each of `count` triples in `copies`.

    `copies[count][3]` int32: (src, dst, valid).  No dst may be another triple's src or dst.
    """
    kernel = _words_kernel(batch, "copy_pages", shape)
    batch.dispatch(kernel, kernel.bind(pages, copies), _groups(shape.page_words), count)


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
    kernel = _words_kernel(batch, "compact_kv", shape)
    words = shape.page_words // shape.page_tokens + 1
    batch.dispatch(kernel, kernel.bind(pages, moves, move_indptr), _groups(words), sequences)


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
    kernel = _words_kernel(batch, "export_pages", shape)
    batch.dispatch(kernel, kernel.bind(pages, exports, out), _groups(shape.page_words), count)


def import_pages(
    batch: Batch, *, data: Binding, pages: Binding, imports: Binding, count: int, shape: AttentionShape
) -> None:
    """Scatter `data[count][page_words]` to the pages `imports[count]` int32."""
    constants = {**shape.constants("PAGE_WORDS"), "LANES": _LANES}
    kernel = batch.device.kernel("import_pages", constants)
    batch.dispatch(kernel, kernel.bind(pages, imports, data), _groups(shape.page_words), count)


def copy_runs(batch: Batch, *, src: Binding, dst: Binding, runs: Binding, count: int, max_words: int) -> None:
    """Copy runs of u32 words: `runs[count][3]` u32 (src word, dst word, words), at most `max_words` each.

    Runs must not overlap in `dst`; `src` and `dst` are different buffers.
    """
    kernel = batch.device.kernel("copy_runs", {"LANES": _LANES})
    batch.dispatch(kernel, kernel.bind(src, dst, runs), _groups(max_words), count)


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
    imports = {"page": page_codec(shape), "pages": "pages_read", "page_strides": "page_strides"}
    for rows, dim, values in ((k, shape.head_dim, False), (v, shape.v_dim, True)):
        constants = {**shape.constants(*STRIDES, "PAGE_TOKENS", "KV_HEADS"), "DIM": dim, "VALUES": values}
        kernel = batch.device.kernel("page_rows", {**constants, "LANES": _LANES}, imports)
        batch.dispatch(kernel, kernel.bind(positions, pages, rows), _groups(shape.kv_heads * dim // 4), count)
