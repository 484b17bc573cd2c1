"""Decode attention against its twin; and rows whose bits do not depend on the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.paged import Held, Paged, mla_shape, rope_table, shape_of
from tests.support import cases, device, read_array
from webkv.kernels import reference
from webkv.kernels.attention import NO_LSE, attend_decode, decode_scratch_bytes


async def decode(
    case: Paged, q: np.ndarray, *, lse: bool = True, **more: Any
) -> tuple[np.ndarray, np.ndarray]:
    """`(out, lse)` of the kernel."""
    gpu, shape, n = await device(), case.shape, len(case.held)
    pages, table = case.upload(gpu)
    queries = gpu.buffer(q.nbytes, data=q)
    poison = np.full(n * shape.out_width, np.nan, np.float32)
    out = gpu.buffer(poison.nbytes, data=poison)
    scratch_bytes = max(decode_scratch_bytes(n, case.max_tiles(), shape), 4)
    scratch = gpu.buffer(scratch_bytes, data=np.full(scratch_bytes // 4, np.nan, np.float32))
    lses = gpu.buffer(4 * n * shape.q_heads)
    with gpu.batch() as batch:
        attend_decode(
            batch, q=queries, pages=pages, table=table, out=out, scratch=scratch, sequences=n,
            max_tiles=case.max_tiles(), shape=shape, lse=lses if lse else None, **more,
        )  # fmt: skip
    return (
        await read_array(gpu, out, np.float32, (n, shape.q_heads, shape.v_dim)),
        await read_array(gpu, lses, np.float32, (n, shape.q_heads)),
    )


async def check(case: Paged, tolerance: float = 2e-6, **more: Any) -> None:
    """Hold the kernel against its twin."""
    q = case.queries(len(case.held))
    out, lse = await decode(case, q, **more)
    want, want_lse = reference.attend_decode(q, case.pages, case.table, case.shape)
    np.testing.assert_allclose(out, want, atol=tolerance, rtol=1e-5)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)


SHAPES = {
    "smollm f32": shape_of(9, 3, 64),
    "smollm f16": shape_of(9, 3, 64, dtype="f16"),
    "smollm int8": shape_of(9, 3, 64, dtype="int8"),
    "one head of 256": shape_of(4, 1, 256),
    "no groups": shape_of(2, 2, 64),
    "group of 9 in two parts": shape_of(9, 1, 64),
    "half a block f16": shape_of(4, 2, 12, dtype="f16"),
    "half a block int8": shape_of(4, 2, 12, dtype="int8"),
    "dims of 80": shape_of(2, 1, 80),
    "narrower values": shape_of(4, 2, 96, v_dim=64),
    "page of 1": shape_of(4, 2, 64, page_tokens=1),
    "page of 3 int8": shape_of(4, 2, 64, page_tokens=3, dtype="int8"),
    "page of 4": shape_of(4, 2, 64, page_tokens=4),
    "packed int8": shape_of(4, 2, 64, packing="packed", dtype="int8"),
    "softcap": shape_of(4, 2, 64, softcap=2.0),
    "latent": mla_shape(16, 96, 64),
    "latent of deepseek f16": mla_shape(16, 576, 512, "f16"),
}


# Of the shapes that differ in numbers only.
NATIVELY = ("smollm f32", "one head of 256", "no groups", "dims of 80", "page of 1", "page of 4", "latent")


@pytest.mark.parametrize("name", cases(SHAPES, natively=NATIVELY))
async def test_shapes(name: str) -> None:
    await check(Paged(SHAPES[name], [Held(1), Held(300), Held(0), Held(15)]))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 255, 256, 257, 512, 700])
async def test_lengths(length: int) -> None:
    await check(Paged(shape_of(), [Held(length)]))


@pytest.mark.parametrize("window", cases([1, 17, 300], natively=(1, 300)))
async def test_windows(window: int) -> None:
    await check(Paged(shape_of(window=window), [Held(n) for n in (1, window, window + 1, 600)]))


@pytest.mark.parametrize(("sink", "offset"), [(4, 4), (4, 13), (20, 31), (16, 16), (3, 47)])
async def test_sinks(sink: int, offset: int) -> None:
    await check(Paged(shape_of(), [Held(40, sink=sink, offset=offset), Held(300, sink=sink, offset=offset)]))


async def test_rope_inline() -> None:
    for pairing, rotary in (("half", 32), ("interleaved", 20)):
        shape = shape_of(rope="inline", rotary_dim=rotary, pairing=pairing)
        case = Paged(shape, [Held(30), Held(290, sink=4, offset=13)])
        table = rope_table(290, rotary)
        q = case.queries(2)
        gpu = await device()
        full = gpu.buffer(table.nbytes, data=table)
        out, _ = await decode(case, q, lse=False, rope_full=full)
        want, _ = reference.attend_decode(q, case.pages, case.table, shape, rope_full=table)
        np.testing.assert_allclose(out, want, atol=2e-6)


async def test_no_keys_give_zero_and_the_lowest_lse() -> None:
    case = Paged(shape_of(), [Held(0)])
    out, lse = await decode(case, case.queries(1))
    assert not out.any()
    assert (lse == np.float32(NO_LSE)).all()


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_a_row_alone_equals_the_row_in_a_batch(dtype: str) -> None:
    held = [Held(700), Held(1), Held(256), Held(0), Held(257)]
    case = Paged(shape_of(dtype=dtype), held)
    q = case.queries(5)
    out, lse = await decode(case, q)
    for s, one in enumerate(held):
        alone, alone_lse = await decode(Paged(case.shape, [one]), q[s : s + 1])
        assert alone.tobytes() == out[s].tobytes()
        assert alone_lse.tobytes() == lse[s].tobytes()


@pytest.mark.parametrize("freed", [16, 240, 256, 400])
async def test_pages_freed_behind_the_window_change_no_bit(freed: int) -> None:
    shape = shape_of(window=100)
    q = Paged(shape, [Held(520)]).queries(1)
    whole, whole_lse = await decode(Paged(shape, [Held(520)]), q)
    cut, cut_lse = await decode(Paged(shape, [Held(520, freed=freed)]), q)
    assert cut.tobytes() == whole.tobytes()
    assert cut_lse.tobytes() == whole_lse.tobytes()


async def test_entries_out_of_range_are_not_read_past_the_pool() -> None:
    case = Paged(shape_of(), [Held(40)])
    case.table[1][1:] = [2**31 - 1, -5]
    out, _ = await decode(case, case.queries(1))
    assert out.shape == (1, 4, 64)
