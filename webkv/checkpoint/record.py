"""How a row is written: one frame for every small value in a store.

::

    "wk" | version u8 | kind u8 | number u32 | length u32 | payload | digest 16 bytes        (little-endian)

The digest is SHA-256 (its first 16 bytes) over a seed, the header and the payload.  For a journal row the
seed is the digest of the row before it, so rows that were dropped, doubled, swapped or come from another
session or another history fail, not only rows with flipped bits.  For any other entry the seed is its key, so
an entry under another key fails too.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby
from typing import Any

from webkv.checkpoint.identity import Identity
from webkv.checkpoint.nesting import parse_json
from webkv.errors import DamageError

VERSION = 1
DIGEST_BYTES = 16
MAX_PAYLOAD = 64 << 20

_HEADER = struct.Struct("<2sBBII")
_MAGIC = b"wk"
_TOKEN = struct.Struct("<IIHH")
_RUN = struct.Struct("<BI")
_WORD = struct.Struct("<I")


LAYOUTS = "layouts"
"""The fact of a header that declares its pages' layouts (`relayout.facts_of`); lists leave it out."""


class Kind(IntEnum):
    """What a frame holds; 1 to 15 are journal rows."""

    HEADER = 1
    REQUEST = 2
    PROMPT = 3
    COMPUTED = 4
    TOKEN = 5
    TRUNCATE = 6
    END = 7
    PAGE = 16
    PREFIX = 17
    SUMMARY = 18


class Mode(IntEnum):
    """How a token's KV was computed; kernels differ, so bits do."""

    PREFILL = 1
    DECODE = 2


@dataclass(frozen=True)
class Header:
    """First row, and again when a session goes on with another identity: KV so far is not of this one."""

    identity: Identity
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Free JSON: when it was made, the model's name, the parent of a branch, how pages read, ..."""


@dataclass(frozen=True)
class Request:
    """A turn begins: free JSON with its messages or prompt and sampling parameters."""

    data: Mapping[str, Any]


@dataclass(frozen=True)
class Prompt:
    """Tokens that were given, not sampled, from position `start` on."""

    start: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Computed:
    """KV from position `start` on exists, `runs` of (mode, tokens): a prefill chunk, or imported pages."""

    start: int
    runs: tuple[tuple[Mode, int], ...]

    @property
    def stop(self) -> int:
        return self.start + sum(count for _, count in self.runs)


@dataclass(frozen=True)
class Token:
    """A sampled token: all KV before `position` exists.

    `state` is the sampler's after it, `text` the bytes it adds to the answer; both at most 65,535 bytes.
    """

    position: int
    id: int
    state: bytes = b""
    text: bytes = b""


@dataclass(frozen=True)
class Truncate:
    """Tokens from position `length` on are taken back."""

    length: int


@dataclass(frozen=True)
class End:
    """The turn is over: `stop`, `length`, `cancelled`, ..."""

    reason: str


Row = Header | Request | Prompt | Computed | Token | Truncate | End


def mode_runs(modes: bytes | bytearray) -> tuple[tuple[Mode, int], ...]:
    """Modes, one byte per token, as (mode, tokens) runs."""
    return tuple((Mode(mode), len(list(run))) for mode, run in groupby(modes))


def seed_of(name: str) -> bytes:
    """The digest seed of an entry under the key `name`, and of a session's first row."""
    return hashlib.sha256(name.encode()).digest()[:DIGEST_BYTES]


def seal(kind: Kind, number: int, payload: bytes, seed: bytes) -> bytes:
    """The frame of a payload; its last 16 bytes are its digest."""
    body = _HEADER.pack(_MAGIC, VERSION, kind, number, len(payload)) + payload
    return body + hashlib.sha256(seed + body).digest()[:DIGEST_BYTES]


