"""Attention of one layer in an open step: append to pages, then read pages; and its parts one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from webkv.cache.aux_data import StepViews
from webkv.cache.config import CacheConfig
from webkv.cache.layers import Layer
from webkv.cache.ragged import RaggedArrays
from webkv.cache.step import Step
from webkv.cache.textures import PageTextures
from webkv.errors import CacheError
from webkv.gpu import Batch, Device, Slice
from webkv.gpu.batch import Dispatch
from webkv.kernels.append import append_kv, append_mla_kv, fuse_qkv
from webkv.kernels.attention import (
    Parts,
    attend_decode,
    attend_prefill,
    decode_scratch_bytes,
    merge_state,
    scratch_floats,
)
from webkv.kernels.shape import AttentionShape, Binding, PageTable
from webkv.kernels.variants import KV_TILE, appends

MODES = ("prefill", "decode")
F32 = 4


@dataclass(frozen=True)
class Work:
    """Where to record, the open step, and where its arrays are."""

    batch: Batch
    step: Step
    views: StepViews

    @property
    def rows(self) -> int:
        """Number of new tokens."""
        return self.step.rows


class Attention:
    """Records the attention of one step after the other; owns the scratch buffers that takes.

    Buffers of rows are checked for their size and device; `CacheError` names the one that does not fit.
    """

    def __init__(
        self, device: Device, config: CacheConfig, layers: dict[int, Layer], textures: PageTextures
    ) -> None:
        self._device = device
        self._textures = textures
        self._config = config
        self._limit = device.facts.limits["max-storage-buffer-binding-size"]
        self._scratch = device.buffer(self._scratch_bytes(layers), label="attention splits")
        self._ragged = RaggedArrays(device, config)
        self._rows: dict[str, Binding] = {}
        self._decodes: dict[int, tuple[Any, list[Dispatch]]] = {}  # each layer's last, to repeat

    def _scratch_bytes(self, layers: dict[int, Layer]) -> int:
        config, size = self._config, 0
        for layer in layers.values():
            tokens = config.num_pages(layer.group) * config.page_tokens
            tiles = -(-tokens // KV_TILE) + 1
            size = max(size, decode_scratch_bytes(config.reserved_num_seqs, tiles, layer.shape))
        return min(size, self._limit)

    def _binding(self, what: str, binding: Binding, floats: int) -> None:
        buffer = binding.buffer if isinstance(binding, Slice) else binding
        if getattr(buffer, "_device", self._device.raw) is not self._device.raw:
            raise CacheError(f"{what} is a buffer of another device")
        if binding.size < F32 * floats:
            raise CacheError(f"{what} has {binding.size} bytes, expected {F32 * floats} at least")

    def _rows_scratch(self, name: str, floats_per_row: int) -> Binding:
        """A scratch of `prefill_chunk_size` rows, made when first asked for."""
        key = f"{name} {floats_per_row}"
        if key not in self._rows:
            size = F32 * self._config.prefill_chunk_size * floats_per_row
            self._rows[key] = self._device.buffer(size, label=key)
        return self._rows[key]

    def fused(
        self, work: Work, layer: Layer, qkv: Binding, out: Binding,
        sm_scale: float | None, mode: str, lse: Binding | None,
    ) -> None:  # fmt: skip
        """See `PagedKVCache.attention`."""
        shape = self._shape(layer, "mha", sm_scale)
        self._check_mode(work, mode)
        self._binding("qkv", qkv, work.rows * shape.fused_width)
        self._check_out(work, shape, out, lse)
        self._textures.appended(layer)

        def record() -> None:
            self._append_and_attend(work, layer, shape, qkv, out, mode, lse)

        if mode == "prefill" or work.step.tree is not None:
            record()
            return
        tiles = work.step.groups[layer.at].max_tiles
        key = (qkv, out, shape, lse, len(work.step.sequences), tiles, work.views)
        last = self._decodes.get(layer.number)
        if last is not None and last[0] == key:
            work.batch.repeat(last[1])
        else:
            self._decodes[layer.number] = key, work.batch.keep(record)

    def separate(
        self, work: Work, layer: Layer, q: Binding, k: Binding, v: Binding,
        out: Binding, sm_scale: float | None, mode: str, lse: Binding | None,
    ) -> None:  # fmt: skip
        """See `PagedKVCache.attention_with_qkv`."""
        shape = self._shape(layer, "mha", sm_scale)
        self._check_mode(work, mode)
        self._check_out(work, shape, out, lse)
        qkv = self._fuse(work, shape, q, k, v)
        self._textures.appended(layer)
        self._append_and_attend(work, layer, shape, qkv, out, mode, lse)

    def self_attention(
        self, work: Work, layer: Layer, q: Binding, k: Binding, v: Binding,
        out: Binding, lse: Binding | None, sm_scale: float | None, head_dim: int | None, v_dim: int | None,
    ) -> None:  # fmt: skip
        """See `PagedKVCache.self_attention`."""
        shape = self._shape(layer, None, sm_scale)
        if layer.group.kind == "mla":
            if head_dim is None or v_dim is None:
                raise CacheError("self_attention of an mla layer needs head_dim and v_dim")
            shape = replace(shape, kv_heads=shape.q_heads, head_dim=head_dim, v_dim=v_dim, rope="none")
        elif head_dim not in (None, shape.head_dim) or v_dim not in (None, shape.v_dim):
            raise CacheError(
                f"self_attention has head_dim {head_dim} and v_dim {v_dim}, expected "
                f"{shape.head_dim} and {shape.v_dim}"
            )
        self._check_out(work, shape, out, lse)
        qkv = self._fuse(work, shape, q, k, v)
        attend_prefill(
            work.batch, q=qkv, pages=qkv, table=self._ragged.new_rows(work.step, work.views),
            qo_indptr=work.views.qo_indptr, out=out, sequences=len(work.step.sequences),
            max_rows=max(work.step.lengths), lse=lse, tree=work.views.tree if work.step.tree is not None
            else None, rope_full=layer.rope_full, shape=shape.over_fused_rows(),
        )  # fmt: skip

    def cross_attention(
        self, work: Work, layer: Layer, q: Binding, out: Binding,
        lse: Binding | None, sm_scale: float | None, include_new: bool | None, mode: str,
    ) -> None:  # fmt: skip
        """See `PagedKVCache.cross_attention`."""
        shape = self._shape(layer, None, sm_scale)
        if shape.window:
            raise CacheError(f"cross_attention of layer {layer.number}, which has a window: use attention")
        self._check_mode(work, mode)
        self._binding("q", q, work.rows * shape.q_width)
        self._check_out(work, shape, out, lse)
        if include_new is None:
            include_new = max(work.step.lengths) == 1
        if include_new and mode == "decode":
            self._over_pages(work, layer, shape, q, out, mode, lse, shape.q_width)
            return
        views = work.views.groups[layer.at]
        table = views.table if include_new else self._ragged.past(work.step, layer)
        self._prefill(work, layer, shape, q, out, lse, table, shape.q_width, causal=False)

    def merge(
        self, work: Work, layer: Layer, out: Binding, lse: Binding, other_out: Binding,
        other_lse: Binding, v_dim: int | None,
    ) -> None:  # fmt: skip
        """See `PagedKVCache.merge_attn_output_inplace`."""
        heads, width = layer.group.q_heads, v_dim or layer.shape.v_dim
        for what, binding, floats in (
            ("out", out, width), ("lse", lse, 1), ("other_out", other_out, width), ("other_lse", other_lse, 1)
        ):  # fmt: skip
            self._binding(what, binding, work.rows * heads * floats)
        merge_state(
            work.batch, out=out, lse=lse, other_out=other_out, other_lse=other_lse,
            n=work.rows, heads=heads, v_dim=width,
        )  # fmt: skip

    def append_mla(self, work: Work, layer: Layer, latent: Binding) -> None:
        """See `PagedKVCache.append_mla_kv`."""
        shape = self._shape(layer, "mla", 1.0)
        self._binding("latent", latent, work.rows * shape.head_dim)
        self._textures.appended(layer)
        positions = work.views.groups[layer.at].append_position_map
        append_mla_kv(
            work.batch, latent=latent, pages=layer.pages, append_position_map=positions,
            step=work.views.numbers, n=work.rows, shape=shape,
        )  # fmt: skip

    def shared(
        self, work: Work, layer: Layer, q: Binding, out: Binding,
        kv: tuple[Binding, Binding] | None, sm_scale: float | None, mode: str, lse: Binding | None,
    ) -> None:  # fmt: skip
        """See `PagedKVCache.attention_with_shared_kv`."""
        shape = self._shape(layer, None, sm_scale)
        self._check_mode(work, mode)
        self._binding("q", q, work.rows * shape.q_width)
        self._check_out(work, shape, out, lse)
        if kv is None or mode == "decode":
            self._over_pages(work, layer, shape, q, out, mode, lse, shape.q_width)
            return
        own = self._rows_scratch("own lse", shape.q_heads) if lse is None else lse
        other_out = self._rows_scratch("past out", shape.out_width)
        other_lse = self._rows_scratch("past lse", shape.q_heads)
        self.self_attention(work, layer, q, *kv, out, own, sm_scale, None, None)
        self.cross_attention(work, layer, q, other_out, other_lse, sm_scale, False, "prefill")
        self.merge(work, layer, out, own, other_out, other_lse, None)

    def _shape(self, layer: Layer, kind: str | None, sm_scale: float | None) -> AttentionShape:
        if kind is not None and layer.group.kind != kind:
            raise CacheError(f"layer {layer.number} is of kind {layer.group.kind}, expected {kind}")
        if layer.group.kind == "mla" and sm_scale is None:
            raise CacheError(f"sm_scale of mla layer {layer.number} is None: its cached rows do not tell it")
        return layer.scaled(sm_scale)

    def _check_mode(self, work: Work, mode: str) -> None:
        if mode not in MODES:
            raise CacheError(f"mode is {mode!r}, expected 'prefill' or 'decode'")
        if mode == "decode" and max(work.step.lengths) > 1:
            raise CacheError(f"mode 'decode' with append lengths {list(work.step.lengths)}, expected 1 each")

    def _check_out(self, work: Work, shape: AttentionShape, out: Binding, lse: Binding | None) -> None:
        self._binding("out", out, work.rows * shape.out_width)
        if lse is not None:
            self._binding("lse", lse, work.rows * shape.q_heads)
            if work.step.tree is not None or shape.rope == "inline":
                what = "a token tree" if work.step.tree is not None else "inline rope"
                raise CacheError(f"lse is not available with {what}")

    def _fuse(
        self, work: Work, shape: AttentionShape, q: Binding, k: Binding,
        v: Binding,
    ) -> Binding:  # fmt: skip
        for what, binding, width in (
            ("q", q, shape.q_width), ("k", k, shape.kv_heads * shape.head_dim),
            ("v", v, shape.kv_heads * shape.v_dim),
        ):  # fmt: skip
            self._binding(what, binding, work.rows * width)
        qkv = self._rows_scratch("fused rows", shape.fused_width)
        fuse_qkv(work.batch, q=q, k=k, v=v, qkv=qkv, n=work.rows, shape=shape)
        return qkv

    def _append_and_attend(
        self, work: Work, layer: Layer, shape: AttentionShape, qkv: Binding,
        out: Binding, mode: str, lse: Binding | None,
    ) -> None:  # fmt: skip
        at_once = mode == "decode" and work.step.tree is None and appends(self._device, shape)
        if not at_once:
            self._append(work, layer, shape, qkv)
        self._over_pages(work, layer, shape, qkv, out, mode, lse, 0, append=at_once)

    def _append(self, work: Work, layer: Layer, shape: AttentionShape, qkv: Binding) -> None:
        group = work.views.groups[layer.at]
        append_kv(
            work.batch, qkv=qkv, pages=layer.pages, append_position_map=group.append_position_map,
            rope_table=group.rope_table, step=work.views.numbers, n=work.rows, shape=shape,
        )  # fmt: skip

    def _over_pages(
        self, work: Work, layer: Layer, shape: AttentionShape, q: Binding,
        out: Binding, mode: str, lse: Binding | None, q_stride: int, append: bool = False,
    ) -> None:  # fmt: skip
        views = work.views.groups[layer.at]
        table: PageTable = views.table
        sequences = len(work.step.sequences)
        if mode == "decode" and work.step.tree is None:
            tiles = work.step.groups[layer.at].max_tiles
            needed = decode_scratch_bytes(sequences, tiles, shape)
            if needed > self._scratch.size:
                raise CacheError(
                    f"decode of {sequences} sequences in {tiles} splits needs {needed} bytes of "
                    f"scratch, the device allows {self._scratch.size}"
                )
            attend_decode(
                work.batch, q=q, pages=layer.pages, table=table, out=out, scratch=self._scratch,
                sequences=sequences, max_tiles=tiles, shape=shape, lse=lse, q_stride=q_stride,
                rope_full=layer.rope_full, append=append, rope_table=views.rope_table, closed=layer.texture,
            )  # fmt: skip
            return
        tree = work.views.tree if work.step.tree is not None else None
        self._prefill(work, layer, shape, q, out, lse, table, q_stride, tree=tree)

    def _prefill(
        self, work: Work, layer: Layer, shape: AttentionShape, q: Binding, out: Binding,
        lse: Binding | None, table: PageTable, q_stride: int, **mask: Any,
    ) -> None:  # fmt: skip
        parts = self._parts(work, layer, shape)
        pages = self._textures.source(work.batch, layer, work.step)
        attend_prefill(
            work.batch, q=q, pages=pages, table=table, qo_indptr=work.views.qo_indptr, out=out,
            sequences=len(work.step.sequences), max_rows=max(work.step.lengths), shape=shape, lse=lse,
            q_stride=q_stride, rope_full=layer.rope_full, parts=parts, **mask,
        )  # fmt: skip

    def _parts(self, work: Work, layer: Layer, shape: AttentionShape) -> Parts | None:
        count = work.step.groups[layer.at].max_parts
        if count <= 1:
            return None
        floats = scratch_floats(count, shape)
        if F32 * floats * self._config.prefill_chunk_size > self._limit:
            raise CacheError(
                f"prefill in {count} parts of keys needs {F32 * floats} bytes for each row of "
                f"prefill_chunk_size {self._config.prefill_chunk_size}, the device binds {self._limit}"
            )
        return Parts(count, work.rows, self._rows_scratch("parts of rows", floats))
