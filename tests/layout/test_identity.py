"""The golden ids come from an independent encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from webkv.errors import LayoutError
from webkv.layout import (
    Axis,
    PageLayout,
    Tensor,
    canonical_json,
    content_id,
    declaration,
    kv,
    latent,
    layout_id,
    parse,
    with_replicated,
)

TINY = kv(page_tokens=4, heads=4, dim=2)
TINY_TEXT = (
    '{"kind":"attention","page_tokens":4,"slot_bytes":[128],"tensors":['
    '{"axes":[["head",4,16],["token",4,4],["dim",2,2]],"dtype":"f16","layer":0,"offset":0,"pool":0,'
    '"role":"key"},'
    '{"axes":[["head",4,16],["token",4,4],["dim",2,2]],"dtype":"f16","layer":0,"offset":64,"pool":0,'
    '"role":"value"}],"v":1}'
)


def test_encoding_is_spelled_out() -> None:
    assert canonical_json(declaration(TINY)) == TINY_TEXT
    assert len(TINY_TEXT) == 292


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (TINY, "18cd0dac310e7761a8e7f0b981ba3d815f310b88032865b465c3d98e857cd72a"),
        (
            kv(page_tokens=16, heads=8, dim=64),
            "cd959d3e4f09625bec5ffeaab0b1240915b9de94c165989ad8086c222800314b",
        ),
        (
            kv(page_tokens=16, heads=8, dim=64, order="token_major"),
            "eaa2bab52aec40aca5a565e71701964cb6c0288a0c35663157c1f5059a1a995e",
        ),
        (
            kv(page_tokens=16, heads=8, dim=64, dtype="bf16"),
            "6a9ccf0d5ea4ab00ec96624ea7f08099999724bae9905fcf8da60b4fb5d156b6",
        ),
        (
            kv(page_tokens=16, heads=8, dim=64, dtype="f32"),
            "ef2fd315ad3e5997c8966eb3d12d3045042f0bf88cdbcddbcdef538fdd1c1396",
        ),
        (
            kv(page_tokens=32, heads=8, dim=64),
            "ec0066b0fee840b193b7672a6fb892999b66df1695ea56cd0a1e8a0d335a2601",
        ),
        (
            kv(page_tokens=16, heads=4, dim=64),
            "b0d320814172c30fa6e1bed8c1ae268db68a14693008d008c924bdad5ad22d57",
        ),
    ],
    ids=["tiny", "f16", "token-major", "bf16", "f32", "page 32", "one of two ranks"],
)
def test_golden_ids(layout: PageLayout, expected: str) -> None:
    assert layout_id(layout) == expected


def with_key(**change: object) -> PageLayout:
    key, value = TINY.tensors
    return replace(TINY, slot_bytes=(256, 256), tensors=(replace(key, **{"offset": 128, **change}), value))  # type: ignore[arg-type]


ROOMY = with_key()
AXES = TINY.tensor(0, "key").axes


@pytest.mark.parametrize(
    "changed",
    [
        with_key(layer=1),
        with_key(role="index_key"),
        with_key(part=1),
        with_key(offset=132),
        with_key(dtype="bf16"),
        with_key(axes=(replace(AXES[0], name="chan"), *AXES[1:])),
        with_key(axes=(replace(AXES[0], count=3), *AXES[1:])),
        with_key(axes=(replace(AXES[0], stride=20), *AXES[1:])),
        replace(ROOMY, slot_bytes=(260, 256)),
        replace(ROOMY, slot_bytes=(256, 256, 4)),
        replace(ROOMY, tensors=ROOMY.tensors[:1]),
        with_key(pool=1),
        with_replicated(ROOMY, role="index_key", dim=2),
    ],
    ids=[
        "layer", "role", "part", "offset", "dtype", "axis name", "count", "stride", "slot", "pools",
        "a tensor less", "pool", "a tensor more",
    ],
)  # fmt: skip
def test_any_declared_field_changes_the_id(changed: PageLayout) -> None:
    assert layout_id(changed) != layout_id(ROOMY)


def test_page_tokens_and_kind_change_the_id() -> None:
    def one(page_tokens: int, kind: str) -> PageLayout:
        token = (Axis("token", page_tokens, 4),) if page_tokens else ()
        tensor = Tensor(0, "conv", 0, 0, 0, "f32", (*token, Axis("dim", 1, 4)))
        return PageLayout(page_tokens, (64,), (tensor,), kind)

    ids = {layout_id(one(0, "state")), layout_id(one(1, "attention")), layout_id(one(2, "attention"))}
    assert len(ids) == 3


@pytest.mark.parametrize(
    "same",
    [
        replace(TINY, tensors=TINY.tensors[::-1]),
        replace(TINY, tensors=tuple(replace(t, axes=t.axes[::-1]) for t in TINY.tensors)),
    ],
    ids=["tensors", "axes"],
)
def test_order_of_listing_does_not_change_the_id(same: PageLayout) -> None:
    assert layout_id(same) == layout_id(TINY)


def test_axes_of_equal_stride_have_one_order() -> None:
    layout = kv(page_tokens=4, heads=1, dim=2, order="token_major")
    key = layout.tensors[0]
    turned = replace(layout, tensors=(replace(key, axes=key.axes[::-1]), layout.tensors[1]))
    assert layout_id(turned) == layout_id(layout)


def test_a_declaration_reads_back() -> None:
    for layout in (TINY, kv(page_tokens=4, heads=2, dim=4, dtype="int8"), latent(page_tokens=4, dim=6)):
        assert layout_id(parse(json.loads(canonical_json(declaration(layout))))) == layout_id(layout)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update(v=2), "v: found 2, expected layout version 1"),
        (lambda d: d.update(page_tokens="4"), "page_tokens: found '4'"),
        (lambda d: d.update(slot_bytes=128), "slot_bytes: found 128"),
        (lambda d: d.update(slot_bytes=[1.5]), r"slot_bytes\[0\]: found 1.5"),
        (lambda d: d.update(extra=1), "declaration: found .*extra"),
        (lambda d: d.pop("kind"), "declaration: found"),
        (lambda d: d.update(kind=[]), r"kind: found \[\]"),
        (lambda d: d["tensors"][0].pop("offset"), r"tensors\[0\]: found"),
        (lambda d: d["tensors"][0].update(dtype=["f16"]), r"\(0, key\) dtype: found \['f16'\]"),
        (lambda d: d["tensors"][0].update(layer=None), "layer: found None"),
        (lambda d: d["tensors"][1].update(axes=[["head", 4]]), r"tensors\[1\].axes\[0\]: found"),
        (lambda d: d["tensors"][1].update(axes=7), r"tensors\[1\].axes: found 7"),
        (lambda d: d["tensors"].append(3), r"tensors\[2\]: found 3, expected an object"),
    ],
)
def test_a_damaged_declaration_is_refused_by_field(
    damage: Callable[[dict[str, object]], object], message: str
) -> None:
    data = json.loads(TINY_TEXT)
    damage(data)
    with pytest.raises(LayoutError, match=message):
        parse(data)


CONTENT = {
    "weights": "ab12",
    "tokenizer": "cd34",
    "rope": {"mode": "normal", "theta": 1e4},
    "quantizer": "Q8_0",
}


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "ab13"},
        {"tokenizer": "cd3"},
        {"rope": {"mode": "inline", "theta": 1e4}},
        {"rope": {"mode": "normal", "theta": 1e4 + 1e-9}},
        {"rope": {"mode": "normal", "theta": 10000}},
        {"quantizer": None},
        {"more": 1},
    ],
)
def test_any_content_field_changes_the_content_id(change: dict[str, object]) -> None:
    assert content_id(**{**CONTENT, **change}) != content_id(**CONTENT)


def test_content_id_is_pinned_and_ignores_order() -> None:
    assert (
        canonical_json({"b": 0.5, "a": None, "c": [True, 1]}) == '{"b":"f64:3fe0000000000000","c":[true,1]}'
    )
    assert content_id(**dict(reversed(CONTENT.items()))) == content_id(**CONTENT)
    assert content_id(**CONTENT) == "01402e385eb6eaab42f6048c2638e5c3f564a8445959c6a776b2cba75a207489"


@pytest.mark.parametrize("value", [{"a": b"x"}, {1: "a"}, {"a": "f64:00"}, {"a": {1, 2}}])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(LayoutError, match=r"^value"):
        canonical_json(value)


def test_content_id_needs_a_field() -> None:
    with pytest.raises(LayoutError, match="content fields"):
        content_id()
