"""Checkpoints: pages out against a plain read-back, a resume against computing anew, bytes written per byte.

What exact durability costs a decode step is in `generate.py`, in the same rounds as decoding without it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

from benchmarks.harness import Bench, Candidate, Goal, Row
from webkv.checkpoint import SqliteStore, delete
from webkv.checkpoint.stores import Durability, payload_bytes
from webkv.checkpoint.transfer import CachePages
from webkv.errors import ModelError
from webkv.load import Loaded, load
from webkv.models.locate import locate
from webkv.resume import Chat
from webkv.sampling import SamplingParams

QUESTION = "What do checkpoints cost, and how much sooner is a resumed chat back?"
RAW = "a plain read-back of as many bytes"
ANEW = "computing the same tokens anew"
KV = "the KV bytes of the tokens kept"
LLAMA = "llama.cpp's save_state and load_state"
GOALS = (
    Goal(RAW, 0.9, "exporting pages", lambda row: "export" in row.case),
    Goal(ANEW, 20.0, "resuming", lambda row: "resume" in row.case, min),
    Goal(KV, 1 / 1.05, "bytes written", lambda row: "written" in row.case, min),
)
TOKENS = {False: (1024,), True: (1024, 4096)}
EXPORTED = 32


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
    """Exports, then per length: a resume, and the bytes written until then."""
    try:
        files = locate(None)
    except ModelError as error:
        yield Row("SmolLM2", note=str(error))
        return
    bench.say("loading SmolLM2")
    loaded = await load(files, device=bench.device, context=max(TOKENS[bench.full]) + 64, sequences=2)
    yield await exporting(bench, loaded)
    for length in TOKENS[bench.full]:
        async for row in resuming(bench, loaded, length):
            yield row
        yield llama(files, length)


async def exporting(bench: Bench, loaded: Loaded) -> Row:
    """Pages in the order a session stores them, against one buffer of the same size."""
    cache, identity = loaded.engine.cache, loaded.identity
    cache.add_sequence(-1)
    for _ in range(EXPORTED * identity.page_tokens // 128):
        cache.begin_forward([-1], [128])
        cache.end_forward()
    pages = CachePages(cache, -1, identity)
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

    compared = await bench.compare([Candidate(RAW, read), Candidate("export", export)])
    cache.remove_sequence(-1)
    bench.device.release(buffer)
    wall = compared.ms("export", "wall")
    return Row(
        f"export {EXPORTED} pages", compared.ms("export"), wall, f"{nbytes / wall / 1e6:.2f} GB/s",
        ratios={RAW: compared.speedup("export", RAW)}, note=f"{nbytes >> 20} MiB",
    )  # fmt: skip


async def resuming(bench: Bench, loaded: Loaded, length: int) -> AsyncIterator[Row]:
    """A chat of `length` tokens is stored and comes back; its tokens are prefilled anew for comparison."""
    engine = loaded.engine
    tokens = [(7919 * at) % 40_000 + 100 for at in range(length)]
    prompt = engine.tokenizer.decode(tokens)
    with tempfile.TemporaryDirectory() as folder:
        async with CountingStore(Path(folder) / "sessions.db") as store:
            bench.say(f"a chat of {length} tokens")
            prefill, chat = await timed(begun(loaded, store, prompt))
            await chat.close()
            kept, pages = len(chat.conversation.tokens), chat.session.stored
            kv = sum(loaded.identity.group(group).page_bytes for group, _ in pages)
            written = store.written
            bench.say(f"resuming {kept} tokens")
            resume, again = await timed(Chat.resume(loaded, store, chat.id))
            how = str(again.recovery)
            await again.close()
            await delete(store, chat.id)
    yield Row(
        f"resume {kept} tokens", 1e3 * resume[0], 1e3 * resume[1],
        ratios={ANEW: prefill[bench.clock == "wall"] / resume[bench.clock == "wall"]}, note=how,
    )  # fmt: skip
    yield Row(
        f"bytes written for {kept} tokens", rate=f"{written / kv:.3f} per KV byte", ratios={KV: kv / written},
        note=f"{(written - kv) / kept:.0f} bytes per token besides the KV",
    )  # fmt: skip


async def begun(loaded: Loaded, store: SqliteStore, prompt: str) -> Chat:
    """A new chat with its first token."""
    chat = await Chat.begin(loaded, store, prompt=prompt, params=SamplingParams(), max_tokens=1)
    async for _ in chat.generate():
        pass
    return chat


async def timed(work: object) -> tuple[tuple[float, float], Chat]:
    """(CPU seconds, wall seconds), and what the work made."""
    cpu, wall = time.process_time(), time.perf_counter()
    made = await work  # type: ignore[misc]
    return (time.process_time() - cpu, time.perf_counter() - wall), made


def llama(files: tuple[Path, ...], length: int) -> Row:
    """llama.cpp's whole-state save and restore of as many tokens, in memory."""
    try:
        from llama_cpp import Llama
    except ImportError:
        return Row(f"{LLAMA}, {length} tokens", note="llama-cpp-python is not installed")
    model = Llama(str(files[0]), n_ctx=length + 64, n_batch=256, verbose=False)
    begun = time.perf_counter()
    model.eval([(7919 * at) % 40_000 + 100 for at in range(length)])
    prefill, begun = time.perf_counter() - begun, time.perf_counter()
    state = model.save_state()
    saved, begun = time.perf_counter() - begun, time.perf_counter()
    model.load_state(state)
    restored = time.perf_counter() - begun
    return Row(
        f"{LLAMA}, {length} tokens", wall_ms=1e3 * (saved + restored), ratios={ANEW: prefill / restored},
        note=f"{len(state.llama_state) >> 20} MiB, {1e3 * saved:.0f} ms out, {1e3 * restored:.0f} in",
    )  # fmt: skip
