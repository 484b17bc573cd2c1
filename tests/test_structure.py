"""The shape of the house: who may import whom, how long a file may be, and a numpy twin for every kernel."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "webkv"

# Each room may import itself and the rooms named here, all of them below it.
BELOW = {
    "errors": set(),
    "layout": {"errors"},
    "gpu": {"errors"},
    "kernels": {"gpu", "layout", "errors"},
    "cache": {"kernels", "gpu", "layout", "errors"},
    "sampling": {"errors"},
    "models": {"cache", "kernels", "gpu", "layout", "sampling", "errors"},
    "checkpoint": {"models", "cache", "kernels", "gpu", "layout", "sampling", "errors"},
    "conversation": {"sampling"},
    "engine": {"conversation", "models", "cache", "kernels", "gpu", "layout", "sampling", "errors"},
}


def imports(file: Path) -> set[str]:
    """The rooms of webkv that a module imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if node.module != "webkv" else [f"webkv.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("webkv.")}
    return found


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_point_down_only() -> None:
    wrong = []
    for file in PACKAGE.rglob("*.py"):
        allowed = BELOW.get(room(file))
        if allowed is not None:
            wrong += [f"{file.name} -> {name}" for name in imports(file) - allowed - {room(file)}]
    assert wrong == []


def test_layout_is_pure_data() -> None:
    for file in (PACKAGE / "layout").glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        top = {n.module for n in tree.body if isinstance(n, ast.ImportFrom)}
        top |= {alias.name for n in tree.body if isinstance(n, ast.Import) for alias in n.names}
        assert not top & {"numpy", "wgpu"}, file.name


def test_modules_stay_readable() -> None:
    long = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for f in PACKAGE.rglob("*.py")}
    assert {name: n for name, n in long.items() if n > 320} == {}


def test_shaders_stay_readable_and_have_one_entry_point() -> None:
    for file in (ROOT / "shaders").glob("*.wgsl"):
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 160, file.name
        assert len(re.findall(r"^@compute", text, re.MULTILINE)) <= 1, file.name


def test_blocking_read_backs_live_in_native_only() -> None:
    # wgpu's blocking calls; a browser page cannot wait like that.
    blocking = re.compile(r"\.(map_sync|read_buffer|request_adapter_sync|request_device_sync)\(")
    users = {f.name for f in PACKAGE.rglob("*.py") if blocking.search(f.read_text(encoding="utf-8"))}
    assert users <= {"native.py"}
