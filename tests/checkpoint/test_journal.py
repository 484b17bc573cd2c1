"""When rows become durable, and what a session says when they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import pytest

from tests.checkpoint.toy import PAGE, SLOT, ToyEngine, identity, prompt
from webkv.checkpoint import Group, Identity, MemoryStore, Mode, Options, Session, SqliteStore, Status, walk
from webkv.checkpoint.stores import Durability, payload_bytes
from webkv.errors import StoreError, StoreFullError


class Gate(MemoryStore):
    """A store whose commits wait for `open`, raise `error`, and are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.error: StoreError | None = None
        self.commits: list[tuple[list[str], str]] = []

    async def commit(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), durability: Durability = "strict"
    ) -> None:
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.commits.append((sorted(puts), durability))
        await super().commit(puts, deletes, durability)

    def rows(self) -> list[str]:
        return [key for key in self._order() if "/j/" in key]


async def begin(store: MemoryStore, **options: object) -> Session:
    session = await Session.create(store, identity(), id="a", options=Options(**options))
    session.request({})
    session.prompt([1, 2, 3])
    await session.durable(session.computed(3))
    return session


async def test_a_row_is_durable_before_its_token_is_shown() -> None:
    store = Gate()
    session = await begin(store)
    store.open.clear()
    waiting = asyncio.ensure_future(session.durable(session.token(5)))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    assert len(store.rows()) == 4
    store.open.set()
    await waiting
    assert len(store.rows()) == 5
    assert store.commits[-1][1] == "strict"


async def test_appending_never_waits_and_rows_that_wait_go_in_one_commit() -> None:
    store = Gate()
    session = await begin(store)
    store.open.clear()
    tickets = [session.token(at) for at in range(5)]
    await asyncio.sleep(0)
    before = len(store.commits)
    store.open.set()
    await session.durable(tickets[-1])
    assert len(store.commits) - before <= 2
    assert len(store.rows()) == 9


async def test_relaxed_shows_eight_tokens_early_and_no_more() -> None:
    store = Gate()
    session = await begin(store, relaxed=True)
    await session.flush()
    store.open.clear()
    for at in range(8):
        await asyncio.wait_for(session.durable(session.token(at)), 1)
    assert session.status == Status("relaxed", lag=8)
    assert str(session.status) == "relaxed: 8 tokens not durable"
    ninth = asyncio.ensure_future(session.durable(session.token(9)))
    await asyncio.sleep(0.02)
    assert not ninth.done()
    store.open.set()
    await ninth
    await session.close()
    assert session.status == Status("durable")


async def test_relaxed_commits_after_a_while_without_more_tokens() -> None:
    store = Gate()
    session = await begin(store, relaxed=True)
    session.token(1)
    for _ in range(400):
        if session.status.lag == 0:
            break
        await asyncio.sleep(0.01)
    assert len(store.rows()) == 5


async def test_a_full_store_is_said_and_generation_goes_on_and_everything_is_written_later() -> None:
    told: list[str] = []
    store = Gate()
    session = await begin(store, on_status=lambda status: told.append(str(status)))
    store.error = StoreFullError("no room", 4321)
    for at in range(5):
        await asyncio.wait_for(session.durable(session.token(at)), 1)
    assert session.status == Status("degraded", 5, "no room", 4321)
    assert len(store.rows()) == 4
    store.error = None
    for _ in range(400):
        if session.status.state == "durable":
            break
        await asyncio.sleep(0.01)
    assert [row[-2:] for row in store.rows()] == ["00", "01", "02", "03", "04", "05", "06", "07", "08"]
    assert told == ["degraded: no room (4321 bytes needed), 1 tokens not durable", "durable"]
    assert (await walk(store, "a")).transcript.tokens == [1, 2, 3, 0, 1, 2, 3, 4]


async def test_a_store_that_does_not_answer_is_said_and_may_answer_later() -> None:
    store = Gate()
    session = await begin(store, patience=0.05)
    store.open.clear()
    await asyncio.wait_for(session.durable(session.token(1)), 5)
    assert session.status.state == "degraded"
    assert session.status.reason == "the store has not answered for 0.05 s"
    store.open.set()
    await asyncio.wait_for(session.durable(session.token(2)), 5)
    await session.flush()
    assert session.status.state == "durable"
    assert len(store.rows()) == 6


async def test_closing_while_the_store_fails_says_so_and_frees_the_session() -> None:
    store = Gate()
    session = await begin(store)
    store.error = StoreError("broken")
    session.token(1)
    assert str(await session.close()) == "degraded: broken, 1 tokens not durable"
    store.error = None
    again = await Session.open(store, "a", identity())
    assert again.transcript.tokens == [1, 2, 3]


async def test_a_closed_session_writes_nothing_more_when_its_store_answers_late() -> None:
    store = Gate()
    session = await begin(store, patience=0.05)
    store.open.clear()
    session.token(7)
    await session.close()
    store.error = StoreError("broken")
    store.open.set()
    await asyncio.sleep(0.02)
    store.error = None
    again = await Session.open(store, "a", identity())
    again.token(8)
    await again.flush()
    await asyncio.sleep(0.2)  # as long as the closed one would have waited to try again
    assert (await walk(store, "a")).transcript.tokens == [1, 2, 3, 8]


