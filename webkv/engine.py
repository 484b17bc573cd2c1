"""Turning a model and a cache into text: one loop that runs prefill chunks and decode batches.

A step is either one prefill chunk of one sequence or one decode batch over all waiting sequences, never a
mix, so which kernels a token goes through depends on the token alone, not on what else is running.  Kernels
are row-invariant, so a sequence's bits do not depend on its neighbours in the batch either.

There is no background task: whoever waits for a token runs the next step for everybody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from webkv.cache import PagedKVCache
from webkv.conversation import Conversation, Journal, Progress, Sampled, TokenEvent
from webkv.errors import CacheError, CacheFullError, PromptError, WebkvError
from webkv.models.tokenizer import TextStream, Tokenizer
from webkv.sampling import Candidates, SamplerState, SamplingParams, needs_full_logits, sample

# A consumer that stops reading pauses its own sequence after this many undelivered tokens.
_UNREAD_LIMIT = 64


class CausalModel(Protocol):
    """What the engine needs of a model: rows of token ids in, logits of each sequence's last row out."""

    vocab: int
    max_rows: int

    def forward(self, batch: Any, cache: PagedKVCache, tokens: Sequence[int], mode: str) -> None: ...

    async def greedy(self, sequences: int) -> np.ndarray: ...

    async def candidates(self, sequences: int) -> list[Candidates]: ...

    async def full_logits(self, sequences: int) -> np.ndarray: ...


@dataclass(eq=False)
class _Job:
    conversation: Conversation
    params: SamplingParams
    limit: int
    stop: frozenset[int]
    stream: TextStream
    journal: Journal | None
    progress: Progress | None
    ready: deque[TokenEvent] = field(default_factory=deque)
    sampled: list[Sampled] = field(default_factory=list)
    made: int = 0
    finish: str | None = None
    finished: bool = False
    error: WebkvError | None = None

    @property
    def waiting(self) -> bool:
        return self.finish is None and self.error is None and len(self.ready) < _UNREAD_LIMIT


