"""The page bytes and references of one session in the store: one commit at a time."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from webkv.checkpoint.identity import Identity
from webkv.checkpoint.prefix import PageRef, PrefixEntry, blob_key, holder_key, index_key, page_key
from webkv.checkpoint.refs import PageId, alone, release, stored_page_bytes, sweep
from webkv.checkpoint.stores import Store, payload_bytes
from webkv.errors import DamageError, StoreFullError

_WORTH_A_THREAD = 1 << 16

MakeRoom = Callable[[int], Awaitable[int]]
"""Frees page bytes, at least as many as asked for if it can; returns how many."""


async def digest_of(data: bytes) -> bytes:
    """SHA-256 of a page; in a thread where there are threads, since it takes ~1 ms per MB."""
    if len(data) < _WORTH_A_THREAD or sys.platform == "emscripten":
        return hashlib.sha256(data).digest()
    import asyncio

    return await asyncio.to_thread(lambda: hashlib.sha256(data).digest())


@dataclass(frozen=True)
class FullPage:
    """A page to store: its place, its names (`prefix.py`), its tokens' modes and its bytes."""

    page: PageId
    chain: bytes
    variant: bytes
    modes: bytes
    data: bytes
    digest: bytes


class Blobs:
    """What is to change in a session's stored pages, and the commits that do it.

    `dropped`: references to let go of.  `adopted`: references to pages that are stored already.  `junk`: keys
    to delete.  `condemned`: digests whose bytes are damaged, to be deleted or written anew.  They stay until
    a commit has succeeded.  `taken`: pages whose bytes went with another session before they were adopted.
    """

    def __init__(
        self, store: Store, session: str, identity: Identity, cap: int | None, make_room: MakeRoom | None
    ) -> None:
        self.store = store
        self.session = session
        self.identity = identity
        self.dropped: dict[PageId, PageRef] = {}
        self.adopted: dict[PageId, PageRef] = {}
        self.junk: set[str] = set()
        self.condemned: set[bytes] = set()
        self.taken: dict[PageId, PageRef] = {}
        self.bytes_written = 0
        self._cap = cap
        self._stored: int | None = None
        self._make_room = make_room

    @property
    def waiting(self) -> bool:
        """Whether a commit without new pages has something to do."""
        return bool(self.dropped or self.adopted or self.junk or self.condemned)

    async def commit(self, ready: Iterable[FullPage]) -> dict[PageId, PageRef]:
        """Store pages, and all that waits; returns the new pages' references.

        Raises `StoreFullError` when there is no room in the store, or under the cap, and none could be made.
        """
        pages = list(ready)
        async with alone(self.store):
            while True:
                try:
                    return await self._commit_all(pages)
                except StoreFullError as error:
                    # Room may be made of pages that were there to refer to, so look at all again.
                    if self._make_room is None or not await self._make_room(error.needed or 1):
                        raise

    async def _commit_all(self, ready: Sequence[FullPage]) -> dict[PageId, PageRef]:
        dropped, adopted, junk = dict(self.dropped), dict(self.adopted), set(self.junk)
        condemned = set(self.condemned)
        puts, refs = await self.entries(ready)
        taken = await self._taken(adopted, puts)
        for page, ref in adopted.items():
            puts |= {} if page in taken else self._ref_puts(page, ref)
        kept = {ref.digest for ref in (*refs.values(), *adopted.values())}
        gone = [*await release(self.store, self.session, dropped, kept), *junk, *map(blob_key, condemned)]
        deletes = [key for key in dict.fromkeys(gone) if key not in puts]
        await self._under_cap(sum(len(data) for key, data in puts.items() if key.startswith("p/")))
        try:
            await self.store.commit(puts, deletes, "relaxed")
        except StoreFullError as error:
            error.needed = error.needed or payload_bytes(puts)
            raise
        self.junk -= junk
        self.condemned -= condemned
        self.taken |= {page: adopted[page] for page in taken}
        for done, there in ((dropped, self.dropped), (adopted, self.adopted)):
            for page, ref in done.items():
                if there.get(page) == ref:
                    del there[page]
        self.bytes_written += payload_bytes(puts)
        await sweep(self.store, dropped.values())
        return refs

    async def _taken(self, adopted: Mapping[PageId, PageRef], puts: Collection[str]) -> set[PageId]:
        """The adopted pages whose bytes neither are stored any more nor are about to be."""
        there = {*puts, *await self.store.keys("p/")} if adopted else set()
        return {page for page, ref in adopted.items() if blob_key(ref.digest) not in there}

    async def _under_cap(self, nbytes: int) -> None:
        """Raise `StoreFullError` if there is no room for `nbytes` more of pages."""
        if self._cap is None or not nbytes:
            return
        if self._stored is None or self._stored + nbytes > self._cap:
            self._stored = await stored_page_bytes(self.store)
        over = self._stored + nbytes - self._cap
        if over > 0:
            raise StoreFullError(f"stored pages have reached their cap of {self._cap} bytes", over)
        self._stored += nbytes

    async def entries(self, ready: Iterable[FullPage]) -> tuple[dict[str, bytes], dict[PageId, PageRef]]:
        """Entries for pages; bytes and index entries that are stored already are not written again."""
        puts: dict[str, bytes] = {}
        refs = {}
        for full in ready:
            ref, index = PageRef(full.digest, full.chain, len(full.data)), index_key(full.chain)
            puts |= self._ref_puts(full.page, ref)
            blob = blob_key(full.digest)
            if full.digest in self.condemned or not await self.store.keys(blob):
                puts[blob] = full.data
            if not await self._indexed(index):
                puts[index] = PrefixEntry(full.digest, len(full.data), full.variant, full.modes).pack(index)
            refs[full.page] = ref
        return puts, refs

    def _ref_puts(self, page: PageId, ref: PageRef) -> dict[str, bytes]:
        key = page_key(self.session, *page)
        return {key: ref.pack(key), holder_key(ref.digest, self.session, *page): b""}

    async def _indexed(self, index: str) -> bool:
        """Whether the index has a usable page under this key."""
        data = await self.store.get(index)
        if data is None:
            return False
        try:
            entry = PrefixEntry.unpack(index, data, self.identity.page_tokens)
        except DamageError:
            return False
        return entry.digest not in self.condemned and bool(await self.store.keys(blob_key(entry.digest)))
