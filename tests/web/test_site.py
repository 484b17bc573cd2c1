"""Assembling a page's files: whole or not at all, checked, and with advice when a part cannot be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.web.chromium import browser, missing, served
from webkv import site
from webkv.errors import SiteError
from webkv.serve import Pages

pytestmark = pytest.mark.skipif(sys.platform == "emscripten", reason="assembles from outside")


def test_missing_npm_is_named_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.shutil, "which", lambda name: None)
    with pytest.raises(SiteError, match="npm, which is not installed; install it or use its CDN"):
        site._core(tmp_path, print, "0.29.5")


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


OWN = """async (root) => {
  const { loadPyodide } = await import(root + "pyodide/pyodide.mjs");
  const pyodide = await loadPyodide({ indexURL: root + "pyodide/" });
  await pyodide.loadPackage("webkv");
  return pyodide.runPythonAsync(`
from webkv.gpu import open_device
device = await open_device()
bytes(await device.read(device.buffer(8))).hex()
`);
}"""


@pytest.mark.skipif(bool(missing()), reason=missing())
async def test_another_page_loads_webkv_by_name(tmp_path: Path) -> None:
    made = site.prepare(print)
    made.write(tmp_path / "out")
    pages = Pages(made)
    pages.folders |= {"": tmp_path / "out", "pyodide": tmp_path / "out" / "pyodide"}
    pages.made["own.html"] = b"<!doctype html><title>own</title>"
    with served(pages) as root:
        async with browser(tmp_path / "profile") as context:
            page = await context.new_page()
            await page.goto(f"{root}own.html")
            assert await page.evaluate(OWN, root) == "00" * 8
