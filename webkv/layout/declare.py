"""What a page's bytes are: `Axis`, `Tensor`, `PageLayout`.

One rule gives every address; nothing else in webkv may compute one:

    address(tensor, page, index) = page * slot_bytes[pool] + offset + sum(index[axis] * stride[axis])

A *slot* is one page's bytes in one *pool*; a page is its slots, one per pool.  K/V interleaving, head- or
token-major order, several layers in a slot and separate K and V planes are all just offsets and strides
(named axes with explicit strides, as TensorRT-LLM's page tables and vLLM's layout proposals ended up with).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from webkv.errors import LayoutError

DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}
"""Bytes of one element of each page dtype; the only such table in webkv."""

KINDS = ("attention", "state")
"""`attention` pages hold `page_tokens` tokens; a `state` layout is one page per sequence, without tokens."""

WORD = 4
"""Slots and tensors start on whole u32 words, as WebGPU buffer copies and storage bindings need."""

# Storage bindings address at most 2**32 bytes; the other bound keeps a damaged declaration from stalling us.
_MAX_SLOT_BYTES = 2**32
_MAX_SEGMENTS = 2**20
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def refuse(field: str, found: object, expected: str) -> LayoutError:
    """The one wording of a refusal: the field, what it is, what it should be."""
    return LayoutError(f"{field}: found {found!r}, expected {expected}")


def require_int(field: str, value: object, least: int) -> None:
    """Raise `LayoutError` unless `value` is an int (not a bool) of at least `least`."""
    if type(value) is not int or value < least:
        raise refuse(field, value, f"an integer of at least {least}")


def require_name(field: str, value: object) -> None:
    """Raise `LayoutError` unless `value` is a lower-case identifier."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise refuse(field, value, "a lower-case identifier")


@dataclass(frozen=True, slots=True)
class Axis:
    """`count` elements, `stride` bytes apart.  Usual names: head, token, dim, chan, tap, state."""

    name: str
    count: int
    stride: int

    def __post_init__(self) -> None:
        require_name("axis name", self.name)
        require_int(f"{self.name} count", self.count, 1)
        require_int(f"{self.name} stride", self.stride, 1)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One array inside a page.

    `layer` is the model's layer, never a rank's local number.  `role` says what the values are (key, value,
    latent, key_scale, value_scale, conv, ssm, index_key, ...).  `part` numbers the sections of a role that
    are split each on its own (conv state x, B, C are parts 0, 1, 2).  `offset` is in bytes from the start of
    the slot in pool number `pool`.  `axes` are in no particular order; their strides say how they nest.
    """

    layer: int
    role: str
    part: int
    pool: int
    offset: int
    dtype: str
    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        require_int("layer", self.layer, 0)
        require_name("role", self.role)
        require_int(f"{self.name} part", self.part, 0)
        require_int(f"{self.name} pool", self.pool, 0)
        require_int(f"{self.name} offset", self.offset, 0)
        if self.dtype not in tuple(DTYPE_BYTES):
            raise refuse(f"{self.name} dtype", self.dtype, f"one of {', '.join(DTYPE_BYTES)}")
        if self.offset % WORD:
            raise refuse(f"{self.name} offset", self.offset, f"a multiple of {WORD}")
        if not self.axes:
            raise refuse(f"{self.name} axes", self.axes, "at least one axis")
        names = [axis.name for axis in self.axes]
        if len(set(names)) != len(names):
            raise refuse(f"{self.name} axes", names, "each axis once")
        for axis in self.axes:
            if axis.stride % self.itemsize:
                raise refuse(f"{self.name} {axis.name} stride", axis.stride, f"a multiple of {self.itemsize}")

    @property
    def key(self) -> tuple[int, str, int]:
        """`(layer, role, part)`, unique in a layout."""
        return self.layer, self.role, self.part

    @property
    def name(self) -> str:
        """How errors name this tensor: `(0, key)`, or `(0, conv, 1)` for a later part."""
        return f"({self.layer}, {self.role}, {self.part})" if self.part else f"({self.layer}, {self.role})"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without the gaps between them."""
        return prod(axis.count for axis in self.axes) * self.itemsize

    def axis(self, name: str) -> Axis | None:
        """The axis of that name, or None."""
        return next((axis for axis in self.axes if axis.name == name), None)

    def stride(self, name: str) -> int:
        """Bytes between neighbours along an axis; 0 where the tensor does not have it."""
        axis = self.axis(name)
        return axis.stride if axis else 0

    def address(self, **index: int) -> int:
        """Byte offset in the slot of one element; an axis left out is at 0."""
        assert all(0 <= at < (axis.count if (axis := self.axis(name)) else 0) for name, at in index.items())
        return self.offset + sum(at * self.stride(name) for name, at in index.items())

    def segments(self) -> Iterator[tuple[int, int]]:
        """`(start, bytes)` in the slot of every contiguous piece, in no particular order."""
        length = self.itemsize
        apart: list[Axis] = []
        for axis in sorted(self.axes, key=lambda axis: axis.stride):
            if axis.stride == length and not apart:
                length *= axis.count
            elif axis.count > 1:
                apart.append(axis)
        if prod(axis.count for axis in apart) > _MAX_SEGMENTS:
            raise refuse(f"{self.name} axes", self.axes, f"at most {_MAX_SEGMENTS} separate pieces")
        for at in product(*(range(0, axis.count * axis.stride, axis.stride) for axis in apart)):
            yield self.offset + sum(at), length


