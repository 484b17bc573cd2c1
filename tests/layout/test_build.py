from __future__ import annotations

import pytest

from webkv.errors import LayoutError
from webkv.layout import PageLayout, Section, kv, latent, state, with_replicated


def places(layout: PageLayout) -> list[tuple[int, str, int, int, int]]:
    return [(t.layer, t.role, t.part, t.pool, t.offset) for t in layout.tensors]


def test_int8_scales_follow_keys_and_values() -> None:
    layout = kv(page_tokens=16, heads=2, dim=64, dtype="int8")
    assert places(layout) == [
        (0, "key", 0, 0, 0),
        (0, "value", 0, 0, 2048),
        (0, "key_scale", 0, 0, 4096),
        (0, "value_scale", 0, 0, 4224),
    ]
    assert layout.slot_bytes == (4352,)
    assert layout.strides(0, "key_scale") == (1088, 1024, 16, 1, 0)


def test_int8_planes_keep_each_scale_with_its_plane() -> None:
    layout = kv(page_tokens=4, heads=2, dim=4, dtype="int8", packing="planes")
    assert places(layout) == [
        (0, "key", 0, 0, 0),
        (0, "value", 0, 1, 0),
        (0, "key_scale", 0, 0, 32),
        (0, "value_scale", 0, 1, 32),
    ]


def test_one_pool_per_layer() -> None:
    layout = kv(page_tokens=16, heads=8, dim=64, layers=(3, 7), layers_in_slot=1)
    assert layout.slot_bytes == (32768, 32768)
    assert [(t.layer, t.pool) for t in layout.tensors] == [(3, 0), (3, 0), (7, 1), (7, 1)]


def test_values_may_be_narrower_than_keys() -> None:
    layout = kv(page_tokens=4, heads=2, dim=8, v_dim=4)
    assert (layout.tensor(0, "key").nbytes, layout.tensor(0, "value").nbytes) == (128, 64)
    assert layout.layer_bytes(0) == layout.page_bytes == 192


def test_packed_rows_hold_key_then_value() -> None:
    layout = kv(page_tokens=16, heads=8, dim=64, packing="packed")
    assert layout.slot_bytes == (32768,)
    assert layout.strides(0, "key") == (16384, 0, 2048, 128, 1)
    assert layout.strides(0, "value") == (16384, 64, 2048, 128, 1)


def test_latent_has_no_heads() -> None:
    layout = latent(page_tokens=64, dim=576, dtype="bf16")
    assert layout.slot_bytes == (73728,)
    assert layout.strides(0, "latent") == (36864, 0, 0, 576, 1)


def test_state_sections_are_parts_of_one_role() -> None:
    conv = [Section("conv", (("chan", n), ("tap", 3))) for n in (32, 16, 16)]
    layout = state(*conv, Section("ssm", (("head", 4), ("dim", 8), ("state", 2)), "f32"))
    assert (layout.kind, layout.page_tokens, layout.slot_bytes) == ("state", 0, (640,))
    assert places(layout) == [
        (0, "conv", 0, 0, 0),
        (0, "conv", 1, 0, 192),
        (0, "conv", 2, 0, 288),
        (0, "ssm", 0, 0, 384),
    ]


def test_a_section_that_ends_off_a_word_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"\(0, conv, 1\) offset: found 6"):
        state(Section("conv", (("chan", 1), ("tap", 3))), Section("conv", (("chan", 2), ("tap", 3))))


def test_replicated_tensor_comes_last() -> None:
    layout = with_replicated(kv(page_tokens=4, heads=2, dim=2), role="index_key", dim=2)
    assert layout.slot_bytes == (80,)
    assert layout.strides(0, "index_key") == (40, 32, 0, 2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "dim_major"}, "order: found 'dim_major', expected one of head_major"),
        ({"packing": "loose"}, "packing: found 'loose'"),
        ({"dtype": "f8"}, "dtype: found 'f8'"),
        ({"heads": 0}, "head count: found 0"),
        ({"dim": -1}, "dim count: found -1"),
        ({"page_tokens": 0}, "page_tokens: found 0"),
        ({"layers": ()}, "layers"),
        ({"layers": (1, 1)}, "layers"),
        ({"layers_in_slot": 0}, "layers_in_slot: found 0"),
        ({"packing": "packed", "dim": 3, "dtype": "int8"}, r"\(0, value\) offset: found 3"),
    ],
)
def test_kv_refuses_by_argument(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        kv(**{"page_tokens": 4, "heads": 2, "dim": 2, **arguments})  # type: ignore[arg-type]
