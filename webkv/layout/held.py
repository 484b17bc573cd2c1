"""Which global indices a holder has: kept beside a layout and outside its id.

Two ranks that hold different heads read their bytes alike, so they share one `PageLayout`; only `Held` tells
them apart.  A first index per axis covers uneven splits, replicas and sections (TensorRT-LLM's rule).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from webkv.layout.declare import PageLayout, Tensor, refuse, require_int, require_name

TensorKey = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class Held:
    """The first global index of each axis; everything from 0 where not said.

    `axes` is for every tensor that has the axis: `Held({"head": 4})`.  `tensors`, by (layer, role, part),
    goes before it, for sections split each on its own: `Held(tensors={(0, "conv", 1): {"chan": 8}})`.
    Tokens are never split over holders.
    """

    axes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    tensors: Mapping[TensorKey, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for firsts in (self.axes, *self.tensors.values()):
            for name, first in firsts.items():
                require_name("held axis", name)
                require_int(f"held {name}", first, 0)
                if name == "token":
                    raise refuse("held axis", name, "an axis that is split over holders, not token")

    def first(self, tensor: Tensor, axis: str) -> int:
        """The global index of element 0 along an axis of `tensor`."""
        return self.tensors.get(tensor.key, {}).get(axis, self.axes.get(axis, 0))

    def check(self, layout: PageLayout) -> None:
        """Raise `LayoutError` where a tensor or axis named here is not in `layout`."""
        known = {axis.name for tensor in layout.tensors for axis in tensor.axes}
        for name in self.axes:
            if name not in known:
                raise refuse("held axis", name, f"one of {', '.join(sorted(known))}")
        for key, firsts in self.tensors.items():
            tensor = layout.tensor(*key)
            for name in firsts:
                if tensor.axis(name) is None:
                    raise refuse(f"held axis of {tensor.name}", name, "an axis of this tensor")

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `from_json` reads them back."""
        tensors = [[*key, dict(firsts)] for key, firsts in sorted(self.tensors.items())]
        return {"axes": dict(self.axes), "tensors": tensors}

    @classmethod
    def from_json(cls, data: object) -> Held:
        """The stored value, checked in full; `LayoutError` names the field that is wrong."""
        if not isinstance(data, dict) or set(data) != {"axes", "tensors"}:
            raise refuse("held", data, "an object with axes and tensors")
        if not isinstance(data["axes"], dict):
            raise refuse("held axes", data["axes"], "an object")
        if not isinstance(data["tensors"], list):
            raise refuse("held tensors", data["tensors"], "a list")
        tensors = {}
        for item in data["tensors"]:
            if not isinstance(item, list) or len(item) != 4 or not isinstance(item[3], dict):
                raise refuse("held tensors", item, "[layer, role, part, {axis: first}]")
            require_int("held layer", item[0], 0)
            require_name("held role", item[1])
            require_int("held part", item[2], 0)
            tensors[item[0], item[1], item[2]] = item[3]
        return cls(data["axes"], tensors)


def share(total: int, holders: int, holder: int) -> range:
    """The global indices that one of `holders` has: ceil(total / holders) of them, from
    floor(holder * total / holders) on.

    Where the division is uneven, or there are more holders than indices, neighbours overlap: replicas.
    """
    require_int("total", total, 1)
    require_int("holders", holders, 1)
    require_int("holder", holder, 0)
    if holder >= holders:
        raise refuse("holder", holder, f"below {holders}")
    first = holder * total // holders
    return range(first, first - (-total // holders))
