"""JSON from outside, parsed only if it is not nested deeply: a browser's Python dies of deep recursion.

Nor may it spell half of a character, which could never be written again.
"""

from __future__ import annotations

import json
import re
from typing import Any

# What webkv writes has about ten levels.  Pyodide 0.28 ends for good ("Maximum call stack size exceeded", no
# Python error) somewhere between 3,000 and 10,000, where CPython raises RecursionError.
MAX_NESTING = 200

# A string, whose brackets do not count, or a bracket.  A string without an end goes to the end.
_PARTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(data: bytes) -> Any:
    """The value of UTF-8 JSON.  Raises `ValueError` for anything else, however deep or odd it is."""
    if data.count(b"[") + data.count(b"{") > MAX_NESTING:
        depth = 0
        for part in _PARTS.finditer(data):
            depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(part[0], 0)
            if depth > MAX_NESTING:
                raise ValueError(f"JSON nested more than {MAX_NESTING} levels deep")
    value = json.loads(data.decode())
    if b"\\u" in data:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("JSON with a lone surrogate, which is no text") from error
    return value
