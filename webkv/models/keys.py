"""Typed access to GGUF metadata: each accessor names the key, what was found and what was expected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from webkv.errors import ModelError

_MISSING: Any = object()


@dataclass(frozen=True)
class Keys:
    """Metadata of the file named `file`, read under a key prefix (such as `"llama."`)."""

    file: str
    values: dict[str, Any]
    prefix: str = ""

    def within(self, section: str) -> Keys:
        """The same metadata under `section.`"""
        return Keys(self.file, self.values, f"{section}.")

    def path(self, key: str) -> str:
        """The full name of `key`."""
        return self.prefix + key

    def __contains__(self, key: str) -> bool:
        return self.path(key) in self.values

    def count(self, key: str, default: int = _MISSING) -> int:
        """A positive integer; a given default may be 0, and then the file's value may be too."""
        value = self._get(key, default)
        least = 0 if default == 0 else 1
        if type(value) is not int or value < least:
            raise self._wrong(key, value, f"an integer of at least {least}")
        return value

    def positive(self, key: str, default: float = _MISSING) -> float:
        """A finite number above zero."""
        value = self._get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise self._wrong(key, value, "a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool = _MISSING) -> bool:
        """A boolean."""
        value = self._get(key, default)
        if type(value) is not bool:
            raise self._wrong(key, value, "a boolean")
        return value

    def text(self, key: str, default: str = _MISSING) -> str:
        """A string."""
        value = self._get(key, default)
        if type(value) is not str:
            raise self._wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings that is not empty."""
        value = self._get(key, _MISSING)
        if type(value) is not list or not value or type(value[0]) is not str:
            raise self._wrong(key, value, "a list of strings")
        return value

    def numbers(self, key: str, length: int) -> list[Any]:
        """A list of `length` numbers."""
        value = self._get(key, _MISSING)
        if type(value) is not list or (value and type(value[0]) not in (int, float)):
            raise self._wrong(key, value, f"a list of {length} numbers")
        if len(value) != length:
            raise ModelError(f"{self.file}: {self.path(key)} has {len(value)} entries, expected {length}")
        return value

    def token_id(self, key: str, vocab: int) -> int | None:
        """A token id below `vocab`, or None where the file has no such key."""
        if key not in self:
            return None
        value = self.count(key, 0)
        if value >= vocab:
            raise self._wrong(key, value, f"a token id below {vocab}")
        return value

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(self.path(key), default)
        if value is _MISSING:
            raise ModelError(f"{self.file}: metadata key {self.path(key)} is missing")
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> ModelError:
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
        return ModelError(f"{self.file}: {self.path(key)} is {shown}, expected {expected}")
