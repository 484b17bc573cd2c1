"""Every view of a step's arrays, read back from the GPU, over both managers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cache.books import manager
from tests.cache.harness import config, group
from tests.support import device
from webkv.cache import RopeConfig
from webkv.cache.aux_data import ALIGNMENT, MANAGERS, StepViews
from webkv.cache.step import Step, begin_step, end_step
from webkv.gpu import Device, Slice

GROUPS = (
    group(), group("local", (1,), window=20, rope=RopeConfig(theta=1e6)), group("tiny", (2,), window=3)
)  # fmt: skip
both = pytest.mark.parametrize("aux", sorted(MANAGERS))


async def read(gpu: Device, binding: Any, like: np.ndarray) -> np.ndarray:
    buffer, offset = (binding.buffer, binding.offset) if isinstance(binding, Slice) else (binding, 0)
    assert offset % ALIGNMENT == 0 and like.nbytes <= binding.size
    return np.frombuffer(await gpu.read(buffer, offset, like.nbytes), like.dtype).reshape(like.shape)


async def assert_on_gpu(gpu: Device, step: Step, views: StepViews) -> None:
    numbers = np.array([step.rows, len(step.sequences), 0, 0], np.uint32)
    assert np.array_equal(await read(gpu, views.numbers, numbers), numbers)
    assert np.array_equal(await read(gpu, views.qo_indptr, step.qo_indptr), step.qo_indptr)
    if step.tree is not None:
        assert np.array_equal(await read(gpu, views.tree, step.tree), step.tree)
    for arrays, view in zip(step.groups, views.groups, strict=True):
        pairs = [
            (view.table.length_info, arrays.length_info),
            (view.append_position_map, arrays.append_position_map),
        ]
        if arrays.rope_table is not None:
            pairs.append((view.rope_table, arrays.rope_table))
        for binding, array in pairs:
            assert np.array_equal(await read(gpu, binding, array), array)
        indptr = await read(gpu, view.table.page_indptr, arrays.page_indptr)
        assert np.array_equal(indptr - indptr[0], arrays.page_indptr)
        listed = await read(gpu, view.table.page_indices, np.zeros(indptr[-1], np.int32))
        assert np.array_equal(listed[indptr[0] :], arrays.page_indices)


@both
async def test_no_group_overwrites_anothers_tables_over_repeated_steps(aux: str) -> None:
    gpu = await device()
    made = manager(*GROUPS)
    writer = MANAGERS[aux](gpu, made.config)
    for seq in range(3):
        made.add(seq)
    batches = [([0, 1], [70, 20]), ([2], [33]), *[([2, 0, 1], [1, 1, 1])] * 20, ([1, 2], [40, 3])]
    for ids, lengths in batches:
        step = begin_step(made, ids, lengths, None)
        await assert_on_gpu(gpu, step, writer.write(step))
        end_step(made, step)


@both
async def test_trees_arrive(aux: str) -> None:
    gpu = await device()
    made = manager()
    writer = MANAGERS[aux](gpu, made.config)
    made.add(0)
    made.add(1)
    for parents in ([-1, 0, 0, -1], [0, 1, 4, 0]):
        step = begin_step(made, [0, 1], [3, 1], parents)
        await assert_on_gpu(gpu, step, writer.write(step))


@both
async def test_the_largest_step_fits(aux: str) -> None:
    gpu = await device()
    made = manager(*GROUPS, max_total_len=320, reserved_num_seqs=4)
    writer = MANAGERS[aux](gpu, made.config)
    made.add(0)
    for length in (96, 96, 63):
        step = begin_step(made, [0], [length], None)
        await assert_on_gpu(gpu, step, writer.write(step))
        end_step(made, step)
    for child in (1, 2, 3):
        made.fork(0, child, 240)
    step = begin_step(made, [0], [1], None)
    end_step(made, step)
    # Four tables of all pages each: more entries than there are pages.
    step = begin_step(made, [0, 1], [1, 1], None)
    await assert_on_gpu(gpu, step, writer.write(step))


@pytest.mark.parametrize(("aux", "writes"), [("cached", 1), ("plain", 9)])
async def test_cached_writes_once_and_plain_only_what_changed(
    aux: str, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = await device()
    made = manager(*GROUPS)
    writer = MANAGERS[aux](gpu, made.config)
    made.add(0)
    for length in (40, 1):
        step = begin_step(made, [0], [length], None)
        writer.write(step)
        end_step(made, step)
    counted = []
    monkeypatch.setattr(gpu, "write", lambda *write: counted.append(write))
    writer.write(begin_step(made, [0], [1], None))
    # Plain: length_info, append_position_map and rope_table of three groups; page lists are as before.
    assert len(counted) == writes


async def test_a_sliding_groups_buffers_exist_only_with_a_sliding_group() -> None:
    gpu = await device()
    counts = []
    for groups in ((group(),), GROUPS):
        before = gpu.created.buffers
        MANAGERS["plain"](gpu, config(*groups))
        counts.append(gpu.created.buffers - before)
    assert counts == [3 + 5, 3 + 3 * 5]
