"""How a session's KV comes back: which stored pages to import, which tokens to compute again, and how.

Nothing here touches a cache: a `Plan` says what to do, `Pages.read` gives bytes that were checked against
their digest.  Damage costs recompute, never a wrong token.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from webkv.checkpoint.blobs import digest_of
from webkv.checkpoint.identity import Group, Identity
from webkv.checkpoint.prefix import Chains, PageRef, PrefixEntry, blob_key, index_key, next_variant, variants
from webkv.checkpoint.record import Mode, mode_runs
from webkv.checkpoint.refs import PageId
from webkv.checkpoint.stores import Store
from webkv.checkpoint.transcript import Transcript
from webkv.errors import DamageError

_READ_AHEAD = 4


@dataclass(frozen=True)
class Step:
    """Compute positions start to stop again: `prefill` in chunks of any size, `decode` one by one."""

    mode: Mode
    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """What to do with an empty sequence so that it holds the KV of the first `computed` tokens.

    Import `pages`, which gives KV of `imported` tokens; then run `replay` in order.  Tokens after `computed`
    are pending: they were not computed before.  `adopted` is KV (runs of mode, tokens) that comes from other
    sessions with the same tokens.  When nothing is pending, the last replayed step gives the next logits.
    """

    pages: tuple[tuple[PageId, PageRef], ...]
    imported: int
    computed: int
    replay: tuple[Step, ...]
    adopted: tuple[tuple[Mode, int], ...] = ()

    @property
    def report(self) -> str:
        """`kv`, `kv+replay(n)`, `replay(n)`, or `new` when nothing was computed before."""
        again = self.computed - self.imported
        if self.imported:
            return f"kv+replay({again})" if again else "kv"
        return f"replay({again})" if again else "new"


class PageTarget(Protocol):
    """Where recovered pages go: an empty sequence of a cache.  Nothing shows until `seal`."""

    def reserve(self, tokens: int) -> None:
        """Take the pages for the first `tokens` tokens; raises `CacheError`, having changed nothing."""
        ...

    def write(self, group: str, block: int, data: bytes) -> None:
        """Put a page's bytes in its place."""
        ...

    def seal(self) -> None:
        """All pages are written: the sequence has its tokens."""
        ...

    def cancel(self) -> None:
        """Give everything back: the sequence is empty again."""
        ...


