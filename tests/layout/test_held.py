from __future__ import annotations

import json

import pytest

from webkv.errors import LayoutError
from webkv.layout import Held, kv, share


def test_a_tensors_own_first_goes_before_the_axis() -> None:
    key, value = kv(page_tokens=4, heads=2, dim=2).tensors
    held = Held({"head": 4}, {value.key: {"head": 6}})
    assert (held.first(key, "head"), held.first(value, "head"), held.first(key, "dim")) == (4, 6, 0)


def test_it_reads_back_from_json() -> None:
    held = Held({"head": 4}, {(0, "conv", 1): {"chan": 8}})
    assert Held.from_json(json.loads(json.dumps(held.to_json()))) == held


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "held: found"),
        ({"axes": {}}, "held: found"),
        ({"axes": [], "tensors": []}, "held axes"),
        ({"axes": {}, "tensors": {}}, "held tensors"),
        ({"axes": {}, "tensors": [[0, "conv", {}]]}, "held tensors"),
        ({"axes": {}, "tensors": [["0", "conv", 0, {}]]}, "held layer"),
        ({"axes": {"head": -1}, "tensors": []}, "held head: found -1"),
        ({"axes": {"token": 1}, "tensors": []}, "held axis: found 'token'"),
        ({"axes": {}, "tensors": [[0, "conv", 0, {"chan": 0.5}]]}, "held chan: found 0.5"),
    ],
)
def test_damaged_json_is_refused_by_field(data: object, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Held.from_json(data)


@pytest.mark.parametrize(("total", "holders", "holder"), [(0, 1, 0), (4, 0, 0), (4, 2, 2), (4, 2, -1)])
def test_share_refuses(total: int, holders: int, holder: int) -> None:
    with pytest.raises(LayoutError, match=r"total|holder"):
        share(total, holders, holder)
