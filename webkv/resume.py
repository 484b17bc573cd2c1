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

import struct
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from webkv.checkpoint import Mode, Options, Session, Status, Store
from webkv.checkpoint.digests import page_digests
from webkv.checkpoint.transfer import CachePages
from webkv.conversation import Conversation, Progress, Sampled, TokenEvent
from webkv.errors import CheckpointError, PromptError
from webkv.load import Loaded
from webkv.sampling import SamplerState, SamplingParams

_STATE = struct.Struct("<QQ")  # seed, counter
_TITLE = 60


@dataclass(frozen=True)
class Recovery:
    """What a resume did.  `how` is `kv`, `kv+replay(n)`, `replay(n)` or `new`; see `checkpoint.Plan`."""

    how: str
    tokens: int
    pages: int
    nbytes: int
    seconds: float
    damage: str = ""

    def __str__(self) -> str:
        return f"{self.how}: {self.tokens} tokens, {self.pages} pages"


class Chat:
    """A stored conversation.  Make one with `begin`, `resume` or `branch`; one process at a time holds it."""

    def __init__(
        self, loaded: Loaded, session: Session, conversation: Conversation, recovery: Recovery
    ) -> None:
        self.loaded = loaded
        self.session = session
        self.conversation = conversation
        self.recovery = recovery

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
    ) -> Chat:
        """A new conversation from a plain `prompt` or chat `messages`.

        It starts from the longest stored prefix of other sessions with equal tokens.  Raises `PromptError`
        before anything is stored when the prompt is empty or does not fit.
        """
        tokens = _first_tokens(loaded, prompt, messages)
        title = (prompt if prompt is not None else messages[-1]["content"] if messages else "")[:_TITLE]
        conversation = loaded.engine.open(tokens)
        try:
            session = await Session.create(
                store, loaded.identity, id=id, options=options,
                facts={"model": loaded.name, "title": title, **(facts or {})},
            )  # fmt: skip
        except BaseException:
            loaded.engine.close(conversation)
            raise
        session.request(_request(prompt if messages is None else messages, params, max_tokens))
        session.prompt(tokens)
        return await cls._restored(loaded, session, conversation)

    @classmethod
    async def resume(
        cls, loaded: Loaded, store: Store, id: str, *, recompute: bool = False, options: Options | None = None
    ) -> Chat:
        """The stored conversation `id`, its cache as it was.

        Stored pages are imported; the tokens of the unfinished page run again through the same kernels, so
        every byte is what it was.  Raises `CheckpointError` if there is none, `IdentityError` naming what
        differs if another model made it (`recompute`: use its tokens, not its KV), `StoreBusyError` while
        another process holds it.
        """
        session = await Session.open(store, id, loaded.identity, recompute=recompute, options=options)
        tokens = session.transcript.tokens
        if not tokens:
            await session.close()
            why = session.damage or "it ended at its start"
            raise CheckpointError(f"session {id!r} holds no tokens: {why}")
        return await cls._restored(loaded, session, loaded.engine.open(tokens))

    @classmethod
    async def _restored(cls, loaded: Loaded, session: Session, conversation: Conversation) -> Chat:
        begun = time.monotonic()
        try:
            pages = CachePages(loaded.engine.cache, conversation.id, session.identity)
            plan = await session.restore(pages)
            conversation.cached = plan.imported
            # The last token is left to `generate`, which needs its logits.
            last = len(conversation.tokens) - 1
            for step in plan.replay:
                compute = loaded.engine.prefill if step.mode is Mode.PREFILL else loaded.engine.replay
                await compute(conversation, min(step.stop, last))
            _mark_pending(session, conversation)
            session.attach(pages)
        except BaseException:
            await session.close()
            loaded.engine.close(conversation)
            raise
        nbytes = sum(ref.nbytes for _, ref in plan.pages)
        took = time.monotonic() - begun
        done = Recovery(plan.report, plan.computed, len(plan.pages), nbytes, took, session.damage or "")
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
        if self.finished == "stop":
            return 0
        limit = int(self.request["max_tokens"]) if max_tokens is None else max_tokens
        return max(0, limit - len(self.answer))

    async def generate(
        self, max_tokens: int | None = None, progress: Progress | None = None
    ) -> AsyncIterator[TokenEvent]:
        """Go on with the current turn up to its limit, or to `max_tokens` drawn in it."""
        params = SamplingParams(**self.request["params"])
        events = self.loaded.engine.generate(
            self.conversation, params, max_tokens=self.remaining(max_tokens), journal=self, progress=progress,
            shown=self.answer,
        )  # fmt: skip
        async for event in events:
            if event.finish is not None:
                await self.session.durable(self.session.end(event.finish))
            yield event

    async def say(self, text: str, *, params: SamplingParams | None = None, max_tokens: int = 256) -> None:
        """The next turn: the user's `text`, which `generate` then answers."""
        if "messages" not in self.request:
            raise PromptError("this session began with a plain prompt, not a chat")
        tokens = self._turn_tokens(text)
        self.loaded.engine.extend(self.conversation, tokens)
        messages = [*self._messages(), {"role": "user", "content": text}]
        before = SamplingParams(**self.request["params"])
        self.session.request(_request(messages, params or before, max_tokens))
        await self.session.durable(self.session.prompt(tokens))

    def _messages(self) -> list[dict[str, str]]:
        """The chat so far, the current answer included."""
        tokenizer = self.loaded.engine.tokenizer
        answer = [t for t in self.answer if t not in tokenizer.eos_ids]
        reply = {"role": "assistant", "content": tokenizer.decode(answer)}
        return [*(dict(m) for m in self.request["messages"]), reply]

    def _turn_tokens(self, text: str) -> list[int]:
        """What must follow the tokens held so far, so that the chat reads as its template has it.

        The answer's own tokens stay as they were drawn; the template's text after it is encoded alone.
        """
        tokenizer, chat = self.loaded.engine.tokenizer, self.loaded.chat
        mark = "\u0000answer\u0000"
        so_far = [*self._messages()[:-1], {"role": "assistant", "content": mark}]
        whole = chat.render([*so_far, {"role": "user", "content": text}])
        rest = tokenizer.encode(whole.split(mark, 1)[1], add_bos=False)
        if self.answer and rest and self.answer[-1] == rest[0]:
            rest = rest[1:]  # the answer ended with the template's own end of turn
        return rest

    async def branch(self, position: int, *, id: str | None = None) -> Chat:
        """A new stored conversation with this one's first `position` tokens; pages are shared."""
        session = await self.session.branch(position, id=id)
        conversation = self.loaded.engine.open(session.transcript.tokens)
        return await self._restored(self.loaded, session, conversation)

    async def page_digests(self) -> dict[str, str]:
        """SHA-256 of every page held, by `group/block`; slots without a token count as zeros."""
        return await page_digests(self.loaded.engine.cache, self.conversation.id, self.session.identity)

    async def close(self) -> Status:
        """Store what is left and give the cache's pages back; the status says whether all is durable."""
        try:
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
            state = _STATE.pack(made.state.seed, made.state.counter)
            ticket = self.session.token(made.token, state, piece(made.token))
        await self.session.durable(ticket)


