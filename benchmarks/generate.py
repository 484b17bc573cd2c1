"""A whole model: tokens per second next to llama.cpp's, and where a token's milliseconds go."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.checkpoint import durability
from benchmarks.harness import Bench, Candidate, Comparison, Goal, Row, on_gpu
from benchmarks.limit import Reader
from benchmarks.peers.llamacpp import NAME, LlamaCpp
from benchmarks.smollm2 import Opened, open_smollm2, prompt
from webkv.conversation import Conversation
from webkv.gpu import Batch, Device, Kernel
from webkv.sampling import SamplingParams

QUESTION = "How fast is SmolLM2, and where does a token's time go?"
READ = "a plain read of the weights and KV"
STEP = "the step"
LIMIT = "4 KiB read back"
GOALS = (
    Goal(NAME, 0.5, "decode", lambda row: row.case.startswith("decode at")),
    Goal(NAME, 0.5, "prefill", lambda row: row.case.startswith("prefill")),
    Goal(STEP, 1 / 0.15, "the host's part of a decode step", lambda row: row.case.startswith("host"), min),
    Goal(LIMIT, 1.0, "read back per token", lambda row: row.case.startswith("read back"), min),
)
LENGTHS = {False: (128, 1024), True: (128, 1024, 2048, 4096)}
PREFILLS = {False: (256,), True: (256, 1024, 2048)}
NEW_TOKENS = 16
READ_BYTES = 16 << 20
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
    """Prefill, then per context length: decode, and its parts."""
    lengths = LENGTHS[bench.full]
    model = await open_smollm2(bench, max(lengths) + 2 * NEW_TOKENS)
    if isinstance(model, Row):
        yield model
        return
    with model.peer() as peer:
        for length in PREFILLS[bench.full]:
            async for row in prefill(model, peer, length):
                yield row
        for length in lengths:
            bench.say(f"SmolLM2 at {length} tokens")
            conversation = await model.computed(length)
            async for row in decode(model, peer, conversation):
                yield row
            async for row in parts(model, conversation):
                yield row
            model.loaded.engine.close(conversation)
        yield await read_back(model)
        bench.say("SmolLM2 with and without a session")
        yield await durability(model)


async def prefill(model: Opened, peer: LlamaCpp | None, length: int) -> AsyncIterator[Row]:
    """A prompt of `length` tokens by itself."""
    model.bench.say(f"SmolLM2, a prompt of {length} tokens")
    engine = model.loaded.engine

    async def ours(repeats: int) -> None:
        for _ in range(repeats):
            engine.close(await model.computed(length))

    async def theirs(repeats: int) -> None:
        for _ in range(repeats):
            assert peer is not None
            peer.compute(prompt(length), 1, cached=False)

    candidates = [Candidate("webkv", ours, length)]
    candidates += [Candidate(NAME, theirs, length)] if peer else []
    compared = await model.bench.compare(candidates)
    for row in speed_rows(f"prefill {length}", compared, peer):
        yield row


async def decode(model: Opened, peer: LlamaCpp | None, conversation: Conversation) -> AsyncIterator[Row]:
    """Greedy tokens after the conversation's, each read back before the next."""
    engine, length = model.loaded.engine, conversation.cached
    if peer is not None:
        peer.compute(prompt(length), 1, cached=False)

    async def ours(repeats: int) -> None:
        for _ in range(repeats):
            child = engine.fork(conversation)
            async for _ in engine.generate(child, GREEDY, max_tokens=NEW_TOKENS, stop=()):
                pass
            engine.close(child)

    async def theirs(repeats: int) -> None:
        for _ in range(repeats):
            assert peer is not None
            peer.compute(prompt(length), NEW_TOKENS, cached=True)

    candidates = [Candidate("webkv", ours, NEW_TOKENS)]
    candidates += [Candidate(NAME, theirs, NEW_TOKENS)] if peer else []
    for row in speed_rows(f"decode at {length}", await model.bench.compare(candidates), peer):
        yield row


