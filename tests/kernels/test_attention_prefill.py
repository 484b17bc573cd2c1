"""Prefill attention against its twin; and rows whose bits do not depend on the batch or the chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.paged import Held, Paged, mla_shape, rope_table, shape_of
from tests.support import cases, device, read_array
from webkv.kernels import reference
from webkv.kernels.attention import Parts, attend_prefill, scratch_floats


async def prefill(
    case: Paged, q: np.ndarray, rows: list[int], *, lse: bool = True, **more: Any
) -> tuple[np.ndarray, np.ndarray]:
    """`(out, lse)` of the kernel for `rows` query rows per sequence."""
    gpu, shape, n = await device(), case.shape, sum(rows)
    pages, table = case.upload(gpu)
    indptr = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    out = gpu.buffer(4 * n * shape.out_width, data=np.full(n * shape.out_width, np.nan, np.float32))
    lses = gpu.buffer(4 * n * shape.q_heads)
    parts, count = None, case.max_parts()
    if count > 1:
        parts = Parts(count, n, gpu.buffer(4 * n * scratch_floats(count, shape)))
    more = {k: gpu.buffer(a.nbytes, data=a) if isinstance(a, np.ndarray) else a for k, a in more.items()}
    with gpu.batch() as batch:
        attend_prefill(
            batch, q=gpu.buffer(q.nbytes, data=q), pages=pages, table=table,
            qo_indptr=gpu.buffer(indptr.nbytes, data=indptr), out=out, sequences=len(rows),
            max_rows=max(rows), shape=shape, lse=lses if lse else None, parts=parts, **more,
        )  # fmt: skip
    return (
        await read_array(gpu, out, np.float32, (n, shape.q_heads, shape.v_dim)),
        await read_array(gpu, lses, np.float32, (n, shape.q_heads)),
    )


async def check(case: Paged, rows: list[int], *, lse: bool = True, **more: Any) -> None:
    """Hold the kernel against its twin."""
    q = case.queries(sum(rows))
    indptr = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    out, lses = await prefill(case, q, rows, lse=lse, **more)
    want, want_lse = reference.attend_prefill(q, case.pages, case.table, indptr, case.shape, **more)
    np.testing.assert_allclose(out, want, atol=4e-6, rtol=1e-5)
    if lse:
        np.testing.assert_allclose(lses, want_lse, atol=1e-5)


SHAPES = {
    "smollm f32": shape_of(9, 3, 64),
    "smollm f16": shape_of(9, 3, 64, dtype="f16"),
    "llama 8b int8": shape_of(32, 8, 128, dtype="int8"),
    "half a block": shape_of(4, 2, 12, dtype="f16"),
    "page of 3": shape_of(4, 2, 64, page_tokens=3),
    "latent of deepseek": mla_shape(16, 576, 512),
}


@pytest.mark.parametrize("name", cases(SHAPES, natively=("smollm f32", "llama 8b int8")))
async def test_shapes(name: str) -> None:
    await check(Paged(SHAPES[name], [Held(1), Held(300), Held(40), Held(15)]), [1, 13, 40, 7])


@pytest.mark.parametrize(("length", "rows"), [(1, 1), (256, 256), (257, 1), (257, 2), (530, 20), (16, 5)])
async def test_lengths(length: int, rows: int) -> None:
    await check(Paged(shape_of(), [Held(length)]), [rows])


@pytest.mark.parametrize("window", cases([1, 17], natively=(1,)))
async def test_windows(window: int) -> None:
    await check(Paged(shape_of(window=window), [Held(70), Held(600)]), [70, 20])


async def test_sinks() -> None:
    held = [Held(40, sink=4, offset=13), Held(300, sink=20, offset=31)]
    await check(Paged(shape_of(), held), [3, 20])


async def test_rope_inline() -> None:
    shape = shape_of(rope="inline", rotary_dim=32)
    case = Paged(shape, [Held(30), Held(290, sink=4, offset=13)])
    await check(case, [30, 5], lse=False, rope_full=rope_table(290, 32))


async def test_every_key_without_causality() -> None:
    await check(Paged(shape_of(), [Held(40), Held(0), Held(300)]), [9, 1, 2], causal=False)


def tree_of(parents: list[list[int]]) -> np.ndarray:
    """`tree_indptr`, then (first, end) in pre-order numbers of the nodes of each sequence's tree."""
    pairs = []
    for tree in parents:
        numbers: dict[int, tuple[int, int]] = {}

        def visit(node: int, tree: list[int] = tree, numbers: dict[int, tuple[int, int]] = numbers) -> None:
            first = len(numbers)
            numbers[node] = (first, 0)
            for child in (c for c, parent in enumerate(tree) if parent == node):
                visit(child)
            numbers[node] = (first, len(numbers))

        for root in (c for c, parent in enumerate(tree) if parent == -1):
            visit(root)
        pairs += [numbers[node] for node in range(len(tree))]
    counts = np.concatenate([[0], np.cumsum([len(tree) for tree in parents])])
    return np.concatenate([counts, np.array(pairs, np.int64).ravel()]).astype(np.int32)


async def test_token_trees() -> None:
    parents = [[-1, 0, 0, 1, 2, 2, -1], [], [-1, 0, 1, 1, 3]]
    case = Paged(shape_of(), [Held(20), Held(40), Held(258)])
    await check(case, [7, 3, 2], lse=False, tree=tree_of(parents))


async def check_each_alone(shape: Any, held: list[Held], rows: list[int]) -> None:
    """Every sequence by itself gives the bits it has in a batch."""
    q = Paged(shape, held).queries(sum(rows))
    out, lse = await prefill(Paged(shape, held), q, rows)
    at = 0
    for one, n in zip(held, rows, strict=True):
        alone, alone_lse = await prefill(Paged(shape, [one]), q[at : at + n], [n])
        assert alone.tobytes() == out[at : at + n].tobytes()
        assert alone_lse.tobytes() == lse[at : at + n].tobytes()
        at += n


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_a_row_alone_equals_the_row_in_a_batch(dtype: str) -> None:
    await check_each_alone(shape_of(9, 3, 64, dtype=dtype), [Held(300), Held(40), Held(270)], [3, 40, 11])


async def check_chunks(window: int, total: int, first: int, chunk: int) -> None:
    """The rows from `first` on, a chunk at a time, give the bits of one prompt."""
    case = Paged(shape_of(9, 3, 64, window=window), [Held(total)])
    q = case.queries(total)
    out, lse = await prefill(case, q, [total])
    for start in range(first, total, chunk):
        end = min(start + chunk, total)
        freed = max(start + 1 - window, 0) if window else 0
        part = truncated(case, end, freed)
        got, got_lse = await prefill(part, q[start:end], [end - start])
        assert got.tobytes() == out[start:end].tobytes()
        assert got_lse.tobytes() == lse[start:end].tobytes()


@pytest.mark.parametrize("window", [0, 17])
@pytest.mark.parametrize("chunk", [1, 7, 16])
async def test_chunks_give_the_bits_of_one_prompt(window: int, chunk: int) -> None:
    await check_chunks(window, total=275, first=240, chunk=chunk)


def truncated(case: Paged, length: int, freed: int) -> Paged:
    """The one sequence of `case` when it held `length` keys, its pages before `freed` gone."""
    part = Paged(case.shape, [Held(length, freed)])
    kept = freed // case.shape.page_tokens * case.shape.page_tokens
    k, v = case.keys[0]
    at = reference.kv_positions(part.table, 0, case.shape.page_tokens)
    part.pages = reference.set_kv(part.pages, at, k[kept:length], v[kept:length], case.shape)
    return part
