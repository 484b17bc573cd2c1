"""A cache without pages: plain float64 lists per sequence, textbook attention; the oracle of every test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from webkv.cache import CacheConfig, LayerGroup


@dataclass
class DenseSequence:
    """Tokens in logical order; `kv[layer]` is (k, v) as given, k not rotated."""

    kv: dict[int, tuple[np.ndarray, np.ndarray]]
    positions: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    window: int | None = None
    sink: int = 0
    base: int | None = None
    parents: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.positions)


def rotated(x: np.ndarray, positions: np.ndarray, group: LayerGroup) -> np.ndarray:
    """RoPE written with complex numbers: x (n, heads, dim)."""
    rope, size = group.rope, group.rope.rotary_dim
    if rope.mode == "none":
        return x
    table = rope.table(positions).astype(np.float64)
    turn = (table[..., 0] + 1j * table[..., 1])[:, None, :]
    made = x.astype(np.float64).copy()
    if rope.pairing == "half":
        low, high = made[..., : size // 2].copy(), made[..., size // 2 : size].copy()
    else:
        low, high = made[..., 0:size:2].copy(), made[..., 1:size:2].copy()
    turned = (low + 1j * high) * turn
    if rope.pairing == "half":
        made[..., : size // 2], made[..., size // 2 : size] = turned.real, turned.imag
    else:
        made[..., 0:size:2], made[..., 1:size:2] = turned.real, turned.imag
    return made


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, scale: float, softcap: float = 0.0
) -> np.ndarray:
    """softmax(q k^T scale) v for q (n, Hq, D), k (m, Hk, D), v (m, Hk, Dv) where `seen` (n, m)."""
    share = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, share, axis=1), np.repeat(v, share, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(seen[None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v)


class DenseCache:
    """The same operations as `PagedKVCache`, for configurations of mha groups."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.sequences: dict[int, DenseSequence] = {}

    def add_sequence(self, seq: int) -> None:
        kv = {}
        for group in self.config.groups:
            for layer in group.layers:
                kv[layer] = tuple(np.zeros((0, group.kv_heads, d)) for d in (group.head_dim, group.value_dim))
        self.sequences[seq] = DenseSequence(kv)

    def remove_sequence(self, seq: int) -> None:
        del self.sequences[seq]

    def fork_sequence(self, parent: int, child: int, pos: int = -1) -> None:
        found = self.sequences[parent]
        pos = found.length if pos == -1 else pos
        self.sequences[child] = DenseSequence(_cut(found, pos), found.positions[:pos])

    def popn(self, seq: int, n: int) -> None:
        found = self.sequences[seq]
        found.kv, found.positions = _cut(found, found.length - n), found.positions[: found.length - n]

    def enable_sliding_window_for_seq(self, seq: int, window: int, sink: int) -> None:
        found = self.sequences[seq]
        found.window, found.sink = window, sink

    def begin_forward(
        self, ids: Sequence[int], lengths: Sequence[int], parents: Sequence[int] | None = None
    ) -> np.ndarray:
        """Append the tokens without values; returns their positions."""
        made, at = [], 0
        self._batch = list(zip(ids, lengths, strict=True))
        for seq, n in self._batch:
            found = self.sequences[seq]
            if parents is None:
                fresh = found.length + np.arange(n)
            else:
                found.base = found.length if found.base is None else found.base
                found.parents += parents[at : at + n]
                depths: list[int] = []
                for parent in found.parents:
                    depths.append(depths[parent] + 1 if parent >= 0 else 0)
                fresh = found.base + np.array(depths[-n:])
            found.positions = np.concatenate([found.positions, fresh])
            made.append(fresh)
            at += n
        return np.concatenate(made)

    def attention(self, layer: int, qkv: np.ndarray, sm_scale: float | None = None) -> np.ndarray:
        """Outputs (n, q_heads, v_dim) for fused rows (n, width)."""
        group = next(g for g in self.config.groups if layer in g.layers)
        q, k, v = split(qkv, group)
        outs, at = [], 0
        for seq, n in self._batch:
            found, rows = self.sequences[seq], slice(at, at + n)
            keys, values = found.kv[layer]
            keys, values = np.concatenate([keys, k[rows]]), np.concatenate([values, v[rows]])
            found.kv[layer] = keys, values
            scale = group.head_dim**-0.5 if sm_scale is None else sm_scale
            positions = self._rope_positions(found, group)
            queries = rotated(q[rows], positions[-n:], group)
            turned = rotated(keys, positions, group)
            outs.append(attend(queries, turned, values, _seen(found, n, group.window), scale, group.softcap))
            at += n
        return np.concatenate(outs)

    def _rope_positions(self, found: DenseSequence, group: LayerGroup) -> np.ndarray:
        return np.arange(found.length) if group.rope.mode == "inline" else found.positions

    def end_forward(self) -> None:
        for seq, _ in self._batch:
            found = self.sequences[seq]
            if found.window is not None and found.length > found.window:
                keep = np.r_[: found.sink, found.length - (found.window - found.sink) : found.length]
                found.kv = {layer: (k[keep], v[keep]) for layer, (k, v) in found.kv.items()}
                found.positions = np.arange(found.window)

    def commit_accepted_token_tree_nodes(self, ids: Sequence[int], leaves: Sequence[int]) -> None:
        for seq, leaf in zip(ids, leaves, strict=True):
            found = self.sequences[seq]
            if found.base is None:
                continue
            path = []
            while leaf >= 0:
                path.append(found.base + leaf)
                leaf = found.parents[leaf]
            keep = np.r_[: found.base, np.array(path[::-1], int)]
            found.kv = {layer: (k[keep], v[keep]) for layer, (k, v) in found.kv.items()}
            found.positions = found.positions[keep]
            found.base, found.parents = None, []

    def stored(self, seq: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """(k, v) as pages hold them: k rotated in rope mode normal."""
        group = next(g for g in self.config.groups if layer in g.layers)
        found = self.sequences[seq]
        k, v = found.kv[layer]
        return (rotated(k, found.positions, group) if group.rope.mode == "normal" else k), v


def split(qkv: np.ndarray, group: LayerGroup) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fused rows as q (n, Hq, D), k (n, Hk, D), v (n, Hk, Dv)."""
    n, q_end = len(qkv), group.q_heads * group.head_dim
    k_end = q_end + group.kv_heads * group.head_dim
    q = qkv[:, :q_end].reshape(n, group.q_heads, group.head_dim)
    k = qkv[:, q_end:k_end].reshape(n, group.kv_heads, group.head_dim)
    return q, k, qkv[:, k_end:].reshape(n, group.kv_heads, group.value_dim)


def _cut(found: DenseSequence, length: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    return {layer: (k[:length], v[:length]) for layer, (k, v) in found.kv.items()}


def _seen(found: DenseSequence, n: int, window: int | None) -> np.ndarray:
    length = found.length
    rows, keys = np.arange(length - n, length), np.arange(length)
    seen = keys[None, :] <= rows[:, None]
    if found.base is not None:
        for row in rows:
            seen[row - rows[0], found.base :] = False
            node = row - found.base
            while node >= 0:
                seen[row - rows[0], found.base + node] = True
                node = found.parents[node]
    if window is not None:
        at = found.positions
        seen &= at[None, :] > at[rows][:, None] - window
    return seen
