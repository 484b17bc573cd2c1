"""Page bytes on their way to the store, off the token loop's path.

A page is copied out of the cache when it becomes full and committed once, named by the digest of its bytes.
Pages are committed `relaxed` and apart from the journal: one that is lost costs recompute, nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from webkv.checkpoint.blobs import Blobs, FullPage, MakeRoom, digest_of
from webkv.checkpoint.identity import Identity
from webkv.checkpoint.journal import Retry, as_store_error
from webkv.checkpoint.prefix import Chains, PageRef, blob_key, variants
from webkv.checkpoint.refs import PageId, page_refs
from webkv.checkpoint.stores import Store
from webkv.errors import DeviceError, StoreError

MOST_IN_FLIGHT = 64 << 20
_MOST_IN_COMMIT = 16


class PageSource(Protocol):
    """Where full pages come from: the cache, through `transfer.py`."""

    def export(self, pages: Sequence[PageId]) -> Sequence[Awaitable[bytes] | None]:
        """Start to copy full pages, before returning, so that later steps cannot change what is copied.

        Awaiting one gives its bytes, all layers of the group in declared order; None for a page that is not
        held any more.
        """
        ...


@dataclass(frozen=True)
class _Export:
    page: PageId
    chain: bytes
    variant: bytes
    modes: bytes
    data: Awaitable[bytes]


class PageWriter:
    """Keeps a session's stored pages in step with its cache: `refs` says what is stored.

    `want` starts exports of what is missing and lets go of what no resume needs any more.  At most
    `MOST_IN_FLIGHT` bytes are on their way at a time.  After a failed commit `error` says why, the pages stay
    in the cache only, and are exported again until it succeeds.
    """

    def __init__(
        self,
        store: Store,
        session: str,
        identity: Identity,
        *,
        cap: int | None = None,
        make_room: MakeRoom | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self.session = session
        self.identity = identity
        self.chains = Chains(identity)
        self.source: PageSource | None = None
        self.refs: dict[PageId, PageRef] = {}
        self.error: StoreError | None = None
        self._blobs = Blobs(store, session, identity, cap, make_room)
        self._changed = changed
        self._modes = b""
        self._held = 0
        self._lost: set[PageId] = set()
        self._exports: list[_Export] = []
        self._active: dict[PageId, _Export] = {}
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._retry = Retry()

    @property
    def pending(self) -> int:
        """Pages on their way."""
        return len(self._active)

    @property
    def bytes_written(self) -> int:
        """Bytes of keys and values given to the store."""
        return self._blobs.bytes_written

    def want(self, tokens: Sequence[int], modes: bytes, held: int | None = None) -> None:
        """The KV of tokens exists as far as `modes` go: store the full pages that a resume needs.

        `held`: the source has so many of these tokens (None: all); a page of the others is not full there.
        """
        self.chains.extend(tokens)
        self._modes = modes
        self._held = len(modes) if held is None else held
        if self.error is None:
            self._export_missing()
            self._drop_unneeded()

    def _drop_unneeded(self) -> None:
        kept = set(self._needed())
        self.drop(page for page in self.refs if page not in kept)

    def truncate(self, length: int) -> None:
        """Tokens from `length` on were taken back: their pages are stored for nothing."""
        full = length // self.identity.page_tokens
        self.chains.truncate(length)
        self._modes = self._modes[:length]
        self.drop(page for page in self.refs if page[1] >= full)
        self._lost = {page for page in self._lost if page[1] < full}
        self._exports = [export for export in self._exports if export.page[1] < full]
        self._active = {page: export for page, export in self._active.items() if page[1] < full}

    def drop(self, pages: Iterable[PageId]) -> None:
        """Let go of stored pages; their bytes go with the next commit unless another session has them."""
        for page in list(pages):
            self._blobs.dropped[page] = self.refs.pop(page)
            self._blobs.adopted.pop(page, None)

    def adopt(self, pages: Mapping[PageId, PageRef]) -> None:
        """Refer to pages that are stored already, as another session's or a parent's."""
        new = {page: ref for page, ref in pages.items() if self.refs.get(page) != ref}
        self.refs.update(new)
        self._blobs.adopted.update(new)
        if new:
            self._start()

    async def add(self, pages: Sequence[FullPage]) -> None:
        """Store pages that were made elsewhere.  Raises `StoreError`."""
        self.refs |= await self._blobs.commit(pages)

    def _forget_taken(self) -> None:
        """Adopted pages that were gone after all are missing: the cache has them, and they are exported."""
        for page, ref in self._blobs.taken.items():
            if self.refs.get(page) == ref:
                del self.refs[page]
        self._blobs.taken.clear()

    def condemn(self, digests: Iterable[bytes]) -> None:
        """Stored bytes that failed their digest: do not refer to them, delete them, write them anew."""
        self._blobs.condemned.update(digests)
        self.drop(page for page, ref in self.refs.items() if ref.digest in self._blobs.condemned)

    async def load(self, tokens: Sequence[int]) -> None:
        """Read the references of a stored session; those not usable go with the next commit."""
        self.chains.extend(tokens)
        found, damaged = await page_refs(self.store, self.session)
        self._blobs.junk.update(damaged)
        there = set(await self.store.keys("p/")) if found else set()
        for page, ref in found.items():
            keys = self.chains.keys.get(page[0], [])
            fits = page[1] < len(keys) and keys[page[1]] == ref.chain
            (self.refs if fits and blob_key(ref.digest) in there else self._blobs.dropped)[page] = ref

    async def room(self) -> None:
        """Wait while as many bytes are on their way as may be; how a fast prefill waits for a slow store."""
        while self.error is None and self._in_flight >= MOST_IN_FLIGHT // 2:
            await self._moved.wait()

    async def flush(self) -> None:
        """Try to store everything that is missing, once; `error` says whether that worked."""
        self._retry.cancel()
        self._export_missing()
        if self._to_try:
            self._start()
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)
        if self._blobs.waiting and self.error is None:
            await self._store([])

    def close(self) -> None:
        """Store nothing more, but for what is on its way already."""
        self._retry.close()
        self.source = None

    def _needed(self) -> list[PageId]:
        """The full pages that going on after the computed tokens may read."""
        size = self.identity.page_tokens
        full = len(self._modes) // size * size
        return [(group.name, block) for group in self.identity.groups for block in group.needed(full, size)]

    @property
    def _in_flight(self) -> int:
        return sum(self.identity.group(group).page_bytes for group, _ in self._active)

    def _missing(self) -> list[PageId]:
        """Pages to export, as many as may be on their way, at least one."""
        found: list[PageId] = []
        room = MOST_IN_FLIGHT - self._in_flight
        for page in self._needed():
            if page in self.refs or page in self._lost or page in self._active:
                continue
            if (page[1] + 1) * self.identity.page_tokens > self._held:
                continue
            room -= self.identity.group(page[0]).page_bytes
            if room < 0 and (found or self._active):
                break
            found.append(page)
        return found

    def _export_missing(self) -> None:
        missing = self._missing() if self.source is not None else []
        if not missing:
            return
        assert self.source is not None
        size = self.identity.page_tokens
        kinds = variants(self._modes, size)
        try:
            exported = self.source.export(missing)
        except DeviceError as error:
            self.source = None
            self._fail(error)
            return
        for page, data in zip(missing, exported, strict=True):
            if data is None:
                self._lost.add(page)
                continue
            group, block = page
            modes = self._modes[block * size : (block + 1) * size]
            export = _Export(page, self.chains.keys[group][block], kinds[block], modes, data)
            self._active[page] = export
            self._exports.append(export)
        self._start()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        while self._exports or self._blobs.adopted or self._to_try:
            batch, self._exports = self._exports[:_MOST_IN_COMMIT], self._exports[_MOST_IN_COMMIT:]
            await self._store(batch)
            self._moved.set()
            self._moved = asyncio.Event()
            if self.error is not None or self._retry.closed:
                return
            self._export_missing()

    @property
    def _to_try(self) -> bool:
        """Whether the store has to be tried even without a page: the one that it refused may be gone."""
        return self.error is not None and self.source is not None

    async def _store(self, batch: list[_Export]) -> None:
        try:
            self.refs |= await self._blobs.commit(await self._ready(batch))
            self._forget_taken()
            self._drop_unneeded()
            self._retry.reset()
            if self.error is not None:
                self.error = None
                self._changed()
        except DeviceError as error:
            self.source = None
            self._fail(error)
        except Exception as error:
            self._fail(error)
            self._retry.later(self._again)
        finally:
            self._finish(batch)

    async def _ready(self, batch: list[_Export]) -> list[FullPage]:
        """The pages of a batch that are still wanted, read and digested."""
        ready = []
        for export in batch:
            data = await export.data
            if export.page not in self._needed():
                continue
            digest = await digest_of(data)
            if self._active.get(export.page) is export:
                ready.append(FullPage(export.page, export.chain, export.variant, export.modes, data, digest))
        return ready

    def _again(self) -> None:
        self._export_missing()
        self._start()

    def _finish(self, batch: list[_Export]) -> None:
        for export in batch:
            if self._active.get(export.page) is export:
                del self._active[export.page]

    def _fail(self, error: Exception) -> None:
        self.error = as_store_error(error)
        self._finish(self._exports)
        self._exports.clear()
        self._changed()
