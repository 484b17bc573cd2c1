"""What generating needs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from webkv.cache import PagedKVCache
from webkv.gpu import Batch
from webkv.sampling import Candidates


class CausalModel(Protocol):
    """Rows of token ids in, logits of each sequence's last row out."""

    vocab: int
    max_rows: int

    def forward(self, batch: Batch, cache: PagedKVCache, tokens: Sequence[int], mode: str) -> None: ...

    # `work`: the recorded forward, to be submitted together with what these take from its logits.

    async def greedy(self, sequences: int, work: Batch) -> np.ndarray: ...

    async def candidates(self, sequences: int, work: Batch) -> list[Candidates]: ...

    async def full_logits(self, sequences: int, work: Batch) -> np.ndarray: ...
