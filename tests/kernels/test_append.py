"""Appending keys and values against its twin: rope kinds, page dtypes, positions that write nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.paged import NAN_WORD, mla_shape, rope_table, shape_of
from tests.support import device, random, read_array
from webkv.gpu.device import UNIFORM
from webkv.kernels import reference
from webkv.kernels.append import append_kv, append_mla_kv, fuse_qkv
from webkv.kernels.pages import get_kv, set_kv
from webkv.kernels.shape import AttentionShape

POSITIONS = np.array([37, -1, 5, 16, 47], np.int32)
PAGES = 3


def poisoned(shape: AttentionShape) -> np.ndarray:
    return np.full(-(-64 // shape.page_tokens) * shape.page_words, NAN_WORD, np.uint32)


async def append(
    shape: AttentionShape, qkv: np.ndarray, table: np.ndarray | None, rows: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`(qkv, pages)` after the kernel; `rows` of them are appended (default: all)."""
    gpu = await device()
    pages, count = poisoned(shape), len(qkv) if rows is None else rows
    qkv_buffer, page_buffer = gpu.buffer(qkv.nbytes, data=qkv), gpu.buffer(pages.nbytes, data=pages)
    with gpu.batch() as batch:
        append_kv(
            batch, qkv=qkv_buffer, pages=page_buffer, n=count, shape=shape,
            append_position_map=gpu.buffer(POSITIONS.nbytes, data=POSITIONS),
            rope_table=None if table is None else gpu.buffer(table.nbytes, data=table),
            step=gpu.buffer(16, data=np.array([count, 1, 0, 0], np.uint32), usage=UNIFORM),
        )  # fmt: skip
    return (
        await read_array(gpu, qkv_buffer, np.float32, qkv.shape),
        await read_array(gpu, page_buffer, np.uint32, pages.shape),
    )


def values_of(pages: np.ndarray, shape: AttentionShape) -> tuple[np.ndarray, np.ndarray]:
    return reference.get_kv(pages, POSITIONS, shape)


ROPES = {
    "half": {"rotary_dim": 64},
    "half of some dims": {"rotary_dim": 20},
    "interleaved": {"rotary_dim": 64, "pairing": "interleaved"},
    "interleaved of some dims": {"rotary_dim": 22, "pairing": "interleaved"},
    "inline": {"rotary_dim": 64, "rope": "inline"},
}


@pytest.mark.parametrize("name", ROPES)
async def test_rope(name: str) -> None:
    shape = shape_of(6, 2, 64, **{"rope": "normal", **ROPES[name]})
    qkv, table = random(1, 5, shape.fused_width), rope_table(5, shape.rotary_dim, first=1000)
    got, pages = await append(shape, qkv, table)
    want, want_pages = reference.append_kv(qkv, poisoned(shape), POSITIONS, table, shape)
    np.testing.assert_allclose(got, want, atol=1e-6)
    for have, wanted in zip(values_of(pages, shape), values_of(want_pages, shape), strict=True):
        np.testing.assert_allclose(have, wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
@pytest.mark.parametrize(
    "layout",
    [{}, {"page_tokens": 3}, {"order": "token_major"}, {"packing": "packed"}, {"dim": 12, "v_dim": 20}],
)
async def test_pages_without_rope_are_the_twins_bit_for_bit(dtype: str, layout: dict[str, int]) -> None:
    shape = shape_of(dtype=dtype, **layout)
    qkv = random(2, 5, shape.fused_width)
    qkv[0, -4:] = [1e-8, -6e-5, 7e4, -1e9]  # subnormal and too large for f16
    qkv[2, shape.q_width :] = 0
    got, pages = await append(shape, qkv, None)
    assert got.tobytes() == qkv.tobytes()
    want = reference.append_kv(qkv, poisoned(shape), POSITIONS, np.zeros((5, 0, 2)), shape)[1]
    assert pages.tobytes() == want.tobytes()


async def test_rows_past_the_step_are_not_touched() -> None:
    shape = shape_of(rope="normal", rotary_dim=64)
    qkv = random(3, 5, shape.fused_width)
    got, pages = await append(shape, qkv, rope_table(5, 64), rows=1)
    assert got[1:].tobytes() == qkv[1:].tobytes()
    k, _ = values_of(pages, shape)
    assert np.isfinite(k[0]).all()
    assert np.isnan(k[2:]).all()


async def test_positions_past_the_pool_write_nothing() -> None:
    gpu = await device()
    shape = shape_of(2, 1, 64)
    pages = gpu.buffer(shape.page_words * 4)
    rows = gpu.buffer(4 * 2 * 64, data=random(4, 2 * 64))
    positions = gpu.buffer(8, data=np.array([16, 2**31 - 1], np.int32))
    with gpu.batch() as batch:
        set_kv(batch, pages=pages, positions=positions, k=rows, v=rows, count=2, shape=shape)
    assert not any(await gpu.read(pages))


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_latent_rows(dtype: str) -> None:
    gpu = await device()
    shape = mla_shape(4, 96, 64, dtype)
    rows, pages = random(5, 5, 96), poisoned(shape)
    page_buffer = gpu.buffer(pages.nbytes, data=pages)
    with gpu.batch() as batch:
        append_mla_kv(
            batch, latent=gpu.buffer(rows.nbytes, data=rows), pages=page_buffer, n=5, shape=shape,
            append_position_map=gpu.buffer(POSITIONS.nbytes, data=POSITIONS),
            step=gpu.buffer(16, data=np.array([5, 1, 0, 0], np.uint32), usage=UNIFORM),
        )  # fmt: skip
    want = reference.append_mla_kv(rows, pages, POSITIONS, shape)
    assert await gpu.read(page_buffer) == want.tobytes()


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_get_kv_reads_what_set_kv_wrote(dtype: str) -> None:
    gpu = await device()
    shape = shape_of(4, 2, 12, v_dim=20, dtype=dtype)
    k, v, pages = random(6, 5, 2, 12), random(7, 5, 2, 20), poisoned(shape)
    k_buffer, v_buffer = gpu.buffer(k.nbytes, data=k), gpu.buffer(v.nbytes, data=v)
    page_buffer = gpu.buffer(pages.nbytes, data=pages)
    positions = gpu.buffer(POSITIONS.nbytes, data=POSITIONS)
    with gpu.batch() as batch:
        set_kv(batch, pages=page_buffer, positions=positions, k=k_buffer, v=v_buffer, count=5, shape=shape)
        get_kv(batch, pages=page_buffer, positions=positions, k=k_buffer, v=v_buffer, count=5, shape=shape)
    want = reference.get_kv(reference.set_kv(pages, POSITIONS, k, v, shape), POSITIONS, shape)
    assert (await read_array(gpu, k_buffer, np.float32, k.shape)).tobytes() == want[0].tobytes()
    assert (await read_array(gpu, v_buffer, np.float32, v.shape)).tobytes() == want[1].tobytes()


async def test_fuse_qkv() -> None:
    gpu = await device()
    shape = shape_of(6, 2, 12, v_dim=20)
    q, k, v = random(8, 3, 6, 12), random(9, 3, 2, 12), random(10, 3, 2, 20)
    qkv = gpu.buffer(4 * 3 * shape.fused_width)
    with gpu.batch() as batch:
        fuse_qkv(
            batch, q=gpu.buffer(q.nbytes, data=q), k=gpu.buffer(k.nbytes, data=k),
            v=gpu.buffer(v.nbytes, data=v), qkv=qkv, n=3, shape=shape,
        )  # fmt: skip
    assert await gpu.read(qkv) == reference.fuse_qkv(q, k, v).tobytes()
