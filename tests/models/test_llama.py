"""The Llama forward pass over the real cache: golden logits of SmolLM2, and a tiny model against numpy."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.test_quant import smollm2_path
from tests.models.oracle import llama_logits
from tests.models.tiny import write_tiny_llama
from tests.support import device
from webkv.cache import PagedKVCache
from webkv.gpu import Device, open_device
from webkv.kernels.matmul import FEATURES
from webkv.load import cache_config
from webkv.models.architectures import read_config
from webkv.models.config import ModelConfig
from webkv.models.gguf import GgufFile, open_gguf
from webkv.models.llama import Llama

GOLDEN = Path(__file__).parent.parent / "golden"
CHUNK = 256


@dataclass
class Run:
    """A model with a cache of its own."""

    gpu: Device
    file: GgufFile
    config: ModelConfig
    model: Llama
    cache: PagedKVCache

    async def step(self, sequences: list[int], tokens: list[int], mode: str) -> np.ndarray:
        """Logits `[sequences][vocab]` after these tokens, evenly many of each sequence."""
        lengths = [len(tokens) // len(sequences)] * len(sequences)
        self.cache.begin_forward(sequences, lengths)
        with self.gpu.batch() as batch:
            self.model.forward(batch, self.cache, tokens, mode, lengths)
        self.cache.end_forward()
        return await self.model.full_logits(len(sequences))

    async def prefill(self, sequence: int, tokens: list[int], chunk: int = CHUNK) -> np.ndarray:
        self.cache.add_sequence(sequence)
        for first in range(0, len(tokens), chunk):
            logits = await self.step([sequence], tokens[first : first + chunk], "prefill")
        return logits


def start(
    gpu: Device, file: GgufFile, page_dtype: str, context: int = 1024, model: Llama | None = None
) -> Run:
    config = read_config(file)
    settings = cache_config(config, context=context, sequences=6, page_dtype=page_dtype, chunk=CHUNK)
    model = model or Llama(gpu, config, file, max_rows=CHUNK, sequences=4)
    return Run(gpu, file, config, model, PagedKVCache(gpu, settings))


_smollm2: tuple[Device, Llama] | None = None


async def smollm2(page_dtype: str) -> Run:
    """SmolLM2 on a device as `load` opens it, its weights uploaded once for all tests."""
    global _smollm2
    file = open_gguf(smollm2_path())
    gpu, model = _smollm2 or (await open_device(features=FEATURES), None)
    run = start(gpu, file, page_dtype, model=model)
    _smollm2 = gpu, run.model
    return run


def golden(prompt: str) -> dict[str, Any]:
    prompts = json.loads((GOLDEN / "smollm2_greedy.json").read_text())["prompts"]
    return next(p for p in prompts if p["id"] == prompt)


def difference(logits: np.ndarray, step: dict[str, Any]) -> float:
    return float(np.abs(logits[step["ids"]] - np.array(step["logits"])).max())


@pytest.mark.parametrize(("prompt", "steps"), [("p0_short", 64), ("p2_chat", 64), ("p3_long", 64)])
async def test_smollm2_with_f32_pages_has_the_golden_logits_and_ids(prompt: str, steps: int) -> None:
    run, want = await smollm2("f32"), golden(prompt)
    logits = await run.prefill(0, want["tokens"])
    for token, step in zip(want["generated"][:steps], want["steps"][:steps], strict=True):
        assert difference(logits[0], step) < 5e-3
        assert (await run.model.greedy(1)).tolist() == [token]
        logits = await run.step([0], [token], "decode")


@pytest.mark.parametrize(("prompt", "steps"), [("p2_chat", 64), ("p3_long", 24)])
async def test_smollm2_with_f16_pages_is_close_and_decides_alike_where_it_matters(
    prompt: str, steps: int
) -> None:
    run, want = await smollm2("f16"), golden(prompt)
    logits = await run.prefill(0, want["tokens"])
    for token, step in zip(want["generated"][:steps], want["steps"][:steps], strict=True):
        assert difference(logits[0], step) < 5e-2
        if step["logits"][0] - step["logits"][1] > 0.1:
            assert int(logits[0].argmax()) == token
        logits = await run.step([0], [token], "decode")


async def test_smollm2_candidates_are_the_largest_logits() -> None:
    run = await smollm2("f16")
    logits = (await run.prefill(0, golden("p0_short")["tokens"]))[0]
    (row,) = await run.model.candidates(1)
    order = np.lexsort((np.arange(len(logits)), -logits))[: len(row.ids)]
    assert row.ids.tolist() == order.tolist() and (row.logits == logits[order]).all()
    assert np.isclose(row.logsumexp, np.log(np.exp(logits.astype(np.float64)).sum()), atol=1e-4)


async def test_decode_creates_no_gpu_object_after_warm_up() -> None:
    run = await smollm2("f16")
    tokens = golden("p0_short")["tokens"]
    await run.prefill(0, tokens)
    await run.step([0], [tokens[0]], "decode")
    before = (run.gpu.created.buffers, run.gpu.created.bind_groups, run.gpu.created.pipelines)
    for token in tokens:
        await run.step([0], [token], "decode")
    assert before == (run.gpu.created.buffers, run.gpu.created.bind_groups, run.gpu.created.pipelines)


def tiny(path: Path) -> GgufFile:
    write_tiny_llama(path)
    return open_gguf(path)


async def test_tiny_llama_is_the_numpy_forward(tmp_path: Path) -> None:
    run = start(await device(), tiny(tmp_path / "tiny.gguf"), "f32")
    tokens = np.random.default_rng(0).integers(3, run.config.vocab_size, 40).tolist()
    want = llama_logits(run.file, run.config, tokens)
    got = [await run.prefill(0, tokens[:30], chunk=13)]
    got += [await run.step([0], [token], "decode") for token in tokens[30:]]
    assert np.abs(np.concatenate(got) - want[29:]).max() < 1e-3


async def test_tiny_llama_with_a_window_is_the_numpy_forward(tmp_path: Path) -> None:
    file = tiny(tmp_path / "tiny.gguf")
    file.metadata["llama.attention.sliding_window"] = 20  # as Mistral's
    run = start(await device(), file, "f32")
    tokens = np.random.default_rng(0).integers(3, run.config.vocab_size, 70).tolist()
    got = [await run.prefill(0, tokens[:-1]), await run.step([0], tokens[-1:], "decode")]
    assert np.abs(np.concatenate(got) - llama_logits(run.file, run.config, tokens)[-2:]).max() < 1e-3


async def test_a_sequence_has_the_same_bits_alone_and_in_a_batch(tmp_path: Path) -> None:
    run = start(await device(), tiny(tmp_path / "tiny.gguf"), "f16")
    prompts = {0: [5, 9, 200], 1: list(range(40, 73)), 2: [7] * 17}
    for sequence, tokens in prompts.items():
        await run.prefill(sequence, tokens)
        await run.prefill(sequence + 10, tokens)
    for token in (11, 30, 250):
        together = await run.step([0, 1, 2], [token, token + 1, token + 2], "decode")
        for sequence in prompts:
            alone = await run.step([sequence + 10], [token + sequence], "decode")
            assert alone[0].tobytes() == together[sequence].tobytes()


async def test_prefill_has_the_same_bits_in_chunks(tmp_path: Path) -> None:
    run = start(await device(), tiny(tmp_path / "tiny.gguf"), "f32")
    tokens = np.random.default_rng(1).integers(3, 290, 50).tolist()
    whole = await run.prefill(0, tokens)
    assert (await run.prefill(1, tokens, chunk=7)).tobytes() == whole.tobytes()


async def test_progress_counts_every_byte_of_the_tensors(tmp_path: Path) -> None:
    file = tiny(tmp_path / "tiny.gguf")
    seen: list[tuple[int, int]] = []
    Llama(
        await device(), read_config(file), file, max_rows=4, sequences=1,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    total = sum(tensor.nbytes for tensor in file.tensors.values())
    assert seen[-1] == (total, total)
    assert all(a[0] < b[0] for a, b in itertools.pairwise(seen))
