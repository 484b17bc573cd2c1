"""What a session's rows add up to: its tokens, how each one's KV was computed, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webkv.checkpoint.identity import Identity
from webkv.checkpoint.record import (
    Computed,
    End,
    Header,
    Mode,
    Prompt,
    Request,
    Row,
    Token,
    Truncate,
    mode_runs,
)
from webkv.errors import DamageError

MAX_TOKENS = 1 << 24


class Transcript:
    """Applies rows in order; one that does not follow is refused and changes nothing.

    `tokens` are all token ids, prompt and sampled.  KV of the first `computed` of them exists in the running
    process; `modes[p]` is the `Mode` that position p was computed with.  What is after `computed` is pending:
    prompt tokens not prefilled yet, or the last sampled token.
    `sampled` has the rows of sampled tokens by position.
    """

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.facts: Mapping[str, Any] = {}
        self.requests: list[tuple[int, Mapping[str, Any]]] = []
        self.tokens: list[int] = []
        self.sampled: dict[int, Token] = {}
        self.modes = bytearray()
        self.end: str | None = None
        self.longest = 0
        self._end_before: str | None = None

    @property
    def computed(self) -> int:
        return len(self.modes)

    @property
    def prompt_tokens(self) -> int:
        """How many of the tokens were given."""
        return len(self.tokens) - len(self.sampled)

    @property
    def sampler(self) -> bytes | None:
        """The sampler's state after the last token, None if that one was given."""
        last = self.sampled.get(len(self.tokens) - 1)
        return None if last is None else last.state

    def apply(self, row: Row) -> None:
        """Take one more row.  Raises `DamageError` where positions are not contiguous."""
        match row:
            case Header():
                self._header(row)
            case _ if self.identity is None:
                raise DamageError(f"found a {type(row).__name__.lower()} row, expected a header first")
            case Request(data):
                self.requests.append((len(self.tokens), data))
                self._end_before = self.end
                self.end = None
            case Prompt(start, ids):
                self._prompt(start, ids)
            case Computed():
                self._computed(row)
            case Token():
                self._token(row)
            case Truncate(length):
                self._truncate(length)
            case End(reason):
                self.end = reason
        self.longest = max(self.longest, len(self.tokens))

    def drop_request(self) -> None:
        """Forget the last row, a request."""
        self.requests.pop()
        self.end = self._end_before

    def _header(self, row: Header) -> None:
        self.identity = row.identity
        self.facts = row.facts
        self.modes.clear()

    def _prompt(self, start: int, ids: tuple[int, ...]) -> None:
        _expect("prompt position", start, len(self.tokens))
        if start + len(ids) > MAX_TOKENS:
            raise DamageError(f"found {start + len(ids)} tokens, expected at most {MAX_TOKENS}")
        self.tokens.extend(ids)

    def _computed(self, row: Computed) -> None:
        _expect("first computed position", row.start, self.computed)
        if row.stop > len(self.tokens):
            raise DamageError(f"found KV up to position {row.stop} of {len(self.tokens)} tokens")
        for mode, count in row.runs:
            self.modes.extend(bytes([mode]) * count)

    def _token(self, row: Token) -> None:
        _expect("token position", row.position, len(self.tokens))
        if not row.position - 1 <= self.computed <= row.position or not row.position:
            raise DamageError(f"found a token at {row.position}, but KV only up to {self.computed}")
        if self.computed < row.position:
            self.modes.append(Mode.DECODE)
        self.tokens.append(row.id)
        self.sampled[row.position] = row
        self.end = None  # the turn goes on after all

    def _truncate(self, length: int) -> None:
        if length > len(self.tokens):
            raise DamageError(f"found a rollback to {length} of {len(self.tokens)} tokens")
        del self.tokens[length:], self.modes[length:]
        self.sampled = {at: token for at, token in self.sampled.items() if at < length}
        self.requests = [request for request in self.requests if request[0] < length or not request[0]]
        self.end = None

    def runs(self, start: int, stop: int) -> tuple[tuple[Mode, int], ...]:
        """Modes of positions start to stop as (mode, tokens) runs."""
        return mode_runs(self.modes[start:stop])

    def rows(self, length: int) -> list[Row]:
        """The shortest rows that, after a header, give the first `length` tokens with their modes."""
        made: list[Row] = []
        computed = at = 0
        requests = {start: data for start, data in self.requests if start < length or not start}
        while at < length or at in requests:
            if at in requests:
                made.append(Request(requests.pop(at)))
                continue
            stop = min([start for start in requests if start > at] + [length])
            token = self.sampled.get(at)
            if token is None:
                stop = next((p for p in range(at, stop) if p in self.sampled), stop)
                made.append(Prompt(at, tuple(self.tokens[at:stop])))
                at = stop
                continue
            if computed < at and (computed < at - 1 or self.modes[at - 1] != Mode.DECODE):
                made.append(Computed(computed, self.runs(computed, at)))
            made.append(token)
            computed, at = at, at + 1
        if computed < min(length, self.computed):
            made.append(Computed(computed, self.runs(computed, min(length, self.computed))))
        return made

    def text(self) -> str:
        """The text of all sampled tokens whose rows carry it; damaged UTF-8 shows as replacement signs."""
        return b"".join(self.sampled[at].text for at in sorted(self.sampled)).decode(errors="replace")


def _expect(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise DamageError(f"{what}: found {found}, expected {expected}")
