"""Where checkpoints live: the `Store` protocol, and a store in memory.

A store maps text keys to bytes.  Its `commit` is atomic: after a crash either all of it happened or nothing,
and with `durability="strict"` it survives a power cut once the call returns.  Nothing above a store writes
temporary names, markers or renames; that is what the engines below are good at.

Keys in use (all written by this room):

    s/<session>/j/<10 digits>          journal rows, `record.py`
    s/<session>/p/<group>/<block>      page references, `record.py`
    m/<session>                        one small summary per session, for listing
    p/<digest>                         page bytes, named by their SHA-256
    r/<digest>/<session>/<group>/<block>   which page references name those bytes
    x/<chain key>                      prefix index: token chain -> page digest, `prefix.py`
"""

from __future__ import annotations

import asyncio
import os
import sys
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from webkv.errors import StoreBusyError, StoreError, StoreFullError

T = TypeVar("T")

Durability = Literal["strict", "relaxed"]
DURABILITIES: tuple[Durability, ...] = ("strict", "relaxed")


@runtime_checkable
class Store(Protocol):
    """What a checkpoint needs from storage.  Every failure is a `StoreError` and changes nothing."""

    async def get(self, key: str) -> bytes | None:
        """The value of `key`, or None."""
        ...

    async def keys(self, prefix: str) -> list[str]:
        """All keys that start with `prefix`, sorted.  Values are not read."""
        ...

    async def commit(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), durability: Durability = "strict"
    ) -> None:
        """Write `puts` and remove `deletes` (no key in both; a missing one is fine), all or nothing.

        `strict` is on stable storage when this returns; `relaxed` survives a dead process but maybe not a
        power cut.  Raises `StoreFullError` with the bytes needed, or another `StoreError`.
        """
        ...

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """Hold `name` for this process or tab while the context lasts; never waits.

        Raises `StoreBusyError` while someone else holds it.  A dead holder's lock is free at once.
        """
        ...

    async def estimate(self) -> tuple[int, int | None]:
        """Bytes used, and bytes that may be used in all (None: not known)."""
        ...


async def items(store: Store, prefix: str) -> list[tuple[str, bytes]]:
    """All `(key, value)` under `prefix`, sorted; in one read where the store has `items` of its own."""
    own = getattr(store, "items", None)
    if own is not None:
        found: list[tuple[str, bytes]] = await own(prefix)
        return found
    values = [(key, await store.get(key)) for key in await store.keys(prefix)]
    return [(key, value) for key, value in values if value is not None]


class SessionLock(AbstractAsyncContextManager[None]):
    """Hold a session while the context lasts; `StoreBusyError` naming it if someone else does."""

    def __init__(self, store: Store, session: str) -> None:
        self.session = session
        self._lock = store.lock(f"s/{session}")

    async def __aenter__(self) -> None:
        try:
            await self._lock.__aenter__()
        except StoreBusyError as error:
            what = str(error).replace(f"s/{self.session}", f"session {self.session!r}", 1)
            raise StoreBusyError(what) from error

    async def __aexit__(self, *exc: Any) -> bool | None:
        return await self._lock.__aexit__(*exc)


async def hold(held: AsyncExitStack, store: Store, session: str) -> None:
    """Hold a session until `held` closes; `StoreBusyError` if someone else does.

    A store that cannot even lock cannot be written either, which the first commit will say.
    """
    try:
        await held.enter_async_context(SessionLock(store, session))
    except StoreBusyError:
        raise
    except StoreError:
        return


def payload_bytes(puts: Mapping[str, bytes]) -> int:
    """Bytes of keys and values that a commit of `puts` hands to a store."""
    return sum(len(key) + len(value) for key, value in puts.items())


async def answered(operation: Awaitable[T], patience: float) -> T:
    """The result of a store's operation; `StoreError` if it takes more than `patience` seconds.

    The operation is left alone then, not cancelled: it may still happen.
    """
    task = asyncio.ensure_future(operation)
    done, _ = await asyncio.wait({task}, timeout=patience)
    if not done:
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise StoreError(f"the store has not answered for {patience:g} s")
    return task.result()


class PatientStore:
    """A `Store` whose operations raise `StoreError` when they take more than `patience` seconds."""

    def __init__(self, store: Store, patience: float) -> None:
        self.inner = store
        self.patience = patience

    async def get(self, key: str) -> bytes | None:
        return await answered(self.inner.get(key), self.patience)

    async def keys(self, prefix: str) -> list[str]:
        return await answered(self.inner.keys(prefix), self.patience)

    async def items(self, prefix: str) -> list[tuple[str, bytes]]:
        """All `(key, value)` under `prefix`, sorted by key."""
        return await answered(items(self.inner, prefix), self.patience)

    async def commit(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), durability: Durability = "strict"
    ) -> None:
        await answered(self.inner.commit(puts, deletes, durability), self.patience)

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        return self.inner.lock(name)

    async def estimate(self) -> tuple[int, int | None]:
        return await answered(self.inner.estimate(), self.patience)


class MemoryStore:
    """A `Store` in this process's memory.  `quota` bounds keys + values, in bytes."""

    def __init__(self, quota: int | None = None) -> None:
        self.quota = quota
        self.used = 0
        self._data: dict[str, bytes] = {}
        self._sorted: list[str] | None = []
        self._held: set[str] = set()

    async def get(self, key: str) -> bytes | None:
        return self._data.get(key)

    async def keys(self, prefix: str) -> list[str]:
        ordered = self._order()
        at = bisect_left(ordered, prefix)
        found = []
        while at < len(ordered) and ordered[at].startswith(prefix):
            found.append(ordered[at])
            at += 1
        return found

    async def items(self, prefix: str) -> list[tuple[str, bytes]]:
        """All `(key, value)` under `prefix`, sorted by key."""
        return [(key, self._data[key]) for key in await self.keys(prefix)]

    def _order(self) -> list[str]:
        if self._sorted is None:
            self._sorted = sorted(self._data)
        return self._sorted

    async def commit(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), durability: Durability = "strict"
    ) -> None:
        assert durability in DURABILITIES, durability
        gone = {key: self._data[key] for key in deletes if key in self._data}
        replaced = {key: self._data[key] for key in puts if key in self._data}
        used = self.used + payload_bytes(puts) - payload_bytes(gone) - payload_bytes(replaced)
        if self.quota is not None and used > max(self.quota, self.used):
            raise StoreFullError(f"memory store is full: quota {self.quota} bytes", payload_bytes(puts))
        for key in gone:
            del self._data[key]
        self._data.update((key, bytes(value)) for key, value in puts.items())
        self.used = used
        self._sorted = None

    @asynccontextmanager
    async def _lock(self, name: str) -> AsyncIterator[None]:
        if name in self._held:
            raise StoreBusyError(f"{name} is in use in this process")
        self._held.add(name)
        try:
            yield
        finally:
            self._held.discard(name)

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        return self._lock(name)

    async def estimate(self) -> tuple[int, int | None]:
        return self.used, self.quota


def default_path() -> Path:
    """`$WEBKV_HOME/sessions.db`, else `webkv/sessions.db` in the user's data folder."""
    home = os.environ.get("WEBKV_HOME")
    if home:
        return Path(home) / "sessions.db"
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    return base / "webkv" / "sessions.db"
