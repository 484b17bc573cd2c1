"""Prefill over several parts of keys: its truth, and bits that do not depend on how many parts there are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels.paged import Held, Paged, mla_shape, rope_table, shape_of
from tests.kernels.test_attention_prefill import check, check_chunks, check_each_alone, tree_of
from tests.support import cases, set_part


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of one tile."""
    set_part(monkeypatch)


SHAPES = {
    "smollm f32": shape_of(9, 3, 64),
    "smollm int8": shape_of(9, 3, 64, dtype="int8"),
    "one head of 256": shape_of(4, 1, 256, dtype="f16"),
    "page of 3": shape_of(4, 2, 64, page_tokens=3),
    "latent of deepseek": mla_shape(16, 576, 512),
}
HELD = [Held(1), Held(600), Held(256), Held(257), Held(1030)]
ROWS = [1, 13, 40, 7, 20]


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("name", cases(SHAPES, natively=("one head of 256", "latent of deepseek")))
async def test_shapes(name: str) -> None:
    await check(Paged(SHAPES[name], HELD), ROWS)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("shape", [shape_of(window=17), shape_of(window=300)])
async def test_windows(shape: Any) -> None:
    await check(Paged(shape, [Held(70), Held(600, freed=200), Held(1030, freed=512)]), [70, 20, 9])


@pytest.mark.usefixtures("short_parts")
async def test_sinks() -> None:
    await check(Paged(shape_of(), [Held(540, sink=4, offset=13), Held(700, sink=20, offset=31)]), [3, 20])


@pytest.mark.usefixtures("short_parts")
async def test_every_key_without_causality() -> None:
    await check(Paged(shape_of(), [Held(40), Held(0), Held(800)]), [9, 1, 2], causal=False)


@pytest.mark.usefixtures("short_parts")
async def test_rope_inline() -> None:
    shape = shape_of(rope="inline", rotary_dim=32)
    await check(Paged(shape, [Held(30), Held(600)]), [30, 5], lse=False, rope_full=rope_table(600, 32))


@pytest.mark.usefixtures("short_parts")
async def test_token_trees() -> None:
    parents = [[-1, 0, 0, 1, 2, 2, -1], [], [-1, 0, 1, 1, 3]]
    case = Paged(shape_of(), [Held(20), Held(40), Held(514)])
    await check(case, [7, 3, 2], lse=False, tree=tree_of(parents))


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_a_row_alone_equals_the_row_in_a_batch(dtype: str) -> None:
    await check_each_alone(shape_of(9, 3, 64, dtype=dtype), HELD, ROWS)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("window", [0, 17, 300])
async def test_chunks_give_the_bits_of_one_prompt(window: int) -> None:
    await check_chunks(window, total=530, first=480, chunk=7)


@pytest.mark.parametrize("shape", [shape_of(2, 1, 32), shape_of(2, 1, 64, dtype="f16"), shape_of(2, 1, 24)])
async def test_more_keys_than_a_loop_may_have_turns(shape: Any) -> None:
    await check(Paged(shape, [Held(66_000)]), [3])
