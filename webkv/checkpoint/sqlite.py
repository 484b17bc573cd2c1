"""A store in one SQLite file: the native default.

SQLite runs in a worker thread of its own, so a commit's `fsync` never holds up the token loop.  The file is
in write-ahead-log mode: `strict` is `synchronous=FULL` (one `fsync` per commit), `relaxed` is `NORMAL` (a
killed process loses nothing, a power cut may lose the last commits, never their order).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from webkv.checkpoint.locks import FileLock
from webkv.checkpoint.stores import DURABILITIES, Durability, default_path, payload_bytes
from webkv.errors import StoreBusyError, StoreError, StoreFullError

if TYPE_CHECKING:
    import sqlite3

FORMAT = 1
_APPLICATION = 0x776B7631  # "wkv1": tells our file from any other SQLite file
_BUSY_SECONDS = 10.0
_LAST_KEY = "\U0010ffff"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL)
"""

T = TypeVar("T")


class SqliteStore:
    """A `Store` in the SQLite file `path` (None: `default_path()`), made on first use with mode 0600.

    `quota` bounds the file, in bytes.  Several processes may use one file.  Call `close()` when done, or use
    it as an async context manager.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, quota: int | None = None) -> None:
        self.path = default_path() if path is None else Path(path)
        self.quota = quota
        self._db: sqlite3.Connection | None = None
        self._synchronous = ""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="webkv-store")

    async def __aenter__(self) -> SqliteStore:
        await self._run(self._open)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the file; the store can be used again and then reopens it."""
        await self._run(self._close)

    async def get(self, key: str) -> bytes | None:
        return await self._run(self._get, key)

    async def keys(self, prefix: str) -> list[str]:
        query = "SELECT key FROM entries WHERE key >= ? AND key < ? ORDER BY key"
        return [row[0] for row in await self._run(self._select, query, prefix, prefix + _LAST_KEY)]

    async def items(self, prefix: str) -> list[tuple[str, bytes]]:
        """All `(key, value)` under `prefix`, sorted by key."""
        query = "SELECT key, value FROM entries WHERE key >= ? AND key < ? ORDER BY key"
        return await self._run(self._select, query, prefix, prefix + _LAST_KEY)

    async def commit(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), durability: Durability = "strict"
    ) -> None:
        assert durability in DURABILITIES, durability
        await self._run(self._commit, dict(puts), tuple(deletes), durability)

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        return self._lock(name)

    @asynccontextmanager
    async def _lock(self, name: str) -> AsyncIterator[None]:
        held = FileLock(self.path.with_name(self.path.name + ".locks"), name)
        held.acquire()
        try:
            yield
        finally:
            held.release()

    async def estimate(self) -> tuple[int, int | None]:
        return await self._run(self._estimate)

    async def compact(self) -> None:
        """Give the room of deleted entries back to the file system."""
        await self._run(self._compact)

    # All below runs in the worker thread.

    async def _run(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._named, call, args)

    def _named(self, call: Callable[..., T], args: tuple[object, ...]) -> T:
        try:
            import sqlite3
        except ImportError as error:
            raise StoreError("this Python has no sqlite3 module") from error
        try:
            return call(*args)
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error, needed: int | None = None) -> StoreError:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith("SQLITE_FULL"):
            return StoreFullError(f"no room in {self.path}: {error}", needed)
        if name.startswith("SQLITE_READONLY"):
            return StoreError(f"{self.path} is read-only: {error}")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return StoreBusyError(f"{self.path} is busy: another process has been writing for too long")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return StoreError(f"{self.path} is damaged: {error}")
        return StoreError(f"{self.path}: {error}")

    def _open(self) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        import sqlite3

        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise StoreError(f"cannot open {self.path}: {error.strerror}") from error
        db = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        application = _pragma(db, "application_id")
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != _APPLICATION and (application or tables):
            raise StoreError(f"{self.path} is a SQLite file of another program")
        version = _pragma(db, "user_version")
        if version not in (0, FORMAT):
            raise StoreError(f"{self.path} has format {version}, this program reads {FORMAT}")
        if not tables:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect only before the first table
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA journal_size_limit = 16777216")
        if not tables:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_SCHEMA)
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
            db.execute("COMMIT")
        if self.quota is not None:
            db.execute(f"PRAGMA max_page_count = {max(1, self.quota // _pragma(db, 'page_size'))}")
        self._synchronous = ""

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _get(self, key: str) -> bytes | None:
        row = self._open().execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def _select(self, query: str, *args: str) -> list[tuple[str, bytes]]:
        return self._open().execute(query, args).fetchall()

    def _commit(self, puts: dict[str, bytes], deletes: tuple[str, ...], durability: Durability) -> None:
        import sqlite3

        db = self._open()
        synchronous = "FULL" if durability == "strict" else "NORMAL"
        try:
            if synchronous != self._synchronous:
                db.execute(f"PRAGMA synchronous = {synchronous}")
                self._synchronous = synchronous
            db.execute("BEGIN IMMEDIATE")
            db.executemany("DELETE FROM entries WHERE key = ?", ((key,) for key in deletes))
            db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", puts.items())
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:  # SQLite has rolled back by itself after some errors
                db.execute("ROLLBACK")
            raise self._translate(error, payload_bytes(puts)) from error

    def _estimate(self) -> tuple[int, int | None]:
        db = self._open()
        pages = _pragma(db, "page_count") - _pragma(db, "freelist_count")
        used = pages * _pragma(db, "page_size")
        if self.quota is not None:
            return used, self.quota
        return used, used + shutil.disk_usage(self.path.parent).free

    def _compact(self) -> None:
        db = self._open()
        db.executescript("PRAGMA incremental_vacuum")  # `execute` would step once: one page
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])
