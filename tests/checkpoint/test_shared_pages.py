"""Pages that two sessions of one process refer to, when both change their references at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from tests.checkpoint.toy import ToyEngine, identity, prompt
from webkv.checkpoint import MemoryStore, Session, delete, verify

MODEL = identity(None)


class SlowStore(MemoryStore):
    """Lets others run between reading keys and whatever follows."""

    async def keys(self, prefix: str) -> list[str]:
        found = await super().keys(prefix)
        await asyncio.sleep(0)
        return found


async def parent(store: SlowStore) -> ToyEngine:
    """Session a, with three pages stored."""
    engine = ToyEngine(await Session.create(store, MODEL, id="a"))
    await engine.restore()
    await engine.turn(prompt(1, 9), 4)
    await engine.session.flush()
    return engine


async def test_two_that_let_go_at_once_leave_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        """As if the process died after the commit."""

    monkeypatch.setattr("webkv.checkpoint.blobs.sweep", nothing)
    store = SlowStore()
    a = (await parent(store)).session
    b = await a.branch(9, id="b")
    await b.flush()
    assert len(await store.keys("p/")) == 3
    for session in (a, b):
        session.truncate(2)
    await asyncio.gather(a.flush(), b.flush())
    assert await store.keys("p/") == []


async def test_one_that_is_deleted_takes_nothing_that_another_is_about_to_have() -> None:
    for turns in range(40):
        store = SlowStore()
        await (await parent(store)).session.close()
        b = ToyEngine(await Session.create(store, MODEL, id="b"))
        await b.restore()
        await asyncio.gather(b.turn(prompt(1, 9), 4), later(turns, delete(store, "a")))
        await b.session.close()
        assert (await verify(store, "b")).problems == (), turns
        assert len(await store.keys("s/b/p/")) == 3


async def later(turns: int, work: Awaitable[None]) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    await work
