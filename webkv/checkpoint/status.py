"""How a session is kept, and how that goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """What would survive now.  `str()` of it is for people.

    `state`: `durable` (all that was shown), `relaxed` (`lag` tokens are not yet), or `degraded`: the store
    fails for `reason`, needs `needed` bytes if it knows, and generation goes on without it.
    `pages_pending` are on their way.
    """

    state: str
    lag: int = 0
    reason: str = ""
    needed: int | None = None
    pages_stored: int = 0
    pages_pending: int = 0

    def __str__(self) -> str:
        if self.state == "degraded":
            room = f" ({self.needed} bytes needed)" if self.needed else ""
            return f"degraded: {self.reason}{room}, {self.lag} tokens not durable"
        return f"relaxed: {self.lag} tokens not durable" if self.lag else "durable"


@dataclass(frozen=True)
class Options:
    """How a session is kept.

    `relaxed`: commit after 8 tokens or 250 ms instead of before each token is shown.  `cap`: most bytes of
    pages in the store; the least recently used sessions' pages make room.  `patience`: seconds until a store
    that does not answer counts as degraded.  `on_status`: called with each `Status` that differs in state,
    reason or bytes needed.
    """

    relaxed: bool = False
    cap: int | None = None
    patience: float = 10.0
    on_status: Callable[[Status], None] = lambda status: None