def _first_tokens(
    loaded: Loaded, prompt: str | None, messages: Sequence[Mapping[str, str]] | None
) -> list[int]:
    if (prompt is None) == (messages is None):
        raise PromptError("give either a prompt or messages")
    tokenizer = loaded.engine.tokenizer
    if messages is not None:
        tokens = tokenizer.encode(loaded.chat.render(messages), add_bos=False)
    else:
        tokens = tokenizer.encode(prompt or "", special=False)
    if not tokens:
        raise PromptError("the prompt is empty: at least one token is needed to generate from")
    return tokens


def _request(
    what: str | Sequence[Mapping[str, str]] | None, params: SamplingParams | None, max_tokens: int
) -> dict[str, Any]:
    if max_tokens < 1:
        raise PromptError(f"max_tokens is {max_tokens}, expected at least 1")
    kind = {"prompt": what} if isinstance(what, str) else {"messages": [dict(m) for m in what or ()]}
    return {**kind, "params": asdict(params or SamplingParams()), "max_tokens": max_tokens}


def _mark_pending(session: Session, conversation: Conversation) -> None:
    """Say which of the tokens that are not computed yet go through prefill: all up to the last given one."""
    transcript = session.transcript
    given = [at for at in range(conversation.cached, len(transcript.tokens)) if at not in transcript.sampled]
    conversation.prompted = given[-1] + 1 if given else 0
    if transcript.sampler:
        conversation.state = SamplerState(*_STATE.unpack(transcript.sampler))
