"""`webkv demo`: the main job end to end: generate, kill in the middle, resume, compare every byte.

Three processes run the same request.  The first runs to the end; the second is killed with SIGKILL half way;
the third resumes what the second left on disk.  Token ids and the bytes of every KV page must be equal.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from webkv.cli.console import human_size, human_time, messages, note, show
from webkv.errors import WebkvError

_PROMPT = "Why does the moon always show the same face to the earth? Answer in three sentences."


@dataclass
class _Run:
    """What one process printed, and when (seconds since it was ready to compute)."""

    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    start: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)


async def _run(command: list[str], stream: bool, kill_after: int | None = None) -> _Run:
    """Run one `webkv ... --json`, streaming its text; SIGKILL it after that many tokens."""
    run = _Run()
    line = [sys.executable, "-m", "webkv", *command, "--json"]
    process = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE, limit=1 << 24)
    assert process.stdout is not None
    ready = time.monotonic()
    try:
        async for raw in process.stdout:
            event = json.loads(raw)
            if event["event"] == "token":
                run.tokens.append(event["token"])
                run.times.append(time.monotonic() - ready)
                if stream:
                    show(event["text"])
                if len(run.tokens) == kill_after:
                    process.kill()
                    break
            elif event["event"] == "ready":
                ready = time.monotonic()
            elif event["event"] in ("start", "end"):
                setattr(run, event["event"], event)
    except BaseException:
        if process.returncode is None:
            process.kill()
        raise
    finally:
        await process.wait()
    if kill_after is None and process.returncode:
        raise WebkvError(f"webkv {command[0]} ended with exit code {process.returncode}")
    if stream:
        show("\n")
    return run


def _differences(whole: _Run, resumed: _Run) -> list[str]:
    """What is not equal, in words; empty when the resume was exact."""
    wrong = []
    if whole.end["tokens"] != resumed.end["tokens"]:
        wrong.append("token ids differ")
    for page, digest in whole.end["pages"].items():
        if resumed.end["pages"].get(page) != digest:
            wrong.append(f"page {page} differs")
    if len(whole.end["pages"]) != len(resumed.end["pages"]):
        wrong.append(f"{len(resumed.end['pages'])} pages, expected {len(whole.end['pages'])}")
    return wrong


async def demo(arguments: Namespace) -> int:
    """Run the demo; 0 when the resumed run equals the uninterrupted one."""
    model = ["--model", arguments.model] if arguments.model else []
    device = ["--device", arguments.device] if arguments.device else []
    with tempfile.TemporaryDirectory(prefix="webkv-demo-") as folder:
        request = [_PROMPT, *model, *device, "--max-tokens", str(arguments.max_tokens), "--digests"]

        def stored(name: str) -> list[str]:
            return ["--store", str(Path(folder) / f"{name}.db")]

        messages.rule("1. an uninterrupted run")
        whole = await _run(["generate", *request, "--session", "moon", *stored("whole")], stream=True)
        _print_speed(whole)
        messages.rule("2. the same request, killed with SIGKILL half way")
        cut = max(1, len(whole.tokens) // 2)
        killed = await _run(["generate", *request, "--session", "moon", *stored("killed")], True, cut)
        note(f"killed after {len(killed.tokens)} tokens were shown")
        messages.rule("3. resumed in a new process")
        resumed = await _run(["resume", "moon", *model, *device, "--digests", *stored("killed")], stream=True)
        _print_recovery(whole, resumed)
    wrong = _differences(whole, resumed)
    lost = killed.tokens != resumed.end["tokens"][-len(whole.tokens) :][: len(killed.tokens)]
    if lost:
        wrong.append("a token that was shown before the kill is lost")
    if wrong:
        note(f"NOT equal to the uninterrupted run: {'; '.join(wrong)}", style="red")
        return 1
    tokens, pages = len(whole.end["tokens"]), len(whole.end["pages"])
    note(f"equal: {tokens} token ids and all bytes of {pages} pages", style="green")
    return 0


def _print_speed(run: _Run) -> None:
    end = run.end
    note(
        f"prompt {end['prompt_tokens']} tokens in {human_time(end['prefill_s'])}, "
        f"then {end['tokens_per_s']:.1f} tokens/s on {end['device']}"
    )


def _print_recovery(whole: _Run, resumed: _Run) -> None:
    start = resumed.start
    # Starting over: what the uninterrupted run took, from the same point, to have as many tokens.
    again = whole.times[max(0, start["recovered_tokens"] - start["prompt_tokens"] - 1)]
    took = start["recovery_s"]
    note(
        f"recovered {start['recovered_tokens']} tokens, {start['recovered_pages']} pages "
        f"({human_size(start['recovered_bytes'])}) by {start['how']} in {human_time(took)}; "
        f"starting over took {human_time(again)} ({again / took:.0f}x)"
    )
