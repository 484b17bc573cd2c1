"""Pages that two sessions of one process refer to, when both change their references at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

import pytest

from tests.checkpoint.toy import ToyEngine, identity, prompt
from webkv.checkpoint import MemoryStore, Options, Session, collect, delete, evict, verify
from webkv.checkpoint.refs import alone
from webkv.checkpoint.stores import PatientStore, Store

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


async def test_pages_that_went_before_they_were_adopted_are_stored_anew() -> None:
    for turns in range(0, 60, 3):
        store = SlowStore()
        a = await parent(store)
        await a.session.close()
        b = ToyEngine(await Session.create(store, MODEL, id="b"))
        b.session.request({})
        b.session.prompt(a.tokens)
        await asyncio.gather(b.restore(), later(turns, delete(store, "a")))
        await b.generate(4)
        await b.session.close()
        assert (await verify(store, "b")).problems == (), turns
        assert len(await store.keys("s/b/p/")) == 4


async def test_eviction_and_collection_take_nothing_that_another_is_about_to_have() -> None:
    for turns in range(0, 60, 3):
        store = SlowStore()
        await (await parent(store)).session.close()
        b = ToyEngine(await Session.create(store, MODEL, id="b"))
        await b.restore()
        await asyncio.gather(
            b.turn(prompt(1, 9), 4), later(turns, evict(store, 1)), later(turns, collect(store))
        )
        await b.session.close()
        assert (await verify(store, "b")).problems == (), turns


async def test_room_is_not_made_of_pages_that_are_about_to_be_shared() -> None:
    store = SlowStore()
    options = Options(cap=4 * MODEL.groups[0].page_bytes)
    for id, given in (("a", prompt(1, 9)), ("c", prompt(2, 9)), ("b", [*prompt(1, 9)[:8], *prompt(3, 5)])):
        engine = ToyEngine(await Session.create(store, MODEL, id=id, options=options), chunk=16)
        await engine.restore()
        await engine.turn(given, 1)
        await engine.session.close()
    assert (await verify(store, "b")).problems == ()
    assert len(await store.keys("s/b/p/")) == 3  # the first two as a's, which is the one to make room


async def test_who_waits_for_its_turn_at_a_store_that_hangs_is_told_and_can_close() -> None:
    store = SlowStore()
    engine = ToyEngine(await Session.create(store, MODEL, id="a", options=Options(patience=0.05)))
    await engine.restore()
    async with alone(store):
        await engine.turn(prompt(1, 9), 4)
        status = await asyncio.wait_for(engine.session.close(), 5)
    assert status.reason == "the store has not answered others for 0.05 s"


async def test_wrappers_take_turns_with_what_they_wrap_whatever_else_is_called_inner() -> None:
    @dataclass
    class Wrapper(SlowStore):
        """Like many a dataclass, it has no hash."""

        inner: object

        def __post_init__(self) -> None:
            super().__init__()

    store = Wrapper({"not": "a store"})
    entered = []

    async def enter(at: int, through: Store) -> None:
        async with alone(through):
            entered.append(at)
            await asyncio.sleep(0)
            entered.append(at)

    await asyncio.gather(enter(1, store), enter(2, PatientStore(store, 1.0)), enter(3, Wrapper(store)))
    assert entered == [1, 1, 2, 2, 3, 3]
