"""What a model is, taken from its GGUF metadata: sizes, rope, windows, norms, special tokens.

`architectures.py` reads the keys of each architecture; here are the result and what it says about tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from webkv.errors import ModelError
from webkv.models.gguf import GgufFile

RopePairing = Literal["interleaved", "half"]


@dataclass(frozen=True)
class LayerGroupSpec:
    """Layers with one life cycle in the cache, one page shape and one rope.

    `layers` are indices into the model, ascending.  `window` W lets position i see j iff 0 <= i - j < W
    (itself and W - 1 before); None sees all.  `rope_scale` multiplies positions (linear scaling, 1 for none).
    """

    name: str
    layers: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    rope_theta: float
    rope_scale: float = 1.0


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and rules of one model; lengths in tokens, dims in elements.

    `rope_pairing` says which elements turn together: "interleaved" (2i, 2i+1) or "half" (i, i + rope_dims/2).
    `stop_ids` are the token ids that end generation, `eos_id` among them.
    """

    architecture: str
    name: str
    n_layers: int
    d_model: int
    d_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    context: int
    norm_eps: float
    rope_pairing: RopePairing
    rope_dims: int
    groups: tuple[LayerGroupSpec, ...]
    embedding_scale: float
    attention_scale: float
    qk_norm: bool
    activation: Literal["silu", "gelu_tanh"]
    sandwich_norms: bool
    tied_output: bool
    bos_id: int | None
    eos_id: int
    stop_ids: tuple[int, ...]

    def group_of(self, layer: int) -> LayerGroupSpec:
        """The group that `layer` belongs to."""
        return next(group for group in self.groups if layer in group.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer, None where it is global."""
        return tuple(self.group_of(layer).window for layer in range(self.n_layers))


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model has: name -> shape, row-major `(out, in)`."""
    d, d_ff, dim = config.d_model, config.d_ff, config.head_dim
    q_width, kv_width = config.n_heads * dim, config.n_kv_heads * dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (d,),
        "attn_q": (q_width, d),
        "attn_k": (kv_width, d),
        "attn_v": (kv_width, d),
        "attn_output": (d, q_width),
        "ffn_norm": (d,),
        "ffn_gate": (d_ff, d),
        "ffn_up": (d_ff, d),
        "ffn_down": (d, d_ff),
    }
    if config.qk_norm:
        layer |= {"attn_q_norm": (dim,), "attn_k_norm": (dim,)}
    if config.sandwich_norms:
        layer |= {"post_attention_norm": (d,), "post_ffw_norm": (d,)}
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, d),
        "output_norm.weight": (d,),
    }
    if not config.tied_output:
        shapes["output.weight"] = (config.vocab_size, d)
    for index in range(config.n_layers):
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def check_tensors(config: ModelConfig, gguf: GgufFile) -> None:
    """Raise `ModelError` for a tensor that is missing, has another shape, or that the model does not know.

    An unknown tensor (a bias, rope factors, experts) would change the result, so ignoring it is no option.
    """
    expected = expected_tensors(config)
    for name, shape in expected.items():
        if name not in gguf.tensors:
            raise ModelError(f"{gguf.name}: tensor {name} is missing, expected shape {shape}")
        found = gguf.tensors[name].shape
        if found != shape:
            raise ModelError(f"{gguf.name}: tensor {name} has shape {found}, expected {shape}")
        if len(shape) == 1 and gguf.tensors[name].type != "F32":
            raise ModelError(f"{gguf.name}: tensor {name} has type {gguf.tensors[name].type}, expected F32")
    for name in gguf.tensors:
        if name not in expected:
            raise ModelError(f"{gguf.name}: tensor {name} is not known in architecture {config.architecture}")
