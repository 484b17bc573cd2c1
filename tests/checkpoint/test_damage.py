"""Any damage to what is stored costs recompute, never a wrong token or a wrong byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.checkpoint.toy import PAGE, ToyEngine, identity, prompt
from tests.support import sampled
from webkv.checkpoint import MemoryStore, Session, sessions, verify
from webkv.errors import DamageError

MODEL = identity(None, 5)
PROMPT, COUNT = prompt(1, 6), 8

Entries = dict[str, bytes]


async def entries(id: str = "a", seed: int = 1, count: int = COUNT) -> Entries:
    """All that a store holds after one session of one turn."""
    store = MemoryStore()
    engine = ToyEngine(await Session.create(store, MODEL, id=id))
    await engine.restore()
    await engine.turn(prompt(seed, 6), count)
    await engine.session.close()
    return dict(await store.items(""))


async def store_of(stored: Entries) -> MemoryStore:
    store = MemoryStore()
    await store.commit(stored)
    return store


async def whole() -> ToyEngine:
    engine = ToyEngine(await Session.create(MemoryStore(), MODEL, id="a"))
    await engine.turn(PROMPT, COUNT)
    return engine


class Reader:
    """Goes on with damaged entries and compares with the undamaged run."""

    def __init__(self, expected: ToyEngine) -> None:
        self.tokens = expected.tokens
        self.image = expected.cache.image()

    async def go_on(self, stored: Entries, to_the_end: bool = True) -> str | None:
        """What the session said was damaged; asserts that nothing wrong was used."""
        try:
            session = await Session.open(await store_of(stored), "a", MODEL)
        except DamageError as error:
            return str(error)
        found = session.transcript.tokens
        assert found == self.tokens[: len(found)]
        if not to_the_end:
            return session.damage
        engine = ToyEngine(session)
        await engine.restore()
        if not session.transcript.requests:
            await engine.turn(PROMPT, COUNT)
        else:
            await engine.generate(COUNT)
        assert engine.tokens == self.tokens
        assert engine.cache.image() == self.image
        await session.close()
        again = await Session.open(session.store.inner, "a", MODEL)
        assert (again.damage, again.transcript.tokens) == (None, self.tokens)
        return session.damage


def flips(data: bytes) -> Iterator[bytes]:
    for number in sampled(range(8 * len(data)), every=11):
        at, bit = divmod(number, 8)
        yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


async def test_the_undamaged_session_needs_nothing() -> None:
    stored = await entries()
    assert await Reader(await whole()).go_on(stored) is None
    assert (await verify(await store_of(stored), "a")).problems == ()


@pytest.mark.parametrize("row", range(13))
async def test_every_flipped_bit_of_a_row_is_detected(row: int) -> None:
    reader, stored = Reader(await whole()), await entries()
    key = f"s/a/j/{row:010}"
    for number, damaged in enumerate(flips(stored[key])):
        said = await reader.go_on({**stored, key: damaged}, to_the_end=number % 8 == 0)
        assert said is not None
        assert f"row {row}: " in said


async def test_every_flipped_bit_elsewhere_is_harmless_and_seen_by_verify() -> None:
    reader, stored = Reader(await whole()), await entries()
    others = [key for key in stored if not key.startswith("s/a/j/")]
    assert {key[:2] for key in others} == {"s/", "m/", "p/", "r/", "x/"}
    for key in others:
        for number, damaged in enumerate(flips(stored[key])):
            changed = {**stored, key: damaged}
            if number % 8 == 0:
                assert await reader.go_on(changed) is None
            if key.startswith(("s/", "p/")):
                assert len((await verify(await store_of(changed), "a")).problems) == 1
            if key.startswith("m/"):
                assert (await sessions(await store_of(changed)))[0].damage is not None


async def test_every_truncation_and_loss_is_detected() -> None:
    reader, stored = Reader(await whole()), await entries()
    last = max(key for key in stored if key.startswith("s/a/j/"))
    for key, data in stored.items():
        for size in sampled(range(0, len(data), 5)):
            said = await reader.go_on({**stored, key: data[:size]})
            assert (said is not None) == key.startswith("s/a/j/")
        said = await reader.go_on({other: value for other, value in stored.items() if other != key})
        assert (said is not None) == (key.startswith("s/a/j/") and key != last)


async def test_rows_in_the_wrong_place_are_detected() -> None:
    reader, stored = Reader(await whole()), await entries()
    rows = [key for key in stored if key.startswith("s/a/j/")]
    others = await entries("b", seed=2)
    same = await entries("b")
    for at, key in enumerate(rows):
        for other in sampled(rows, every=5):
            if other != key:
                assert await reader.go_on({**stored, key: stored[other], other: stored[key]})
                assert await reader.go_on({**stored, key: stored[other]})
        theirs = key.replace("s/a/", "s/b/")
        assert await reader.go_on({**stored, key: others[theirs]})
        assert await reader.go_on({**stored, key: same[theirs]})
        doubled = {f"s/a/j/{number + 1:010}": stored[rows[number]] for number in range(at, len(rows))}
        assert await reader.go_on({**stored, **doubled})
        if key == rows[-1]:
            continue  # a journal without its last row is one whose last row was not written yet
        dropped = {rows[number]: stored[rows[number + 1]] for number in range(at, len(rows) - 1)}
        assert await reader.go_on({**stored, **dropped})


async def test_rows_of_an_older_history_are_detected() -> None:
    store, model = MemoryStore(), identity()
    engine = ToyEngine(await Session.create(store, model, id="a"))
    await engine.restore()
    await engine.turn(PROMPT, 8)
    await engine.session.flush()
    before = dict(await store.items("s/a/j/"))
    engine.session.truncate(9)
    engine.cache.popn(engine.cache.length - 8)
    await engine.turn([1, 2, 3], 6)
    await engine.session.close()
    after = dict(await store.items(""))
    for key, data in before.items():
        if after[key] != data:
            session = await Session.open(await store_of({**after, key: data}), "a", model)
            assert session.damage is not None


async def test_pages_in_the_wrong_place_are_detected() -> None:
    reader, stored = Reader(await whole()), await entries()
    pages = [key for key in stored if key.startswith("p/")]
    references = [key for key in stored if key.startswith(("s/a/p/", "x/"))]
    assert len(pages) >= 3
    for group in (pages, references):
        for key in group:
            for other in group:
                if other != key:
                    assert await reader.go_on({**stored, key: stored[other], other: stored[key]}) is None
    assert len(stored[pages[0]]) == PAGE * 8
