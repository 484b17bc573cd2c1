"""Checkpoints: what they cost a decode step, what pages out cost, and a resume against computing anew.

llama.cpp saves and restores its whole state next to it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from benchmarks.harness import Bench, Candidate, Cost, Goal, Row, compare
from benchmarks.peers.llamacpp import NAME, LlamaCpp
from benchmarks.smollm2 import Opened, open_smollm2, prompt
from webkv.checkpoint import SqliteStore, delete
from webkv.checkpoint.stores import Durability, payload_bytes
from webkv.checkpoint.transfer import CachePages
from webkv.load import Loaded
from webkv.resume import Chat
from webkv.sampling import SamplingParams

QUESTION = "What do checkpoints cost, and how much sooner is a resumed chat back?"
RAW = "a plain read-back of as many bytes"
ANEW = "computing the same tokens anew"
KV = "the KV bytes of the tokens kept"
PLAIN = "the same run without a session"
GOALS = (
    Goal(PLAIN, 0.97, "decode with exact durability", lambda row: "exact" in row.case),
    Goal(RAW, 0.9, "exporting a chat's pages", lambda row: "neighbours" in row.case),
    Goal(ANEW, 20.0, "resuming", lambda row: row.case.startswith("resume"), min),
    Goal(KV, 1 / 1.05, "bytes written", lambda row: row.case.startswith("bytes"), min),
)
TOKENS = {False: (1024,), True: (1024, 4096)}
EXPORTED = 32
STRETCH = 16
"""Tokens drawn per timed piece: a page, so that every piece has an export.  Short, as a virtual machine's
speed drifts by more than what is measured here within seconds."""

ROUNDS = 24
RESUMES = 3

T = TypeVar("T")


class CountingStore(SqliteStore):
    """Counts the bytes of keys and values that are written."""

    written = 0

    async def commit(
        self, puts: Mapping[str, bytes], deletes: Iterable[str] = (), durability: Durability = "strict"
    ) -> None:
        """Commit, and count."""
        await super().commit(puts, deletes, durability)
        self.written += payload_bytes(puts)


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """Decode with a session, exports, then per length: a resume, the bytes written until then, llama.cpp."""
    # A prompt reads as a few more tokens than were asked for: its text is encoded anew.
    model = await open_smollm2(bench, max(TOKENS[bench.full]) * 9 // 8)
    if isinstance(model, Row):
        yield model
        return
    bench.say("exporting pages")
    yield await exporting(model, [-1])
    yield await exporting(model, [-1, -2])
    bench.say("SmolLM2 with and without a session")
    yield await durability(model)
    with model.peer() as peer:
        for length in TOKENS[bench.full]:
            async for row in resuming(model, length):
                yield row
            if peer is None:
                yield Row(f"{NAME}: {length} tokens", note="xllamacpp is not installed")
                continue
            async for row in whole_state(model, peer, length):
                yield row


async def durability(model: Opened) -> Row:
    """Decode with exact durability in a file against the same without a session."""
    loaded = model.loaded
    engine = loaded.engine
    conversation = engine.open(engine.tokenizer.encode(" the" * 64))
    with TemporaryDirectory() as folder:
        async with SqliteStore(Path(folder) / "sessions.db") as store:
            chat = await Chat.begin(loaded, store, prompt=" the" * 64, max_tokens=1)

            async def plain(repeats: int) -> None:
                count = STRETCH * repeats
                await drain(engine.generate(conversation, SamplingParams(), max_tokens=count, stop=()))

            async def exact(repeats: int) -> None:
                await drain(chat.generate(len(chat.answer) + STRETCH * repeats))

            work = [Candidate(PLAIN, plain, STRETCH), Candidate("exact", exact, STRETCH)]
            compared = await compare(work, ROUNDS, ROUNDS * model.bench.budget_s, model.bench.clock)
            await chat.close()
    engine.close(conversation)
    wall = compared.ms("exact", "wall") / compared.ms(PLAIN, "wall")
    kept = compared.speedup("exact", PLAIN)
    return Row(
        "decode with exact durability", compared.ms("exact"), compared.ms("exact", "wall"),
        ratios={PLAIN: kept}, note=f"checkpoints: {1 - kept:.1%} of a step; {wall:.3f} of its wall time",
    )  # fmt: skip


async def exporting(model: Opened, sequences: Sequence[int]) -> Row:
    """Pages of the first of `sequences`, which grow in turn, against one buffer of the same size.

    Those of one that grows alone are neighbours, and go in one copy per layer.
    """
    bench, loaded = model.bench, model.loaded
    cache, identity = loaded.engine.cache, loaded.identity
    for seq in sequences:
        cache.add_sequence(seq)
    for seq in [*sequences] * EXPORTED:
        cache.begin_forward([seq], [identity.page_tokens])
        cache.end_forward()
    pages = CachePages(cache, sequences[0], identity)
    wanted = [(group.name, block) for group in identity.groups for block in range(EXPORTED)]
    nbytes = EXPORTED * sum(group.page_bytes for group in identity.groups)
    buffer = bench.device.buffer(nbytes, label="as many bytes")

    async def export(repeats: int) -> None:
        for _ in range(repeats):
            for item in pages.export(wanted):
                assert item is not None
                await item

    async def read(repeats: int) -> None:
        for _ in range(repeats):
            await bench.device.read(buffer)

    work = [Candidate(RAW, read), Candidate("export", export)]
    compared = await compare(work, ROUNDS, 3 * bench.budget_s, bench.clock)
    for seq in sequences:
        cache.remove_sequence(seq)
    bench.device.release(buffer)
    wall = compared.ms("export", "wall")
    where = "neighbours" if len(sequences) == 1 else "scattered"
    return Row(
        f"export {EXPORTED} pages, {where}", compared.ms("export"), wall, f"{nbytes / wall / 1e6:.2f} GB/s",
        ratios={RAW: compared.speedup("export", RAW)}, note=f"{nbytes >> 20} MiB",
    )  # fmt: skip


async def resuming(model: Opened, length: int) -> AsyncIterator[Row]:
    """A chat of `length` tokens is stored and comes back; its tokens are prefilled anew for comparison."""
    bench, loaded = model.bench, model.loaded
    text = loaded.engine.tokenizer.decode(prompt(length))
    with TemporaryDirectory() as folder:
        store = CountingStore(Path(folder) / "sessions.db")
        async with store:
            bench.say(f"a chat of {length} tokens")
            prefill, chat = await timed(begun(loaded, store, text))
            await chat.close()
            kept, pages = len(chat.conversation.tokens), chat.session.stored
            kv = sum(loaded.identity.group(group).page_bytes for group, _ in pages)
            written = store.written
            bench.say(f"resuming {kept} tokens")
            resumes = []
            for _ in range(RESUMES):
                resume, again = await timed(Chat.resume(loaded, store, chat.id))
                resumes.append(resume)
                await again.close()
            await delete(store, chat.id)
    resume = sorted(resumes, key=attrgetter(bench.clock))[RESUMES // 2]
    yield Row(
        f"resume {kept} tokens", 1e3 * resume.cpu, 1e3 * resume.wall,
        ratios={ANEW: prefill.over(resume, bench.clock)}, note=str(again.recovery),
    )  # fmt: skip
    yield Row(
        f"bytes written for {kept} tokens", rate=f"{written / kv:.3f} per KV byte", ratios={KV: kv / written},
        note=f"{(written - kv) / kept:.0f} bytes per token besides the KV",
    )  # fmt: skip


async def begun(loaded: Loaded, store: SqliteStore, text: str) -> Chat:
    """A new chat with its first token."""
    chat = await Chat.begin(loaded, store, prompt=text, max_tokens=1)
    await drain(chat.generate())
    return chat


async def whole_state(model: Opened, peer: LlamaCpp, length: int) -> AsyncIterator[Row]:
    """llama.cpp's slot of as many tokens, to a file and back."""

    async def run(work: Callable[[], T]) -> T:
        return work()

    model.bench.say(f"{NAME}, {length} tokens")
    prefill, _ = await timed(run(lambda: peer.compute(prompt(length), 1, cached=False)))
    save, written = await timed(run(peer.save))
    restore, _ = await timed(run(peer.restore))
    yield Row(
        f"{NAME}: save {length} tokens", 1e3 * save.cpu, 1e3 * save.wall,
        f"{written / model.kv_bytes(length):.3f} per KV byte",
        note=f"{written >> 20} MiB, each time it is saved",
    )  # fmt: skip
    yield Row(
        f"{NAME}: restore {length} tokens", 1e3 * restore.cpu, 1e3 * restore.wall,
        ratios={ANEW: prefill.over(restore, model.bench.clock)},
    )  # fmt: skip


async def timed(work: Awaitable[T]) -> tuple[Cost, T]:
    """What the work cost, and what it made."""
    cpu, wall = time.process_time(), time.perf_counter()
    made = await work
    return Cost(time.process_time() - cpu, time.perf_counter() - wall), made


async def drain(events: AsyncIterator[Any]) -> None:
    """Take everything there is."""
    async for _ in events:
        pass
