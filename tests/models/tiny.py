"""Tiny models with random weights, written as real GGUF files in a fraction of a second.

`write_tiny_llama` and `write_tiny_gemma3` are functions of their arguments alone: the same bytes every time.
Between them they hold every weight type that webkv reads.  Rows of special tokens are zero in the embedding,
so that a greedy run never ends by itself.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Kind = gguf.GGMLQuantizationType

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA_MERGES = [
    *(
        "Ġ t",
        "h e",
        "Ġ a",
        "i n",
        "r e",
        "o n",
        "Ġt he",
        "e r",
        "Ġ s",
        "a t",
        "Ġ o",
        "e n",
        "Ġ c",
        "i t",
        "i s",
    ),
    *(
        "o r",
        "e s",
        "Ġ f",
        "a n",
        "Ġ w",
        "Ġo f",
        "e d",
        "Ġ p",
        "in g",
        "Ġ b",
        "a l",
        "Ġ m",
        "Ġa n",
        "a r",
        "Ġt o",
    ),
    *("Ġ in", "Ġan d", "l l", "Ġ d", "Ġ h", "o u", "l e", "Ġ is", "Ġ l", "Ġ g"),
]
GEMMA_HEAD = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
GEMMA_RUNS = ["\n", "\n\n", "  ", "   ", "    "]
GEMMA_PIECES = [
    *(
        "▁t",
        "he",
        "in",
        "▁a",
        "re",
        "on",
        "▁the",
        "er",
        "▁s",
        "at",
        "en",
        "it",
        "is",
        "or",
        "▁w",
        "an",
        "▁o",
        "of",
    ),
    *("▁of", "ed", "ing", "▁in", "▁an", "▁and", "▁to", "▁is", "ou", "▁h"),
]
GEMMA_LETTERS = [*"▁etaoinshrdlcumwfgypbvkjxqzETAOINSHRDLCUMWFGYPBVKJXQZ0123456789.,!?'-:;()"]


def write_tiny_llama(
    path: str | PathLike[str],
    *,
    seed: int = 0,
    layers: int = 3,
    d_model: int = 96,
    d_ff: int = 256,
    heads: int = 6,
    kv_heads: int = 2,
    context: int = 2048,
    kind: Kind | None = None,
) -> None:
    """A llama model: GQA, interleaved rope, tied output, byte-level BPE with 299 tokens, ChatML template.

    `kind`: one weight type for all matrices, so that few kernels are to be compiled; else all that llama has.
    """
    tokens = [*LLAMA_SPECIALS, *_byte_symbols(), *(merge.replace(" ", "") for merge in LLAMA_MERGES)]
    writer = gguf.GGUFWriter(path, "llama")
    _common(writer, layers, d_model, d_ff, heads, kv_heads, context)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(d_model // heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(LLAMA_SPECIALS) + [1] * (len(tokens) - len(LLAMA_SPECIALS)))
    writer.add_token_merges(LLAMA_MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)
    weights = _Weights(writer, seed)
    kv_width = d_model // heads * kv_heads
    weights.embedding("token_embd.weight", len(tokens), d_model, special=range(len(LLAMA_SPECIALS)))
    for layer in range(layers):
        block = f"blk.{layer}."
        weights.norm(block + "attn_norm.weight", d_model)
        weights.matrix(block + "attn_q.weight", d_model, d_model, kind or Kind.Q4_1)
        weights.matrix(block + "attn_k.weight", kv_width, d_model, kind or Kind.Q8_0)
        weights.matrix(block + "attn_v.weight", kv_width, d_model, kind or Kind.F16)
        weights.matrix(block + "attn_output.weight", d_model, d_model, kind or Kind.Q4_0)
        weights.norm(block + "ffn_norm.weight", d_model)
        weights.matrix(block + "ffn_gate.weight", d_ff, d_model, kind or Kind.Q4_1)
        mixed = Kind.F32 if layer == 0 else Kind.Q5_0
        weights.matrix(block + "ffn_up.weight", d_ff, d_model, kind or mixed)
        weights.matrix(block + "ffn_down.weight", d_model, d_ff, kind or Kind.Q4_1)
    weights.norm("output_norm.weight", d_model)
    _finish(writer)


def write_tiny_gemma3(
    path: str | PathLike[str],
    *,
    seed: int = 0,
    layers: int = 6,
    d_model: int = 64,
    d_ff: int = 256,
    heads: int = 4,
    kv_heads: int = 1,
    head_dim: int = 32,
    window: int = 32,
    context: int = 2048,
) -> None:
    """A gemma3 model: MQA wider than d_model, every sixth layer global, the others sliding, SentencePiece."""
    tokens, scores, types = _gemma_vocabulary()
    writer = gguf.GGUFWriter(path, "gemma3")
    _common(writer, layers, d_model, d_ff, heads, kv_heads, context)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_sliding_window(window)
    writer.add_rope_freq_base(1000000.0)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    weights = _Weights(writer, seed)
    weights.embedding("token_embd.weight", len(tokens), d_model, special=range(len(GEMMA_HEAD)))
    for layer in range(layers):
        block, wide = f"blk.{layer}.", heads * head_dim
        weights.norm(block + "attn_norm.weight", d_model)
        weights.norm(block + "ffn_norm.weight", d_model)
        # Large enough that attention is sharp, and that the layers and not the token itself (its embedding is
        # times 8) decide what comes next: else every greedy run repeats one token.
        weights.norm(block + "attn_q_norm.weight", head_dim, mean=2)
        weights.norm(block + "attn_k_norm.weight", head_dim, mean=2)
        weights.norm(block + "post_attention_norm.weight", d_model, mean=12)
        weights.norm(block + "post_ffw_norm.weight", d_model, mean=12)
        weights.matrix(block + "attn_q.weight", wide, d_model, Kind.Q5_0)
        weights.matrix(block + "attn_k.weight", kv_heads * head_dim, d_model, Kind.Q5_0)
        weights.matrix(block + "attn_v.weight", kv_heads * head_dim, d_model, Kind.Q8_0)
        weights.matrix(block + "attn_output.weight", d_model, wide, Kind.Q8_0)
        weights.matrix(block + "ffn_gate.weight", d_ff, d_model, Kind.Q5_0)
        weights.matrix(block + "ffn_up.weight", d_ff, d_model, Kind.Q5_0)
        weights.matrix(block + "ffn_down.weight", d_model, d_ff, Kind.Q6_K if layer % 2 else Kind.Q4_K)
    weights.norm("output_norm.weight", d_model)
    _finish(writer)


class _Weights:
    """Adds random tensors to a writer; each is a function of the seed and how many came before."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def norm(self, name: str, width: int, mean: float = 1) -> None:
        self._writer.add_tensor(name, self._uniform((width,)) * np.float32(0.2) + np.float32(mean))

    def embedding(self, name: str, rows: int, columns: int, special: range) -> None:
        values = self._uniform((rows, columns))
        values[special.start : special.stop] = 0
        self._add(name, values, Kind.Q8_0)

    def matrix(self, name: str, rows: int, columns: int, kind: Kind) -> None:
        if kind in (Kind.Q4_K, Kind.Q6_K):
            self._writer.add_tensor(name, self._super_blocks(rows, columns, kind), raw_dtype=kind)
        else:
            self._add(name, self._uniform((rows, columns)) * np.float32(3 * columns**-0.5), kind)

    def _add(self, name: str, values: Floats, kind: Kind) -> None:
        self._writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def _uniform(self, shape: tuple[int, ...]) -> Floats:
        return (self._random.random(shape, dtype=np.float32) - np.float32(0.5)) * np.float32(2)

    def _super_blocks(self, rows: int, columns: int, kind: Kind) -> npt.NDArray[np.uint8]:
        """Random K-quant blocks with scales set by hand; the gguf package cannot quantise to K types."""
        blocks = rows * columns // 256
        _, size = gguf.GGML_QUANT_SIZES[kind]
        raw = self._random.integers(0, 256, (blocks, size), dtype=np.uint8)
        if (
            kind == Kind.Q4_K
        ):  # d, dmin, 6-bit scales and mins, nibbles: w = d*scale*q - dmin*min, mean about 0
            raw[:, 0:2] = _half(6e-4)
            raw[:, 2:4] = _half(4.5e-3)
        else:  # low bits, high bits, int8 scales, d: w = d * scale * (q - 32)
            raw[:, 208:210] = _half(1.2e-4)
        return raw.reshape(rows, -1)


def _half(value: float) -> npt.NDArray[np.uint8]:
    return np.array([value], dtype="<f2").view(np.uint8)


def _common(
    writer: gguf.GGUFWriter, layers: int, d_model: int, d_ff: int, heads: int, kv_heads: int, context: int
) -> None:
    writer.add_name(f"tiny {writer.arch}")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(d_model)
    writer.add_feed_forward_length(d_ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _byte_symbols() -> list[str]:
    """GPT-2's alphabet: bytes that Latin-1 prints stand for themselves, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(rest)) for byte in range(256)]


def _gemma_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types in Gemma's order: specials, runs, bytes, pieces, letters last."""
    sections: list[tuple[list[str], int]] = [
        (GEMMA_HEAD, 3),
        (GEMMA_RUNS, 4),
        ([f"<0x{byte:02X}>" for byte in range(256)], 6),
        (GEMMA_PIECES, 1),
        (GEMMA_LETTERS, 1),
    ]
    tokens = [token for section, _ in sections for token in section]
    types: list[Any] = [kind for section, kind in sections for _ in section]
    scores = [-1000.0 if kind != 1 else -float(index) for index, kind in enumerate(types)]
    return tokens, scores, types
