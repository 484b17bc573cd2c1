"""What can the device do at best?  Plain reads, copies, multiply-adds, dispatches and read-backs.

The other benchmarks measure themselves against `Reader` and `Multiplier`, run in the same rounds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import wgpu

from benchmarks.harness import Bench, Candidate, Comparison, Goal, Row, compiled, on_gpu
from webkv.gpu import Batch, Device

QUESTION = "What can this device do at best?"
GOALS: tuple[Goal, ...] = ()

# How 16 bytes become floats.  A word is bound by `let` first: indexing src[i].x, src[i].y loads it twice.
CODECS = {
    "f32": """
        alias Word = vec4<f32>;
        fn floats(w: Word) -> vec4<f32> { return w; }""",
    "f16": """
        alias Word = vec4<u32>;
        fn floats(w: Word) -> vec4<f32> {
            return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y))
                 + vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w));
        }""",
    "int8": """
        alias Word = vec4<u32>;
        fn floats(w: Word) -> vec4<f32> {
            return vec4<f32>(unpack4xI8(w.x)) + vec4<f32>(unpack4xI8(w.y))
                 + vec4<f32>(unpack4xI8(w.z)) + vec4<f32>(unpack4xI8(w.w));
        }""",
}
BUFFER = """
    @group(0) @binding(0) var<storage, read> src: array<Word>;
    fn words() -> u32 { return arrayLength(&src); }
    fn word(i: u32) -> Word { return src[i]; }
"""
TEXTURE = """
    @group(0) @binding(0) var src: texture_storage_2d<rgba32uint, read>;
    fn words() -> u32 { let size = textureDimensions(src); return size.x * size.y; }
    fn word(i: u32) -> Word { return bitcast<Word>(textureLoad(src, vec2<u32>(i % 1024, i / 1024))); }
"""
GROUP_BYTES = 1024 * 16
SHADERS = Path(__file__).resolve().parent / "shaders"


def shader(name: str) -> str:
    """The text of one of the benchmarks' own shaders."""
    return (SHADERS / f"{name}.wgsl").read_text(encoding="utf-8")


