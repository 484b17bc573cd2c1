"""A sequence of tokens being generated, what it gives out, and who is told as it grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from webkv.sampling import SamplerState

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
    decode.
    """

    id: int
    tokens: list[int] = field(default_factory=list)
    prompted: int = 0
    cached: int = 0
    state: SamplerState | None = None


class Journal(Protocol):
    """What wants to know how a conversation grows, so that it can be resumed."""

    def advanced(self, conversation: Conversation, prefilled: tuple[int, int] | None) -> None:
        """The cache grew to `conversation.cached` tokens (`prefilled`: by this chunk, else by one decode)."""

    async def commit(self, conversation: Conversation, sampled: Sequence[Sampled]) -> None:
        """Keep these tokens; returns when they may be shown."""
