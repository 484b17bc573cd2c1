"""The same tokens give the same bits, whoever shares the batch and whichever pages are free."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cache.harness import config, group
from tests.support import device, random, read_array, set_part
from webkv.cache import CacheConfig, PagedKVCache
from webkv.gpu import Device
from webkv.kernels.variants import PREFILL_PART

CONFIGS = {
    "mixed": config(group(), group("local", (1,), window=20), page_dtype="f16", max_total_len=2048,
                    prefill_chunk_size=640),
    "int8": config(group(layers=(0, 1)), page_dtype="int8", max_total_len=2048, prefill_chunk_size=640),
}  # fmt: skip
LENGTH = 600


def new(gpu: Device, made: CacheConfig) -> PagedKVCache:
    cache = PagedKVCache(gpu, made)
    for layer in made.layers:
        gpu.write(cache.layer_pages(layer), b"\xff" * cache.layer_pages(layer).size)
    return cache


async def outputs(
    cache: PagedKVCache, ids: list[int], lengths: list[int], rows: dict[int, np.ndarray], mode: str
) -> dict[int, np.ndarray]:
    """Per sequence, the outputs (layers, n, width) of a forward with these fused rows of both layers."""
    gpu, made = cache.device, []
    cache.begin_forward(ids, lengths)
    for layer in cache.config.layers:
        fused = np.concatenate([rows[seq][layer] for seq in ids])
        qkv, out = gpu.buffer(fused.nbytes, data=fused), gpu.buffer(fused.nbytes)
        with gpu.batch() as batch:
            cache.attention(batch, layer, qkv, out, mode=mode)
        made.append(await read_array(gpu, out, np.float32, (len(fused), 64)))
    cache.end_forward()
    ends = np.cumsum([0, *lengths])
    return {seq: np.stack(made)[:, ends[at] : ends[at + 1]] for at, seq in enumerate(ids)}


@pytest.mark.parametrize("part", [PREFILL_PART, 256])
@pytest.mark.parametrize("kind", CONFIGS)
async def test_bits_do_not_depend_on_neighbours_pages_or_chunks(
    kind: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_part(monkeypatch, part)
    gpu = await device()
    whole, decode = random(1, 2, LENGTH, 128), random(2, 2, 1, 128)
    alone = new(gpu, CONFIGS[kind])
    alone.add_sequence(0)
    first = (await outputs(alone, [0], [LENGTH], {0: whole}, "prefill"))[0]
    next_one = (await outputs(alone, [0], [1], {0: decode}, "decode"))[0]

    crowded = new(gpu, CONFIGS[kind])
    for seq in (5, 6, 0, 7):
        crowded.add_sequence(seq)
    noise = random(3, 2, 300, 128)
    await outputs(crowded, [5, 6], [37, 90], {5: noise[:, :37], 6: noise[:, 37:127]}, "prefill")
    crowded.remove_sequence(5)
    at, pieces = 0, []
    for n in (1, 16, 100, 255, 228):
        batch = {0: whole[:, at : at + n], 6: noise[:, :7], 7: noise[:, 7:9]}
        pieces.append((await outputs(crowded, [6, 0, 7], [7, n, 2], batch, "prefill"))[0])
        at += n
    assert at == LENGTH
    assert np.array_equal(np.concatenate(pieces, axis=1), first)
    batch = {0: decode, 6: noise[:, :1], 7: noise[:, 1:2]}
    assert np.array_equal((await outputs(crowded, [7, 0, 6], [1, 1, 1], batch, "decode"))[0], next_one)
