"""Other engines' KV arrays, by contract: what they declare, and numpy arrays of their shape.

A contract is the order in which an engine nests layer, page, K/V, head, token and dim.  An engine's name is
not enough: "vLLM" alone has named three families by version, so each is a contract of its own.

letter  axis                       letter  axis
L       layer                      H       KV head
B       page (block)               N       token in the page
2       K, then V                  D       head dim
C       K and V of one token side by side, 2 * D
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from webkv.layout.build import row_major
from webkv.layout.declare import DTYPE_BYTES, Axis, PageLayout, Tensor, refuse, require_int

if TYPE_CHECKING:
    import numpy as np

CONTRACTS = {
    # TVM's PagedAttentionKVCache; with one layer this is the shape of its exported page group.
    "tvm": "LB2HND",
    "tvm_mla": "LBND",
    "flashinfer_hnd": "LB2HND",
    "flashinfer_nhd": "LB2NHD",
    # vLLM before packed pages: K and V planes apart (FlashAttention), or both in a block (FlashInfer).
    "vllm_kv_first_nhd": "L2BNHD",
    "vllm_kv_first_hnd": "L2BHND",
    "vllm_blocks_first_nhd": "LB2NHD",
    "vllm_blocks_first_hnd": "LB2HND",
    # vLLM since packed pages, by its standard layout names (vllm-project/vllm#44455, #42082).
    "vllm_lbhnc": "LBHNC",
    "vllm_lbnhc": "LBNHC",
    "vllm_blhnc": "BLHNC",
    "vllm_blnhc": "BLNHC",
    "vllm_bhlnc": "BHLNC",
    # TensorRT-LLM's pools: all layers of a group in one slot.
    "trtllm_slot": "BL2HND",
}
"""Contract name to nesting, outermost first.  vLLM's LHBNC is left out: its pages are in pieces per head."""

NUMPY_DTYPES = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}
"""numpy's dtype of each page dtype that other engines share; bf16 comes as its bits."""

_AXES = {"L": "layer", "B": "page", "2": "kv", "H": "head", "N": "token", "D": "dim"}


@dataclass(frozen=True, slots=True)
class Format:
    """A contract with its sizes: the `layout` of its pages, and the shape of its array.

    `axes` are (name, count), outermost first, with count 0 for `page`; axes before `page` number the pools.
    """

    contract: str
    layout: PageLayout
    dtype: str
    axes: tuple[tuple[str, int], ...]

    def shape(self, pages: int) -> tuple[int, ...]:
        """The engine's array shape for that many pages."""
        require_int("pages", pages, 0)
        counts = [pages if name == "page" else count for name, count in self.axes]
        if CONTRACTS[self.contract].endswith("C"):
            counts[-2:] = [prod(counts[-2:])]
        return tuple(counts)

    def from_pools(self, pools: Sequence[bytes | bytearray | memoryview]) -> np.ndarray:
        """The engine's array from each pool's bytes, `pages * slot_bytes`; `LayoutError` for other sizes."""
        import numpy as np

        if len(pools) != len(self.layout.slot_bytes):
            raise refuse("pools", len(pools), str(len(self.layout.slot_bytes)))
        data = [np.frombuffer(pool, np.uint8) for pool in pools]
        pages, odd = divmod(data[0].size, self.layout.slot_bytes[0])
        if odd or any(pool.size != data[0].size for pool in data):
            sizes = [pool.size for pool in data]
            raise refuse("pool bytes", sizes, f"equal multiples of {self.layout.slot_bytes[0]}")
        return np.concatenate(data).view(NUMPY_DTYPES[self.dtype]).reshape(self.shape(pages))

    def to_pools(self, array: np.ndarray) -> list[bytes]:
        """The bytes of each pool from the engine's array; `LayoutError` if its shape or dtype is another."""
        at = CONTRACTS[self.contract].index("B")
        pages = array.shape[at] if array.ndim > at else 0
        if array.shape != self.shape(pages):
            raise refuse("array shape", array.shape, str(self.shape(pages)))
        if array.dtype.newbyteorder("<").str != NUMPY_DTYPES[self.dtype]:
            raise refuse("array dtype", array.dtype.str, NUMPY_DTYPES[self.dtype])
        planes = array.astype(NUMPY_DTYPES[self.dtype]).reshape(len(self.layout.slot_bytes), -1)
        return [plane.tobytes() for plane in planes]


def declare(
    contract: str,
    *,
    page_tokens: int,
    dim: int,
    heads: int = 1,
    dtype: str = "f16",
    layers: Sequence[int] = (0,),
) -> Format:
    """The format of a contract of `CONTRACTS`; `LayoutError` names an argument that it has no meaning for."""
    if contract not in CONTRACTS:
        raise refuse("contract", contract, f"one of {', '.join(CONTRACTS)}")
    if dtype not in NUMPY_DTYPES:
        raise refuse("dtype", dtype, f"one of {', '.join(NUMPY_DTYPES)}, which other engines share")
    if not layers:
        raise refuse("layers", tuple(layers), "at least one")
    order = CONTRACTS[contract].replace("C", "2D")
    counts = {"L": len(layers), "B": 0, "2": 2, "H": heads, "N": page_tokens, "D": dim}
    if "H" not in order and heads != 1:
        raise refuse("heads", heads, f"1, as {contract} has no heads")
    axes = tuple((_AXES[letter], counts[letter]) for letter in order)
    return Format(contract, _layout(axes, dtype, layers), dtype, axes)


def _layout(axes: tuple[tuple[str, int], ...], dtype: str, layers: Sequence[int]) -> PageLayout:
    """Pages of a row-major array: `layer` and `kv` name tensors, all other axes lie in them."""
    at = [name for name, _ in axes].index("page")
    outer, inner = axes[:at], row_major(axes[at + 1 :], DTYPE_BYTES[dtype])
    slot = inner[0].count * inner[0].stride
    roles = ("key", "value") if any(name == "kv" for name, _ in axes) else ("latent",)
    tensors = []
    for index, layer in enumerate(layers):
        for kv, role in enumerate(roles):
            where = {"layer": index, "kv": kv}
            pool = 0
            for name, count in outer:
                pool = pool * count + where[name]
            offset = sum(where[axis.name] * axis.stride for axis in inner if axis.name in where)
            kept: tuple[Axis, ...] = tuple(axis for axis in inner if axis.name not in where)
            tensors.append(Tensor(layer, role, 0, pool, offset, dtype, kept))
    page_tokens = dict(axes)["token"]
    return PageLayout(page_tokens, (slot,) * prod(count for _, count in outer), tuple(tensors))
