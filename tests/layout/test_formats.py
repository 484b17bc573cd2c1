from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from webkv.errors import LayoutError
from webkv.layout import Held, PageLayout, copy_bytes, kv, latent, layout_id, plan
from webkv.layout.formats import CONTRACTS, declare

SIZES: dict[str, Any] = {"page_tokens": 4, "heads": 2, "dim": 6}
NHD: dict[str, Any] = {**SIZES, "order": "token_major"}


@pytest.mark.parametrize(
    ("contract", "layers", "same"),
    [
        ("tvm", (0,), kv(**SIZES)),
        ("tvm", (0, 1), kv(**SIZES, layers=(0, 1), layers_in_slot=1)),
        ("flashinfer_hnd", (0,), kv(**SIZES)),
        ("flashinfer_nhd", (0,), kv(**SIZES, order="token_major")),
        ("vllm_kv_first_nhd", (3, 4), kv(**NHD, packing="planes", layers=(3, 4), layers_in_slot=1)),
        ("vllm_kv_first_hnd", (0,), kv(**SIZES, packing="planes")),
        ("vllm_blocks_first_nhd", (0,), kv(**SIZES, order="token_major")),
        ("vllm_blocks_first_hnd", (0,), kv(**SIZES)),
        ("vllm_lbhnc", (0,), kv(**SIZES, packing="packed")),
        ("vllm_lbnhc", (0,), kv(**SIZES, packing="packed", order="token_major")),
        ("vllm_blhnc", (0, 1), kv(**SIZES, packing="packed", layers=(0, 1))),
        ("vllm_blnhc", (0, 1), kv(**SIZES, packing="packed", order="token_major", layers=(0, 1))),
        ("vllm_bhlnc", (0,), kv(**SIZES, packing="packed")),
        ("trtllm_slot", (0, 1), kv(**SIZES, layers=(0, 1))),
    ],
)  # fmt: skip
def test_contract_is_the_layout_of_the_builder(
    contract: str, layers: tuple[int, ...], same: PageLayout
) -> None:
    assert layout_id(declare(contract, **SIZES, layers=layers).layout) == layout_id(same)


def test_mla_contract_is_a_latent() -> None:
    found = declare("tvm_mla", page_tokens=4, dim=6)
    assert layout_id(found.layout) == layout_id(latent(page_tokens=4, dim=6))
    assert found.shape(3) == (1, 3, 4, 6)


@pytest.mark.parametrize(
    ("contract", "shape"),
    [
        ("tvm", (2, 5, 2, 8, 16, 64)),
        ("flashinfer_nhd", (2, 5, 2, 16, 8, 64)),
        ("vllm_kv_first_nhd", (2, 2, 5, 16, 8, 64)),
        ("vllm_blocks_first_nhd", (2, 5, 2, 16, 8, 64)),
        ("vllm_lbhnc", (2, 5, 8, 16, 128)),
        ("vllm_blnhc", (5, 2, 16, 8, 128)),
        ("vllm_bhlnc", (5, 8, 2, 16, 128)),
        ("trtllm_slot", (5, 2, 2, 8, 16, 64)),
    ],
)
def test_shape_is_the_engines(contract: str, shape: tuple[int, ...]) -> None:
    assert declare(contract, page_tokens=16, heads=8, dim=64, layers=(0, 1)).shape(5) == shape


@pytest.mark.parametrize("contract", [name for name in CONTRACTS if name != "tvm_mla"])
def test_every_element_is_at_its_declared_address(contract: str) -> None:
    found = declare(contract, **SIZES, layers=(0, 1))
    array = np.arange(np.prod(found.shape(3)), dtype=np.uint16).view(np.float16).reshape(found.shape(3))
    pools = found.to_pools(array)
    spread = array.reshape([3 if name == "page" else count for name, count in found.axes])
    names = [name for name, _ in found.axes]
    for layer, page, (at, role), head, token, dim in product(
        (0, 1), range(3), enumerate(("key", "value")), range(2), range(4), range(6)
    ):
        tensor = found.layout.tensor(layer, role)
        start = page * found.layout.slot_bytes[tensor.pool] + tensor.address(head=head, token=token, dim=dim)
        index = {"layer": layer, "page": page, "kv": at, "head": head, "token": token, "dim": dim}
        value = spread[tuple(index[name] for name in names)]
        assert pools[tensor.pool][start : start + 2] == value.tobytes()
    assert np.array_equal(found.from_pools(pools).view(np.uint16), array.view(np.uint16))


