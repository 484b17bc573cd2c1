"""Sessions as files, from one store to another; no GPU is needed for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_sessions import path, run

__all__ = ["path"]  # the fixture


def test_a_session_moves_to_another_store(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "a.safetensors", tmp_path / "other.db"
    assert run(capsys, "export", "a", file, "--store", path)[0] == 0
    assert run(capsys, "import", file, "--session", "moved", "--store", other)[0] == 0
    inspected = [run(capsys, "inspect", id, "--store", s)[1] for id, s in (("a", path), ("moved", other))]
    assert inspected[0] == inspected[1]


@pytest.mark.parametrize("name", ["", "a/b", "é", "x" * 65])
def test_an_id_that_is_none_is_refused(
    name: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.safetensors"
    assert run(capsys, "export", "a", file, "--store", path)[0] == 0
    code, _, err = run(capsys, "import", file, "--session", name, "--store", tmp_path / "other.db")
    assert code == 2
    assert f"session id is {name!r}" in err


def test_export_overwrites_nothing(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("precious")
    code, _, err = run(capsys, "export", "a", file, "--store", path)
    assert (code, file.read_text()) == (2, "precious")
    assert "mine.txt exists" in err


@pytest.mark.parametrize("content", [None, b"", b"not a safetensors file at all"])
def test_what_is_no_session_is_refused(
    content: bytes | None, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.safetensors"
    if content is not None:
        file.write_bytes(content)
    code, _, err = run(capsys, "import", file, "--store", path)
    assert code == 2
    assert len(err.splitlines()) == 1


def test_a_name_that_no_file_can_have_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "export", "a", path.with_name("n" * 300), "--store", path)
    assert (code, out) == (2, "")
    assert err.startswith("webkv: ") and err.endswith(f"{'n' * 300}: File name too long\n")
