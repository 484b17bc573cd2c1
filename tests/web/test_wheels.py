"""The wheels of a page: made once, whole or not at all, for any machine, and compiled where that can be."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from webkv import wheels
from webkv.errors import SiteError

pytestmark = pytest.mark.skipif(sys.platform == "emscripten", reason="assembles from outside")


def test_a_part_is_made_once(tmp_path: Path) -> None:
    made = []

    def make(target: Path) -> None:
        made.append(target)
        target.write_text("whole")

    assert wheels.once(tmp_path / "part", make).read_text() == "whole"
    assert wheels.once(tmp_path / "part", make).read_text() == "whole"
    assert len(made) == 1


def test_an_interrupted_part_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(target: Path) -> None:
        target.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheels.once(tmp_path / "part", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_client_is_named_with_its_last_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('first\\nno such package')"]
    with pytest.raises(SiteError, match=r"numpy for Pyodide: .* failed: no such package"):
        wheels.run(command, "numpy for Pyodide")


def a_wheel(path: Path, *files: str) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name in files:
            made.writestr(name, f"# {name}\n" if name.endswith(".py") else "")
    return path


def test_a_wheel_for_this_machine_becomes_one_for_any(tmp_path: Path) -> None:
    native = a_wheel(tmp_path / "a-1.0-cp311-cp311-linux_x86_64.whl", "a/b.py", "a/_fast.so")
    wheels._without_native_part(native)
    (pure,) = tmp_path.iterdir()
    assert pure.name == "a-1.0-py3-none-any.whl"
    assert zipfile.ZipFile(pure).namelist() == ["a/b.py"]


def test_another_python_leaves_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "PYTHON", (3, 0))
    given = [a_wheel(tmp_path / "a-1.0-py3-none-any.whl", "a/__init__.py")]
    assert wheels.compiled(tmp_path, given, print) == given


@pytest.mark.skipif(sys.version_info[:2] != wheels.PYTHON, reason="compiles for the page's Python")
def test_the_pages_python_gives_byte_code(tmp_path: Path) -> None:
    given = a_wheel(tmp_path / "a-1.0-py3-none-any.whl", "a/b.py", "a/b.wgsl", "a-1.0.dist-info/RECORD")
    native = a_wheel(tmp_path / "c-1.0-cp313-cp313-pyodide_2025_0_wasm32.whl", "c.py")
    made, same = wheels.compiled(tmp_path, [given, native], print)
    assert same == native
    assert {"a/b.pyc", "a/b.wgsl"} <= set(zipfile.ZipFile(made).namelist())
    assert wheels.compiled(tmp_path, [given], print) == [made]
