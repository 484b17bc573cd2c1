"""Partial attention merged by lse, and attention among new tokens only."""

from __future__ import annotations

import numpy as np

from tests.kernels.paged import Held, Paged, shape_of
from tests.kernels.test_attention_prefill import prefill
from tests.support import device, random, read_array
from webkv.kernels import reference
from webkv.kernels.attention import NO_LSE, attend_prefill, merge_state
from webkv.kernels.shape import PageTable


async def merge(*parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`merge_state` of out, lse, other_out, other_lse; out is `[n][heads][v_dim]`."""
    gpu = await device()
    out, lse, other_out, other_lse = (gpu.buffer(p.nbytes, data=p) for p in parts)
    n, heads, v_dim = parts[0].shape
    with gpu.batch() as batch:
        merge_state(
            batch, out=out, lse=lse, other_out=other_out, other_lse=other_lse, n=n, heads=heads, v_dim=v_dim
        )
    return (
        await read_array(gpu, out, np.float32, parts[0].shape),
        await read_array(gpu, lse, np.float32, parts[1].shape),
    )


async def test_merge_state() -> None:
    out, other = random(1, 70, 3, 20), random(2, 70, 3, 20)
    lse, other_lse = 9 * random(3, 70, 3), 9 * random(4, 70, 3)
    got, got_lse = await merge(out, lse, other, other_lse)
    want, want_lse = reference.merge_state(
        out.reshape(-1, 20), lse.ravel(), other.reshape(-1, 20), other_lse.ravel()
    )
    np.testing.assert_allclose(got.reshape(-1, 20), want, atol=2e-6)
    np.testing.assert_allclose(got_lse.ravel(), want_lse, atol=5e-6)


async def test_a_side_without_keys_weighs_nothing() -> None:
    out, lse = random(1, 5, 2, 64), random(2, 5, 2)
    empty = np.zeros_like(out), np.full_like(lse, NO_LSE)
    got, got_lse = await merge(out, lse, *empty)
    np.testing.assert_array_equal(got, out)
    np.testing.assert_array_equal(got_lse, lse)
    _, both_lse = await merge(*empty, *empty)
    np.testing.assert_allclose(both_lse, NO_LSE, atol=1)


async def self_attention(case: Paged, qkv: np.ndarray, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Attention of fused rows among themselves: the rows are the pages."""
    gpu, n = await device(), len(qkv)
    indptr = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    info = np.zeros((4, len(rows)), np.int32)
    info[0] = 1
    qkv_buffer = gpu.buffer(qkv.nbytes, data=qkv)
    indptr_buffer, info_buffer = (gpu.buffer(a.nbytes, data=a) for a in (indptr, info))
    numbers = np.arange(n, dtype=np.int32)
    out, lse = gpu.buffer(4 * n * case.shape.out_width), gpu.buffer(4 * n * case.shape.q_heads)
    with gpu.batch() as batch:
        attend_prefill(
            batch, q=qkv_buffer, pages=qkv_buffer, qo_indptr=indptr_buffer, out=out, lse=lse,
            table=PageTable(indptr_buffer, gpu.buffer(numbers.nbytes, data=numbers), info_buffer),
            sequences=len(rows), max_rows=max(rows), shape=case.shape.over_fused_rows(),
        )  # fmt: skip
    return (
        await read_array(gpu, out, np.float32, (n, case.shape.q_heads, case.shape.v_dim)),
        await read_array(gpu, lse, np.float32, (n, case.shape.q_heads)),
    )


async def test_new_tokens_and_past_pages_merge_to_the_whole() -> None:
    shape, past, rows = shape_of(6, 2, 64, v_dim=32), [300, 0], [20, 9]
    whole = Paged(shape, [Held(p + n) for p, n in zip(past, rows, strict=True)])
    qkv = whole.queries(29)
    new = [np.concatenate([k[p:].reshape(n, -1), v[p:].reshape(n, -1)], axis=1)
           for (k, v), p, n in zip(whole.keys, past, rows, strict=True)]  # fmt: skip
    qkv[:, shape.q_width :] = np.concatenate(new)
    want, want_lse = await prefill(whole, qkv, rows)
    before = Paged(shape, [Held(300), Held(0)])
    at = reference.kv_positions(before.table, 0, shape.page_tokens)
    before.pages = reference.set_kv(before.pages, at, *(x[:300] for x in whole.keys[0]), shape)
    past_out, past_lse = await prefill(before, qkv, rows, causal=False)
    got, got_lse = await merge(*await self_attention(whole, qkv, rows), past_out, past_lse)
    np.testing.assert_allclose(got, want, atol=2e-6)
    np.testing.assert_allclose(got_lse, want_lse, atol=1e-5)
