"""How results are shown: one table on the terminal, JSON and SVG files for keeping."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.harness import Bench, Goal, Row
from benchmarks.svg import ratio_plot

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("webkv", "wgpu", "numpy", "apache-tvm", "onnxruntime-webgpu", "xllamacpp")


def ratio_text(value: float) -> str:
    """A ratio in two significant digits: 0.72x, 3.1x, 28x."""
    return f"{value:.0f}x" if value >= 10 else f"{value:.1f}x" if value >= 2 else f"{value:.2f}x"


def ms_text(value: float | None) -> str:
    """Milliseconds in three significant digits."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def ratios_text(row: Row) -> str:
    """All ratios of a row, each with what it is measured against, and its note."""
    parts = [f"{ratio_text(value)} {name}" for name, value in row.ratios.items()]
    return "  ".join([*parts, row.note] if row.note else parts)


def goal_text(goal: Goal, value: float | None) -> str:
    """What became of a goal."""
    wanted = f"{goal.where}: at least {ratio_text(goal.at_least)} {goal.baseline}"
    if value is None:
        return f"{wanted}: not measured"
    return f"{wanted}: {ratio_text(value)} {'reached' if value >= goal.at_least else 'MISSED'}"


def new_table(bench: Bench) -> Table:
    """The empty table of a run."""
    clock = "CPU time of the whole process" if bench.clock == "cpu" else "wall time"
    title = f"{bench.device.facts.name} - ratios by {clock}, more is better"
    table = Table(title=title, title_justify="left", pad_edge=False, box=SIMPLE_HEAD)
    table.add_column("case", no_wrap=True)
    for heading in ("cpu ms", "wall ms", "rate"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("how many times cheaper than")
    return table


def add_rows(table: Table, name: str, question: str, rows: Sequence[Row], goals: Sequence[Goal]) -> None:
    """A section of the table: the question, the rows, then what became of the goals."""
    table.add_section()
    table.add_row(f"[bold]{name}[/bold]", "", "", "", f"[bold]{question}[/bold]")
    for row in rows:
        table.add_row(row.case, ms_text(row.cpu_ms), ms_text(row.wall_ms), row.rate, ratios_text(row))
    for goal in goals:
        table.add_row("goal", "", "", "", goal_text(goal, goal.value(rows)), style="dim")


def environment(bench: Bench) -> dict[str, Any]:
    """What a result depends on besides the code."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    facts = bench.device.facts
    return {
        "device": facts.name, "adapter_type": facts.adapter_type, "clock": bench.clock,
        "grid": "full" if bench.full else "quick", "python": platform.python_version(),
        "machine": platform.platform(), "packages": versions,
    }  # fmt: skip


def document(
    name: str, question: str, bench: Bench, rows: Sequence[Row], goals: Sequence[Goal]
) -> Mapping[str, Any]:
    """A benchmark's result as JSON."""
    return {
        "benchmark": name, "question": question, "environment": environment(bench),
        "rows": [asdict(row) for row in rows],
        "goals": [
            {"baseline": g.baseline, "where": g.where, "at_least": g.at_least, "value": g.value(rows)}
            for g in goals
        ],
    }  # fmt: skip


def save(name: str, question: str, bench: Bench, rows: Sequence[Row], goals: Sequence[Goal]) -> list[Path]:
    """Write `results/<name>.json` and `.svg`."""
    RESULTS.mkdir(exist_ok=True)
    made = document(name, question, bench, rows, goals)
    paths = [RESULTS / f"{name}.json", RESULTS / f"{name}.svg"]
    paths[0].write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    bars = [(row.case, row.ratios) for row in rows if row.ratios]
    paths[1].write_text(ratio_plot(f"{question} {bench.device.facts.name}", bars), encoding="utf-8")
    return paths
