"""Sequences to and from other engines' array shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cache.books import snapshot
from tests.cache.harness import config, group
from tests.cache.test_remap import fill, local, poisoned, stored
from tests.support import device
from webkv.cache.exchange import Exported, export_sequence, import_sequence
from webkv.errors import CacheError, LayoutError, WebkvError
from webkv.layout import CONVERTERS
from webkv.layout.formats import CONTRACTS

CONTRACT_NAMES = [name for name in CONTRACTS if name != "tvm_mla"]


@pytest.mark.parametrize("contract", CONTRACT_NAMES)
async def test_a_sequence_goes_to_an_engine_and_back(contract: str) -> None:
    gpu = await device()
    made = config(group(layers=(0, 2)), page_dtype="f16")
    cache, again = poisoned(gpu, made), poisoned(gpu, made)
    fill(cache, 0, 45)
    array = await export_sequence(cache, 0, contract, page_tokens=32)
    assert array.array.shape == array.format.shape(2)
    import_sequence(again, 3, {"global": array})
    np.testing.assert_array_equal(await stored(again, 3), await stored(cache, 0))


async def test_values_are_where_the_engine_looks() -> None:
    cache = poisoned(await device(), config(group(layers=(0, 1))))
    fill(cache, 0, 20)
    made = await export_sequence(cache, 0, "flashinfer_nhd")
    k, v = await cache.debug_get_kv(0, 0, 20)
    assert made.array.shape == (2, 2, 2, 16, 2, 16)
    tokens = made.array.transpose(2, 0, 1, 3, 4, 5).reshape(2, 2, 32, 2, 16)
    np.testing.assert_array_equal(tokens[:, :, :20], np.stack([k, v]))
    assert not tokens[:, :, 20:].any()


async def test_dtypes_change_by_named_converters_only() -> None:
    gpu = await device()
    cache, exact = (poisoned(gpu, config(page_dtype=dtype)) for dtype in ("int8", "f32"))
    fill(cache, 0, 20)
    with pytest.raises(LayoutError, match="a named converter is needed: found int8, expected f32"):
        await export_sequence(cache, 0, "tvm", dtype="f32")
    made = await export_sequence(cache, 0, "tvm", dtype="f32", converters=CONVERTERS)
    import_sequence(exact, 0, {"global": made})
    np.testing.assert_array_equal(await stored(exact, 0), await stored(cache, 0))


async def test_a_windowed_group_comes_from_its_first_token_on() -> None:
    gpu = await device()
    cache, again = (poisoned(gpu, config(*local(20), page_tokens=size)) for size in (16, 24))
    fill(cache, 0, 60)
    parts = {name: await export_sequence(cache, 0, "vllm_lbhnc", group=name, page_tokens=24)
             for name in ("global", "local")}  # fmt: skip
    assert (parts["local"].first_block, parts["local"].first_token) == (0, 16)
    assert not parts["local"].array[:, 0, :, :16].any()
    import_sequence(again, 0, parts)
    again.check()
    k, v = await again.debug_get_kv(0, 41, 60, "local")
    np.testing.assert_array_equal([k, v], await cache.debug_get_kv(0, 41, 60, "local"))


@pytest.mark.parametrize(
    ("contract", "fields", "error", "message"),
    [
        ("vllm", {}, LayoutError, "contract: found 'vllm'"),
        ("tvm_mla", {}, LayoutError, "heads: found 2, expected 1"),
        ("tvm", {"group": "local"}, CacheError, "layer group 'local' is unknown, the cache has global"),
    ],
)
async def test_exports_that_are_refused(
    contract: str, fields: dict[str, Any], error: type[WebkvError], message: str
) -> None:
    cache = poisoned(await device(), config())
    cache.add_sequence(0)
    with pytest.raises(error, match=message):
        await export_sequence(cache, 0, contract, **fields)


CHANGES: list[tuple[dict[str, Any], type[WebkvError], str]] = [
    ({"length": 33}, CacheError, "has tokens 0 to 32, expected 0 to 33"),
    ({"first_block": 1}, CacheError, "has tokens 16 to 48, expected 0 to 20"),
    ({"first_token": 3}, CacheError, "needs the sequence from token 0 on, the source holds it from token 3"),
    ({"length": -1}, CacheError, "the arrays are of \\[-1\\] tokens"),
    ({"array": np.zeros((1, 2, 2, 2, 16, 12), np.float32)}, LayoutError, "array shape: found"),
    ({"array": np.zeros((1, 2, 2, 2, 16, 16), np.float64)}, LayoutError, "array dtype: found"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "message"), CHANGES)
async def test_arrays_that_do_not_fit_change_nothing(
    change: dict[str, Any], error: type[WebkvError], message: str
) -> None:
    cache = poisoned(await device(), config())
    fill(cache, 0, 20)
    made: Exported = await export_sequence(cache, 0, "tvm")
    before = snapshot(cache.manager)
    with pytest.raises(error, match=message):
        import_sequence(cache, 1, {"global": replace(made, **change)})
    with pytest.raises(CacheError, match=r"arrays are of groups \['other'\], expected \['global'\]"):
        import_sequence(cache, 1, {"other": made})
    assert snapshot(cache.manager) == before