async def test_pages_that_found_no_room_and_were_taken_back_do_not_stay_a_trouble() -> None:
    for flushes in (False, True):
        store = MemoryStore()
        engine = ToyEngine(await Session.create(store, identity(), id="a"))
        await engine.restore()
        await engine.turn(prompt(1, 6), 1)
        await engine.session.flush()
        store.quota = store.used + 500  # for rows, but for no page
        await engine.turn(prompt(2, 3), 1)
        async with asyncio.timeout(10):
            while engine.session.status.state == "durable":
                await asyncio.sleep(0)
        engine.session.truncate(3)
        engine.cache.popn(engine.cache.length - 3)
        store.quota = None
        if flushes:
            await engine.session.flush()
        async with asyncio.timeout(10):
            while engine.session.status.state == "degraded":
                await asyncio.sleep(0.01)
        await engine.turn(prompt(3, 9), 4)
        await engine.session.close()
        assert len(await store.keys("s/a/p/")) == 3


async def test_an_error_that_no_store_may_raise_is_named_too() -> None:
    store = Gate()
    session = await begin(store)
    store.error = ZeroDivisionError("oops")  # type: ignore[assignment]
    await asyncio.wait_for(session.durable(session.token(1)), 5)
    assert session.status.reason == "ZeroDivisionError: oops"
    await session.close()


async def test_pages_that_find_no_room_are_stored_when_it_returns() -> None:
    store = MemoryStore(quota=5000)
    engine = ToyEngine(await Session.create(store, identity(), id="a"))
    await engine.restore()
    await engine.turn(prompt(1, 8), 4)
    await engine.session.flush()
    store.quota = store.used
    await engine.turn(prompt(2, 20), 4)
    await engine.session.flush()
    assert engine.session.status.state == "degraded"
    store.quota = None
    await engine.session.close()
    assert engine.session.status.state == "durable"
    again = ToyEngine(await Session.open(store, "a", identity()))
    assert (await again.restore()).report == "kv+replay(3)"
    assert again.cache.image() == engine.cache.image()


async def test_a_store_that_fails_at_the_start_makes_a_degraded_session() -> None:
    store = Gate()
    store.error = StoreError("read-only")
    session = await begin(store)
    await session.durable(session.token(7))
    assert session.status.reason == "read-only"
    store.error = None
    await session.close()
    assert (await walk(store, "a")).transcript.tokens == [1, 2, 3, 7]


async def test_a_store_that_cannot_be_opened_makes_a_degraded_session(tmp_path: object) -> None:
    pytest.importorskip("sqlite3", reason="SQLite files are native")
    (tmp_path / "file").write_text("")  # type: ignore[operator]
    store = SqliteStore(f"{tmp_path}/file/sessions.db")
    session = await begin(store)  # type: ignore[arg-type]
    await session.durable(session.token(7))
    assert "cannot open" in session.status.reason
    await session.close()


class Counted(MemoryStore):
    """Counts the bytes of keys and values that are written."""

    written = 0

    async def commit(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), durability: Durability = "strict"
    ) -> None:
        self.written += payload_bytes(puts)
        await super().commit(puts, deletes, durability)


@pytest.mark.parametrize("windows", [(None,), (None, 40)])
async def test_bytes_written_are_kv_once_and_little_for_each_token(windows: tuple[int | None, ...]) -> None:
    store, model = Counted(), identity(*windows)
    engine = ToyEngine(await Session.create(store, model))
    await engine.restore()
    await engine.turn(prompt(1, 150), 200)
    await engine.turn(prompt(2, 50), 200)
    await engine.session.close()
    tokens = len(engine.tokens)
    kv = tokens * SLOT * len(windows)
    # A real page is kilobytes per token; here a token's KV is 8 bytes, so the whole is mostly journal.
    overhead = store.written - kv
    assert sum(engine.session.bytes_written) == store.written
    assert engine.session.bytes_written[0] <= 200 * tokens
    assert overhead <= 200 * tokens + 600 * len(windows) * tokens // PAGE


async def test_a_token_row_is_small() -> None:
    store = Counted()
    session = await begin(store)
    before = store.written
    await session.durable(session.token(123456, bytes(16), b" word"))
    assert store.written - before <= 200


async def test_real_page_sizes_stay_within_five_percent() -> None:
    """SmolLM2-135M: 30 layers, 3 KV heads of 64 dims, K and V, f16: 23,040 bytes per token."""
    page_bytes, tokens = 16 * 23040, 640
    model = Identity("w", "t", "r", (Group("full", "l", page_bytes),))

    class Source:
        def export(self, pages: object) -> list[object]:
            async def page(block: int) -> bytes:
                return block.to_bytes(4, "little") * (page_bytes // 4)

            return [asyncio.ensure_future(page(block)) for _, block in pages]  # type: ignore[attr-defined]

    store = Counted()
    session = await Session.create(store, model)
    session.request({"prompt": "x" * 300})
    session.prompt(range(300))
    session.attach(Source())  # type: ignore[arg-type]
    for stop in (256, 300):
        await session.durable(session.computed(stop, Mode.PREFILL))
    for at in range(300, tokens):
        await session.durable(session.token(at, bytes(16), b" word"))
    await session.close()
    kv = (tokens - 1) // 16 * page_bytes
    assert kv <= store.written <= 1.05 * kv + 200 * tokens
    assert store.written - kv <= 200 * tokens
