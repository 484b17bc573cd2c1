"""What every store promises, checked on each that exists here: SQLite natively, IndexedDB in a page."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from webkv.checkpoint.sqlite import SqliteStore
from webkv.checkpoint.stores import MemoryStore, Store, default_path, items
from webkv.errors import StoreBusyError, StoreFullError

IN_PAGE = sys.platform == "emscripten"
SQLITE = pytest.param("sqlite", marks=pytest.mark.skipif(IN_PAGE, reason="SQLite files are native"))
INDEXEDDB = pytest.param("indexeddb", marks=pytest.mark.skipif(not IN_PAGE, reason="runs in a page"))
FILES = pytest.param("sqlite with files", marks=pytest.mark.skipif(IN_PAGE, reason="SQLite files are native"))
KINDS = ["memory", SQLITE, FILES, INDEXEDDB]
# A browser's quota cannot be set from inside the page.
WITH_QUOTA = ["memory", SQLITE, FILES]


@asynccontextmanager
async def opened(kind: str, folder: Path, quota: int | None = None) -> AsyncIterator[Store]:
    if kind == "memory":
        yield MemoryStore(quota)
        return
    if kind == "indexeddb":
        from webkv.checkpoint.indexeddb import IndexedDBStore

        async with IndexedDBStore(str(folder)) as in_page:
            yield in_page
        return
    large = 1 if kind == "sqlite with files" else 1 << 30
    async with SqliteStore(folder / "sessions.db", quota, large) as store:
        yield store


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_committed_is_read_back(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as store:
        await store.commit({"a/1": b"one", "a/2": b"", "b": b"\0\xff"})
        assert await store.get("a/1") == b"one"
        assert await store.get("a/2") == b""
        assert await store.get("a/3") is None
        assert await items(store, "a/") == [("a/1", b"one"), ("a/2", b"")]


@pytest.mark.parametrize("kind", KINDS)
async def test_keys_are_sorted_and_only_those_of_the_prefix(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as store:
        await store.commit(dict.fromkeys(["a/2", "a/10", "a", "a0", "b/1", "a/\U0010fffe"], b"x"))
        assert await store.keys("a/") == ["a/10", "a/2", "a/\U0010fffe"]
        assert await store.keys("") == ["a", "a/10", "a/2", "a/\U0010fffe", "a0", "b/1"]
        assert await store.keys("c") == []


@pytest.mark.parametrize("kind", KINDS)
async def test_deletes_and_puts_happen_together(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as store:
        await store.commit({"a": b"1", "b": b"2"})
        await store.commit({"c": b"3", "b": b"4"}, ["a", "missing"], "relaxed")
        assert await items(store, "") == [("b", b"4"), ("c", b"3")]


@pytest.mark.parametrize("kind", WITH_QUOTA)
async def test_a_full_store_says_what_it_needs_and_keeps_its_state(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path, quota=200_000) as store:
        await store.commit({"kept": b"k" * 1000})
        with pytest.raises(StoreFullError) as refused:
            await store.commit({"small": b"s", "large": b"l" * 400_000}, ["kept"])
        assert refused.value.needed == 400_000 + len("large") + len("small") + 1
        assert await store.keys("") == ["kept"]
        await store.commit({"small": b"s"})
        assert await store.keys("") == ["kept", "small"]


@pytest.mark.parametrize("kind", WITH_QUOTA)
async def test_room_returns_after_a_delete(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path, quota=400_000) as store:
        await store.commit({"a": b"1" * 200_000})
        with pytest.raises(StoreFullError):
            await store.commit({"b": b"2" * 300_000})
        await store.commit({}, ["a"])
        await store.commit({"b": b"2" * 300_000})
        used, quota = await store.estimate()
        assert 300_000 <= used <= 400_000
        assert quota == 400_000


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lock_has_one_holder(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as store:
        async with store.lock("s/1"), store.lock("s/2"):
            with pytest.raises(StoreBusyError, match="s/1 is in use"):
                async with store.lock("s/1"):
                    raise AssertionError("two holders")
        async with store.lock("s/1"):
            pass


def test_the_default_path_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBKV_HOME", "/somewhere")
    assert default_path() == Path("/somewhere/sessions.db")
    monkeypatch.delenv("WEBKV_HOME")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_path() == Path("/data/webkv/sessions.db")
