"""Reading the metadata of each supported architecture into a `ModelConfig`.

A key that an architecture needs and the file lacks is an error.  The only facts that come from here and not
from the file are Gemma 3's, whose converter does not write them: the `GEMMA3_` constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from webkv.errors import ModelError
from webkv.models.config import LayerGroupSpec, ModelConfig, check_tensors
from webkv.models.gguf import GgufFile
from webkv.models.keys import Keys

# Control tokens that end a turn or a document, by text; GGUF has one eos id only.
END_OF_GENERATION = frozenset(
    [
        "<|endoftext|>",
        "<|im_end|>",
        "<eos>",
        "<end_of_turn>",
        "</s>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|end|>",
    ]
)
CONTROL_TOKEN = 3

GEMMA3_PATTERN = 6  # every sixth layer is global, the five before it slide
GEMMA3_LOCAL_THETA = 1e4
GEMMA3_27B_LAYERS = 62  # the one size whose attention scale is (d_model / heads) ** -0.5


def read_config(gguf: GgufFile) -> ModelConfig:
    """The configuration of an open file, with every tensor's presence and shape checked against it.

    Raises `ModelError` that names the architecture, key or tensor that is missing, wrong or unsupported.
    """
    keys = Keys(gguf.name, gguf.metadata)
    architecture = keys.text("general.architecture")
    if architecture not in _READERS:
        known = ", ".join(sorted(_READERS))
        raise ModelError(f"{gguf.name}: architecture {architecture!r} is not supported, known are {known}")
    tied = "output.weight" not in gguf.tensors
    config = _READERS[architecture](keys.within(architecture), _common(keys, architecture, tied))
    check_tensors(config, gguf)
    return config


def stop_ids(metadata: dict[str, Any], eos_id: int) -> tuple[int, ...]:
    """Ids that end generation, ascending: eos, end of turn, and control tokens known by their text."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type", [])
    ids = {eos_id}
    ids |= {
        index
        for index, (text, kind) in enumerate(zip(tokens, types, strict=False))
        if kind == CONTROL_TOKEN and text in END_OF_GENERATION
    }
    ids |= {metadata[key] for key in ("tokenizer.ggml.eot_token_id",) if key in metadata}
    return tuple(sorted(ids))


def _common(keys: Keys, architecture: str, tied: bool) -> dict[str, Any]:
    """Fields that every architecture reads the same way."""
    own = keys.within(architecture)
    if own.count("expert_count", 0):
        raise ModelError(f"{keys.file}: {own.path('expert_count')} is set, experts are not supported")
    d_model, heads = own.count("embedding_length"), own.count("attention.head_count")
    kv_heads = own.count("attention.head_count_kv")
    if heads % kv_heads:
        raise ModelError(f"{keys.file}: {heads} heads cannot share {kv_heads} key/value heads evenly")
    vocab = len(keys.texts("tokenizer.ggml.tokens"))
    declared = own.count("vocab_size", vocab)
    if declared != vocab:
        raise ModelError(
            f"{keys.file}: {own.path('vocab_size')} is {declared}, the file lists {vocab} tokens"
        )
    eos = keys.token_id("tokenizer.ggml.eos_token_id", vocab)
    if eos is None:
        raise ModelError(f"{keys.file}: metadata key tokenizer.ggml.eos_token_id is missing")
    keys.token_id("tokenizer.ggml.eot_token_id", vocab)
    return {
        "architecture": architecture,
        "name": keys.text("general.name", keys.file),
        "n_layers": own.count("block_count"),
        "d_model": d_model,
        "d_ff": own.count("feed_forward_length"),
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "vocab_size": vocab,
        "context": own.count("context_length"),
        "norm_eps": own.positive("attention.layer_norm_rms_epsilon"),
        "tied_output": tied,
        "bos_id": keys.token_id("tokenizer.ggml.bos_token_id", vocab),
        "eos_id": eos,
        "stop_ids": stop_ids(keys.values, eos),
    }


