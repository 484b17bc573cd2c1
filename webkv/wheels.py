"""The wheels of a page: fetched, built, and with byte code where that can be made.

Each part is made beside its place and moved there whole, so that an interrupted run leaves nothing half made,
and a second run only looks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from webkv.errors import SiteError

Say = Callable[[str], None]

PYTHON = (3, 13)
"""The Python of the page, whose byte code it reads."""

_KEPT_SECONDS = 3600
"""Another process may still serve an older wheel of webkv for so long."""


def file_digest(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def checkout() -> Path | None:
    """The folder of the source tree that this runs from, None if it is installed."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "pyproject.toml").is_file() and (root / "web").is_dir() else None


def run(command: Iterable[str], what: str) -> None:
    """Run a program; `SiteError` with its last line if it fails, saying that it was for `what`."""
    command = list(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SiteError(f"{what}: cannot run {command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise SiteError(f"{what}: {' '.join(command[:4])} failed: {''.join(last)}")


def pip(*arguments: str, what: str) -> None:
    """Run pip."""
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments], what)


def once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, made by `make` in a folder beside it and moved into place whole."""
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as made:
            make(Path(made) / target.name)
            if not target.exists():  # another run may have been faster
                (Path(made) / target.name).replace(target)
    return target


def _folder_of_wheels(cache: Path, requirements: Path, say: Say, kind: str, *arguments: str) -> list[Path]:
    """The wheels of a requirements file, in a folder named by the file's content."""

    def make(folder: Path) -> None:
        names = [line.split("==")[0] for line in requirements.read_text().splitlines() if "==" in line]
        say(f"fetching {', '.join(names)}")
        common = ("--no-deps", "--require-hashes", "-r", str(requirements))
        pip(*arguments[:1], *common, *arguments[1:], str(folder), what=requirements.name)
        for wheel in folder.glob("*.whl"):
            if not wheel.name.endswith("-none-any.whl"):
                _without_native_part(wheel)

    folder = cache / f"{kind}-{requirements.stem}-{file_digest(requirements)[:12]}"
    return sorted(once(folder, make).glob("*.whl"))


def _without_native_part(wheel: Path) -> None:
    """Make a wheel that was built for this machine one for any."""
    name, version = wheel.name.split("-")[:2]
    made = wheel.with_name(f"{name}-{version}-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as native, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as pure:
        for entry in native.infolist():
            if not entry.filename.endswith((".so", ".pyd")):
                pure.writestr(entry, native.read(entry))
    wheel.unlink()


def fetched(cache: Path, requirements: Path, say: Say) -> list[Path]:
    """Published wheels without native code."""
    any_platform = ("--only-binary", ":all:", "--platform", "any", "--python-version", "313", "-d")
    return _folder_of_wheels(cache, requirements, say, "fetched", "download", *any_platform)


def built(cache: Path, requirements: Path, say: Say) -> list[Path]:
    """Wheels built from source, without the native parts of those that work without them."""
    source = ("--no-binary", "wgpu,markupsafe,pyyaml", "-w")
    return _folder_of_wheels(cache, requirements, say, "built", "wheel", *source)


def own_wheel(cache: Path, say: Say) -> Path:
    """webkv itself: built from a checkout whenever a file changed, else packed from what is installed."""
    root = checkout()
    if root is None:
        return _repacked(cache)
    files = [f for top in ("webkv", "shaders", "web") for f in (root / top).rglob("*") if f.is_file()]
    files = [*sorted(f for f in files if "__pycache__" not in f.parts), root / "pyproject.toml"]
    state = hashlib.sha256()
    for file in files:
        state.update(f"{file.relative_to(root)}\0{file_digest(file)}\n".encode())

    def make(folder: Path) -> None:
        say("building webkv's wheel")
        pip("wheel", "--no-deps", "-w", str(folder), str(root), what="webkv's wheel")

    folder = cache / f"webkv-{state.hexdigest()[:12]}"
    _forget_others(folder)
    return next(iter(once(folder, make).glob("*.whl")))


def _forget_others(folder: Path) -> None:
    """Remove what `folder` takes the place of: the folders beside it with its name up to the last dash."""
    for old in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*"):
        if old != folder and time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)


def _repacked(cache: Path) -> Path:
    installed = metadata.distribution("webkv")
    wheel = cache / f"webkv-{installed.version}-py3-none-any.whl"
    with tempfile.TemporaryDirectory(dir=cache, prefix=".making-") as made:
        fresh = Path(made) / wheel.name
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as opened:
            for file in installed.files or ():
                if file.parts[0] != ".." and "__pycache__" not in file.parts:
                    opened.write(str(file.locate()), str(file))
        fresh.replace(wheel)
    return wheel


def compiled(cache: Path, wheels: Iterable[Path], say: Say) -> list[Path]:
    """The same wheels, those without native code with byte code in place of text: a page starts sooner.

    Needs pyodide-build, and the page's own version of Python; without, the wheels are given back as they are.
    """
    can = sys.version_info[:2] == PYTHON and importlib.util.find_spec("pyodide_build") is not None
    pure = "-none-any.whl"
    return [_compiled(cache, each, say) if can and each.name.endswith(pure) else each for each in wheels]


def _compiled(cache: Path, wheel: Path, say: Say) -> Path:
    name = wheel.name.split("-")[0]
    compile_it = (sys.executable, "-m", "pyodide_cli", "py-compile", "--silent")

    def make(folder: Path) -> None:
        say(f"compiling {name}")
        folder.mkdir()
        shutil.copy2(wheel, folder)
        run([*compile_it, str(folder / wheel.name)], wheel.name)

    folder = cache / f"compiled-{name}-{file_digest(wheel)[:12]}"
    _forget_others(folder)
    return next(iter(once(folder, make).glob("*.whl")))
