"""All sessions of a store: list, delete, verify, make room.  Lists read one small row per session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from webkv.checkpoint.blobs import digest_of
from webkv.checkpoint.journal import walk
from webkv.checkpoint.prefix import PageRef, PrefixEntry, blob_key, holder_key, page_key
from webkv.checkpoint.record import LAYOUTS, Kind, pack_json, seal, seed_of, unpack_json, unseal
from webkv.checkpoint.refs import PageId, alone, page_refs, release, sweep
from webkv.checkpoint.stores import SessionLock, Store, items
from webkv.errors import DamageError, StoreBusyError


@dataclass(frozen=True)
class Summary:
    """What a list shows of a session; the journal is the truth.  Times are seconds since 1970."""

    id: str
    created: float = 0.0
    used: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    end: str | None = None
    page_bytes: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    damage: str | None = None

    def puts(self) -> dict[str, bytes]:
        """The store's entry for it."""
        key = f"m/{self.id}"
        facts = {name: value for name, value in self.facts.items() if name != LAYOUTS}
        data = {
            "created": self.created, "used": self.used, "tokens": self.tokens, "end": self.end,
            "prompt_tokens": self.prompt_tokens, "page_bytes": self.page_bytes, "facts": facts,
        }  # fmt: skip
        return {key: seal(Kind.SUMMARY, 0, pack_json(data), seed_of(key))}


def _summary(key: str, data: bytes) -> Summary:
    session = key.removeprefix("m/")
    try:
        kind, payload = unseal(data, seed_of(key), 0, key)
        if kind is not Kind.SUMMARY:
            raise DamageError(f"{key}: found a {kind.name.lower()} record, expected a summary")
        return Summary(id=session, **unpack_json(payload))
    except (DamageError, ValueError, TypeError) as error:
        return Summary(session, damage=str(error))


async def sessions(store: Store) -> list[Summary]:
    """All sessions, the most recently used first."""
    found = [_summary(key, data) for key, data in await items(store, "m/")]
    return sorted(found, key=lambda summary: (-summary.used, summary.id))


async def unlisted(store: Store) -> list[Summary]:
    """Sessions that `sessions` does not know because their summary is lost.  Reads all sessions' keys."""
    known = {key.removeprefix("m/") for key in await store.keys("m/")}
    found = dict.fromkeys(key.split("/", 2)[1] for key in await store.keys("s/"))
    return [Summary(id, damage="its summary is missing") for id in found if id not in known]


async def delete(store: Store, session: str) -> None:
    """Remove a session, and the page bytes that no other one uses.

    Raises `StoreBusyError` while it is in use.
    """
    async with SessionLock(store, session), alone(store):
        refs, _ = await page_refs(store, session)
        gone = await release(store, session, refs)
        rows = await store.keys(f"s/{session}/")
        await store.commit({}, [*gone, *rows, f"m/{session}"])
        await sweep(store, refs.values())


async def evict(store: Store, nbytes: int) -> int:
    """Free page bytes of the least recently used sessions until `nbytes` are gone; returns how many are.

    Sessions in use stay whole; the others' journals stay, so they resume by replay.  A session loses its last
    pages first: without them its first ones are still good.
    """
    async with alone(store):
        return await make_room(store, nbytes)


async def make_room(store: Store, nbytes: int, keep: str = "") -> int:
    """As `evict`, of all sessions but `keep`, for a caller that is `alone` already."""
    freed = 0
    for summary in reversed(await sessions(store)):
        if freed >= nbytes:
            break
        if summary.id == keep:
            continue
        try:
            async with SessionLock(store, summary.id):
                freed += await _evict(store, summary, nbytes - freed)
        except StoreBusyError:
            continue
    return freed


async def _evict(store: Store, summary: Summary, nbytes: int) -> int:
    session, freed = summary.id, 0
    refs, _ = await page_refs(store, session)
    chosen: dict[PageId, PageRef] = {}
    for page in sorted(refs, key=lambda page: -page[1]):
        if freed >= nbytes:
            break
        chosen[page] = ref = refs[page]
        if await store.keys(f"r/{ref.digest.hex()}/") == [holder_key(ref.digest, session, *page)]:
            freed += ref.nbytes
    if freed:
        left = sum(ref.nbytes for page, ref in refs.items() if page not in chosen)
        puts = {} if summary.damage else replace(summary, page_bytes=left).puts()
        await store.commit(puts, await release(store, session, chosen))
        await sweep(store, chosen.values())
    return freed


@dataclass(frozen=True)
class Verdict:
    """What `verify` found in one session: its usable rows, pages, and everything that is wrong."""

    id: str
    tokens: int
    pages: int
    problems: tuple[str, ...]


async def verify(store: Store, session: str) -> Verdict:
    """Read and check all of a session: every row and every page's bytes.  Changes nothing."""
    problems = []
    try:
        walked = await walk(store, session)
    except DamageError as error:
        return Verdict(session, 0, 0, (str(error),))
    if walked.damage:
        problems.append(walked.damage)
    refs, damaged = await page_refs(store, session)
    problems += [f"{key}: damaged page reference" for key in damaged]
    good = 0
    for (group, block), ref in sorted(refs.items()):
        data = await store.get(blob_key(ref.digest))
        if data is None or await digest_of(data) != ref.digest:
            if not await store.keys(page_key(session, group, block)):
                continue  # a session in use let go of it meanwhile
            what = "is missing" if data is None else "does not fit its digest"
            problems.append(f"page {block} of layer group {group!r} {what}")
        else:
            good += 1
    return Verdict(session, len(walked.transcript.tokens), good, tuple(problems))


async def collect(store: Store) -> int:
    """Delete page bytes without holder, holders without session, and index entries without page bytes.

    Returns the number of entries deleted.  Commits are atomic, so only damage and races between processes
    leave such entries.
    """
    async with alone(store):
        return await _collect(store)


async def _collect(store: Store) -> int:
    # In this order, or what another process commits meanwhile would seem to lack what it was committed with.
    index = await items(store, "x/")
    blobs = {key.removeprefix("p/") for key in await store.keys("p/")}
    holders = await store.keys("r/")
    live = set(await store.keys("s/"))
    gone = []
    held = set()
    for key in holders:
        _, digest, reference = key.split("/", 2)
        session, _, page = reference.partition("/")
        if f"s/{session}/p/{page}" in live:
            held.add(digest)
        else:
            gone.append(key)
    gone += [f"p/{digest}" for digest in sorted(blobs - held)]
    kept = blobs & held
    for key, data in index:
        if PrefixEntry.digest_in(data).hex() not in kept:
            gone.append(key)
    if gone:
        await store.commit({}, gone)
    return len(gone)
