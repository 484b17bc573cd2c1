"""The hash that TVM gives a cache's layout; tests/golden/README.md says where the expected ones are from."""

from __future__ import annotations

import pytest

from webkv.errors import LayoutError
from webkv.layout import (
    PageLayout,
    kv,
    latent,
    tvm_layout_hash,
)


@pytest.mark.parametrize(
    ("layout", "facts", "expected"),
    [
        (
            kv(page_tokens=16, heads=2, dim=64, dtype="f32"),
            {
                "num_layers": 2,
                "num_qo_heads": 4,
                "rope_mode": "normal",
                "rotary_scale": 1,
                "rotary_theta": 1e4,
            },
            "a33bb921a69e41e3",
        ),
        (
            kv(page_tokens=16, heads=2, dim=64, dtype="f16"),
            {
                "num_layers": 2,
                "num_qo_heads": 4,
                "rope_mode": "normal",
                "rotary_scale": 1.0,
                "rotary_theta": 1e4,
            },
            "f9309b86beba9671",
        ),
        (
            kv(page_tokens=16, heads=2, dim=64, dtype="f32"),
            {
                "num_layers": 2,
                "num_qo_heads": 4,
                "rope_mode": "none",
                "rotary_scale": 1.0,
                "rotary_theta": 1e4,
            },
            "c1eab51e349daebc",
        ),
        (
            kv(page_tokens=16, heads=8, dim=64, dtype="f16"),
            {
                "num_layers": 16,
                "num_qo_heads": 32,
                "rope_mode": "normal",
                "rotary_scale": 1.0,
                "rotary_theta": 5e5,
            },
            "4fd9741a5c3d0eb2",
        ),
    ],
    ids=["15_checkpoint", "13_f16", "16_checkpoint_errors", "llama 3.2 1b"],
)
def test_hash_is_tvms(layout: PageLayout, facts: dict[str, object], expected: str) -> None:
    assert tvm_layout_hash(layout, **facts) == expected


FACTS = {"num_layers": 2, "num_qo_heads": 4, "rope_mode": "normal", "rotary_scale": 1.0, "rotary_theta": 1e4}


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": 3},
        {"layer_begin": 1},
        {"num_qo_heads": 8},
        {"rope_mode": "inline"},
        {"rotary_scale": 0.1},
        {"rotary_theta": 1e5},
        {"has_rope_ext_factors": True},
        {"support_sliding_window": True},
        {"support_layer_sliding_window": True},
        {"attn_kinds": ["mha", "mla"]},
    ],
)
def test_any_tvm_fact_changes_the_hash(change: dict[str, object]) -> None:
    page = kv(page_tokens=16, heads=2, dim=64)
    assert tvm_layout_hash(page, **{**FACTS, **change}) != tvm_layout_hash(page, **FACTS)


@pytest.mark.parametrize(
    "layout",
    [
        kv(page_tokens=16, heads=2, dim=64, order="token_major"),
        kv(page_tokens=16, heads=2, dim=64, packing="packed"),
        kv(page_tokens=16, heads=2, dim=64, v_dim=32),
        kv(page_tokens=16, heads=2, dim=64, dtype="int8"),
        latent(page_tokens=16, dim=64),
    ],
)
def test_only_tvms_page_has_tvms_hash(layout: PageLayout) -> None:
    with pytest.raises(LayoutError):
        tvm_layout_hash(layout, **FACTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_mode": "yarn"}, "rope_mode: found 'yarn'"),
        ({"rotary_theta": float("nan")}, "rotary_theta"),
        ({"attn_kinds": ["mha"]}, "attn_kinds"),
        ({"num_layers": 0}, "num_layers"),
    ],
)
def test_tvm_facts_are_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        tvm_layout_hash(kv(page_tokens=16, heads=2, dim=64), **{**FACTS, **change})
