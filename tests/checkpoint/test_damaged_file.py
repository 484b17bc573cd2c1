"""Bits flipped anywhere in the files of a real store: refused by name or computed again, never used."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

if sys.platform == "emscripten":
    pytest.skip("SQLite files are native", allow_module_level=True)

from tests.checkpoint.toy import PAGE, SLOT, ToyEngine, identity, prompt
from webkv.checkpoint import Session, SqliteStore
from webkv.errors import WebkvError

MODEL = identity(None, 5)
PROMPT, COUNT = prompt(1, 6), 20
FLIPS = 60


def opened(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "a.db", large=PAGE * SLOT)


async def go_on(folder: Path) -> ToyEngine | None:
    """The session, driven to its end; None if it is refused."""
    try:
        async with opened(folder) as store:
            engine = ToyEngine(await Session.open(store, "a", MODEL))
            await engine.restore()
            if engine.session.transcript.requests:
                engine.session.transcript.end = None
                await engine.generate(COUNT)
            else:
                await engine.turn(PROMPT, COUNT)
            await engine.session.close()
            return engine
    except WebkvError:
        return None


async def test_a_bit_flipped_anywhere_is_never_used(tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    async with opened(sound) as store:
        whole = ToyEngine(await Session.create(store, MODEL, id="a"))
        await whole.restore()
        await whole.turn(PROMPT, COUNT)
        await whole.session.close()
    expected = whole.tokens, whole.cache.image()
    files = [path.relative_to(sound) for path in sorted(sound.rglob("*")) if path.is_file()]
    chosen, went_on = random.Random(1), 0
    for at in range(FLIPS):
        damaged = tmp_path / "damaged"
        shutil.copytree(sound, damaged)
        # Half of them in the database, which is one of many files.
        path = damaged / (files[0] if at % 2 else chosen.choice(files))
        data = bytearray(path.read_bytes())
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        path.write_bytes(data)
        engine = await go_on(damaged)
        if engine is not None:
            assert (engine.tokens, engine.cache.image()) == expected
            went_on += 1
        shutil.rmtree(damaged)
    assert went_on > FLIPS // 2
