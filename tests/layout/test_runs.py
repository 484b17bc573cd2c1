from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layout.oracle import labels, moves
from tests.support import examples
from webkv.errors import LayoutError
from webkv.layout import (
    BufferPair,
    Held,
    PageLayout,
    Run,
    Section,
    copy_bytes,
    kv,
    merged,
    plan,
    share,
    state,
    word_runs,
)

SIZES: dict[str, Any] = {"page_tokens": 2, "heads": 2, "dim": 4}
F16, F32, INT8 = (kv(dtype=dtype, **SIZES) for dtype in ("f16", "f32", "int8"))


def converted(src: Any, dst: Any, name: str) -> tuple[Run, ...]:
    return plan([(src, Held())], [(dst, Held())], (0, 2), converters=[name])


def test_f16_to_f32_keeps_long_runs() -> None:
    (run,) = converted(F16, F32, "f16_to_f32")
    assert (run.nbytes, run.src_nbytes, run.converter, run.scale_pool) == (128, 64, "f16_to_f32", -1)


@pytest.mark.parametrize(("dtype", "row"), [("f16", 8), ("f32", 16)])
def test_int8_rows_carry_the_place_of_their_scale(dtype: str, row: int) -> None:
    plain = kv(dtype=dtype, **SIZES)
    to_int8 = converted(plain, INT8, f"{dtype}_to_int8")
    places = [(run.dst_offset, run.src_offset, run.scale_offset) for run in to_int8]
    assert places == [(4 * at, row * at, 32 + 4 * at) for at in range(8)]
    assert {(run.nbytes, run.src_nbytes) for run in to_int8} == {(4, row)}
    back = converted(INT8, plain, f"int8_to_{dtype}")
    assert [(run.src_offset, run.dst_offset, run.scale_offset) for run in back] == places


def test_scales_follow_their_rows_through_another_order() -> None:
    turned = kv(dtype="int8", order="token_major", **SIZES)
    runs = converted(F16, turned, "f16_to_int8")
    keys = [
        (run.src_offset // 8, run.dst_offset // 4, run.scale_offset - 32)
        for run in runs
        if run.src_offset < 32
    ]
    assert keys == [(0, 0, 0), (2, 1, 4), (1, 2, 8), (3, 3, 12)]


def test_int8_to_int8_copies_scales_as_bytes() -> None:
    (run,) = plan([(INT8, Held())], [(INT8, Held())], (0, 2))
    assert (run.nbytes, run.converter) == (64, "")


def test_a_converter_must_be_named_and_fit() -> None:
    with pytest.raises(LayoutError, match="dtype differs"):
        converted(F16, INT8, "f16_to_f32")
    with pytest.raises(LayoutError, match="converters: found 'f16_to_bf16', expected one of f32_to_f16"):
        converted(F16, F32, "f16_to_bf16")


def test_quantizing_needs_declared_scales() -> None:
    bare = replace(INT8, tensors=INT8.tensors[:2])
    with pytest.raises(LayoutError, match="key_scale"):
        converted(F16, bare, "f16_to_int8")
    with pytest.raises(LayoutError, match="key_scale"):
        converted(bare, F16, "int8_to_f16")


def test_split_int8_rows_are_refused() -> None:
    half = kv(dtype="f16", page_tokens=2, heads=2, dim=2)
    sources = [(half, Held()), (half, Held({"dim": 2}))]
    with pytest.raises(LayoutError, match=r"\(0, key\) dim"):
        plan(sources, [(INT8, Held())], (0, 2), converters=["f16_to_int8"])


ORDERS, PACKINGS = (
    st.sampled_from(["head_major", "token_major"]),
    st.sampled_from(["slot", "planes", "packed"]),
)


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data(), to_int8=st.booleans(), heads=st.integers(1, 4))
def test_every_int8_row_is_converted_with_its_own_scale(
    data: st.DataObject, to_int8: bool, heads: int
) -> None:
    def ranks(dtype: str) -> list[tuple[PageLayout, Held]]:
        shares = [share(heads, n, rank) for n in [data.draw(st.integers(1, 3))] for rank in range(n)]
        page, order, packing = data.draw(st.sampled_from([1, 2, 4])), data.draw(ORDERS), data.draw(PACKINGS)
        sizes: dict[str, Any] = {
            "page_tokens": page,
            "dim": 4,
            "dtype": dtype,
            "order": order,
            "packing": packing,
        }
        return [(kv(heads=len(part), **sizes), Held({"head": part.start})) for part in shares]

    plain, int8 = ranks("f32"), ranks("int8")
    src, dst, name = (plain, int8, "f32_to_int8") if to_int8 else (int8, plain, "int8_to_f32")
    src_labels, dst_labels = (
        {place: label for rank, h in enumerate(side) for place, label in labels(rank, *h, range(5))}
        for side in (src, dst)
    )
    written = []
    for run in plan(src, dst, (0, 5), converters=[name]):
        to, of = (run.dst_rank, run.dst_pool, run.dst_page), (run.src_rank, run.src_pool, run.src_page)
        row = [dst_labels[*to, run.dst_offset + at] for at in range(run.nbytes)]
        source = [src_labels[*of, run.src_offset + at] for at in range(run.src_nbytes)]
        side = (run.dst_rank, run.dst_page) if to_int8 else (run.src_rank, run.src_page)
        known = dst_labels if to_int8 else src_labels
        scale = [known[side[0], run.scale_pool, side[1], run.scale_offset + at] for at in range(4)]
        # A label is ((layer, role, part), token, ((axis, index), ...), byte), axes by name: dim before head.
        assert {(key, token, index[1]) for key, token, index, _ in row + source} == {
            ((0, key[1].removesuffix("_scale"), 0), token, index[0]) for key, token, index, _ in scale
        }
        assert len({index[0] for _, _, index, _ in row}) == 4
        written += row + (scale if to_int8 else [])
    assert sorted(written) == sorted(dst_labels.values())


