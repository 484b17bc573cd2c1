"""What the attention benchmarks share: the grid, random pages on the device, and the right answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from webkv.gpu import Batch, Device
from webkv.kernels.shape import AttentionShape, PageSource, PageTable
from webkv.kernels.texels import copy_to_texture, page_texture
from webkv.kernels.variants import reads_textures
from webkv.layout import kv

PAGE_TOKENS = 16
CONFIGS = {
    "9/3x64": "SmolLM2 135M",
    "32/8x64": "Llama 3.2 1B",
    "32/8x128": "Llama 3 8B",
    "4/1x256": "Gemma 3 270M",
}
"""Query heads / KV heads x head dim, and a model that has them."""

CONTEXTS = (256, 1024, 4096, 16384)
BATCHES = (1, 8)
DTYPES = ("f32", "f16", "int8")
_NUMPY: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "int8": np.int8}


@dataclass(frozen=True)
class Case:
    """One point of the grid: `rows` query rows for each of `batch` sequences of `context` tokens."""

    config: str
    dtype: str
    context: int
    batch: int = 1
    rows: int = 1

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, KV heads, head dim."""
        q_heads, rest = self.config.split("/")
        kv_heads, head_dim = rest.split("x")
        return int(q_heads), int(kv_heads), int(head_dim)

    @cached_property
    def layout(self) -> Any:
        """The declared page of one layer; for f32 and f16 it is TVM's too."""
        _, kv_heads, head_dim = self.heads
        return kv(page_tokens=PAGE_TOKENS, heads=kv_heads, dim=head_dim, dtype=self.dtype)

    @property
    def shape(self) -> AttentionShape:
        """What webkv's kernels are compiled for; queries arrive rotated."""
        q_heads, _, head_dim = self.heads
        return AttentionShape.of(self.layout, 0, q_heads=q_heads, rope="none", sm_scale=head_dim**-0.5)

    @property
    def pages_each(self) -> int:
        """Pages of one sequence."""
        return self.context // PAGE_TOKENS

    @property
    def kv_bytes(self) -> int:
        """Bytes of all pages, scales included."""
        return self.batch * self.pages_each * int(self.layout.slot_bytes[0])

    @property
    def flop(self) -> float:
        """Useful work: a multiply and an add per dim and (query, visible key), for QK and for PV."""
        q_heads, _, head_dim = self.heads
        pairs = self.rows * self.context - self.rows * (self.rows - 1) // 2
        return 4.0 * q_heads * head_dim * pairs * self.batch

    @property
    def facts(self) -> dict[str, Any]:
        """The case in numbers, for JSON and goals."""
        return {
            "config": self.config, "dtype": self.dtype, "context": self.context, "batch": self.batch,
            "rows": self.rows, "kv_mb": round(self.kv_bytes / 1e6, 3), "flop": self.flop,
        }  # fmt: skip


def too_large(case: Case, limit: int) -> str:
    """Why a case cannot run on a device whose largest binding is `limit` bytes; empty if it can."""
    if case.kv_bytes <= limit:
        return ""
    return f"skipped: a layer of {case.kv_bytes >> 20} MiB, the device binds {limit >> 20} MiB"