def grid(groups: int) -> tuple[int, int]:
    """`groups` workgroups as x and y, within 65535 each; a few more when they do not divide."""
    y = -(-groups // 65535)
    return -(-groups // y), y


def step(device: Device) -> int:
    """How far apart a lane's words lie: a CPU runs lane after lane, a GPU reads whole workgroups at once."""
    return 1 if device.facts.adapter_type == "CPU" else 64


class Reader:
    """Sums all of a buffer, or of a texture with rows of 1024 texels: the least a kernel over it can cost."""

    def __init__(self, device: Device, src: Any, dtype: str) -> None:
        texture = isinstance(src, wgpu.GPUTextureView)
        source = CODECS[dtype] + (TEXTURE if texture else BUFFER) + shader("read")
        self._kernel = compiled(device, f"read {dtype}", source, {"STEP": step(device)})
        groups = src.texture.height if texture else -(-src.size // GROUP_BYTES)
        self._grid = grid(groups)
        self.sums = device.buffer(groups * 256, label="sums")
        self._group = self._kernel.bind(src, self.sums)
        self._device = device

    def record(self, batch: Batch) -> None:
        """One read of the buffer."""
        batch.dispatch(self._kernel, self._group, *self._grid)

    def close(self) -> None:
        """Free the sums."""
        self._device.release(self.sums)


class Multiplier:
    """Nothing but fused multiply-adds; `flop` per recorded dispatch, about `flop` of them."""

    def __init__(self, device: Device, flop: float = 5e8) -> None:
        turns, groups = 64, 0
        per_group = 64 * turns * 4 * 16 * 8
        groups = max(1, min(65535, round(flop / per_group)))
        self.flop = groups * per_group
        self._kernel = compiled(device, "fma", shader("fma"), {"TURNS": turns})
        self.out = device.buffer(groups * 1024, label="fma")
        self._group, self._groups, self._device = self._kernel.bind(self.out), groups, device

    def record(self, batch: Batch) -> None:
        """One dispatch."""
        batch.dispatch(self._kernel, self._group, self._groups)

    def close(self) -> None:
        """Free the results."""
        self._device.release(self.out)


def _row(result: Comparison, name: str, case: str, gigabytes: float, baseline: str) -> Row:
    cpu, wall, rate = result.ms(name, "cpu"), result.ms(name, "wall"), gigabytes / result.ms(name) * 1e3
    return Row(case, cpu, wall, f"{rate:.3g} GB/s", {baseline: result.speedup(name, baseline)})


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """Reads and copies of one size, then multiply-adds, dispatches and read-backs."""
    async for row in _memory(bench):
        yield row
    async for row in _arithmetic(bench):
        yield row
    async for row in _dispatches(bench):
        yield row
    async for row in _read_backs(bench):
        yield row


async def _memory(bench: Bench) -> AsyncIterator[Row]:
    device, size = bench.device, (64 if bench.software else 128) << 20
    data = np.tile(np.random.default_rng(1).standard_normal(1 << 18, dtype=np.float32), size >> 20)
    src, dst = device.buffer(size, label="src", data=data), device.buffer(size, label="dst")
    readers = {dtype: Reader(device, src, dtype) for dtype in CODECS}
    copy = compiled(device, "copy", shader("copy"), {"STEP": step(device)})
    group, groups = copy.bind(src, dst), grid(size // GROUP_BYTES)
    into = np.empty_like(data)

    async def host_sum(repeats: int) -> None:
        for _ in range(repeats):
            data.sum()

    async def host_copy(repeats: int) -> None:
        for _ in range(repeats):
            np.copyto(into, data)

    candidates = [
        Candidate("numpy sum", host_sum),
        Candidate("numpy copy", host_copy),
        *(on_gpu(dtype, device, reader.record) for dtype, reader in readers.items()),
        on_gpu("copy", device, lambda batch: batch.dispatch(copy, group, *groups)),
        on_gpu("copy command", device, lambda batch: batch.copy(src, 0, dst, 0, size)),
    ]
    result = await bench.compare(candidates)
    await _check_sums(device, readers["f32"], data)
    for dtype in CODECS:
        yield _row(result, dtype, f"read {size >> 20} MiB as {dtype}", size / 1e9, "numpy sum")
    for name in ("copy", "copy command"):
        yield _row(result, name, f"{name} {size >> 20} MiB", size / 1e9, "numpy copy")
    for buffer in (src, dst):
        device.release(buffer)
    for reader in readers.values():
        reader.close()


async def _check_sums(device: Device, reader: Reader, data: np.ndarray) -> None:
    found = np.frombuffer(await device.read(reader.sums), np.float32).sum(dtype=np.float64)
    expected = data.sum(dtype=np.float64)
    assert abs(found - expected) < 1e-4 * np.abs(data).sum(dtype=np.float64), (found, expected)


async def _arithmetic(bench: Bench) -> AsyncIterator[Row]:
    multiplier = Multiplier(bench.device, 1e9 if bench.software else 1e11)
    square = np.random.default_rng(1).standard_normal((512, 512), dtype=np.float32)

    async def host(repeats: int) -> None:
        for _ in range(repeats):
            square @ square

    result = await bench.compare(
        [Candidate("numpy matmul", host), on_gpu("fma", bench.device, multiplier.record)]
    )
    host_flops = 2 * 512**3 / result.ms("numpy matmul")
    flops = multiplier.flop / result.ms("fma")
    yield Row(
        "vec4<f32> fma", result.ms("fma", "cpu"), result.ms("fma", "wall"), f"{flops / 1e6:.3g} GFLOP/s",
        {"numpy matmul": flops / host_flops}, "GFLOP per core-second" if bench.software else "",
    )  # fmt: skip
    multiplier.close()


async def _dispatches(bench: Bench) -> AsyncIterator[Row]:
    device = bench.device
    kernel = compiled(device, "touch", shader("touch"))
    out = device.buffer(4, label="touched")
    group = kernel.bind(out)

    async def alone(repeats: int) -> None:
        for _ in range(repeats):
            with device.batch() as batch:
                batch.dispatch(kernel, group, 1)
            await device.fence()

    async def batched(repeats: int) -> None:
        for _ in range(repeats):
            with device.batch() as batch:
                for _ in range(300):
                    batch.dispatch(kernel, group, 1)
            await device.fence()

    async def fence(repeats: int) -> None:
        for _ in range(repeats):
            await device.fence()

    named = {"alone": alone, "batch": batched, "fence": fence}
    result = await bench.compare([Candidate(name, run) for name, run in named.items()])
    for name, case, share in (
        ("alone", "one dispatch, submitted and awaited", 1), ("batch", "one dispatch of a batch of 300", 300),
        ("fence", "read-back of 4 bytes", 1),
    ):  # fmt: skip
        ratio = share * result.speedup(name, "alone")
        cpu, wall = result.ms(name, "cpu") / share, result.ms(name, "wall") / share
        yield Row(case, cpu, wall, f"{1e3 / wall:.3g} /s", {"dispatch alone": ratio})
    device.release(out)


async def _read_backs(bench: Bench) -> AsyncIterator[Row]:
    device, sizes = bench.device, (4 << 10, 1 << 20, 16 << 20)
    src = device.buffer(max(sizes), label="read back")

    def reading(size: int) -> Candidate:
        async def run(repeats: int) -> None:
            for _ in range(repeats):
                await device.read(src, 0, size)

        return Candidate(str(size), run)

    result = await bench.compare([reading(size) for size in sizes])
    for size in sizes:
        per_byte = result.speedup(str(size), str(sizes[0])) * size / sizes[0]
        rate = f"{size / result.ms(str(size), 'wall') / 1e6:.3g} GB/s"
        yield Row(
            f"read back {size >> 10} KiB", result.ms(str(size), "cpu"), result.ms(str(size), "wall"), rate,
            {"4 KiB, per byte": per_byte},
        )  # fmt: skip
    device.release(src)