def _llama(keys: Keys, common: dict[str, Any]) -> ModelConfig:
    d_model, heads = common["d_model"], common["n_heads"]
    if "attention.key_length" not in keys and d_model % heads:
        path = keys.path("attention.key_length")
        raise ModelError(f"{keys.file}: {path} is missing and {d_model} is no multiple of {heads} heads")
    head_dim = _head_dim(keys, keys.count("attention.key_length", d_model // heads))
    window = keys.count("attention.sliding_window", 0) or None
    group = LayerGroupSpec(
        name="sliding" if window else "global",
        layers=tuple(range(common["n_layers"])),
        heads=heads,
        kv_heads=common["n_kv_heads"],
        head_dim=head_dim,
        window=window,
        rope_theta=keys.positive("rope.freq_base"),
        rope_scale=_rope_scale(keys),
    )
    return ModelConfig(
        **common,
        head_dim=head_dim,
        rope_pairing="interleaved",
        rope_dims=_rope_dims(keys, head_dim),
        groups=(group,),
        embedding_scale=1.0,
        attention_scale=head_dim**-0.5,
        qk_norm=False,
        activation="silu",
        sandwich_norms=False,
    )


def _gemma3(keys: Keys, common: dict[str, Any]) -> ModelConfig:
    d_model, heads, n_layers = common["d_model"], common["n_heads"], common["n_layers"]
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if keys.values.get(keys.path(cap), 0.0) != 0.0:
            raise ModelError(f"{keys.file}: {keys.path(cap)} is set, soft caps are not supported")
    head_dim = _head_dim(keys, keys.count("attention.key_length"))
    slides = _sliding_layers(keys, n_layers)
    shared = (heads, common["n_kv_heads"], head_dim)
    local_theta = keys.positive("rope.freq_base_swa", GEMMA3_LOCAL_THETA)
    window = keys.count("attention.sliding_window")
    local = tuple(index for index in range(n_layers) if slides[index])
    rest = tuple(index for index in range(n_layers) if not slides[index])
    groups = (
        LayerGroupSpec("sliding", local, *shared, window, local_theta),
        LayerGroupSpec("global", rest, *shared, None, keys.positive("rope.freq_base"), _rope_scale(keys)),
    )
    scaled_by = d_model // heads if n_layers == GEMMA3_27B_LAYERS else head_dim
    return ModelConfig(
        **common,
        head_dim=head_dim,
        rope_pairing="half",
        rope_dims=_rope_dims(keys, head_dim),
        groups=tuple(group for group in groups if group.layers),
        embedding_scale=math.sqrt(d_model),
        attention_scale=scaled_by**-0.5,
        qk_norm=True,
        activation="gelu_tanh",
        sandwich_norms=True,
    )


def _sliding_layers(keys: Keys, n_layers: int) -> list[bool]:
    """Which layers slide: a period p means that layer i slides iff i % p < p - 1."""
    key = "attention.sliding_window_pattern"
    pattern = keys.values.get(keys.path(key), GEMMA3_PATTERN)
    if isinstance(pattern, list):
        if len(pattern) != n_layers or not all(isinstance(item, bool) for item in pattern):
            raise ModelError(f"{keys.file}: {keys.path(key)} must hold {n_layers} booleans")
        return pattern
    period = keys.count(key, GEMMA3_PATTERN)
    return [index % period < period - 1 for index in range(n_layers)]


def _head_dim(keys: Keys, key_length: int) -> int:
    value_length = keys.count("attention.value_length", key_length)
    if value_length != key_length:
        path = keys.path("attention.value_length")
        raise ModelError(f"{keys.file}: {path} is {value_length}, expected the key length {key_length}")
    return key_length


def _rope_dims(keys: Keys, head_dim: int) -> int:
    """Rotary dims per head, all of them where the file does not say."""
    dims = keys.count("rope.dimension_count", head_dim)
    if dims > head_dim or dims % 2:
        path = keys.path("rope.dimension_count")
        raise ModelError(f"{keys.file}: {path} is {dims}, expected an even number up to {head_dim}")
    return dims


def _rope_scale(keys: Keys) -> float:
    """The factor on positions under linear scaling; other scalings are refused by name."""
    kind = keys.text("rope.scaling.type", "none")
    if kind == "none":
        return 1.0 / keys.positive("rope.scale_linear", 1.0)
    if kind != "linear":
        path = keys.path("rope.scaling.type")
        raise ModelError(f"{keys.file}: {path} {kind!r} is not supported, known are 'none' and 'linear'")
    return 1.0 / keys.positive("rope.scaling.factor")


_READERS: dict[str, Callable[[Keys, dict[str, Any]], ModelConfig]] = {"llama": _llama, "gemma3": _gemma3}
