"""Opening a session whose pages are laid out differently: their bytes move, their values do not.

Another page size, axis order or packing costs a copy then instead of computing everything anew.  Another
dtype changes values, so it is not done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from webkv.checkpoint.blobs import FullPage, digest_of
from webkv.checkpoint.identity import Identity
from webkv.checkpoint.journal import walk
from webkv.checkpoint.prefix import Chains, blob_key, variants
from webkv.checkpoint.record import mode_runs
from webkv.checkpoint.refs import PageId, page_refs
from webkv.checkpoint.session import Session
from webkv.checkpoint.status import Options
from webkv.checkpoint.stores import Store
from webkv.errors import DamageError, IdentityError, LayoutError
from webkv.layout import Held, PageLayout, declaration, layout_id, parse, plan

Layouts = Mapping[str, PageLayout]
"""The declared page of each layer group."""


async def open_relaid(
    store: Store, id: str, identity: Identity, layouts: Layouts, *, options: Options | None = None
) -> Session:
    """`Session.open` of a session that differs from `identity` in page layout only, its pages copied over.

    The session must have been created with the fact `layouts`, made by `facts_of`.  Pages that are missing
    or damaged, or that no plan maps exactly, are left to be computed.  Raises `IdentityError` if anything but
    layouts differs.
    """
    walked = await walk(store, id)
    theirs, modes = walked.transcript.identity, bytes(walked.transcript.modes)
    assert theirs is not None
    _same_but_layout(theirs, identity).require(identity)
    old = _declared(walked.transcript.facts.get("layouts"), theirs)
    pages = await _read(store, id, theirs)
    facts = facts_of(layouts)
    session = await Session.open(store, id, identity, recompute=True, facts=facts, options=options)
    if session.transcript.computed:
        return session  # nothing differs
    try:
        blocks: dict[PageId, bytes] = {}
        for group in identity.groups:
            held = {block: data for (name, block), data in pages.items() if name == group.name}
            blocks |= {
                (group.name, block): data
                for block, data in _convert(held, old[group.name], layouts[group.name], len(modes)).items()
            }
        await session.add_pages(mode_runs(modes), await _full(session, blocks, modes))
    except BaseException:
        await session.close()
        raise
    return session


def facts_of(layouts: Layouts) -> dict[str, Any]:
    """What a session's facts must say for its pages to be converted later."""
    return {"layouts": {group: declaration(layout) for group, layout in layouts.items()}}


def _same_but_layout(theirs: Identity, ours: Identity) -> Identity:
    """`theirs` with our layouts."""
    if [group.name for group in theirs.groups] != [group.name for group in ours.groups]:
        return theirs
    groups = tuple(
        replace(mine, layout_id=other.layout_id, page_bytes=other.page_bytes)
        for mine, other in zip(theirs.groups, ours.groups, strict=True)
    )
    return replace(theirs, groups=groups, page_tokens=ours.page_tokens)


def _declared(found: object, theirs: Identity) -> dict[str, PageLayout]:
    """The stored declarations, which must be what the identity's ids name."""
    if not isinstance(found, Mapping):
        raise IdentityError("layout", "no declaration of its own", "one to convert from")
    layouts = {}
    for group in theirs.groups:
        try:
            layouts[group.name] = parse(found.get(group.name))
        except LayoutError as error:
            raise DamageError(f"declared layout of layer group {group.name!r}: {error}") from None
        if layout_id(layouts[group.name]) != group.layout_id:
            raise IdentityError("declared layout", layout_id(layouts[group.name]), group.layout_id)
    return layouts


async def _read(store: Store, id: str, identity: Identity) -> dict[PageId, bytes]:
    """The stored pages that verify."""
    refs, _ = await page_refs(store, id)
    names = [group.name for group in identity.groups]
    pages = {}
    for page, ref in refs.items():
        data = await store.get(blob_key(ref.digest))
        if page[0] in names and data is not None and await digest_of(data) == ref.digest:
            pages[page] = data
    return pages


def _convert(held: Mapping[int, bytes], old: PageLayout, new: PageLayout, tokens: int) -> dict[int, bytes]:
    """The full pages of `new` all of whose tokens are in full pages of `old`."""
    made = {}
    for block in range(tokens // new.page_tokens):
        start, stop = block * new.page_tokens, (block + 1) * new.page_tokens
        if all(page in held for page in range(start // old.page_tokens, -(-stop // old.page_tokens))):
            try:
                made[block] = _page(held, old, new, start, stop)
            except LayoutError:
                return {}
    return made


def _page(held: Mapping[int, bytes], old: PageLayout, new: PageLayout, start: int, stop: int) -> bytes:
    page = bytearray(new.page_bytes)
    from_pool = [sum(old.slot_bytes[:pool]) for pool in range(len(old.slot_bytes))]
    to_pool = [sum(new.slot_bytes[:pool]) for pool in range(len(new.slot_bytes))]
    for run in plan([(old, Held())], [(new, Held())], (start, stop)):
        source = from_pool[run.src_pool] + run.src_offset
        target = to_pool[run.dst_pool] + run.dst_offset
        page[target : target + run.nbytes] = held[run.src_page][source : source + run.nbytes]
    return bytes(page)


async def _full(session: Session, blocks: Mapping[PageId, bytes], modes: bytes) -> list[FullPage]:
    size = session.identity.page_tokens
    chains, kinds = Chains(session.identity), variants(modes, size)
    chains.extend(session.transcript.tokens)
    made = []
    for (group, block), data in blocks.items():
        own = modes[block * size : (block + 1) * size]
        digest = await digest_of(data)
        made.append(FullPage((group, block), chains.keys[group][block], kinds[block], own, data, digest))
    return made
