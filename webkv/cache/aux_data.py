"""How a step's index arrays reach the GPU: one buffer per array (plain), or all in one (cached).

Both keep every view at the same place for the life of the cache, so that bind groups are made once; and no
two groups share storage, so one group's tables cannot overwrite another's (apache/tvm#20699).  A step's
arrays stay until the next `write`: submit a step's work before the next step begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from webkv.cache.config import CacheConfig, LayerGroup
from webkv.cache.step import GroupArrays, Step
from webkv.cache.tree import MAX_TREE_SIZE
from webkv.gpu import Device, Slice
from webkv.gpu.device import STORAGE, UNIFORM
from webkv.kernels.shape import Binding, PageTable

ALIGNMENT = 256
"""Bytes; where a part of a buffer that is bound as storage or uniform may start (WebGPU's default limit)."""


@dataclass(frozen=True)
class GroupViews:
    """Where one group's arrays are on the GPU."""

    table: PageTable
    append_position_map: Binding
    rope_table: Binding


@dataclass(frozen=True)
class StepViews:
    """Where a step's arrays are on the GPU; `numbers` is the uniform vec4<u32>(rows, sequences, 0, 0)."""

    numbers: Binding
    qo_indptr: Binding
    tree: Binding
    groups: tuple[GroupViews, ...]


class AuxDataManager(Protocol):
    """Writes the index arrays of a step and says where they are."""

    def write(self, step: Step) -> StepViews: ...


def _capacities(config: CacheConfig, rows: int) -> dict[str, int]:
    """Bytes of every array of a step of up to `rows` new tokens."""
    seqs = config.reserved_num_seqs
    sizes = {"numbers": 16, "qo_indptr": 4 * (seqs + 1)}
    for at, group in enumerate(config.groups):
        sizes[f"{at}.page_indptr"] = 4 * (seqs + 1)
        sizes[f"{at}.length_info"] = 16 * seqs
        sizes[f"{at}.append_position_map"] = 4 * rows
        sizes[f"{at}.rope_table"] = 4 * rows * _rope_floats(group)
    return sizes


def _rope_floats(group: LayerGroup) -> int:
    return group.rope.rotary_dim or 0 if group.rope.mode != "none" else 0


def _listed_pages(config: CacheConfig, group: LayerGroup) -> int:
    """Most pages in one batch's tables: sequences may share all of them."""
    return config.reserved_num_seqs * config.num_pages(group)


def _tree_bytes(config: CacheConfig) -> int:
    return 4 * (config.reserved_num_seqs * (1 + 2 * MAX_TREE_SIZE) + 1)


def _arrays(step: Step) -> dict[str, np.ndarray]:
    numbers = np.array([step.rows, len(step.sequences), 0, 0], np.uint32)
    arrays = {"numbers": numbers, "qo_indptr": step.qo_indptr}
    for at, group in enumerate(step.groups):
        arrays |= {f"{at}.{name}": array for name, array in _group_arrays(group).items()}
    return arrays


def _group_arrays(group: GroupArrays) -> dict[str, np.ndarray]:
    arrays = {
        "page_indptr": group.page_indptr,
        "length_info": group.length_info,
        "append_position_map": group.append_position_map,
    }
    if group.rope_table is not None:
        arrays["rope_table"] = group.rope_table
    return arrays


def _views(config: CacheConfig, bindings: dict[str, Binding]) -> StepViews:
    groups = []
    for at in range(len(config.groups)):
        names = [f"{at}.{name}" for name in ("page_indptr", "page_indices", "length_info")]
        table = PageTable(*(bindings[name] for name in names))
        groups.append(GroupViews(table, bindings[f"{at}.append_position_map"], bindings[f"{at}.rope_table"]))
    return StepViews(bindings["numbers"], bindings["qo_indptr"], bindings["tree"], tuple(groups))


class PlainAuxDataManager:
    """One buffer per array; an array that is the same as in the last step is not written again."""

    def __init__(self, device: Device, config: CacheConfig) -> None:
        self._device = device
        sizes = _capacities(config, config.prefill_chunk_size)
        for at, group in enumerate(config.groups):
            sizes[f"{at}.page_indices"] = 4 * _listed_pages(config, group)
        sizes["tree"] = _tree_bytes(config)
        self._buffers: dict[str, Binding] = {
            name: device.buffer(size, label=name, usage=STORAGE | UNIFORM if name == "numbers" else STORAGE)
            for name, size in sizes.items()
        }
        self._written: dict[str, bytes] = {}
        self._step_views = _views(config, self._buffers)

    def write(self, step: Step) -> StepViews:
        """Write `step`'s arrays, each into its own buffer."""
        arrays = _arrays(step)
        for at, group in enumerate(step.groups):
            arrays[f"{at}.page_indices"] = group.page_indices
        if step.tree is not None:
            arrays["tree"] = step.tree
        for name, array in arrays.items():
            data = array.tobytes()
            if self._written.get(name) != data:
                self._device.write(self._buffers[name], data)
                self._written[name] = data
        return self._step_views


class CachedAuxDataManager:
    """All arrays in one buffer, written by one call.

    The buffer holds, in order: the arrays of a small step (at most one row per sequence), the page lists of
    all groups back to back, which `page_indptr` counts into, and the arrays of a step of any size.  A decode
    step writes no further than its page lists.
    """

    def __init__(self, device: Device, config: CacheConfig) -> None:
        self._device = device
        self._small_rows = config.reserved_num_seqs
        small = _capacities(config, self._small_rows)
        pages = {"page_indices": 4 * sum(_listed_pages(config, group) for group in config.groups)}
        large = _capacities(config, config.prefill_chunk_size) | {"tree": _tree_bytes(config)}
        places, end = _placed([small, pages, large])
        self._buffer = device.buffer(end, label="aux data", usage=STORAGE | UNIFORM)
        self._host = np.zeros(end, np.uint8)
        self._pages = places[1]["page_indices"][0]
        self._small, self._large = places[0] | places[1] | {"tree": (0, 4)}, places[2] | places[1]
        self._small_views = _views(config, self._sliced(config, self._small))
        self._large_views = _views(config, self._sliced(config, self._large))

    def _sliced(self, config: CacheConfig, places: dict[str, tuple[int, int]]) -> dict[str, Binding]:
        made: dict[str, Binding] = {name: Slice(self._buffer, *place) for name, place in places.items()}
        for at in range(len(config.groups)):
            made[f"{at}.page_indices"] = made["page_indices"]
        return made

    def write(self, step: Step) -> StepViews:
        """Pack `step`'s arrays and write them at once."""
        small = step.tree is None and step.rows <= self._small_rows
        places = self._small if small else self._large
        arrays = _arrays(step)
        if step.tree is not None:
            arrays["tree"] = step.tree
        used, at = 0, 0
        for number, group in enumerate(step.groups):
            arrays[f"{number}.page_indptr"] = group.page_indptr + np.int32(at // 4)
            used = self._put(self._pages + at, group.page_indices)
            at = used - self._pages
        for name, array in arrays.items():
            used = max(used, self._put(places[name][0], array))
        self._device.write(self._buffer, self._host[: -(-used // 4) * 4])
        return self._small_views if small else self._large_views

    def _put(self, start: int, array: np.ndarray) -> int:
        end = start + array.nbytes
        self._host[start:end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return end


def _placed(areas: list[dict[str, int]]) -> tuple[list[dict[str, tuple[int, int]]], int]:
    """(start, bytes) of every array when the areas follow one another, and where the last ends."""
    placed, end = [], 0
    for area in areas:
        places = {}
        for name, size in area.items():
            places[name] = (end, max(4, size))
            end += -(-max(4, size) // ALIGNMENT) * ALIGNMENT
        placed.append(places)
    return placed, end


MANAGERS: dict[str, Callable[[Device, CacheConfig], AuxDataManager]] = {
    "plain": PlainAuxDataManager,
    "cached": CachedAuxDataManager,
}
