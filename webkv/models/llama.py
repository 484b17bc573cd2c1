"""The Llama forward pass (Touvron et al. 2023) as a straight list of kernels.

One list serves prefill and decode; kernels are row-invariant, and only attention differs between the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from webkv.cache import PagedKVCache
from webkv.gpu import Batch, Device
from webkv.kernels.activation import gather_rows, silu_mul
from webkv.kernels.embed import embed
from webkv.kernels.matmul import matmul_add, norm_gated_matmul, norm_matmul
from webkv.kernels.rows import new_rows, new_stream
from webkv.models.config import ModelConfig
from webkv.models.gguf import GgufFile
from webkv.models.inputs import Inputs
from webkv.models.logits import Logits
from webkv.models.weights import LayerWeights, Progress, upload_weights
from webkv.sampling import Candidates

SEQUENCES = 16
"""Most sequences of one decode batch, unless a caller says otherwise: each has a row of logits."""


class Llama:
    """A Llama model on a device, with the buffers its activations need for `max_rows` tokens at a time.

    `sequences`: most sequences in one forward.  `progress(done, total)`: bytes of weights uploaded.
    """

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        gguf: GgufFile,
        *,
        max_rows: int,
        sequences: int = SEQUENCES,
        progress: Progress | None = None,
    ) -> None:
        self.config = config
        self.vocab = config.vocab_size
        self.max_rows = max_rows
        self.weights = upload_weights(device, config, gguf, progress)
        heads = config.n_heads * config.head_dim
        fused = heads + 2 * config.n_kv_heads * config.head_dim
        self._inputs = Inputs(device, max_rows, sequences)
        self._stream = new_stream(device, max_rows, config.d_model, "stream")
        self._last = new_stream(device, sequences, config.d_model, "last rows")
        self._qkv = new_rows(device, max_rows, fused, "qkv")
        self._heads = new_rows(device, max_rows, heads, "attention")
        self._hidden = new_rows(device, max_rows, config.d_ff, "hidden")
        unfused = any(len(layer.gate_up) > 1 for layer in self.weights.layers)
        self._gate, self._up = (
            new_rows(device, max_rows if unfused else 1, config.d_ff, name) for name in ("gate", "up")
        )
        self._logits = Logits(device, sequences, config.vocab_size)
        self.logits = self._logits.values

    def forward(
        self,
        batch: Batch,
        cache: PagedKVCache,
        tokens: Sequence[int],
        mode: str,
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Record the pass over `tokens`, whose forward is open in `cache`; `logits` gets a row per sequence.

        `mode`: "decode" (one token per sequence) or "prefill" (`lengths[i]` tokens of sequence i; None: all
        of one sequence).  Row i of the logits is that of the last token of sequence i.
        """
        n, config, weights, step = len(tokens), self.config, self.weights, self._inputs.step
        assert 0 < n <= self.max_rows
        last = np.arange(n) if mode == "decode" else np.cumsum(lengths or [n]) - 1
        self._inputs.write(tokens, last.tolist())
        gains = [layer.attn_norm for layer in weights.layers[1:]] + [weights.output_norm]
        embed(batch, ids=self._inputs.ids, table=weights.embedding, gain=weights.layers[0].attn_norm,
              stream=self._stream, step=step, n=n, scale=config.embedding_scale)  # fmt: skip
        for index, (layer, next_gain) in enumerate(zip(weights.layers, gains, strict=True)):
            for column, weight in layer.qkv:
                norm_matmul(batch, stream=self._stream, weight=weight, y=self._qkv, eps=config.norm_eps,
                            step=step, n=n, column=column)  # fmt: skip
            cache.attention(
                batch, index, self._qkv.storage, self._heads.storage, config.attention_scale, mode
            )
            matmul_add(batch, x=self._heads, weight=layer.attn_output, stream=self._stream,
                       gain=layer.ffn_norm, step=step, n=n)  # fmt: skip
            self._gated(batch, layer, n)
            matmul_add(batch, x=self._hidden, weight=layer.ffn_down, stream=self._stream, gain=next_gain,
                       step=step, n=n)  # fmt: skip
        rows = self._stream
        if mode != "decode":
            rows, step = self._last, self._inputs.last_step
            gather_rows(batch, x=self._stream, y=rows, indices=self._inputs.last, step=step, n=len(last))
        norm_matmul(batch, stream=rows, weight=weights.head, y=self.logits, eps=config.norm_eps, step=step,
                    n=len(last))  # fmt: skip

    def _gated(self, batch: Batch, layer: LayerWeights, n: int) -> None:
        """hidden = silu(gate(h)) * up(h), h the normed stream."""
        stream, eps, step = self._stream, self.config.norm_eps, self._inputs.step
        if len(layer.gate_up) == 1:
            norm_gated_matmul(batch, stream=stream, weight=layer.gate_up[0], y=self._hidden,
                              activation="silu", eps=eps, step=step, n=n)  # fmt: skip
            return
        for weight, y in zip(layer.gate_up, (self._gate, self._up), strict=True):
            norm_matmul(batch, stream=stream, weight=weight, y=y, eps=eps, step=step, n=n)
        silu_mul(batch, gate=self._gate, up=self._up, y=self._hidden, step=step, n=n)

    async def greedy(self, sequences: int) -> npt.NDArray[np.uint32]:
        """The most likely next id of each sequence of the last forward."""
        return await self._logits.greedy(sequences)

    async def candidates(self, sequences: int) -> list[Candidates]:
        """The largest logits of each sequence of the last forward."""
        return await self._logits.candidates(sequences)

    async def full_logits(self, sequences: int) -> npt.NDArray[np.float32]:
        """All logits, `[sequences][vocab]`."""
        return await self._logits.full(sequences)
