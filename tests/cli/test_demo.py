"""The demo: three processes, and a verdict that depends on what they did."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform == "emscripten":
    pytest.skip("processes are native", allow_module_level=True)

from tests.models.tiny import write_tiny_llama
from webkv.cli import main
from webkv.cli.demo import _differences, _Run


def test_killed_and_resumed_equals_the_uninterrupted_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf")
    code = main(["demo", "--model", str(tmp_path / "tiny.gguf"), "--max-tokens", "24"])
    out, err = capsys.readouterr()
    assert code == 0
    assert "killed after 12 tokens were shown" in err
    assert "recovered " in err
    assert err.splitlines()[-1].startswith("equal: ")
    assert len(out.splitlines()) >= 3


def test_a_command_that_fails_ends_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "none.gguf"]) == 2
    err = capfd.readouterr().err
    assert "webkv: no model file 'none.gguf'" in err
    assert err.splitlines()[-1] == "webkv: webkv generate ended with exit code 2"


@pytest.mark.parametrize(
    ("tokens", "pages", "found"),
    [
        ([1, 2], {"g/0": "a"}, []),
        ([1, 3], {"g/0": "a"}, ["token ids differ"]),
        ([1, 2], {"g/0": "b"}, ["page g/0 differs"]),
        ([1, 2], {"g/0": "a", "g/1": "c"}, ["2 pages, expected 1"]),
    ],
)
def test_differences_are_told(tokens: list[int], pages: dict[str, str], found: list[str]) -> None:
    whole = _Run(end={"tokens": [1, 2], "pages": {"g/0": "a"}})
    assert _differences(whole, _Run(end={"tokens": tokens, "pages": pages})) == found
