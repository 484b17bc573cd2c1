from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layout.oracle import expected, labels, moves
from tests.support import examples
from webkv.errors import LayoutError
from webkv.layout import (
    Axis,
    Held,
    PageLayout,
    Run,
    Section,
    Tensor,
    kv,
    latent,
    plan,
    share,
    state,
    with_replicated,
)

CASES = json.loads((Path(__file__).parents[1] / "golden/page_layout_cases.json").read_text())["cases"]

Holders = list[tuple[PageLayout, Held]]


def holder(data: dict[str, Any]) -> tuple[PageLayout, Held]:
    """A case's rank: its axes are [name, first, count, stride], its pools named."""
    pools = [name for name, _ in data["pools"]]
    tensors = []
    held: dict[tuple[int, str, int], dict[str, int]] = {}
    for t in data["tensors"]:
        axes = tuple(Axis(name, count, stride) for name, _, count, stride in t["axes"])
        pool = pools.index(t["pool"])
        tensors.append(Tensor(t["layer"], t["role"], t["part"], pool, t["offset"], t["dtype"], axes))
        held[tensors[-1].key] = {name: first for name, first, _, _ in t["axes"] if name != "token"}
    kind = "attention" if data["page_tokens"] else "state"
    sizes = tuple(size for _, size in data["pools"])
    return PageLayout(data["page_tokens"], sizes, tuple(tensors), kind), Held(tensors=held)


def listed(runs: Sequence[Run], case: dict[str, Any]) -> list[list[object]]:
    return [
        [
            run.dst_rank,
            case["dst"][run.dst_rank]["pools"][run.dst_pool][0],
            run.dst_page,
            run.dst_offset,
            run.src_rank,
            case["src"][run.src_rank]["pools"][run.src_pool][0],
            run.src_page,
            run.src_offset,
            run.nbytes,
        ]
        for run in runs
    ]


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    src, dst = ([holder(rank) for rank in case[side]] for side in ("src", "dst"))
    runs = listed(plan(src, dst, tuple(case["tokens"])), case)
    assert len(runs) == case["num_runs"]
    assert sum(run[-1] for run in runs) == case["bytes"]
    if "runs" in case:
        assert runs == case["runs"]
    else:
        assert runs[: len(case["first_runs"])] == case["first_runs"]
        assert runs[-len(case["last_runs"]) :] == case["last_runs"]
    digest = hashlib.sha256(json.dumps(runs, separators=(",", ":")).encode()).hexdigest()
    assert digest == case["sha256"]


def test_a_split_slot_of_two_layers_follows_the_head_mismatch_arithmetic() -> None:
    """For rank r: layer * (2 * 16384) + kv * 16384 + r * 8192, as TensorRT-LLM computes it."""
    whole = kv(page_tokens=16, heads=8, dim=64, layers=(0, 1))
    half = kv(page_tokens=16, heads=4, dim=64, layers=(0, 1))
    runs = plan([(whole, Held())], [(half, Held({"head": 4 * rank})) for rank in (0, 1)], (0, 16))
    assert [(run.dst_rank, run.src_offset) for run in runs] == [
        (rank, layer * 2 * 16384 + kv_index * 16384 + rank * 8192)
        for rank in (0, 1)
        for layer in (0, 1)
        for kv_index in (0, 1)
    ]


def split(heads: int, ranks: int, **layout: Any) -> Holders:
    shares = [share(heads, ranks, rank) for rank in range(ranks)]
    return [(kv(heads=len(part), **layout), Held({"head": part.start})) for part in shares]


@pytest.mark.parametrize(
    ("total", "holders", "firsts", "count"),
    [
        (8, 4, [0, 2, 4, 6], 2),
        (2, 4, [0, 0, 1, 1], 1),
        (1, 4, [0, 0, 0, 0], 1),
        (6, 4, [0, 1, 3, 4], 2),
        (12, 8, [0, 1, 3, 4, 6, 7, 9, 10], 2),
    ],
)
def test_share(total: int, holders: int, firsts: list[int], count: int) -> None:
    shares = [share(total, holders, holder) for holder in range(holders)]
    assert [part.start for part in shares] == firsts
    assert {len(part) for part in shares} == {count}


def test_there_and_back_over_two_ranks_is_exact() -> None:
    sizes = {"page_tokens": 16, "dim": 4}
    one, two = split(8, 1, **sizes), split(8, 2, **sizes)
    there, back = moves(plan(one, two, (0, 40))), moves(plan(two, one, (0, 40)))
    whole = {place for place, _ in labels(0, *one[0], range(40))}
    assert {place: there[back[place]] for place in back} == {place: place for place in whole}


pages = st.sampled_from([1, 2, 3, 4, 8])
orders = st.sampled_from(["head_major", "token_major"])
packings = st.sampled_from(["slot", "planes", "packed"])


