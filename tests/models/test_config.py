"""Configurations: facts of the packaged models, and every key or tensor that is missing or wrong named."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import write_tiny_gemma3, write_tiny_llama
from webkv.errors import ModelError
from webkv.models.architectures import read_config
from webkv.models.config import ModelConfig, expected_tensors
from webkv.models.gguf import GgufFile, open_gguf
from webkv.models.locate import locate


def llama(tmp_path: Path) -> GgufFile:
    write_tiny_llama(tmp_path / "llama.gguf")
    return open_gguf(tmp_path / "llama.gguf")


def gemma3(tmp_path: Path) -> GgufFile:
    write_tiny_gemma3(tmp_path / "gemma3.gguf")
    return open_gguf(tmp_path / "gemma3.gguf")


def packaged(name: str) -> ModelConfig:
    try:
        return read_config(open_gguf(locate(name)))
    except ModelError as missing:
        pytest.skip(str(missing))


def test_smollm2() -> None:
    config = packaged("smollm2")
    sizes = (config.n_layers, config.d_model, config.d_ff, config.n_heads, config.n_kv_heads, config.head_dim)
    assert sizes == (30, 576, 1536, 9, 3, 64)
    assert (config.vocab_size, config.context, config.rope_dims) == (49152, 8192, 64)
    assert config.norm_eps == pytest.approx(1e-5)
    assert (config.rope_pairing, config.activation) == ("interleaved", "silu")
    assert (config.embedding_scale, config.attention_scale) == (1.0, 0.125)
    assert (config.qk_norm, config.sandwich_norms, config.tied_output) == (False, False, True)
    assert (config.bos_id, config.eos_id, config.stop_ids) == (1, 2, (0, 2))
    (group,) = config.groups
    assert (group.name, group.layers, group.window) == ("global", tuple(range(30)), None)
    assert (group.rope_theta, group.rope_scale) == (1e5, 1.0)


def test_gemma3() -> None:
    config = packaged("gemma3")
    sizes = (config.n_layers, config.d_model, config.d_ff, config.n_heads, config.n_kv_heads, config.head_dim)
    assert sizes == (18, 640, 2048, 4, 1, 256)
    assert (config.vocab_size, config.context, config.rope_dims) == (262144, 32768, 256)
    assert config.norm_eps == pytest.approx(1e-6)
    assert (config.rope_pairing, config.activation) == ("half", "gelu_tanh")
    assert (config.embedding_scale, config.attention_scale) == (math.sqrt(640), 1 / 16)
    assert (config.qk_norm, config.sandwich_norms, config.tied_output) == (True, True, True)
    assert (config.bos_id, config.eos_id, config.stop_ids) == (2, 1, (1, 106))
    sliding, rest = config.groups
    assert (sliding.name, sliding.window, sliding.rope_theta) == ("sliding", 512, 1e4)
    assert (rest.name, rest.layers, rest.window, rest.rope_theta) == ("global", (5, 11, 17), None, 1e6)
    assert config.windows == tuple(None if layer in (5, 11, 17) else 512 for layer in range(18))


def test_expected_tensors_are_what_the_tiny_files_hold(tmp_path: Path) -> None:
    for model in (llama(tmp_path), gemma3(tmp_path)):
        found = {name: tensor.shape for name, tensor in model.tensors.items()}
        assert expected_tensors(read_config(model)) == found


def test_an_untied_output_is_seen(tmp_path: Path) -> None:
    model = llama(tmp_path)
    model.tensors["output.weight"] = model.tensors["token_embd.weight"]
    assert not read_config(model).tied_output


REQUIRED = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_no_guess_in_llama(tmp_path: Path, key: str) -> None:
    model = llama(tmp_path)
    del model.metadata[f"llama.{key}"]
    with pytest.raises(ModelError, match=rf"^llama.gguf: metadata key llama\.{key} is missing$"):
        read_config(model)


@pytest.mark.parametrize("key", [*REQUIRED, "attention.key_length", "attention.sliding_window"])
def test_a_missing_key_is_no_guess_in_gemma3(tmp_path: Path, key: str) -> None:
    model = gemma3(tmp_path)
    del model.metadata[f"gemma3.{key}"]
    with pytest.raises(ModelError, match=rf"metadata key gemma3\.{key} is missing"):
        read_config(model)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "mamba", "architecture 'mamba' is not supported, known are gemma3, llama"),
        ("llama.block_count", 0, "llama.block_count is 0, expected an integer of at least 1"),
        ("llama.block_count", True, "llama.block_count is True, expected an integer"),
        ("llama.block_count", 4, "tensor blk.3.attn_norm.weight is missing, expected shape"),
        ("llama.block_count", 2, "tensor blk.2.attn_norm.weight is not known in architecture llama"),
        ("llama.embedding_length", 97, "attention.key_length is missing and 97 is no multiple of 6 heads"),
        (
            "llama.embedding_length",
            192,
            r"tensor token_embd.weight has shape \(299, 96\), expected \(299, 192\)",
        ),
        (
            "llama.feed_forward_length",
            128,
            r"tensor blk.0.ffn_gate.weight has shape \(256, 96\), expected \(128",
        ),
        ("llama.attention.head_count_kv", 4, "6 heads cannot share 4 key/value heads evenly"),
        ("llama.attention.head_count_kv", [2, 2, 2], r"head_count_kv is \[2, 2, 2\], expected an integer"),
        (
            "llama.attention.layer_norm_rms_epsilon",
            math.nan,
            "epsilon is nan, expected a finite number above 0",
        ),
        ("llama.attention.value_length", 32, "value_length is 32, expected the key length 16"),
        ("llama.rope.freq_base", -1.0, "llama.rope.freq_base is -1.0, expected a finite number above 0"),
        ("llama.rope.dimension_count", 15, "dimension_count is 15, expected an even number up to 16"),
        ("llama.rope.dimension_count", 18, "dimension_count is 18, expected an even number up to 16"),
        ("llama.rope.scaling.type", "yarn", "llama.rope.scaling.type 'yarn' is not supported"),
        ("llama.rope.scaling.type", "linear", "metadata key llama.rope.scaling.factor is missing"),
        ("llama.expert_count", 8, "llama.expert_count is set, experts are not supported"),
        ("llama.vocab_size", 300, "llama.vocab_size is 300, the file lists 299 tokens"),
        ("tokenizer.ggml.eos_token_id", 299, "eos_token_id is 299, expected a token id below 299"),
        ("tokenizer.ggml.tokens", [], r"tokenizer.ggml.tokens is \[\], expected a list of strings"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, key: str, value: Any, message: str) -> None:
    model = llama(tmp_path)
    model.metadata[key] = value
    with pytest.raises(ModelError, match=message):
        read_config(model)


def test_a_tensor_of_no_known_use_is_refused(tmp_path: Path) -> None:
    model = llama(tmp_path)
    model.tensors["blk.0.attn_q.bias"] = model.tensors["output_norm.weight"]
    with pytest.raises(ModelError, match=r"tensor blk.0.attn_q.bias is not known in architecture llama"):
        read_config(model)


def test_a_quantised_norm_is_refused(tmp_path: Path) -> None:
    model = llama(tmp_path)
    norm = model.tensors["output_norm.weight"]
    model.tensors["output_norm.weight"] = dataclasses.replace(norm, type="Q8_0")
    with pytest.raises(ModelError, match=r"tensor output_norm.weight has type Q8_0, expected F32"):
        read_config(model)


def test_linear_rope_scaling_divides_positions_in_global_layers_only(tmp_path: Path) -> None:
    model = gemma3(tmp_path)
    model.metadata |= {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    assert [(group.name, group.rope_scale) for group in read_config(model).groups] == [
        ("sliding", 1.0),
        ("global", 0.125),
    ]


def test_a_llama_with_a_window_slides_in_every_layer(tmp_path: Path) -> None:
    model = llama(tmp_path)
    model.metadata["llama.attention.sliding_window"] = 64
    assert read_config(model).windows == (64, 64, 64)


@pytest.mark.parametrize(
    ("pattern", "sliding"),
    [
        (2, (0, 2, 4)),
        (3, (0, 1, 3, 4)),
        (1, ()),
        ([True, False, False, True, False, False], (0, 3)),
        ([True] * 6, (0, 1, 2, 3, 4, 5)),
    ],
)
def test_the_sliding_pattern_of_the_file_wins(tmp_path: Path, pattern: Any, sliding: tuple[int, ...]) -> None:
    model = gemma3(tmp_path)
    model.metadata["gemma3.attention.sliding_window_pattern"] = pattern
    config = read_config(model)
    assert tuple(layer for layer, window in enumerate(config.windows) if window == 32) == sliding
    assert sorted(layer for group in config.groups for layer in group.layers) == list(range(6))
    assert all(group.layers for group in config.groups)


@pytest.mark.parametrize("pattern", [[True] * 5, [1, 0, 1, 0, 1, 0], 0, "six"])
def test_a_sliding_pattern_that_fits_no_model_is_refused(tmp_path: Path, pattern: Any) -> None:
    model = gemma3(tmp_path)
    model.metadata["gemma3.attention.sliding_window_pattern"] = pattern
    with pytest.raises(ModelError, match=r"gemma3.attention.sliding_window_pattern"):
        read_config(model)


def test_the_local_rope_theta_of_the_file_wins(tmp_path: Path) -> None:
    model = gemma3(tmp_path)
    model.metadata["gemma3.rope.freq_base_swa"] = 5e4
    assert [group.rope_theta for group in read_config(model).groups] == [5e4, 1e6]


def test_soft_caps_are_refused(tmp_path: Path) -> None:
    model = gemma3(tmp_path)
    model.metadata["gemma3.final_logit_softcapping"] = 30.0
    with pytest.raises(
        ModelError, match=r"gemma3.final_logit_softcapping is set, soft caps are not supported"
    ):
        read_config(model)
