"""Which layers share a plan."""

from __future__ import annotations

from typing import Any

import pytest

from webkv.cache.holdings import plan_layers
from webkv.errors import LayoutError
from webkv.layout import Held, kv

SIZES: dict[str, Any] = {"page_tokens": 4, "heads": 2, "dim": 4, "layers": (0, 1)}
APART = kv(**SIZES, layers_in_slot=1)


def shared(target: Any, held: Held | None = None, source: Any = APART) -> list[tuple[int, ...]]:
    """The layers of each plan."""
    plans = plan_layers([(source, Held())], (target, held or Held()), range(9), ())
    return [plan.layers for plan in plans]


def test_layers_that_read_alike_are_planned_once() -> None:
    assert shared(kv(**SIZES, layers_in_slot=1, order="token_major")) == [(0, 1)]


def test_layers_of_one_slot_are_planned_each() -> None:
    assert shared(kv(**SIZES)) == [(0,), (1,)]


def test_layers_with_other_heads_are_planned_each() -> None:
    one = kv(**{**SIZES, "heads": 1}, layers_in_slot=1)
    assert shared(one) == [(0, 1)]
    assert shared(one, Held(tensors={(1, "key", 0): {"head": 1}})) == [(0,), (1,)]


def test_layers_from_other_ranks_are_planned_each() -> None:
    first, second = (kv(**{**SIZES, "layers": (layer,)}) for layer in (0, 1))
    plans = plan_layers([(first, Held()), (second, Held())], (APART, Held()), range(9), ())
    assert [(plan.layers, plan.ranks) for plan in plans] == [((0,), (0,)), ((1,), (1,))]


def test_a_refusal_names_the_layer() -> None:
    with pytest.raises(LayoutError, match=r"\(1, key\): no source declares it"):
        shared(APART, source=kv(**{**SIZES, "layers": (0,)}))
    with pytest.raises(LayoutError, match=r"\(0, key\): nobody holds head 2"):
        shared(APART, Held({"head": 1}))
