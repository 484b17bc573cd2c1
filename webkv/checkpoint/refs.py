"""Which stored pages a session refers to, and letting go of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from webkv.checkpoint.prefix import PageRef, blob_key, holder_key, index_key, page_key
from webkv.checkpoint.stores import PatientStore, Store, items
from webkv.errors import DamageError, StoreError

PageId = tuple[str, int]
"""(layer group, block): a page of a sequence."""

# By the ids of an event loop and a store, both alive as long as someone has the lock or waits for it.
_locks: WeakValueDictionary[tuple[int, int], asyncio.Lock] = WeakValueDictionary()


@asynccontextmanager
async def alone(store: Store) -> AsyncIterator[None]:
    """Held from reading who has which pages until what follows from it is committed.

    Sessions of one process take turns, so that none deletes what another is about to refer to, or leaves
    bytes to one that leaves them too.  Between processes `sweep` sees to it, and after a crash `collect`.
    Raises `StoreError` when its turn does not come within the patience of a `PatientStore`.
    """
    patience = store.patience if isinstance(store, PatientStore) else None
    while isinstance(inner := getattr(store, "inner", None), Store):
        store = inner
    lock = _locks.setdefault((id(asyncio.get_running_loop()), id(store)), asyncio.Lock())
    try:
        async with asyncio.timeout(patience):
            await lock.acquire()
    except TimeoutError:
        raise StoreError(f"the store has not answered others for {patience:g} s") from None
    try:
        yield
    finally:
        lock.release()


async def page_refs(store: Store, session: str) -> tuple[dict[PageId, PageRef], list[str]]:
    """A session's stored page references, and the keys of those that are damaged."""
    refs: dict[PageId, PageRef] = {}
    damaged = []
    for key, data in await items(store, f"s/{session}/p/"):
        group, _, block = key.removeprefix(f"s/{session}/p/").rpartition("/")
        try:
            page = (group, int(block))
            if page_key(session, *page) != key:
                raise ValueError(key)
            refs[page] = PageRef.unpack(key, data)
        except (DamageError, ValueError):
            damaged.append(key)
    return refs, damaged


async def release(
    store: Store, session: str, pages: Mapping[PageId, PageRef], kept: Collection[bytes] = ()
) -> list[str]:
    """The keys to delete so that `session` lets go of `pages`: with the bytes, where nobody else has them.

    `kept`: digests that are about to be referred to.  Call `sweep` after the commit.
    """
    deletes = []
    mine: dict[bytes, set[str]] = {}
    for (group, block), ref in pages.items():
        deletes.append(page_key(session, group, block))
        mine.setdefault(ref.digest, set()).add(holder_key(ref.digest, session, group, block))
    for holders in mine.values():
        deletes += sorted(holders)
    return deletes + await _unheld(store, [ref for ref in pages.values() if ref.digest not in kept], mine)


async def sweep(store: Store, pages: Collection[PageRef]) -> None:
    """Delete the bytes of released pages if two holders let go at once, each seeing the other."""
    gone = await _unheld(store, pages, {})
    if gone:
        await store.commit({}, gone, "relaxed")


async def _unheld(store: Store, refs: Collection[PageRef], but: Mapping[bytes, Collection[str]]) -> list[str]:
    """Keys of the bytes, and of their index entries, that no keys but those `but` hold."""
    keys: dict[str, None] = {}
    for ref in refs:
        blob, index = blob_key(ref.digest), index_key(ref.chain)
        others = set(await store.keys(f"r/{ref.digest.hex()}/")) - set(but.get(ref.digest, ()))
        if not others and await store.keys(blob):
            keys[blob] = None
        if await _same_chain(store, others, ref.chain):
            continue
        if ref.digest in (await store.get(index) or b""):
            keys[index] = None
    return list(keys)


async def _same_chain(store: Store, holders: Collection[str], chain: bytes) -> bool:
    """Whether a holder has its page for these tokens; equal bytes may be of another namespace or layout."""
    for holder in sorted(holders):
        session, group, block = holder.rsplit("/", 3)[1:]
        key = page_key(session, group, int(block))
        data = await store.get(key)
        with contextlib.suppress(DamageError):
            if data is not None and PageRef.unpack(key, data).chain == chain:
                return True
    return False


async def stored_page_bytes(store: Store) -> int:
    """Bytes of all pages that sessions refer to, shared ones once."""
    sizes: dict[bytes, int] = {}
    for key in await store.keys("m/"):
        refs, _ = await page_refs(store, key.removeprefix("m/"))
        sizes.update((ref.digest, ref.nbytes) for ref in refs.values())
    return sum(sizes.values())
