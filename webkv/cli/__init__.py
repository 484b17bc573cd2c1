"""The `webkv` command: generate, and take up again what a crash cut off."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from webkv.errors import WebkvError

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 a check failed, 2 refused (one line says why), 130 Ctrl-C."""
    try:
        _open_streams()
        # Imported only now, where Ctrl-C is expected already; the command's own module, which needs the GPU
        # library, later still: `--help` must not wait for it.
        from webkv.cli.parser import make_parser

        return _run(make_parser().parse_args(argv))
    except WebkvError as error:
        print(f"webkv: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("webkv: interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if error.filename is not None:
            print(f"webkv: {error.filename}: {error.strerror}", file=sys.stderr)
            return BAD_INPUT
        # stdout failed; keep the interpreter from complaining that it cannot flush it as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader went away: `webkv ... | head`
            return OK
        print(f"webkv: {error.strerror or error}", file=sys.stderr)
        return BAD_INPUT


def _open_streams() -> None:
    """Make stdout and stderr take any text, also where they are closed or not UTF-8."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (for good)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _run(arguments: Namespace) -> int:
    import asyncio
    import importlib
    import signal

    module, function = arguments.run.split(":")
    command = getattr(importlib.import_module(f"webkv.cli.{module}"), function)

    async def interruptible() -> int:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def interrupt(*_: object) -> None:
            if task.cancelling():
                os._exit(INTERRUPTED)  # the second: what is durable survives this like any crash
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # wakes a loop that waits

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            return await command(arguments)
        finally:
            signal.signal(signal.SIGINT, before)

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
