"""A plain numpy Llama and Gemma 3, float64 over ggml's dequantised weights, for tiny models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from webkv.kernels import reference
from webkv.kernels.reference.model import gelu, silu
from webkv.models.config import ModelConfig
from webkv.models.gguf import GgufFile

Floats = npt.NDArray[np.floating]


def weights_of(file: GgufFile) -> dict[str, Floats]:
    """Every tensor dequantised by the gguf package, without the suffix `.weight`."""
    found = {}
    for name, tensor in file.tensors.items():
        raw = np.frombuffer(tensor.data, np.uint8)
        kind = gguf.GGMLQuantizationType[tensor.type]
        rows = raw.reshape(*tensor.shape[:-1], -1)
        values = rows.view(np.float32) if tensor.type == "F32" else gguf.quants.dequantize(rows, kind)
        found[name.removesuffix(".weight")] = values.reshape(tensor.shape)
    return found


def within(weights: dict[str, Floats], layer: int) -> dict[str, Any]:
    """The tensors of one layer, without its prefix."""
    start = f"blk.{layer}."
    return {name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}


def rotated(x: Floats, positions: npt.NDArray[np.integer], theta: float) -> Floats:
    """Interleaved rope over `x[n][heads][dim]`: pairs (2i, 2i + 1) turn by position * theta^(-2i / dim)."""
    dim = x.shape[-1]
    angle = positions[:, None] * theta ** (-np.arange(0, dim, 2) / dim)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def rotated_halves(x: Floats, positions: npt.NDArray[np.integer], theta: float) -> Floats:
    """`rotated` for pairs (i, i + dim / 2)."""
    dim = x.shape[-1]
    pairs = np.arange(dim).reshape(2, -1).T.reshape(-1)
    return rotated(x[..., pairs], positions, theta)[..., np.argsort(pairs)]


def attended(q: Floats, k: Floats, v: Floats, scale: float, window: int | None = None) -> Floats:
    """Causal attention of `q[n][heads][dim]`: a query sees `window` keys, its own among them (None: all)."""
    n, heads, _ = q.shape
    k, v = (np.repeat(part, heads // part.shape[1], axis=1) for part in (k, v))
    behind = np.arange(n)[:, None] - np.arange(n)[None, :]
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    scores[:, (behind < 0) | (behind >= (window or n))] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), v).reshape(n, -1)


def llama_logits(file: GgufFile, config: ModelConfig, tokens: list[int]) -> Floats:
    """Logits `[n][vocab]` after every token."""
    w: dict[str, Any] = weights_of(file)
    n, dim, eps = len(tokens), config.head_dim, config.norm_eps
    x = w["token_embd"][tokens].astype(np.float64)
    for layer in range(config.n_layers):
        b = within(w, layer)
        h = reference.rms_norm(x, b["attn_norm"], eps)
        q, k, v = (reference.matmul(h, b[f"attn_{part}"]).reshape(n, -1, dim) for part in "qkv")
        q, k = (rotated(part, np.arange(n), config.group_of(layer).rope_theta) for part in (q, k))
        heads = attended(q, k, v, config.attention_scale, config.group_of(layer).window)
        x = x + reference.matmul(heads, b["attn_output"])
        h = reference.rms_norm(x, b["ffn_norm"], eps)
        hidden = silu(reference.matmul(h, b["ffn_gate"])) * reference.matmul(h, b["ffn_up"])
        x = x + reference.matmul(hidden, b["ffn_down"])
    return reference.matmul(reference.rms_norm(x, w["output_norm"], eps), w["token_embd"])


def gemma3_logits(file: GgufFile, tokens: list[int], windows: Sequence[int | None]) -> Floats:
    """Logits `[n][vocab]` after every token; layer i sees `windows[i]` tokens (None: all)."""
    w: dict[str, Any] = weights_of(file)
    facts = {key.removeprefix("gemma3."): value for key, value in file.metadata.items()}
    n, dim, eps = len(tokens), facts["attention.key_length"], facts["attention.layer_norm_rms_epsilon"]
    x = w["token_embd"][tokens] * facts["embedding_length"] ** 0.5
    for layer, window in enumerate(windows):
        b = within(w, layer)
        h = reference.rms_norm(x, b["attn_norm"], eps)
        q, k, v = (reference.matmul(h, b[f"attn_{part}"]).reshape(n, -1, dim) for part in "qkv")
        q, k = (reference.rms_norm(part, b[f"attn_{name}_norm"], eps) for name, part in (("q", q), ("k", k)))
        q, k = (rotated_halves(part, np.arange(n), 1e4 if window else 1e6) for part in (q, k))
        branch = reference.matmul(attended(q, k, v, dim**-0.5, window), b["attn_output"])
        x = x + reference.rms_norm(branch, b["post_attention_norm"], eps)
        h = reference.rms_norm(x, b["ffn_norm"], eps)
        hidden = gelu(reference.matmul(h, b["ffn_gate"])) * reference.matmul(h, b["ffn_up"])
        x = x + reference.rms_norm(reference.matmul(hidden, b["ffn_down"]), b["post_ffw_norm"], eps)
    return reference.matmul(reference.rms_norm(x, w["output_norm"], eps), w["token_embd"])
