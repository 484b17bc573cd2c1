"""What only a process of its own can meet: Ctrl-C, a pipe nobody reads, a full disk, no GPU at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform in ("emscripten", "win32"):
    pytest.skip("needs POSIX processes", allow_module_level=True)

import resource

from tests.models.tiny import write_tiny_llama

PROMPT = "the quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_llama(path)
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "webkv", *(str(argument) for argument in arguments)]


def generating(model: Path, store: Path, tokens: int = 400) -> list[str]:
    options = "--raw", "--json", "--session", "s", "--max-tokens", tokens
    return command("generate", "--model", model, "--store", store, *options, PROMPT)


def interrupted(line: list[str], after: int) -> tuple[int, list[int], str]:
    """Run, press Ctrl-C after that many lines: exit code, tokens shown, stderr."""
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(after)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    events = [json.loads(line) for line in [*lines, *out.splitlines()]]
    return process.returncode, [e["token"] for e in events if e["event"] == "token"], err


def test_ctrl_c_ends_with_130_and_loses_nothing(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    code, _, err = interrupted(generating(model, store), after=1)  # it has loaded and begins to compute
    assert code == 130
    assert err.splitlines()[-1] == "webkv: interrupted"
    store = tmp_path / "t.db"
    code, shown, err = interrupted(generating(model, store), after=40)
    assert code == 130
    assert err.splitlines() == [
        "stopped; nothing that was shown is lost: `webkv resume s` goes on", "webkv: interrupted",
    ]  # fmt: skip
    code, more, err = interrupted(command("resume", "s", "--store", store, "--json"), after=40)
    assert code == 130
    inspected = subprocess.run(
        command("inspect", "s", "--store", store, "--json"), capture_output=True, check=True, text=True
    )
    told = json.loads(inspected.stdout)
    assert 38 <= len(shown) <= len(shown) + len(more) <= told["tokens"] - told["prompt_tokens"] < 400
    assert (told["end"], told["damage"]) == (None, None)


def test_a_reader_that_goes_away_is_no_error(model: Path, tmp_path: Path) -> None:
    line = generating(model, tmp_path / "s.db")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
    assert process.returncode == 0
    assert err == "stopped; nothing that was shown is lost: `webkv resume s` goes on\n"


def test_streams_that_are_closed_or_full(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    line = command(
        "generate", "--model", model, "--store", store, "--session", "s", "--max-tokens", 5, PROMPT
    )
    closed = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *line])
    assert closed.returncode == 0
    listed = subprocess.run(command("sessions", "--store", store, "--json"), capture_output=True, text=True)
    assert json.loads(listed.stdout)["end"] == "length"
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            failed = subprocess.run(
                command("sessions", "--store", store), stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert (failed.returncode, failed.stderr) == (2, "webkv: No space left on device\n")


def test_a_disk_that_fills_up_degrades_the_session_and_not_the_answer(model: Path, tmp_path: Path) -> None:
    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    line = generating(model, tmp_path / "s.db", tokens=60)
    full = subprocess.run(line, capture_output=True, text=True, preexec_fn=no_large_files)
    assert full.returncode == 0
    events = [json.loads(printed) for printed in full.stdout.splitlines()]
    assert "status" in [event["event"] for event in events]
    assert events[-1]["status"].startswith("degraded: ")
    # With room again it comes to the same tokens from what had been stored.
    resume = command("resume", "s", "--store", tmp_path / "s.db", "--json")
    resumed = json.loads(subprocess.run(resume, capture_output=True, text=True).stdout.splitlines()[-1])
    assert resumed["tokens"] == events[-1]["tokens"]
    assert resumed["status"] == "durable"


def test_no_gpu_at_all(model: Path, tmp_path: Path) -> None:
    nothing = {**os.environ, "VK_ICD_FILENAMES": os.devnull, "VK_DRIVER_FILES": os.devnull}
    for line in (generating(model, tmp_path / "s.db"), command("devices")):
        refused = subprocess.run(line, capture_output=True, text=True, env=nothing)
        if sys.platform == "linux":
            assert refused.returncode == 2
            assert refused.stderr.startswith("webkv: no GPU adapter was found; install ")
            assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "s.db").exists()
