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
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from typing import Any

from webkv.checkpoint.bucket import Bucket
from webkv.checkpoint.objectlog import Elsewhere, Value, pack, unpack
from webkv.checkpoint.stores import DURABILITIES, Durability
from webkv.errors import DamageError, StoreBusyError, StoreError

_LARGE = 64 << 10
_LOG_PER_SNAPSHOT = 256
_READS_AT_ONCE = 16


class ObjectStore:
    """A `Store` in the bucket `objects`, an obstore store (`obstore.store.S3Store`, ...; see `open_url`).

    Other processes' commits are seen when a lock is taken and when this one commits.  `lease`: seconds after
    which a lock that is not renewed is free; holders' clocks may differ by a third of it.
    """

    def __init__(self, objects: Any, lease: float = 30.0) -> None:
        self._bucket = Bucket(objects)
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
        return str(self._bucket)

    async def __aenter__(self) -> ObjectStore:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """See `Bucket.close`."""
        await self._bucket.close()

    async def get(self, key: str) -> bytes | None:
        await self._first_read()
        value = self._values.get(key)
        return await self._bucket.fetch(value.path) if isinstance(value, Elsewhere) else value

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
        large = [(key, value.path) for key, value in values.items() if isinstance(value, Elsewhere)]
        await asyncio.gather(*(self._bucket.put(path, puts[key]) for key, path in large))
        if not self._next:
            await self._require_conditions()
        data = pack(values, deletes)
        while not await self._bucket.create(_log_path(self._next), data):
            self._notice_overtaking(await self._follow(), values)
            self._require_leases(puts)
        old = [self._values.get(key) for key in (*deletes, *values)]
        self._apply(values, deletes)
        await self._bucket.remove([value.path for value in old if isinstance(value, Elsewhere)])
        if self._since_snapshot >= _LOG_PER_SNAPSHOT:
            await self._snapshot()

    async def _require_conditions(self) -> None:
        """Raise `StoreError` if the server overwrites what may only be created: it could lose commits."""
        made = [await self._bucket.create("conditions", b"created once") for _ in range(2)]
        if made[1]:
            raise StoreError(
                f"{self}: this server ignores conditional writes (If-None-Match), which are needed"
            )

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
            snapshots = await self._bucket.list("snapshot/")
            if snapshots:
                data = await self._bucket.fetch(snapshots[-1])
                self._values, _ = self._checked(data, snapshots[-1])
                self._next = int(snapshots[-1].rpartition("/")[2])
            await self._follow()
            self._read = True

    async def _follow(self) -> dict[str, Value]:
        """Apply all commits after the last one known; returns what they wrote."""
        written: dict[str, Value] = {}
        paths = await self._bucket.list("log/", after=_log_path(self._next - 1) if self._next else "")
        for start in range(0, len(paths), _READS_AT_ONCE):
            part = paths[start : start + _READS_AT_ONCE]
            for path, data in zip(part, await asyncio.gather(*map(self._bucket.fetch, part)), strict=True):
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
        await self._bucket.put(made, pack(self._values))
        old = [path for path in await self._bucket.list("snapshot/") if path < made]
        # Readers that are between the last snapshot and its commits still find them.
        kept = _log_path(max(0, self._next - _LOG_PER_SNAPSHOT))
        replaced = [path for path in await self._bucket.list("log/") if path < kept]
        await self._bucket.remove([*old[:-1], *replaced])
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
                await self._bucket.remove([path])

    async def _take(self, name: str, path: str) -> str:
        made = await self._bucket.create(path, self._lease())
        if made:
            return made
        found = await self._bucket.fetch_tagged(path)
        if found is None:
            return await self._take(name, path)
        held = json.loads(found[0])
        if held["until"] > time.time():
            raise StoreBusyError(f"{name} is in use by {held['holder']}")
        made = await self._bucket.create(path, self._lease(), found[1])
        if not made:
            raise StoreBusyError(f"{name} is in use: another process took it at the same time")
        return made

    async def _renew(self, name: str, path: str, tag: str) -> None:
        while tag and self._leases[name]:
            await asyncio.sleep(self.lease / 3)
            until = time.time() + self.lease
            with contextlib.suppress(StoreError):
                tag = await self._bucket.create(path, self._lease(), tag)
                if tag and self._leases[name]:
                    self._leases[name] = until

    def _lease(self) -> bytes:
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        return json.dumps({"holder": holder, "until": time.time() + self.lease}).encode()

    async def compact(self) -> None:
        """Write one snapshot in place of the commits so far."""
        await self._first_read()
        async with self._turn:
            await self._follow()
            await self._snapshot()

    async def estimate(self) -> tuple[int, int | None]:
        await self._first_read()
        sizes = (v.size if isinstance(v, Elsewhere) else len(v) for v in self._values.values())
        return sum(sizes) + sum(map(len, self._values)), None


def _log_path(number: int) -> str:
    return f"log/{number:020}"
