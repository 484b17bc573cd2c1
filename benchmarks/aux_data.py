"""One write per array or one per step: which way of handing index arrays to the GPU costs less?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from benchmarks.harness import Bench, Candidate, Goal, Row
from webkv.cache.aux_data import MANAGERS, AuxDataManager
from webkv.cache.config import CacheConfig, LayerGroup
from webkv.cache.manager import SequenceManager
from webkv.cache.rope import RopeConfig
from webkv.cache.step import Step, begin_step, end_step
from webkv.gpu import Device

QUESTION = "Does one write per step cost less than one write per index array, and where?"
GOALS: tuple[Goal, ...] = ()
STEPS = 32
"""Consecutive steps in one timing, so that arrays change from step to step as they do in use."""

WINDOW = 512


@dataclass(frozen=True)
class Load:
    """`rows` new tokens per step for each of `batch` sequences that begin with `context` tokens."""

    batch: int
    context: int
    groups: int = 1
    rows: int = 1

    @property
    def name(self) -> str:
        """The load in the table's words."""
        kind = "decode" if self.rows == 1 else f"chunk of {self.rows}"
        groups = "1 group" if self.groups == 1 else f"{self.groups} groups"
        return f"{kind}, {self.batch} x {self.context}, {groups}"


QUICK = (
    Load(1, 256), Load(1, 4096), Load(8, 1024), Load(8, 4096), Load(32, 1024),
    Load(1, 1024, 2), Load(8, 4096, 2), Load(1, 1024, 1, 128), Load(1, 1024, 2, 128),
)  # fmt: skip
FULL = tuple(
    Load(batch, context, groups, rows)
    for groups in (1, 2) for rows in (1, 128) for batch in (1, 8, 32) for context in (256, 1024, 4096, 16384)
    if rows == 1 or batch == 1
)  # fmt: skip


def config_for(load: Load) -> CacheConfig:
    """A cache for the load: one global group, and a windowed one beside it where it has two."""
    rope = RopeConfig(theta=100000.0)
    groups = [LayerGroup("global", (0,), 3, 9, 64, rope=rope)]
    if load.groups == 2:
        groups.append(LayerGroup("window", (1,), 3, 9, 64, window=WINDOW, rope=rope))
    longest = load.context + STEPS * load.rows + 16
    return CacheConfig(
        tuple(groups), max_total_len=load.batch * longest, reserved_num_seqs=load.batch,
        prefill_chunk_size=max(256, load.batch * load.rows),
    )  # fmt: skip


def steps_of(load: Load, config: CacheConfig) -> list[Step]:
    """`STEPS` consecutive steps of the load."""
    manager = SequenceManager(config)
    ids = list(range(load.batch))
    for seq in ids:
        manager.add(seq)
        for start in range(0, load.context, config.prefill_chunk_size):
            length = min(config.prefill_chunk_size, load.context - start)
            end_step(manager, begin_step(manager, [seq], [length], None))
    steps = []
    for _ in range(STEPS):
        step = begin_step(manager, ids, [load.rows] * load.batch, None)
        steps.append(step)
        end_step(manager, step)
    return steps


def writing(name: str, device: Device, manager: AuxDataManager, steps: list[Step]) -> Candidate:
    """Writes every step's arrays, each submitted on its own as an engine does."""

    async def run(repeats: int) -> None:
        for _ in range(repeats):
            for step in steps:
                manager.write(step)
                device.queue.submit([])
        await device.fence()

    return Candidate(name, run, pieces=len(steps))


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """One row per load: the cached manager against the plain one."""
    for load in FULL if bench.full else QUICK:
        bench.say(f"aux data {load.name}")
        config = config_for(load)
        steps = steps_of(load, config)
        managers = {name: made(bench.device, config) for name, made in MANAGERS.items()}
        result = await bench.compare([writing(n, bench.device, m, steps) for n, m in managers.items()])
        cpu, wall = result.ms("cached", "cpu"), result.ms("cached", "wall")
        facts = {
            "batch": load.batch, "context": load.context, "groups": load.groups, "rows": load.rows,
            "ms": {name: result.ms(name) for name in managers},
        }  # fmt: skip
        ratio = {"plain": result.speedup("cached", "plain")}
        yield Row(f"cached: {load.name}", cpu, wall, f"{1e3 / cpu:.3g} steps/s", ratio, facts=facts)
