"""Opening a session whose pages are laid out differently: their bytes move, their values do not.

Another page size, axis order or packing costs a copy then instead of computing everything anew.  Another
dtype is refused: even where values stay, as from f16 to f32, they are not what f32 pages would have held, and
other sessions start from stored pages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from webkv.checkpoint.blobs import FullPage, digest_of
from webkv.checkpoint.identity import Identity
from webkv.checkpoint.journal import walk
from webkv.checkpoint.prefix import Chains, PageRef, blob_key, variants
from webkv.checkpoint.record import LAYOUTS, mode_runs
from webkv.checkpoint.refs import PageId, page_refs
from webkv.checkpoint.session import Session
from webkv.checkpoint.status import Options
from webkv.checkpoint.stores import PatientStore, Store
from webkv.errors import DamageError, IdentityError, LayoutError, StoreError
from webkv.layout import Held, PageLayout, Run, declaration, layout_id, parse, plan

_MOST_LAYERS = 4096

Layouts = Mapping[str, PageLayout]
"""The declared page of each layer group."""


async def open_relaid(
    store: Store, id: str, identity: Identity, layouts: Layouts, *, options: Options | None = None
) -> Session:
    """`Session.open` of a session that differs from `identity` in page layout only, its pages copied over.

    The session must have been created with the fact `layouts`, made by `facts_of`.  Pages that are missing
    or damaged are left to be computed, and so are all if the store has no room for the copies.  Raises
    `IdentityError`, having changed nothing, if anything but layouts differs, if the session does not say how
    its pages read, or if no plan maps them exactly.
    """
    patient = PatientStore(store, (options or Options()).patience)
    walked = await walk(patient, id)
    theirs, modes = walked.transcript.identity, bytes(walked.transcript.modes)
    assert theirs is not None
    if theirs == identity:
        return await Session.open(store, id, identity, options=options)
    _same_but_layout(theirs, identity).require(identity)
    old = _declared(walked.transcript.facts.get(LAYOUTS), theirs)
    for group in identity.groups:
        _require_exact(group.name, old[group.name], layouts[group.name])
    refs, _ = await page_refs(patient, id)
    session = await Session.open(
        store, id, identity, recompute=True, facts=facts_of(layouts), options=options
    )
    try:
        if session.transcript.tokens == walked.transcript.tokens:
            bad: set[bytes] = set()
            made = [full async for full in _converted(session, refs, old, layouts, modes, bad)]
            await session.add_pages(mode_runs(modes), made, bad)
    except StoreError:
        pass  # the session's status says so; what could not be stored is computed
    except BaseException:
        await session.close()
        raise
    return session


def facts_of(layouts: Layouts) -> dict[str, Any]:
    """What a session's facts must say for its pages to be converted later."""
    return {LAYOUTS: {group: _folded(layout) for group, layout in layouts.items()}}


def _folded(layout: PageLayout) -> dict[str, Any]:
    """A declaration: of one layer, where each has an equal slot in a pool of its own; else the whole one."""
    first = [tensor for tensor in layout.tensors if tensor.pool == 0]
    layers = list(dict.fromkeys(tensor.layer for tensor in layout.tensors))
    one = replace(layout, slot_bytes=layout.slot_bytes[:1], tensors=tuple(first))
    try:
        if layout_id(_unfolded(one, layers)) == layout_id(layout):
            return {"layers": layers, "slot": declaration(one)}
    except LayoutError:
        pass
    return declaration(layout)


def _unfolded(one: PageLayout, layers: Sequence[int]) -> PageLayout:
    """The page in which each of `layers` has the slot that `one` declares."""
    tensors = [replace(t, layer=layer, pool=at) for at, layer in enumerate(layers) for t in one.tensors]
    return replace(one, slot_bytes=one.slot_bytes * len(layers), tensors=tuple(tensors))


def _parsed(found: object) -> PageLayout:
    match found:
        case {"layers": [*layers], "slot": slot} if 0 < len(layers) <= _MOST_LAYERS:
            return _unfolded(parse(slot), layers)
    return parse(found)


def _declared(found: object, theirs: Identity) -> dict[str, PageLayout]:
    """The stored declarations, which must be what the identity's ids name."""
    if not isinstance(found, Mapping):
        raise IdentityError("layout", "no declaration of its own", "one to convert from")
    layouts = {}
    for group in theirs.groups:
        try:
            layouts[group.name] = _parsed(found.get(group.name))
        except LayoutError as error:
            raise DamageError(f"declared layout of layer group {group.name!r}: {error}") from None
        if layout_id(layouts[group.name]) != group.layout_id:
            raise IdentityError("declared layout", layout_id(layouts[group.name]), group.layout_id)
    return layouts


