"""Attention with quad operations: the same tests of truth and of bits as the portable variant's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import pytest

from tests import support
from tests.kernels import test_attention_append as append
from tests.kernels import test_attention_decode as decode
from tests.kernels import test_attention_prefill as prefill
from tests.kernels.paged import Held, Paged, rope_table, shape_of
from tests.support import featured_device
from webkv.gpu import Device, open_device
from webkv.kernels.matmul import FEATURES
from webkv.kernels.variants import prefill_share, uses_quads


@pytest.fixture(autouse=True)
def quads(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The shared device is one with quad operations while a test runs."""
    if not uses_quads(featured_device(), shape_of()):
        pytest.skip("the adapter is no CPU, or has no subgroup operations")
    monkeypatch.setattr(support, "_device", featured_device())
    return featured_device()


async def test_the_variant_is_chosen_from_facts_and_shape(quads: Device) -> None:
    fitting = [dim for dim in (12, 80, 96, 256, 288) if uses_quads(quads, shape_of(dim=dim))]
    assert fitting == [96, 256]
    assert not uses_quads(quads, shape_of(page_tokens=3))
    assert not uses_quads(await open_device(), shape_of())


SHAPES = {
    "smollm f32": shape_of(9, 3, 64),
    "smollm int8": shape_of(9, 3, 64, dtype="int8"),
    "one head of 256": shape_of(4, 1, 256, dtype="f16"),
    "group of 14 in two parts": shape_of(14, 1, 64, dtype="f16"),
    "narrower values": shape_of(4, 2, 96, v_dim=64),
    "page of 4 token-major": shape_of(4, 2, 64, page_tokens=4, order="token_major", dtype="f16"),
    "packed int8": shape_of(4, 2, 64, packing="packed", dtype="int8"),
    "softcap": shape_of(4, 2, 64, softcap=2.0),
}
HELD = [Held(1), Held(300), Held(0), Held(15), Held(600)]


@pytest.mark.parametrize("name", SHAPES)
async def test_decode_shapes(name: str) -> None:
    await decode.check(Paged(SHAPES[name], HELD))


@pytest.mark.parametrize("name", ["smollm f32", "smollm int8", "narrower values", "softcap"])
async def test_prefill_shapes(name: str) -> None:
    await prefill.check(Paged(SHAPES[name], [Held(1), Held(300), Held(40), Held(15)]), [1, 13, 40, 7])


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_decode_that_appends(dtype: str, quads: Device) -> None:
    await append.check(append.rotated(9, 3, 64, dtype=dtype), append.HELD)
    if "shader-int64" in quads.facts.features:
        support._device = await open_device(features=["subgroup"])
        await append.check(append.rotated(9, 3, 64, dtype=dtype), append.HELD)


async def test_decode_that_appends_in_parts_of_a_group_and_with_windows_and_sinks() -> None:
    await append.check(append.rotated(14, 1, 96, v_dim=64, rotary_dim=24, dtype="f16"), append.HELD)
    await append.test_windows_and_sinks()


async def test_windows_sinks_trees_and_inline_rope() -> None:
    await decode.check(Paged(shape_of(window=17), [Held(n) for n in (1, 17, 18, 600)]))
    await decode.check(Paged(shape_of(), [Held(40, sink=3, offset=47), Held(300, sink=20, offset=31)]))
    await prefill.check(Paged(shape_of(window=17), [Held(70), Held(600)]), [70, 20])
    await prefill.check(
        Paged(shape_of(), [Held(40, sink=4, offset=13), Held(300, sink=20, offset=31)]), [3, 20]
    )
    inline = shape_of(rope="inline", rotary_dim=32)
    case = Paged(inline, [Held(30), Held(290, sink=4, offset=13)])
    await prefill.check(case, [30, 5], lse=False, rope_full=rope_table(290, 32))
    parents = [[-1, 0, 0, 1, 2, 2, -1], [], [-1, 0, 1, 1, 3]]
    await prefill.check(
        Paged(shape_of(), [Held(20), Held(40), Held(258)]),
        [7, 3, 2],
        lse=False,
        tree=prefill.tree_of(parents),
    )


@pytest.mark.parametrize(
    "test",
    [
        decode.test_no_keys_give_zero_and_the_lowest_lse,
        prefill.test_every_key_without_causality,
    ],
)
async def test_as_the_portable_variant(test: Callable[[], Awaitable[None]]) -> None:
    await test()


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_a_row_alone_equals_the_row_in_a_batch(dtype: str) -> None:
    await decode.test_a_row_alone_equals_the_row_in_a_batch(dtype)
    await prefill.test_a_row_alone_equals_the_row_in_a_batch(dtype)


@pytest.mark.parametrize("freed", [16, 240, 512])
async def test_pages_freed_behind_the_window_change_no_bit(freed: int) -> None:
    shape = shape_of(window=100)
    q = Paged(shape, [Held(620)]).queries(1)
    whole, whole_lse = await decode.decode(Paged(shape, [Held(620)]), q)
    cut, cut_lse = await decode.decode(Paged(shape, [Held(620, freed=freed)]), q)
    assert cut.tobytes() == whole.tobytes()
    assert cut_lse.tobytes() == whole_lse.tobytes()


@pytest.mark.parametrize("window", [0, 17])
@pytest.mark.parametrize("chunk", [1, 7, 16])
async def test_chunks_give_the_bits_of_one_prompt(window: int, chunk: int) -> None:
    await prefill.test_chunks_give_the_bits_of_one_prompt(window, chunk)


async def test_both_variants_agree() -> None:
    case = Paged(shape_of(9, 3, 64, dtype="f16"), HELD)
    q = case.queries(len(HELD))
    quads = await decode.decode(case, q)
    support._device = await open_device()
    portable = await decode.decode(case, q)
    for a, b in zip(quads, portable, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_pages_in_64_bit_words_give_the_same_bits(dtype: str, quads: Device) -> None:
    if "shader-int64" not in quads.facts.features:
        pytest.skip("the adapter has no 64-bit words")
    case = Paged(shape_of(9, 3, 64, dtype=dtype), HELD)
    q = case.queries(len(HELD))
    words = await decode.decode(case, q)
    support._device = await open_device(features=["subgroup"])
    assert uses_quads(support._device, case.shape)
    for a, b in zip(words, await decode.decode(case, q), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dim", [64, 128, 256])
async def test_one_quad_or_two_for_a_slot_agree(dim: int, quads: Device) -> None:
    case = Paged(shape_of(8, 2, dim, dtype="f16"), HELD)
    if prefill_share(quads, case.shape) != 8:
        pytest.skip("the adapter's subgroups are no pairs of quads")
    q = case.queries(len(HELD))
    rows = [1, 13, 0, 7, 20]
    several = case.queries(sum(rows))
    here = [await decode.decode(case, q), await prefill.prefill(case, several, rows)]
    device = support._device = await open_device(features=FEATURES)
    device.facts = replace(device.facts, name="another CPU")
    assert prefill_share(device, case.shape) == 4
    there = [await decode.decode(case, q), await prefill.prefill(case, several, rows)]
    for a, b in zip(sum(here, ()), sum(there, ()), strict=True):
        np.testing.assert_allclose(a, b, atol=4e-6, rtol=1e-5)


async def test_workgroups_of_one_quad_as_on_swiftshader_agree() -> None:
    case = Paged(shape_of(9, 3, 64), HELD)
    q = case.queries(len(HELD))
    here = await decode.decode(case, q)
    device = support._device = await open_device(features=["subgroup"])
    device.facts = replace(device.facts, name="SwiftShader")
    for a, b in zip(here, await decode.decode(case, q), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5)
