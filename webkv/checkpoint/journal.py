"""The rows of one session: written in order, in the background, and read back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from webkv.checkpoint.record import DIGEST_BYTES, Request, Row, Token, decode, encode, seal, seed_of, unseal
from webkv.checkpoint.stores import Store, items, payload_bytes
from webkv.checkpoint.transcript import Transcript
from webkv.errors import CheckpointError, DamageError, StoreError

MOST_LOST_TOKENS = 8
MOST_LOST_SECONDS = 0.25
PATIENCE = 10.0
_FIRST_RETRY, _LAST_RETRY = 0.05, 5.0


def row_key(session: str, number: int) -> str:
    """Where row `number` of a session's journal is."""
    return f"s/{session}/j/{number:010}"


def require_id(session: str) -> None:
    """Raise `CheckpointError` unless this can be a session's id."""
    allowed = session.isascii() and session.replace(".", "").replace("-", "").replace("_", "").isalnum()
    if not allowed or len(session) > 64:
        raise CheckpointError(f"session id is {session!r:.80}, expected 1 to 64 of A-Z a-z 0-9 . _ -")


def first_seed(session: str) -> bytes:
    """The digest seed of a session's row 0."""
    return seed_of(f"s/{session}/j/")


def sealed_rows(session: str, rows: Sequence[Row]) -> dict[str, bytes]:
    """A whole journal, ready to commit."""
    puts, seed = {}, first_seed(session)
    for number, row in enumerate(rows):
        data = _seal(row, number, seed)
        puts[row_key(session, number)] = data
        seed = data[-DIGEST_BYTES:]
    return puts


def _seal(row: Row, number: int, seed: bytes) -> bytes:
    kind, payload = encode(row)
    return seal(kind, number, payload, seed)


@dataclass(frozen=True)
class Walked:
    """A journal's usable rows: what they add up to, and where and why they stop."""

    transcript: Transcript
    rows: int
    seed: bytes
    stale: tuple[str, ...] = ()
    damage: str | None = None


async def exists(store: Store, session: str) -> bool:
    """Whether the store is known to have a session of that id."""
    try:
        return bool(await store.keys(row_key(session, 0)))
    except StoreError:
        return False


async def walk(store: Store, session: str) -> Walked:
    """Read a journal up to the first row that is damaged or does not follow.

    A last request whose prompt did not come with it is left out: its turn has not begun.  Raises
    `CheckpointError` if there is no such session, `DamageError` if not even its first row is whole, or if it
    is a branch that was not written whole.
    """
    found = await items(store, f"s/{session}/j/")
    if not found:
        raise CheckpointError(f"there is no session {session!r}")
    transcript, seeds, damage = Transcript(), [first_seed(session)], None
    row: Row | None = None
    for number, (key, data) in enumerate(found):
        try:
            row = follow(transcript, session, number, key, data, seeds[-1])
        except DamageError as error:
            damage = str(error)
            break
        seeds.append(data[-DIGEST_BYTES:])
    if isinstance(row, Request):
        transcript.drop_request()
        seeds.pop()
    whole = transcript.facts.get("branched_at", 0)
    if transcript.identity is None or (isinstance(whole, int) and transcript.longest < whole):
        raise DamageError(f"session {session!r}: {damage or f'the branch at {whole} was not written whole'}")
    rows = len(seeds) - 1
    return Walked(transcript, rows, seeds[-1], tuple(key for key, _ in found[rows:]), damage)


def follow(transcript: Transcript, session: str, number: int, key: str, data: bytes, seed: bytes) -> Row:
    """Check a row and apply it."""
    what = f"row {number}"
    if key != row_key(session, number):
        raise DamageError(f"{what}: missing, found {key} instead")
    row = decode(*unseal(data, seed, number, what), what)
    try:
        transcript.apply(row)
    except DamageError as error:
        raise DamageError(f"{what}: {error}") from None
    return row


def as_store_error(error: Exception) -> StoreError:
    """The error itself, or what a store raised against its promise, named: a waiter must never hang."""
    return error if isinstance(error, StoreError) else StoreError(f"{type(error).__name__}: {error}")


@dataclass
class _Entry:
    number: int
    puts: dict[str, bytes]
    deletes: list[str]
    token: bool
    made: float


