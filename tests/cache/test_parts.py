"""The parts of attention one by one: among new rows, over the past, merged; MLA; another layer's pages."""

from __future__ import annotations

import numpy as np
import pytest
import wgpu

from tests.cache.dense import attend
from tests.cache.harness import NO_ROPE, TOLERANCE, Pair, config, group
from tests.support import device, random, read_array, upload
from webkv.cache import PagedKVCache
from webkv.errors import CacheError
from webkv.gpu import Device


def causal(rows: int, keys: int) -> np.ndarray:
    return np.arange(keys)[None, :] <= np.arange(keys - rows, keys)[:, None]


def rows(gpu: Device, *floats: int) -> list[wgpu.GPUBuffer]:
    return [gpu.buffer(4 * size) for size in floats]


@pytest.mark.parametrize("lengths", [[9, 3], [1, 1], [17, 1]])
async def test_self_and_cross_attention_merge_to_attention(lengths: list[int]) -> None:
    gpu = await device()
    pair = Pair(gpu, config(group(rope=NO_ROPE)))
    pair.do("add_sequence", 0)
    pair.do("add_sequence", 1)
    await pair.agrees([0], [21])
    n = sum(lengths)
    pair.cache.begin_forward([0, 1], lengths)
    pair.dense.begin_forward([0, 1], lengths)
    qkv = random(3, n, 128)
    q, k, v, fused = upload(gpu, *np.split(qkv, [64, 96], axis=1), qkv)
    out, lse, other, other_lse, whole, whole_lse = rows(gpu, n * 64, n * 4, n * 64, n * 4, n * 64, n * 4)
    with gpu.batch() as batch:
        pair.cache.self_attention(batch, 0, q, k, v, out, lse)
        pair.cache.cross_attention(batch, 0, q, other, other_lse, include_new=False)
        pair.cache.merge_attn_output_inplace(batch, 0, out, lse, other, other_lse)
        pair.cache.attention(batch, 0, fused, whole, lse=whole_lse)
    pair.cache.end_forward()
    expected = pair.dense.attention(0, qkv)
    for found in (out, whole):
        assert np.abs(await read_array(gpu, found, np.float32, (n, 4, 16)) - expected).max() < 2e-5
    both = [await read_array(gpu, found, np.float32, (n, 4)) for found in (lse, whole_lse)]
    assert np.allclose(*both, atol=1e-4)


async def test_cross_attention_of_a_sequence_without_a_past_is_nothing() -> None:
    gpu = await device()
    pair = Pair(gpu, config(group(rope=NO_ROPE)))
    pair.do("add_sequence", 0)
    pair.cache.begin_forward([0], [3])
    (q,), (out, lse) = upload(gpu, random(1, 3, 64)), rows(gpu, 192, 12)
    with gpu.batch() as batch:
        pair.cache.cross_attention(batch, 0, q, out, lse)
    assert not (await read_array(gpu, out, np.float32, (192,))).any()
    assert (await read_array(gpu, lse, np.float32, (12,)) == -5e4).all()


async def test_cross_attention_of_a_decode_batch_sees_the_new_tokens() -> None:
    gpu = await device()
    pair = Pair(gpu, config(group(rope=NO_ROPE)))
    pair.do("add_sequence", 0)
    await pair.agrees([0], [21])
    pair.cache.begin_forward([0], [1])
    pair.dense.begin_forward([0], [1])
    qkv = random(3, 1, 128)
    q, fused = upload(gpu, qkv[:, :64], qkv)
    out, whole = rows(gpu, 64, 64)
    with gpu.batch() as batch:
        pair.cache.attention(batch, 0, fused, whole)
        pair.cache.cross_attention(batch, 0, q, out)
    expected = pair.dense.attention(0, qkv)
    assert np.abs(await read_array(gpu, out, np.float32, (1, 4, 16)) - expected).max() < 2e-5


async def test_shared_kv_reads_the_pages_of_a_layer_that_ran() -> None:
    gpu = await device()
    pair = Pair(gpu, config(group(rope=NO_ROPE)))
    pair.do("add_sequence", 0)
    await pair.agrees([0], [21])
    pair.cache.begin_forward([0], [9])
    pair.dense.begin_forward([0], [9])
    qkv, other = random(3, 9, 128), random(4, 9, 64)
    fused, q = upload(gpu, qkv, other)
    out, shared = rows(gpu, 9 * 64, 9 * 64)
    with gpu.batch() as batch:
        pair.cache.attention(batch, 0, fused, out)
        pair.cache.attention_with_shared_kv(batch, 0, q, shared)
    pair.dense.attention(0, qkv)
    k, v = pair.dense.sequences[0].kv[0]
    expected = attend(other.reshape(9, 4, 16), k, v, causal(9, 30), 0.25)
    assert np.abs(await read_array(gpu, shared, np.float32, (9, 4, 16)) - expected).max() < 2e-5


