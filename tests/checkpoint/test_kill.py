"""SIGKILL at random instants of a process that journals to SQLite; the next one goes on."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checkpoint.faults import Script
from tests.checkpoint.toy import PAGE, SLOT, identity
from webkv.checkpoint import MemoryStore, Options, SqliteStore, verify, walk
from webkv.checkpoint.sqlite import LARGE
from webkv.errors import CheckpointError

pytest.importorskip("sqlite3", reason="SQLite files are native")
MODEL = identity(None, 5)
KILLS = 100


async def expected() -> dict[str, list[int]]:
    engines = await Script(MemoryStore(), MODEL, Options()).run()
    return {id: list(engine.tokens) for id, engine in engines.items()}


def start(path: Path, large: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.checkpoint.journal_child", str(path), str(large)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


async def sampled(path: Path) -> dict[tuple[str, int], int]:
    """Sampled tokens in the file by session and position."""
    found: dict[tuple[str, int], int] = {}
    async with SqliteStore(path) as store:
        for id in "ab":
            try:
                walked = await walk(store, id)
            except CheckpointError:
                continue
            assert walked.damage is None
            found |= {(id, at): token.id for at, token in walked.transcript.sampled.items()}
    return found


async def test_no_shown_token_is_lost_by_a_kill(tmp_path: Path) -> None:
    results = await expected()
    random_ = random.Random(5)
    kills = run = 0
    while kills < KILLS:
        path = tmp_path / f"{run}.db"
        large = (LARGE, PAGE * SLOT)[run % 2]  # every other store keeps pages as files
        run += 1
        shown: dict[tuple[str, int], int] = {}
        killed = True
        while killed and kills < KILLS:
            process = start(path, large)
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(random_.randrange(4))]
            time.sleep(random_.random() * 0.002)
            process.kill()
            lines += process.stdout.readlines()
            killed = process.wait() != 0
            kills += killed
            for id, at, token in (line.split() for line in lines if line.endswith("\n")):
                shown[id, int(at)] = int(token)
            there = await sampled(path)
            assert {key: there.get(key) for key in shown} == shown
        await finish(path, large, results)


async def finish(path: Path, large: int, results: dict[str, list[int]]) -> None:
    async with SqliteStore(path, large=large) as store:
        script = Script(store, MODEL, Options())
        engines = await script.run()
        assert {id: engine.tokens for id, engine in engines.items()} == results
        assert await script.close() == ["durable", "durable"]
        for id in "ab":
            assert (await verify(store, id)).problems == ()
        await store.compact()
        if large < LARGE:
            named = sum(len(value) >= large for _, value in await store.items(""))
            assert len(list(store.files.folder.iterdir())) == named
