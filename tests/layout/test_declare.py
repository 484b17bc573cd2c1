from __future__ import annotations

import pytest

from webkv.errors import LayoutError
from webkv.layout import Axis, PageLayout, Strides, Tensor, kv


def key(offset: int = 0, role: str = "key", dim_stride: int = 2, dtype: str = "f16", pool: int = 0) -> Tensor:
    axes = (Axis("head", 2, 16), Axis("token", 4, 4), Axis("dim", 2, dim_stride))
    return Tensor(0, role, 0, pool, offset, dtype, axes)


@pytest.mark.parametrize(
    ("slot_bytes", "tensors", "message"),
    [
        ((64,), (key(), key(28, "value")), r"\(0, value\) bytes: found 28, expected no overlap"),
        ((60,), (key(), key(32, "value")), r"\(0, value\) end: found 64, expected at most slot_bytes"),
        ((64,), (key(), key(32)), r"tensors: found '\(0, key\)', expected each"),
        ((64,), (key(pool=1),), r"\(0, key\) pool: found 1, expected below 1"),
        ((66,), (key(),), r"slot_bytes\[0\]: found 66, expected a multiple of 4"),
        ((0,), (key(),), r"slot_bytes\[0\]: found 0"),
        ((), (key(),), "slot_bytes"),
        ((64,), (), "tensors"),
    ],
    ids=["overlap", "past slot", "twice", "no such pool", "odd slot", "empty slot", "no pool", "no tensor"],
)
def test_layout_refuses(slot_bytes: tuple[int, ...], tensors: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        PageLayout(4, slot_bytes, tensors)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: key(2), r"\(0, key\) offset: found 2, expected a multiple of 4"),
        (lambda: key(-4), r"\(0, key\) offset: found -4"),
        (lambda: key(dtype="f64"), r"\(0, key\) dtype: found 'f64', expected one of f32"),
        (lambda: key(dim_stride=3), r"\(0, key\) dim stride: found 3, expected a multiple of 2"),
        (lambda: key(role="Key?"), "role: found 'Key\\?'"),
        (lambda: Axis("head", 0, 4), "head count: found 0"),
        (lambda: Axis("head", True, 4), "head count: found True"),
        (lambda: Axis("head", 2, 0), "head stride: found 0"),
        (lambda: Tensor(0, "key", 0, 0, 0, "f16", ()), "axes"),
        (lambda: Tensor(0, "key", 0, 0, 0, "f16", (Axis("dim", 2, 2), Axis("dim", 2, 4))), "each axis once"),
    ],
)
def test_tensor_refuses(make: object, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        make()  # type: ignore[operator]


def test_a_tensor_may_not_overlap_itself() -> None:
    tensor = Tensor(0, "key", 0, 0, 0, "f16", (Axis("token", 4, 2), Axis("dim", 2, 2)))
    with pytest.raises(LayoutError, match="no overlap with"):
        PageLayout(4, (64,), (tensor,))


def test_interleaved_tensors_do_not_overlap() -> None:
    layout = kv(page_tokens=2, heads=2, dim=2, packing="packed")
    assert [t.offset for t in layout.tensors] == [0, 4]


def test_token_axis_is_page_tokens_long() -> None:
    with pytest.raises(LayoutError, match=r"\(0, key\) token count: found 4, expected page_tokens = 8"):
        PageLayout(8, (64,), (key(),))


@pytest.mark.parametrize(("kind", "page_tokens"), [("state", 4), ("attention", 0), ("other", 4)])
def test_kind_and_page_tokens_agree(kind: str, page_tokens: int) -> None:
    with pytest.raises(LayoutError, match=r"kind|page_tokens"):
        PageLayout(page_tokens, (64,), (key(),), kind)


def test_a_huge_declaration_is_refused_at_once() -> None:
    tensor = Tensor(0, "key", 0, 0, 0, "f16", (Axis("token", 2**29, 4), Axis("dim", 1, 2)))
    with pytest.raises(LayoutError, match="separate pieces"):
        PageLayout(2**29, (2**31,), (tensor,))


def test_an_undeclared_role_is_never_guessed() -> None:
    with pytest.raises(LayoutError, match=r"\(0, 'key_scale', 0\), expected a declared tensor: \(0, key\)"):
        kv(page_tokens=4, heads=2, dim=2).tensor(0, "key_scale")


@pytest.mark.parametrize(
    ("layout", "layer", "key_strides", "value_strides"),
    [
        (kv(page_tokens=16, heads=8, dim=64), 0, (16384, 0, 1024, 64, 1), (16384, 8192, 1024, 64, 1)),
        (
            kv(page_tokens=16, heads=8, dim=64, order="token_major"),
            0,
            (16384, 0, 64, 512, 1),
            (16384, 8192, 64, 512, 1),
        ),
        (
            kv(page_tokens=16, heads=8, dim=64, order="token_major", packing="planes"),
            0,
            (8192, 0, 64, 512, 1),
            (8192, 0, 64, 512, 1),
        ),
        (
            kv(page_tokens=16, heads=8, dim=64, layers=(0, 1)),
            1,
            (32768, 16384, 1024, 64, 1),
            (32768, 24576, 1024, 64, 1),
        ),
        (kv(page_tokens=16, heads=4, dim=64), 0, (8192, 0, 1024, 64, 1), (8192, 4096, 1024, 64, 1)),
        (kv(page_tokens=16, heads=1, dim=256), 0, (8192, 0, 4096, 256, 1), (8192, 4096, 4096, 256, 1)),
    ],
    ids=["head-major", "token-major", "planes", "two layers", "half the heads", "one head"],
)
def test_strides_are_in_elements(
    layout: PageLayout, layer: int, key_strides: tuple[int, ...], value_strides: tuple[int, ...]
) -> None:
    assert layout.strides(layer, "key") == Strides(*key_strides)
    assert layout.strides(layer, "value") == Strides(*value_strides)


def test_every_address_is_inside_a_segment() -> None:
    tensor = kv(page_tokens=3, heads=2, dim=4, order="token_major").tensor(0, "value")
    bytes_declared = {b for start, n in tensor.segments() for b in range(start, start + n)}
    addresses = {tensor.address(head=h, token=t, dim=d) for h in range(2) for t in range(3) for d in range(4)}
    assert {a + half for a in addresses for half in (0, 1)} == bytes_declared
    assert len(bytes_declared) == tensor.nbytes
