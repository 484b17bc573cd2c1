"""Attention over pages: softmax(q k^T * sm_scale) v, for rows of many lengths, and merging partial results.

Both kernels walk a sequence's keys in tiles that start at absolute multiples of their size, so a row's bits
depend neither on the other rows of the batch nor on where a prompt was cut into chunks.

Each kernel has two variants, between which the device's facts and the shape choose: the portable one stays
within WebGPU's defaults; on a CPU, quad operations keep queries and sums in registers (`uses_quads`), and
pages are read in 64-bit words where the device has "shader-int64", for the same bits.
"""

from __future__ import annotations

from webkv.gpu import Batch, Device, Kernel
from webkv.kernels.shape import STRIDES, AttentionShape, Binding, PageTable

KV_TILE = 512
"""Tokens of a split of decode; they start at absolute multiples of it."""

NO_LSE = -5e4
"""The lse of a row that sees no key, as in TVM; its weight in a merge is 0."""

# Query rows that share the keys a portable workgroup reads: 8 rows x 8 keys fill a GPU lane's registers.
_MAX_ROWS = 8
_MIN_LANES = 32
_TURNED_FLOATS = 1024  # of rotated queries in workgroup memory; see attend_query_turned
_CONSTANTS = (
    *STRIDES, "PAGE_TOKENS", "HEAD_DIM", "V_DIM", "GROUP", "KV_HEADS", "WINDOW", "SM_SCALE", "SOFTCAP",
)  # fmt: skip
_PARTS = ("page_table", "page_strides", "page_place", "attend_row")
_STEPS = ("core", "tile", "walk")


def uses_quads(device: Device, shape: AttentionShape) -> bool:
    """Whether attention of this shape runs with quad operations on this device.

    Only on CPUs: a quad's share of queries and sums is too much for the registers of a GPU's lane.
    """
    whole = shape.head_dim % 32 == 0 and shape.v_dim % 32 == 0 and shape.page_tokens % 4 == 0
    fits = whole and max(shape.head_dim, shape.v_dim) <= 256
    return fits and device.facts.adapter_type == "CPU" and "subgroup" in device.facts.features


def _quad_lanes(device: Device) -> int:
    # SwiftShader runs 4 lanes at once: two quads of a workgroup would only take turns.
    return 4 if "swiftshader" in device.facts.name.lower() else 8


