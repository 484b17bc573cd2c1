from __future__ import annotations

import pytest

from tests.checkpoint.toy import PAGE, ToyEngine, identity, prompt
from webkv.checkpoint import Identity, MemoryStore, Mode, Options, Session, Step, Store, sessions
from webkv.errors import CheckpointError, DamageError, IdentityError, StoreBusyError

MODELS = {"full": identity(), "mixed": identity(None, 6), "windowed": identity(5, 9)}


async def begin(store: Store, model: Identity, **options: object) -> ToyEngine:
    engine = ToyEngine(await Session.create(store, model, id="a", options=Options(**options)))
    await engine.restore()
    return engine


async def resume(store: Store, model: Identity) -> tuple[ToyEngine, str]:
    engine = ToyEngine(await Session.open(store, "a", model))
    plan = await engine.restore()
    return engine, plan.report


async def crash(engine: ToyEngine) -> None:
    """Let go of the lock as a dead process would; what is not committed is lost."""
    engine.session._journal.close()
    engine.session._pages.close()
    await engine.session._held.aclose()


async def whole(model: Identity, length: int, count: int) -> ToyEngine:
    """The uninterrupted run."""
    engine = await begin(MemoryStore(), model)
    await engine.turn(prompt(1, length), count)
    return engine


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("length", [1, PAGE - 1, PAGE, PAGE + 1, 4 * PAGE + 2])
async def test_a_resumed_run_equals_the_uninterrupted_one(kind: str, length: int) -> None:
    model = MODELS[kind]
    expected = await whole(model, length, 14)
    for stop in (1, 2, 3, 4, 5, 9):
        store = MemoryStore()
        engine = await begin(store, model)
        await engine.turn(prompt(1, length), stop)
        await engine.session.flush()
        await crash(engine)
        engine, report = await resume(store, model)
        computed = length + stop - 1
        left = computed - min(computed // PAGE * PAGE, (length + stop - 1) // PAGE * PAGE)
        imported = computed - left
        assert report == (f"replay({left})" if not imported else f"kv+replay({left})" if left else "kv")
        engine.session.transcript.end = None
        await engine.generate(14)
        assert engine.tokens == expected.tokens
        assert engine.cache.image() == expected.cache.image()
        await engine.session.close()


async def test_a_page_is_written_once() -> None:
    store = MemoryStore()
    model = identity(None, 6)
    engine = await begin(store, model)
    await engine.turn(prompt(1, 21), 30)
    await engine.session.close()
    full = (21 + 29) // PAGE
    assert engine.cache.exports <= 2 * full
    pages = engine.session.bytes_written[1]
    kept = full * PAGE * 8
    assert len(await store.keys("s/a/p/full/")) == full
    assert len(await store.keys("s/a/p/window6/")) == 2
    assert sum([len(await store.get(key) or b"") for key in await store.keys("p/")]) == kept + 2 * PAGE * 8
    assert pages > kept


async def test_a_second_session_starts_from_the_longest_stored_prefix() -> None:
    store, model = MemoryStore(), identity(None, 6)
    first = await begin(store, model)
    await first.turn(prompt(1, 4 * PAGE), 3)
    await first.session.close()
    second = ToyEngine(await Session.create(store, model))
    second.session.request({})
    second.session.prompt(prompt(1, 4 * PAGE) + prompt(2, 5))
    plan = await second.restore()
    assert (plan.imported, plan.report) == (4 * PAGE, "kv")
    await second.generate(6)
    await second.session.close()
    alone = await begin(MemoryStore(), model)
    await alone.turn(prompt(1, 4 * PAGE) + prompt(2, 5), 6)
    assert second.tokens == alone.tokens
    assert second.cache.image() == alone.cache.image()
    assert len(await store.keys("p/")) < len(await store.keys("r/"))


async def test_an_adopted_prefix_that_was_decoded_is_replayed_as_decoded() -> None:
    store, model = MemoryStore(), identity()
    first = await begin(store, model)
    await first.turn(prompt(1, 5), 12)
    await first.session.close()
    second = ToyEngine(await Session.create(store, model, id="b"))
    second.session.prompt([*first.tokens, 7])
    plan = await second.restore()
    assert plan.imported == 4 * PAGE
    assert plan.adopted == ((Mode.PREFILL, 5), (Mode.DECODE, 11))
    await second.generate(5)
    await second.session.close()
    expected = second.cache.image()
    await store.commit({}, await store.keys("p/"))
    third = ToyEngine(await Session.open(store, "b", model))
    plan = await third.restore()
    assert plan.report == f"replay({len(second.tokens) - 1})"
    assert plan.replay[:2] == (Step(Mode.PREFILL, 0, 5), Step(Mode.DECODE, 5, 16))
    assert third.cache.image() == expected


@pytest.mark.parametrize("kind", MODELS)
async def test_the_next_turn_continues_after_a_resume(kind: str) -> None:
    model = MODELS[kind]
    expected = await whole(model, 7, 9)
    await expected.turn(prompt(2, 6), 8)
    store = MemoryStore()
    engine = await begin(store, model)
    await engine.turn(prompt(1, 7), 9)
    await engine.session.close()
    engine, _ = await resume(store, model)
    assert engine.session.transcript.end == "length"
    await engine.turn(prompt(2, 6), 8)
    assert engine.tokens == expected.tokens
    assert engine.cache.image() == expected.cache.image()
    await engine.session.close()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("position", [1, 6, 7, 8, 11, 12, 13, 20])
async def test_a_branch_has_the_same_past_and_its_own_future(kind: str, position: int) -> None:
    store, model = MemoryStore(), MODELS[kind]
    parent = await begin(store, model)
    await parent.turn(prompt(1, 7), 14)
    await parent.session.flush()
    session = await parent.session.branch(position, id="b")
    assert session.transcript.tokens == parent.tokens[:position]
    assert session.transcript.modes == parent.session.transcript.modes[:position]
    child = ToyEngine(session)
    await child.restore()
    await child.turn([5, 6], 4)
    await child.session.close()
    reopened = ToyEngine(await Session.open(store, "b", model))
    await reopened.restore()
    assert reopened.tokens == child.tokens
    assert reopened.cache.image() == child.cache.image()


async def test_tokens_taken_back_are_gone_after_a_resume() -> None:
    store, model = MemoryStore(), identity(None)
    engine = await begin(store, model)
    await engine.turn(prompt(1, 7), 14)
    engine.session.truncate(9)
    engine.cache.popn(engine.cache.length - 8)
    await engine.turn([3, 4, 5], 6)
    await engine.session.close()
    again, report = await resume(store, model)
    assert report == "kv+replay(1)"
    assert again.tokens == engine.tokens
    assert again.cache.image() == engine.cache.image()
    assert len(await store.keys("s/a/p/full/")) == 4


async def test_damaged_page_bytes_cost_recompute_and_are_written_anew() -> None:
    store, model = MemoryStore(), identity(None, 6)
    engine = await begin(store, model)
    await engine.turn(prompt(1, 9), 12)
    await engine.session.close()
    expected = engine.cache.image()
    for key in await store.keys("p/"):
        kept = await store.get(key)
        if kept is None:
            continue  # left the window when the session before went on
        await store.commit({key: kept[:5] + b"\x01" + kept[6:]})
        again, _ = await resume(store, model)
        assert again.tokens == engine.tokens
        assert again.cache.image() == expected
        await again.session.close()
        assert await store.get(key) in (kept, None)
    again, report = await resume(store, model)
    assert report == "kv"


async def test_another_model_is_refused_by_field() -> None:
    store = MemoryStore()
    engine = await begin(store, identity())
    await engine.turn(prompt(1, 9), 3)
    await engine.session.close()
    with pytest.raises(IdentityError, match="another weights") as refused:
        await Session.open(store, "a", identity(weights="other"))
    assert (refused.value.field, refused.value.found, refused.value.expected) == ("weights", "w", "other")
    for field in ("namespace", "tokenizer", "rope", "quantizer"):
        with pytest.raises(IdentityError, match=field):
            await Session.open(store, "a", identity(**{field: "other"}))
    for field in ("namespace", "tokenizer"):
        with pytest.raises(IdentityError, match=field):
            await Session.open(store, "a", identity(**{field: "other"}), recompute=True)


async def test_recompute_keeps_tokens_and_uses_no_stored_kv() -> None:
    store, other = MemoryStore(), identity(weights="other")
    engine = await begin(store, identity())
    await engine.turn(prompt(1, 9), 5)
    await engine.session.close()
    again = ToyEngine(await Session.open(store, "a", other, recompute=True))
    plan = await again.restore()
    assert (plan.report, again.tokens) == ("new", engine.tokens)
    await again.turn([1, 2], 6)
    await again.session.close()
    third = ToyEngine(await Session.open(store, "a", other))
    assert (await third.restore()).imported == 20
    assert third.cache.image() == again.cache.image()


async def test_a_session_has_one_holder() -> None:
    store = MemoryStore()
    engine = await begin(store, identity())
    await engine.turn(prompt(1, 3), 1)
    with pytest.raises(StoreBusyError):
        await Session.open(store, "a", identity())
    await engine.session.close()
    await (await Session.open(store, "a", identity())).close()


async def test_ids_are_checked() -> None:
    store = MemoryStore()
    await (await Session.create(store, identity(), id="a")).close()
    with pytest.raises(CheckpointError, match="exists"):
        await Session.create(store, identity(), id="a")
    for bad in ("", "a/b", "x" * 65, "é"):
        with pytest.raises(CheckpointError, match="session id"):
            await Session.open(store, bad, identity())
    with pytest.raises(CheckpointError, match="no session 'b'"):
        await Session.open(store, "b", identity())
    await (await Session.open(store, "a", identity())).close()


async def test_a_damaged_row_ends_the_usable_journal_and_is_replaced() -> None:
    store, model = MemoryStore(), identity()
    engine = await begin(store, model)
    await engine.turn(prompt(1, 9), 12)
    await engine.session.close()
    rows = await store.keys("s/a/j/")
    await store.commit({rows[-4]: b"rubbish"})
    again, _ = await resume(store, model)
    assert again.session.damage is not None
    assert again.session.damage.startswith(f"row {len(rows) - 4}")
    assert again.tokens == engine.tokens[:-3]
    await again.generate(12)
    await again.session.close()
    assert again.tokens == engine.tokens
    assert len(await store.keys("s/a/j/")) == len(rows)
    third, _ = await resume(store, model)
    assert third.session.damage is None
    assert third.tokens == engine.tokens


async def test_a_damaged_first_row_is_named() -> None:
    store = MemoryStore()
    await (await Session.create(store, identity(), id="a")).close()
    await store.commit({"s/a/j/0000000000": b"rubbish"})
    with pytest.raises(DamageError, match="session 'a': row 0"):
        await Session.open(store, "a", identity())


async def test_a_list_reads_summaries_only() -> None:
    store = MemoryStore()
    engine = await begin(store, identity())
    await engine.turn(prompt(1, 9), 12)
    await engine.session.close()
    (found,) = await sessions(store)
    assert (found.id, found.tokens, found.prompt_tokens, found.end) == ("a", 21, 9, "length")
    reads = []
    get = store.items

    async def counted(prefix: str) -> list[tuple[str, bytes]]:
        reads.append(prefix)
        return await get(prefix)

    store.items = counted  # type: ignore[method-assign]
    await sessions(store)
    assert reads == ["m/"]
