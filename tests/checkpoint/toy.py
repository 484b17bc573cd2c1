"""A model small enough to be exact: every KV byte depends on all KV it may see, on its token and its mode.

One wrong byte anywhere changes all later tokens, so equal tokens mean equal KV.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Sequence

from webkv.checkpoint import Group, Identity, Mode, Plan, Session

SLOT = 8
PAGE = 4
VOCABULARY = 1000
EOS = 999


def identity(*windows: int | None, weights: str = "w", **fields: str) -> Identity:
    """A model with one layer group per window (None: no window)."""
    groups = tuple(
        Group("full" if window is None else f"window{window}", f"layout{at}", PAGE * SLOT, window)
        for at, window in enumerate(windows or (None,))
    )
    return Identity(weights, fields.pop("tokenizer", "t"), fields.pop("rope", "r"), groups, PAGE, **fields)


class ToyCache:
    """One sequence: pages by (group, block); those that left a window are gone after a step."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.length = 0
        self.pages: dict[tuple[str, int], bytearray] = {}
        self.exports = 0

    # PageSource

    def export(self, pages: Sequence[tuple[str, int]]) -> list[Awaitable[bytes] | None]:
        return [self.export_page(*page) for page in pages]

    def export_page(self, group: str, block: int) -> Awaitable[bytes] | None:
        if (group, block) not in self.pages or (block + 1) * PAGE > self.length:
            return None
        self.exports += 1
        copied = bytes(self.pages[group, block])

        async def later() -> bytes:
            await asyncio.sleep(0)
            return copied

        return asyncio.ensure_future(later())

    # PageTarget

    def reserve(self, tokens: int) -> None:
        assert not self.length
        self.imported = tokens
        self.pages = {
            (group.name, block): bytearray(b"\xee" * PAGE * SLOT)
            for group in self.identity.groups
            for block in group.needed(tokens, PAGE)
        }

    def write(self, group: str, block: int, data: bytes) -> None:
        self.pages[group, block][:] = data

    def seal(self) -> None:
        self.length = self.imported

    def cancel(self) -> None:
        self.pages.clear()

    # the model

    def visible(self, position: int) -> bytes:
        """All KV that a query at `position` sees, before its own."""
        seen = []
        for group in self.identity.groups:
            first = 0 if group.window is None else max(0, position - group.window + 1)
            seen += [self.slot(group.name, at) for at in range(first, position)]
        return b"".join(seen)

    def slot(self, group: str, position: int) -> bytes:
        page = self.pages[group, position // PAGE]
        return bytes(page[position % PAGE * SLOT :][:SLOT])

    def compute(self, mode: Mode, tokens: list[int], stop: int) -> int:
        """KV of positions length to stop, in one step; returns the next token."""
        for position in range(self.length, stop):
            mixed = b"%d:%d:%d:" % (mode, position, tokens[position]) + self.visible(position)
            for group in self.identity.groups:
                page = self.pages.setdefault((group.name, position // PAGE), bytearray(b"\xee" * PAGE * SLOT))
                kv = hashlib.sha256(group.name.encode() + mixed).digest()[:SLOT]
                page[position % PAGE * SLOT : (position % PAGE + 1) * SLOT] = kv
            out = hashlib.sha256(mixed + b"out").digest()
        self.length = stop
        return int.from_bytes(out[:4], "little") % EOS

    def slide(self) -> None:
        """Free what left a window, as the real cache does: a resume at the last full page still finds all."""
        for group in self.identity.groups:
            if group.window is not None:
                first = -(-self.length // PAGE) + (1 - group.window) // PAGE - 1
                for key in [key for key in self.pages if key[0] == group.name and key[1] < first]:
                    del self.pages[key]

    def popn(self, count: int) -> None:
        self.length -= count
        for key in [key for key in self.pages if key[1] * PAGE >= self.length]:
            del self.pages[key]

    def image(self) -> dict[tuple[str, int], bytes]:
        """All full pages that a resume would need, to compare."""
        full = self.length // PAGE
        return {
            (group.name, block): bytes(self.pages[group.name, block])
            for group in self.identity.groups
            for block in group.needed(full * PAGE, PAGE)
        }


class ToyEngine:
    """The loop an engine runs over a session: restore, replay, prefill in chunks, decode."""

    def __init__(self, session: Session, chunk: int = 6) -> None:
        self.session = session
        self.cache = ToyCache(session.identity)
        self.chunk = chunk
        self.next: int | None = None
        self.shown: dict[int, int] = {}

    @property
    def tokens(self) -> list[int]:
        return self.session.transcript.tokens

    async def restore(self) -> Plan:
        """Fill the cache from the store and compute the rest of what had been computed."""
        plan = await self.session.restore(self.cache)
        for step in plan.replay:
            if step.mode is Mode.DECODE:
                for at in range(step.start, step.stop):
                    self.step(Mode.DECODE, at + 1)
            else:
                for at in range(step.start, step.stop, self.chunk):
                    self.step(Mode.PREFILL, min(at + self.chunk, step.stop))
        self.session.attach(self.cache)
        return plan

    def step(self, mode: Mode, stop: int) -> None:
        self.next = self.cache.compute(mode, self.tokens, stop)

    async def prefill(self) -> None:
        """Compute all pending prompt tokens."""
        while self.cache.length < len(self.tokens):
            stop = min(self.cache.length + self.chunk, len(self.tokens))
            self.step(Mode.PREFILL, stop)
            ticket = self.session.computed(stop)
            self.cache.slide()
            await self.session.durable(ticket)

    async def generate(self, count: int) -> None:
        """Go on until `count` tokens of this turn are sampled, then end the turn."""
        done = self.turn_tokens()
        if not done:
            await self.prefill()
        for _ in range(count - done):
            if self.cache.length < len(self.tokens):
                self.step(Mode.DECODE, len(self.tokens))
            assert self.next is not None
            ticket = self.session.token(self.next, b"state%d" % len(self.tokens), b"%d " % self.next)
            self.cache.slide()
            await self.session.durable(ticket)
            self.shown[len(self.tokens) - 1] = self.tokens[-1]
        if self.session.transcript.end is None:
            await self.session.durable(self.session.end("length"))

    def turn_tokens(self) -> int:
        """Tokens sampled since the last given one."""
        count = 0
        while len(self.tokens) - 1 - count in self.session.transcript.sampled:
            count += 1
        return count

    async def turn(self, prompt: list[int], count: int) -> None:
        """A whole new turn."""
        await self.session.durable(self.session.request({"prompt": prompt}))
        await self.session.durable(self.session.prompt(prompt))
        await self.generate(count)


def prompt(seed: int, length: int) -> list[int]:
    """Reproducible token ids."""
    return [
        int.from_bytes(hashlib.sha256(b"%d,%d" % (seed, at)).digest()[:4], "little") % EOS
        for at in range(length)
    ]
