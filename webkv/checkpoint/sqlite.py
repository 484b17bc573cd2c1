"""A store in one SQLite file, with a file beside it for each large value: the native default.

SQLite runs in a worker thread of its own, so a commit's `fsync` never holds up the token loop.  The file is
in write-ahead-log mode: `strict` is `synchronous=FULL` (one `fsync` per commit), `relaxed` is `NORMAL` (a
killed process loses nothing, a power cut may lose the last commits, never their order, and the bytes of
their large values, which read as missing or fail their digest).
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from webkv.checkpoint.locks import FileLock
from webkv.checkpoint.sqlitefile import open_file, pragma
from webkv.checkpoint.stores import DURABILITIES, Durability, default_path, payload_bytes
from webkv.checkpoint.valuefiles import ValueFiles
from webkv.errors import StoreBusyError, StoreError, StoreFullError

if TYPE_CHECKING:
    import sqlite3

LARGE = 64 << 10
# What is left of a full disk, so that the log has room for what deleting writes: about as much as the rows
# have, 160 bytes for each token.
_SPARE = 4 << 20
_LAST_KEY = "\U0010ffff"
_TABLES = ("entries", "files")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

T = TypeVar("T")


class SqliteStore:
    """A `Store` in the SQLite file `path` (None: `default_path()`), made on first use with mode 0600.

    Values of `large` bytes or more are files in the folder `<path>.values`.  `quota` bounds all of it, in
    bytes.  Several processes may use one file.  What cannot be written can still be read.  Call `close()`
    when done, or use it as an async context manager.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, quota: int | None = None, large: int = LARGE
    ) -> None:
        self.path = default_path() if path is None else Path(path)
        if not self.path.name:
            raise StoreError(f"{str(self.path)!r} is not the name of a file")
        self.quota = quota
        self.large = large
        self.files = ValueFiles(self.path.with_name(self.path.name + ".values"))
        self._db: sqlite3.Connection | None = None
        self._writable = True
        self._swept = False
        self._held = ExitStack()
        self._synchronous = ""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="webkv-store")

    def __str__(self) -> str:
        return str(self.path)

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
        return await self._run(self._keys, prefix)

    async def items(self, prefix: str) -> list[tuple[str, bytes]]:
        """All `(key, value)` under `prefix`, sorted by key."""
        return await self._run(self._items, prefix)

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

    def _named_error(self, error: Exception, needed: int) -> StoreError:
        if isinstance(error, StoreError):
            return error
        if not isinstance(error, OSError):
            return self._translate(error, needed)
        if error.errno in _NO_ROOM:
            return StoreFullError(f"no room in {self.files.folder}: {error.strerror}", needed)
        return StoreError(f"cannot write to {self.files.folder}: {error.strerror}")

    def _translate(self, error: Exception, needed: int | None = None) -> StoreError:
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
        if self._db is None:
            self._db, self._writable = open_file(self.path, self._held)
            self._synchronous = ""
            if self.quota is not None:
                most = max(1, self.quota // pragma(self._db, "page_size"))
                self._db.execute(f"PRAGMA max_page_count = {most}")
        return self._db

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()
        self._held.close()

    def _get(self, key: str) -> bytes | None:
        db = self._open()
        row = db.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return row[0]
        # Another process may replace the value, and its file, between the two steps.
        for _ in range(3):
            named = db.execute("SELECT name, size FROM files WHERE key = ?", (key,)).fetchone()
            data = None if named is None else self.files.read(*named)
            if named is None or data is not None:
                return data
        return None

    def _keys(self, prefix: str) -> list[str]:
        span = (prefix, prefix + _LAST_KEY)
        query = " UNION ALL ".join(f"SELECT key FROM {t} WHERE key >= ? AND key < ?" for t in _TABLES)
        return [row[0] for row in self._open().execute(f"{query} ORDER BY key", span * 2)]

    def _items(self, prefix: str) -> list[tuple[str, bytes]]:
        db, span = self._open(), (prefix, prefix + _LAST_KEY)
        query = "SELECT key, value FROM entries WHERE key >= ? AND key < ? ORDER BY key"
        found: list[tuple[str, bytes]] = db.execute(query, span).fetchall()
        large = db.execute("SELECT key FROM files WHERE key >= ? AND key < ?", span).fetchall()
        if not large:
            return found
        values = [(key, self._get(key)) for (key,) in large]
        return sorted([*found, *((key, value) for key, value in values if value is not None)])

    def _commit(self, puts: dict[str, bytes], deletes: tuple[str, ...], durability: Durability) -> None:
        import sqlite3

        db = self._open()
        if not self._writable:
            raise StoreError(f"{self.path} is read-only")
        names: dict[str, str] = {}
        try:
            if not deletes and shutil.disk_usage(self.path.parent).free < _SPARE:
                raise StoreFullError(f"no room in {self.path}: the disk is full", payload_bytes(puts))
            self._synchronize(db, durability)
            db.execute("BEGIN IMMEDIATE")
            large = {key: data for key, data in puts.items() if len(data) >= self.large}
            names = self._write_files(db, large, durability)
            old = self._delete(db, deletes, puts, large)
            small = ((key, data) for key, data in puts.items() if key not in large)
            db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", small)
            db.executemany(
                "INSERT INTO files VALUES (?, ?, ?)",
                ((key, name, len(puts[key])) for key, name in names.items()),
            )
            self._require_room(db, names, payload_bytes(puts))
            db.execute("COMMIT")
        except (sqlite3.Error, OSError, StoreError) as error:
            if db.in_transaction:  # SQLite has rolled back by itself after some errors
                db.execute("ROLLBACK")
            self.files.remove(names.values())
            raise self._named_error(error, payload_bytes(puts)) from error
        self.files.remove(old)

    def _synchronize(self, db: sqlite3.Connection, durability: Durability) -> None:
        synchronous = "FULL" if durability == "strict" else "NORMAL"
        if synchronous != self._synchronous:
            db.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous

    def _write_files(
        self, db: sqlite3.Connection, values: Mapping[str, bytes], durability: Durability
    ) -> dict[str, str]:
        """Files for large values.  Inside a transaction, so that no other process sweeps them."""
        if values and not self._swept:
            self._sweep(db)
        return self.files.write(values, durability == "strict")

    def _sweep(self, db: sqlite3.Connection) -> None:
        self.files.sweep(name for (name,) in db.execute("SELECT name FROM files"))
        self._swept = True

    def _delete(
        self, db: sqlite3.Connection, deletes: Iterable[str], puts: Iterable[str], large: Iterable[str]
    ) -> list[str]:
        """Remove entries that are deleted or replaced; the files they had."""
        gone = [(key,) for key in deletes]
        changed = [*gone, *((key,) for key in puts)]
        db.executemany("DELETE FROM entries WHERE key = ?", [*gone, *((key,) for key in large)])
        old = [row for key in changed for row in db.execute("SELECT name FROM files WHERE key = ?", key)]
        if old:
            db.executemany("DELETE FROM files WHERE key = ?", changed)
        return [name for (name,) in old]

    def _require_room(self, db: sqlite3.Connection, new: Mapping[str, str], needed: int) -> None:
        """Raise `StoreFullError` if new files go over the quota; SQLite bounds its own."""
        if self.quota is not None and new and self._used(db) > self.quota:
            raise StoreFullError(f"no room in {self.path}: quota {self.quota} bytes", needed)

    def _used(self, db: sqlite3.Connection) -> int:
        pages = pragma(db, "page_count") - pragma(db, "freelist_count")
        files = db.execute("SELECT coalesce(sum(size), 0) FROM files").fetchone()[0]
        return pages * pragma(db, "page_size") + int(files)

    def _estimate(self) -> tuple[int, int | None]:
        used = self._used(self._open())
        if self.quota is not None:
            return used, self.quota
        return used, used + shutil.disk_usage(self.path.parent).free

    def _compact(self) -> None:
        db = self._open()
        db.execute("BEGIN IMMEDIATE")
        self._sweep(db)
        db.execute("COMMIT")
        db.executescript("PRAGMA incremental_vacuum")  # `execute` would step once: one page
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
