"""TVM's paged attention for WebGPU, as WebLLM uses it: generated at run time by the installed apache-tvm.

`tvm.relax.frontend.nn.llm.kv_cache` holds the kernels as TensorIR; built for target webgpu they become WGSL,
which is bound here by the names that its text declares.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks.attention import Case, OnDevice, Pages
from benchmarks.harness import compiled
from webkv.errors import DeviceError
from webkv.gpu import Batch, Device, open_device
from webkv.gpu.device import UNIFORM

NAME = "TVM"
NEEDS = {"max-storage-buffers-per-shader-stage": 10, "max-compute-workgroup-storage-size": 32768}
"""More than WebGPU's default limits: paged prefill binds 10 storage buffers."""

PREFILL_BLOCKS = 16
"""Workgroups per KV head of TVM's prefill, whatever the batch."""

_DTYPES = {"f32": "float32", "f16": "float16"}
_STORAGE = re.compile(r"@binding\(\d+\) var<storage, read(?:_write)?> (\w+?)(?:_ptr)? :")
_STRUCT = re.compile(r"struct PODArgs \{([^}]*)\}")
_FIELD = re.compile(r"(\w+): (\w+)")
_ENTRY = re.compile(r"@compute[^{]*?fn (\w+)\(", re.DOTALL)


@dataclass(frozen=True)
class Program:
    """Generated WGSL and what it declares: storage bindings in order, then the fields of its uniform."""

    source: str
    entry: str
    storage: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]


def read_program(source: str) -> Program:
    """Find the declarations in generated WGSL."""
    struct, entry = _STRUCT.search(source), _ENTRY.search(source)
    assert struct and entry, "generated WGSL without PODArgs or entry point"
    return Program(source, entry[1], tuple(_STORAGE.findall(source)), tuple(_FIELD.findall(struct[1])))


def pod_bytes(program: Program, values: Mapping[str, float]) -> np.ndarray:
    """The uniform's words; element offsets that `values` does not name are 0."""
    words = []
    for name, kind in program.fields:
        assert name in values or name.endswith("_elem_offset"), name
        value = values.get(name, 0)
        words.append(np.float32(value).view(np.uint32) if kind == "f32" else np.uint32(int(value)))
    return np.array(words, np.uint32)


@cache
def generate(kind: str, config: str, dtype: str) -> Program:
    """WGSL of `_attention_decode` or `_attention_prefill` for that many heads."""
    import tvm
    from tvm.relax.frontend.nn.llm import kv_cache
    from tvm.target import Target

    target = Target({"kind": "webgpu"}, host="llvm")
    q_heads, kv_heads, head_dim = Case(config, dtype, 0).heads
    if kind == "decode":
        made = kv_cache._attention_decode(kv_heads, q_heads, head_dim, _DTYPES[dtype], False, {}, target)
    else:
        made = kv_cache._attention_prefill(kv_heads, q_heads, head_dim, _DTYPES[dtype], False, {}, target)
    module = tvm.IRModule({"main": made.with_attr("global_symbol", "main")})
    return read_program(tvm.tirx.build(module, target=target).imports[0].inspect_source())


async def open_peer(device: Device, needs: Mapping[str, int]) -> Device | None:
    """A second device, on webkv's adapter, that grants what TVM needs; None without TVM or such a device."""
    try:
        import tvm  # noqa: F401
    except ImportError:
        return None
    with contextlib.suppress(DeviceError):
        return await open_device(device.facts.name, {**NEEDS, **needs}, ["shader-f16"])
    return None


def supports(device: Device | None, case: Case) -> bool:
    """Whether TVM has a kernel for the case on that device."""
    if device is None or case.dtype not in _DTYPES:
        return False
    return case.dtype == "f32" or "shader-f16" in device.facts.features


class TvmAttention:
    """One of TVM's kernels, bound to a case's pages on its own device."""

    def __init__(self, device: Device, host: Pages, kind: str) -> None:
        case = host.case
        program = generate(kind, case.config, case.dtype)
        self.numpy_dtype: Any = np.float16 if case.dtype == "f16" else np.float32
        self._on = OnDevice(device, host)
        self.out = self._on.out
        _, kv_heads, head_dim = case.heads
        self._grid = (case.batch if kind == "decode" else PREFILL_BLOCKS, kv_heads)
        self._kernel = compiled(device, f"TVM {kind}", program.source, entry=program.entry)
        pods = {
            "B": case.batch, "batch_size": case.batch, "causal": 1, "rotary_mode": 0, "rope_scale": 1,
            "rope_theta": 10000, "sm_scale": head_dim**-0.5, "packGridDimX": self._grid[0] - 1,
        }  # fmt: skip
        uniform = device.buffer(4 * len(program.fields), data=pod_bytes(program, pods), usage=UNIFORM)
        buffers = self._buffers(host)
        self._group = self._kernel.bind(*(buffers[name.lower()] for name in program.storage), uniform)

    def _buffers(self, host: Pages) -> dict[str, Any]:
        """Buffers by the names that the two kernels use."""
        on, case = self._on, host.case
        zeros = np.zeros(max(case.batch, len(host.q)), np.int32)
        positions = np.tile(np.arange(case.context - case.rows, case.context, dtype=np.int32), case.batch)
        table = {"page_indptr": on.index["page_indptr"], "page_values": on.index["page_indices"]}
        return {
            "q": on.buffer("q", data=host.q.astype(self.numpy_dtype)), "pages": on.pages, "output": on.out,
            "lse": on.buffer("lse", 4 * host.q.shape[0] * host.q.shape[1]),
            "length_info": on.index["length_info"], "q_indptr": on.index["qo_indptr"],
            "k_rope_pos_offset": on.buffer("k_rope_pos_offset", data=zeros),
            "q_rope_position": on.buffer("q_rope_position", data=positions),
            **table, **{name.replace("page_", "page_table_"): made for name, made in table.items()},
        }  # fmt: skip

    def record(self, batch: Batch) -> None:
        """One call."""
        batch.dispatch(self._kernel, self._group, *self._grid)

    def close(self) -> None:
        """Free its buffers."""
        self._on.close()
