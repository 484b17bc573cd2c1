"""The `webkv` command: generate, and take up again what a crash cut off."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Sequence

from webkv.cli.parser import make_parser
from webkv.errors import WebkvError

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 a check failed, 2 refused (one line says why), 130 Ctrl-C."""
    _open_streams()
    try:
        arguments = make_parser().parse_args(argv)
        # Imported only now: `webkv --help` must not wait for the GPU library.
        module, function = arguments.run.split(":")
        run = getattr(importlib.import_module(f"webkv.cli.{module}"), function)
        return asyncio.run(run(arguments))
    except WebkvError as error:
        print(f"webkv: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("webkv: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`webkv ... | head`); keep the interpreter from complaining as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _open_streams() -> None:
    """Make stdout and stderr take any text, also where they are closed or not UTF-8."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (for good)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
