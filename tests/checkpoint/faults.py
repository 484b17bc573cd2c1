"""A store that goes wrong at its k-th operation, and a scripted session that is driven to its end again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.checkpoint.toy import ToyEngine, prompt
from webkv.checkpoint import Identity, Options, Session, Store, delete
from webkv.checkpoint.stores import Durability, PatientStore, items
from webkv.errors import CheckpointError, DamageError, StoreError, StoreFullError

FAULTS = ["crash before", "crash after", "tear", "fail", "full", "hang"]
"""What happens at operation k.

`crash before`, `crash after`: the process dies before or after it (`died` is set, nothing returns any more).
`tear`: as `crash after`, but only half of a commit happens, as no store may do.  `fail`, `full`: it alone
raises.  `hang`: it never returns.
"""


Operation = Callable[[], Awaitable[Any]]


class FaultStore:
    """Does `fault` at operation number `at` (from 0) of `inner`.  `points` names all operations so far."""

    def __init__(self, inner: Store, at: int = -1, fault: str = "") -> None:
        self.inner = inner
        self.at = at
        self.fault = fault
        self.died = asyncio.Event()
        self.points: list[str] = []

    async def _do(self, name: str, call: Operation, torn: Operation) -> Any:
        if self.died.is_set():
            await asyncio.Event().wait()
        self.points.append(name)
        if len(self.points) - 1 != self.at:
            return await call()
        if self.fault == "fail":
            raise StoreError("failed once")
        if self.fault == "full":
            raise StoreFullError("full once", 1234)
        if self.fault == "hang":
            await asyncio.Event().wait()
        if self.fault == "crash after":
            await call()
        elif self.fault == "tear":
            await torn()
        self.died.set()
        return await asyncio.Event().wait()

    async def get(self, key: str) -> bytes | None:
        return await self._do(f"get {kind(key)}", lambda: self.inner.get(key), lambda: self.inner.get(key))

    async def keys(self, prefix: str) -> list[str]:
        return await self._do(f"keys {kind(prefix)}", *[lambda: self.inner.keys(prefix)] * 2)

    async def items(self, prefix: str) -> list[tuple[str, bytes]]:
        return await self._do(f"items {kind(prefix)}", *[lambda: items(self.inner, prefix)] * 2)

    async def commit(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), durability: Durability = "strict"
    ) -> None:
        gone = list(deletes)
        half = dict(list(puts.items())[: len(puts) // 2])
        name = "commit " + " ".join(
            sorted({f"+{kind(key)}" for key in puts} | {f"-{kind(key)}" for key in gone})
        )
        await self._do(
            name,
            lambda: self.inner.commit(puts, gone, durability),
            lambda: self.inner.commit(half, gone[: len(gone) // 2], durability),
        )

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        return self.inner.lock(name)

    async def estimate(self) -> tuple[int, int | None]:
        return await self.inner.estimate()


def kind(key: str) -> str:
    """The part of a key that says what it is for."""
    parts = key.split("/")
    return "/".join([parts[0], *(parts[2:3] if parts[0] == "s" else [])])


PROMPT, MORE, BRANCHED = prompt(1, 7), prompt(2, 5), prompt(3, 3)
TURN = 6


class Script:
    """Prefill, decode over pages, a second turn, a branch with a turn of its own; `run` goes on anywhere."""

    def __init__(self, store: Store, model: Identity, options: Options) -> None:
        self.store = store
        self.model = model
        self.options = options
        self.live: list[Session] = []
        self.shown: dict[str, dict[int, int]] = {"a": {}, "b": {}}
        self.statuses: list[str] = []

    async def run(self) -> dict[str, ToyEngine]:
        parent = await self._session("a")
        await self._turn(parent, 0, PROMPT)
        await self._turn(parent, 1, MORE)
        child = await self._session("b", parent)
        await self._turn(child, 1, BRANCHED)
        return {"a": parent, "b": child}

    async def _session(self, id: str, parent: ToyEngine | None = None) -> ToyEngine:
        try:
            session = await Session.open(self.store, id, self.model, options=self.options)
        except CheckpointError as error:
            if isinstance(error, DamageError):
                await delete(PatientStore(self.store, self.options.patience), id)
            if parent is None:
                session = await Session.create(self.store, self.model, id=id, options=self.options)
            else:
                session = await parent.session.branch(10, id=id)
        self.live.append(session)
        engine = ToyEngine(session)
        engine.shown = self.shown[id]
        await engine.restore()
        return engine

    async def _turn(self, engine: ToyEngine, number: int, ids: list[int]) -> None:
        session = engine.session
        if len(session.transcript.requests) <= number:
            await session.durable(session.request({"turn": number}))
        start = session.transcript.requests[number][0]
        if len(session.transcript.requests) > number + 1:
            return
        if len(session.transcript.tokens) == start:
            await session.durable(session.prompt(ids))
        await engine.generate(TURN)

    async def close(self) -> list[str]:
        return [(await session.close()).state for session in self.live]

    async def abandon(self) -> None:
        """What a dead process leaves: no lock, nothing more written."""
        for session in self.live:
            session._journal.close()
            session._pages.close()
            await session._held.aclose()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def delete_branch(self) -> None:
        self.shown["b"].clear()
        await delete(PatientStore(self.store, self.options.patience), "b")
