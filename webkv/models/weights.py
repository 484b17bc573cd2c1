"""A model's weights on the GPU, arranged for the kernels that read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import wgpu

from webkv.gpu import Device
from webkv.kernels.quant import TILE, Weight, upload
from webkv.models.config import ModelConfig
from webkv.models.gguf import GgufFile, GgufTensor

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One transformer layer.

    `qkv`: (first column in the fused rows, matrix), one matrix where q, k and v have one type.  `gate_up`:
    the gate's rows, then up's, in one matrix where they have one type, else one matrix each.  Norms are
    f32[d_model].
    """

    attn_norm: wgpu.GPUBuffer
    qkv: tuple[tuple[int, Weight], ...]
    attn_output: Weight
    ffn_norm: wgpu.GPUBuffer
    gate_up: tuple[Weight, ...]
    ffn_down: Weight


@dataclass(frozen=True, eq=False)
class Weights:
    """A whole model; `head` is the embedding itself where the file ties them."""

    embedding: Weight
    layers: tuple[LayerWeights, ...]
    output_norm: wgpu.GPUBuffer
    head: Weight


class Uploader:
    """Writes tensors of a file to a device and counts the bytes for a progress callback `(done, total)`."""

    def __init__(self, device: Device, gguf: GgufFile, progress: Progress | None) -> None:
        self._device = device
        self._gguf = gguf
        self._progress = progress
        self._total = sum(tensor.nbytes for tensor in gguf.tensors.values())
        self._done = 0

    def vector(self, name: str) -> wgpu.GPUBuffer:
        """A norm's weight, f32."""
        tensor = self._gguf.tensors[name]
        buffer = self._device.buffer(tensor.nbytes, label=name, data=np.frombuffer(tensor.data, np.float32))
        self._count(tensor)
        return buffer

    def matrix(self, *names: str) -> Weight:
        """One matrix: the tensors `names`, which have one type and row length, one below the other."""
        tensors = [self._gguf.tensors[name] for name in names]
        raw = [np.frombuffer(tensor.data, np.uint8) for tensor in tensors]
        rows, cols = sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]
        data = raw[0] if len(raw) == 1 else np.concatenate(raw)
        weight = upload(self._device, "+".join(names), tensors[0].type, data, rows, cols)
        self._count(*tensors)
        return weight

    def can_join(self, *names: str) -> bool:
        """Whether the tensors can be one matrix in one binding, each starting at a tile of it."""
        tensors = [self._gguf.tensors[name] for name in names]
        limits = self._device.facts.limits
        room = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
        alike = len({(tensor.type, tensor.shape[1]) for tensor in tensors}) == 1
        tiled = all(tensor.shape[0] % TILE == 0 for tensor in tensors)
        return alike and tiled and sum(tensor.nbytes for tensor in tensors) <= room

    def _count(self, *tensors: GgufTensor) -> None:
        self._done += sum(tensor.nbytes for tensor in tensors)
        if self._progress is not None:
            self._progress(self._done, self._total)


def upload_weights(
    device: Device, config: ModelConfig, gguf: GgufFile, progress: Progress | None = None
) -> Weights:
    """Write a Llama model's tensors to the device; the file's tensors were checked by `read_config`.

    `progress(done, total)` in bytes, after every tensor.  Raises `ModelError` for a weight type or row length
    that no kernel reads, `DeviceError` where the device has no room.
    """
    up = Uploader(device, gguf, progress)
    embedding = up.matrix("token_embd.weight")
    layers = tuple(layer_weights(up, config, index) for index in range(config.n_layers))
    norm = up.vector("output_norm.weight")
    head = embedding if config.tied_output else up.matrix("output.weight")
    return Weights(embedding, layers, norm, head)


def layer_weights(up: Uploader, config: ModelConfig, index: int) -> LayerWeights:
    """The tensors `blk.<index>.*` of a Llama layer."""

    def name(part: str) -> str:
        return f"blk.{index}.{part}.weight"

    q, k, v, gate, upper = (name(part) for part in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"))
    keys = config.n_heads * config.head_dim
    values = keys + config.n_kv_heads * config.head_dim
    return LayerWeights(
        attn_norm=up.vector(name("attn_norm")),
        qkv=((0, up.matrix(q, k, v)),)
        if up.can_join(q, k, v)
        else ((0, up.matrix(q)), (keys, up.matrix(k)), (values, up.matrix(v))),
        attn_output=up.matrix(name("attn_output")),
        ffn_norm=up.vector(name("ffn_norm")),
        gate_up=(up.matrix(gate, upper),)
        if up.can_join(gate, upper)
        else (up.matrix(gate), up.matrix(upper)),
        ffn_down=up.matrix(name("ffn_down")),
    )