@dataclass
class Retry:
    """When a failed store is tried again: after 50 ms, then twice as long each time, up to 5 s."""

    delay: float = _FIRST_RETRY
    timer: asyncio.TimerHandle | None = None
    closed: bool = False

    def later(self, call: Callable[[], None]) -> None:
        """Call `call` after the delay, once."""
        self.cancel()
        if self.closed:
            return
        self.timer = asyncio.get_running_loop().call_later(self.delay, call)
        self.delay = min(2 * self.delay, _LAST_RETRY)

    def reset(self) -> None:
        """The store works again."""
        self.cancel()
        self.delay = _FIRST_RETRY

    def cancel(self) -> None:
        """Do not call any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def close(self) -> None:
        """Never call again: the session may soon be another's to write."""
        self.cancel()
        self.closed = True


class Journal:
    """Appends rows without waiting; a background task commits them in order, several at once when behind.

    A failed or unanswered commit leaves its rows waiting, in order; `error` says why, and they are tried
    again until it succeeds.  `relaxed` commits after 8 tokens or 250 ms, otherwise as soon as possible.
    `changed` is called after each change of `error` or of `lag`.
    """

    def __init__(
        self,
        store: Store,
        session: str,
        walked: Walked | None = None,
        *,
        relaxed: bool = False,
        patience: float = PATIENCE,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self.session = session
        self.relaxed = relaxed
        self.patience = patience
        self.error: StoreError | None = None
        self.bytes_written = 0
        self._changed = changed
        self._number = walked.rows if walked else 0
        self._seed = walked.seed if walked else first_seed(session)
        self._stale = list(walked.stale) if walked else []
        self._committed = self._number
        self._pending: list[_Entry] = []
        self._task: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._moved = asyncio.Event()
        self._retry = Retry()

    @property
    def lag(self) -> int:
        """Tokens whose rows are not durable."""
        return sum(entry.token for entry in self._pending)

    def append(self, row: Row, puts: Mapping[str, bytes] | None = None, deletes: Sequence[str] = ()) -> int:
        """Add a row, and `puts` and `deletes` to commit with it; returns the ticket for `durable`."""
        assert not self._retry.closed, "the session is closed"
        data = _seal(row, self._number, self._seed)
        entries = {row_key(self.session, self._number): data, **(puts or {})}
        gone = [*self._stale, *deletes]
        self._pending.append(_Entry(self._number, entries, gone, isinstance(row, Token), time.monotonic()))
        self._stale = []
        self._number += 1
        self._seed = data[-DIGEST_BYTES:]
        if self.lag >= MOST_LOST_TOKENS:
            self._urgent.set()
        if self.error is None:
            self._start()
        return self._number

    async def durable(self, ticket: int) -> None:
        """Wait until the rows up to `ticket` may be shown: durable, within the relaxed bound, or degraded."""
        while self._committed < ticket and self.error is None:
            if self.relaxed and self.lag <= MOST_LOST_TOKENS:
                return
            await self._moved.wait()

    async def flush(self) -> None:
        """Try to commit all that waits, once if the store fails; `error` says whether it did."""
        self._urgent.set()
        if self._stale and not self._pending:
            self._pending.append(_Entry(self._number - 1, {}, self._stale, False, time.monotonic()))
            self._stale = []
        if self._pending and self.error is not None:
            self._retry.cancel()
        if self._pending:
            self._start()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=self.patience)

    def close(self) -> None:
        """Commit nothing more, but for what is on its way already."""
        self._retry.close()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        while self._pending and not self._retry.closed:
            if self.relaxed:
                await self._gather()
            self._urgent.clear()
            if not await self._write(list(self._pending)):
                return

    async def _gather(self) -> None:
        """Let rows add up to the relaxed bound."""
        left = MOST_LOST_SECONDS - (time.monotonic() - self._pending[0].made)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._urgent.wait(), max(0.0, left))

    async def _write(self, batch: list[_Entry]) -> bool:
        puts = {key: data for entry in batch for key, data in entry.puts.items()}
        deletes = [key for entry in batch for key in entry.deletes if key not in puts]
        try:
            await self._patiently(puts, deletes)
        except Exception as error:
            self._fail(as_store_error(error))
            self._retry.later(self._start)
            return False
        del self._pending[: len(batch)]
        self._committed = batch[-1].number + 1
        self.bytes_written += payload_bytes(puts)
        self.error = None
        self._retry.reset()
        self._move()
        return True

    async def _patiently(self, puts: dict[str, bytes], deletes: list[str]) -> None:
        """Commit; a store that does not answer in time counts as degraded until it does."""
        late = StoreError(f"the store has not answered for {self.patience:g} s")
        timer = asyncio.get_running_loop().call_later(self.patience, self._fail, late)
        try:
            await self.store.commit(puts, deletes, "strict")
        finally:
            timer.cancel()

    def _fail(self, error: StoreError) -> None:
        self.error = error
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
        self._changed()
