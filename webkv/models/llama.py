"""The Llama forward pass (Touvron et al. 2023) as a straight list of kernels.

One list serves prefill and decode; kernels are row-invariant, and only attention differs between the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from webkv.cache import PagedKVCache
from webkv.gpu import Batch, Device
from webkv.kernels.embed import embed
from webkv.kernels.matmul import matmul_add
from webkv.models.config import ModelConfig
from webkv.models.decoder import SEQUENCES, Decoder
from webkv.models.gguf import GgufFile
from webkv.models.weights import Progress, layer_weights, upload_weights


class Llama(Decoder):
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
        self.weights = upload_weights(device, config, gguf, layer_weights, progress)
        super().__init__(device, config, self.weights, max_rows, sequences)

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
        sequences = self._begin(tokens, mode, lengths)
        gains = [layer.attn_norm for layer in weights.layers[1:]] + [weights.output_norm]
        embed(batch, ids=self._inputs.ids, table=weights.embedding, gain=weights.layers[0].attn_norm,
              stream=self._stream, step=step, n=n, scale=config.embedding_scale)  # fmt: skip
        for index, (layer, next_gain) in enumerate(zip(weights.layers, gains, strict=True)):
            self._project(batch, layer, n)
            cache.attention(
                batch, index, self._qkv.storage, self._heads.storage, config.attention_scale, mode
            )
            matmul_add(batch, x=self._heads, weight=layer.attn_output, stream=self._stream,
                       gain=layer.ffn_norm, step=step, n=n)  # fmt: skip
            self._gated(batch, layer, n)
            matmul_add(batch, x=self._hidden, weight=layer.ffn_down, stream=self._stream, gain=next_gain,
                       step=step, n=n)  # fmt: skip
        self._head(batch, weights, mode, sequences)
