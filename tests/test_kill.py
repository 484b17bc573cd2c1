"""SIGKILL at random moments of a real run; what is resumed equals the uninterrupted run, bytes and all."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

if sys.platform in ("emscripten", "win32"):
    pytest.skip("needs processes that are forked", allow_module_level=True)

from tests.models.tiny import Kind, write_tiny_gemma3, write_tiny_llama
from webkv.checkpoint import SqliteStore
from webkv.cli import main
from webkv.errors import CheckpointError
from webkv.load import Loaded, load
from webkv.resume import Chat

KILLS = 20
TOKENS = 56
PROMPT = "the quick brown fox jumps over the lazy dog and runs into the dark forest of the night"


def generate(model: Path, store: Path, output: Connection) -> None:
    """`webkv generate` in this process, printing to `output`."""
    sys.stdout = open(os.dup(output.fileno()), "w")  # noqa: SIM115
    command = ["generate", "--model", str(model), "--raw", "--json", "--digests", "--session", "s"]
    sys.exit(main([*command, "--max-tokens", str(TOKENS), "--store", str(store), PROMPT]))


async def child(model: Path, store: Path, kill_at: tuple[int, float] | None = None) -> list[dict]:
    """What `generate` prints in a process of its own, killed that many lines and seconds after it began.

    The first lines say that it is ready and has begun; each later one is a token.
    """
    # A fork of a process that has imported everything: importing is a third of what a run takes.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["wgpu.backends.wgpu_native", "webkv.cli.generate", __name__])
    reading, writing = processes.Pipe(duplex=False)
    process = processes.Process(target=generate, args=(model, store, writing))
    process.start()
    writing.close()
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader(limit=1 << 24)
    pipe = os.fdopen(os.dup(reading.fileno()), "rb")
    reading.close()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), pipe)
    events: list[dict] = []
    async for line in lines:
        if line.endswith(b"\n"):  # else cut off by the kill
            events.append(json.loads(line))
        if kill_at is not None and len(events) == kill_at[0]:
            loop.call_later(kill_at[1], process.kill)
    transport.close()
    await asyncio.to_thread(process.join)
    return events


def write_small_llama(path: Path) -> None:
    """A llama whose matrices are of one kind: each process compiles few kernels."""
    write_tiny_llama(path, kind=Kind.Q8_0)


def tokens_of(events: list[dict]) -> list[int]:
    return [event["token"] for event in events if event["event"] == "token"]


async def resumed(loaded: Loaded, store: Path) -> tuple[list[int], list[int], dict[str, str]]:
    """Finish the session in this process: the answer found, the one it came to, and digests of all pages."""
    async with SqliteStore(store) as kept:
        chat = await Chat.resume(loaded, kept, "s")
        found = chat.answer
        async for _ in chat.generate():
            pass
        answer, pages = chat.answer, await chat.page_digests()
        await chat.close()
    return found, answer, pages


@pytest.mark.parametrize("write_tiny", [write_small_llama, write_tiny_gemma3])
async def test_killed_at_random_moments(write_tiny, tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write_tiny(model)
    moments = random.Random(1)
    kills = [(moments.randrange(1, TOKENS + 2), moments.uniform(0, 0.02)) for _ in range(KILLS // 2)]
    some_at_once = asyncio.Semaphore(max(2, os.cpu_count() or 1))

    async def run(number: int, kill_at: tuple[int, float] | None) -> list[dict]:
        async with some_at_once:
            return await child(model, tmp_path / f"{number}.db", kill_at)

    whole, *runs = await asyncio.gather(*(run(number, at) for number, at in enumerate([None, *kills])))
    end = whole[-1]
    cut_short = [events for events in runs if events[-1]["event"] != "end"]
    assert len(cut_short) > KILLS // 4
    loaded = await load(model, context=256)  # the features a child has, and so its bits
    for number, events in enumerate(runs, start=1):
        shown = tokens_of(events)
        try:
            found, answer, pages = await resumed(loaded, tmp_path / f"{number}.db")
        except CheckpointError:
            assert shown == []  # killed before the session's first row
            continue
        assert found[: len(shown)] == shown
        assert answer == tokens_of(whole)
        assert pages == end["pages"]