class Pages:
    """Random keys and values of a case in randomly placed pages, and queries for them, on the host."""

    def __init__(self, case: Case, seed: int = 1) -> None:
        self.case = case
        rng = np.random.default_rng(seed)
        total = case.batch * case.pages_each
        self.order = rng.permutation(total).astype(np.int32)
        self.data = np.zeros((total, int(case.layout.slot_bytes[0])), np.uint8)
        self.views = {t.role: self._view(t) for t in case.layout.tensors}
        for role, view in self.views.items():
            _fill(view, role, case.dtype, rng)
        q_heads, _, head_dim = case.heads
        self.q = rng.standard_normal((case.batch * case.rows, q_heads, head_dim), dtype=np.float32)

    def _view(self, tensor: Any) -> np.ndarray:
        """One tensor as `[page][head][token](dim)`, sharing memory with `data`."""
        axes = [tensor.axis(name) for name in ("head", "token", "dim")]
        axes = [axis for axis in axes if axis is not None]
        return np.ndarray(
            (len(self.data), *(axis.count for axis in axes)), _NUMPY[tensor.dtype], self.data.data,
            tensor.offset, (self.data.shape[1], *(axis.stride for axis in axes)),
        )  # fmt: skip

    def keys(self, role: str, sequence: int, head: int) -> np.ndarray:
        """One head's keys or values in token order, `[context][dim]` float32."""
        each = self.case.pages_each
        pages = self.order[sequence * each : (sequence + 1) * each]
        found = self.views[role][pages, head].astype(np.float32)
        if self.case.dtype == "int8":
            found *= self.views[f"{role}_scale"][pages, head][..., None]
        return found.reshape(self.case.context, -1)

    def expected(self) -> np.ndarray[Any, Any]:
        """Causal attention by numpy, scores and weights in float64: `[batch * rows][q_heads][dim]`."""
        case = self.case
        q_heads, kv_heads, head_dim = case.heads
        group = q_heads // kv_heads
        q = self.q.reshape(case.batch, case.rows, kv_heads, group, head_dim)
        out: np.ndarray[Any, Any] = np.empty_like(q)
        hidden = np.arange(case.context) > np.arange(case.rows)[:, None] + case.context - case.rows
        for s in range(case.batch):
            for h in range(kv_heads):
                k, v = self.keys("key", s, h), self.keys("value", s, h)
                score: np.ndarray[Any, Any] = (q[s, :, h].reshape(-1, head_dim) @ k.T).astype(np.float64)
                score *= head_dim**-0.5
                score[np.repeat(hidden, group, axis=0)] = -np.inf
                weight: np.ndarray[Any, Any] = np.exp(score - score.max(axis=1, keepdims=True))
                weight /= weight.sum(axis=1, keepdims=True)
                out[s, :, h] = (weight @ v).reshape(case.rows, group, head_dim)
        return out.reshape(self.q.shape)

    def new_pages(self) -> np.ndarray:
        """The pages that hold the query rows' own keys."""
        lists = self.order.reshape(self.case.batch, -1)
        return np.sort(lists[:, (self.case.context - self.case.rows) // PAGE_TOKENS :], axis=None)

    def index_arrays(self) -> dict[str, np.ndarray]:
        """The step's arrays: `page_indptr`, `page_indices`, `length_info`, `qo_indptr`."""
        case = self.case
        sequences = np.arange(case.batch + 1, dtype=np.int32)
        info = np.zeros((4, case.batch), np.int32)
        info[0] = PAGE_TOKENS
        return {
            "page_indptr": sequences * np.int32(case.pages_each), "page_indices": self.order,
            "length_info": info, "qo_indptr": sequences * np.int32(case.rows),
        }  # fmt: skip


def _fill(view: np.ndarray, role: str, dtype: str, rng: np.random.Generator) -> None:
    # One random block, repeated with an odd period: drawing 128 MiB takes longer than measuring it.
    block: np.ndarray[Any, Any] = rng.standard_normal(min(view.size, (1 << 18) + 1), dtype=np.float32)
    if role.endswith("scale"):
        block = np.abs(block) / 64 + np.float32(1 / 64)
    elif dtype == "int8":
        block = np.clip(np.rint(block * 40), -127, 127)
    view[...] = np.resize(block.astype(view.dtype), view.shape)


class OnDevice:
    """A case's pages, queries and index arrays in a device's buffers; `close` frees them."""

    def __init__(self, device: Device, host: Pages) -> None:
        self._device, self._made = device, list[Any]()
        case = self.case = host.case
        self.pages = self.buffer("pages", data=host.data)
        textured = reads_textures(device, case.shape)
        self.texture = page_texture(device, self.pages.size, "pages") if textured else None
        if textured:
            with device.batch() as batch:
                self.source(batch, np.arange(len(host.data)))
        self.q = self.buffer("q", data=host.q)
        self.out = self.buffer("out", host.q.nbytes)
        self.index = {name: self.buffer(name, data=array) for name, array in host.index_arrays().items()}
        self.table = PageTable(*(self.index[n] for n in ("page_indptr", "page_indices", "length_info")))
        self.q_stride = case.shape.q_width

    def source(self, batch: Batch, new: np.ndarray) -> PageSource:
        """Where prefill reads pages; `new` ones have just been written to their buffer."""
        if self.texture is None:
            return self.pages
        size = int(self.case.layout.slot_bytes[0])
        copy_to_texture(batch, self.pages, self.texture, size, new)
        return self.texture

    def buffer(self, label: str, size: int = 4, data: Any = None) -> Any:
        """A buffer that `close` frees."""
        made = self._device.buffer(size if data is None else data.nbytes, label=label, data=data)
        self._made.append(made)
        return made

    def close(self) -> None:
        """Free all buffers."""
        for made in self._made:
            self._device.release(made)
        if self.texture is not None:
            self.texture.texture.destroy()


def difference(found: bytes, expected: np.ndarray, dtype: Any = np.float32) -> float:
    """The largest absolute difference of an output from the answer; not finite counts as infinite."""
    values = np.frombuffer(found, dtype)[: expected.size].astype(np.float64)
    if not np.isfinite(values).all():
        return float("inf")
    return float(np.abs(values - expected.reshape(-1)).max())


TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "int8": 1e-4}
"""Largest difference from numpy, per page dtype: float32 sums, and outputs that TVM rounds to f16."""


class Attends(Protocol):
    """A kernel bound to a case: `record` it, then its answer is in `out`, of `numpy_dtype`."""

    out: Any
    numpy_dtype: Any

    def record(self, batch: Batch) -> None: ...


async def wrong(device: Device, kernel: Attends, expected: np.ndarray, dtype: str) -> str:
    """Run a kernel once: what is wrong with its output, or nothing."""
    with device.batch() as batch:
        kernel.record(batch)
    found = difference(await device.read(kernel.out), expected, kernel.numpy_dtype)
    return f"WRONG by {found:.2g}" if found > TOLERANCE[dtype] else ""
