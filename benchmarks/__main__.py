"""Run benchmarks, print one table, keep JSON and SVG under benchmarks/results."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from benchmarks import report
from benchmarks.harness import Bench, Row
from webkv.errors import DeviceError, WebkvError
from webkv.gpu import open_device
from webkv.kernels.matmul import FEATURES

NAMES = (
    "limit", "decode_attention", "prefill_attention", "aux_data", "matvec", "generate", "checkpoint",
    "browser",
)  # fmt: skip
CHROMIUM = ("/usr/lib/chromium", "/usr/lib64/chromium-browser", "/opt/google/chrome")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    only = f"one of {', '.join(NAMES)}; may repeat"
    made.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help=only)
    size = made.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a subset that ends in minutes (the default)")
    size.add_argument("--full", action="store_true", help="the whole grid; an hour on a software adapter")
    made.add_argument("--device", metavar="NAME", help="part of the adapter's name, as $WEBKV_ADAPTER")
    made.add_argument("--swiftshader", action="store_true", help="use Chromium's software adapter")
    made.add_argument("--seconds", type=float, default=2.0, help="to measure each row, about (default 2)")
    layer = "let a layer have N MiB, if the device allows (default 128)"
    made.add_argument("--binding-mib", type=int, default=0, metavar="N", help=layer)
    return made


def needs(binding_mib: int) -> dict[str, int]:
    """The limits to raise for layers of that many MiB."""
    size = binding_mib << 20
    return {"max-storage-buffer-binding-size": size, "max-buffer-size": size} if binding_mib else {}


def use_swiftshader() -> None:
    """Make Chromium's software adapter the only one, before the Vulkan loader starts."""
    files = [Path(folder) / "vk_swiftshader_icd.json" for folder in CHROMIUM]
    found = next((file for file in files if file.exists()), None)
    if found is None:
        raise DeviceError(f"no SwiftShader in {', '.join(CHROMIUM)}: install Chromium")
    os.environ["VK_ICD_FILENAMES"] = str(found)


class Progress:
    """Says what runs and since when: on a terminal in one changing line, else in a line per benchmark."""

    def __init__(self, console: Console, status: Status, names: Sequence[str]) -> None:
        self._console, self._status, self._names = console, status, names
        self._begun, self._now = time.monotonic(), ""

    def begin(self, name: str) -> None:
        """The next benchmark."""
        minutes, seconds = divmod(round(time.monotonic() - self._begun), 60)
        self._now = f"{self._names.index(name) + 1}/{len(self._names)} {name}"
        if self._console.is_terminal:
            self.say("")
        else:
            print(f"{minutes}:{seconds:02} {self._now}", file=sys.stderr)

    def say(self, what: str) -> None:
        """What the benchmark is doing."""
        self._status.update(f"{self._now}: {what}")


async def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Run the benchmarks that were asked for; whether every output was right."""
    raised = needs(arguments.binding_mib)
    device = await open_device(arguments.device, raised, FEATURES)
    names = arguments.only or NAMES
    with console.status("") as status:
        progress = Progress(console, status, names)
        bench = Bench(device, arguments.full, progress.say, arguments.seconds, raised)
        table, paths, right = report.new_table(bench), [], True
        try:
            for name in names:
                progress.begin(name)
                module: Any = importlib.import_module(f"benchmarks.{name}")
                rows: list[Row] = [row async for row in module.rows(bench)]
                report.add_rows(table, name, module.QUESTION, rows, module.GOALS)
                paths += report.save(name, module.QUESTION, bench, rows, module.GOALS)
                right = right and not any("WRONG" in row.note for row in rows)
        finally:  # what is done is shown, whatever ends the run
            console.print(table)
    console.print("kept in", ", ".join(path.name for path in paths), "under", str(report.RESULTS))
    return right


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 1 if a kernel's output was wrong, 2 if there is no device."""
    arguments = parser().parse_args(argv)
    console = Console()
    console.width = max(console.width, 120)  # narrower, the columns are unreadable
    try:
        if arguments.swiftshader:
            use_swiftshader()
        return 0 if asyncio.run(run(arguments, console)) else 1
    except WebkvError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
