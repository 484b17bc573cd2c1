"""Pages read from textures: nothing that changes pages in their buffers may leave an old copy to be read."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.cache.harness import NO_ROPE, Pair, config, group
from tests.cache.test_state_machine import KINDS, CacheLife, SlidingLife, TreeLife, few
from tests.support import device, featured_device, random
from webkv.cache import CacheConfig, PagedKVCache, textures
from webkv.cache import attention as cache_attention
from webkv.gpu import Device
from webkv.kernels import attention, texels, variants


def one_layer(**fields: Any) -> CacheConfig:
    """A cache of one layer whose pages fit textures."""
    sizes = {"max_total_len": 2048, "prefill_chunk_size": 1024, "page_dtype": "f16", **fields}
    return config(group(head_dim=64, kv_heads=1), **sizes)


@pytest.fixture(autouse=True)
def gpu() -> Device:
    """The device, which reads pages from textures."""
    if PagedKVCache(featured_device(), one_layer()).layer(0).texture is None:
        pytest.skip("this device reads pages from buffers")
    return featured_device()


@cache
def pair_of(kind: str, aux: str) -> Pair:
    """As the state machine's own, with heads that fit."""
    groups = tuple(replace(each, head_dim=64) for each in KINDS[kind].groups)
    return Pair(featured_device(), replace(KINDS[kind], groups=groups), aux)


@pytest.mark.parametrize("machine", [CacheLife, SlidingLife, TreeLife])
def test_lives(machine: type[CacheLife], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "pair_of", staticmethod(pair_of))
    # Small splits, so that short lives have closed pages.
    for module in (attention, variants, cache_attention):
        monkeypatch.setattr(module, "KV_TILE", 32)
    monkeypatch.setattr(texels, "_LEAST_OPEN", 8)
    run_state_machine_as_test(machine, settings=few(60))


LENGTH = 700  # 640 of them are closed


async def forward(
    cache: PagedKVCache,
    rows: np.ndarray,
    mode: str = "prefill",
    parents: list[int] | None = None,
    submit: bool = True,
) -> bytes:
    """The output of fused rows, new tokens of sequence 0; not `submit`: recorded, and then aborted."""
    gpu, n = cache.device, len(rows)
    cache.begin_forward([0], [n], parents)
    qkv, out = gpu.buffer(rows.nbytes, data=rows), gpu.buffer(1024 * n)
    batch = gpu.batch()
    cache.attention(batch, 0, qkv, out, mode=mode)
    if not submit:
        cache.abort_forward()
        return b""
    batch.submit()
    cache.end_forward()
    return await gpu.read(out)


async def both(cache: PagedKVCache) -> bytes:
    """What a token reads from a texture alone, and then one from closed pages there and open ones here."""
    there = await forward(cache, random(5, 1, 384))
    return there + await forward(cache, random(6, 1, 384), "decode")


async def begun(gpu: Device, seed: int = 1) -> PagedKVCache:
    """A cache with a sequence of `LENGTH` tokens that were prefilled, so its texture has them."""
    made = PagedKVCache(gpu, one_layer())
    made.add_sequence(0)
    await forward(made, random(seed, LENGTH, 384))
    return made


async def test_what_a_dropped_batch_was_to_copy_is_copied_again(gpu: Device) -> None:
    expected = await both(await begun(gpu, 9))
    keys, values = await (await begun(gpu, 9)).debug_get_kv(0, 0, LENGTH)
    made = await begun(gpu)
    made.debug_set_kv(0, 0, keys, values)
    await forward(made, random(2, 1, 384), "decode", submit=False)
    await forward(made, random(2, 1, 384), submit=False)
    assert await both(made) == expected


async def test_tokens_written_from_outside_are_read(gpu: Device) -> None:
    expected = await both(await begun(gpu, 9))
    keys, values = await (await begun(gpu, 9)).debug_get_kv(0, 0, LENGTH)
    made = await begun(gpu)
    made.debug_set_kv(0, 0, keys, values)
    assert await both(made) == expected


async def test_imported_pages_are_read(gpu: Device) -> None:
    donor, made = await begun(gpu, 9), await begun(gpu)
    first, theirs = donor.sequence_pages(0, "global")
    made.remove_sequence(0)
    made.add_sequence(0)
    ours = made.adopt_pages(0, "global", first, len(theirs))
    size = donor.layout("global").slot_bytes[0]
    with gpu.batch() as batch:
        for source, target in zip(theirs, ours, strict=True):
            batch.copy(donor.layer_pages(0), source * size, made.layer_pages(0), target * size, size)
    made.seal(0, LENGTH)
    assert await both(made) == await both(donor)


async def test_a_token_trees_accepted_path_is_read(gpu: Device) -> None:
    rows = random(3, 9, 384)
    expected = await begun(gpu)
    await forward(expected, rows[1:])
    made = await begun(gpu)
    # A lone node, and a chain across the end of a page.
    await forward(made, rows, parents=[-1, -1, *range(1, 8)])
    made.commit_accepted_token_tree_nodes([0], [8])
    assert await both(made) == await both(expected)


async def test_tokens_appended_twice_are_read_as_they_are_now(gpu: Device) -> None:
    expected = await forward(await begun(gpu), random(3, 40, 384))
    made = await begun(gpu)
    rows, again = random(2, 40, 384), random(3, 40, 384)
    qkv, out = gpu.buffer(rows.nbytes, data=rows), gpu.buffer(1024 * 40)
    made.begin_forward([0], [40])
    for each in (rows, again):
        gpu.write(qkv, each)
        with gpu.batch() as batch:
            made.attention(batch, 0, qkv, out)
    made.end_forward()
    assert await gpu.read(out) == expected


async def latent_outputs(gpu: Device, textured: bool) -> np.ndarray:
    """Outputs of two prefills over compressed rows, the second of which goes on in a page of the first."""
    latent = group(kind="mla", kv_heads=1, head_dim=128, v_dim=64, rope=NO_ROPE)
    made = PagedKVCache(gpu, config(latent))
    assert (made.layer(0).texture is not None) == textured
    made.add_sequence(0)
    found = []
    for seed in (1, 2):
        rows, q = random(seed, 20, 128), random(seed + 2, 20, 512)
        out = gpu.buffer(20 * 1024)
        made.begin_forward([0], [20])
        with gpu.batch() as batch:
            made.append_mla_kv(batch, 0, gpu.buffer(rows.nbytes, data=rows))
            queries = gpu.buffer(q.nbytes, data=q)
            made.cross_attention(batch, 0, queries, out, sm_scale=0.1, include_new=True)
        made.end_forward()
        found.append(np.frombuffer(await gpu.read(out), np.float32))
    return np.concatenate(found)


async def test_compressed_rows_appended_to_a_page_that_was_copied_are_read(gpu: Device) -> None:
    plain = await latent_outputs(await device(), False)
    np.testing.assert_allclose(await latent_outputs(gpu, True), plain, atol=2e-6)


async def test_decode_copies_closed_pages_once(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await begun(gpu)
    keys, values = await made.debug_get_kv(0, 0, LENGTH)
    made.debug_set_kv(0, 0, keys, values)
    copied: list[int] = []

    def count(batch: Any, pages: Any, texture: Any, page_bytes: int, ids: np.ndarray) -> None:
        copied.append(len(ids))
        texels.copy_to_texture(batch, pages, texture, page_bytes, ids)

    monkeypatch.setattr(textures, "copy_to_texture", count)
    for seed in range(6):
        await forward(made, random(seed, 1, 384), "decode")
    assert copied == [40, 4]  # 640 tokens, then those up to 704 with the fifth
