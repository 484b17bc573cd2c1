"""Opening a model: what is refused before anything is made, and what checkpoints of it belong to."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import write_tiny_gemma3, write_tiny_llama
from tests.support import device
from webkv.errors import CacheError, DeviceError, ModelError, PromptError
from webkv.load import load


async def test_a_truncated_file_is_refused_wherever_it_ends(llama: Path) -> None:
    data = llama.read_bytes()
    for length in (*range(64), *range(64, len(data), 4999), len(data) - 1):
        with pytest.raises(ModelError, match=r"truncated|empty"):
            await load(data[:length], device_name="none is opened")


@pytest.mark.parametrize(
    ("found", "instead", "refusal"),
    [
        (b"GGUF", b"GIF8", "is not a GGUF file: it starts with b'GIF8'"),
        (b"llama", b"mamba", "architecture.*mamba"),
        (b"gpt2", b"rwkv", "tokenizer.*rwkv"),
        (b"smollm", b"unheard", "truncated|damaged"),
    ],
)
async def test_a_file_that_is_not_supported_is_named(
    llama: Path, found: bytes, instead: bytes, refusal: str
) -> None:
    with pytest.raises(ModelError, match=refusal):
        await load(llama.read_bytes().replace(found, instead), device_name="none is opened")


@pytest.mark.parametrize(
    ("options", "kind", "refusal"),
    [
        ({"context": 0}, PromptError, "context is 0, expected 1 to 2048 for tiny llama"),
        ({"context": 2049}, PromptError, "context is 2049, expected 1 to 2048"),
        ({"context": "9"}, PromptError, "context is '9', expected 1 to 2048"),
        ({"context": 64.5}, PromptError, "context is 64.5, expected 1 to 2048"),
        ({"sequences": 0}, CacheError, "sequences is 0, expected at least 1"),
        ({"chunk": -1}, CacheError, "chunk is -1, expected at least 1"),
        ({"page_dtype": "q4"}, CacheError, "page_dtype is 'q4', expected one of f32, f16, int8"),
        ({"sequences": 10**6}, DeviceError, "the device allows"),
    ],
)
async def test_sizes_that_are_refused(
    llama: Path, options: dict[str, Any], kind: type[Exception], refusal: str
) -> None:
    with pytest.raises(kind, match=refusal):
        await load(llama, device=await device(), **options)


async def test_an_unknown_device_is_refused(llama: Path) -> None:
    with pytest.raises(DeviceError, match="no GPU adapter matches 'no such device'; found: "):
        await load(llama, device_name="no such device")


async def test_the_context_is_the_models_up_to_a_default(llama: Path) -> None:
    assert (await load(llama, device=await device())).engine.context == 2048
    assert (await load(llama, device=await device(), default_context=512)).engine.context == 512


async def test_slow_steps_are_followed_to_their_ends(llama: Path) -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    def step(name: str, unit: str) -> Any:
        assert unit == "bytes"
        return lambda done, total: told.setdefault(name, []).append((done, total))

    await load(llama, device=await device(), progress=step)
    assert list(told) == ["checking the model", "loading the model"]
    for calls in told.values():
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        assert calls[-1][0] == calls[-1][1] > 0


async def test_a_model_is_the_same_from_its_bytes_and_its_parts(llama: Path, tmp_path: Path) -> None:
    data = llama.read_bytes()
    parts = [tmp_path / "m.part0", tmp_path / "m.part1"]
    parts[0].write_bytes(data[:100_001])
    parts[1].write_bytes(data[100_001:])
    whole, *others = [
        (await load(source, device=await device(), context=64)).identity for source in (llama, data, parts)
    ]
    assert others == [whole, whole]


async def test_an_identity_says_what_differs(llama: Path, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "seed.gguf", seed=3)
    write_tiny_gemma3(tmp_path / "gemma.gguf")
    gpu = await device()
    mine = (await load(llama, device=gpu, context=64)).identity

    def differing(other: object) -> set[str]:
        return {f.name for f in fields(mine) if getattr(mine, f.name) != getattr(other, f.name)}

    same = await load(llama, device=gpu, context=128, sequences=3, chunk=17)
    assert differing(same.identity) == set()
    assert differing((await load(llama, device=gpu, namespace="x")).identity) == {"namespace"}
    assert differing((await load(llama, device=gpu, page_dtype="f32")).identity) == {"groups"}
    quantised = (await load(llama, device=gpu, page_dtype="int8")).identity
    assert differing(quantised) == {"groups", "quantizer"}
    assert differing((await load(tmp_path / "seed.gguf", device=gpu)).identity) == {"weights"}
    gemma = (await load(tmp_path / "gemma.gguf", device=gpu)).identity
    assert differing(gemma) == {"weights", "tokenizer", "rope", "groups"}
