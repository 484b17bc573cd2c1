"""The SQLite file of a store: made and checked when it is opened, read-only where it cannot be written.

Journal rows are small and each is committed alone, so the file has pages of 1 KiB: a commit writes whole
pages, first to the write-ahead log and at a checkpoint to the file.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from webkv.errors import StoreError

if TYPE_CHECKING:
    import sqlite3

FORMAT = 1
_APPLICATION = 0x776B7631  # "wkv1": tells our file from any other SQLite file
_BUSY_SECONDS = 10.0
_PAGE_BYTES = 1024
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
# SQLite says the second where a folder's permissions forbid the log, the first where the disk is read-only.
_NO_LOG = ("SQLITE_CANTOPEN", "SQLITE_READONLY")
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL)",
    # Large values are files of their own, `valuefiles.py`.
    "CREATE TABLE IF NOT EXISTS files "
    "(key TEXT PRIMARY KEY NOT NULL, name TEXT NOT NULL, size INTEGER NOT NULL)",
)


def open_file(path: Path, held: ExitStack) -> tuple[sqlite3.Connection, bool]:
    """The database in `path`, made with mode 0600 if there is none, and whether it can be written.

    `held` closes what reading needs besides.  Raises `StoreError` for a file that is not a store's, or
    `sqlite3.Error`.
    """
    import sqlite3

    try:
        return _writable(path), True
    except OSError as error:
        if error.errno not in _NOT_WRITABLE or not os.path.exists(path):
            raise StoreError(f"cannot open {path}: {error.strerror}") from error
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith(_NO_LOG):
            raise
    return _readable(path, held), False


def pragma(db: sqlite3.Connection, name: str) -> int:
    """The value of a numeric setting."""
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _connect(target: str) -> sqlite3.Connection:
    import sqlite3

    return sqlite3.connect(
        target, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )


def _uri(path: Path, query: str) -> str:
    return f"{path.absolute().as_uri()}?{query}"


def _writable(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if not path.is_file():  # SQLite would wait at a pipe, and leave a file beside a device
        raise StoreError(f"{path} is not a file")
    db = _connect(_uri(path, "mode=rw"))
    try:
        made = _check(db, path)
        if not made:
            # These two have an effect only before the first table.
            db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA journal_size_limit = 16777216")
        if not made or not _has_files(db):
            _make(db)
    except BaseException:
        db.close()
        raise
    return db


def _make(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    for table in _SCHEMA:
        db.execute(table)
    db.execute(f"PRAGMA application_id = {_APPLICATION}")
    db.execute(f"PRAGMA user_version = {FORMAT}")
    db.execute("COMMIT")


def _has_files(db: sqlite3.Connection) -> bool:
    return bool(db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'files'").fetchone()[0])


def _check(db: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has its tables.  Raises `StoreError` if they are not ours."""
    application = pragma(db, "application_id")
    tables = bool(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if application != _APPLICATION and (application or tables):
        raise StoreError(f"{path} is a SQLite file of another program")
    version = pragma(db, "user_version")
    if version not in (0, FORMAT):
        raise StoreError(f"{path} has format {version}, this program reads {FORMAT}")
    return tables


def _readable(path: Path, held: ExitStack) -> sqlite3.Connection:
    """The database for reading.  SQLite itself cannot read a log whose index it may not make."""
    import sqlite3

    try:
        return _checked(_connect(_uri(path, "mode=ro")), path)
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith(_NO_LOG):
            raise
    log = path.with_name(path.name + "-wal")
    try:
        if not log.exists() or not log.stat().st_size:
            return _checked(_connect(_uri(path, "immutable=1")), path)
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="webkv-")))
        for file in (path, log):
            shutil.copyfile(file, folder / file.name)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    return _checked(_connect(_uri(folder / path.name, "mode=rw")), path)


def _checked(db: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    try:
        if not _check(db, path):
            raise StoreError(f"{path} is empty and cannot be written")
        if not _has_files(db):
            db.execute("CREATE TEMP TABLE files (key TEXT, name TEXT, size INTEGER)")
        db.execute("PRAGMA query_only = 1")
    except BaseException:
        db.close()
        raise
    return db
