"""Where shader text comes from: `shaders/<name>.wgsl`, with at most a few `#import` lines filled in.

A shader may hold a line `#import <slot>`.  The launcher names the file that fills the slot, so that one
attention kernel serves f32, f16 and int8 pages and one matmul serves every quantisation.  A part may import
parts in turn.  Nothing else is preprocessed: sizes and strides are pipeline `override` constants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_IMPORT = re.compile(r"^#import (\w+)$", re.MULTILINE)


@cache
def packaged_folder(name: str) -> Path:
    """A folder of files that ship with webkv: inside the installed package, else beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def shader_folder() -> Path:
    """The folder of the `.wgsl` files."""
    return packaged_folder("shaders")


@cache
def _text(name: str) -> str:
    return (shader_folder() / f"{name}.wgsl").read_text(encoding="utf-8")


def shader_source(name: str, imports: Mapping[str, str]) -> str:
    """The WGSL of `name` with each `#import slot` replaced by the file `imports[slot]`."""
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        slot = match.group(1)
        assert slot in imports, f"{name}.wgsl imports {slot!r}, which the launcher did not name"
        used.add(slot)
        return _IMPORT.sub(fill, _text(imports[slot]))

    source = _IMPORT.sub(fill, _text(name))
    assert used == set(imports), f"{name}.wgsl does not import {sorted(set(imports) - used)}"
    return source