class Strides(NamedTuple):
    """Where a kernel finds `[page][head][token][dim]` of one tensor, in elements; WGSL override constants.

    `element = page * strides.page + base + head * strides.head + token_in_page * strides.token + d * dim`.
    A stride is 0 where the tensor lacks the axis.
    """

    page: int
    base: int
    head: int
    token: int
    dim: int


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The declared bytes of one page: `slot_bytes[pool]` bytes in each pool, and the tensors in them.

    `page_tokens` is the number of tokens of a page, 0 for `kind="state"`.  Construction raises `LayoutError`,
    naming the field, on overlap, a tensor past its slot, the same (layer, role, part) twice, slots or offsets
    that are not whole words, and a `token` axis that is not `page_tokens` long.  Which share of the heads a
    holder has (`Held`), page counts, windows and addresses are not part of a layout.
    """

    page_tokens: int
    slot_bytes: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    kind: str = "attention"

    def __post_init__(self) -> None:
        self._check_sizes()
        seen = set()
        for tensor in self.tensors:
            if tensor.key in seen:
                raise refuse("tensors", tensor.name, "each (layer, role, part) once")
            seen.add(tensor.key)
            self._check_tensor(tensor)
        for pool in range(len(self.slot_bytes)):
            self._check_overlap(pool)

    def _check_sizes(self) -> None:
        if self.kind not in KINDS:
            raise refuse("kind", self.kind, f"one of {', '.join(KINDS)}")
        require_int("page_tokens", self.page_tokens, 0)
        if (self.page_tokens == 0) != (self.kind == "state"):
            raise refuse("page_tokens", self.page_tokens, "0 for state, more for attention")
        if not self.slot_bytes:
            raise refuse("slot_bytes", self.slot_bytes, "at least one pool")
        for pool, size in enumerate(self.slot_bytes):
            require_int(f"slot_bytes[{pool}]", size, WORD)
            if size % WORD or size >= _MAX_SLOT_BYTES:
                raise refuse(f"slot_bytes[{pool}]", size, f"a multiple of {WORD} below {_MAX_SLOT_BYTES}")
        if not self.tensors:
            raise refuse("tensors", self.tensors, "at least one tensor")

    def _check_tensor(self, tensor: Tensor) -> None:
        if tensor.pool >= len(self.slot_bytes):
            raise refuse(f"{tensor.name} pool", tensor.pool, f"below {len(self.slot_bytes)}")
        token = tensor.axis("token")
        count = token.count if token else 0
        if count != self.page_tokens:
            raise refuse(f"{tensor.name} token count", count, f"page_tokens = {self.page_tokens}")
        end = tensor.offset + tensor.itemsize + sum((axis.count - 1) * axis.stride for axis in tensor.axes)
        slot = self.slot_bytes[tensor.pool]
        if end > slot:
            raise refuse(f"{tensor.name} end", end, f"at most slot_bytes[{tensor.pool}] = {slot}")
        if tensor.nbytes > slot:
            raise refuse(f"{tensor.name} axes", tensor.axes, "elements that do not overlap")

    def _check_overlap(self, pool: int) -> None:
        pieces = [(*piece, t.name) for t in self.tensors if t.pool == pool for piece in t.segments()]
        pieces.sort()
        for (start, length, name), (other_start, _, other) in pairwise(pieces):
            if start + length > other_start:
                raise refuse(f"{other} bytes", other_start, f"no overlap with {name}, up to {start + length}")

    @property
    def page_bytes(self) -> int:
        """Bytes of one page: its slots in all pools."""
        return sum(self.slot_bytes)

    @property
    def layers(self) -> tuple[int, ...]:
        """The model layers declared, ascending."""
        return tuple(sorted({tensor.layer for tensor in self.tensors}))

    def layer_bytes(self, layer: int) -> int:
        """Bytes per page of one layer's elements, padding not counted."""
        return sum(tensor.nbytes for tensor in self.tensors if tensor.layer == layer)

    def tensor(self, layer: int, role: str, part: int = 0) -> Tensor:
        """The declared tensor; an undeclared one is refused with `LayoutError`, never guessed."""
        for tensor in self.tensors:
            if tensor.key == (layer, role, part):
                return tensor
        declared = ", ".join(tensor.name for tensor in self.tensors)
        raise refuse("(layer, role, part)", (layer, role, part), f"a declared tensor: {declared}")

    def strides(self, layer: int, role: str, part: int = 0) -> Strides:
        """Strides of one tensor in elements of its dtype; `LayoutError` if it is not declared."""
        tensor = self.tensor(layer, role, part)
        values = (
            self.slot_bytes[tensor.pool],
            tensor.offset,
            tensor.stride("head"),
            tensor.stride("token"),
            tensor.stride("dim"),
        )
        return Strides(*(value // tensor.itemsize for value in values))
