"""The store a command works on: a SQLite file, or object storage by its URL."""

from __future__ import annotations

from pathlib import Path

from webkv.checkpoint import SqliteStore, default_path
from webkv.checkpoint.objectstore import ObjectStore
from webkv.errors import CheckpointError

CommandStore = SqliteStore | ObjectStore


def open_store(where: Path | str | None) -> CommandStore:
    """The store at a path (None: the default one), made on first use, or at a URL such as `s3://bucket/webkv`.

    Credentials and settings for a URL are in the environment, under the names that its vendor's tools use.
    """
    return ObjectStore.open_url(where) if isinstance(where, str) else SqliteStore(where)


def existing_store(where: Path | str | None) -> CommandStore | None:
    """The store, None while there is no such file: looking must not make one."""
    if isinstance(where, str) or (where or default_path()).exists():
        return open_store(where)
    return None


async def require_session(store: CommandStore | None, id: str) -> CommandStore:
    """The store, if it has that session; else `CheckpointError`."""
    # An argument that is not UTF-8 is no key that a store could look for.
    if store is None or not id.isprintable() or not await store.keys(f"s/{id}/j/"):
        raise CheckpointError(f"no session is called {id!r} (see: webkv sessions)")
    return store
