"""A store in S3-compatible object storage, or anything that obstore can reach.

Object storage writes one object atomically and can refuse to overwrite one; nothing more is needed.  Commits
are objects `log/<number>`, each created only if it does not exist: who creates number n has committed n, who
fails reads it and tries n + 1.  Large values are objects of their own, written before.  A snapshot now and
then shortens the log.  All keys and small values are held in memory.

A lock is a lease: an object with a time, renewed while held.  The lock of a dead holder is free after `lease`
seconds, not at once, since nothing watches over processes here; a holder whose lease has run out, or whose
session another process has written to, can no longer write to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from typing import Any, TypeVar

from webkv.checkpoint.objectlog import Elsewhere, Value, pack, unpack
from webkv.checkpoint.stores import DURABILITIES, Durability
from webkv.errors import DamageError, StoreBusyError, StoreError

_LARGE = 64 << 10
_LOG_PER_SNAPSHOT = 256
_READS_AT_ONCE = 16

T = TypeVar("T")


class ObjectStore:
    """A `Store` in the bucket `objects`, an obstore store (`obstore.store.S3Store`, ...; see `open_url`).

    Other processes' commits are seen when a lock is taken and when this one commits.  `lease`: seconds after
    which a lock that is not renewed is free; holders' clocks may differ by a third of it.
    """

    def __init__(self, objects: Any, lease: float = 30.0) -> None:
        self.objects = objects
        self.lease = lease
        self._values: dict[str, Value] = {}
        self._next = 0
        self._since_snapshot = 0
        self._read = False
        self._leases: dict[str, float] = {}
        self._turn = asyncio.Lock()

    @classmethod
    def open_url(cls, url: str, lease: float = 30.0, **settings: Any) -> ObjectStore:
        """The store under `url`, such as `s3://bucket/prefix`; `settings` as in `obstore.store.from_url`."""
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise StoreError("object storage needs the extra webkv[object-store]") from error
        try:
            return cls(from_url(url, **settings), lease)
        except Exception as error:
            raise StoreError(f"{url}: {str(error).splitlines()[0]}") from error

    def __str__(self) -> str:
        return str(self.objects)

    async def __aenter__(self) -> ObjectStore:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let obstore's threads finish; call it before the process ends."""
        # They touch Python objects a moment longer than a call takes; an interpreter that exits meanwhile is
        # aborted (PyO3/pyo3-async-runtimes#40).
        await asyncio.sleep(0.1)

    async def get(self, key: str) -> bytes | None:
        await self._first_read()
        value = self._values.get(key)
        return await self._fetch(value.path) if isinstance(value, Elsewhere) else value

    async def keys(self, prefix: str) -> list[str]:
        await self._first_read()
        return sorted(key for key in self._values if key.startswith(prefix))

    async def items(self, prefix: str) -> list[tuple[str, bytes]]:
        """All `(key, value)` under `prefix`, sorted by key."""
        values = [(key, await self.get(key)) for key in await self.keys(prefix)]
        return [(key, value) for key, value in values if value is not None]

    async def commit(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), durability: Durability = "strict"
    ) -> None:
        assert durability in DURABILITIES, durability
        await self._first_read()
        async with self._turn:
            self._require_leases(puts)
            await self._commit(puts, list(deletes))

    async def _commit(self, puts: Mapping[str, bytes], deletes: list[str]) -> None:
        values: dict[str, Value] = {}
        for key, data in puts.items():
            values[key] = (
                bytes(data) if len(data) < _LARGE else Elsewhere(f"value/{secrets.token_hex(16)}", len(data))
            )
        await self._all(
            self._put(value.path, puts[key]) for key, value in values.items() if isinstance(value, Elsewhere)
        )
        data = pack(values, deletes)
        while not await self._create(_log_path(self._next), data):
            self._notice_overtaking(await self._follow(), values)
            self._require_leases(puts)
        old = [self._values.get(key) for key in (*deletes, *values)]
        self._apply(values, deletes)
        await self._remove([value.path for value in old if isinstance(value, Elsewhere)])
        if self._since_snapshot >= _LOG_PER_SNAPSHOT:
            await self._snapshot()

    def _require_leases(self, puts: Iterable[str]) -> None:
        """Raise `StoreBusyError` before writing to a session whose lock was held here but is not any more."""
        for key in puts:
            name = "/".join(key.split("/", 2)[:2])
            if self._leases.get(name, math.inf) < time.time():
                what = f"session {name.removeprefix('s/')!r}"
                raise StoreBusyError(f"the lock of {what} was lost: another process may have taken over")

    def _notice_overtaking(self, theirs: Mapping[str, Value], ours: Mapping[str, Value]) -> None:
        """End the lease of a session that others have written to.  Equal values are our own lost answers."""
        for key, value in theirs.items():
            name = "/".join(key.split("/", 2)[:2])
            if name in self._leases and ours.get(key) != value:
                self._leases[name] = 0.0

    def _apply(self, puts: Mapping[str, Value], deletes: Iterable[str]) -> None:
        for key in deletes:
            self._values.pop(key, None)
        self._values.update(puts)
        self._next += 1
        self._since_snapshot += 1

    async def _first_read(self) -> None:
        if self._read:
            return
        async with self._turn:
            if self._read:
                return
            snapshots = await self._list("snapshot/")
            if snapshots:
                data = await self._fetch(snapshots[-1])
                self._values, _ = self._checked(data, snapshots[-1])
                self._next = int(snapshots[-1].rpartition("/")[2])
            await self._follow()
            self._read = True

    async def _follow(self) -> dict[str, Value]:
        """Apply all commits after the last one known; returns what they wrote."""
        written: dict[str, Value] = {}
        paths = await self._list("log/", after=_log_path(self._next - 1) if self._next else "")
        for start in range(0, len(paths), _READS_AT_ONCE):
            part = paths[start : start + _READS_AT_ONCE]
            for path, data in zip(part, await self._all(map(self._fetch, part)), strict=True):
                if path != _log_path(self._next):
                    raise StoreError(f"the commit {_log_path(self._next)} is missing")
                puts, deletes = self._checked(data, path)
                self._apply(puts, deletes)
                written |= puts
        return written

    def _checked(self, data: bytes | None, path: str) -> tuple[dict[str, Value], list[str]]:
        if data is None:
            raise StoreError(f"the commit {path} is missing")
        try:
            return unpack(data, path)
        except DamageError as error:
            raise StoreError(f"damaged: {error}") from error

    async def _snapshot(self) -> None:
        """Write all entries in one object, and remove the snapshots and commits that it replaces."""
        made = f"snapshot/{self._next:020}"
        await self._put(made, pack(self._values))
        old = [path for path in await self._list("snapshot/") if path < made]
        # Readers that are between the last snapshot and its commits still find them.
        kept = _log_path(max(0, self._next - _LOG_PER_SNAPSHOT))
        await self._remove([*old[:-1], *(path for path in await self._list("log/") if path < kept)])
        self._since_snapshot = 0

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        return self._lock(name)

    @asynccontextmanager
    async def _lock(self, name: str) -> AsyncIterator[None]:
        path = f"lock/{sha256(name.encode()).hexdigest()[:32]}"
        tag = await self._take(name, path)
        self._leases[name] = time.time() + self.lease
        renewing = asyncio.ensure_future(self._renew(name, path, tag))
        try:
            await self._first_read()
            async with self._turn:
                await self._follow()
            yield
        finally:
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewing
            if self._leases.pop(name) > time.time():
                await self._remove([path])

    async def _take(self, name: str, path: str) -> str:
        made = await self._create(path, self._lease())
        if made:
            return made
        found = await self._named(_optional(self.objects.get_async(path)))
        if found is None:
            return await self._take(name, path)
        held = json.loads(bytes(await found.bytes_async()))
        if held["until"] > time.time():
            raise StoreBusyError(f"{name} is in use by {held['holder']}")
        made = await self._create(path, self._lease(), found.meta["e_tag"])
        if not made:
            raise StoreBusyError(f"{name} is in use: another process took it at the same time")
        return made

    async def _renew(self, name: str, path: str, tag: str) -> None:
        while tag and self._leases[name]:
            await asyncio.sleep(self.lease / 3)
            until = time.time() + self.lease
            with contextlib.suppress(StoreError):
                tag = await self._create(path, self._lease(), tag)
                if tag and self._leases[name]:
                    self._leases[name] = until

    def _lease(self) -> bytes:
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        return json.dumps({"holder": holder, "until": time.time() + self.lease}).encode()

    async def estimate(self) -> tuple[int, int | None]:
        await self._first_read()
        sizes = (v.size if isinstance(v, Elsewhere) else len(v) for v in self._values.values())
        return sum(sizes) + sum(map(len, self._values)), None

    # obstore's operations, with our errors.

    async def _create(self, path: str, data: bytes, replacing: str | None = None) -> str:
        """Write an object that does not exist, or has the tag `replacing`; its tag, or "" if refused."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if replacing is None else {"e_tag": replacing}
        try:
            made = await self.objects.put_async(path, data, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            return ""
        except Exception as error:
            raise self._translate(error) from error
        return str(made["e_tag"])

    async def _put(self, path: str, data: bytes) -> None:
        await self._named(self.objects.put_async(path, bytes(data)))

    async def _fetch(self, path: str) -> bytes | None:
        found = await self._named(_optional(self.objects.get_async(path)))
        return None if found is None else bytes(await self._named(found.bytes_async()))

    async def _list(self, prefix: str, after: str = "") -> list[str]:
        stream = self.objects.list(prefix, offset=after or None)
        return sorted(item["path"] for item in await self._named(stream.collect_async()))

    async def _remove(self, paths: list[str]) -> None:
        """Delete objects that nothing refers to; one that stays does no harm."""
        with contextlib.suppress(StoreError):
            for start in range(0, len(paths), 1000):
                await self._named(self.objects.delete_async(paths[start : start + 1000]))

    async def _all(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        return list(await asyncio.gather(*calls))

    async def _named(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except Exception as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> StoreError:
        return StoreError(f"{self.objects}: {str(error).splitlines()[0]}")


def _log_path(number: int) -> str:
    return f"log/{number:020}"


async def _optional(call: Awaitable[T]) -> T | None:
    try:
        return await call
    except FileNotFoundError:
        return None
