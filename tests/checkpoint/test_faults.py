"""Every fault at every store operation of a scripted session: nothing shown is lost, nothing is wrong."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.checkpoint.faults import FAULTS, FaultStore, Script
from tests.checkpoint.toy import PAGE, SLOT, identity
from webkv.checkpoint import MemoryStore, Options, SqliteStore, Store, collect, verify, walk
from webkv.errors import StoreError

MODEL = identity(None, 5)
OPTIONS = Options(patience=0.02)
# A process's death is played by cancelling every task of its event loop; a page has one loop for everything.
pytestmark = pytest.mark.skipif(sys.platform == "emscripten", reason="needs an event loop of its own")
SHM = "/dev/shm" if Path("/dev/shm").is_dir() else None

Result = dict[str, tuple[list[int], dict[tuple[str, int], bytes]]]


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[Store]:
    if kind == "memory":
        yield MemoryStore()
        return
    with tempfile.TemporaryDirectory(dir=SHM) as folder:
        # Pages, and rows of that size, are files; smaller values are in the database.
        async with SqliteStore(Path(folder) / "sessions.db", large=PAGE * SLOT) as store:
            yield store


async def finish(store: Store) -> Result:
    """Drive the script to its end, check that the store is sound, delete the branch, check again."""
    script = Script(store, MODEL, Options())
    engines = await script.run()
    result = {id: (engine.tokens, engine.cache.image()) for id, engine in engines.items()}
    assert await script.close() == ["durable", "durable"]
    for id in "ab":
        verdict = await verify(store, id)
        assert verdict.problems == ()
        assert verdict.tokens == len(result[id][0])
    await script.delete_branch()
    left = await store.keys("")
    assert not [key for key in left if key.startswith(("s/b/", "m/b"))]
    assert (await verify(store, "a")).problems == ()
    held = {key.split("/")[1] for key in left if key.startswith("r/")}
    assert held == {key.split("/")[1] for key in left if key.startswith("p/")}
    return result


async def count(kind: str) -> tuple[int, Result, list[str]]:
    """Operations of the uninterrupted run, and its result."""
    async with opened(kind) as inner:
        store = FaultStore(inner)
        script = Script(store, MODEL, Options())
        await script.run()
        await script.close()
        await script.delete_branch()
        points = store.points
    async with opened(kind) as inner:
        return len(points), await finish(inner), points


async def test_the_script_reaches_every_kind_of_operation() -> None:
    _, _, points = await count("memory")
    commits = {word for point in points if point.startswith("commit") for word in point.split()[1:]}
    assert commits >= {"+s/j", "+s/p", "+p", "+r", "+x", "+m", "-s/j", "-s/p", "-p", "-r", "-x", "-m"}
    assert {point.split()[0] for point in points} == {"commit", "get", "keys", "items"}


async def run_until_dead(store: FaultStore, script: Script) -> None:
    """Run the script; stop at once where its process dies."""

    async def whole() -> None:
        await script.run()
        assert set(await script.close()) <= {"durable", "degraded"}
        await script.delete_branch()

    tasks = {asyncio.ensure_future(whole()), asyncio.ensure_future(store.died.wait())}
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(kind, fault) for kind in ("memory", "sqlite") for fault in FAULTS],
)
async def test_every_fault_at_every_operation(kind: str, fault: str) -> None:
    operations, expected, _ = await count(kind)
    dies = fault in ("crash before", "crash after", "tear")
    for at in range(operations):
        async with opened(kind) as inner:
            store = FaultStore(inner, at, fault)
            script = Script(store, MODEL, Options() if dies else OPTIONS)
            try:
                await run_until_dead(store, script)
            except StoreError:
                assert not dies
            await script.abandon()
            if dies:
                await nothing_shown_is_lost(inner, script)
            if fault == "tear":
                await collect(inner)
            assert await finish(inner) == expected, at


async def nothing_shown_is_lost(store: Store, script: Script) -> None:
    for id, shown in script.shown.items():
        if shown:
            sampled = (await walk(store, id)).transcript.sampled
            assert {at: sampled[at].id for at in shown} == shown