def run(dst: int, src: int, nbytes: int, **other: Any) -> Run:
    return replace(Run(0, 0, 0, dst, 0, 0, 0, src, nbytes), **other)


@pytest.mark.parametrize(
    "other",
    [
        {"src_offset": 12},
        {"dst_offset": 12},
        {"src_page": 1},
        {"dst_page": 1},
        {"src_rank": 1},
        {"dst_rank": 1},
        {"src_pool": 1},
        {"dst_pool": 1},
        {"converter": "f32_to_f16"},
    ],
)
def test_only_neighbours_in_one_page_pair_are_joined(other: dict[str, Any]) -> None:
    first, second = run(0, 0, 8), run(8, 8, 8)
    assert merged([second, first]) == (run(0, 0, 16),)
    assert len(merged([first, replace(second, **other)])) == 2


def test_words_use_page_ids_and_join_across_neighbouring_pages() -> None:
    runs = plan([(F16, Held())], [(F16, Held())], (0, 6))
    assert F16.slot_bytes == (64,)
    copies = word_runs(runs, [F16], [F16], src_pages=[7, 8, 2], dst_pages=[3, 4, 5])
    assert copies == {BufferPair(0, 0, 0, 0): [(112, 48, 32), (32, 80, 16)]}


def test_words_are_listed_by_buffer_pair() -> None:
    planes = kv(packing="planes", **SIZES)
    copies = word_runs(plan([(F16, Held())], [(planes, Held())], (0, 2)), [F16], [planes])
    assert copies == {BufferPair(0, 0, 0, 0): [(0, 0, 8)], BufferPair(0, 0, 0, 1): [(8, 0, 8)]}


def test_an_odd_run_is_refused_by_name() -> None:
    whole, part = (state(Section("conv", (("chan", n), ("tap", 3)))) for n in (4, 2))
    runs = plan([(whole, Held())], [(part, Held({"chan": 1}))])
    with pytest.raises(LayoutError, match="run to rank 0, pool 0, page 0, offset 0: src_offset: found 6"):
        word_runs(runs, [whole], [part])


def test_a_run_that_converts_has_no_words() -> None:
    with pytest.raises(LayoutError, match="found converter f16_to_f32"):
        word_runs(converted(F16, F32, "f16_to_f32"), [F16], [F32])


def test_too_few_page_ids_are_refused() -> None:
    runs = plan([(F16, Held())], [(F16, Held())], (0, 6))
    with pytest.raises(LayoutError, match="src_pages: found 2, expected more than 2 page ids"):
        word_runs(runs, [F16], [F16], src_pages=[0, 1])


def test_copies_follow_the_runs_byte_by_byte() -> None:
    turned = kv(order="token_major", **SIZES)
    runs = plan([(F16, Held())], [(turned, Held())], (0, 3))
    source, target = bytes(range(128)), bytearray(128)
    copy_bytes(runs, [F16], [[source]], [turned], [[target]])
    wanted = bytearray(128)
    for (_, _, page, at), (_, _, src_page, src_at) in moves(runs).items():
        wanted[64 * page + at] = source[64 * src_page + src_at]
    assert target == wanted


def test_a_copy_that_does_not_fit_writes_nothing() -> None:
    runs = plan([(F16, Held())], [(F16, Held())], (0, 4))
    target = bytearray(64)
    with pytest.raises(LayoutError, match="dst bytes: found 64, expected at least 128"):
        copy_bytes(runs, [F16], [[bytes([1]) * 128]], [F16], [[target]])
    assert target == bytes(64)


def test_a_copy_that_converts_is_refused() -> None:
    with pytest.raises(LayoutError, match="found converter f16_to_f32"):
        copy_bytes(converted(F16, F32, "f16_to_f32"), [F16], [[bytes(64)]], [F32], [[bytearray(128)]])
