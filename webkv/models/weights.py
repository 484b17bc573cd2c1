"""A model's weights on the GPU, arranged for the kernels that read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

import numpy as np
import wgpu

from webkv.gpu import Device
from webkv.kernels.quant import GATED, TILE, Weight, fits, gated, upload
from webkv.models.config import ModelConfig
from webkv.models.gguf import GgufFile, GgufTensor

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One transformer layer.

    `qkv`: (first column in the fused rows, matrix); neighbours of one type are one matrix.  `gate_up`:
    both in one matrix (see `quant.gated`) where they have one type, else one matrix each.  Norms are
    f32[d_model].
    """

    attn_norm: wgpu.GPUBuffer
    qkv: tuple[tuple[int, Weight], ...]
    attn_output: Weight
    ffn_norm: wgpu.GPUBuffer
    gate_up: tuple[Weight, ...]
    ffn_down: Weight


Layer = TypeVar("Layer", bound=LayerWeights)


@dataclass(frozen=True, eq=False)
class Weights(Generic[Layer]):
    """A whole model; `head` is the embedding itself where the file ties them."""

    embedding: Weight
    layers: tuple[Layer, ...]
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

    def vector(self, *names: str) -> wgpu.GPUBuffer:
        """A norm's weight, f32; several, one after the other, in one buffer."""
        tensors = [self._gguf.tensors[name] for name in names]
        data = np.concatenate([np.frombuffer(tensor.data, np.float32) for tensor in tensors])
        buffer = self._device.buffer(data.nbytes, label="+".join(names), data=data)
        self._count(*tensors)
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

    def fused(self, *names: str) -> tuple[tuple[int, Weight], ...]:
        """The tensors `names` one below the other, in as few matrices as can be: (first row, matrix) each."""
        runs: list[list[str]] = []
        for name in names:
            if runs and self.can_join(*runs[-1], name):
                runs[-1].append(name)
            else:
                runs.append([name])
        matrices = [self.matrix(*run) for run in runs]
        ends = accumulate(matrix.rows for matrix in matrices)
        return tuple((end - matrix.rows, matrix) for end, matrix in zip(ends, matrices, strict=True))

    def can_join(self, *names: str, multiple: int = TILE) -> bool:
        """Whether the tensors can be one matrix in one binding, each of a multiple of so many rows."""
        tensors = [self._gguf.tensors[name] for name in names]
        kinds = {(tensor.type, tensor.shape[1]) for tensor in tensors}
        if len(kinds) > 1 or any(tensor.shape[0] % multiple for tensor in tensors):
            return False
        kind, cols = kinds.pop()
        return fits(self._device, kind, sum(tensor.shape[0] for tensor in tensors), cols)

    def gated(self, gate: str, up: str) -> tuple[Weight, ...]:
        """Both in one matrix as `norm_gated_matmul` takes it or, where that cannot be, each in its own."""
        if not self.can_join(gate, up, multiple=GATED):
            return self.matrix(gate), self.matrix(up)
        tensors = [self._gguf.tensors[name] for name in (gate, up)]
        rows, cols = tensors[0].shape
        data = gated(tensors[0].data, tensors[1].data, rows)
        weight = upload(self._device, f"{gate}+{up}", tensors[0].type, data, 2 * rows, cols)
        self._count(*tensors)
        return (weight,)

    def _count(self, *tensors: GgufTensor) -> None:
        self._done += sum(tensor.nbytes for tensor in tensors)
        if self._progress is not None:
            self._progress(self._done, self._total)


def upload_weights(
    device: Device,
    config: ModelConfig,
    gguf: GgufFile,
    layer: Callable[[Uploader, int], Layer],
    progress: Progress | None = None,
) -> Weights[Layer]:
    """Write a model's tensors to the device, each layer's by `layer`; `read_config` checked them.

    `progress(done, total)` in bytes, after every tensor.  Raises `ModelError` for a weight type or row length
    that no kernel reads, `DeviceError` where the device has no room.
    """
    up = Uploader(device, gguf, progress)
    embedding = up.matrix("token_embd.weight")
    layers = tuple(layer(up, index) for index in range(config.n_layers))
    norm = up.vector("output_norm.weight")
    head = embedding if config.tied_output else up.matrix("output.weight")
    return Weights(embedding, layers, norm, head)


def layer_weights(up: Uploader, index: int) -> LayerWeights:
    """The tensors `blk.<index>.*` of a Llama layer."""

    def name(part: str) -> str:
        return f"blk.{index}.{part}.weight"

    return LayerWeights(
        attn_norm=up.vector(name("attn_norm")),
        qkv=up.fused(name("attn_q"), name("attn_k"), name("attn_v")),
        attn_output=up.matrix(name("attn_output")),
        ffn_norm=up.vector(name("ffn_norm")),
        gate_up=up.gated(name("ffn_gate"), name("ffn_up")),
        ffn_down=up.matrix(name("ffn_down")),
    )


@dataclass(frozen=True, eq=False)
class SandwichLayer(LayerWeights):
    """A layer with norms after its branches too, and of its heads: `head_norms` f32[2][head_dim], q and k."""

    head_norms: wgpu.GPUBuffer
    post_attention_norm: wgpu.GPUBuffer
    post_ffw_norm: wgpu.GPUBuffer


def sandwich_layer(up: Uploader, index: int) -> SandwichLayer:
    """The tensors `blk.<index>.*` of a Gemma 3 layer."""

    def norm(*parts: str) -> wgpu.GPUBuffer:
        return up.vector(*(f"blk.{index}.{part}_norm.weight" for part in parts))

    return SandwichLayer(
        **vars(layer_weights(up, index)),
        head_norms=norm("attn_q", "attn_k"),
        post_attention_norm=norm("post_attention"),
        post_ffw_norm=norm("post_ffw"),
    )
