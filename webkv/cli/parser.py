"""What the command line looks like."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from webkv.errors import PromptError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see: {self.prog} --help)\n")


def _text(value: str) -> str:
    """An argument, or for `-` all of standard input."""
    if value != "-":
        return value
    if sys.stdin is None:
        raise PromptError("the prompt is -, but standard input is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input is not UTF-8 at byte {error.start}") from None


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"found {value!r}, expected a whole number of at least 1")
    return int(value)


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _size(value: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)(?:iB|B)?", value)
    if found is None:
        raise argparse.ArgumentTypeError(f"found {value!r}, expected bytes, such as 500M or 2G")
    return int(found[1]) * _UNITS[found[2]]


def _add_cap(parser: argparse.ArgumentParser) -> None:
    text = "most bytes of stored pages, such as 2G; the least recently used go first (default: no limit)"
    parser.add_argument("--cap", type=_size, metavar="SIZE", help=text)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON lines for programs")


def _place(value: str) -> Path | str:
    """A store's file, or as text the URL of object storage."""
    return value if "://" in value else Path(value)


def _add_store(parser: argparse.ArgumentParser) -> None:
    where = "session database (default: $WEBKV_HOME, else your data folder), or a URL: s3://bucket/prefix"
    parser.add_argument("--store", type=_place, metavar="FILE", help=where)


def _add_model(parser: argparse.ArgumentParser, default: str = "smollm2 if installed") -> None:
    text = f"a GGUF file, or smollm2 or gemma3 (default: {default})"
    parser.add_argument("--model", metavar="FILE", help=text)
    parser.add_argument("--device", metavar="NAME", help="part of an adapter's name (see: webkv devices)")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=_count, default=256, metavar="N", help="most new tokens (256)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    group.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="only the K likeliest tokens; 0: all"
    )
    group.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="the likeliest that add up to P; 1: all"
    )
    group.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="only from P times the likeliest on; 0: all"
    )
    group.add_argument(
        "--repetition-penalty", type=float, default=1.0, metavar="R", help="against repeating; 1: off"
    )
    group.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same text (0)")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command; each subcommand sets `run`, as `module:function`."""
    parser = _Parser(
        prog="webkv",
        description="Generate text on WebGPU with a paged KV cache that survives a crash.",
        epilog="exit codes: 0 done, 1 a check failed, 2 refused, 130 interrupted",
    )
    subcommands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: str, text: str) -> argparse.ArgumentParser:
        added = subcommands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    _generate(command)
    _sessions(command)
    devices = command("devices", "devices:devices", "List the GPU adapters webkv can use.")
    devices.add_argument("--quiet", action="store_true", help="print nothing; exit 2 if there is none")
    _add_output(devices)
    demo = command("demo", "demo:demo", "Generate, kill, resume, and compare every token and page byte.")
    _add_model(demo)
    demo.add_argument("--max-tokens", type=_count, default=60, metavar="N", help="tokens to generate (60)")
    _serve(command)
    return parser


def _serve(command: Callable[..., argparse.ArgumentParser]) -> None:
    serve = command("serve", "serve:serve", "Serve the chat page, which runs webkv in the browser.")
    serve.add_argument("--host", default="127.0.0.1", metavar="NAME", help="address to listen on (127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000, metavar="N", help="port; 0 takes a free one (8000)")
    serve.add_argument(
        "--model", action="append", default=[], metavar="FILE",
        help="offer this GGUF file, or smollm2 or gemma3; may be repeated (default: all installed)",
    )  # fmt: skip
    serve.add_argument("--out", type=Path, metavar="FOLDER", help="write the page to a folder instead")
    serve.add_argument(
        "--pyodide", choices=("cdn", "local"),
        help="where the page takes Pyodide from: its CDN (the default with --out), or a copy beside the page",
    )  # fmt: skip


def _generate(command: Callable[..., argparse.ArgumentParser]) -> None:
    generate = command(
        "generate", "generate:generate", "Generate text and keep it as a session, to resume after a crash."
    )
    generate.add_argument("prompt", type=_text, help="the prompt; - reads it from standard input")
    _add_model(generate)
    generate.add_argument("--raw", action="store_true", help="continue the text; no chat template")
    generate.add_argument("--system", metavar="TEXT", help="system message of the chat")
    generate.add_argument(
        "--page-dtype", choices=["f16", "f32", "int8"], default="f16", help="numbers in the KV cache (f16)"
    )
    generate.add_argument(
        "--context",
        type=_count,
        metavar="N",
        help="most tokens, prompt and answers (default: the model's, at most 8192)",
    )
    generate.add_argument("--session", metavar="ID", help="name of the new session (default: made up)")
    generate.add_argument("--no-session", action="store_true", help="store nothing; no resuming")
    generate.add_argument(
        "--durability",
        choices=["exact", "relaxed"],
        default="exact",
        help="exact: a token is stored before it is shown (default); relaxed: up to 8 tokens may be lost",
    )
    _add_cap(generate)
    generate.add_argument("--digests", action="store_true", help=argparse.SUPPRESS)
    _add_sampling(generate)
    _add_store(generate)
    _add_output(generate)


def _sessions(command: Callable[..., argparse.ArgumentParser]) -> None:
    listing = command("sessions", "sessions:sessions", "List stored sessions.")
    listing.add_argument("--verify", action="store_true", help="check every stored byte; exit 1 on damage")
    resume = command("resume", "generate:resume", "Go on with a session, from the token it had come to.")
    resume.add_argument("id", help="session id (see: webkv sessions)")
    resume.add_argument(
        "--say", metavar="TEXT", help="your next turn of the chat, once the answer is complete"
    )
    resume.add_argument(
        "--max-tokens", type=_count, metavar="N", help="most tokens of the answer (default: as before)"
    )
    resume.add_argument(
        "--recompute",
        action="store_true",
        help="go on with the session's tokens though its KV is of another model or layout",
    )
    _add_model(resume, "the session's")
    inspect = command("inspect", "sessions:inspect", "Show what a session holds.")
    inspect.add_argument("id", help="session id")
    delete = command(
        "delete", "sessions:delete_sessions", "Delete sessions, and stored pages that only they use."
    )
    delete.add_argument("id", nargs="+", help="session ids")
    resume.add_argument("--digests", action="store_true", help=argparse.SUPPRESS)
    gc = command("gc", "sessions:gc", "Remove stored pages that no session uses.")
    export = command("export", "archive:export", "Write a session to one safetensors file.")
    export.add_argument("id", help="session id")
    export.add_argument("file", type=Path, help="the file to make")
    import_ = command("import", "archive:import_", "Add a session from a file made by export.")
    import_.add_argument("file", type=Path, help="the file")
    import_.add_argument("--session", metavar="ID", help="another id for it")
    for parser in (resume, gc):
        _add_cap(parser)
    for parser in (listing, resume, inspect, delete, gc, export, import_):
        _add_store(parser)
        _add_output(parser)
