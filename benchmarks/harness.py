"""Side-by-side measurement: what competes runs interleaved in one process, and every result is a ratio.

Software adapters run on the CPU, so there a cost is the CPU time of the whole process (all threads): wall
time doubles when another program takes a core, CPU time moves less.  On a real GPU it is wall time.  A ratio
is the median over rounds of the costs' quotient within a round, so that slow drifts cancel out.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from webkv.gpu import Batch, Device, Kernel

MIN_ROUNDS = 3
MAX_REPEATS = 64


@dataclass(frozen=True)
class Candidate:
    """One competitor: `run(n)` does its work `n` times and waits for the end.

    `pieces`: how many of the pieces that are compared one time of the work holds.
    """

    name: str
    run: Callable[[int], Awaitable[None]]
    pieces: int = 1


@dataclass(frozen=True)
class Cost:
    """Seconds that one piece of work took."""

    cpu: float
    wall: float

    def over(self, other: Cost, clock: str) -> float:
        """How many times as much as `other` by that clock."""
        return float(getattr(self, clock) / getattr(other, clock))


@dataclass(frozen=True)
class Comparison:
    """The costs of every candidate, round by round; `clock` is "cpu" or "wall", what ratios are made of."""

    costs: Mapping[str, Sequence[Cost]]
    clock: str = "cpu"

    def ms(self, name: str, clock: str | None = None) -> float:
        """The median cost of a candidate in milliseconds."""
        return 1e3 * median(getattr(cost, clock or self.clock) for cost in self.costs[name])

    def speedup(self, name: str, over: str) -> float:
        """How many times cheaper `name` is than `over`: the median of the rounds' quotients."""
        pairs = zip(self.costs[name], self.costs[over], strict=True)
        return median(b.over(a, self.clock) for a, b in pairs)


@dataclass(frozen=True)
class Row:
    """One line of the table: a case, what it cost, and how it compares.

    `ratios`: by baseline, how many times cheaper the case is than the baseline (more is better).  `rate`:
    work per second, such as "5.3 GB/s".  `facts`: the case's numbers, for JSON and for goals.  A row that was
    not run has no cost, and says why in `note`.
    """

    case: str
    cpu_ms: float | None = None
    wall_ms: float | None = None
    rate: str = ""
    ratios: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Goal:
    """What a ratio should reach: `reduce` over the rows that `applies` picks, at least `at_least`."""

    baseline: str
    at_least: float
    where: str
    applies: Callable[[Row], bool]
    reduce: Callable[[Sequence[float]], float] = median

    def value(self, rows: Sequence[Row]) -> float | None:
        """The reduced ratio, or None when no row has it."""
        found = [r.ratios[self.baseline] for r in rows if self.baseline in r.ratios and self.applies(r)]
        return self.reduce(found) if found else None


@dataclass
class Bench:
    """What a benchmark runs with: devices, how much to run, and where to say what it is doing."""

    device: Device
    full: bool = False
    say: Callable[[str], None] = print
    budget_s: float = 2.0
    needs: Mapping[str, int] = field(default_factory=dict)

    @property
    def software(self) -> bool:
        """Whether the adapter runs on the CPU."""
        return self.device.facts.adapter_type == "CPU"

    @property
    def clock(self) -> str:
        """Which clock ratios are made of."""
        return "cpu" if self.software else "wall"

    @property
    def largest_binding(self) -> int:
        """Bytes of the largest buffer that a shader can see at once."""
        return self.device.facts.limits["max-storage-buffer-binding-size"]

    async def compare(self, candidates: Sequence[Candidate], rounds: int = 7) -> Comparison:
        """Measure `candidates` interleaved, in at most about `budget_s` seconds; see `compare`."""
        return await compare(candidates, rounds, self.budget_s, self.clock)


async def measure(candidate: Candidate, repeats: int) -> Cost:
    """The cost of one piece, from `repeats` repetitions."""
    cpu, wall = time.process_time(), time.perf_counter()
    await candidate.run(repeats)
    share = repeats * candidate.pieces
    return Cost((time.process_time() - cpu) / share, (time.perf_counter() - wall) / share)


def repeats_for(seconds: float, slice_s: float) -> int:
    """How often to repeat work of that many seconds within one timing, so that it lasts about `slice_s`."""
    return max(1, min(MAX_REPEATS, round(slice_s / max(seconds, 1e-6))))


def rounds_for(round_s: float, rounds: int, budget_s: float) -> int:
    """How many rounds of `round_s` fit the budget: at least `MIN_ROUNDS`, at most `rounds`."""
    return max(MIN_ROUNDS, min(rounds, int(budget_s / max(round_s, 1e-6))))


async def compare(
    candidates: Sequence[Candidate], rounds: int = 7, budget_s: float = 2.0, clock: str = "cpu"
) -> Comparison:
    """Run every candidate twice to warm up, then `rounds` times in turn, every other round in reverse.

    Short work is repeated within one timing.  Fewer rounds run when they would not fit `budget_s` seconds.
    """
    slice_s = budget_s / (rounds * len(candidates))
    repeats, round_s = {}, 0.0
    for candidate in candidates:
        first = await measure(candidate, 1)
        # Past a second, compilation no longer matters.
        cost = await measure(candidate, 1) if first.wall < 1 else first
        seconds = cost.wall * candidate.pieces
        repeats[candidate.name] = repeats_for(seconds, slice_s)
        round_s += seconds * repeats[candidate.name]
    costs: dict[str, list[Cost]] = {candidate.name: [] for candidate in candidates}
    for number in range(rounds_for(round_s, rounds, budget_s)):
        for candidate in candidates if number % 2 == 0 else reversed(candidates):
            costs[candidate.name].append(await measure(candidate, repeats[candidate.name]))
    return Comparison(costs, clock)


def on_gpu(name: str, device: Device, record: Callable[[Batch], None]) -> Candidate:
    """A candidate whose work `record` puts into a batch; repetitions share one submission."""

    async def run(repeats: int) -> None:
        with device.batch() as batch:
            for _ in range(repeats):
                record(batch)
        await device.fence()

    return Candidate(name, run)


def compiled(
    device: Device, name: str, source: str, constants: Mapping[str, float] | None = None, entry: str = "main"
) -> Kernel:
    """A kernel from WGSL text that is not one of webkv's own shaders."""

    def make() -> Any:
        module = device.raw.create_shader_module(code=source, label=name)
        compute = {"module": module, "entry_point": entry, "constants": dict(constants or {})}
        return device.raw.create_compute_pipeline(layout="auto", compute=compute, label=name)

    return Kernel(name, device.guard(make), device)