@pytest.mark.parametrize("contract", [name for name in CONTRACTS if name != "tvm_mla"])
def test_a_sequence_goes_to_an_engine_and_back(contract: str) -> None:
    own = kv(page_tokens=3, heads=2, dim=6, layers=(0, 1), layers_in_slot=1)
    theirs = declare(contract, **SIZES, layers=(0, 1))
    pools = [np.random.default_rng(pool).bytes(4 * size) for pool, size in enumerate(own.slot_bytes)]
    between = [bytearray(3 * size) for size in theirs.layout.slot_bytes]
    back = [bytearray(4 * size) for size in own.slot_bytes]
    ours, other = [(own, Held())], [(theirs.layout, Held())]
    copy_bytes(plan(ours, other, (0, 12)), [own], [pools], [theirs.layout], [between])
    between = [bytearray(pool) for pool in theirs.to_pools(theirs.from_pools(between))]
    copy_bytes(plan(other, ours, (0, 12)), [theirs.layout], [between], [own], [back])
    assert [bytes(pool) for pool in back] == pools


def test_a_key_is_found_where_the_engine_looks() -> None:
    own, theirs = kv(**SIZES), declare("flashinfer_nhd", **SIZES)
    array = np.arange(2 * 2 * 2 * 4 * 6, dtype=np.float16).reshape(
        2, 2, 2, 4, 6
    )  # [page][kv][head][token][dim]
    between = bytearray(array.nbytes)
    copy_bytes(
        plan([(own, Held())], [(theirs.layout, Held())], (0, 8)),
        [own],
        [[array.tobytes()]],
        [theirs.layout],
        [[between]],
    )
    assert np.array_equal(theirs.from_pools([between])[0], array.transpose(0, 1, 3, 2, 4))


def test_bf16_is_its_bits() -> None:
    found = declare("tvm", **SIZES, dtype="bf16")
    array = found.from_pools([bytes(found.layout.slot_bytes[0])])
    assert array.dtype == np.uint16


@pytest.mark.parametrize(
    ("contract", "change", "message"),
    [
        ("vllm", {}, "contract: found 'vllm', expected one of tvm"),
        ("vllm_lhbnc", {}, "contract: found 'vllm_lhbnc'"),
        ("tvm", {"dtype": "int8"}, "dtype: found 'int8'"),
        ("tvm", {"layers": ()}, "layers"),
        ("tvm", {"layers": (1, 1)}, "each"),
        ("tvm", {"heads": 0}, "head count: found 0"),
        ("tvm_mla", {}, "heads: found 2, expected 1, as tvm_mla has no heads"),
    ],
)
def test_declaration_refuses(contract: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        declare(contract, **{**SIZES, **change})


def test_arrays_of_another_shape_or_dtype_are_refused() -> None:
    found = declare("flashinfer_nhd", **SIZES)
    with pytest.raises(LayoutError, match="array shape: found"):
        found.to_pools(np.zeros((1, 3, 2, 2, 4, 6), np.float16))
    with pytest.raises(LayoutError, match="array shape: found"):
        found.to_pools(np.zeros(3, np.float16))
    with pytest.raises(LayoutError, match="array dtype: found '<f4'"):
        found.to_pools(np.zeros(found.shape(3), np.float32))


def test_pools_of_another_size_are_refused() -> None:
    found = declare("vllm_kv_first_nhd", **SIZES)
    slot = found.layout.slot_bytes[0]
    with pytest.raises(LayoutError, match="pools: found 1, expected 2"):
        found.from_pools([bytes(slot)])
    with pytest.raises(LayoutError, match="pool bytes: found"):
        found.from_pools([bytes(slot), bytes(2 * slot)])
    with pytest.raises(LayoutError, match="pool bytes: found"):
        found.from_pools([bytes(slot - 2)] * 2)
