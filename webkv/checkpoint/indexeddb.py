"""The browser's store: one IndexedDB database, one transaction per commit, one Web Lock per session.

Page blobs lie in the database too.  Against a file each in the origin's private file system, a transaction
takes as long for blobs of this size (0.1 to 1 MB: a few ms, off the token path), and needs no second commit.
`strict` asks the browser to flush to disk before a commit is over, `relaxed` leaves that to the system.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from pyodide.code import run_js

from webkv.checkpoint.stores import DURABILITIES, Durability, payload_bytes
from webkv.errors import StoreBusyError, StoreError, StoreFullError
from webkv.gpu.shaders import packaged_folder

_js = run_js((packaged_folder("web") / "indexeddb.js").read_text(encoding="utf-8"))

_ADVICE = {
    "VersionError": "it was made by a newer webkv: reload the page to get the newer one",
    "BlockedError": "another tab holds an older version open: close the other tabs of this page",
    "NotFoundError": "it is not a database of webkv: clear this site's data in the browser's settings",
    "SecurityError": "the browser blocks storage for this site: allow site data (cookies) for it",
    "InvalidStateError": "the browser closed it, as in private windows and after site data was cleared: "
    "reload the page",
    "NotSupportedError": "the page must be opened through https or http://localhost",
}


class IndexedDBStore:
    """A `Store` in the page's IndexedDB database `name`, opened at the first use.

    Values are `Uint8Array`s under text keys.  What the site may store in all is the browser's decision; see
    `estimate`.  Raises `StoreError` with advice when the browser blocks storage or the schema is newer.
    """

    def __init__(self, name: str = "webkv") -> None:
        self.name = name
        self._db: Any = None

    async def __aenter__(self) -> IndexedDBStore:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        if self._db is not None:
            self._db.close()
            self._db = None

    async def delete_all(self) -> None:
        """Remove the whole database: every session and page."""
        self.close()
        self._value(await _js.remove(self.name))

    async def get(self, key: str) -> bytes | None:
        found = await self._call(_js.get, key)
        return None if found is None else found.to_bytes()

    async def keys(self, prefix: str) -> list[str]:
        # Sorted again here: IndexedDB orders UTF-16 units, Python code points.
        return sorted(json.loads(await self._call(_js.keys, prefix)))

    async def items(self, prefix: str) -> list[tuple[str, bytes]]:
        """All `(key, value)` under `prefix`, sorted by key, read in one transaction."""
        keys, sizes, joined = await self._call(_js.items, prefix)
        data, at, found = joined.to_bytes(), 0, []
        for key, size in zip(json.loads(keys), json.loads(sizes), strict=True):
            found.append((key, data[at : at + size]))
            at += size
        return sorted(found)

    async def commit(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), durability: Durability = "strict"
    ) -> None:
        assert durability in DURABILITIES, durability
        keys = json.dumps(list(puts))
        sizes = json.dumps([len(value) for value in puts.values()])
        joined = b"".join(puts.values())
        gone = json.dumps(list(deletes))
        needed = payload_bytes(puts)
        await self._call(_js.commit, keys, sizes, joined, gone, durability, needed=needed)

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        return self._lock(name)

    @asynccontextmanager
    async def _lock(self, name: str) -> AsyncIterator[None]:
        release = self._value(await _js.lock(f"{self.name}:{name}"))
        if release is None:
            raise StoreBusyError(f"{name} is in use in another tab or window of this browser")
        try:
            yield
        finally:
            await release()

    async def estimate(self) -> tuple[int, int | None]:
        """Bytes used by this site, models included, and bytes that it may use (None: not told)."""
        used, quota = self._value(await _js.estimate())
        return int(used), None if quota < 0 else int(quota)

    async def _open(self) -> Any:
        if self._db is None:
            self._db = self._value(await _js.open(self.name))
        return self._db

    async def _call(self, function: Any, *arguments: Any, needed: int | None = None) -> Any:
        answer = await function(await self._open(), *arguments)
        if answer[0] == "InvalidStateError":  # closed under us, as for an upgrade in another tab
            self._db = None
            answer = await function(await self._open(), *arguments)
        return self._value(answer, needed)

    def _value(self, answer: Any, needed: int | None = None) -> Any:
        name, message, value = answer
        if not name:
            return value
        if name == "QuotaExceededError":
            raise StoreFullError(
                "the browser gives this site no more room: delete sessions or models", needed
            )
        if "denied permission" in message:  # Chromium's word for it comes as an UnknownError
            name = "SecurityError"
        advice = _ADVICE.get(name, "reload the page")
        raise StoreError(f"the browser's database {self.name!r} failed ({name}: {message}); {advice}")
