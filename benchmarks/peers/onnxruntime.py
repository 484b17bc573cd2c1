"""ONNX Runtime's WebGPU GroupQueryAttention, where its Dawn and webkv see the same adapter: SwiftShader.

Dawn refuses the Mesa software driver, so run with `--swiftshader`.  The model is a chain of equal nodes, each
with its past and present in one buffer on the device, so that the cost of a call hardly counts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from benchmarks.attention import Case, Pages
from benchmarks.harness import Candidate
from webkv.gpu import Device

NAME = "ONNX Runtime"
CHAIN = 8
MOST_BYTES = 40 << 20
"""Of keys and values: the first call holds them once per node."""

_PROVIDER = "WebGpuExecutionProvider"


@cache
def installed() -> bool:
    """Whether onnx and an onnxruntime with the WebGPU provider are there."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError:
        return False
    return _PROVIDER in onnxruntime.get_available_providers()


def supports(device: Device, case: Case) -> bool:
    """Whether the peer can run the case on webkv's adapter: f32 (SwiftShader has no f16), one sequence."""
    on_same_adapter = "swiftshader" in device.facts.name.lower()
    small = case.kv_bytes <= MOST_BYTES
    return on_same_adapter and small and case.dtype == "f32" and case.batch == 1 and installed()


class GroupQueryAttention:
    """A chain of `CHAIN` decode nodes that all attend to a case's keys and values."""

    def __init__(self, host: Pages) -> None:
        self._host = host
        _, self._kv_heads, _ = host.case.heads
        self._session = _session(self._graph())
        self._binding = self._bound()
        self.candidate = Candidate(NAME, self._run, pieces=CHAIN)

    def first_output(self) -> bytes:
        """What the first node gives for the case's query."""
        self._session.run_with_iobinding(self._binding)
        return bytes(self._binding.copy_outputs_to_cpu()[-2].tobytes())

    def close(self) -> None:
        """Free the session; buffers go before the device that they belong to."""
        del self._binding
        del self._session

    async def _run(self, repeats: int) -> None:
        for _ in range(repeats):
            self._session.run_with_iobinding(self._binding)

    def _heads(self, role: str) -> np.ndarray:
        """Contiguous keys or values, `[1][kv_heads][context][dim]`."""
        return np.stack([self._host.keys(role, 0, h) for h in range(self._kv_heads)])[None]

    def _graph(self) -> Any:
        """A chain in which every node's output is the next one's query."""
        from onnx import TensorProto, helper

        q_heads, kv_heads, head_dim = self._host.case.heads
        past = (1, kv_heads, self._host.case.context, head_dim)

        def floats(name: str, *shape: int) -> Any:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        inputs = [floats("q", 1, 1, q_heads * head_dim)]
        inputs += [floats(name, 1, 1, kv_heads * head_dim) for name in ("k", "v")]
        inputs += [helper.make_tensor_value_info(n, TensorProto.INT32, (1,)) for n in ("seqlens_k", "total")]
        outputs, chain, query = [], [], "q"
        for at in range(CHAIN):
            pasts, presents = ([f"{n}_{role}{at}" for role in ("key", "value")] for n in ("past", "present"))
            inputs += [floats(name, *past) for name in pasts]
            outputs += [floats(name, *past) for name in presents]
            takes, query = [query, "k", "v", *pasts, "seqlens_k", "total"], f"out{at}"
            sizes = {"num_heads": q_heads, "kv_num_heads": kv_heads}
            gives = [query, *presents]
            chain.append(
                helper.make_node("GroupQueryAttention", takes, gives, domain="com.microsoft", **sizes)
            )
        outputs += [floats(name, 1, 1, q_heads * head_dim) for name in ("out0", query)]
        return helper.make_graph(chain, "chain", inputs, outputs)

    def _bound(self) -> Any:
        """The inputs and outputs of a call: the newest token is the cache's last, written over itself."""
        case, binding = self._host.case, self._session.io_binding()
        arrays = {role: self._heads(role) for role in ("key", "value")}
        binding.bind_cpu_input("q", self._host.q.reshape(1, 1, -1))
        for name, role in (("k", "key"), ("v", "value")):
            last = arrays[role][:, :, -1].reshape(1, 1, -1)
            binding.bind_cpu_input(name, np.ascontiguousarray(last))
        binding.bind_cpu_input("seqlens_k", np.array([case.context - 1], np.int32))
        binding.bind_cpu_input("total", np.array([case.context], np.int32))
        each = [(role, at) for at in range(CHAIN) for role in arrays]
        for role, at in each:
            binding.bind_cpu_input(f"past_{role}{at}", arrays[role])
            binding.bind_output(f"present_{role}{at}", "webgpu")
        for name in ("out0", f"out{CHAIN - 1}"):
            binding.bind_output(name, "cpu")
        # From here on every node's past and present are the first node's present, on the device.
        self._session.run_with_iobinding(binding)
        cached = dict(zip(arrays, binding.get_outputs(), strict=False))
        for role, at in each:
            binding.bind_ortvalue_input(f"past_{role}{at}", cached[role])
            binding.bind_ortvalue_output(f"present_{role}{at}", cached[role])
        return binding


def _session(graph: Any) -> Any:
    import onnxruntime
    from onnx import helper

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[_PROVIDER])
    assert session.get_providers()[0] == _PROVIDER, session.get_providers()
    return session
