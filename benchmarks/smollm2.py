"""The model that whole-model benchmarks run, and llama.cpp with the same file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import Bench, Row
from benchmarks.peers.llamacpp import LlamaCpp, llamacpp
from webkv.conversation import Conversation
from webkv.errors import ModelError
from webkv.load import Loaded, load
from webkv.models.gguf import open_gguf
from webkv.models.locate import locate


@dataclass(frozen=True)
class Opened:
    """SmolLM2 on the benchmark's device: its files, and the bytes of its weights."""

    bench: Bench
    files: tuple[Path, ...]
    loaded: Loaded
    weights: int
    context: int

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of keys and values of so many tokens."""
        identity = self.loaded.identity
        return sum(group.page_bytes for group in identity.groups) * tokens // identity.page_tokens

    async def computed(self, length: int) -> Conversation:
        """A new conversation with the KV of `length` tokens."""
        conversation = self.loaded.engine.open(prompt(length))
        await self.loaded.engine.prefill(conversation, length)
        return conversation

    @contextmanager
    def peer(self) -> Iterator[LlamaCpp | None]:
        """llama.cpp with the same file, context and number of threads, or None if it is not installed."""
        with TemporaryDirectory() as folder:
            self.bench.say("loading SmolLM2 into llama.cpp")
            yield llamacpp(self.files[0], self.context, os.cpu_count() or 1, Path(folder))


async def open_smollm2(bench: Bench, context: int) -> Opened | Row:
    """The model with room for two conversations of `context` tokens, or a row that says why not."""
    try:
        files = locate(None)
    except ModelError as error:
        return Row("SmolLM2", note=str(error))
    bench.say("loading SmolLM2")
    loaded = await load(files, device=bench.device, context=context, sequences=2)
    weights = sum(tensor.nbytes for tensor in open_gguf(files).tensors.values())
    return Opened(bench, tuple(files), loaded, weights, context)


def prompt(length: int) -> list[int]:
    """Token ids that repeat nothing soon."""
    return [(7919 * at) % 40_000 + 100 for at in range(length)]
