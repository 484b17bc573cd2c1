"""What the forward passes of decoder-only transformers share: buffers, projections, the head, the logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from webkv.gpu import Batch, Device
from webkv.kernels.activation import gather_rows, gelu_mul, silu_mul
from webkv.kernels.matmul import norm_gated_matmul, norm_matmul
from webkv.kernels.rows import new_rows, new_stream
from webkv.models.config import ModelConfig
from webkv.models.inputs import Inputs
from webkv.models.logits import Logits
from webkv.models.weights import LayerWeights, Weights
from webkv.sampling import Candidates

SEQUENCES = 16
"""Most sequences of one decode batch, unless a caller says otherwise: each has a row of logits."""

_GATES = {"silu": ("silu", silu_mul), "gelu_tanh": ("gelu", gelu_mul)}


class Decoder:
    """The buffers of a pass over up to `max_rows` tokens of up to `sequences` sequences, and its logits."""

    def __init__(
        self, device: Device, config: ModelConfig, weights: Weights[Any], max_rows: int, sequences: int
    ) -> None:
        self.config = config
        self.vocab = config.vocab_size
        self.max_rows = max_rows
        heads = config.n_heads * config.head_dim
        fused = heads + 2 * config.n_kv_heads * config.head_dim
        self._inputs = Inputs(device, max_rows, sequences)
        self._stream = new_stream(device, max_rows, config.d_model, "stream")
        self._last = new_stream(device, sequences, config.d_model, "last rows")
        self._qkv = new_rows(device, max_rows, fused, "qkv")
        self._heads = new_rows(device, max_rows, heads, "attention")
        self._hidden = new_rows(device, max_rows, config.d_ff, "hidden")
        unfused = any(len(layer.gate_up) > 1 for layer in weights.layers)
        self._gate, self._up = (
            new_rows(device, max_rows if unfused else 1, config.d_ff, name) for name in ("gate", "up")
        )
        self._logits = Logits(device, sequences, config.vocab_size)
        self.logits = self._logits.values

    def _begin(self, tokens: Sequence[int], mode: str, lengths: Sequence[int] | None) -> int:
        """Queue the write of the step's inputs; how many sequences it has."""
        n = len(tokens)
        assert 0 < n <= self.max_rows
        last = np.arange(n) if mode == "decode" else np.cumsum(lengths or [n]) - 1
        self._inputs.write(tokens, last.tolist())
        return len(last)

    def _project(self, batch: Batch, layer: LayerWeights, n: int) -> None:
        """qkv = the fused queries, keys and values of the normed stream."""
        for column, weight in layer.qkv:
            norm_matmul(batch, stream=self._stream, weight=weight, y=self._qkv, eps=self.config.norm_eps,
                        step=self._inputs.step, n=n, column=column)  # fmt: skip

    def _gated(self, batch: Batch, layer: LayerWeights, n: int) -> None:
        """hidden = activation(gate(h)) * up(h), h the normed stream."""
        stream, eps, step = self._stream, self.config.norm_eps, self._inputs.step
        activation, gated_mul = _GATES[self.config.activation]
        if len(layer.gate_up) == 1:
            norm_gated_matmul(batch, stream=stream, weight=layer.gate_up[0], y=self._hidden,
                              activation=activation, eps=eps, step=step, n=n)  # fmt: skip
            return
        for weight, y in zip(layer.gate_up, (self._gate, self._up), strict=True):
            norm_matmul(batch, stream=stream, weight=weight, y=y, eps=eps, step=step, n=n)
        gated_mul(batch, gate=self._gate, up=self._up, y=self._hidden, step=step, n=n)

    def _head(self, batch: Batch, weights: Weights[Any], mode: str, sequences: int) -> None:
        """logits = the output matrix times the normed stream, of each sequence's last row."""
        rows, step = self._stream, self._inputs.step
        if mode != "decode":
            rows, step = self._last, self._inputs.last_step
            gather_rows(batch, x=self._stream, y=rows, indices=self._inputs.last, step=step, n=sequences)
        norm_matmul(batch, stream=rows, weight=weights.head, y=self.logits, eps=self.config.norm_eps,
                    step=step, n=sequences)  # fmt: skip

    # `work`: the forward pass that makes the logits, if it was recorded and not yet submitted.

    async def greedy(self, sequences: int, work: Batch | None = None) -> npt.NDArray[np.uint32]:
        """The most likely next id of each sequence of the last forward."""
        return await self._logits.greedy(sequences, work)

    async def candidates(self, sequences: int, work: Batch | None = None) -> list[Candidates]:
        """The largest logits of each sequence of the last forward."""
        return await self._logits.candidates(sequences, work)

    async def full_logits(self, sequences: int, work: Batch | None = None) -> npt.NDArray[np.float32]:
        """All logits, `[sequences][vocab]`."""
        return await self._logits.full(sequences, work)