@st.composite
def holders(draw: st.DrawFn, heads: int, dim: int) -> Holders:
    ranks = draw(st.integers(1, 4))
    layers = (2, 5)
    return split(
        heads,
        ranks,
        page_tokens=draw(pages),
        dim=dim,
        dtype="f16",
        order=draw(orders),
        packing=draw(packings),
        layers=draw(st.sampled_from([layers, layers[::-1]])),
        layers_in_slot=draw(st.sampled_from([1, 2])),
    )


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), heads=st.integers(1, 5), dim=st.sampled_from([2, 4]))
def test_random_layouts_agree_with_labelled_bytes(data: st.DataObject, heads: int, dim: int) -> None:
    src, dst = (data.draw(holders(heads, dim)) for _ in range(2))
    start = data.draw(st.integers(0, 9))
    stop = data.draw(st.integers(start, 12))
    runs = plan(src, dst, (start, stop))
    assert moves(runs) == expected(src, dst, range(start, stop))
    assert list(runs) == sorted(runs)
    there_and_back = plan(dst, src, (start, stop))
    forward = moves(runs)
    origin = expected(src, src, range(start, stop))
    assert {place: forward[via] for place, via in moves(there_and_back).items()} == origin


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), heads=st.integers(1, 4))
def test_runs_are_as_long_as_both_sides_allow(data: st.DataObject, heads: int) -> None:
    src, dst = (data.draw(holders(heads, 2)) for _ in range(2))
    runs = plan(src, dst, (0, 8))
    for a, b in pairwise(runs):
        same_pages = (*a.ends, a.dst_page, a.src_page) == (*b.ends, b.dst_page, b.src_page)
        adjacent = (a.dst_offset + a.nbytes, a.src_offset + a.nbytes) == (b.dst_offset, b.src_offset)
        assert not (same_pages and adjacent)


def conv(x: int, b: int, c: int) -> PageLayout:
    return state(*(Section("conv", (("chan", n), ("tap", 3))) for n in (x, b, c)))


def conv_held(x: int, b: int, c: int) -> Held:
    return Held(tensors={(0, "conv", part): {"chan": first} for part, first in enumerate((x, b, c))})


def test_sections_are_split_each_on_its_own() -> None:
    src = [(conv(8, 4, 4), Held())]
    dst = [(conv(4, 2, 2), conv_held(4 * r, 2 * r, 2 * r)) for r in (0, 1)]
    assert moves(plan(src, dst)) == expected(src, dst, range(1))


def test_replicated_tensor_is_written_on_every_rank() -> None:
    src = [(with_replicated(kv(page_tokens=4, heads=2, dim=2), role="index_key", dim=4), Held())]
    half = with_replicated(kv(page_tokens=4, heads=1, dim=2), role="index_key", dim=4)
    dst = [(half, Held({"head": rank})) for rank in (0, 1)]
    done = moves(plan(src, dst, (0, 4)))
    assert done == expected(src, dst, range(4))
    assert [done[rank, 0, 0, 32] for rank in (0, 1)] == [(0, 0, 0, 64)] * 2


WHOLE = kv(page_tokens=16, heads=8, dim=64)


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        (
            [(WHOLE, Held())],
            split(8, 2, page_tokens=16, dim=64, dtype="f32"),
            r"\(0, key\): dtype differs, a named converter is needed: found f16, expected f32",
        ),
        (
            [(WHOLE, Held())],
            [(kv(page_tokens=16, heads=8, dim=64, dtype="bf16"), Held())],
            r"\(0, key\): dtype differs.* found f16, expected bf16",
        ),
        (
            [(WHOLE, Held())],
            [(kv(page_tokens=16, heads=8, dim=64, layers=(0, 1)), Held())],
            r"\(1, key\): no source declares it",
        ),
        (split(8, 2, page_tokens=16, dim=64)[:1], [(WHOLE, Held())], r"\(0, key\): nobody holds head 4"),
        (
            [(kv(page_tokens=16, heads=8, dim=32), Held())],
            [(WHOLE, Held())],
            r"\(0, key\): nobody holds dim 32",
        ),
        (
            [(latent(page_tokens=16, dim=4), Held())],
            [(with_replicated(latent(page_tokens=16, dim=4), role="index_key", dim=4), Held())],
            r"\(0, index_key\): no source declares it",
        ),
        (
            [(state(Section("conv", (("chan", 2), ("tap", 2)))), Held())],
            [(state(Section("conv", (("chan", 2), ("dim", 2)))), Held())],
            r"\(0, conv\) axes: found \['chan', 'tap'\], expected \['chan', 'dim'\]",
        ),
        (
            [(WHOLE, Held({"heads": 4}))],
            [(WHOLE, Held())],
            "held axis: found 'heads', expected one of dim, head",
        ),
        (
            [(WHOLE, Held(tensors={(0, "key", 0): {"chan": 1}}))],
            [(WHOLE, Held())],
            r"held axis of \(0, key\): found 'chan'",
        ),
    ],
    ids=["f32", "bf16", "layer", "head", "dim", "role", "axes", "held axis", "held tensor axis"],
)
def test_plan_refuses(src: Holders, dst: Holders, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        plan(src, dst, (0, 16))


@pytest.mark.parametrize("tokens", [(-1, 2), (3, 2), (0, 1.5)])
def test_token_range_is_checked(tokens: Any) -> None:
    with pytest.raises(LayoutError, match="tokens"):
        plan([(WHOLE, Held())], [(WHOLE, Held())], tokens)
