"""A sequence of tokens being generated, what it gives out, and who is told as it grows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from webkv.sampling import SamplerState, SamplingParams, sample

# A consumer that stops reading pauses its own sequence after this many tokens.
_UNREAD_LIMIT = 64

Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all)."""


@dataclass(frozen=True)
class TokenEvent:
    """One generated token: its id, its position in the sequence, and the text it completes (maybe none).

    `finish` is None until the last token: then `stop` (a stop token) or `length`.
    """

    token: int
    position: int
    text: str
    finish: str | None = None


@dataclass(frozen=True)
class Sampled:
    """A token as the journal keeps it: with the sampler's state after it was drawn.

    `finish` is why the turn ends with it, None if it does not.
    """

    token: int
    position: int
    state: SamplerState
    finish: str | None = None


@dataclass(eq=False)
class Conversation:
    """One sequence: all its tokens, of which the first `cached` have their K and V in the cache.

    Tokens up to `prompted` came from outside and go through prefill; later ones were drawn, and go through
    decode.  `unread` are the last of them, which no consumer of `generate` has had yet.
    """

    id: int
    tokens: list[int] = field(default_factory=list)
    prompted: int = 0
    cached: int = 0
    state: SamplerState | None = None
    unread: deque[Sampled] = field(default_factory=deque)


class Journal(Protocol):
    """What wants to know how a conversation grows, so that it can be resumed."""

    def advanced(self, conversation: Conversation, prefilled: tuple[int, int] | None) -> None:
        """The cache grew to `conversation.cached` tokens (`prefilled`: by this chunk, else by one decode)."""

    async def commit(self, conversation: Conversation, sampled: Sequence[Sampled]) -> None:
        """Keep these tokens; returns when they may be shown."""


@dataclass(eq=False)
class Job:
    """One `Engine.generate`: what it asked for, and how far it is.

    Tokens wait in `drawn` until they are kept, then in `conversation.unread` until they are read.  `done`:
    the last one is drawn; `finished`: it is kept too.
    """

    conversation: Conversation
    params: SamplingParams
    limit: int
    stop: frozenset[int]
    journal: Journal | None
    progress: Progress | None
    drawn: list[Sampled] = field(default_factory=list)
    made: int = 0
    done: bool = False
    finished: bool = False
    error: Exception | None = None

    @property
    def waiting(self) -> bool:
        """Whether the next step may compute for it."""
        return not self.done and self.error is None and len(self.conversation.unread) < _UNREAD_LIMIT

    def take(self, row: Any) -> None:
        """Draw the next token from `row`: its logits, the largest of them, or the greedy id itself."""
        conversation = self.conversation
        state = conversation.state
        if state is None or state.seed != self.params.seed:
            state = SamplerState(self.params.seed)
        if isinstance(row, int | np.integer):
            token = int(row)
        else:
            token, state = sample(row, self.params, state, conversation.tokens)
        position = len(conversation.tokens)
        conversation.tokens.append(token)
        conversation.state = state
        self.made += 1
        finish = "stop" if token in self.stop else "length" if self.made == self.limit else None
        self.done = finish is not None
        self.drawn.append(Sampled(token, position, state, finish))


def fail(jobs: Iterable[Job], error: Exception) -> None:
    """End jobs with `error`, unless they have ended with another."""
    for job in jobs:
        job.error = job.error or error
