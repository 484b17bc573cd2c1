"""The browser's store over a real IndexedDB: what is stored, what refuses to open, who holds a lock."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from webkv.checkpoint.stores import Store
from webkv.errors import StoreBusyError, StoreError

pytestmark = pytest.mark.skipif(sys.platform != "emscripten", reason="runs in a page")
if sys.platform == "emscripten":
    from pyodide.code import run_js

    from webkv.checkpoint.indexeddb import IndexedDBStore, _js

# Opens database `name` at `version`, running `upgrade(db)`, and closes it.
OPEN = """(name, version, upgrade) => new Promise((resolve, reject) => {
  const request = indexedDB.open(name, version);
  request.onupgradeneeded = () => (0, eval)(upgrade)(request.result);
  request.onsuccess = () => { request.result.close(); resolve(); };
  request.onerror = () => reject(request.error);
})"""


async def test_it_is_a_store() -> None:
    assert isinstance(IndexedDBStore("any"), Store)


async def test_entries_outlive_the_connection(tmp_path: Path) -> None:
    async with IndexedDBStore(str(tmp_path)) as store:
        await store.commit({"a": b"1", "b": b""})
    async with IndexedDBStore(str(tmp_path)) as store:
        assert await store.items("") == [("a", b"1"), ("b", b"")]


async def test_a_value_is_stored_alone_not_with_pythons_heap(tmp_path: Path) -> None:
    size_of = run_js("""async (name) => {
      const db = await new Promise((resolve) => {
        const request = indexedDB.open(name);
        request.onsuccess = () => resolve(request.result);
      });
      const value = await new Promise((resolve) => {
        const request = db.transaction("entries").objectStore("entries").get("b");
        request.onsuccess = () => resolve(request.result);
      });
      db.close();
      return value.buffer.byteLength;
    }""")
    async with IndexedDBStore(str(tmp_path)) as store:
        await store.commit({"a": b"x" * 1000, "b": b"y" * 64})
        assert await size_of(store.name) == 64


async def test_a_refused_key_leaves_the_whole_commit_undone(tmp_path: Path) -> None:
    async with IndexedDBStore(str(tmp_path)) as store:
        await store.commit({"a": b"1"})
        db = await store._open()
        answer = await _js.commit(db, '["a", "b"]', "[1, 1]", b"23", "[{}]", "strict")
        assert answer[0] == "DataError"  # an object is no key
        assert await store.items("") == [("a", b"1")]


async def test_a_database_of_a_newer_webkv_is_refused(tmp_path: Path) -> None:
    await run_js(OPEN)(str(tmp_path), 99, "(db) => db.createObjectStore('entries')")
    with pytest.raises(StoreError, match="newer webkv"):
        await IndexedDBStore(str(tmp_path)).get("a")


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    await run_js(OPEN)(str(tmp_path), 1, "(db) => db.createObjectStore('theirs')")
    with pytest.raises(StoreError, match="not a database of webkv"):
        await IndexedDBStore(str(tmp_path)).get("a")


async def test_an_older_schema_is_upgraded_and_keeps_its_entries(tmp_path: Path) -> None:
    async with IndexedDBStore(str(tmp_path)) as store:
        await store.commit({"a": b"1"})
    two_steps = run_js("(steps) => [...steps, (db) => db.createObjectStore('added')]")(_js.STEPS)
    name, _, db = await _js.open(str(tmp_path), two_steps)
    assert (name, db.version, list(db.objectStoreNames)) == ("", 2, ["added", "entries"])
    assert (await _js.get(db, "a"))[2].to_bytes() == b"1"
    db.close()


async def test_an_upgrade_elsewhere_closes_the_store_which_then_says_so(tmp_path: Path) -> None:
    async with IndexedDBStore(str(tmp_path)) as store:
        await store.commit({"a": b"1"})
        await run_js(OPEN)(str(tmp_path), 2, "(db) => {}")
        with pytest.raises(StoreError, match="reload the page"):
            await store.get("a")


async def test_delete_all_removes_the_database(tmp_path: Path) -> None:
    async with IndexedDBStore(str(tmp_path)) as store:
        await store.commit({"a": b"1"})
        await store.delete_all()
        assert await store.keys("") == []


async def test_another_worker_holds_the_lock_until_it_is_terminated(tmp_path: Path) -> None:
    start = run_js("""(name) => new Promise((resolve) => {
      const code = `navigator.locks.request(${JSON.stringify(name)}, () => {
        postMessage("held"); return new Promise(() => {}); })`;
      const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
      worker.onmessage = () => resolve(worker);
    })""")
    store = IndexedDBStore(str(tmp_path))
    worker = await start(f"{store.name}:s/1")
    with pytest.raises(StoreBusyError, match="s/1 is in use in another tab"):
        async with store.lock("s/1"):
            raise AssertionError("two holders")
    worker.terminate()
    while any(held.name == f"{store.name}:s/1" for held in (await run_js("navigator.locks.query()")).held):
        pass
    async with store.lock("s/1"):
        pass


async def test_estimate_is_the_sites() -> None:
    used, quota = await IndexedDBStore("any").estimate()
    assert quota is not None and 0 <= used < quota
