from __future__ import annotations

import pytest

from tests.checkpoint.toy import PAGE, SLOT, ToyEngine, identity, prompt
from webkv.checkpoint import MemoryStore, Options, Session, collect, delete, evict, sessions, verify
from webkv.errors import StoreBusyError

MODEL = identity()


async def stored(store: MemoryStore, id: str, seed: int, options: Options | None = None) -> ToyEngine:
    engine = ToyEngine(await Session.create(store, MODEL, id=id, options=options))
    engine.session.request({})
    engine.session.prompt(prompt(seed, 4 * PAGE))
    await engine.restore()
    await engine.generate(2 * PAGE + 1)
    await engine.session.close()
    return engine


async def page_bytes(store: MemoryStore) -> int:
    return sum([len(await store.get(key) or b"") for key in await store.keys("p/")])


async def resumed(store: MemoryStore, id: str) -> tuple[ToyEngine, str]:
    engine = ToyEngine(await Session.open(store, id, MODEL))
    return engine, (await engine.restore()).report


async def test_sessions_are_listed_by_last_use() -> None:
    store = MemoryStore()
    for number, id in enumerate("abc"):
        await stored(store, id, number)
    again, _ = await resumed(store, "a")
    await again.turn([1, 2], 1)
    await again.session.close()
    assert [summary.id for summary in await sessions(store)] == ["a", "c", "b"]


async def test_deleting_leaves_what_others_share() -> None:
    store = MemoryStore()
    await stored(store, "a", 1)
    before = await store.keys("p/")
    await stored(store, "b", 1)
    await stored(store, "c", 2)
    assert (await resumed(store, "b"))[1] == "kv"
    store._held.clear()
    await delete(store, "c")
    assert await store.keys("p/") == before
    await delete(store, "a")
    assert await store.keys("p/") == before
    store._held.clear()
    await delete(store, "b")
    assert await store.keys("") == []


async def test_equal_pages_of_two_namespaces_are_kept_once_and_found_by_each_alone() -> None:
    store = MemoryStore()
    for name in ("alice", "bob"):
        engine = ToyEngine(await Session.create(store, identity(namespace=name), id=name))
        engine.session.request({})
        engine.session.prompt(prompt(1, 9))
        plan = await engine.restore()
        assert plan.imported == 0
        await engine.generate(9)
        await engine.session.close()
    pages = await store.keys("p/")
    assert len(await store.keys("x/")) == 2 * len(pages)
    await delete(store, "bob")
    assert await store.keys("p/") == pages
    assert len(await store.keys("x/")) == len(pages)
    await delete(store, "alice")
    assert await store.keys("") == []


async def test_a_session_that_only_began_is_listed() -> None:
    store = MemoryStore()
    await (await Session.create(store, identity(), id="a", facts={"title": "nothing yet"})).close()
    (found,) = await sessions(store)
    assert (found.id, found.tokens, found.end, found.facts["title"]) == ("a", 0, None, "nothing yet")
    await delete(store, "a")
    assert await store.keys("") == []


async def test_a_session_in_use_is_not_deleted() -> None:
    store = MemoryStore()
    await stored(store, "a", 1)
    session = await Session.open(store, "a", MODEL)
    with pytest.raises(StoreBusyError):
        await delete(store, "a")
    await session.close()
    await delete(store, "a")


async def test_eviction_takes_the_least_recently_used_ones_last_pages() -> None:
    store = MemoryStore()
    for number, id in enumerate("abc"):
        await stored(store, id, number)
    assert await evict(store, 3 * PAGE * SLOT) == 3 * PAGE * SLOT
    assert (await resumed(store, "a"))[1] == "kv+replay(12)"
    assert (await resumed(store, "b"))[1] == "kv"
    assert await evict(store, 10**9) == 6 * PAGE * SLOT, "only c is not in use"
    assert (await resumed(store, "c"))[1] == "replay(24)"


async def test_a_list_says_what_eviction_left() -> None:
    store = MemoryStore()
    await stored(store, "a", 1)
    (before,) = await sessions(store)
    freed = await evict(store, 2 * PAGE * SLOT)
    (after,) = await sessions(store)
    assert freed == 2 * PAGE * SLOT
    assert after.page_bytes == await page_bytes(store)
    assert (after.used, after.tokens) == (before.used, before.tokens)


async def test_a_resume_after_eviction_equals_the_uninterrupted_run() -> None:
    store = MemoryStore()
    expected = await stored(store, "a", 1)
    await evict(store, 2 * PAGE * SLOT)
    again, _ = await resumed(store, "a")
    await again.session.close()
    assert again.cache.image() == expected.cache.image()
    assert await page_bytes(store) == 6 * PAGE * SLOT


async def test_a_cap_holds_and_never_costs_the_session_in_use() -> None:
    store = MemoryStore()
    options = Options(cap=8 * PAGE * SLOT)
    for number, id in enumerate("abc"):
        engine = await stored(store, id, number, options)
        assert engine.session.status.state == "durable"
        assert await page_bytes(store) <= 8 * PAGE * SLOT
        assert len(await store.keys(f"s/{id}/p/")) == 6
    assert len(await store.keys("s/b/p/")) == 2
    assert len(await store.keys("s/a/p/")) == 0


async def test_a_cap_that_the_session_itself_fills_is_said() -> None:
    engine = await stored(MemoryStore(), "a", 1, Options(cap=3 * PAGE * SLOT))
    status = engine.session.status
    assert (status.state, status.needed) == ("degraded", 2 * PAGE * SLOT)
    assert "cap of 96 bytes" in status.reason


async def test_collect_removes_only_what_nobody_uses() -> None:
    store = MemoryStore()
    await stored(store, "a", 1)
    before = dict(await store.items(""))
    page = next(key for key in before if key.startswith("p/"))
    await store.commit({
        "p/" + 64 * "0": b"orphan", "r/" + 64 * "0" + "/gone/full/00000000": b"", "x/" + 64 * "1": b"rubbish",
        "x/" + 64 * "2": b"", page.replace("p/", "r/") + "/gone/full/00000001": b"",
    })  # fmt: skip
    assert await collect(store) == 5
    assert dict(await store.items("")) == before
    assert await collect(store) == 0


async def test_verify_reads_everything() -> None:
    store = MemoryStore()
    engine = await stored(store, "a", 1)
    verdict = await verify(store, "a")
    assert (verdict.tokens, verdict.pages, verdict.problems) == (len(engine.tokens), 6, ())
    page = (await store.keys("p/"))[0]
    await store.commit({"s/a/j/0000000003": b"x", page: b"y"}, ["m/a"])
    problems = (await verify(store, "a")).problems
    assert len(problems) == 2
    assert problems[0].startswith("row 3: ")
    assert problems[1].endswith("does not fit its digest")


async def test_pages_that_a_session_in_use_lets_go_of_are_no_damage() -> None:
    class Moving(MemoryStore):
        """More is computed, and pages leave the window, between reading references and bytes."""

        async def items(self, prefix: str) -> list[tuple[str, bytes]]:
            found = await super().items(prefix)
            if prefix == "s/a/p/" and engine.session.transcript.end == "length":
                await engine.turn(prompt(2, 20), 4)
                await engine.session.flush()
            return found

    store = Moving()
    engine = ToyEngine(await Session.create(store, identity(5), id="a"))
    await engine.restore()
    await engine.turn(prompt(1, 9), 4)
    await engine.session.flush()
    before = set(await store.keys("p/"))
    assert (await verify(store, "a")).problems == ()
    assert not before <= set(await store.keys("p/"))
