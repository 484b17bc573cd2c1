"""Conversations that survive: an engine's tokens and pages, kept in a store as they are made.

::

    chat = await Chat.begin(loaded, store, messages=[{"role": "user", "content": "Hi"}])
    async for event in chat.generate():        # each event is durable before it is seen
        print(event.text, end="")

    chat = await Chat.resume(loaded, store, chat.id)    # another process, after a crash
    print(chat.recovery)                                 # kv+replay(7): 71 tokens, 4 pages
    async for event in chat.generate(): ...              # the very tokens that were missing
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from webkv.checkpoint import Mode, Options, Session, Status, Store
from webkv.checkpoint.digests import page_digests
from webkv.checkpoint.transfer import CachePages
from webkv.conversation import Conversation, Progress, Sampled, TokenEvent
from webkv.errors import CacheError, CheckpointError, PromptError
from webkv.load import Loaded
from webkv.recovery import STATE, Recovery, begun_elsewhere, layout_facts, mark_pending, opened
from webkv.sampling import SamplingParams
from webkv.turns import first_tokens, next_turn, require_turn, stored_request

_TITLE = 60


class Chat:
    """A stored conversation.  Make one with `begin`, `resume` or `branch`; one process at a time holds it."""

    def __init__(
        self, loaded: Loaded, session: Session, conversation: Conversation, recovery: Recovery
    ) -> None:
        self.loaded = loaded
        self.session = session
        self.conversation = conversation
        self.recovery = recovery
        self._closing: asyncio.Future[Status] | None = None

    @property
    def id(self) -> str:
        """The session's id in its store."""
        return self.session.id

    @property
    def status(self) -> Status:
        """What would survive now: `durable`, `relaxed`, or `degraded` and why."""
        return self.session.status

    @classmethod
    async def begin(
        cls,
        loaded: Loaded,
        store: Store,
        *,
        prompt: str | None = None,
        messages: Sequence[Mapping[str, str]] | None = None,
        params: SamplingParams | None = None,
        max_tokens: int = 256,
        id: str | None = None,
        facts: Mapping[str, Any] | None = None,
        options: Options | None = None,
        progress: Progress | None = None,
    ) -> Chat:
        """A new conversation from a plain `prompt` or chat `messages`.

        It starts from the longest stored prefix of other sessions with equal tokens.  Raises `PromptError`
        before anything is stored when the prompt is empty or does not fit.
        """
        tokens = first_tokens(loaded, prompt, messages)
        loaded.engine.checked(tokens, 1)  # one more, or there is no room for an answer
        request = stored_request(prompt if messages is None else messages, params, max_tokens)
        title = (prompt if prompt is not None else messages[-1]["content"] if messages else "")[:_TITLE]
        conversation = loaded.engine.open(tokens)
        try:
            session = await Session.create(
                store, loaded.identity, id=id, options=options,
                facts={"model": loaded.name, "device": loaded.engine.device.facts.name, "title": title,
                       **layout_facts(loaded), **(facts or {})},
            )  # fmt: skip
        except BaseException:
            loaded.engine.close(conversation)
            raise
        session.request(request)
        session.prompt(tokens)
        return await cls._restored(loaded, session, conversation, progress)

    @classmethod
    async def resume(
        cls,
        loaded: Loaded,
        store: Store,
        id: str,
        *,
        recompute: bool = False,
        options: Options | None = None,
        progress: Progress | None = None,
    ) -> Chat:
        """The stored conversation `id`, its cache as it was.

        Stored pages are imported; the tokens of the unfinished page run again through the same kernels, so
        every byte is what it was.  Pages of another layout are converted where that is exact.
        `progress(done, total)` follows the computing, in tokens.  Raises `CheckpointError` if there is none,
        `IdentityError` naming what differs if another model made it (`recompute`: use its tokens, not its
        KV), `StoreBusyError` while another process holds it.
        """
        begun = time.monotonic()
        session, differs = await opened(loaded, store, id, recompute, options)
        try:
            require_turn(session)
            conversation = loaded.engine.open(session.transcript.tokens)
        except BaseException:
            await session.close()
            raise
        return await cls._restored(loaded, session, conversation, progress, differs, begun)

    @classmethod
    async def _restored(
        cls,
        loaded: Loaded,
        session: Session,
        conversation: Conversation,
        progress: Progress | None = None,
        differs: str = "",
        begun: float | None = None,
    ) -> Chat:
        engine, begun = loaded.engine, begun or time.monotonic()
        try:
            pages = CachePages(engine.cache, conversation.id, session.identity)
            plan = await session.restore(pages)
            conversation.cached = plan.imported
            # The last token is left to `generate`, which needs its logits.
            last = len(conversation.tokens) - 1
            for step in plan.replay:
                compute = engine.prefill if step.mode is Mode.PREFILL else engine.replay
                await compute(conversation, min(step.stop, last), progress)
            mark_pending(session, conversation)
            session.attach(pages, conversation.cached)
        except BaseException:
            try:
                await session.close()
            finally:
                engine.close(conversation)
            raise
        nbytes = sum(ref.nbytes for _, ref in plan.pages)
        took = time.monotonic() - begun
        damage = session.damage or session.page_damage
        elsewhere = begun_elsewhere(loaded, session)
        done = Recovery(plan.report, plan.computed, len(plan.pages), nbytes, took, damage, differs, elsewhere)
        return cls(loaded, session, conversation, done)

    @property
    def answer(self) -> list[int]:
        """The tokens drawn so far in the current turn."""
        sampled = self.session.transcript.sampled
        return [sampled[at].id for at in sorted(sampled) if at >= self._turn_start]

    @property
    def _turn_start(self) -> int:
        return self.session.transcript.requests[-1][0]

    @property
    def request(self) -> Mapping[str, Any]:
        """The current turn's request: `messages` or `prompt`, `params`, `max_tokens`."""
        return self.session.transcript.requests[-1][1]

    @property
    def finished(self) -> str | None:
        """Why the current turn ended, None while it has not."""
        return self.session.transcript.end

    def remaining(self, max_tokens: int | None = None) -> int:
        """How many tokens the current turn may still draw."""
        limit = int(self.request["max_tokens"]) if max_tokens is None else max_tokens
        room = self.loaded.engine.context - len(self.conversation.tokens)
        return 0 if self._stopped else max(0, min(limit - len(self.answer), room))

    @property
    def _stopped(self) -> bool:
        """Whether the answer's last token is one that ends it."""
        answer = self.answer
        return bool(answer) and answer[-1] in self.loaded.engine.tokenizer.eos_ids

    async def generate(
        self, max_tokens: int | None = None, progress: Progress | None = None
    ) -> AsyncGenerator[TokenEvent, None]:
        """Go on with the current turn up to its limit, or to `max_tokens` drawn in it.

        If the last iterator was left before its end, what it had not given yet comes first.
        """
        engine = self.loaded.engine
        await engine.settle(self.conversation)
        shown = self.answer[: len(self.answer) - len(self.conversation.unread)]
        params, limit = SamplingParams(**self.request["params"]), self.remaining(max_tokens)
        events = engine.generate(
            self.conversation, params, max_tokens=limit, journal=self, progress=progress, shown=shown
        )
        async with aclosing(events):
            async for event in events:
                yield event
        if self.finished is None and not self.remaining(max_tokens):
            # Cut off between its last token and its end, or as long as is asked for already.
            reason = "stop" if self._stopped else "length"
            await self.session.durable(self.session.end(reason))

    async def say(self, text: str, *, params: SamplingParams | None = None, max_tokens: int = 256) -> None:
        """The next turn: the user's `text`, which `generate` then answers."""
        if "messages" not in self.request:
            raise PromptError("this session began with a plain prompt, not a chat")
        engine = self.loaded.engine
        await engine.settle(self.conversation)
        turn = next_turn(self.loaded, self.request, self.answer, text)
        engine.checked(turn.tokens, len(self.conversation.tokens) + 1)
        before = SamplingParams(**self.request["params"])
        request = stored_request(turn.messages, params or before, max_tokens)
        engine.extend(self.conversation, turn.tokens)
        self.session.request(request)
        await self.session.durable(self.session.prompt(turn.tokens))

    async def branch(self, position: int, *, id: str | None = None) -> Chat:
        """A new stored conversation with this one's first `position` tokens.

        Pages are shared on the GPU and in the store.  Where a window has left behind what the position needs,
        stored pages are imported, and the rest is computed again.
        """
        begun, engine = time.monotonic(), self.loaded.engine
        await engine.settle(self.conversation)
        tokens = self.conversation.tokens
        if not 0 < position <= len(tokens):
            raise CheckpointError(f"branch position is {position}, expected 1 to {len(tokens)}")
        try:
            # As in a resume, the last token is left to `generate`.
            conversation = engine.fork(self.conversation, position - 1)
            conversation.tokens.append(tokens[position - 1])
        except CacheError:
            conversation = engine.open(tokens[:position])
        try:
            session = await self.session.branch(position, id=id)
        except BaseException:
            engine.close(conversation)
            raise
        if not conversation.cached:
            return await self._restored(self.loaded, session, conversation)
        mark_pending(session, conversation)
        for holder in (self.conversation, conversation):  # this one also holds the last token
            pages = CachePages(engine.cache, holder.id, session.identity)
            session.attach(pages, min(holder.cached, position))
        took = time.monotonic() - begun
        done = Recovery("fork", conversation.cached, pages.full(conversation.cached), 0, took)
        return Chat(self.loaded, session, conversation, done)

    async def page_digests(self) -> dict[str, str]:
        """SHA-256 of every page held, by `group/block`; slots without a token count as zeros."""
        return await page_digests(self.loaded.engine.cache, self.conversation.id, self.session.identity)

    async def close(self) -> Status:
        """Store what is left and give the cache's pages back; the status says whether all is durable.

        Goes on when its caller is cancelled; a second call waits for the first.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> Status:
        try:
            await self.loaded.engine.settle(self.conversation)
            return await self.session.close()
        finally:
            self.loaded.engine.close(self.conversation)

    # What the engine tells (`engine.Journal`).

    def advanced(self, conversation: Conversation, prefilled: tuple[int, int] | None) -> None:
        """A prefill chunk was submitted; a decoded token's row says so itself."""
        if prefilled is not None and prefilled[1] > self.session.transcript.computed:
            self.session.computed(prefilled[1])

    async def commit(self, conversation: Conversation, sampled: Sequence[Sampled]) -> None:
        """Write the tokens' rows; in exact mode this returns when they are durable."""
        piece = self.loaded.engine.tokenizer.piece
        for made in sampled:
            assert made.position == len(self.session.transcript.tokens), made
            state = STATE.pack(made.state.seed, made.state.counter)
            ticket = self.session.token(made.token, state, piece(made.token))
            if made.finish is not None:
                ticket = self.session.end(made.finish)
        await self.session.durable(ticket)
