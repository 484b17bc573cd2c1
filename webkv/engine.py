"""Turning a model and a cache into text: one loop that runs prefill chunks and decode batches.

A step is either one prefill chunk of one sequence or one decode batch over all waiting sequences, never a
mix, so which kernels a token goes through depends on the token alone, not on what else is running.  Kernels
are row-invariant, so a sequence's bits do not depend on its neighbours in the batch either.

There is no background task: whoever waits for a token runs the next step for everybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from webkv.cache import PagedKVCache
from webkv.conversation import Conversation, Job, Journal, Progress, Sampled, TokenEvent, fail
from webkv.errors import CacheError, CacheFullError, PromptError
from webkv.gpu import Batch
from webkv.models.causal import CausalModel
from webkv.models.tokenizer import Tokenizer
from webkv.sampling import SamplingParams, needs_full_logits

# Turns of the event loop after which what is to be kept is on its way to the store's thread: one for the
# journal to take the tokens, one for its own task to commit them.
_TURNS = 2


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
        self._jobs: list[Job] = []
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
        conversation.unread.clear()
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
        """Give the conversation's pages back; a `generate` of it that still runs ends with a `CacheError`."""
        self._end(conversation, "its conversation was closed")
        self.cache.remove_sequence(conversation.id)

    async def prefill(self, conversation: Conversation, until: int, progress: Progress | None = None) -> None:
        """Compute tokens up to `until` in prefill chunks, drawing nothing."""
        await self._compute(conversation, until, progress, partial(self._prefill_chunk, conversation, until))

    async def replay(self, conversation: Conversation, until: int, progress: Progress | None = None) -> None:
        """Compute tokens up to `until` one decode step at a time, drawing nothing."""
        await self._compute(conversation, until, progress, partial(self._decode, [conversation]))

    async def _compute(
        self, conversation: Conversation, until: int, progress: Progress | None, step: Callable[[], Batch]
    ) -> None:
        while conversation.cached < until:
            async with self._turn:
                await self.device.fence(step())
            if progress is not None:
                progress(conversation.cached, until)

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
    ) -> AsyncGenerator[TokenEvent, None]:
        """Draw up to `max_tokens` tokens, ending after a stop token (default: the tokenizer's end tokens).

        Tokens that an earlier call drew and nobody read come first and do not count; such a call, if its
        iterator is still open, ends with a `CacheError`.  Nothing comes when the context is full.
        `progress(done, total)` follows the prompt's prefill, in tokens.  `shown`: the answer's tokens so far,
        when it is being continued; a character may have begun in them.
        Raises `CacheFullError` when the pool runs out of pages, `DeviceError` when a step fails; what was
        drawn before comes first, and stays in the conversation.
        """
        ends = frozenset(self.tokenizer.eos_ids if stop is None else stop)
        job = Job(conversation, params, max_tokens, ends, journal, progress)
        stream = self.tokenizer.stream()
        for token in shown:
            stream.push(token)
        await self._begin(job)
        try:
            while True:
                while conversation.unread:
                    made = conversation.unread.popleft()
                    text = "" if made.token in ends else stream.push(made.token)
                    if made.finish is not None:
                        text += stream.flush()
                    yield TokenEvent(made.token, made.position, text, made.finish)
                if job.error is not None:
                    raise job.error
                if job.finished:
                    return
                # Shielded: a cancelled consumer must not leave a step half done for the others.
                await asyncio.shield(asyncio.ensure_future(self._advance(job)))
        finally:
            await asyncio.shield(asyncio.ensure_future(self._leave(job)))

    async def settle(self, conversation: Conversation) -> None:
        """Wait for the step under way, keep what was drawn, and end a `generate` that was left unfinished."""
        if all(job.conversation is not conversation for job in self._jobs):
            return
        async with self._turn:
            await self._deliver()
            self._end(conversation, "its conversation was taken up elsewhere")

    def _end(self, conversation: Conversation, why: str) -> None:
        for job in self._jobs:
            if job.conversation is conversation and job.error is None:
                job.error = CacheError(f"the generation was ended: {why}")

    async def _begin(self, job: Job) -> None:
        conversation, unread = job.conversation, job.conversation.unread
        if not conversation.tokens:
            raise PromptError("the prompt is empty: at least one token is needed to generate from")
        await self.settle(conversation)
        job.limit = min(job.limit, self.context - len(conversation.tokens))
        if job.limit < 1 or (unread and unread[-1].finish == "stop"):
            job.done = job.finished = True
        else:
            if unread:
                unread[-1] = replace(unread[-1], finish=None)
            if conversation.cached == len(conversation.tokens):
                # The last row's logits are gone; computing that row again gives the same bits.
                self.cache.popn(conversation.id, 1)
                conversation.cached -= 1
        self._jobs.append(job)

    async def _leave(self, job: Job) -> None:
        if not job.finished:
            async with self._turn:
                await self._deliver()
        self._jobs.remove(job)

    async def _advance(self, job: Job) -> None:
        async with self._turn:
            if not job.conversation.unread and job.waiting:
                await self._step()
            elif job.drawn:
                await self._deliver()

    async def _step(self) -> None:
        # The last tokens become durable while this step is recorded and the GPU works on it.
        keeping = any(job.drawn and job.journal is not None for job in self._jobs)
        delivering = self._deliver()
        if keeping:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        jobs = [job for job in self._jobs if job.waiting]
        prompt = next((j for j in jobs if j.conversation.cached < j.conversation.prompted), None)
        running = jobs if prompt is None else [prompt]
        work = None
        try:
            if prompt is not None:
                work = self._prefill_chunk(prompt.conversation, prompt.conversation.prompted, prompt.journal)
            elif running:
                work = self._decode([j.conversation for j in running], [j.journal for j in running])
        except CacheFullError as error:
            # One that needs no page would be given up for nothing; the newest of the others is.
            size = self.cache.config.page_tokens
            wanting = [job for job in running if job.conversation.cached % size == 0]
            (wanting or running)[-1].error = error
            running = []
        except Exception as error:
            fail(running, error)
            running = []
        await asyncio.gather(delivering, *([] if work is None else [self._read(running, work)]))
        if any(job.done for job in running):
            await self._deliver()

    def _prefill_chunk(self, conversation: Conversation, until: int, journal: Journal | None = None) -> Batch:
        start = conversation.cached
        stop = min(until, start + self.model.max_rows)
        tokens = conversation.tokens[start:stop]
        work = self._forward([conversation], [stop - start], tokens, "prefill")
        work.submit()  # before the journal asks for the pages that this makes full
        conversation.cached = stop
        if journal is not None:
            journal.advanced(conversation, (start, stop))
        return work

    def _decode(self, batch: list[Conversation], journals: Sequence[Journal | None] = ()) -> Batch:
        tokens = [c.tokens[c.cached] for c in batch]
        work = self._forward(batch, [1] * len(batch), tokens, "decode")
        for conversation in batch:
            conversation.cached += 1
        for conversation, journal in zip(batch, journals, strict=False):
            if journal is not None:
                journal.advanced(conversation, None)
        return work

    def _forward(self, batch: list[Conversation], lengths: list[int], tokens: list[int], mode: str) -> Batch:
        """Record a step; who reads its results submits it, in one submission with what reads them."""
        self.cache.begin_forward([c.id for c in batch], lengths)
        try:
            work = self.device.batch()
            self.model.forward(work, self.cache, tokens, mode)
        except BaseException:
            self.cache.abort_forward()
            raise
        self.cache.end_forward()
        return work

    async def _read(self, jobs: list[Job], work: Batch) -> None:
        """Submit the step and wait for it; draw each job's next token, unless its prompt has chunks left."""
        drawing = [job.conversation.cached == len(job.conversation.tokens) for job in jobs]
        try:
            if not any(drawing):
                await self.device.fence(work)
                rows: Sequence[Any] = [None] * len(jobs)
            elif any(needs_full_logits(job.params) for job in jobs):
                rows = list(await self.model.full_logits(len(jobs), work))
            elif all(job.params.greedy for job in jobs):
                rows = list(await self.model.greedy(len(jobs), work))
            else:
                rows = await self.model.candidates(len(jobs), work)
        except Exception as error:
            fail(jobs, error)
            return
        for job, draws, row in zip(jobs, drawing, rows, strict=True):
            if job.progress is not None and job.conversation.cached <= job.conversation.prompted:
                job.progress(job.conversation.cached, job.conversation.prompted)
            if draws and job.error is None:
                job.take(row)

    def _deliver(self) -> asyncio.Future[list[None]]:
        """Begin to keep the drawn tokens; when that is done, their consumers may have them."""
        # Taken off first: the step that runs meanwhile draws more.
        taken = [(job, job.drawn) for job in self._jobs if job.drawn]
        for job, _ in taken:
            job.drawn = []
        return asyncio.gather(*(self._keep(job, drawn) for job, drawn in taken))

    async def _keep(self, job: Job, drawn: list[Sampled]) -> None:
        try:
            if job.journal is not None:
                await job.journal.commit(job.conversation, drawn)
        except Exception as error:
            fail([job], error)
            return
        job.conversation.unread.extend(drawn)
        job.finished = drawn[-1].finish is not None
