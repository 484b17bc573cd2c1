"""A cache on the GPU beside a dense one: the same operations go to both, every output is compared."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np

from tests.cache.dense import DenseCache
from tests.support import random, read_array
from webkv.cache import CacheConfig, LayerGroup, PagedKVCache, RopeConfig
from webkv.gpu import Device

TOLERANCE = {"f32": 2e-5, "f16": 1e-2, "int8": 6e-2}
NO_ROPE = RopeConfig(mode="none")


def group(name: str = "global", layers: tuple[int, ...] = (0,), **fields: Any) -> LayerGroup:
    """A small GQA group; any field can be given."""
    sizes: dict[str, Any] = {"kv_heads": 2, "q_heads": 4, "head_dim": 16, "rope": RopeConfig()}
    return LayerGroup(name, layers, **{**sizes, **fields})


def config(*groups: LayerGroup, **fields: Any) -> CacheConfig:
    """A small cache of f32 pages; any field can be given."""
    sizes: dict[str, Any] = {
        "max_total_len": 512, "page_tokens": 16, "prefill_chunk_size": 96, "page_dtype": "f32"
    }  # fmt: skip
    return CacheConfig(groups or (group(),), **{**sizes, **fields})


def poisoned(gpu: Device, made: CacheConfig) -> PagedKVCache:
    """A cache whose pages are NaN."""
    cache = PagedKVCache(gpu, made)
    for layer in made.layers:
        pages = cache.layer_pages(layer)
        gpu.write(pages, b"\xff" * pages.size)
    return cache


def fill(cache: PagedKVCache, seq: int, n: int, seed: int = 1) -> None:
    """Add a sequence of `n` tokens whose keys and values depend on layer and seed alone."""
    cache.add_sequence(seq)
    cache.begin_forward([seq], [n])
    cache.end_forward()
    for each in cache.config.groups:
        first = cache.sequence_pages(seq, each.name)[0] * cache.config.page_tokens
        if first < n:
            rows = [
                random(seed + layer, 2, n, each.kv_heads, each.head_dim)[:, first:] for layer in each.layers
            ]
            cache.debug_set_kv(seq, first, *np.stack(rows, axis=1), each.name)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Wait for `coroutine` inside a test that is not async itself."""
    if sys.platform == "emscripten":
        from pyodide.ffi import run_sync

        return run_sync(coroutine)
    return asyncio.run(coroutine)


class Pair:
    """Both caches, whose pages are NaN wherever nothing valid was written."""

    def __init__(self, gpu: Device, config: CacheConfig, aux: str = "plain") -> None:
        self.gpu, self.config = gpu, config
        self.cache = PagedKVCache(gpu, config, aux)
        self.dense = DenseCache(config)
        widths = [layer.shape.fused_width for layer in map(self.cache.layer, config.layers)]
        rows = config.prefill_chunk_size * max(widths)
        self.qkv, self.out = gpu.buffer(4 * rows), gpu.buffer(4 * rows)
        self.seed = 0
        self.poison_all()

    def poison_all(self) -> None:
        """NaN in every page."""
        for layer in self.config.layers:
            pages = self.cache.layer_pages(layer)
            self.gpu.write(pages, b"\xff" * pages.size)
        self._free = [set(pool.free_pages().tolist()) for pool in self.cache.manager.pools]

    def poison_freed(self) -> None:
        """NaN in every page that was freed since the last call; checks the books too."""
        self.cache.check()
        for at, (each, pool) in enumerate(zip(self.config.groups, self.cache.manager.pools, strict=True)):
            free = set(pool.free_pages().tolist())
            for page in free - self._free[at]:
                for layer in each.layers:
                    pages = self.cache.layer_pages(layer)
                    size = pages.size // pool.num_pages
                    self.gpu.write(pages, b"\xff" * size, page * size)
            self._free[at] = free

    def reset(self) -> None:
        """Both empty, all pages NaN."""
        self.cache.clear()
        self.dense.sequences.clear()
        self.poison_freed()

    def do(self, operation: str, *args: Any) -> None:
        """One operation, which has the same name in both."""
        getattr(self.cache, operation)(*args)
        getattr(self.dense, operation)(*args)
        self.poison_freed()

    async def forward(
        self,
        ids: Sequence[int],
        lengths: Sequence[int],
        parents: Sequence[int] | None = None,
        mode: str | None = None,
        layers: Sequence[int] | None = None,
    ) -> float:
        """One forward over all layers, on both; returns the largest difference of outputs."""
        mode = mode or ("decode" if max(lengths) == 1 and parents is None else "prefill")
        self.cache.begin_forward(ids, lengths, parents)
        positions = self.dense.begin_forward(ids, lengths, parents)
        assert np.array_equal(self.cache.get_query_positions(), positions)
        worst = 0.0
        for number in self.config.layers if layers is None else layers:
            self.seed += 1
            shape = self.cache.layer(number).shape
            qkv = random(self.seed, sum(lengths), shape.fused_width)
            self.gpu.write(self.qkv, qkv)
            with self.gpu.batch() as batch:
                self.cache.attention(batch, number, self.qkv, self.out, mode=mode)
            expected = self.dense.attention(number, qkv)
            out = await read_array(self.gpu, self.out, np.float32, expected.shape)
            assert np.isfinite(out).all(), f"layer {number} let a NaN through"
            worst = max(worst, float(np.abs(out - expected).max()))
        self.cache.end_forward()
        self.dense.end_forward()
        self.poison_freed()
        return worst

    async def agrees(
        self, ids: Sequence[int], lengths: Sequence[int], parents: Sequence[int] | None = None
    ) -> None:
        """`forward`, within the tolerance of the page dtype."""
        tolerance = max(TOLERANCE[g.page_dtype or "f16"] for g in self.config.groups)
        assert await self.forward(ids, lengths, parents) < tolerance

    async def same_kv(self, seq: int) -> None:
        """Every stored token equals the dense one."""
        length = self.dense.sequences[seq].length
        assert self.cache.get_sequence_length(seq) == length
        for at, each in enumerate(self.config.groups):
            first = self.cache.manager.get(seq).pages[at].first_block * self.config.page_tokens
            if first >= length:
                continue
            k, v = await self.cache.debug_get_kv(seq, first, length, each.name)
            for row, layer in enumerate(each.layers):
                dense_k, dense_v = self.dense.stored(seq, layer)
                tolerance = TOLERANCE[each.page_dtype or "f16"]
                assert np.abs(k[row] - dense_k[first:]).max() < tolerance
                assert np.abs(v[row] - dense_v[first:]).max() < tolerance
