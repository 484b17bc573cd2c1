"""A whole model: tokens per second, where a token's milliseconds go, and what checkpoints cost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, Candidate, Goal, Row, on_gpu
from benchmarks.limit import Reader
from webkv.checkpoint import SqliteStore
from webkv.errors import ModelError
from webkv.gpu import Batch, Device, Kernel
from webkv.load import Loaded, load
from webkv.models.gguf import open_gguf
from webkv.models.locate import locate
from webkv.resume import Chat
from webkv.sampling import SamplingParams

QUESTION = "How fast is SmolLM2, and where does a token's time go?"
READ = "a plain read of the weights and KV"
PLAIN = "the same run without a session"
GOALS = (
    Goal(PLAIN, 0.97, "decode with exact durability", lambda row: "exact" in row.case),
)
PROMPT_TOKENS = {False: (128, 1024), True: (128, 1024, 2048, 4096)}
NEW_TOKENS = 24
READ_BYTES = 16 << 20
STRETCH = 16
"""Tokens drawn per timed piece: one page's worth, so that page exports count too."""
GREEDY = SamplingParams()

Dispatch = tuple[Kernel, Any, int, int, int]


@dataclass(eq=False)
class Recorder(Batch):
    """A batch that also keeps what was dispatched, by kernel name, to run each part alone."""

    device: Device
    kept: dict[str, list[Dispatch]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.device)

    def dispatch(self, kernel: Kernel, group: Any, x: int, y: int = 1, z: int = 1) -> None:
        """Record and keep."""
        self.kept.setdefault(part_of(kernel.name), []).append((kernel, group, x, y, z))
        super().dispatch(kernel, group, x, y, z)


def part_of(kernel: str) -> str:
    """The part of a step that a kernel belongs to."""
    if kernel.startswith(("attend", "merge", "append", "fuse")):
        return "attention"
    return "matmul" if kernel.startswith(("mat", "embed")) else "other"


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """One row per prompt length and part, then one per durability."""
    try:
        files = locate(None)
    except ModelError as error:
        yield Row("SmolLM2", note=str(error))
        return
    bench.say("loading SmolLM2")
    context = max(PROMPT_TOKENS[bench.full]) + 8 * NEW_TOKENS
    loaded = await load(files, device=bench.device, context=context, sequences=2)
    weights = sum(tensor.nbytes for tensor in open_gguf(files).tensors.values())
    for length in PROMPT_TOKENS[bench.full]:
        bench.say(f"SmolLM2 at {length} tokens")
        async for row in speeds(bench, loaded, length, weights):
            yield row
    bench.say("SmolLM2 with and without a session")
    yield await durability(bench, loaded)


def prompt(length: int) -> list[int]:
    """Token ids that repeat nothing soon."""
    return [(7919 * i) % 40_000 + 100 for i in range(length)]


async def speeds(bench: Bench, loaded: Loaded, length: int, weights: int) -> AsyncIterator[Row]:
    """Prefill and decode speed at `length` tokens, and the parts of one decode step."""
    engine = loaded.engine
    conversation = engine.open(prompt(length))
    await engine.prefill(conversation, min(length, engine.model.max_rows))  # compiles
    engine.close(conversation)
    conversation = engine.open(prompt(length))
    cost = await timed(lambda: engine.prefill(conversation, length))
    yield speed_row(f"prefill {length}", cost, length)
    conversation.tokens += prompt(NEW_TOKENS + 2)
    await engine.replay(conversation, length + 2)
    cost = await timed(lambda: engine.replay(conversation, length + 2 + NEW_TOKENS))
    yield speed_row(f"decode at {length}", cost, NEW_TOKENS)
    async for row in parts(bench, loaded, conversation, weights):
        yield row
    engine.close(conversation)


async def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of one run."""
    cpu, wall = time.process_time(), time.perf_counter()
    await run()
    return time.process_time() - cpu, time.perf_counter() - wall


def speed_row(case: str, cost: tuple[float, float], tokens: int) -> Row:
    """A row per token."""
    cpu, wall = (seconds / tokens for seconds in cost)
    return Row(case, 1e3 * cpu, 1e3 * wall, f"{1 / wall:.1f} tokens/s")


async def parts(bench: Bench, loaded: Loaded, conversation: Any, weights: int) -> AsyncIterator[Row]:
    """Each part of a decode step run alone, side by side; and the host's share."""
    engine, length = loaded.engine, conversation.cached
    host = time.thread_time()
    engine.cache.begin_forward([conversation.id], [1])
    recorder = Recorder(bench.device)
    with recorder as batch:
        engine.model.forward(batch, engine.cache, [1], "decode")
    host = time.thread_time() - host
    engine.cache.abort_forward()
    source = bench.device.buffer(READ_BYTES, label="read")
    reader = Reader(bench.device, source, "f32")
    times = round((weights + kv_bytes(loaded, length)) / READ_BYTES)
    candidates = [on_gpu(READ, bench.device, lambda batch: [reader.record(batch) for _ in range(times)])]
    candidates += [on_gpu(name, bench.device, replayed(work)) for name, work in recorder.kept.items()]
    compared = await bench.compare(candidates)
    for name, work in recorder.kept.items():
        yield Row(
            f"decode at {length}: {name}", compared.ms(name), compared.ms(name, "wall"),
            ratios={READ: compared.speedup(name, READ)}, note=f"{len(work)} dispatches",
        )  # fmt: skip
    reader.close()
    bench.device.release(source)
    yield Row(f"decode at {length}: host", 1e3 * host, 1e3 * host, note="bookkeeping and encoding")


def replayed(work: list[Dispatch]) -> Callable[[Batch], None]:
    """Dispatch the same work again."""

    def record(batch: Batch) -> None:
        for dispatch in work:
            batch.dispatch(*dispatch)

    return record


def kv_bytes(loaded: Loaded, tokens: int) -> int:
    """Bytes of KV that a token at that position reads."""
    per_page = sum(group.page_bytes for group in loaded.identity.groups)
    return per_page * tokens // loaded.identity.page_tokens


async def durability(bench: Bench, loaded: Loaded) -> Row:
    """Decode with exact durability in a file against the same without a session."""
    conversation = loaded.engine.open(prompt(64))
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteStore(Path(folder) / "sessions.db") as store:
            chat = await Chat.begin(loaded, store, prompt=" the" * 64, max_tokens=1)

            async def plain(repeats: int) -> None:
                count = STRETCH * repeats
                await drain(loaded.engine.generate(conversation, GREEDY, max_tokens=count, stop=()))

            async def exact(repeats: int) -> None:
                await drain(chat.generate(len(chat.answer) + STRETCH * repeats))

            work = [Candidate(PLAIN, plain, STRETCH), Candidate("exact", exact, STRETCH)]
            compared = await bench.compare(work)
            await chat.close()
    loaded.engine.close(conversation)
    return Row(
        "decode with exact durability", compared.ms("exact"), compared.ms("exact", "wall"),
        ratios={PLAIN: compared.speedup("exact", PLAIN)},
    )  # fmt: skip


async def drain(events: AsyncIterator[Any]) -> None:
    """Take everything there is."""
    async for _ in events:
        pass
