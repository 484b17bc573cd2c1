"""Writing new keys and values into pages."""

from __future__ import annotations

from webkv.gpu import Batch
from webkv.kernels.shape import STRIDES, AttentionShape, Binding

_LANES = 32


def append_kv(
    batch: Batch,
    *,
    qkv: Binding,
    pages: Binding,
    append_position_map: Binding,
    rope_table: Binding | None,
    step: Binding,
    n: int,
    shape: AttentionShape,
) -> None:
    """Rotate the queries of `n` fused rows in place, and write rotated keys, and values, to pages.

    `qkv[n][fused_width]` f32: `[q_heads][head_dim] | [kv_heads][head_dim] | [kv_heads][v_dim]`.
    `append_position_map[n]` int32: page * page_tokens + slot, or -1 to write nothing.
    `rope_table[n][rotary_dim / 2]` f32 pairs (cos, sin); not read when `shape.rope` is "none"; "inline"
    rotates queries only.  `step`: uniform u32x4, n first.  int8 pages hold levels of absmax / 127 per
    (token, head), halves rounded to even.  f16 pages: rounded to nearest even, saturated.
    """
    heads = {"Q_HEADS": shape.q_heads, "KEY_HEADS": shape.kv_heads, "VALUE_HEADS": shape.kv_heads}
    if shape.rope == "none" or not shape.rotary_dim:
        rope_table = None
    _append(batch, qkv, pages, append_position_map, rope_table, step, n, shape, heads)


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
    _append(batch, latent, pages, append_position_map, None, step, n, shape, {"KEY_HEADS": 1})


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
    """Write `k[count][kv_heads][head_dim]`, `v[count][kv_heads][v_dim]` f32 as they are, without rope.

    `positions[count]` as `append_position_map` in `append_kv`; MLA has no `v`.
    """
    _append(batch, k, pages, positions, None, None, count, shape, {"KEY_HEADS": shape.kv_heads})
    if not shape.latent:
        _append(batch, v, pages, positions, None, None, count, shape, {"VALUE_HEADS": shape.kv_heads})


def _append(
    batch: Batch,
    rows: Binding,
    pages: Binding,
    positions: Binding,
    rope_table: Binding | None,
    step: Binding | None,
    n: int,
    shape: AttentionShape,
    heads: dict[str, int],
) -> None:
    constants = {**shape.constants(*STRIDES, "PAGE_TOKENS", "HEAD_DIM", "V_DIM"), **heads}
    imports = {"page_strides": "page_strides", "encode": f"encode_{shape.dtype}"}
    imports["store"] = f"page_store_{shape.dtype}"
    imports["tokens"] = "append_all" if step is None else "append_step"
    imports["rope"] = "append_no_rope" if rope_table is None else "append_rope"
    if rope_table is not None:
        constants |= {
            **shape.constants("ROTARY_DIM", "PAIR_STEP", "PAIR_APART"),
            "ROTATE_KEYS": shape.rope == "normal",
        }
    lanes = 1 if step is None else _LANES
    kernel = batch.device.kernel("append_kv", {**constants, "LANES": lanes}, imports)
    group = kernel.bind(rows, pages, positions, step, rope_table)
    batch.dispatch(kernel, group, -(-n * sum(heads.values()) // lanes))


def fuse_qkv(
    batch: Batch, *, q: Binding, k: Binding, v: Binding, qkv: Binding, n: int, shape: AttentionShape
) -> None:
    """Copy separate rows to the fused rows `qkv[n][fused_width]` of `append_kv`.

    `q[n][q_heads][head_dim]`, `k[n][kv_heads][head_dim]`, `v[n][kv_heads][v_dim]`, all f32.
    """
    widths = (shape.q_width // 4, shape.kv_heads * shape.head_dim // 4, shape.kv_heads * shape.v_dim // 4)
    constants = dict(zip(("Q_WIDTH", "K_WIDTH", "V_WIDTH"), widths, strict=True))
    kernel = batch.device.kernel("append_fuse", {**constants, "LANES": _LANES})
    batch.dispatch(kernel, kernel.bind(qkv, q, k, v), -(-sum(widths) // _LANES), n)