def _same_but_layout(theirs: Identity, ours: Identity) -> Identity:
    """`theirs` with our layouts."""
    if [group.name for group in theirs.groups] != [group.name for group in ours.groups]:
        return theirs
    groups = tuple(
        replace(mine, layout_id=other.layout_id, page_bytes=other.page_bytes)
        for mine, other in zip(theirs.groups, ours.groups, strict=True)
    )
    return replace(theirs, groups=groups, page_tokens=ours.page_tokens)


def _require_exact(group: str, old: PageLayout, new: PageLayout) -> None:
    """Raise `IdentityError` unless every byte of `new` is some byte of `old`."""
    found, expected = (", ".join(sorted({t.dtype for t in layout.tensors})) for layout in (old, new))
    if found != expected:
        raise IdentityError(f"layout dtype of layer group {group!r}", found, expected)
    try:
        plan([(old, Held())], [(new, Held())], (0, new.page_tokens))
    except LayoutError as error:
        raise IdentityError(f"layout of layer group {group!r}", layout_id(old), layout_id(new)) from error


async def _converted(
    session: Session,
    refs: Mapping[PageId, PageRef],
    old: Layouts,
    new: Layouts,
    modes: bytes,
    bad: set[bytes],
) -> AsyncIterator[FullPage]:
    """The full pages that a resume needs and whose tokens are all in stored pages that verify.

    `bad` gets the digests of those that do not.
    """
    identity, size = session.identity, session.identity.page_tokens
    chains, kinds = Chains(identity), variants(modes, size)
    chains.extend(session.transcript.tokens)
    length = _length(identity, refs, len(modes), next(iter(old.values())).page_tokens)
    for group in identity.groups:
        mine = {block: ref for (name, block), ref in refs.items() if name == group.name}
        converter = _Converter(session.store, mine, old[group.name], new[group.name], bad)
        for block in group.needed(length, size):
            data = await converter.page(block)
            if data is not None:
                own, digest = modes[block * size : (block + 1) * size], await digest_of(data)
                chain = chains.keys[group.name][block]
                yield FullPage((group.name, block), chain, kinds[block], own, data, digest)


def _length(identity: Identity, refs: Collection[PageId], computed: int, old_size: int) -> int:
    """How many tokens to have pages for: the most for which windowed groups still have what is needed."""
    size, most = identity.page_tokens, computed // old_size * old_size
    windowed = [group for group in identity.groups if group.window is not None]
    for length in range(most // size * size, max(0, most - 3 * old_size), -size):
        blocks = [(group.name, block) for group in windowed for block in group.needed(length, size)]
        if all((name, at // old_size) in refs for name, block in blocks for at in _span(block, size)):
            return length
    return 0


def _span(block: int, size: int) -> range:
    """The tokens of a block."""
    return range(block * size, (block + 1) * size)


class _Converter:
    """Makes pages of one group in layout `new` from stored ones in `old`, asked for in ascending order."""

    def __init__(
        self, store: Store, refs: Mapping[int, PageRef], old: PageLayout, new: PageLayout, bad: set[bytes]
    ) -> None:
        self.store = store
        self.refs = refs
        self.old = old
        self.new = new
        self.bad = bad
        self._held: dict[int, bytes | None] = {}
        self._plans: dict[int, tuple[Run, ...]] = {}
        self._from = [sum(old.slot_bytes[:pool]) for pool in range(len(old.slot_bytes))]
        self._to = [sum(new.slot_bytes[:pool]) for pool in range(len(new.slot_bytes))]

    async def page(self, block: int) -> bytes | None:
        """The page, or None where a token of it is in no sound stored page."""
        start, stop = block * self.new.page_tokens, (block + 1) * self.new.page_tokens
        first, last = start // self.old.page_tokens, -(-stop // self.old.page_tokens)
        self._held = {at: data for at, data in self._held.items() if at >= first}
        for at in range(first, last):
            if at not in self._held:
                self._held[at] = await self._read(at)
        made = bytearray(self.new.page_bytes)
        for run in self._runs(start, stop):
            data = self._held[first + run.src_page]
            if data is None:
                return None
            source = self._from[run.src_pool] + run.src_offset
            target = self._to[run.dst_pool] + run.dst_offset
            made[target : target + run.nbytes] = memoryview(data)[source : source + run.nbytes]
        return bytes(made)

    async def _read(self, block: int) -> bytes | None:
        ref = self.refs.get(block)
        if ref is None:
            return None
        data = await self.store.get(blob_key(ref.digest))
        if data is None or len(data) != self.old.page_bytes or await digest_of(data) != ref.digest:
            self.bad.add(ref.digest)
            return None
        return data

    def _runs(self, start: int, stop: int) -> tuple[Run, ...]:
        """Runs of the tokens start to stop, their source pages counted from the first one."""
        shift = start % self.old.page_tokens
        if shift not in self._plans:
            first = start // self.old.page_tokens
            runs = plan([(self.old, Held())], [(self.new, Held())], (start, stop))
            self._plans[shift] = tuple(replace(run, src_page=run.src_page - first) for run in runs)
        return self._plans[shift]
