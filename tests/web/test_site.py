"""Assembling a page's files: whole or not at all, checked, and with advice when a part cannot be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from webkv import site
from webkv.errors import SiteError

pytestmark = pytest.mark.skipif(sys.platform == "emscripten", reason="assembles from outside")


def test_a_part_is_made_once(tmp_path: Path) -> None:
    made = []

    def make(target: Path) -> None:
        made.append(target)
        target.write_text("whole")

    assert site._once(tmp_path / "part", make).read_text() == "whole"
    assert site._once(tmp_path / "part", make).read_text() == "whole"
    assert len(made) == 1


def test_an_interrupted_part_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(target: Path) -> None:
        target.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        site._once(tmp_path / "part", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_missing_npm_is_named_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.shutil, "which", lambda name: None)
    with pytest.raises(SiteError, match="npm, which is not installed; install npm or use --cdn"):
        site._core(tmp_path, print, "0.29.5")


def test_a_failing_client_is_named_with_its_last_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('first\\nno such package')"]
    with pytest.raises(SiteError, match=r"numpy for Pyodide: .* failed: no such package"):
        site._run(command, "numpy for Pyodide")


def test_a_page_for_the_cdn_holds_no_pyodide(tmp_path: Path) -> None:
    wheel = tmp_path / "w-1-py3-none-any.whl"
    wheel.write_bytes(b"PK")
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "index.html").write_text("hi")
    made = site.Site(tmp_path / "web", None, (wheel,))
    made.write(tmp_path / "out")
    assert made.manifest()["pyodide"] == f"https://cdn.jsdelivr.net/pyodide/v{site.PYODIDE}/full/"
    assert made.manifest()["packages"] == ["numpy"]
    names = {
        str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file()
    }
    assert names == {"index.html", "manifest.json", "wheels/w-1-py3-none-any.whl"}


def test_an_unknown_pyodide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"Pyodide is '0\.1', expected one of 0\.28\.3"):
        site.prepare(print, cache=tmp_path, version="0.1")


def test_pinned_wheels_have_digests() -> None:
    for name in ("wheels.txt", "sources.txt", "pure.txt", "tests.txt", "tests-sources.txt"):
        lines = (site.packaged_folder("web") / name).read_text().splitlines()
        pinned = [line for line in lines if line and not line.startswith("#")]
        assert pinned
        assert all("==" in line and "--hash=sha256:" in line for line in pinned)
