"""The paged KV cache: sequences that share pages, and attention over them, with TVM's operations."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from webkv.cache.attention import Attention, Work
from webkv.cache.aux_data import MANAGERS, StepViews
from webkv.cache.config import CacheConfig
from webkv.cache.layers import Layer
from webkv.cache.state import CacheState
from webkv.cache.step import abort_step, begin_step, end_step
from webkv.errors import CacheError
from webkv.gpu import Batch, Device
from webkv.kernels.shape import Binding


class PagedKVCache(CacheState):
    """Keys and values of any number of sequences, in pages.

    A forward is `begin_forward`, then `attention` once per layer on a `Batch` that is submitted before
    `end_forward`'s next `begin_forward`, then `end_forward`.  Between those two no sequence may be changed.
    Operations raise `CacheError` before anything has changed.

    `aux`: "plain" (one buffer per index array) or "cached" (one buffer, one write per step).
    """

    def __init__(self, device: Device, config: CacheConfig, aux: str = "plain") -> None:
        if aux not in MANAGERS:
            raise CacheError(f"aux is {aux!r}, expected one of {', '.join(MANAGERS)}")
        super().__init__(device, config)
        self._aux = MANAGERS[aux](device, config)
        self._attention = Attention(device, config, self._layers, self._textures)
        self._views: StepViews | None = None

    def get_query_positions(self) -> np.ndarray:
        """The position of every new token of the open forward, int32 (n,)."""
        return self._open("get_query_positions").positions.copy()

    def begin_forward(
        self, seq_ids: Items[int], append_lengths: Items[int], tree_parents: Items[int] | None = None
    ) -> None:
        """Append `append_lengths[i]` tokens to each sequence and take the pages for them.

        `tree_parents`: the new tokens are nodes of token trees; one entry per token, the number of its parent
        among the sequence's uncommitted nodes, or -1.  Raises `CacheFullError` with nothing changed.
        """
        self._require_closed("begin_forward")
        step = begin_step(self.manager, seq_ids, append_lengths, tree_parents)
        try:
            self._views = self._aux.write(step)
        except Exception:
            abort_step(self.manager, step)
            raise
        self._textures.begin(step)
        self._step = step

    def end_forward(self) -> None:
        """Close the forward; windows move on and free what left them."""
        step = self._open("end_forward")
        self._step = None
        end_step(self.manager, step)

    def abort_forward(self) -> None:
        """Close the forward as if it had not begun."""
        step = self._open("abort_forward")
        self._step = None
        self._textures.abort()
        abort_step(self.manager, step)

    def attention(
        self, batch: Batch, layer: int, qkv: Binding, out: Binding, sm_scale: float | None = None,
        mode: str = "prefill", lse: Binding | None = None,
    ) -> None:  # fmt: skip
        """Append the new tokens of `layer` and attend over all of their sequences.

        `qkv[n][(q_heads + kv_heads) * head_dim + kv_heads * v_dim]` f32: queries, keys, values of each new
        token; its queries may be rotated in place.  `out[n][q_heads * v_dim]` f32.  `sm_scale` multiplies
        scores (None: head_dim ** -0.5).  `mode`: which kernel; "decode" needs append lengths of 1.
        `lse[n][q_heads]` f32, base 2, if wanted.
        """
        work, found = self._work(batch, layer)
        self._attention.fused(work, found, qkv, out, sm_scale, mode, lse)

    attention_with_fused_qkv = attention

    def attention_with_qkv(
        self, batch: Batch, layer: int, q: Binding, k: Binding, v: Binding, out: Binding,
        sm_scale: float | None = None, mode: str = "prefill", lse: Binding | None = None,
    ) -> None:  # fmt: skip
        """`attention` of separate q `[n][q_heads][head_dim]`, k `[n][kv_heads][head_dim]`, v."""
        work, found = self._work(batch, layer)
        self._attention.separate(work, found, q, k, v, out, sm_scale, mode, lse)

    def self_attention(
        self, batch: Batch, layer: int, q: Binding, k: Binding, v: Binding, out: Binding,
        lse: Binding | None = None, sm_scale: float | None = None, head_dim: int | None = None,
        v_dim: int | None = None,
    ) -> None:  # fmt: skip
        """Causal attention among the new tokens alone; nothing is appended, and nothing rotated.

        For an mla layer `head_dim` and `v_dim` are those of the decompressed keys and values, which have as
        many heads as the queries.
        """
        work, found = self._work(batch, layer)
        self._attention.self_attention(work, found, q, k, v, out, lse, sm_scale, head_dim, v_dim)

    def cross_attention(
        self, batch: Batch, layer: int, q: Binding, out: Binding, lse: Binding | None = None,
        sm_scale: float | None = None, include_new: bool | None = None, mode: str = "prefill",
    ) -> None:  # fmt: skip
        """Attention of every query over all cached tokens of its sequence, without a mask.

        `include_new`: whether the new tokens count, which must have been appended then; None: if every append
        length is 1, which is TVM's rule.  A query without keys gives 0 and an lse of -5e4.  `mode`: as in
        `attention`.
        """
        work, found = self._work(batch, layer)
        self._attention.cross_attention(work, found, q, out, lse, sm_scale, include_new, mode)

    def merge_attn_output_inplace(
        self, batch: Batch, layer: int, out: Binding, lse: Binding, other_out: Binding, other_lse: Binding,
        v_dim: int | None = None,
    ) -> None:  # fmt: skip
        """Merge attention over two sets of keys into `out[n][q_heads][v_dim]` and `lse[n][q_heads]`."""
        work, found = self._work(batch, layer)
        self._attention.merge(work, found, out, lse, other_out, other_lse, v_dim)

    def append_mla_kv(self, batch: Batch, layer: int, latent: Binding) -> None:
        """Write the compressed rows `latent[n][head_dim]` f32 of the new tokens to an mla layer's pages."""
        work, found = self._work(batch, layer)
        self._attention.append_mla(work, found, latent)

    def attention_with_shared_kv(
        self, batch: Batch, layer: int, q: Binding, out: Binding,
        kv: tuple[Binding, Binding] | None = None, sm_scale: float | None = None, mode: str = "prefill",
        lse: Binding | None = None,
    ) -> None:  # fmt: skip
        """Attention of `q[n][q_heads][head_dim]`, rotated already, over the pages of another layer, `layer`.

        Nothing is appended: `layer` has run in this forward.  `kv`: take these keys and values for the new
        tokens of a prefill instead of the layer's own.
        """
        work, found = self._work(batch, layer)
        self._attention.shared(work, found, q, out, kv, sm_scale, mode, lse)

    def _work(self, batch: Batch, layer: int) -> tuple[Work, Layer]:
        step = self._open("attention")
        if batch.device is not self.device:
            raise CacheError("the batch belongs to another device than the KV cache")
        assert self._views is not None
        found = self.layer(layer)
        self._textures.closed(batch, found)
        return Work(batch, step, self._views), found
