"""What a cache is made of: its layer groups, and how many pages each gets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webkv.cache.rope import RopeConfig
from webkv.errors import CacheError, LayoutError
from webkv.layout import PageLayout, kv, latent

KINDS = ("mha", "mla")
PAGE_DTYPES = ("f32", "f16", "int8")


@dataclass(frozen=True)
class LayerGroup:
    """Layers with one life cycle and one page shape; each group has its own page ids and index arrays.

    `layers`: the model's layer numbers.  `q_heads` is a multiple of `kv_heads`: 1:1 is MHA, else GQA.
    `v_dim` (None: `head_dim`): the width of values; for MLA the latent's, without its rope part.
    `window`: a query sees that many tokens, itself included (None: all).  `kind`: `mha`, or `mla` for
    DeepSeek-V2's compressed rows (`kv_heads` is 1).  `page_dtype` (None: the cache's) is f32, f16 or int8.
    `softcap`: see `AttentionShape`.  `rollback`: tokens kept beyond the window so that `popn` and
    `fork_sequence` can go back that far; 1 at least always can.  `num_pages` (None: from the cache's sizes).
    Raises `CacheError` naming the field.
    """

    name: str
    layers: tuple[int, ...]
    kv_heads: int
    q_heads: int
    head_dim: int
    v_dim: int | None = None
    window: int | None = None
    kind: str = "mha"
    rope: RopeConfig = field(default_factory=RopeConfig)
    page_dtype: str | None = None
    softcap: float = 0.0
    rollback: int = 0
    num_pages: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers or len(set(self.layers)) != len(self.layers) or min(self.layers) < 0:
            raise self.error("layers", self.layers, "different layer numbers, at least one")
        if self.kind not in KINDS:
            raise self.error("kind", self.kind, f"one of {', '.join(KINDS)}")
        for name in ("kv_heads", "q_heads", "head_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise self.error(name, getattr(self, name), "at least 1")
        if self.q_heads % self.kv_heads:
            raise self.error("q_heads", self.q_heads, f"a multiple of kv_heads = {self.kv_heads}")
        if self.window is not None and self.window < 1:
            raise self.error("window", self.window, "at least 1")
        if self.rollback < 0:
            raise self.error("rollback", self.rollback, "at least 0")
        if self.page_dtype not in (None, *PAGE_DTYPES):
            raise self.error("page_dtype", self.page_dtype, f"one of {', '.join(PAGE_DTYPES)}")
        if self.num_pages is not None and self.num_pages < 1:
            raise self.error("num_pages", self.num_pages, "at least 1")
        if self.kind == "mla":
            self._check_mla()
        self._check_rope()

    def _check_mla(self) -> None:
        if self.kv_heads != 1:
            raise self.error("kv_heads", self.kv_heads, "1 for mla")
        if self.window is not None:
            raise self.error("window", self.window, "none for mla")
        if self.value_dim > self.head_dim:
            raise self.error("v_dim", self.v_dim, f"at most head_dim = {self.head_dim} for mla")
        if self.rope.mode != "none":
            raise self.error("rope mode", self.rope.mode, "none for mla, whose rows come rotated")

    def _check_rope(self) -> None:
        if self.rope.rotary_dim is None:
            object.__setattr__(self, "rope", replace(self.rope, rotary_dim=self.head_dim))
        assert self.rope.rotary_dim is not None
        if self.rope.rotary_dim > self.head_dim:
            raise self.error("rope rotary_dim", self.rope.rotary_dim, f"at most head_dim = {self.head_dim}")

    def error(self, what: str, found: object, expected: str) -> CacheError:
        """The refusal of one of this group's fields."""
        return CacheError(f"layer group {self.name!r}: {what} is {found!r}, expected {expected}")

    @property
    def value_dim(self) -> int:
        """Width of one value."""
        return self.head_dim if self.v_dim is None else self.v_dim

    def held_pages(self, page_tokens: int) -> int | None:
        """Most pages that one sequence holds between steps; None without a window.

        The next query sees window - 1 earlier tokens, which touch ceil((window - 1) / page_tokens) + 1 pages.
        """
        if self.window is None:
            return None
        return -(-(self.window - 1 + self.rollback) // page_tokens) + 1


@dataclass(frozen=True)
class CacheConfig:
    """Sizes of a cache.

    `max_total_len`: tokens that all sequences together can hold, in unshared pages.  `reserved_num_seqs`:
    most sequences at a time.  `prefill_chunk_size`: most new tokens in one forward.
    `page_dtype`: f32, f16 or int8.  For keys and values of unit variance outputs differ from exact attention
    by up to 1e-6 (f32), 1e-3 (f16), 2e-2 (int8): an f16 is off by 2^-11 of itself, an int8 by 1/254 of the
    largest value of its (token, head).
    `support_sliding_window`: allow windows with sinks per sequence; rope mode `normal` becomes `inline` then.
    `order`, `packing`: the declared page layout, see `webkv.layout.kv`.  Raises `CacheError` naming the
    field.
    """

    groups: tuple[LayerGroup, ...]
    max_total_len: int
    page_tokens: int = 16
    reserved_num_seqs: int = 8
    prefill_chunk_size: int = 256
    page_dtype: str = "f16"
    support_sliding_window: bool = False
    order: str = "head_major"
    packing: str = "slot"

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self._resolved(g) for g in self.groups))
        for name, least in (
            ("page_tokens", 1), ("max_total_len", 0), ("reserved_num_seqs", 1), ("prefill_chunk_size", 1)
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise CacheError(f"{name} is {getattr(self, name)}, expected at least {least}")
        if self.page_dtype not in PAGE_DTYPES:
            raise CacheError(f"page_dtype is {self.page_dtype!r}, expected one of {', '.join(PAGE_DTYPES)}")
        if self.packing not in ("slot", "packed"):
            raise CacheError(
                f"packing is {self.packing!r}, expected 'slot' or 'packed': one buffer per layer"
            )
        layers = [layer for group in self.groups for layer in group.layers]
        if not layers or len(set(layers)) != len(layers):
            raise CacheError(f"groups hold layers {layers}, expected each layer once, at least one")
        if len({group.name for group in self.groups}) != len(self.groups):
            raise CacheError(f"groups are named {[g.name for g in self.groups]}, expected different names")
        if self.support_sliding_window:
            self._check_sliding()

    def _resolved(self, group: LayerGroup) -> LayerGroup:
        dtype = group.page_dtype or self.page_dtype
        rope = group.rope
        if self.support_sliding_window and rope.mode == "normal":
            rope = replace(rope, mode="inline")
        return replace(group, page_dtype=dtype, rope=rope)

    def _check_sliding(self) -> None:
        for group in self.groups:
            if group.window is not None or group.kind == "mla":
                what = "a window" if group.window is not None else "kind mla"
                raise CacheError(
                    f"support_sliding_window is set and layer group {group.name!r} has {what}: "
                    f"windows per sequence need global mha groups only"
                )

    @property
    def layers(self) -> tuple[int, ...]:
        """All layers, ascending."""
        return tuple(sorted(layer for group in self.groups for layer in group.layers))

    @property
    def total_pages(self) -> int:
        """Pages of a group without window; TVM's formula."""
        extra = 2 * self.reserved_num_seqs if self.support_sliding_window else 0
        return -(-self.max_total_len // self.page_tokens) + 1 + extra

    def num_pages(self, group: LayerGroup) -> int:
        """Pages of `group`'s pool.

        With a window: what `reserved_num_seqs` sequences hold between steps, and the pages that the new
        tokens of one step fill before the step's end frees what left the window.
        """
        held = group.held_pages(self.page_tokens)
        if group.num_pages is not None or held is None:
            return group.num_pages or self.total_pages
        new = self.prefill_chunk_size // self.page_tokens + self.reserved_num_seqs
        return min(self.total_pages, self.reserved_num_seqs * held + new)

    def layout(self, group: LayerGroup) -> PageLayout:
        """The declared bytes of one page of `group`: one pool per layer, each in a GPU buffer of its own."""
        try:
            if group.kind == "mla":
                return latent(
                    page_tokens=self.page_tokens, dim=group.head_dim, dtype=str(group.page_dtype),
                    layers=group.layers, layers_in_slot=1,
                )  # fmt: skip
            return kv(
                page_tokens=self.page_tokens, heads=group.kv_heads, dim=group.head_dim,
                v_dim=group.value_dim, dtype=str(group.page_dtype), order=self.order, packing=self.packing,
                layers=group.layers, layers_in_slot=1,
            )  # fmt: skip
        except LayoutError as error:
            raise CacheError(f"layer group {group.name!r}: {error}") from error
