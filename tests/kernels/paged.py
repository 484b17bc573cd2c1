"""Random paged batches for kernel tests: pools poisoned with NaN, pages in random order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from webkv.gpu import Device
from webkv.kernels import reference
from webkv.kernels.shape import AttentionShape, PageTable
from webkv.kernels.variants import kv_parts, kv_tiles
from webkv.layout import kv, latent

NAN_WORD = 0xFFFFFFFF  # NaN as f32, and as both f16 of a pair


@dataclass(frozen=True)
class Held:
    """A sequence of `length` keys; pages before token `freed` are gone, slots sink .. offset - 1 are dead."""

    length: int
    freed: int = 0
    sink: int = 0
    offset: int = 0


def shape_of(
    q_heads: int = 4,
    kv_heads: int = 2,
    dim: int = 64,
    *,
    page_tokens: int = 16,
    dtype: str = "f32",
    v_dim: int | None = None,
    order: str = "head_major",
    packing: str = "slot",
    **rules: Any,
) -> AttentionShape:
    """The shape of a layer with a declared layout; scale 1 / sqrt(dim)."""
    layout = kv(
        page_tokens=page_tokens,
        heads=kv_heads,
        dim=dim,
        v_dim=v_dim,
        dtype=dtype,
        order=order,
        packing=packing,
    )
    return AttentionShape.of(layout, 0, q_heads=q_heads, **{"sm_scale": dim**-0.5, "rope": "none", **rules})


def mla_shape(
    q_heads: int, dim: int, v_dim: int, dtype: str = "f32", page_tokens: int = 16
) -> AttentionShape:
    """A latent layer whose values are the first `v_dim` dims of its keys."""
    layout = latent(page_tokens=page_tokens, dim=dim, dtype=dtype)
    return AttentionShape.of(layout, 0, q_heads=q_heads, v_dim=v_dim, sm_scale=dim**-0.5, rope="none")


def rope_table(rows: int, rotary_dim: int, first: int = 0) -> np.ndarray:
    """`[rows][rotary_dim / 2][2]` cos and sin of RoPE with theta 1e4 at positions `first`, ..."""
    angle = np.arange(first, first + rows)[:, None] / 1e4 ** (
        np.arange(0, rotary_dim, 2) / max(rotary_dim, 1)
    )
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)


@dataclass
class Paged:
    """Pages and tables of some sequences, as arrays (`table`, `pages`) and as buffers on a device."""

    shape: AttentionShape
    held: Sequence[Held]
    seed: int = 0
    pages: np.ndarray = field(init=False)
    table: tuple[np.ndarray, np.ndarray, np.ndarray] = field(init=False)
    keys: list[tuple[np.ndarray, np.ndarray]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        size = self.shape.page_tokens
        slots = [h.length + h.offset - h.sink - h.freed // size * size for h in self.held]
        counts = [-(-max(s, 0) // size) for s in slots]
        free = self.rng.permutation(sum(counts) + 3)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        info = np.zeros((4, len(self.held)), np.int32)
        info[0] = [(s - 1) % size + 1 if s > 0 else 0 for s in slots]
        info[1], info[2] = [h.offset for h in self.held], [h.sink for h in self.held]
        info[3] = [h.freed // size for h in self.held]
        self.table = (indptr, free[: indptr[-1]].astype(np.int32), info.ravel())
        self.pages = np.full(len(free) * self.shape.page_words, NAN_WORD, np.uint32)
        for s, h in enumerate(self.held):
            self._fill(s, h)

    def _fill(self, sequence: int, held: Held) -> None:
        # Values depend on the absolute key alone, so that a batch with freed pages holds the same ones.
        shape, kept = self.shape, held.freed // self.shape.page_tokens * self.shape.page_tokens
        rng = np.random.default_rng((self.seed, held.length))
        k = rng.standard_normal((held.length, shape.kv_heads, shape.head_dim), np.float32)
        v = rng.standard_normal((held.length, shape.kv_heads, shape.v_dim), np.float32)
        at = reference.kv_positions(self.table, sequence, shape.page_tokens)
        self.pages = reference.set_kv(self.pages, at, k[kept:], v[kept:], shape)
        self.keys.append((k[kept:], v[kept:]))

    def queries(self, n: int, seed: int = 7) -> np.ndarray:
        """`n` fused rows, of which only the queries are finite."""
        rows = np.full((n, self.shape.fused_width), np.nan, np.float32)
        rows[:, : self.shape.q_width] = np.random.default_rng(seed).standard_normal((n, self.shape.q_width))
        return rows

    def max_tiles(self) -> int:
        """What a host passes to `attend_decode`."""
        return max(kv_tiles(*ends) for ends in self._spans())

    def max_parts(self) -> int:
        """What a host passes to `attend_prefill`."""
        return max(kv_parts(*ends) for ends in self._spans())

    def _spans(self) -> list[tuple[int, int]]:
        size = self.shape.page_tokens
        return [(h.freed // size * size, h.length + h.offset - h.sink) for h in self.held]

    def upload(self, gpu: Device) -> tuple[Any, PageTable]:
        """`(pages, table)` on the device; unused entries of the arrays would be read out of range."""
        arrays = [np.concatenate([a, np.full(5, 2**30, np.int32)]) for a in self.table]
        indptr, indices, info = (gpu.buffer(a.nbytes, data=a) for a in arrays)
        return gpu.buffer(self.pages.nbytes, data=self.pages), PageTable(indptr, indices, info)
