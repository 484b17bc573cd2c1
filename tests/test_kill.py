"""SIGKILL at random moments of a real run; what is resumed equals the uninterrupted run, bytes and all."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

import pytest

if sys.platform == "emscripten":
    pytest.skip("processes are native", allow_module_level=True)

from tests.models.tiny import write_tiny_gemma3, write_tiny_llama
from tests.support import device
from webkv.checkpoint import SqliteStore
from webkv.errors import CheckpointError
from webkv.load import load
from webkv.resume import Chat

KILLS = 20
TOKENS = 56
PROMPT = "the quick brown fox jumps over the lazy dog and runs into the dark forest of the night"


async def child(model: Path, store: Path, kill_at: float | None) -> tuple[list[int], dict, float]:
    """Run `webkv generate` in a process of its own, killed `kill_at` seconds after it is ready to compute.

    Returns the tokens it showed, its last event, and how long it computed.
    """
    command = [sys.executable, "-m", "webkv", "generate", "--model", str(model), "--raw", "--json"]
    command += ["--digests", "--max-tokens", str(TOKENS), "--session", "s", "--store", str(store), PROMPT]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, limit=1 << 24)
    assert process.stdout is not None
    shown, event, begun = [], {}, 0.0
    loop = asyncio.get_running_loop()
    async for line in process.stdout:
        if not line.endswith(b"\n"):
            break  # cut off by the kill
        event = json.loads(line)
        if event["event"] == "ready":
            begun = loop.time()
            if kill_at is not None:
                loop.call_later(kill_at, process.kill)
        elif event["event"] == "token":
            shown.append(event["token"])
    await process.wait()
    return shown, event, loop.time() - begun


async def resumed(model: Path, store: Path) -> tuple[list[int], dict[str, str], int]:
    """Finish the session in this process: all its tokens, the digests of its pages, tokens recovered."""
    loaded = await load(model, device=await device(), context=256)
    async with SqliteStore(store) as kept:
        chat = await Chat.resume(loaded, kept, "s")
        async for _ in chat.generate():
            pass
        pages = await chat.page_digests()
        await chat.close()
    return chat.conversation.tokens, pages, chat.recovery.tokens


@pytest.mark.parametrize("write_tiny", [write_tiny_llama, write_tiny_gemma3])
async def test_killed_at_random_moments(write_tiny, tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write_tiny(model)
    _, whole, seconds = await child(model, tmp_path / "whole.db", None)
    assert whole["event"] == "end"
    moments = random.Random(1)
    cut_short = 0
    for number in range(KILLS // 2):
        store = tmp_path / f"{number}.db"
        shown, last, _ = await child(model, store, moments.uniform(0, seconds))
        try:
            tokens, pages, _ = await resumed(model, store)
        except CheckpointError:
            assert shown == []  # killed before the session's first row
            continue
        cut_short += last["event"] != "end"
        assert tokens == whole["tokens"]
        assert pages == whole["pages"]
        prompt = len(tokens) - TOKENS
        assert tokens[prompt : prompt + len(shown)] == shown
    assert cut_short > 0
