"""Looking at what is stored, and letting go of it; no GPU is needed for that."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable
from pathlib import Path

import pytest

from webkv.checkpoint import Group, Identity, Session, SqliteStore
from webkv.checkpoint.locks import FileLock
from webkv.cli import main

IDENTITY = Identity("w" * 64, "t" * 64, "r" * 64, (Group("global", "layout", 64),), 16)


def store_sessions(path: Path, **titles: str) -> None:
    """A session of 6 tokens for each title, complete."""

    async def make() -> None:
        async with SqliteStore(path) as store:
            for name, title in titles.items():
                made = await Session.create(store, IDENTITY, id=name, facts={"model": "tiny", "title": title})
                made.request({"prompt": title, "params": {}, "max_tokens": 2})
                made.prompt([1, 2, 3, 4])
                made.computed(4)
                made.token(5, text=b"a ")
                made.token(6, text=b"\xc3")
                made.end("length")
                await made.close()

    asyncio.run(make())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "sessions.db"
    store_sessions(made, a="[/b] and [red]", b="two\nlines\x1b[31m")
    return made


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_looking_for_sessions_makes_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = tmp_path / "none.db"
    code, out, err = run(capsys, "sessions", "--store", nothing)
    assert (code, out) == (0, "")
    assert "no sessions yet" in err
    assert run(capsys, "sessions", "--json", "--store", nothing) == (0, "", "")
    assert run(capsys, "gc", "--store", nothing)[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_titles_are_text_and_not_markup(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "sessions", "--store", path)
    assert code == 0
    assert "[/b] and [red]" in out
    assert "two lines [31m" in out
    assert "\x1b[31m" not in out
    assert "2 sessions" in err


def test_ids_are_never_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_sessions(tmp_path / "long.db", **{"x" * 64: "a title " * 20})
    assert "x" * 64 in run(capsys, "sessions", "--store", tmp_path / "long.db")[1]


def test_lists_for_programs_are_json_lines(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "sessions", "--store", path, "--json", "--verify")
    found = {line["session"]: line for line in map(json.loads, out.splitlines())}
    assert code == 0
    assert set(found) == {"a", "b"}
    assert (found["a"]["tokens"], found["a"]["end"], found["a"]["problems"]) == (6, "length", [])
    assert found["b"]["facts"]["title"] == "two\nlines\x1b[31m"


def test_inspect_shows_what_a_session_holds(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", "a", "--store", path)
    assert code == 0
    assert [line.split() for line in out.splitlines()][:3] == [
        ["model", "tiny"], ["weights", "w" * 64], ["tokens", "6"],
    ]  # fmt: skip
    code, out, _ = run(capsys, "inspect", "a", "--store", path, "--json")
    told = json.loads(out)
    assert (told["prompt_tokens"], told["computed"], told["text"], told["pages"]) == (4, 5, "a �", {})


@pytest.mark.parametrize("name", ["nope", "", "a/j", "a*", "%", "\udcff", "[x]", "a\n"])
@pytest.mark.parametrize("command", ["inspect", "delete", "resume"])
def test_an_unknown_session_is_refused(
    path: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = path.read_bytes()
    code, out, err = run(capsys, command, "--store", path, name)
    assert (code, out) == (2, "")
    assert err == f"webkv: no session is called {name!r} (see: webkv sessions)\n"
    assert path.read_bytes() == before


def test_sessions_are_deleted_all_or_none(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "delete", "--store", path, "a", "b", "nope")[0] == 2
    held = FileLock(path.with_name("sessions.db.locks"), "s/b")
    held.acquire()
    code, _, err = run(capsys, "delete", "--store", path, "a", "b")
    held.release()
    assert code == 2
    assert "in use by process" in err
    assert run(capsys, "sessions", "--store", path)[1].count("length") == 2
    code, out, _ = run(capsys, "delete", "--store", path, "a", "b", "a", "--json")
    assert code == 0
    assert [json.loads(line)["session"] for line in out.splitlines()] == ["a", "b"]
    assert run(capsys, "sessions", "--store", path, "--json")[1] == ""
    assert json.loads(run(capsys, "gc", "--store", path, "--json")[1]) == {"event": "gc", "removed": 0}


def test_damage_is_found_and_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE entries SET value = zeroblob(9) WHERE key = 's/a/j/0000000004'")
    db.close()
    code, out, _ = run(capsys, "sessions", "--verify", "--store", path)
    assert code == 1
    assert "damaged: row 4" in out
    code, out, _ = run(capsys, "inspect", "a", "--store", path)
    assert code == 0
    assert "row 4" in out


@pytest.mark.parametrize(
    "command", [("sessions",), ("inspect", "a"), ("delete", "a"), ("gc",), ("resume", "a")]
)
def test_a_file_that_is_no_store_is_left_alone(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    notes, other = tmp_path / "notes.txt", tmp_path / "other.db"
    notes.write_bytes(b"no database " * 500)
    db = sqlite3.connect(other)
    with db:
        db.execute("CREATE TABLE theirs (a)")
    db.close()
    for file, refusal in ((notes, "is damaged"), (other, "of another program"), (tmp_path, "Is a directory")):
        before = file.read_bytes() if file.is_file() else b""
        code, out, err = run(capsys, *command, "--store", file)
        assert (code, out) == (2, "")
        assert refusal in err
        assert err.count("\n") == 1
        assert not file.is_file() or file.read_bytes() == before


def test_a_session_whose_summary_is_lost_is_found(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute("DELETE FROM entries WHERE key = 'm/a'")
        db.execute("DELETE FROM entries WHERE key LIKE 's/b/j/%'")
    db.close()
    code, out, _ = run(capsys, "sessions", "--verify", "--json", "--store", path)
    found = {line["session"]: line["problems"] for line in map(json.loads, out.splitlines())}
    assert code == 1
    assert found == {"a": ["its summary is missing"], "b": ["there is no session 'b'"]}
    assert run(capsys, "delete", "a", "--store", path)[0] == 0


@pytest.mark.parametrize(("cap", "left"), [("1G", 3), ("0", 0), ("100B", 1)])
def test_gc_brings_stored_pages_under_a_cap(
    cap: str, left: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_pages(tmp_path / "s.db")
    assert run(capsys, "gc", "--cap", cap, "--store", tmp_path / "s.db")[0] == 0
    code, out, _ = run(capsys, "inspect", "a", "--json", "--store", tmp_path / "s.db")
    assert (code, len(json.loads(out)["pages"])) == (0, left)
    assert run(capsys, "sessions", "--verify", "--store", tmp_path / "s.db")[0] == 0


def store_pages(path: Path) -> None:
    """A session with three pages of 64 bytes."""

    class Source:
        def export(self, pages: list[tuple[str, int]]) -> list[Awaitable[bytes]]:
            async def page(block: int) -> bytes:
                return bytes([block]) * 64

            return [asyncio.ensure_future(page(block)) for _, block in pages]

    async def make() -> None:
        async with SqliteStore(path) as store:
            made = await Session.create(store, IDENTITY, id="a")
            made.request({"prompt": "", "params": {}, "max_tokens": 2})
            made.prompt(range(50))
            made.attach(Source())  # type: ignore[arg-type]
            made.computed(50)
            await made.close()

    asyncio.run(make())