class Engine:
    """Generates text for any number of conversations at once.

    `model` and `cache` share one device; `context` is the most tokens one conversation may hold.
    """

    def __init__(self, model: CausalModel, cache: PagedKVCache, tokenizer: Tokenizer, context: int) -> None:
        self.model = model
        self.cache = cache
        self.tokenizer = tokenizer
        self.context = context
        self.device = cache.device
        self._next_id = 0
        self._jobs: list[_Job] = []
        self._turn = asyncio.Lock()

    def open(self, tokens: Iterable[int] = ()) -> Conversation:
        """A new conversation that starts with `tokens`, none of them computed yet."""
        ids = self.checked(list(tokens), 0)
        conversation = Conversation(self._next_id, ids, len(ids))
        self.cache.add_sequence(conversation.id)
        self._next_id += 1
        return conversation

    def checked(self, tokens: list[int], held: int) -> list[int]:
        """`tokens`, if they are ids of the vocabulary and fit the context after `held` others."""
        if held + len(tokens) > self.context:
            raise PromptError(f"prompt is {held + len(tokens)} tokens long, the context holds {self.context}")
        for token in tokens:
            if not 0 <= token < self.model.vocab:
                raise PromptError(f"token id {token} is not in the vocabulary of {self.model.vocab}")
        return tokens

    def extend(self, conversation: Conversation, tokens: Iterable[int]) -> None:
        """Append `tokens` (the next turn); they are computed by the next `generate` or `prefill`."""
        conversation.tokens += self.checked(list(tokens), len(conversation.tokens))
        conversation.prompted = len(conversation.tokens)

    def fork(self, conversation: Conversation, position: int | None = None) -> Conversation:
        """A new conversation that shares the first `position` tokens (default: all) and their pages."""
        tokens = conversation.tokens
        held = len(tokens) if position is None else position
        if not 0 <= held <= len(tokens):
            raise CacheError(f"fork position is {held}, the conversation has {len(tokens)} tokens")
        prompted, cached = min(held, conversation.prompted), min(held, conversation.cached)
        child = Conversation(self._next_id, tokens[:held], prompted, cached, conversation.state)
        self.cache.fork_sequence(conversation.id, child.id, child.cached)
        self._next_id += 1
        return child

    def close(self, conversation: Conversation) -> None:
        """Give the conversation's pages back."""
        self.cache.remove_sequence(conversation.id)

    async def prefill(self, conversation: Conversation, until: int, journal: Journal | None = None) -> None:
        """Compute tokens up to `until` in prefill chunks, drawing nothing."""
        while conversation.cached < until:
            async with self._turn:
                self._prefill_chunk(conversation, until, journal)
                await self.device.fence()

    async def replay(self, conversation: Conversation, until: int) -> None:
        """Compute tokens up to `until` one decode step at a time, drawing nothing."""
        while conversation.cached < until:
            async with self._turn:
                self._decode([conversation])
                await self.device.fence()

    async def generate(
        self,
        conversation: Conversation,
        params: SamplingParams,
        *,
        max_tokens: int,
        stop: Iterable[int] | None = None,
        journal: Journal | None = None,
        progress: Progress | None = None,
        shown: Iterable[int] = (),
    ) -> AsyncIterator[TokenEvent]:
        """Draw up to `max_tokens` tokens, ending after a stop token (default: the tokenizer's end tokens).

        `progress(done, total)` follows the prompt's prefill, in tokens.  `shown`: the answer's tokens so far,
        when it is being continued; a character may have begun in them.
        Raises `CacheFullError` when the pool runs out of pages; what was drawn stays in the conversation.
        """
        self._require_prompt(conversation)
        ends = frozenset(self.tokenizer.eos_ids if stop is None else stop)
        job = _Job(conversation, params, max_tokens, ends, self.tokenizer.stream(), journal, progress)
        if max_tokens < 1:
            return
        for token in shown:
            job.stream.push(token)
        self._jobs.append(job)
        try:
            while True:
                while job.ready:
                    yield job.ready.popleft()
                if job.error is not None:
                    raise job.error
                if job.finished:
                    return
                # Shielded: a cancelled consumer must not leave a step half done for the others.
                await asyncio.shield(asyncio.ensure_future(self._advance(job)))
        finally:
            self._jobs.remove(job)

    def _require_prompt(self, conversation: Conversation) -> None:
        if not conversation.tokens:
            raise PromptError("the prompt is empty: at least one token is needed to generate from")
        if conversation.cached == len(conversation.tokens):
            # The last row's logits are gone; computing that row again gives the same bits.
            self.cache.popn(conversation.id, 1)
            conversation.cached -= 1

    async def _advance(self, job: _Job) -> None:
        async with self._turn:
            if not job.ready and job.waiting:
                await self._step()
            elif job.sampled:
                await self._deliver()

    async def _step(self) -> None:
        jobs = [job for job in self._jobs if job.waiting]
        prompt = next((j for j in jobs if j.conversation.cached < j.conversation.prompted), None)
        running = jobs if prompt is None else [prompt]
        try:
            if prompt is None:
                self._decode([j.conversation for j in running], [j.journal for j in running])
            else:
                self._prefill_chunk(prompt.conversation, prompt.conversation.prompted, prompt.journal)
        except CacheFullError as error:
            running[-1].error = error
            await self._deliver()
            return
        # The GPU works on this step while the tokens of the last one become durable.
        reading = asyncio.ensure_future(self._read(running))
        await self._deliver()
        await reading
        if any(job.finish for job in running):
            await self._deliver()

    def _prefill_chunk(self, conversation: Conversation, until: int, journal: Journal | None) -> None:
        start = conversation.cached
        stop = min(until, start + self.model.max_rows)
        self._forward([conversation], [stop - start], conversation.tokens[start:stop], "prefill")
        conversation.cached = stop
        if journal is not None:
            journal.advanced(conversation, (start, stop))

    def _decode(self, batch: list[Conversation], journals: Sequence[Journal | None] = ()) -> None:
        tokens = [c.tokens[c.cached] for c in batch]
        self._forward(batch, [1] * len(batch), tokens, "decode")
        for conversation in batch:
            conversation.cached += 1
        for conversation, journal in zip(batch, journals, strict=False):
            if journal is not None:
                journal.advanced(conversation, None)

    def _forward(self, batch: list[Conversation], lengths: list[int], tokens: list[int], mode: str) -> None:
        self.cache.begin_forward([c.id for c in batch], lengths)
        with self.device.batch() as work:
            self.model.forward(work, self.cache, tokens, mode)
        self.cache.end_forward()

    async def _read(self, jobs: list[_Job]) -> None:
        """Wait for the step; draw each job's next token, unless its prompt has chunks left."""
        conversation = jobs[0].conversation
        if jobs[0].progress is not None and not jobs[0].made:
            jobs[0].progress(conversation.cached, conversation.prompted)
        if conversation.cached < len(conversation.tokens):
            await self.device.fence()
            return
        if all(job.params.greedy and not needs_full_logits(job.params) for job in jobs):
            rows: Sequence[Any] = list(await self.model.greedy(len(jobs)))
        elif any(needs_full_logits(job.params) for job in jobs):
            rows = list(await self.model.full_logits(len(jobs)))
        else:
            rows = await self.model.candidates(len(jobs))
        for job, row in zip(jobs, rows, strict=True):
            self._take(job, row)

    def _take(self, job: _Job, row: Any) -> None:
        conversation = job.conversation
        state = conversation.state or SamplerState(job.params.seed)
        if isinstance(row, int | np.integer):
            token = int(row)
        else:
            token, state = sample(row, job.params, state, conversation.tokens)
        position = len(conversation.tokens)
        conversation.tokens.append(token)
        conversation.state = state
        job.made += 1
        if token in job.stop:
            job.finish = "stop"
        elif job.made >= job.limit or position + 1 >= self.context:
            job.finish = "length"
        job.sampled.append(Sampled(token, position, state, job.finish))

    async def _deliver(self) -> None:
        """Make the drawn tokens durable, then hand them to their consumers."""
        # Taken off first: the step that runs meanwhile draws more.
        drawn = [(job, job.sampled) for job in self._jobs if job.sampled]
        for job, _ in drawn:
            job.sampled = []
        commits = [
            job.journal.commit(job.conversation, made) for job, made in drawn if job.journal is not None
        ]
        await asyncio.gather(*commits)
        for job, sampled in drawn:
            for made in sampled:
                text = "" if made.token in job.stop else job.stream.push(made.token)
                if made.finish is not None:
                    text += job.stream.flush()
                job.ready.append(TokenEvent(made.token, made.position, text, made.finish))
                job.finished = made.finish is not None
