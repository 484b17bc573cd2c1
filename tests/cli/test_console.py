"""What is printed where: bars on a terminal alone, messages in one line each, JSON that any reader takes."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from rich.console import Console

from webkv.cli import console
from webkv.cli.console import Steps, emit, human_size, human_time, note


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Stands for the terminal that stderr is; bars are drawn at once."""
    drawn = io.StringIO()
    monkeypatch.setattr(console, "messages", Console(file=drawn, force_terminal=True, width=100))
    monkeypatch.setattr(console, "_SHOW_AFTER_S", 0.0)
    return drawn


async def test_a_bar_is_drawn_and_taken_away(
    terminal: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    with Steps() as steps:
        advance = steps.step("reading the prompt", "tokens")
        advance(256, 700)
        print("text")  # goes where it went before
        advance(700, 700)
    assert "reading the prompt" in terminal.getvalue()
    assert "700 of 700 tokens" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # erases the line
    assert capsys.readouterr().out == "text\n"


async def test_bars_begin_anew_after_a_stop(terminal: io.StringIO) -> None:
    with Steps() as steps:
        steps.step("loading the model", "bytes")(1 << 20, 1 << 20)
        steps.stop()
        before = len(terminal.getvalue())
        steps.step("reading the prompt", "tokens")(1, 2)
    assert "1.0 MiB of 1.0 MiB" in terminal.getvalue()
    assert "loading the model" not in terminal.getvalue()[before:]


async def test_no_bar_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Steps() as steps:
        steps.step("loading the model", "bytes")(5, 10)
    assert capsys.readouterr() == ("", "")


async def test_work_that_never_waits_ends_at_its_next_step_when_it_is_cancelled() -> None:
    advanced = []

    async def work() -> None:
        advance = Steps().step("loading the model", "bytes")
        task = asyncio.current_task()
        assert task is not None
        for done in range(10):
            advance(done, 10)
            advanced.append(done)
            if done == 3:
                task.cancel()  # as a signal handler does

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
    assert advanced == [0, 1, 2, 3]


def test_messages_are_not_markup_and_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    note("[/b] " + "x" * 300)
    assert capsys.readouterr().err == "[/b] " + "x" * 300 + "\n"


def test_json_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    emit("token", text="é\udcff\n")
    line = capsys.readouterr().out
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line) == {"event": "token", "text": "é\udcff\n"}


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")]
)
def test_sizes(size: int, text: str) -> None:
    assert human_size(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0351, "35 ms"), (2.44, "2.4 s"), (65, "1 min 5 s")])
def test_times(seconds: float, text: str) -> None:
    assert human_time(seconds) == text
