"""`webkv serve --out`: what is written for another web server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from webkv.cli import main
from webkv.site import CDN, PYODIDE

pytestmark = pytest.mark.skipif(sys.platform == "emscripten", reason="a command")


@pytest.mark.parametrize(
    ("options", "base"), [([], CDN.format(PYODIDE)), (["--pyodide", "local"], "pyodide/")]
)
def test_a_written_page_takes_pyodide_from_its_cdn_unless_asked(
    options: list[str], base: str, tmp_path: Path
) -> None:
    assert main(["serve", "--out", str(tmp_path), *options]) == 0
    assert json.loads((tmp_path / "manifest.json").read_text())["pyodide"] == base
    assert (tmp_path / "pyodide" / "pyodide.mjs").exists() == (base == "pyodide/")
    assert len(list((tmp_path / "wheels").iterdir())) == (5 if base == "pyodide/" else 4)