def unseal(data: bytes, seed: bytes, number: int, what: str) -> tuple[Kind, bytes]:
    """Kind and payload of a frame.  Raises `DamageError` starting with `what` unless every bit is right."""
    if len(data) < _HEADER.size + DIGEST_BYTES:
        raise DamageError(f"{what}: found {len(data)} bytes, expected {_HEADER.size + DIGEST_BYTES} or more")
    magic, version, kind, found, length = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise DamageError(f"{what}: found magic {magic!r}, expected {_MAGIC!r}")
    if version != VERSION:
        raise DamageError(f"{what}: found format version {version}, this program reads {VERSION}")
    if length != len(data) - _HEADER.size - DIGEST_BYTES or length > MAX_PAYLOAD:
        raise DamageError(f"{what}: found length {length} in a record of {len(data)} bytes")
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.sha256(seed + body).digest()[:DIGEST_BYTES] != digest:
        raise DamageError(f"{what}: its digest does not fit its bytes and its place")
    if found != number:
        raise DamageError(f"{what}: found number {found}, expected {number}")
    try:
        return Kind(kind), body[_HEADER.size :]
    except ValueError:
        raise DamageError(f"{what}: found record kind {kind}, which this program does not know") from None


def payload_of(data: bytes) -> bytes:
    """The payload of a frame that is not checked."""
    return data[_HEADER.size : -DIGEST_BYTES]


def encode(row: Row) -> tuple[Kind, bytes]:
    """Kind and payload of a journal row."""
    match row:
        case Header(identity, facts):
            return Kind.HEADER, pack_json({"identity": identity.to_json(), "facts": dict(facts)})
        case Request(data):
            return Kind.REQUEST, pack_json(data)
        case Prompt(start, ids):
            return Kind.PROMPT, struct.pack(f"<I{len(ids)}I", start, *ids)
        case Computed(start, runs):
            return Kind.COMPUTED, _WORD.pack(start) + b"".join(_RUN.pack(*run) for run in runs)
        case Token(position, token, state, text):
            return Kind.TOKEN, _TOKEN.pack(position, token, len(state), len(text)) + state + text
        case Truncate(length):
            return Kind.TRUNCATE, _WORD.pack(length)
        case End(reason):
            return Kind.END, reason.encode()


def decode(kind: Kind, payload: bytes, what: str) -> Row:
    """The row of a payload; `DamageError` starting with `what` if it is not exactly one."""
    try:
        row = _decode(kind, payload)
    except (struct.error, ValueError, UnicodeError) as error:
        raise DamageError(f"{what}: a {kind.name.lower()} row that does not parse: {error}") from None
    return row


def _decode(kind: Kind, payload: bytes) -> Row:
    match kind:
        case Kind.HEADER:
            data = unpack_json(payload)
            facts = data.get("facts")
            if not isinstance(facts, dict):
                raise ValueError(f"facts are {facts!r:.40}, expected an object")
            return Header(Identity.from_json(data.get("identity")), facts)
        case Kind.REQUEST:
            return Request(unpack_json(payload))
        case Kind.PROMPT:
            start, *ids = struct.unpack(f"<{len(payload) // 4}I", payload)
            return Prompt(start, tuple(ids))
        case Kind.COMPUTED:
            runs = tuple((Mode(mode), count) for mode, count in _RUN.iter_unpack(payload[4:]))
            return Computed(_WORD.unpack_from(payload)[0], runs)
        case Kind.TOKEN:
            position, token, state, text = _TOKEN.unpack_from(payload)
            rest = payload[_TOKEN.size :]
            if len(rest) != state + text:
                raise ValueError(f"{len(rest)} bytes for a state of {state} and a text of {text}")
            return Token(position, token, rest[:state], rest[state:])
        case Kind.TRUNCATE:
            return Truncate(_WORD.unpack(payload)[0])
        case Kind.END:
            return End(payload.decode())
    raise ValueError("not a journal row")


def pack_json(data: Mapping[str, Any]) -> bytes:
    """Compact JSON; the same bytes for equal data."""
    return json.dumps(data, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def unpack_json(data: bytes) -> dict[str, Any]:
    """A JSON object.  Raises `ValueError` for anything else, however deep or odd it is."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError(f"found a JSON {type(value).__name__}, expected an object")
    return value
