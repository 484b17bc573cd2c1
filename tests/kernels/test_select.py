"""argmax and top_k against their twins: ties, NaN, ragged sizes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import device, random, read_array
from webkv.kernels import reference, select

NAN = np.float32(np.nan)
INF = np.float32(np.inf)


async def run_argmax(logits: np.ndarray) -> list[int]:
    gpu = await device()
    rows, vocab = logits.shape
    blocks = gpu.buffer(select.blocks_bytes(rows, vocab))
    ids = gpu.buffer(rows * 4)
    with gpu.batch() as batch:
        select.argmax(
            batch,
            logits=gpu.buffer(logits.nbytes, data=logits),
            blocks=blocks,
            ids=ids,
            rows=rows,
            vocab=vocab,
        )
    return (await read_array(gpu, ids, np.uint32, (rows,))).tolist()


async def run_top_k(logits: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    gpu = await device()
    rows, vocab = logits.shape
    blocks = gpu.buffer(select.blocks_bytes(rows, vocab))
    picked = gpu.buffer(select.picked_bytes(rows, k))
    with gpu.batch() as batch:
        select.top_k(
            batch, logits=gpu.buffer(logits.nbytes, data=logits), blocks=blocks, picked=picked, rows=rows,
            vocab=vocab, k=k,
        )  # fmt: skip
    words = await read_array(gpu, picked, np.uint32, (rows, 1 + 2 * k))
    return words[:, 1 : 1 + k], words[:, 1 + k :].view(np.float32), words[:, 0].view(np.float32)


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 4097, 49152])
async def test_argmax_of_ragged_sizes(vocab: int) -> None:
    logits = random(vocab, 3, vocab)
    assert await run_argmax(logits) == reference.argmax(logits).tolist()


async def test_argmax_takes_the_lowest_of_equals_and_no_nan() -> None:
    logits = np.full((5, 300), -1, np.float32)
    logits[0, [299, 70, 71]] = 2  # equal in two blocks
    logits[1, 17] = NAN
    logits[1, 200] = 0
    logits[2, :] = NAN
    logits[3, :] = -INF
    logits[4, 100], logits[4, 99] = np.float32(0.0), np.float32(-0.0)  # zeros are equal
    assert await run_argmax(logits) == [70, 200, 0, 0, 99]


@pytest.mark.parametrize(("vocab", "k"), [(5, 5), (299, 64), (4096, 64), (20000, 256), (49152, 1)])
async def test_top_k_is_sorted_and_complete(vocab: int, k: int) -> None:
    logits = random(vocab, 2, vocab) * 5
    ids, values, lse = await run_top_k(logits, k)
    want_ids, want_values, want_lse = reference.top_k(logits, k)
    assert (ids == want_ids).all() and (values == want_values.astype(np.float32)).all()
    assert np.allclose(lse, want_lse, atol=1e-4)


@pytest.mark.parametrize("levels", [1, 2, 40])
async def test_top_k_of_many_equal_logits_takes_the_lowest_ids(levels: int) -> None:
    logits = np.random.default_rng(levels).integers(0, levels, (1, 9000)).astype(np.float32)
    ids, values, _ = await run_top_k(logits, 200)
    want_ids, want_values, _ = reference.top_k(logits, 200)
    assert (ids == want_ids).all() and (values == want_values).all()


async def test_top_k_ranks_nan_and_minus_infinity_last() -> None:
    logits = random(3, 2, 500)
    logits[0, ::2] = NAN
    logits[0, 1::4] = -INF
    logits[1, :] = NAN
    ids, values, lse = await run_top_k(logits, 130)
    finite = np.flatnonzero(np.isfinite(logits[0]))
    assert sorted(ids[0, : len(finite)].tolist()) == finite.tolist()
    assert np.isneginf(values[0, len(finite) :]).all()
    assert np.isclose(lse[0], np.log(np.exp(logits[0, finite].astype(np.float64)).sum()), atol=1e-4)
    assert np.isneginf(lse[1]) and np.isneginf(values[1]).all()


async def test_a_row_of_logits_does_not_depend_on_its_neighbours() -> None:
    logits = random(8, 3, 5000)
    together = await run_top_k(logits, 64)
    alone = await run_top_k(logits[1:2], 64)
    assert all(a[1].tobytes() == b[0].tobytes() for a, b in zip(together, alone, strict=True))
