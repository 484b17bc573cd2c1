"""A plain numpy Llama, float64 over ggml's dequantised weights, for tiny models."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from webkv.kernels import reference
from webkv.kernels.reference.model import silu
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


def rotated(x: Floats, positions: npt.NDArray[np.integer], theta: float) -> Floats:
    """Interleaved rope over `x[n][heads][dim]`: pairs (2i, 2i + 1) turn by position * theta^(-2i / dim)."""
    dim = x.shape[-1]
    angle = positions[:, None] * theta ** (-np.arange(0, dim, 2) / dim)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def llama_logits(file: GgufFile, config: ModelConfig, tokens: list[int]) -> Floats:
    """Logits `[n][vocab]` after every token."""
    w: dict[str, Any] = weights_of(file)
    n, dim, eps = len(tokens), config.head_dim, config.norm_eps
    positions = np.arange(n)
    x = w["token_embd"][tokens].astype(np.float64)
    for layer in range(config.n_layers):
        b = {k.removeprefix(f"blk.{layer}."): v for k, v in w.items() if k.startswith(f"blk.{layer}.")}
        h = reference.rms_norm(x, b["attn_norm"], eps)
        q, k, v = (reference.matmul(h, b[f"attn_{part}"]).reshape(n, -1, dim) for part in "qkv")
        theta = config.group_of(layer).rope_theta
        q, k = rotated(q, positions, theta), rotated(k, positions, theta)
        k, v = (np.repeat(part, config.n_heads // config.n_kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * config.attention_scale
        scores[:, positions[:, None] < positions[None, :]] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        heads = np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), v)
        x = x + reference.matmul(heads.reshape(n, -1), b["attn_output"])
        h = reference.rms_norm(x, b["ffn_norm"], eps)
        hidden = silu(reference.matmul(h, b["ffn_gate"])) * reference.matmul(h, b["ffn_up"])
        x = x + reference.matmul(hidden, b["ffn_down"])
    return reference.matmul(reference.rms_norm(x, w["output_norm"], eps), w["token_embd"])
