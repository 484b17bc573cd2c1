"""A store that can be read and not written: on a read-only disk, or somebody else's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform in ("emscripten", "win32"):
    pytest.skip("needs POSIX processes", allow_module_level=True)

from tests.models.tiny import Kind, write_tiny_llama
from webkv.checkpoint.sqlite import LARGE

PROMPT = "the quick brown fox jumps over the lazy dog"
# Root may write to any file, so it gets a read-only mount.
MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
CUT_OFF = f"""
import asyncio, os, sys
from webkv.checkpoint import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.commit({{"last": b"words", "large": bytes({LARGE})}})
    os._exit(0)  # the log stays behind, not yet in the database

asyncio.run(main())
"""


def webkv(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "webkv", *map(str, arguments)]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True)


def read_only(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command to which `folder` is read-only."""
    if os.geteuid():
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o500 if path.is_dir() else 0o400)
        return run(*command)
    prefix = "unshare", "-m", "sh", "-c", MOUNT, str(folder)
    if shutil.which("unshare") is None or run(*prefix, "true").returncode:
        pytest.skip("root here can make nothing read-only")
    return run(*prefix, *command)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_llama(path, d_ff=96, kind=Kind.Q8_0)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The folder of a store with an answer's first 20 tokens."""
    folder = tmp_path_factory.mktemp("made")
    options = "--store", folder / "sessions.db", "--session", "s", "--raw", "--max-tokens", 20
    assert run(*webkv("generate", "--model", model, *options, PROMPT)).returncode == 0
    return folder


@pytest.fixture
def store(tmp_path: Path, made: Path) -> Path:
    return shutil.copytree(made, tmp_path / "store") / "sessions.db"


@pytest.mark.parametrize("left", ["closed", "cut off", "cut off and copied"])
def test_a_read_only_store_is_listed_and_read(store: Path, tmp_path: Path, left: str) -> None:
    if left != "closed":
        assert run(sys.executable, "-c", CUT_OFF, str(store)).returncode == 0
        assert store.with_name("sessions.db-wal").stat().st_size
    if left == "cut off and copied":
        store.with_name("sessions.db-shm").unlink()
    at = "--store", store
    listed = read_only(store.parent, *webkv("sessions", "--verify", "--json", *at))
    assert (listed.returncode, listed.stderr) == (0, "")
    assert json.loads(listed.stdout)["problems"] == []
    inspected = read_only(store.parent, *webkv("inspect", "s", "--json", *at))
    assert json.loads(inspected.stdout)["end"] == "length"
    exported = read_only(store.parent, *webkv("export", "s", tmp_path / "s.safetensors", *at))
    assert exported.returncode == 0
    brought = run(*webkv("import", tmp_path / "s.safetensors", "--store", tmp_path / "other.db"))
    assert brought.returncode == 0
    for command in (("delete", "s"), ("import", tmp_path / "s.safetensors", "--session", "t")):
        refused = read_only(store.parent, *webkv(*command, *at))
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.count("\n") == 1


def test_somebody_elses_store_is_listed_and_read(store: Path) -> None:
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("only root, without its powers, can read what it may not write by permission alone")
    assert run(sys.executable, "-c", CUT_OFF, str(store)).returncode == 0
    for path in (store.parent, *store.parent.rglob("*")):
        os.chown(path, 12345, 12345)
        path.chmod(0o755 if path.is_dir() else 0o644)
    powerless = "setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"
    for left in ("cut off", "closed"):
        listed = run(*powerless, *webkv("sessions", "--verify", "--json", "--store", store))
        assert (listed.returncode, listed.stderr) == (0, ""), left
        assert json.loads(listed.stdout)["problems"] == []
        run(*webkv("gc", "--store", store))  # root closes it


def test_a_session_in_a_read_only_store_goes_on_and_says_that_it_is_not_kept(
    store: Path, model: Path, tmp_path: Path
) -> None:
    options = "--model", model, "--raw", "--json", "--max-tokens", 30, "--store", tmp_path / "whole.db"
    whole = json.loads(run(*webkv("generate", *options, PROMPT)).stdout.splitlines()[-1])
    resume = webkv("resume", "s", "--max-tokens", 30, "--json", "--store", store)
    resumed = read_only(store.parent, *resume)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    events = [json.loads(line) for line in resumed.stdout.splitlines()]
    assert events[-1]["tokens"] == whole["tokens"]
    start = next(event for event in events if event["event"] == "start")
    assert start["how"].startswith("kv+replay(")
    assert events[-1]["status"].startswith(f"degraded: {store} is read-only")


def test_generating_into_a_read_only_folder_degrades(store: Path, model: Path) -> None:
    options = "--model", model, "--json", "--max-tokens", 5, "--store", store
    made = read_only(store.parent, *webkv("generate", *options, PROMPT))
    assert made.returncode == 0
    assert "is read-only" in json.loads(made.stdout.splitlines()[-1])["status"]
