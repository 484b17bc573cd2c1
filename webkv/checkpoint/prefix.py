"""Names for stored pages that depend on every token before them, and the index from such names to bytes.

The key of a page is a hash chain over all token ids up to its end, as in vLLM's automatic prefix caching, but
SHA-256 and rooted in the content, the layout and the layer group: equal keys mean KV of the same tokens by
the same model in the same layout.  KV of the same tokens may still differ in its last bits, by how it was
computed (prefill or decode); the *variant* of a page is a second chain over that.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from webkv.checkpoint.identity import Identity
from webkv.checkpoint.record import Kind, Mode, payload_of, seal, seed_of, unseal
from webkv.errors import DamageError

_REF = struct.Struct("<32s32sI")
_ENTRY = struct.Struct("<32sI32s")


@dataclass(frozen=True)
class PageRef:
    """A session's page: the digest that names its bytes, and the chain key of the tokens it is for."""

    digest: bytes
    chain: bytes
    nbytes: int

    def pack(self, key: str) -> bytes:
        """The value to store under `key`."""
        return seal(Kind.PAGE, 0, _REF.pack(self.digest, self.chain, self.nbytes), seed_of(key))

    @classmethod
    def unpack(cls, key: str, data: bytes) -> PageRef:
        """Read what `pack` wrote; `DamageError` naming the key."""
        return cls(*_unpack(_REF, Kind.PAGE, key, data))


@dataclass(frozen=True)
class PrefixEntry:
    """A page that any session may use: its bytes' digest and size, its variant, and its tokens' modes."""

    digest: bytes
    nbytes: int
    variant: bytes
    modes: bytes

    def pack(self, key: str) -> bytes:
        """The value to store under `key`."""
        fixed = _ENTRY.pack(self.digest, self.nbytes, self.variant)
        return seal(Kind.PREFIX, 0, fixed + pack_modes(self.modes), seed_of(key))

    @classmethod
    def unpack(cls, key: str, data: bytes, page_tokens: int) -> PrefixEntry:
        """Read what `pack` wrote; `DamageError` naming the key."""
        size = _ENTRY.size + -(-page_tokens // 8)
        digest, nbytes, variant, bits = _unpack(
            struct.Struct(f"{_ENTRY.format}{size - _ENTRY.size}s"), Kind.PREFIX, key, data
        )
        return cls(digest, nbytes, variant, unpack_modes(bits, page_tokens))

    @staticmethod
    def digest_in(data: bytes) -> bytes:
        """The digest that a packed entry names, not checked."""
        return payload_of(data)[:32]


def _unpack(form: struct.Struct, expected: Kind, key: str, data: bytes) -> tuple:
    kind, payload = unseal(data, seed_of(key), 0, key)
    if kind is not expected or len(payload) != form.size:
        raise DamageError(
            f"{key}: found a {kind.name.lower()} record of {len(payload)} bytes, "
            f"expected a {expected.name.lower()} record of {form.size}"
        )
    return form.unpack(payload)


def pack_modes(modes: bytes) -> bytes:
    """One bit per token, the first in the lowest bit: 1 for decode, 0 for prefill."""
    bits = sum(1 << at for at, mode in enumerate(modes) if mode == Mode.DECODE)
    return bits.to_bytes(-(-len(modes) // 8), "little")


def unpack_modes(bits: bytes, tokens: int) -> bytes:
    """`Mode`s of `tokens` tokens, one byte each."""
    number = int.from_bytes(bits, "little")
    return bytes(Mode.DECODE if number >> at & 1 else Mode.PREFILL for at in range(tokens))


class Chains:
    """Chain keys of every full block of a growing token list, per layer group.

    `keys[group][block]` is the key of the tokens up to the end of that block.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._roots = {
            group.name: _hash(
                b"webkv-page-1", identity.content_id, group.layout_id, group.name, str(identity.page_tokens)
            )
            for group in identity.groups
        }
        self.keys: dict[str, list[bytes]] = {name: [] for name in self._roots}

    def extend(self, tokens: Sequence[int]) -> None:
        """Add keys for the full blocks of `tokens` that have none yet."""
        size = self.identity.page_tokens
        for name, keys in self.keys.items():
            for at in range(len(keys) * size, len(tokens) - size + 1, size):
                last = keys[-1] if keys else self._roots[name]
                ids = struct.pack(f"<{size}I", *tokens[at : at + size])
                keys.append(hashlib.sha256(last + ids).digest())

    def truncate(self, length: int) -> None:
        """Forget the keys of blocks that do not end within the first `length` tokens."""
        for keys in self.keys.values():
            del keys[length // self.identity.page_tokens :]


def _hash(tag: bytes, *parts: str) -> bytes:
    mixed = hashlib.sha256(tag)
    for part in parts:
        data = part.encode()
        mixed.update(len(data).to_bytes(8, "little") + data)
    return mixed.digest()


def variants(modes: bytes, page_tokens: int) -> list[bytes]:
    """The variant of every block whose tokens all have a mode."""
    found: list[bytes] = []
    for at in range(0, len(modes) - page_tokens + 1, page_tokens):
        found.append(next_variant(found[-1] if found else None, modes[at : at + page_tokens]))
    return found


def next_variant(last: bytes | None, modes: bytes) -> bytes:
    """The variant of a block that follows one of variant `last` (None: the first block)."""
    return hashlib.sha256((last or bytes(32)) + pack_modes(modes)).digest()


def index_key(chain: bytes) -> str:
    """Where the index keeps a chain key's page."""
    return f"x/{chain.hex()}"


def blob_key(digest: bytes) -> str:
    """Where the bytes of that digest are."""
    return f"p/{digest.hex()}"


def page_key(session: str, group: str, block: int) -> str:
    """Where a session's reference to a page is."""
    return f"s/{session}/p/{group}/{block:08}"


def holder_key(digest: bytes, session: str, group: str, block: int) -> str:
    """Says that a session's page has these bytes; they stay while any such key does."""
    return f"r/{digest.hex()}/{session}/{group}/{block:08}"