def _max_rows(quads: bool, shape: AttentionShape) -> int:
    # With quads, as many as compile in about a second: code grows with rows * dims.
    return min(12, max(1024 // max(shape.head_dim, shape.v_dim), 4)) if quads else _MAX_ROWS


def appends(device: Device, shape: AttentionShape) -> bool:
    """Whether `attend_decode` can append this shape's new tokens itself.

    It rotates and writes eight dims at a time; and pairs of int8 scales, which must be one head's, as other
    heads are written at the same time.
    """
    if shape.rope == "inline" or shape.latent:
        return False
    scales = (shape.key_scale, shape.value_scale) if shape.dtype == "int8" else ()
    paired = all(s.token == 1 and (s.page | s.base | s.head) % 2 == 0 for s in scales)
    whole = shape.head_dim % 8 == 0 and shape.v_dim % 8 == 0 and not page_codec(shape).endswith("narrow")
    turned = not _turns(shape) or shape.rotary_dim % (8 if shape.pairing == "half" else 4) == 0
    fits = _rows(uses_quads(device, shape), shape) * shape.head_dim <= _TURNED_FLOATS
    return paired and whole and turned and fits


def _turns(shape: AttentionShape) -> bool:
    return shape.rope != "none" and shape.rotary_dim > 0


def _rows(quads: bool, shape: AttentionShape) -> int:
    """Query heads of one KV head that a workgroup of decode takes: equal parts of the group."""
    return -(-shape.group // -(-shape.group // _max_rows(quads, shape)))


def kv_tiles(first: int, end: int) -> int:
    """How many tiles hold the absolute positions `first` (of the first listed page) `.. end - 1`."""
    return max(0, -(-end // KV_TILE) - first // KV_TILE)


def decode_scratch_bytes(sequences: int, max_tiles: int, shape: AttentionShape) -> int:
    """Bytes `attend_decode` needs in `scratch`; 0 if every sequence has one tile at most."""
    rows = sequences * max_tiles * shape.q_heads
    return 0 if max_tiles <= 1 else 4 * rows * (shape.v_dim + 4)


def page_codec(shape: AttentionShape) -> str:
    """The shader part that reads the shape's pages: eight elements at once where strides allow it."""
    if shape.dtype == "f32":
        return "page_f32"
    wide = all(number % 8 == 0 for number in (*shape.key[:4], *shape.value[:4]))
    return f"page_{shape.dtype}" if wide else f"page_{shape.dtype}_narrow"


def _paired(shape: AttentionShape) -> bool:
    """Whether a lane of a quad has 16 neighbouring dims of each 64, and not 8 of each 32."""
    return shape.head_dim % 64 == 0 and shape.v_dim % 64 == 0


def _quad_codec(device: Device, shape: AttentionShape) -> str:
    fits = _paired(shape) and all(number % 16 == 0 for number in (*shape.key[:4], *shape.value[:4]))
    if fits and "shader-int64" in device.facts.features:
        return f"page_{shape.dtype}_u64"
    return "page_f32_wide" if fits and shape.dtype == "f32" else page_codec(shape)


def _constants(
    device: Device, shape: AttentionShape, quads: bool, q_stride: int, rows: int
) -> dict[str, float]:
    found = {**shape.constants(*_CONSTANTS), "Q_STRIDE": q_stride or shape.fused_width, "ROWS": rows}
    if quads:
        return {**found, "LANES": _quad_lanes(device), "PAIRED": _paired(shape)}
    return {**found, "LANES": max(_MIN_LANES, -(-shape.v_dim // 8))}


def _parts(device: Device, shape: AttentionShape, quads: bool) -> dict[str, str]:
    steps = {f"attend_{step}": f"{'quad' if quads else 'attend'}_{step}" for step in _STEPS}
    page = _quad_codec(device, shape) if quads else page_codec(shape)
    same = {name: name for name in _PARTS}
    return {**same, **steps, "page": page, "pages": "pages_read", "query": "attend_query"}


def _key_part(shape: AttentionShape, constants: dict[str, float]) -> str:
    if shape.rope != "inline":
        return "attend_key"
    constants.update(shape.constants("ROTARY_DIM", "INTERLEAVED"))
    return "attend_key_inline"


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
    """
    assert (rope_full is not None) == (shape.rope == "inline"), "rope_full belongs to inline shapes"
    split = max_tiles > 1
    store = "attend_store_split" if split else "attend_store_lse" if lse is not None else "attend_store"
    kernel = _decode_kernel(batch.device, shape, q_stride, store, append)
    extra = rope_full if rope_full is not None else None if split else lse
    target = scratch if split else out
    tables = (table.page_indptr, table.length_info, table.page_indices)
    group = kernel.bind(q, pages, *tables, target, rope_table if append and _turns(shape) else None, extra)
    parts = -(-shape.group // _rows(uses_quads(batch.device, shape), shape))
    batch.dispatch(kernel, group, max(max_tiles, 1), shape.kv_heads * parts, sequences)
    if split:
        _merge_splits(batch, scratch, table, out, lse, sequences, shape)


def _decode_kernel(device: Device, shape: AttentionShape, q_stride: int, store: str, append: bool) -> Kernel:
    quads = uses_quads(device, shape)
    constants = {**_constants(device, shape, quads, q_stride, _rows(quads, shape)), "SPLIT": KV_TILE}
    key = _key_part(shape, constants)
    imports = {**_parts(device, shape, quads), "key": key, "store": store, "append": "attend_appended"}
    if append:
        assert appends(device, shape), "this shape's tokens are appended by append_kv"
        put = imports["page"].replace("page_", "pages_put_")
        imports |= {"query": "attend_query_turned", "append": "attend_append", "pages": put}
        imports |= {"encode": f"encode_{shape.dtype}", "rope": "attend_no_rope"}
        if _turns(shape):
            imports["rope"] = "attend_rope"
            constants |= shape.constants("ROTARY_DIM", "INTERLEAVED")
    return device.kernel("attend_decode", constants, imports)


def _merge_splits(
    batch: Batch,
    scratch: Binding,
    table: PageTable,
    out: Binding,
    lse: Binding | None,
    sequences: int,
    shape: AttentionShape,
) -> None:
    constants = {**shape.constants("PAGE_TOKENS", "V_DIM", "WINDOW"), "LANES": shape.v_dim // 4}
    constants["SPLIT"] = KV_TILE
    imports = {"page_table": "page_table", "lse": "merge_no_lse" if lse is None else "merge_lse"}
    kernel = batch.device.kernel("merge_splits", constants, imports)
    group = kernel.bind(scratch, None, table.page_indptr, table.length_info, None, out, None, lse)
    batch.dispatch(kernel, group, shape.q_heads, sequences)


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
    """Ragged query rows: `out[qo_indptr[sequences]][q_heads][v_dim]` f32 (FlashAttention over pages).

    Row r of a sequence's q_len rows sees logical key c if c <= L - q_len + r, and c > L - q_len + r - window
    where the shape has a window; every key if not `causal`.  `max_rows`: the largest q_len.
    `tree` int32: `tree_indptr[sequences + 1]`, then (first, end) pairs, the pre-order numbers of the nodes of
    all trees.  The last T keys of a sequence with T nodes are its tree's; row r is node T - q_len + r and
    sees node j if first_j <= first_r < end_j (T = 0: causal).  At most one of `lse`, `tree` and `rope_full`
    may be given.  Other arguments as in `attend_decode`.
    """
    assert (rope_full is not None) == (shape.rope == "inline"), "rope_full belongs to inline shapes"
    extras = [extra for extra in (lse, tree, rope_full) if extra is not None]
    assert len(extras) <= 1, "only one of lse, tree and rope_full fits into eight bindings"
    quads = uses_quads(batch.device, shape)
    rows = _max_rows(quads, shape)
    teams = _quad_lanes(batch.device) // 4 if quads else 1
    constants = {**_constants(batch.device, shape, quads, q_stride, rows), "CAUSAL": causal}
    if quads:
        constants["TEAMS"] = teams
    key = _key_part(shape, constants)
    store = "attend_store" if lse is None else "attend_store_lse"
    mask = "attend_mask" if tree is None else "attend_mask_tree"
    imports = {**_parts(batch.device, shape, quads), "key": key, "mask": mask, "store": store}
    kernel = batch.device.kernel("attend_prefill", constants, imports)
    tables = (table.page_indptr, table.length_info, table.page_indices)
    group = kernel.bind(q, pages, *tables, out, qo_indptr, *extras)
    pairs = max_rows * shape.group
    batch.dispatch(kernel, group, -(-pairs // (rows * teams)), shape.kv_heads, sequences)


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
