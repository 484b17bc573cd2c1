"""How a commit looks as one object: the unit of atomicity that object storage gives.

::

    "wklog1\\n" | sha256 of the rest | puts u32 | deletes u32
    each put:    key length u16 | key | kind u8 (0: value, 1: path of its object) | length u64 | bytes
                 kind 1 has the value's size, u64, after the path
    each delete: key length u16 | key                                                       (little-endian)

A snapshot has the same form, with all entries and no deletes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from webkv.errors import DamageError

_MAGIC = b"wklog1\n"
_COUNTS, _KEY, _VALUE, _SIZE = (
    struct.Struct("<II"),
    struct.Struct("<H"),
    struct.Struct("<BQ"),
    struct.Struct("<Q"),
)


@dataclass(frozen=True)
class Elsewhere:
    """A value that is an object of its own."""

    path: str
    size: int


Value = bytes | Elsewhere


def pack(puts: Mapping[str, Value], deletes: Iterable[str] = ()) -> bytes:
    """The object of a commit."""
    gone = list(deletes)
    parts = [_COUNTS.pack(len(puts), len(gone))]
    for key, value in puts.items():
        data = value.path.encode() if isinstance(value, Elsewhere) else value
        parts += [_key(key), _VALUE.pack(isinstance(value, Elsewhere), len(data)), data]
        if isinstance(value, Elsewhere):
            parts.append(_SIZE.pack(value.size))
    parts += [_key(key) for key in gone]
    body = b"".join(parts)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _key(key: str) -> bytes:
    data = key.encode()
    return _KEY.pack(len(data)) + data


def unpack(data: bytes, what: str) -> tuple[dict[str, Value], list[str]]:
    """Puts and deletes of a commit's object; `DamageError` starting with `what` unless every bit is right."""
    start = len(_MAGIC) + 32
    body = data[start:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        raise DamageError(f"{what}: its digest does not fit its bytes")
    reader = _Reader(body)
    puts_count, deletes_count = reader.fields(_COUNTS)
    puts: dict[str, Value] = {}
    for _ in range(puts_count):
        key = reader.key()
        elsewhere, size = reader.fields(_VALUE)
        value = reader.take(size)
        puts[key] = Elsewhere(value.decode(), reader.fields(_SIZE)[0]) if elsewhere else value
    return puts, [reader.key() for _ in range(deletes_count)]


class _Reader:
    """Bytes in order; its digest has been checked, so that sizes may be believed."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def fields(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def key(self) -> str:
        return self.take(self.fields(_KEY)[0]).decode()