class Pages:
    """Looks for stored pages of one token list: a session's own, or others' with the same tokens.

    `bad` are digests whose bytes are missing or damaged; `read` adds to it.
    """

    def __init__(
        self,
        store: Store,
        identity: Identity,
        chains: Chains,
        refs: Mapping[PageId, PageRef],
        bad: set[bytes],
    ) -> None:
        self.store = store
        self.identity = identity
        self.chains = chains
        self.refs = refs
        self.bad = bad
        self._entries: dict[PageId, PrefixEntry | None] = {}

    async def entry(self, page: PageId) -> PrefixEntry | None:
        """The index's page for the same tokens, if it has a usable one."""
        if page not in self._entries:
            self._entries[page] = await self._look_up(page)
        found = self._entries[page]
        return None if found is None or found.digest in self.bad else found

    async def _look_up(self, page: PageId) -> PrefixEntry | None:
        group, block = page
        key = index_key(self.chains.keys[group][block])
        data = await self.store.get(key)
        try:
            return None if data is None else PrefixEntry.unpack(key, data, self.identity.page_tokens)
        except DamageError:
            return None

    async def own(self, page: PageId, variant: bytes) -> PageRef | None:
        """A page with the very bytes this session computed: its own, or the index's of the same variant."""
        group, block = page
        chain = self.chains.keys[group][block]
        ref = self.refs.get(page)
        if ref is not None and ref.chain == chain and ref.digest not in self.bad:
            return ref
        entry = await self.entry(page)
        if entry is None or entry.variant != variant:
            return None
        return PageRef(entry.digest, chain, entry.nbytes)

    async def plan(self, transcript: Transcript) -> Plan:
        """The plan that computes least.  At least the last token is computed, since its logits are needed."""
        size = self.identity.page_tokens
        most = max(0, len(transcript.tokens) - 1) // size
        computed = transcript.computed
        adopted: list[PrefixEntry] = []
        if computed:
            kinds = variants(bytes(transcript.modes), size)[:most]
        else:
            adopted = await self._adoptable(most)
            kinds = [entry.variant for entry in adopted]
        found, blocks = await self._longest(kinds)
        imported = blocks * size
        replay = _steps(transcript, imported) if computed else ()
        modes = b"".join(entry.modes for entry in adopted[:blocks])
        return Plan(found, imported, max(computed, imported), replay, mode_runs(modes))

    async def _adoptable(self, most: int) -> list[PrefixEntry]:
        """Index entries of the first blocks, as far as each one's variant follows from the one before."""
        groups = [group for group in self.identity.groups if group.window is None] or self.identity.groups
        entries: list[PrefixEntry] = []
        for block in range(most):
            entry = await self.entry((groups[0].name, block))
            last = entries[-1].variant if entries else None
            if entry is None or entry.variant != next_variant(last, entry.modes):
                break
            entries.append(entry)
        return entries

    async def _longest(self, kinds: list[bytes]) -> tuple[tuple[tuple[PageId, PageRef], ...], int]:
        """The most blocks for which every group has all the pages it needs, and those pages."""
        size = self.identity.page_tokens
        blocks = len(kinds)
        while blocks:
            pages: list[tuple[PageId, PageRef]] = []
            for block, group in _in_order(self.identity.groups, blocks, size):
                ref = await self.own((group.name, block), kinds[block])
                if ref is None or ref.nbytes != group.page_bytes:
                    blocks = block if group.window is None else blocks - 1
                    break
                pages.append(((group.name, block), ref))
            else:
                return tuple(pages), blocks
        return (), 0

    async def read(self, plan: Plan) -> AsyncIterator[tuple[PageId, bytes]]:
        """The plan's pages in its order, each checked; the next ones are read ahead.

        Raises `DamageError` for a page that is missing or damaged; `plan` then avoids it.
        """
        ahead: deque[tuple[PageId, PageRef, asyncio.Task[bytes]]] = deque()
        waiting = deque(plan.pages)
        try:
            while waiting or ahead:
                while waiting and len(ahead) < _READ_AHEAD:
                    page, ref = waiting.popleft()
                    ahead.append((page, ref, asyncio.create_task(self._checked(page, ref))))
                page, _, task = ahead.popleft()
                yield page, await task
        finally:
            for _, _, task in ahead:
                task.cancel()
            await asyncio.gather(*(task for _, _, task in ahead), return_exceptions=True)

    async def _checked(self, page: PageId, ref: PageRef) -> bytes:
        data = await self.store.get(blob_key(ref.digest))
        group, block = page
        if data is not None and len(data) == ref.nbytes and await digest_of(data) == ref.digest:
            return data
        self.bad.add(ref.digest)
        what = "is missing" if data is None else "does not fit its digest"
        raise DamageError(
            f"page {block} of layer group {group!r}: stored page {ref.digest.hex()[:16]} {what}"
        )


def without_pages(transcript: Transcript) -> Plan:
    """The plan that imports nothing."""
    return Plan((), 0, transcript.computed, _steps(transcript, 0))


def _in_order(groups: tuple[Group, ...], blocks: int, size: int) -> list[tuple[int, Group]]:
    """The pages needed after `blocks` full blocks: unwindowed groups first, since they decide more."""
    ordered = sorted(groups, key=lambda group: group.window is not None)
    return [(block, group) for group in ordered for block in group.needed(blocks * size, size)]


def _steps(transcript: Transcript, start: int) -> tuple[Step, ...]:
    steps = []
    for mode, count in transcript.runs(start, transcript.computed):
        steps.append(Step(mode, start, start + count))
        start += count
    return tuple(steps)
