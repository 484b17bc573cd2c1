"""The numbers of one attention layer: what every attention and page kernel is compiled for.

Index arrays of a step (int32, one set per layer group; S sequences, n query rows):

- `qo_indptr[S + 1]`: prefix sums of query rows.
- `page_indptr[S + 1]`, `page_indices[...]`: the pages each sequence still holds, in order.
- `length_info[4 * S]`, four rows of S: last_page_len, window offset, sink size (TVM's three), and
  start_block, the absolute number (position / page_tokens) of the first listed page.

The arrays describe a sequence after its new tokens were appended.  With P pages, its slots are numbered
`0 .. (P - 1) * page_tokens + last_page_len - 1` through its page list; logical KV index i is slot i for
i < sink, else slot i - sink + offset, so the KV length is the slot count - offset + sink, or 0 without pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import wgpu

from webkv.errors import LayoutError
from webkv.gpu import Slice
from webkv.layout import PageLayout, Strides

Binding: TypeAlias = "wgpu.GPUBuffer | Slice"
"""A buffer, or a part of one that starts at a multiple of 256 bytes."""

PageSource: TypeAlias = "Binding | wgpu.GPUTextureView"
"""Where attention reads pages: in a buffer, or in a copy of it that `webkv.kernels.texels` makes."""

ELEMENTS_PER_WORD = {"f32": 1, "f16": 2, "int8": 4}
ROPE_KINDS = ("none", "normal", "inline")
PAIRINGS = ("half", "interleaved")
STRIDES = tuple(f"{t}_{part}" for t in ("K", "V", "KS", "VS") for part in ("PAGE", "BASE", "HEAD", "TOKEN"))
"""The WGSL override constants that say where keys, values and their scales are in `pages`."""
NO_SCALE = Strides(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class PageTable:
    """The device arrays through which attention finds a batch's pages; see the module's docstring."""

    page_indptr: Binding
    page_indices: Binding
    length_info: Binding


@dataclass(frozen=True)
class AttentionShape:
    """Sizes, strides and rules of one attention layer; equal shapes share pipelines.

    `key`, `value`: strides in elements of the page dtype, `dim` stride 1.  `key_scale`, `value_scale`: in f32
    words, for int8 pages only.  A page of `pages` is `key.page` elements.  MLA is `kv_heads=1` with `value`
    equal to `key` and `v_dim` the latent size.

    `rope`: "normal" stores rotated keys; "inline" stores them unrotated and rotates them when they are read
    (positions that shift under stored keys, as with StreamingLLM's sinks); "none".  `rotary_dim`: how many
    dims of a head turn, the first ones; `pairing`: "half" pairs d with d + rotary_dim / 2 (GPT-NeoX),
    "interleaved" 2i with 2i + 1 (GPT-J).  `window`: a query sees that many keys, itself included; 0 is all.
    `sm_scale` multiplies scores, then `softcap` c > 0 bends them to c * tanh(score / c) (Gemma 2).
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    page_tokens: int
    dtype: str
    key: Strides
    value: Strides
    key_scale: Strides = NO_SCALE
    value_scale: Strides = NO_SCALE
    rope: str = "normal"
    rotary_dim: int = 0
    pairing: str = "half"
    window: int = 0
    sm_scale: float = 1.0
    softcap: float = 0.0

    def __post_init__(self) -> None:
        """Raise `LayoutError` naming the first field that no kernel supports."""
        for name in ("q_heads", "kv_heads", "head_dim", "v_dim", "page_tokens"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        _require(self.q_heads % self.kv_heads == 0, "q_heads", self.q_heads, f"a multiple of {self.kv_heads}")
        _require(self.head_dim % 4 == 0, "head_dim", self.head_dim, "a multiple of 4")
        _require(
            self.v_dim % 4 == 0 and self.v_dim <= 512, "v_dim", self.v_dim, "a multiple of 4, at most 512"
        )
        _require(self.dtype in ELEMENTS_PER_WORD, "dtype", self.dtype, f"one of {list(ELEMENTS_PER_WORD)}")
        _require(self.rope in ROPE_KINDS, "rope", self.rope, f"one of {ROPE_KINDS}")
        _require(self.pairing in PAIRINGS, "pairing", self.pairing, f"one of {PAIRINGS}")
        even = self.rotary_dim % 2 == 0 and 0 <= self.rotary_dim <= self.head_dim
        _require(even, "rotary_dim", self.rotary_dim, f"even and at most {self.head_dim}")
        if self.rope == "inline":
            unit = 8 if self.pairing == "half" else 4
            whole = self.rotary_dim % unit == 0
            _require(whole, "rotary_dim", self.rotary_dim, f"a multiple of {unit} for inline rope")
        _require(self.window >= 0, "window", self.window, "at least 0")
        for name in ("key", "value"):
            strides: Strides = getattr(self, name)
            _require(strides.dim == 1, f"{name}.dim", strides.dim, "1")
            for part, number in zip(strides._fields[:4], strides, strict=False):
                _require(number % 4 == 0, f"{name}.{part}", number, "a multiple of 4")

    @classmethod
    def of(cls, layout: PageLayout, layer: int, *, q_heads: int, **rules: Any) -> AttentionShape:
        """The shape of `layer` as `layout` declares it (key and value, or latent for MLA).

        `rules`: the fields that are not in a layout (rope, rotary_dim, pairing, window, sm_scale, softcap),
        and for MLA `v_dim`, the latent's width without its rope part (default: all).
        """
        roles = {t.role for t in layout.tensors if t.layer == layer}
        latent = "latent" in roles
        key_role, value_role = ("latent", "latent") if latent else ("key", "value")
        key, value = layout.tensor(layer, key_role), layout.tensor(layer, value_role)
        heads, dim, v_dim = key.axis("head"), key.axis("dim"), value.axis("dim")
        assert dim is not None and v_dim is not None
        if key.dtype == "int8":
            rules["key_scale"] = layout.strides(layer, f"{key_role}_scale")
            rules["value_scale"] = layout.strides(layer, f"{value_role}_scale")
        rules.setdefault("v_dim", v_dim.count)
        return cls(
            q_heads=q_heads,
            kv_heads=heads.count if heads else 1,
            head_dim=dim.count,
            page_tokens=layout.page_tokens,
            dtype=key.dtype,
            key=layout.strides(layer, key_role),
            value=layout.strides(layer, value_role),
            **rules,
        )

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q_heads // self.kv_heads

    @property
    def q_width(self) -> int:
        """Floats of one row of queries, `[q_heads][head_dim]`."""
        return self.q_heads * self.head_dim

    @property
    def fused_width(self) -> int:
        """Floats of one fused row: queries, keys `[kv_heads][head_dim]`, values `[kv_heads][v_dim]`."""
        return self.q_width + self.kv_heads * (self.head_dim + self.v_dim)

    @property
    def out_width(self) -> int:
        """Floats of one row of attention output, `[q_heads][v_dim]`."""
        return self.q_heads * self.v_dim

    @property
    def page_words(self) -> int:
        """u32 words of one page in the layer's `pages` buffer."""
        return self.key.page // ELEMENTS_PER_WORD[self.dtype]

    @property
    def latent(self) -> bool:
        """Whether values are the first dims of the keys (MLA), stored once."""
        return self.key == self.value

    def over_fused_rows(self) -> AttentionShape:
        """This shape with fused rows as pages of one token: attention among new tokens only."""
        width, head, v_head = self.fused_width, self.head_dim, self.v_dim
        v_base = self.q_width + self.kv_heads * head
        key = Strides(width, self.q_width, head, 0, 1)
        value = Strides(width, v_base, v_head, 0, 1)
        rope = "none" if self.rope == "normal" else self.rope
        return replace(
            self, page_tokens=1, dtype="f32", key=key, value=value, rope=rope,
            key_scale=NO_SCALE, value_scale=NO_SCALE,
        )  # fmt: skip

    def constants(self, *names: str) -> Mapping[str, float]:
        """The WGSL override constants of those names."""
        return {name: self._every[name] for name in names}

    @cached_property
    def _every(self) -> dict[str, float]:
        return _constants(self)


def _require(holds: bool, field: str, found: object, expected: str) -> None:
    if not holds:
        raise LayoutError(f"attention {field}: found {found!r}, expected {expected}")


def _constants(shape: AttentionShape) -> dict[str, float]:
    values: dict[str, float] = {
        "Q_HEADS": shape.q_heads,
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "V_DIM": shape.v_dim,
        "PAGE_TOKENS": shape.page_tokens,
        "PAGE_WORDS": shape.page_words,
        "ROTARY_DIM": shape.rotary_dim if shape.rope != "none" else 0,
        "INTERLEAVED": shape.pairing == "interleaved",
        "PAIR_STEP": 2 if shape.pairing == "interleaved" else 1,
        "PAIR_APART": 1 if shape.pairing == "interleaved" else shape.rotary_dim // 2,
        "WINDOW": shape.window,
        "SM_SCALE": shape.sm_scale,
        "SOFTCAP": shape.softcap,
    }
    tensors = {"K": shape.key, "V": shape.value, "KS": shape.key_scale, "VS": shape.value_scale}
    for prefix, strides in tensors.items():
        for part, number in zip(("PAGE", "BASE", "HEAD", "TOKEN"), strides, strict=False):
            values[f"{prefix}_{part}"] = number
    return values
