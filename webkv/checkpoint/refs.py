"""Which stored pages a session refers to, and letting go of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from webkv.checkpoint.prefix import PageRef, blob_key, holder_key, index_key, page_key
from webkv.checkpoint.stores import Store, items
from webkv.errors import DamageError

PageId = tuple[str, int]
"""(layer group, block): a page of a sequence."""


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

    `kept`: digests that are about to be referred to.
    """
    deletes = []
    mine: dict[bytes, set[str]] = {}
    for (group, block), ref in pages.items():
        deletes.append(page_key(session, group, block))
        mine.setdefault(ref.digest, set()).add(holder_key(ref.digest, session, group, block))
    for digest, holders in mine.items():
        deletes += sorted(holders)
        if digest not in kept and holders >= set(await store.keys(f"r/{digest.hex()}/")):
            deletes.append(blob_key(digest))
    freed = set(deletes)
    for ref in pages.values():
        if blob_key(ref.digest) in freed and ref.digest in (await store.get(index_key(ref.chain)) or b""):
            deletes.append(index_key(ref.chain))
    return deletes


async def stored_page_bytes(store: Store) -> int:
    """Bytes of all pages that sessions refer to, shared ones once."""
    sizes: dict[bytes, int] = {}
    for key in await store.keys("m/"):
        refs, _ = await page_refs(store, key.removeprefix("m/"))
        sizes.update((ref.digest, ref.nbytes) for ref in refs.values())
    return sum(sizes.values())