def speed_rows(case: str, compared: Comparison, peer: LlamaCpp | None) -> list[Row]:
    """Our cost per token and, if it is there, the peer's."""
    ratios = {NAME: compared.speedup("webkv", NAME)} if peer else {}
    names = [("webkv", case, ratios)] + ([(NAME, f"{NAME}: {case}", {})] if peer else [])
    found = []
    for name, text, against in names:
        wall = compared.ms(name, "wall")
        found.append(Row(text, compared.ms(name, "cpu"), wall, f"{1e3 / wall:.1f} tokens/s", against))
    return found


async def parts(model: Opened, conversation: Conversation) -> AsyncIterator[Row]:
    """Each part of a decode step run alone, side by side; and the host's share."""
    bench, engine, length = model.bench, model.loaded.engine, conversation.cached
    recorder, host = recorded(model, conversation)
    source = bench.device.buffer(READ_BYTES, label="read")
    reader = Reader(bench.device, source, "f32")
    times = round((model.weights + model.kv_bytes(length)) / READ_BYTES)
    candidates = [on_gpu(READ, bench.device, repeated(reader, times))]
    candidates += [on_gpu(name, bench.device, replayed(work)) for name, work in recorder.kept.items()]
    compared = await bench.compare(candidates)
    layers = model.loaded.config.n_layers
    for name, work in recorder.kept.items():
        yield Row(
            f"{name}, at {length}", compared.ms(name), compared.ms(name, "wall"),
            ratios={READ: compared.speedup(name, READ)},
            note=f"{len(work)} dispatches, {len(work) / layers:.1f} per layer",
        )  # fmt: skip
    reader.close()
    bench.device.release(source)
    step = 1e3 * host + sum(compared.ms(name) for name in recorder.kept)
    yield Row(
        f"host, at {length}", 1e3 * host, 1e3 * host, ratios={STEP: step / (1e3 * host)},
        note="bookkeeping and encoding",
    )  # fmt: skip
    engine.cache.abort_forward()


def recorded(model: Opened, conversation: Conversation) -> tuple[Recorder, float]:
    """One decode step, left open, and the seconds that the host took for it."""
    engine = model.loaded.engine
    seconds = []
    for _ in range(3):
        begun = time.thread_time()
        engine.cache.begin_forward([conversation.id], [1])
        recorder = Recorder(model.bench.device)
        engine.model.forward(recorder, engine.cache, [1], "decode")
        recorder.submit()
        seconds.append(time.thread_time() - begun)
        if len(seconds) < 3:
            engine.cache.abort_forward()
    return recorder, min(seconds)


def repeated(reader: Reader, times: int) -> Callable[[Batch], None]:
    """Read so often."""

    def record(batch: Batch) -> None:
        for _ in range(times):
            reader.record(batch)

    return record


def replayed(work: list[Dispatch]) -> Callable[[Batch], None]:
    """Dispatch the same work again."""

    def record(batch: Batch) -> None:
        for dispatch in work:
            batch.dispatch(*dispatch)

    return record


async def read_back(model: Opened) -> Row:
    """Bytes that come back from the device for a token drawn among the most likely ones."""
    engine, device, counted = model.loaded.engine, model.bench.device, 0
    conversation = await model.computed(64)
    read = device.read

    async def counting(*what: Any) -> bytes:
        nonlocal counted
        found = await read(*what)
        counted += len(found)
        return found

    vars(device)["read"] = counting
    try:
        params = SamplingParams(temperature=0.8, top_k=40, seed=1)
        async for _ in engine.generate(conversation, params, max_tokens=NEW_TOKENS, stop=()):
            pass
    finally:
        del vars(device)["read"]
    engine.close(conversation)
    per_token = counted / NEW_TOKENS
    return Row("read back per token", rate=f"{per_token:.0f} bytes", ratios={LIMIT: 4096 / per_token})
