"""What a checkpoint belongs to: which model computed it, and how its bytes read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from webkv.errors import DamageError, IdentityError
from webkv.layout.identity import content_id

_MAX_GROUPS = 64
_MAX_PAGE_BYTES = 1 << 32


@dataclass(frozen=True)
class Group:
    """One layer group: layers with one life cycle and one page layout.

    `layout_id` says how the bytes of a page read (`webkv.layout`), `page_bytes` how many they are over all
    the group's layers.  `window` is the sliding window in tokens (None: every token is kept), `sinks` the
    number of first tokens kept besides it.
    """

    name: str
    layout_id: str
    page_bytes: int
    window: int | None = None
    sinks: int = 0

    def needed(self, tokens: int, page_tokens: int) -> range | list[int]:
        """The blocks that a query at position `tokens` may read, when every block before it is full."""
        blocks = range(-(-tokens // page_tokens))
        if self.window is None:
            return blocks
        first = max(0, tokens - self.window + 1) // page_tokens
        sinks = min(first, -(-self.sinks // page_tokens))
        return [*blocks[:sinks], *blocks[first:]]


@dataclass(frozen=True)
class Identity:
    """All that must be equal for stored KV to be used again; two that differ are refused by field.

    `weights`, `tokenizer` and `rope` are digests of what their names say, made by the engine; `quantizer`
    names how KV is quantised.  `namespace` keeps users or programs apart who share a store.
    """

    weights: str
    tokenizer: str
    rope: str
    groups: tuple[Group, ...]
    page_tokens: int = 16
    quantizer: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        assert names and len(set(names)) == len(names) <= _MAX_GROUPS, names
        assert not any("/" in name for name in names), names

    @cached_property
    def content_id(self) -> str:
        """SHA-256 over everything that decides the values of KV, not over how they are laid out."""
        return content_id(
            namespace=self.namespace,
            weights=self.weights,
            tokenizer=self.tokenizer,
            rope=self.rope,
            quantizer=self.quantizer,
        )

    def group(self, name: str) -> Group:
        """The group of that name."""
        return next(group for group in self.groups if group.name == name)

    def require(self, expected: Identity) -> None:
        """Raise `IdentityError` for the first field of `expected` that this one does not share."""
        for field in ("namespace", "weights", "tokenizer", "rope", "quantizer", "page_tokens"):
            _same(field, getattr(self, field), getattr(expected, field))
        _same("layer groups", [g.name for g in self.groups], [g.name for g in expected.groups])
        for mine, theirs in zip(self.groups, expected.groups, strict=True):
            for part in fields(Group):
                name = f"{part.name} of layer group {mine.name!r}"
                _same(name, getattr(mine, part.name), getattr(theirs, part.name))

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Identity:
        """The identity in a parsed JSON object; `DamageError` names a field that is not well formed."""
        text = {f: _field(data, f, str) for f in ("weights", "tokenizer", "rope", "quantizer", "namespace")}
        page_tokens = _field(data, "page_tokens", int)
        _between("page_tokens", page_tokens, 1, 1 << 20)
        listed = _field(data, "groups", list)
        _between("number of groups", len(listed), 1, _MAX_GROUPS)
        groups = tuple(_group(item) for item in listed)
        names = [group.name for group in groups]
        if len(set(names)) != len(names):
            raise DamageError(f"group names: found {names}, expected each once")
        return cls(groups=groups, page_tokens=page_tokens, **text)


def _group(data: object) -> Group:
    name = _field(data, "name", str)
    if not name or "/" in name or len(name) > 64:
        raise DamageError(f"group name: found {name!r}, expected 1 to 64 characters without '/'")
    page_bytes = _field(data, "page_bytes", int)
    _between("page_bytes", page_bytes, 0, _MAX_PAGE_BYTES)
    window = None if isinstance(data, dict) and data.get("window") is None else _field(data, "window", int)
    if window is not None:
        _between("window", window, 1, 1 << 31)
    sinks = _field(data, "sinks", int)
    _between("sinks", sinks, 0, 1 << 31)
    return Group(name, _field(data, "layout_id", str), page_bytes, window, sinks)


def _field(data: object, name: str, kind: type) -> Any:
    if not isinstance(data, Mapping) or name not in data:
        raise DamageError(f"identity field {name!r} is missing")
    value = data[name]
    if type(value) is not kind:
        raise DamageError(f"identity field {name!r}: found {value!r:.60}, expected {kind.__name__}")
    return value


def _between(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise DamageError(f"{name}: found {value}, expected {least} to {most}")


def _same(field: str, found: object, expected: object) -> None:
    if found != expected:
        raise IdentityError(field, found, expected)
