"""The Gemma 3 forward pass (Gemma Team 2025) as a straight list of kernels.

Five of six layers see a sliding window, the sixth everything: two layer groups of the cache.  Each of a
layer's two branches is normed before and after, and so are query and key heads, before rope.
"""

from __future__ import annotations

from collections.abc import Sequence

from webkv.cache import PagedKVCache
from webkv.gpu import Batch, Device
from webkv.kernels.embed import embed
from webkv.kernels.matmul import matmul
from webkv.kernels.norm import head_norm, norm_add
from webkv.kernels.rows import new_rows
from webkv.models.config import ModelConfig
from webkv.models.decoder import SEQUENCES, Decoder
from webkv.models.gguf import GgufFile
from webkv.models.weights import Progress, sandwich_layer, upload_weights


class Gemma3(Decoder):
    """A Gemma 3 model on a device; arguments as of `Llama`."""

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
        self.weights = upload_weights(device, config, gguf, sandwich_layer, progress)
        super().__init__(device, config, self.weights, max_rows, sequences)
        self._branch = new_rows(device, max_rows, config.d_model, "branch")

    def forward(
        self,
        batch: Batch,
        cache: PagedKVCache,
        tokens: Sequence[int],
        mode: str,
        lengths: Sequence[int] | None = None,
    ) -> None:
        """Record the pass over `tokens`; see `Llama.forward`."""
        n, config, weights, step = len(tokens), self.config, self.weights, self._inputs.step
        eps, stream, branch = config.norm_eps, self._stream, self._branch
        sequences = self._begin(tokens, mode, lengths)
        gains = [layer.attn_norm for layer in weights.layers[1:]] + [weights.output_norm]
        embed(batch, ids=self._inputs.ids, table=weights.embedding, gain=weights.layers[0].attn_norm,
              stream=stream, step=step, n=n, scale=config.embedding_scale)  # fmt: skip
        for index, (layer, next_gain) in enumerate(zip(weights.layers, gains, strict=True)):
            self._project(batch, layer, n)
            head_norm(batch, rows=self._qkv, weights=layer.head_norms, q_heads=config.n_heads,
                      kv_heads=config.n_kv_heads, head_dim=config.head_dim, eps=eps, step=step,
                      n=n)  # fmt: skip
            cache.attention(
                batch, index, self._qkv.storage, self._heads.storage, config.attention_scale, mode
            )
            matmul(batch, x=self._heads, weight=layer.attn_output, y=branch, step=step, n=n)
            norm_add(batch, x=branch, weight=layer.post_attention_norm, stream=stream, gain=layer.ffn_norm,
                     eps=eps, step=step, n=n)  # fmt: skip
            self._gated(batch, layer, n)
            matmul(batch, x=self._hidden, weight=layer.ffn_down, y=branch, step=step, n=n)
            norm_add(batch, x=branch, weight=layer.post_ffw_norm, stream=stream, gain=next_gain, eps=eps,
                     step=step, n=n)  # fmt: skip
        self._head(batch, weights, mode, sequences)
