"""What commands print: text for people on stdout, progress on stderr, JSON lines for programs."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

# A bar for something that takes less than this would only flicker.
_SHOW_AFTER_S = 0.5

messages = Console(stderr=True, highlight=False)
_shown = ""  # the last text on stdout


def human_size(size: float) -> str:
    """Bytes in the unit a person would use: 512 B, 1.5 KiB, 22.0 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def human_time(seconds: float) -> str:
    """A duration: 35 ms, 2.4 s, 1 min 5 s."""
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def emit(event: str, **fields: Any) -> None:
    """One JSON line on stdout."""
    print(json.dumps({"event": event, **fields}), flush=True)


def note(text: str, style: str | None = None) -> None:
    """A message for people, one line however narrow the terminal."""
    if _shown and not _shown.endswith("\n") and sys.stdout.isatty():
        show("\n")
    messages.print(text, style=style, markup=False, soft_wrap=True)


def show(text: str) -> None:
    """Streamed text on stdout, as it comes."""
    global _shown
    _shown = text or _shown
    sys.stdout.write(text)
    sys.stdout.flush()


class Steps:
    """Progress bars on stderr, one per named step; on a terminal only, and not for what is over at once."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:24}"), BarColumn(), TextColumn("{task.fields[amount]}"))
        # Nothing is redirected: what goes to stdout must stay there while bars are shown.
        self._progress = Progress(
            *columns, TimeRemainingColumn(), console=messages, transient=True, redirect_stdout=False,
            redirect_stderr=False,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}
        self._begun = 0.0
        self._live = False

    def __enter__(self) -> Steps:
        self._begun = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bars off the screen; text may follow."""
        if self._live:
            self._progress.stop()
            self._live = False
        while self._tasks:
            self._progress.remove_task(self._tasks.popitem()[1])

    def step(self, name: str, unit: str) -> Callable[[int, int], None]:
        """A callback `(done, total)` that moves the bar of `name`; `unit` is "bytes" or a plural noun."""

        def amount(done: int, total: int) -> str:
            if unit == "bytes":
                return f"{human_size(done)} of {human_size(total)}"
            return f"{done} of {total} {unit}"

        def advance(done: int, total: int) -> None:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError  # Ctrl-C, in work that never waits
            if not messages.is_terminal or time.monotonic() - self._begun < _SHOW_AFTER_S:
                return
            if not self._live:
                self._progress.start()
                self._live = True
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=total, amount="")
            self._progress.update(self._tasks[name], completed=done, total=total, amount=amount(done, total))

        return advance
