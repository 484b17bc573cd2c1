"""One generation that survives: its journal, its pages, and its status."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Self

from webkv.checkpoint.blobs import FullPage
from webkv.checkpoint.catalog import Summary, make_room
from webkv.checkpoint.identity import Identity
from webkv.checkpoint.journal import Journal, Walked, exists, first_seed, require_id, walk
from webkv.checkpoint.pages import PageSource, PageWriter
from webkv.checkpoint.record import Computed, End, Header, Mode, Prompt, Request, Row, Token, Truncate
from webkv.checkpoint.recover import Pages, PageTarget, Plan, without_pages
from webkv.checkpoint.refs import PageId
from webkv.checkpoint.status import Options, Status
from webkv.checkpoint.stores import PatientStore, Store, hold
from webkv.checkpoint.transcript import Transcript
from webkv.errors import CheckpointError, DamageError, StoreError


class Session:
    """A generation kept in a store.  Rows are appended without waiting; `durable` waits for a row.

    Make one with `create`, `open` or `branch`; one process at a time holds it, until `close`.  The owner
    tells it what happens, in order: `request`, `prompt`, `computed` after each prefill chunk was submitted,
    `token` after each sampled token, `end`; a token may be shown once `durable(ticket)` has returned.
    """

    def __init__(
        self, store: Store, session: str, identity: Identity, walked: Walked, options: Options
    ) -> None:
        self.store = PatientStore(store, options.patience)
        self.id = session
        self.identity = identity
        self.transcript = walked.transcript
        self.damage = walked.damage
        self._options = options
        self._told: tuple[object, ...] = (False, "", None)
        self._created = time.time()
        self._blocks = 0
        self._held = AsyncExitStack()
        self._bad: set[bytes] = set()
        self._journal = Journal(
            store, session, walked, relaxed=options.relaxed, patience=options.patience, changed=self._tell
        )
        self._pages = PageWriter(
            self.store, session, identity, cap=options.cap, make_room=self._make_room, changed=self._tell
        )

    @classmethod
    async def create(
        cls,
        store: Store,
        identity: Identity,
        *,
        id: str | None = None,
        facts: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> Self:
        """A new session.  `facts`: JSON for lists (`title`, `model`, ...).  `id` (None: a random one).

        Raises `CheckpointError` if the id is taken or not 1 to 64 of `A-Za-z0-9._-`, `StoreBusyError` if
        another process is making it.  A store that fails otherwise makes a degraded session, not an error.
        """
        session = secrets.token_hex(8) if id is None else id
        require_id(session)
        made = cls(
            store, session, identity, Walked(Transcript(), 0, first_seed(session)), options or Options()
        )
        await made._hold()
        try:
            if id and await exists(made.store, id):
                raise CheckpointError(f"session {id!r} exists")
            header = Header(identity, {"created": made._created, **(facts or {})})
            made._append(header, summary=True)
        except BaseException:
            await made._held.aclose()
            raise
        return made

    @classmethod
    async def open(
        cls,
        store: Store,
        id: str,
        identity: Identity,
        *,
        recompute: bool = False,
        facts: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> Self:
        """The stored session `id`, up to the first damaged row (`damage` says what was wrong there).

        Raises `CheckpointError` if there is none, `StoreBusyError` while another process holds it, and
        `IdentityError` naming the field if it belongs to something else.  With `recompute` only another
        namespace or tokenizer is refused: its tokens are kept, its KV is not used, and `facts` are added to
        its own.
        """
        require_id(id)
        async with AsyncExitStack() as held:
            await hold(held, store, id)
            walked = await walk(PatientStore(store, (options or Options()).patience), id)
            theirs = walked.transcript.identity
            assert theirs is not None
            kept = replace(theirs, namespace=identity.namespace, tokenizer=identity.tokenizer)
            theirs.require(kept if recompute else identity)
            made = cls(store, id, identity, walked, options or Options())
            await made._pages.load(made.transcript.tokens)
            made._created = made.transcript.facts.get("created", made._created)
            made._held.push_async_exit(held.pop_all())
        if theirs != identity:
            made._pages.drop(list(made._pages.refs))
            made._append(Header(identity, {**made.transcript.facts, **(facts or {})}))
        made._blocks = made.transcript.computed // identity.page_tokens
        return made

    async def _hold(self) -> None:
        await hold(self._held, self.store, self.id)

    # What happens, in order.  Each returns a ticket for `durable`.

    def request(self, data: Mapping[str, Any]) -> int:
        """A turn begins; `data` is free JSON: messages or prompt, sampling parameters, ..."""
        return self._append(Request(data), summary=True)

    def prompt(self, ids: Sequence[int]) -> int:
        """Tokens that are given follow."""
        return self._append(Prompt(len(self.transcript.tokens), tuple(map(int, ids))), summary=True)

    def computed(self, stop: int, mode: Mode = Mode.PREFILL) -> int:
        """The KV of all tokens before position `stop` has been submitted for computing."""
        start = self.transcript.computed
        return self._append(Computed(start, ((mode, stop - start),)))

    def token(self, id: int, state: bytes = b"", text: bytes = b"") -> int:
        """A token was sampled; the KV of all tokens before it exists.

        `state`: the sampler's after it.  `text`: the bytes it adds to the answer.
        """
        return self._append(Token(len(self.transcript.tokens), int(id), state, text))

    def truncate(self, length: int) -> int:
        """Tokens from position `length` on are taken back."""
        ticket = self._append(Truncate(length))
        self._pages.truncate(length)
        self._blocks = min(self._blocks, length // self.identity.page_tokens)
        return ticket

    def end(self, reason: str) -> int:
        """The turn is over: `stop`, `length`, `cancelled`, ..."""
        return self._append(End(reason), summary=True)

    def _append(self, row: Row, summary: bool = False) -> int:
        try:
            self.transcript.apply(row)
        except DamageError as error:
            raise AssertionError(f"{row} does not follow: {error}") from error
        blocks = self.transcript.computed // self.identity.page_tokens
        full = blocks != self._blocks
        puts = self._summary().puts() if full or summary else {}
        ticket = self._journal.append(row, puts)
        if full:
            self._blocks = blocks
            self._pages.want(self.transcript.tokens, bytes(self.transcript.modes))
        return ticket

    def _summary(self) -> Summary:
        transcript = self.transcript
        return Summary(
            self.id, self._created, time.time(), len(transcript.tokens), transcript.prompt_tokens,
            transcript.end, sum(ref.nbytes for ref in self._pages.refs.values()), dict(transcript.facts),
        )  # fmt: skip

    # Durability.

    def attach(self, source: PageSource, held: int | None = None) -> None:
        """Export full pages from `source` from now on; `held`: it has so many of the tokens (None: all)."""
        self._pages.source = source
        self._pages.want(self.transcript.tokens, bytes(self.transcript.modes), held)

    async def durable(self, ticket: int) -> None:
        """Wait until the row of `ticket` may be relied on (or the store is degraded), and for page room."""
        await self._journal.durable(ticket)
        await self._pages.room()

    async def flush(self) -> Status:
        """Write all that waits, pages too; the status says whether that worked."""
        await self._journal.flush()
        await self._pages.flush()
        return self.status

    async def close(self) -> Status:
        """Flush, and let go of the session.  The cache may be gone only after this."""
        try:
            return await self.flush()
        finally:
            self._journal.close()
            self._pages.close()
            await self._held.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def status(self) -> Status:
        """What would survive now."""
        error = self._journal.error or self._pages.error
        lag = self._journal.lag
        state = "degraded" if error else "relaxed" if lag and self._options.relaxed else "durable"
        reason, needed = (str(error), getattr(error, "needed", None)) if error else ("", None)
        return Status(state, lag, reason, needed, len(self._pages.refs), self._pages.pending)

    @property
    def stored(self) -> Set[PageId]:
        """The pages, as (layer group, block), that the store holds."""
        return self._pages.refs.keys()

    @property
    def page_damage(self) -> str:
        """What `restore` found wrong with stored pages, in words; empty if nothing."""
        return "stored pages are missing or changed" if self._bad else ""

    @property
    def bytes_written(self) -> tuple[int, int]:
        """Bytes of keys and values given to the store for rows, and for pages."""
        return self._journal.bytes_written, self._pages.bytes_written

    def _tell(self) -> None:
        status = self.status
        now = (status.state == "degraded", status.reason, status.needed)
        if now != self._told:
            self._told = now
            self._options.on_status(status)

    async def _make_room(self, nbytes: int) -> int:
        return await make_room(self.store, nbytes, keep=self.id)

    # Recovery.

    async def plan(self) -> Plan:
        """How `restore` would fill an empty sequence; also finds other sessions' equal prefix."""
        self._pages.chains.extend(self.transcript.tokens)
        self._reader = Pages(self.store, self.identity, self._pages.chains, self._pages.refs, self._bad)
        return await self._reader.plan(self.transcript)

    async def restore(self, target: PageTarget) -> Plan:
        """Bring stored pages into an empty sequence; returns what was done and what is left to compute.

        A page that is damaged or missing costs computing its tokens again, and a store that fails costs
        computing all.  Raises `CacheError` if the cache has no room, saying what is needed; the sequence is
        empty then.
        """
        while True:
            try:
                plan = await self.plan()
            except StoreError:
                return without_pages(self.transcript)
            if not plan.pages:
                return plan
            target.reserve(plan.imported)
            try:
                async for (group, block), data in self._reader.read(plan):
                    target.write(group, block, data)
            except (DamageError, StoreError) as error:
                target.cancel()
                if isinstance(error, StoreError):
                    return without_pages(self.transcript)
                self._pages.condemn(self._bad)
                continue
            except BaseException:
                target.cancel()
                raise
            target.seal()
            self._pages.adopt(dict(plan.pages))
            if plan.adopted:
                self._append(Computed(0, plan.adopted))
            return plan

    async def add_pages(
        self, runs: tuple[tuple[Mode, int], ...], pages: Sequence[FullPage], bad: Set[bytes] = frozenset()
    ) -> None:
        """Store pages of this session's tokens that were made elsewhere; `runs`: how, from token 0 on.

        `bad`: digests of stored pages that did not verify on the way.
        """
        self._bad |= bad
        self._pages.condemn(bad)
        self._append(Computed(0, runs))
        await self._pages.add(pages)

    async def branch(
        self, position: int, *, id: str | None = None, options: Options | None = None
    ) -> Session:
        """A new session with this one's first `position` tokens; stored pages are shared, not copied."""
        assert 0 <= position <= len(self.transcript.tokens), position
        facts = {**self.transcript.facts, "created": time.time(), "parent": self.id, "branched_at": position}
        child = await Session.create(
            self.store.inner, self.identity, id=id, facts=facts, options=options or self._options
        )
        full = position // self.identity.page_tokens
        child._pages.adopt({page: ref for page, ref in self._pages.refs.items() if page[1] < full})
        for row in self.transcript.rows(position):
            child._append(row)  # nothing is awaited since the header: all rows go in one commit
        return child
