"""Runs that change their dtype, against their twin, bit for bit; rounding as `append_kv` rounds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.paged import NAN_WORD
from tests.support import device, random, read_array
from webkv.kernels import reference
from webkv.kernels.convert import convert_runs
from webkv.kernels.reference.pages import PAGE_DTYPES, quantize
from webkv.layout import CONVERTERS

ROW, ROWS = 20, 70


def words(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rows of `dtype` as u32 words; int8 rows with their scales after all of them."""
    if dtype != "int8":
        return values.astype(PAGE_DTYPES[dtype]).ravel().view(np.uint32)
    levels, scales = quantize(values)
    return np.concatenate([levels.astype(np.int8).ravel().view(np.uint32), scales.ravel().view(np.uint32)])


async def converted(src: np.ndarray, dst: np.ndarray, runs: np.ndarray, converter: str) -> np.ndarray:
    """What the kernel makes of `dst`."""
    gpu = await device()
    buffers = [gpu.buffer(array.nbytes, data=array) for array in (src, dst, runs)]
    with gpu.batch() as batch:
        convert_runs(
            batch, src=buffers[0], dst=buffers[1], runs=buffers[2], count=len(runs),
            max_elements=int(runs[:, 2].max()), converter=converter,
        )  # fmt: skip
    return await read_array(gpu, buffers[1], np.uint32, dst.shape)


@pytest.mark.parametrize("converter", CONVERTERS)
async def test_rows_in_any_order_become_what_the_twin_makes(converter: str) -> None:
    source, target = CONVERTERS[converter]
    src = words(random(1, ROWS, ROW), source)
    dst = np.full(len(words(np.zeros((ROWS + 2, ROW), np.float32), target)), NAN_WORD, np.uint32)
    at = np.arange(ROWS)
    moved = np.random.default_rng(2).permutation(ROWS)
    per_word = {"f32": 1, "f16": 2, "int8": 4}
    scale = ROWS * ROW // 4 + at if source == "int8" else (ROWS + 2) * ROW // per_word[target] + moved
    runs = np.stack([ROW * at, ROW * moved, np.full(ROWS, ROW), scale], axis=1).astype(np.uint32)
    made = await converted(src, dst, runs, converter)
    np.testing.assert_array_equal(made, reference.convert_runs(src, dst, runs, converter))


async def test_runs_of_different_lengths() -> None:
    src, dst = random(3, 1000).view(np.uint32), np.full(600, NAN_WORD, np.uint32)
    runs = np.array([[0, 4, 500, 0], [600, 800, 4, 0], [700, 900, 0, 0], [704, 520, 260, 0]], np.uint32)
    made = await converted(src, dst, runs, "f32_to_f16")
    np.testing.assert_array_equal(made, reference.convert_runs(src, dst, runs, "f32_to_f16"))


async def test_int8_scales_are_quotients_rounded_to_nearest_at_every_magnitude() -> None:
    rng = np.random.default_rng(4)
    rows = np.ldexp(rng.random((500, 16)), rng.integers(-130, 128, (500, 1))).astype(np.float32)
    rows[:4] = np.array([[0], [2.0**-120], [2.0**-119], [127]])
    src = rows.ravel().view(np.uint32)
    dst = np.full(len(words(rows, "int8")), NAN_WORD, np.uint32)
    at = np.arange(len(rows))
    runs = np.stack([16 * at, 16 * at, np.full(len(rows), 16), len(dst) - len(rows) + at], axis=1)
    made = await converted(src, dst, runs.astype(np.uint32), "f32_to_int8")
    np.testing.assert_array_equal(made, words(rows, "int8"))


async def test_every_f16_becomes_the_f32_of_the_same_value_and_comes_back() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    runs = np.array([[0, 0, len(halves), 0]], np.uint32)
    wide = await converted(halves.view(np.uint32), np.zeros(len(halves), np.uint32), runs, "f16_to_f32")
    np.testing.assert_array_equal(wide, halves.astype(np.float32).view(np.uint32))
    back = await converted(wide, np.zeros(len(halves) // 2, np.uint32), runs, "f32_to_f16")
    np.testing.assert_array_equal(back, halves.view(np.uint32))


async def test_halfway_values_round_to_even_and_large_ones_saturate() -> None:
    ties = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519, 1e9, -1e9, 2**-25, 3 * 2**-25, -(2**-25)], np.float32)
    runs = np.array([[0, 0, 8, 0]], np.uint32)
    made = await converted(ties.view(np.uint32), np.zeros(4, np.uint32), runs, "f32_to_f16")
    want = [1, 1 + 2**-9, 65504, 65504, -65504, 0, 2**-23, -0.0]
    np.testing.assert_array_equal(made, np.array(want, np.float16).view(np.uint32))


async def test_an_int8_row_of_zeros_has_scale_zero() -> None:
    runs = np.array([[0, 0, 4, 1]], np.uint32)
    made = await converted(np.zeros(4, np.uint32), np.full(2, NAN_WORD, np.uint32), runs, "f32_to_int8")
    np.testing.assert_array_equal(made, [0, 0])


async def test_runs_out_of_range_are_left_alone() -> None:
    runs = np.array([[4, 0, 8, 0], [0, 4, 8, 0]], np.uint32)
    dst = np.full(4, NAN_WORD, np.uint32)
    made = await converted(np.zeros(8, np.uint32), dst, runs, "f32_to_f16")
    np.testing.assert_array_equal(made, dst)
