"""Attention through pages against dense attention: layer kinds, dtypes, layouts and rope, over both managers.

Pages are NaN wherever nothing valid was written, freed pages again.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.cache.harness import NO_ROPE, Pair, config, group
from tests.support import cases, device, random, read_array, set_part
from webkv.cache import CacheConfig, RopeConfig
from webkv.errors import CacheError

ROPES = {
    "none": NO_ROPE,
    "normal": RopeConfig(),
    "theta and scale": RopeConfig(theta=500.0, scale=0.25),
    "partial": RopeConfig(rotary_dim=8),
    "interleaved": RopeConfig(pairing="interleaved"),
    "interleaved partial": RopeConfig(pairing="interleaved", rotary_dim=12),
    "inline": RopeConfig(mode="inline"),
    "inline partial interleaved": RopeConfig(mode="inline", pairing="interleaved", rotary_dim=8),
    "linear": RopeConfig(scaling="linear", factor=4.0),
    "llama3": RopeConfig(scaling="llama3", factor=8.0, original_max_position=16),
    "yarn": RopeConfig(scaling="yarn", factor=4.0, original_max_position=64),
    "longrope": RopeConfig(
        scaling="longrope", original_max_position=16, max_position=64,
        short_factors=(1.0,) * 8, long_factors=tuple(np.linspace(1, 4, 8)),
    ),
}  # fmt: skip


async def exercise(pair: Pair) -> None:
    """Ragged prefill, chunked prefill, decode batches, fork, popn, removal, and decode again."""
    for seq in range(3):
        pair.do("add_sequence", seq)
    await pair.agrees([0, 1, 2], [37, 1, 16])
    await pair.agrees([2, 0], [3, 30])
    await pair.agrees([1, 0, 2], [1, 1, 1])
    pair.do("fork_sequence", 0, 7, -1)
    pair.do("popn", 2, 1)
    await pair.agrees([7, 2], [5, 1])
    pair.do("remove_sequence", 0)
    await pair.agrees([2, 7, 1], [1, 1, 1])
    await pair.agrees([7, 1], [1, 1])
    for seq in (1, 2, 7):
        await pair.same_kv(seq)


@pytest.mark.parametrize("aux", ["plain", "cached"])
@pytest.mark.parametrize("rope", ROPES)
async def test_rope_kinds(rope: str, aux: str) -> None:
    await exercise(Pair(await device(), config(group(rope=ROPES[rope])), aux))


SHAPES = {
    "mha": config(group(kv_heads=3, q_heads=3)),
    "mqa": config(group(kv_heads=1, q_heads=6)),
    "wide values": config(group(head_dim=8, v_dim=24)),
    "big heads": config(group(head_dim=128, q_heads=2, kv_heads=1)),
    "small pages": config(group(), page_tokens=4),
    "pages of 5 tokens": config(group(), page_tokens=5),
    "token major": config(group(), order="token_major"),
    "packed": config(group(), packing="packed", order="token_major"),
    "soft cap": config(group(softcap=2.0)),
    "f16": config(group(layers=(0, 3)), page_dtype="f16"),
    "int8": config(group(layers=(0, 3)), page_dtype="int8"),
}


@pytest.mark.parametrize(
    "shape", cases(SHAPES, natively=("mqa", "big heads", "small pages", "token major", "soft cap"))
)
async def test_shapes_dtypes_and_layouts(shape: str) -> None:
    await exercise(Pair(await device(), SHAPES[shape]))


def gemma() -> CacheConfig:
    """Global and local layers of different windows, head sizes, thetas and page dtypes, mixed."""
    return config(
        group("local", (0, 2), window=20, rope=RopeConfig(theta=1e4)),
        group("global", (1,), kv_heads=1, head_dim=32, rope=RopeConfig(theta=1e6)),
        group("tiny", (3,), window=5, rope=NO_ROPE, page_dtype="f16"),
    )


@pytest.mark.parametrize("aux", ["plain", "cached"])
async def test_layer_kinds_mixed(aux: str) -> None:
    await exercise(Pair(await device(), gemma(), aux))


@pytest.mark.parametrize("window", cases([1, 7, 15, 16, 17, 20, 32], natively=(7, 15, 17, 32)))
@pytest.mark.parametrize("more", [-2, -1, 0, 1, 2])
async def test_prompts_around_the_window(window: int, more: int) -> None:
    pair = Pair(await device(), config(group(window=window)))
    pair.do("add_sequence", 0)
    await pair.agrees([0], [max(1, window + more)])
    for _ in range(3):
        await pair.agrees([0], [1])


@pytest.mark.parametrize("window", [3, 16, 20])
async def test_a_chunk_longer_than_the_window(window: int) -> None:
    pair = Pair(await device(), config(group(window=window)))
    pair.do("add_sequence", 0)
    pair.do("add_sequence", 1)
    await pair.agrees([0, 1], [61, 2])
    await pair.agrees([1, 0], [55, 41])
    await pair.agrees([0, 1], [1, 1])


@pytest.mark.parametrize("rope", ["none", "normal", "inline partial interleaved"])
async def test_sequence_windows_with_sinks(rope: str) -> None:
    pair = Pair(await device(), config(group(rope=ROPES[rope]), support_sliding_window=True))
    for seq in range(3):
        pair.do("add_sequence", seq)
    pair.do("enable_sliding_window_for_seq", 0, 20, 6)
    pair.do("enable_sliding_window_for_seq", 1, 37, 0)
    await pair.agrees([0, 1, 2], [4, 7, 20])
    await pair.agrees([0], [20])
    await pair.agrees([1, 0], [40, 6])
    for _ in range(24):
        await pair.agrees([0, 1, 2], [1, 1, 1])
    await pair.agrees([0, 1, 2], [5, 30, 2])
    pair.do("popn", 0, 9)
    await pair.agrees([0, 1, 2], [1, 1, 1])
    pair.do("fork_sequence", 0, 3, 5)
    await pair.agrees([3, 0], [2, 3])
    for seq in range(4):
        await pair.same_kv(seq)


LONG = {
    "layer window": config(group(), group("local", (1,), window=300), max_total_len=2048,
                           prefill_chunk_size=400, page_dtype="f16"),
    "sinks": config(group(rope=RopeConfig(mode="inline")), support_sliding_window=True, max_total_len=2048,
                    prefill_chunk_size=400),
}  # fmt: skip


@pytest.mark.parametrize("kind", LONG)
async def test_windows_of_many_tiles(kind: str) -> None:
    pair = Pair(await device(), LONG[kind])
    pair.do("add_sequence", 0)
    pair.do("add_sequence", 1)
    if kind == "sinks":
        pair.do("enable_sliding_window_for_seq", 0, 300, 10)
    await pair.agrees([0], [399])
    await pair.agrees([1, 0], [20, 257])
    for _ in range(20):
        await pair.agrees([1, 0], [1, 1])
    await pair.agrees([0], [320])
    await pair.agrees([0, 1], [1, 1])


async def test_token_trees_grow_over_rounds_and_commit_in_any_order() -> None:
    pair = Pair(await device(), config(group(layers=(0, 1))))
    for seq in range(3):
        pair.do("add_sequence", seq)
    await pair.agrees([0, 1, 2], [10, 20, 30])
    await pair.agrees([0, 1, 2], [7, 3, 2], [-1, 0, 0, 1, 1, 2, 2, -1, 0, 1, -1, -1])
    await pair.agrees([2, 0], [4, 2], [0, 1, 2, 2, 4, 7])
    pair.do("commit_accepted_token_tree_nodes", [1, 0, 2], [2, 8, 4])
    for seq in range(3):
        await pair.same_kv(seq)
    await pair.agrees([0, 1, 2], [1, 1, 1])
    await pair.agrees([0], [2], [-1, -1])
    pair.do("commit_accepted_token_tree_nodes", [0, 1], [-1, -1])
    await pair.agrees([2, 1, 0], [9, 1, 1])


@pytest.mark.parametrize("mode", ["prefill", "decode"])
async def test_separate_rows_are_the_same_as_fused_ones(mode: str) -> None:
    gpu = await device()
    pair = Pair(gpu, config())
    pair.do("add_sequence", 0)
    await pair.agrees([0], [21])
    n = 1 if mode == "decode" else 9
    pair.cache.begin_forward([0], [n])
    pair.dense.begin_forward([0], [n])
    qkv = random(5, n, 8 * 16)
    parts = [gpu.buffer(x.nbytes, data=x) for x in map(np.ascontiguousarray, np.split(qkv, [64, 96], axis=1))]
    with gpu.batch() as batch:
        pair.cache.attention_with_qkv(batch, 0, *parts, pair.out, mode=mode)
    pair.cache.end_forward()
    expected = pair.dense.attention(0, qkv)
    assert np.abs(await read_array(gpu, pair.out, np.float32, expected.shape) - expected).max() < 2e-5


async def test_sm_scale_replaces_the_default() -> None:
    gpu = await device()
    pair = Pair(gpu, config())
    pair.do("add_sequence", 0)
    pair.cache.begin_forward([0], [30])
    pair.dense.begin_forward([0], [30])
    qkv = random(5, 30, 8 * 16)
    gpu.write(pair.qkv, qkv)
    with gpu.batch() as batch:
        pair.cache.attention(batch, 0, pair.qkv, pair.out, sm_scale=0.9)
    expected = pair.dense.attention(0, qkv, sm_scale=0.9)
    assert np.abs(await read_array(gpu, pair.out, np.float32, expected.shape) - expected).max() < 2e-5


async def test_rows_beyond_the_batch_are_left_alone() -> None:
    gpu = await device()
    pair = Pair(gpu, config())
    pair.do("add_sequence", 0)
    gpu.write(pair.out, random(1, 96, 64))
    pair.cache.begin_forward([0], [5])
    gpu.write(pair.qkv, random(2, 96, 128))
    with gpu.batch() as batch:
        pair.cache.attention(batch, 0, pair.qkv, pair.out)
    pair.cache.end_forward()
    assert np.array_equal(
        await read_array(gpu, pair.out, np.float32, (91, 64), 4 * 64 * 5), random(1, 96, 64)[5:]
    )


async def test_prefill_over_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    set_part(monkeypatch)
    groups = group(), group("local", (1,), window=20)
    pair = Pair(await device(), config(*groups, max_total_len=1024, prefill_chunk_size=512))
    for seq in range(2):
        pair.do("add_sequence", seq)
    for lengths in ([250, 3], [9, 300], [270, 1]):
        await pair.agrees([0, 1], lengths)
    for seq in range(2):
        await pair.same_kv(seq)


async def test_parts_that_take_more_than_a_binding_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_part(monkeypatch)
    gpu = await device()
    pair = Pair(gpu, config(max_total_len=2048, prefill_chunk_size=65536))
    pair.cache.add_sequence(0)
    pair.cache.begin_forward([0], [1800])
    qkv, out = (gpu.buffer(4 * 1800 * 128) for _ in range(2))
    problem = "prefill in 8 parts of keys needs 2560 bytes for each row of prefill_chunk_size 65536"
    with pytest.raises(CacheError, match=problem), gpu.batch() as batch:
        pair.cache.attention(batch, 0, qkv, out, mode="prefill")


@pytest.mark.parametrize("aux", ["plain", "cached"])
async def test_a_decode_step_makes_no_gpu_object(aux: str) -> None:
    gpu = await device()
    pair = Pair(gpu, gemma(), aux)
    for seq in range(3):
        pair.do("add_sequence", seq)
    await pair.forward([0, 1, 2], [30, 2, 5])
    await pair.forward([0, 1, 2], [1, 1, 1])
    made = (gpu.created.buffers, gpu.created.bind_groups, gpu.created.pipelines)
    for _ in range(20):
        await pair.forward([2, 0, 1], [1, 1, 1])
    assert (gpu.created.buffers, gpu.created.bind_groups, gpu.created.pipelines) == made


@pytest.mark.parametrize(("rope", "short", "long"), [("normal", 1, 2), ("none", 1, 2), ("inline", 2, 3)])
async def test_dispatches_of_a_decode_step(rope: str, short: int, long: int) -> None:
    gpu = await device()
    pair = Pair(gpu, config(group(rope=ROPES[rope]), max_total_len=1024, prefill_chunk_size=512))
    pair.cache.add_sequence(0)
    for tokens, expected in ((511, short), (1, long)):
        pair.cache.begin_forward([0], [tokens])
        pair.cache.end_forward()
        pair.cache.begin_forward([0], [1])
        batch = gpu.batch()
        pair.cache.attention(batch, 0, pair.qkv, pair.out, mode="decode")
        pair.cache.abort_forward()
        assert batch.dispatches == expected
