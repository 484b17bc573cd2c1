"""Arguments: help that can be read, and refusals in one line."""

from __future__ import annotations

import io
import sys

import pytest

from webkv.cli import main
from webkv.cli.parser import make_parser

COMMANDS = (
    "generate", "sessions", "resume", "inspect", "export", "import", "delete", "gc", "devices", "demo",
    "serve",
)  # fmt: skip


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_help_names_what_there_is(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: webkv{' ' if command else ''}{' '.join(command)}")
    assert all(name in text for name in (COMMANDS if not command else ("--help",)))


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ([], "webkv: the following arguments are required: COMMAND (see: webkv --help)"),
        (["dance"], "webkv: argument COMMAND: invalid choice: 'dance'"),
        (["generate"], "webkv generate: the following arguments are required: prompt"),
        (["generate", "hi", "--max-tokens", "0"], "--max-tokens: found '0', expected a whole number of at"),
        (["generate", "hi", "--max-tokens", "9" * 9000], "--max-tokens: "),
        (["generate", "hi", "--context", "-5"], "--context: found '-5', expected a whole number of at least"),
        (["generate", "hi", "--temperature", "warm"], "--temperature: invalid float value: 'warm'"),
        (["generate", "hi", "--page-dtype", "f8"], "--page-dtype: invalid choice: 'f8'"),
        (["resume", "a", "b"], "webkv: unrecognized arguments: b"),
        (["demo", "--max-tokens", "x"], "webkv demo: argument --max-tokens: found 'x'"),
    ],
)
def test_arguments_are_refused_in_one_line(
    arguments: list[str], refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert refusal in err
    assert err.count("\n") == 1


def stdin(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data))


def test_a_dash_is_all_of_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin("two\nlines é\n".encode()))
    assert make_parser().parse_args(["generate", "-"]).prompt == "two\nlines é\n"


@pytest.mark.parametrize(
    ("found", "refusal"),
    [
        (stdin(b"ab\xff"), "standard input is not UTF-8 at byte 2"),
        (stdin(b""), "the prompt is empty"),
        (None, "standard input is closed"),
    ],
)
def test_standard_input_that_is_no_prompt(
    found: object, refusal: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", found)
    assert main(["generate", "-"]) == 2
    assert refusal in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("12", 12), ("5K", 5120), ("3MiB", 3 << 20), ("2GB", 2 << 30), ("1T", 1 << 40)],
)
def test_sizes_may_have_a_unit(text: str, size: int) -> None:
    assert make_parser().parse_args(["gc", "--cap", text]).cap == size


@pytest.mark.parametrize("text", ["", "-1", "1.5G", "G", "1 G", "2g", "1KK"])
def test_a_size_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["gc", f"--cap={text}"])
    assert "expected bytes, such as 500M or 2G" in capsys.readouterr().err
