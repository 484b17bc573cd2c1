"""Sequences moved between caches of different layouts: they go on alike; equal dtypes stay bit for bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.cache.books import snapshot
from tests.cache.harness import TOLERANCE, config, fill, group, poisoned
from tests.support import device, random, read_array
from webkv.cache import CacheConfig, LayerGroup, PagedKVCache, RopeConfig
from webkv.cache.remap import Share, copy_sequence, copy_shares
from webkv.errors import CacheError
from webkv.layout import CONVERTERS, Held, share

LAYOUTS: dict[str, dict[str, Any]] = {
    "page 16 f16": {"page_tokens": 16, "page_dtype": "f16"},
    "page 32 token-major f32": {"page_tokens": 32, "page_dtype": "f32", "order": "token_major"},
    "page 8 int8": {"page_tokens": 8, "page_dtype": "int8"},
    "page 12 packed int8": {
        "page_tokens": 12, "page_dtype": "int8", "packing": "packed", "order": "token_major"
    },
    "page 16 packed f16": {"page_tokens": 16, "page_dtype": "f16", "packing": "packed"},
}  # fmt: skip


async def forward(cache: PagedKVCache, seq: int, n: int, seed: int, heads: range | None = None) -> np.ndarray:
    """One forward of `n` tokens through all layers, with inputs that depend on the seed alone; the outputs.

    `heads`: take only these KV heads, and their queries, of the inputs.
    """
    gpu, outs = cache.device, []
    cache.begin_forward([seq], [n])
    for layer in cache.config.layers:
        shape = cache.layer(layer).shape
        total, span = (shape.kv_heads, range(shape.kv_heads)) if heads is None else (HEADS, heads)
        q = random(seed + layer, n, total, shape.group, shape.head_dim)
        kv = random(seed + layer + 500, 2, n, total, shape.head_dim)
        parts = [q[:, span], kv[0][:, span], kv[1][:, span]]
        qkv = np.concatenate([part.reshape(n, -1) for part in parts], axis=1)
        rows, out = gpu.buffer(qkv.nbytes, data=qkv), gpu.buffer(4 * n * shape.out_width)
        with gpu.batch() as batch:
            cache.attention(batch, layer, rows, out, mode="decode" if n == 1 else "prefill")
        outs.append(await read_array(gpu, out, np.float32, (n, shape.q_heads, shape.v_dim)))
        gpu.release(rows)
        gpu.release(out)
    cache.end_forward()
    return np.stack(outs)


HEADS = 3


async def stored(cache: PagedKVCache, seq: int, start: int = 0) -> list[np.ndarray]:
    """K and V of all tokens from `start` on."""
    return [*(await cache.debug_get_kv(seq, start, cache.get_sequence_length(seq)))]


@pytest.mark.parametrize("length", [1, 32, 53])
async def test_a_moved_sequence_goes_on_as_where_it_was(length: int) -> None:
    gpu = await device()
    caches = [poisoned(gpu, config(group(layers=(0, 2)), **fields)) for fields in LAYOUTS.values()]
    fill(caches[0], 0, length)
    for at, (src, dst) in enumerate(pairwise(caches)):
        copy_sequence(src, at, dst, at + 1, converters=CONVERTERS)
        dst.check()
    for step in (100, 200, 300):
        outs = [await forward(cache, seq, 1, step) for seq, cache in enumerate(caches)]
        worst = [float(np.abs(out - outs[0]).max()) for out in outs]
        assert np.isfinite(outs).all()
        assert worst[1] < TOLERANCE["f16"] and max(worst) < TOLERANCE["int8"]


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_equal_dtypes_are_copied_bit_for_bit(dtype: str) -> None:
    gpu = await device()
    layouts: list[dict[str, Any]] = [
        {"page_tokens": 16},
        {"page_tokens": 32, "order": "token_major"},
        {"page_tokens": 24, "packing": "packed"},
    ]
    caches = [poisoned(gpu, config(page_dtype=dtype, **fields)) for fields in layouts]
    fill(caches[0], 0, 75)
    expected = await stored(caches[0], 0)
    for src, dst in pairwise(caches):
        copy_sequence(src, 0, dst, 0)
        np.testing.assert_array_equal(await stored(dst, 0), expected)
    copy_sequence(caches[-1], 0, caches[0], 9)
    pages = [np.array(caches[0].sequence_pages(seq, "global")[1]) for seq in (0, 9)]
    raw = await read_array(
        gpu, caches[0].layer_pages(0), np.uint8, (33, caches[0].layout("global").slot_bytes[0])
    )
    np.testing.assert_array_equal(raw[pages[0][:4]], raw[pages[1][:4]])


@pytest.mark.parametrize("dtype", ["f16", "int8"])
async def test_values_are_rounded_as_if_they_had_been_appended(dtype: str) -> None:
    gpu = await device()
    exact, own = (
        poisoned(gpu, config(group(rope=RopeConfig(mode="none")), page_dtype=d)) for d in ("f32", dtype)
    )
    for cache in (exact, own):
        fill(cache, 0, 40)
    copy_sequence(exact, 0, own, 1, converters=CONVERTERS)
    np.testing.assert_array_equal(await stored(own, 1), await stored(own, 0))


async def test_copies_and_the_kernel_give_the_same_bits() -> None:
    gpu = await device()
    src = poisoned(gpu, config(group(layers=(0, 1))))
    fill(src, 0, 90)
    raw = []
    for copies_at_most in (0, 10**6):
        dst = poisoned(gpu, config(group(layers=(0, 1)), page_tokens=32, order="token_major"))
        copy_shares([Share(src, 0)], [Share(dst, 0)], copies_at_most=copies_at_most)
        raw.append([await gpu.read(dst.layer_pages(layer)) for layer in (0, 1)])
    assert raw[0] == raw[1]
    assert set(raw[0][0]) != {255}


def local(window: int, **fields: Any) -> tuple[LayerGroup, LayerGroup]:
    """A global and a windowed group."""
    return group(), group("local", (1, 2), window=window, **fields)


@pytest.mark.parametrize("length", [10, 47, 48, 61, 96])
@pytest.mark.parametrize("sizes", [(16, 32), (32, 8), (16, 24)])
async def test_a_windowed_group_gets_what_its_next_query_sees(sizes: tuple[int, int], length: int) -> None:
    gpu = await device()
    src, dst = (poisoned(gpu, config(*local(20), page_tokens=size)) for size in sizes)
    fill(src, 0, length)
    copy_sequence(src, 0, dst, 0)
    dst.check()
    assert len(dst.sequence_pages(0, "local")[1]) <= -(-19 // sizes[1]) + 1
    for name, seen in (("global", 0), ("local", max(0, length - 19))):
        k, v = await src.debug_get_kv(0, seen, length, name)
        np.testing.assert_array_equal([k, v], await dst.debug_get_kv(0, seen, length, name))


async def test_a_windowed_sequence_goes_on_as_where_it_was() -> None:
    gpu = await device()
    src, dst = (poisoned(gpu, config(*local(20), page_tokens=size)) for size in (16, 32))
    fill(src, 0, 47)
    copy_sequence(src, 0, dst, 0)
    for step in (100, 200):
        outs = [await forward(cache, 0, 1, step) for cache in (src, dst)]
        np.testing.assert_allclose(outs[0], outs[1], atol=TOLERANCE["f32"])


async def test_a_narrower_window_drops_pages_and_a_wider_one_is_refused() -> None:
    gpu = await device()
    caches = [poisoned(gpu, config(*local(window), page_tokens=8)) for window in (20, 5, 40)]
    src, narrow, wide = caches
    fill(src, 0, 64)
    copy_sequence(src, 0, narrow, 0)
    assert narrow.sequence_pages(0, "local")[0] == 6
    before = snapshot(wide.manager)
    message = "'local' of window 40 needs the sequence from token 25 on, the source holds it from token 32 on"
    with pytest.raises(CacheError, match=message):
        copy_sequence(src, 0, wide, 0)
    assert snapshot(wide.manager) == before


async def test_pages_without_any_token_are_not_taken() -> None:
    gpu = await device()
    src, dst = (poisoned(gpu, config(group(window=20), page_tokens=size)) for size in (4, 16))
    fill(src, 0, 60)
    copy_sequence(src, 0, dst, 0)
    assert src.sequence_pages(0, "global")[0] == 9
    assert dst.sequence_pages(0, "global")[0] == 2
    k, v = await dst.debug_get_kv(0, 36, 60)
    np.testing.assert_array_equal([k, v], await stored(src, 0, 36))


async def test_tokens_that_did_not_come_along_are_not_popped_to() -> None:
    gpu = await device()
    src, dst = (poisoned(gpu, config(group(window=20), page_tokens=size)) for size in (16, 32))
    fill(src, 0, 60)
    assert src.sequence_pages(0, "global")[0] == 1
    src.popn(0, 20)
    copy_sequence(src, 0, dst, 0)
    assert dst.sequence_pages(0, "global")[0] == 0
    k, v = await dst.debug_get_kv(0, 16, 40)
    np.testing.assert_array_equal([k, v], await stored(src, 0, 16))
    with pytest.raises(CacheError, match="holds sequence 0 from token 16 on, token 15 is needed"):
        dst.popn(0, 6)
    with pytest.raises(CacheError, match="holds sequence 0 from token 16 on"):
        await dst.debug_get_kv(0, 15, 40)
    dst.fork_sequence(0, 1)
    with pytest.raises(CacheError, match="token 15 is needed"):
        dst.popn(1, 6)
    dst.popn(0, 5)
    dst.begin_forward([0], [60])
    dst.end_forward()
    dst.check()


def part(heads: range, **fields: Any) -> CacheConfig:
    """The configuration of a rank that holds `heads`."""
    return config(group(layers=(0, 1), kv_heads=len(heads), q_heads=2 * len(heads)), **fields)


@pytest.mark.parametrize("ranks", [2, 3, 5])
async def test_shares_of_the_heads_go_out_and_come_back_bit_for_bit(ranks: int) -> None:
    gpu, spans = await device(), [share(HEADS, ranks, rank) for rank in range(ranks)]
    whole, again = (poisoned(gpu, part(range(HEADS), page_dtype="f16")) for _ in range(2))
    fields = {"page_dtype": "f16", "page_tokens": 32, "order": "token_major"}
    parts = [poisoned(gpu, part(span, **fields)) for span in spans]
    fill(whole, 0, 45)
    shares = [Share(cache, 7, Held({"head": span.start})) for cache, span in zip(parts, spans, strict=True)]
    copy_shares([Share(whole, 0)], shares)
    copy_shares(shares, [Share(again, 3)])
    np.testing.assert_array_equal(await stored(again, 3), await stored(whole, 0))
    if ranks != 2:
        return
    outs = await forward(whole, 0, 1, 100)
    for cache, span in zip(parts, spans, strict=True):
        own = await forward(cache, 7, 1, 100, span)
        queries = [2 * head + at for head in span for at in (0, 1)]
        np.testing.assert_allclose(own, outs[:, :, queries], atol=TOLERANCE["f32"])


async def test_layers_come_from_the_caches_that_hold_them() -> None:
    gpu = await device()
    stages = [poisoned(gpu, config(group(layers=layers))) for layers in ((0, 1), (2,))]
    whole = poisoned(gpu, config(group("a", (0, 2)), group("b", (1,)), page_tokens=32))
    for cache in stages:
        fill(cache, 0, 40)
    copy_shares([Share(cache, 0) for cache in stages], [Share(whole, 0)])
    k, v = await whole.debug_get_kv(0, 0, 40)
    for layers, cache in zip(([0, 1], [2]), stages, strict=True):
        np.testing.assert_array_equal([k[layers], v[layers]], await stored(cache, 0))


async def test_mla_rows_move() -> None:
    gpu = await device()
    latent = group(kind="mla", kv_heads=1, head_dim=24, v_dim=16, rope=RopeConfig(mode="none"))
    src, dst = (poisoned(gpu, config(latent, page_dtype="f16", page_tokens=size)) for size in (16, 12))
    src.add_sequence(0)
    src.begin_forward([0], [40])
    rows = random(1, 40, 24)
    with gpu.batch() as batch:
        src.append_mla_kv(batch, 0, gpu.buffer(rows.nbytes, data=rows))
    src.end_forward()
    copy_sequence(src, 0, dst, 1)
    np.testing.assert_array_equal(await dst.debug_get_kv_mla(1, 0, 40), await src.debug_get_kv_mla(0, 0, 40))


async def test_an_empty_sequence_moves() -> None:
    gpu = await device()
    src, dst = (poisoned(gpu, config(*local(20), page_tokens=size)) for size in (16, 32))
    src.add_sequence(0)
    copy_sequence(src, 0, dst, 0)
    dst.begin_forward([0], [3])
    dst.end_forward()
    dst.check()
