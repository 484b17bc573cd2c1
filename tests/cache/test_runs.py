"""Tables of runs against the layout room's own planner and copier, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import examples
from webkv.cache.runs import PageIds, RunTable, SequencePlan, joined
from webkv.kernels import reference
from webkv.layout import CONVERTERS, DTYPE_BYTES, Held, PageLayout, copy_bytes, kv, plan, share

LENGTH = 41


def draw_ranks(data: st.DataObject, dtype: str) -> list[tuple[PageLayout, Held]]:
    """Three heads over one or two ranks, in any declared layout."""
    ranks = data.draw(st.integers(1, 2))
    sizes: dict[str, Any] = {
        "page_tokens": data.draw(st.sampled_from([1, 3, 4, 8])),
        "dim": 4,
        "dtype": dtype,
        "order": data.draw(st.sampled_from(["head_major", "token_major"])),
        "packing": data.draw(st.sampled_from(["slot", "planes", "packed"])),
    }
    spans = [share(3, ranks, rank) for rank in range(ranks)]
    return [(kv(heads=len(span), **sizes), Held({"head": span.start})) for span in spans]


def placed(data: st.DataObject, layout: PageLayout) -> PageIds:
    """Pages of the whole sequence in any places."""
    pages = -(-LENGTH // layout.page_tokens)
    return PageIds(0, np.array(data.draw(st.permutations(range(pages + 2)))[:pages]))


def random_pools(layout: PageLayout, seed: int) -> list[np.ndarray]:
    """Random bytes for each pool, as u32 words."""
    rng, pages = np.random.default_rng(seed), -(-LENGTH // layout.page_tokens) + 2
    return [rng.integers(0, 2**32, pages * size // 4, np.uint32) for size in layout.slot_bytes]


def in_order(pools: list[np.ndarray], layout: PageLayout, pages: PageIds) -> list[bytes]:
    """The pools' pages in the sequence's order."""
    return [
        pool.reshape(-1, size // 4)[pages.ids].tobytes()
        for pool, size in zip(pools, layout.slot_bytes, strict=True)
    ]


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data(), dtype=st.sampled_from(["f16", "int8"]), start=st.integers(0, LENGTH))
def test_tables_copy_what_the_plan_copies(data: st.DataObject, dtype: str, start: int) -> None:
    src = draw_ranks(data, dtype)
    dst = data.draw(st.sampled_from(draw_ranks(data, dtype)))
    src_pages = [placed(data, layout) for layout, _ in src]
    dst_pages = placed(data, dst[0])
    sources = [random_pools(layout, rank) for rank, (layout, _) in enumerate(src)]
    target = random_pools(dst[0], 9)
    expected = [bytearray(pool) for pool in in_order(target, dst[0], dst_pages)]
    ordered = [in_order(p, h[0], ids) for p, h, ids in zip(sources, src, src_pages, strict=True)]
    runs = plan(src, [dst], (start, LENGTH))
    copy_bytes(runs, [layout for layout, _ in src], ordered, [dst[0]], [expected])
    tables = SequencePlan.of(src, dst, range(start, LENGTH), ()).tables(src_pages, dst_pages)
    for merge in (False, True):
        made = [pool.copy() for pool in target]
        for table in tables:
            rows = joined(table.rows) if merge else table.rows
            pool = sources[table.ends.src_rank][table.ends.src_pool]
            made[table.ends.dst_pool] = reference.copy_runs(pool, made[table.ends.dst_pool], rows)
        assert in_order(made, dst[0], dst_pages) == [bytes(pool) for pool in expected]


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data(), converter=st.sampled_from(sorted(CONVERTERS)), start=st.integers(0, LENGTH))
def test_tables_convert_what_the_plan_converts(data: st.DataObject, converter: str, start: int) -> None:
    source, target = CONVERTERS[converter]
    src, dst = draw_ranks(data, source), draw_ranks(data, target)[0]
    pages = [PageIds(0, np.arange(LENGTH)) for _ in src]
    tables = SequencePlan.of(src, dst, range(start, LENGTH), [converter]).tables(pages, pages[0])
    expected = set()
    for run in plan(src, [dst], (start, LENGTH), converters=[converter]):
        base = run.src_page * src[run.src_rank][0].slot_bytes[run.src_pool]
        to = run.dst_page * dst[0].slot_bytes[run.dst_pool]
        scale = ((to if target == "int8" else base) + run.scale_offset) // 4 if run.scale_pool >= 0 else 0
        start_element = (base + run.src_offset) // DTYPE_BYTES[source]
        to_element, count = ((n // DTYPE_BYTES[target]) for n in (to + run.dst_offset, run.nbytes))
        expected.add((run.ends, start_element, to_element, count, scale))
    found = [(table.ends, *map(int, row)) for table in tables for row in table.rows]
    assert {table.converter for table in tables} <= {converter}
    assert len(found) == len(expected) and set(found) == expected


def table_of(tokens: range, first: int, src_ids: list[int]) -> RunTable:
    """Pages of 4 tokens of one head of dim 4 (8 + 8 words a page in f16) to pages of 8 tokens."""
    small, large = (kv(page_tokens=size, heads=1, dim=4) for size in (4, 8))
    made = SequencePlan.of([(small, Held())], (large, Held()), tokens, ())
    (table,) = made.tables([PageIds(first, np.array(src_ids))], PageIds(first // 2, np.array([5, 1])))
    return table


def test_pages_are_counted_from_the_first_one_held() -> None:
    rows = table_of(range(12, 18), 3, [7, 0]).rows.tolist()
    assert sorted(rows) == [[0, 32, 4], [8, 48, 4], [112, 168, 8], [120, 184, 8]]


def test_runs_that_continue_each_other_are_one() -> None:
    rows = np.array([[8, 4, 4], [0, 0, 1], [1, 1, 3], [4, 12, 2]], np.uint32)
    assert joined(rows).tolist() == [[0, 0, 4], [8, 4, 4], [4, 12, 2]]
