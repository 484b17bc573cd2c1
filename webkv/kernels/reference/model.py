"""Numpy twins of the model's kernels.  Weights come dequantised, f32 `w[rows][cols]`; sums run in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]


def embed(ids: Ints, table: Floats, scale: float = 1.0) -> Floats:
    """`[n][cols]`: scale times the rows `ids` of `table`."""
    return table[ids] * np.float32(scale)


def rms_norm(rows: Floats, weight: Floats, eps: float) -> Floats:
    """Each row over its root mean square, times `weight[cols]`."""
    x = rows.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def norm_add(x: Floats, weight: Floats, y: Floats, eps: float) -> Floats:
    """y + rms_norm(x)."""
    return y + rms_norm(x, weight, eps)


def head_norm(rows: Floats, weights: Floats, q_heads: int, kv_heads: int, eps: float) -> Floats:
    """Fused rows, each query head normed with `weights[0]` and each key head with `weights[1]`."""
    n, dim = len(rows), weights.shape[1]
    keys, values = q_heads * dim, (q_heads + kv_heads) * dim
    q = rms_norm(rows[:, :keys].reshape(n, -1, dim), weights[0], eps).reshape(n, -1)
    k = rms_norm(rows[:, keys:values].reshape(n, -1, dim), weights[1], eps).reshape(n, -1)
    return np.concatenate([q, k, rows[:, values:]], axis=1)


def matmul(x: Floats, weight: Floats) -> Floats:
    """`[n][rows of weight]`: x times the transpose of weight."""
    return x.astype(np.float64) @ weight.astype(np.float64).T


def silu(g: Floats) -> Floats:
    """g * sigmoid(g)."""
    g = g.astype(np.float64)
    return g * np.exp(-np.logaddexp(0, -g))


def gelu(g: Floats) -> Floats:
    """GELU in its tanh form."""
    g = g.astype(np.float64)
    return 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))


def silu_mul(gate: Floats, up: Floats) -> Floats:
    """silu(gate) * up."""
    return silu(gate) * up


def gelu_mul(gate: Floats, up: Floats) -> Floats:
    """gelu(gate) * up."""
    return gelu(gate) * up


def add(x: Floats, y: Floats) -> Floats:
    """x + y."""
    return x + y


def gather_rows(rows: Floats, indices: Ints) -> Floats:
    """The rows `indices`."""
    return rows[indices]


def argmax(logits: Floats) -> Ints:
    """Per row the index of the largest value, the lowest among equals; a NaN counts as -inf."""
    return np.argmax(_ranked(logits), axis=-1)


def top_k(logits: Floats, k: int) -> tuple[Ints, Floats, Floats]:
    """Per row the k largest: ids, logits (descending, lower id first among equals), and logsumexp of all."""
    ranked = _ranked(logits)
    ids = np.argsort(-ranked, axis=-1, kind="stable")[:, :k]
    top = ranked.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        total = np.where(np.isneginf(top), 0.0, np.exp(ranked - top)).sum(axis=-1)
    with np.errstate(divide="ignore"):
        return ids, np.take_along_axis(ranked, ids, axis=-1), np.log(total) + top[:, 0]


def _ranked(logits: Floats) -> Floats:
    return np.where(np.isnan(logits), -np.inf, logits.astype(np.float64))