async def test_shared_kv_may_bring_its_own_new_rows() -> None:
    gpu = await device()
    pair = Pair(gpu, config(group(rope=NO_ROPE)))
    pair.do("add_sequence", 0)
    await pair.agrees([0], [21])
    past_k, past_v = pair.dense.sequences[0].kv[0]
    pair.cache.begin_forward([0], [9])
    rows_of = random(4, 9, 128)
    q, k, v = upload(gpu, *np.split(rows_of, [64, 96], axis=1))
    (out,) = rows(gpu, 9 * 64)
    with gpu.batch() as batch:
        pair.cache.attention_with_shared_kv(batch, 0, q, out, (k, v))
    new = rows_of.reshape(9, 8, 16)
    keys, values = np.concatenate([past_k, new[:, 4:6]]), np.concatenate([past_v, new[:, 6:]])
    expected = attend(new[:, :4], keys, values, causal(9, 30), 0.25)
    assert np.abs(await read_array(gpu, out, np.float32, (9, 4, 16)) - expected).max() < 2e-5


LATENT, ROPE, NOPE, VALUE, HEADS = 32, 16, 24, 16, 4
MLA = group(kind="mla", kv_heads=1, q_heads=HEADS, head_dim=LATENT + ROPE, v_dim=LATENT, rope=NO_ROPE)
UP_K, UP_V = random(1, HEADS, LATENT, NOPE) / 6, random(2, HEADS, LATENT, VALUE) / 6
SCALE = (NOPE + ROPE) ** -0.5


async def mla_by_parts(cache: PagedKVCache, latent: np.ndarray, q: np.ndarray) -> np.ndarray:
    """One forward of DeepSeek-V2's two forms: absorbed over the past, decompressed among new tokens."""
    gpu, n = cache.device, len(q)
    absorbed = np.concatenate([np.einsum("nhd,hld->nhl", q[..., :NOPE], UP_K), q[..., NOPE:]], axis=2)
    rows_new, q_own, q_past, k, v = upload(gpu, latent, q, absorbed, *decompressed(latent))
    out, lse, past, past_lse = rows(gpu, n * HEADS * VALUE, n * HEADS, n * HEADS * LATENT, n * HEADS)
    cache.begin_forward([0], [n])
    with gpu.batch() as batch:
        cache.append_mla_kv(batch, 0, rows_new)
        cache.self_attention(batch, 0, q_own, k, v, out, lse, SCALE, head_dim=NOPE + ROPE, v_dim=VALUE)
        mode = "decode" if n == 1 else "prefill"
        cache.cross_attention(batch, 0, q_past, past, past_lse, SCALE, mode=mode)
    seen = await read_array(gpu, past, np.float32, (n, HEADS, LATENT))
    (projected,) = upload(gpu, np.einsum("nhl,hld->nhd", seen, UP_V))
    if n > 1:
        with gpu.batch() as batch:
            cache.merge_attn_output_inplace(batch, 0, out, lse, projected, past_lse, v_dim=VALUE)
    cache.end_forward()
    return await read_array(gpu, out if n > 1 else projected, np.float32, (n, HEADS, VALUE))


def decompressed(latent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys (n, HEADS, NOPE + ROPE) and values (n, HEADS, VALUE) of compressed rows."""
    up = np.einsum("nl,hld->nhd", latent[:, :LATENT], UP_K)
    turned = np.repeat(latent[:, None, LATENT:], HEADS, axis=1)
    return np.concatenate([up, turned], axis=2), np.einsum("nl,hld->nhd", latent[:, :LATENT], UP_V)


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_mla_by_parts_equals_decompressed_attention(dtype: str) -> None:
    gpu = await device()
    cache = PagedKVCache(gpu, config(MLA, page_dtype=dtype))
    gpu.write(cache.layer_pages(0), b"\xff" * cache.layer_pages(0).size)
    cache.add_sequence(0)
    latent, at = random(3, 40, LATENT + ROPE), 0
    k, v = decompressed(latent)
    for n in (19, 20, 1):
        q = random(10 + n, n, HEADS, NOPE + ROPE)
        found = await mla_by_parts(cache, latent[at : at + n], q)
        at += n
        expected = attend(q, k[:at], v[:at], causal(n, at), SCALE)
        assert np.abs(found - expected).max() < TOLERANCE[dtype]
    stored = await cache.debug_get_kv_mla(0, 5, 40)
    assert np.abs(stored[0] - latent[5:]).max() < TOLERANCE[dtype]


async def test_parts_that_do_not_fit_the_layer_are_refused() -> None:
    gpu = await device()
    cache = PagedKVCache(
        gpu, config(MLA, group("local", (1,), window=5), group("inline", (2,), rope=group().rope))
    )
    cache.add_sequence(0)
    cache.begin_forward([0], [2])
    big = gpu.buffer(4 * 96 * 512)
    with gpu.batch() as batch:
        for refused, message in (
            (lambda: cache.attention(batch, 0, big, big), "layer 0 is of kind mla, expected mha"),
            (lambda: cache.append_mla_kv(batch, 1, big), "layer 1 is of kind mha, expected mla"),
            (lambda: cache.cross_attention(batch, 0, big, big), "sm_scale of mla layer 0"),
            (lambda: cache.cross_attention(batch, 1, big, big), "layer 1, which has a window"),
            (lambda: cache.self_attention(batch, 0, big, big, big, big, sm_scale=1.0), "needs head_dim"),
            (lambda: cache.self_attention(batch, 1, big, big, big, big, head_dim=8), "head_dim 8"),
        ):
            with pytest.raises(CacheError, match=message):
                refused()
        assert batch.dispatches == 0
