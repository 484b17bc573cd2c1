"""TVM's checkpoint primitives over any cache: whole page groups out, and in again in two phases.

Format version 1 is TVM's, byte for byte (`tvm.py`): sequence 0 of a cache of plain attention layers;
importing replaces all that the cache holds.  Version 2 (`extended.py`) has any sequences, layer groups,
dtypes and page layouts; pages that sequences share are in it once, and importing adds sequences to the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from webkv.cache import PagedKVCache
from webkv.checkpoint import extended, tvm
from webkv.checkpoint.transfer import Staging, runs
from webkv.errors import CheckpointError
from webkv.layout import DTYPE_BYTES, PageLayout


@dataclass
class _Import:
    """An import under way: per layer the physical pages of its page group, in order, and what is there."""

    lengths: Mapping[int, int]
    pages: list[list[list[int]]]
    done: set[int] = field(default_factory=set)


class CheckpointPrimitives:
    """Export and import of sequences of `cache`; TVM's names and rules.

    `seq` is a sequence id, or several in version 2.  Page group g belongs to the g-th layer (version 1: in
    ascending order; version 2: group after group, as `groups` in the metadata says).
    """

    def __init__(self, cache: PagedKVCache, format_version: int = tvm.FORMAT) -> None:
        if format_version not in (tvm.FORMAT, extended.FORMAT):
            raise CheckpointError(f"format version is {format_version}, known are 1 (TVM's) and 2 (extended)")
        self.cache = cache
        self.version = format_version
        self._staging = Staging(cache.device)
        self._import: _Import | None = None

    def get_layout_hash(self) -> str:
        """Equal hashes mean interchangeable pages; capacities do not count."""
        return tvm.layout_hash(self.cache) if self.version == tvm.FORMAT else extended.layout_hash(self.cache)

    def get_checkpoint_metadata(self, seq: int | Sequence[int] = 0) -> str:
        """JSON that says what the page groups hold, and all that an import must check."""
        sequences = self._exportable(seq)
        if self.version == tvm.FORMAT:
            return tvm.to_text(tvm.metadata(self.cache, self.cache.get_sequence_length(sequences[0])))
        return extended.to_text(self.cache, sequences)

    def get_sequence_length(self, seq: int) -> int:
        """Tokens of a sequence; refused while an import is unfinished."""
        if self._import is not None:
            raise CheckpointError("sequence length is unavailable until checkpoint import is finished")
        return self.cache.get_sequence_length(seq)

    def _exportable(self, seq: int | Sequence[int]) -> list[int]:
        if self._import is not None:
            raise CheckpointError("checkpoint import must be finished before exporting a checkpoint")
        sequences = [seq] if isinstance(seq, int) else list(seq)
        if self.version == tvm.FORMAT and sequences != [0]:
            raise CheckpointError(f"TVM's checkpoint format supports sequence id 0 only, got {sequences}")
        for each in sequences:
            found = self.cache.manager.get(each)
            if found.tree is not None:
                raise CheckpointError(
                    f"checkpointing requires committed token-chain state: sequence {each} has "
                    f"an uncommitted tree of {found.tree.size} nodes"
                )
            if found.window is not None:
                raise CheckpointError(
                    f"sequence {each} has a window of its own, which no checkpoint can hold"
                )
            if found.importing:
                raise CheckpointError(f"sequence {each} is being imported")
        return sequences

    async def export_page_group(self, group: int, seq: int | Sequence[int] = 0) -> np.ndarray:
        """The pages of one layer, in logical order; slots that no token fills are 0.

        Version 1: `(1, pages, 2, kv_heads, page_size, head_dim)` of the cache's dtype.  Version 2: uint8
        `(pages, bytes of the layer's slot)`, pages that several sequences share once.
        """
        sequences = self._exportable(seq)
        layer, pool, layout = self._place(group)
        pages = extended.unique_pages(self.cache, layout.name, sequences)
        size = layout.declared.slot_bytes[pool]
        buffer = self.cache.layer_pages(layer)
        ordered = sorted((page, at) for at, page in enumerate(pages))
        parts = [(buffer, first * size, count * size) for first, count in runs(ordered)]
        data = (await self._staging.start(parts))[0] if parts else b""
        found = np.frombuffer(data, np.uint8).reshape(len(pages), size)
        out = np.empty_like(found)
        out[[at for _, at in ordered]] = found
        for at, page in enumerate(pages):
            clear_tail(layout.declared, layer, out[at], pages[page])
        if self.version == tvm.FORMAT:
            shape = tvm.page_group(self.cache).shape(len(pages))
            return out.view(_dtype(layout.declared, layer)).reshape(shape)
        return out

    def _place(self, group: int) -> tuple[int, int, extended.GroupLayout]:
        places = extended.places(self.cache)
        if not 0 <= group < len(places):
            raise CheckpointError(f"page group is {group}, the cache has {len(places)}")
        return places[group]

    def prepare_import(self, metadata: str, seq: int = 0) -> None:
        """Check `metadata` wholly, then reserve the pages; nothing has changed if this raises.

        Version 1 drops all sequences first.  Until `finish_import` the sequences cannot be used; `cancel` or
        the cache's `clear` undo it, and preparing again starts anew.
        """
        found = tvm.parse(metadata)
        if self.version == tvm.FORMAT:
            if seq != 0:
                raise CheckpointError(f"TVM's checkpoint format supports sequence id 0 only, got {seq}")
            length = tvm.check(self.cache, found)
            blocks = range(-(-length // self.cache.config.page_tokens))
            tables = [{0: (0, list(blocks))} for _ in self.cache.config.groups]
            self.cache.clear()
            self._reserve({0: length}, tables)
            return
        lengths, tables = extended.check(self.cache, found)
        self.cancel()
        self._reserve(lengths, tables)

    def _reserve(self, lengths: Mapping[int, int], tables: list[dict[int, tuple[int, list[int]]]]) -> None:
        pages: list[list[list[int]]] = []
        size = self.cache.config.page_tokens
        for seq in lengths:
            self.cache.add_sequence(seq)
        for group, table in zip(self.cache.config.groups, tables, strict=True):
            apart = extended.unfinished(table, lengths, size)
            copies: dict[int, list[int]] = {}
            for seq, (first, numbers) in table.items():
                shared = {
                    place: copies[number][0]
                    for place, number in enumerate(numbers)
                    if number in copies and number not in apart
                }
                taken = self.cache.adopt_pages(seq, group.name, first, len(numbers), shared)
                for place, (number, page) in enumerate(zip(numbers, taken, strict=True)):
                    if place not in shared:
                        copies.setdefault(number, []).append(page)
            pages += [[copies[number] for number in sorted(copies)]] * len(group.layers)
        self._import = _Import(lengths, pages)

    def import_page_group(self, group: int, data: np.ndarray | bytes) -> None:
        """Write one layer's page group; each once, in any order."""
        importing = self._importing("import_page_group")
        layer, pool, layout = self._place(group)
        if group in importing.done:
            raise CheckpointError(f"page group {group} was imported already")
        size, pages = layout.declared.slot_bytes[pool], importing.pages[group]
        if isinstance(data, np.ndarray):
            self._require_shape(group, data, len(pages))
            data = data.tobytes()
        raw = memoryview(data)
        if len(raw) != len(pages) * size:
            raise CheckpointError(f"page group {group}: found {len(raw)} bytes, expected {len(pages) * size}")
        targets = sorted((page, at) for at, copies in enumerate(pages) for page in copies)
        place = 0
        for first, count in runs(targets):
            slots = [raw[at * size : (at + 1) * size] for _, at in targets[place : place + count]]
            self.cache.device.write(self.cache.layer_pages(layer), b"".join(slots), first * size)
            place += count
        importing.done.add(group)

    def _require_shape(self, group: int, data: np.ndarray, pages: int) -> None:
        if self.version != tvm.FORMAT:
            return
        layer, _, layout = self._place(group)
        shape, dtype = tvm.page_group(self.cache).shape(pages), _dtype(layout.declared, layer)
        if data.shape != shape or data.dtype != dtype:
            raise CheckpointError(
                f"page group {group}: found shape {data.shape} of {data.dtype}, expected {shape} of {dtype}"
            )

    def finish_import(self) -> None:
        """The sequences can be used.  Raises `CheckpointError` naming a page group that is missing."""
        importing = self._importing("finish_import")
        for group in range(len(importing.pages)):
            if group not in importing.done:
                raise CheckpointError(f"checkpoint import is missing group {group}")
        for seq, length in importing.lengths.items():
            self.cache.seal(seq, length)
        self._import = None

    def cancel(self) -> None:
        """Drop an import under way, and what it has reserved."""
        if self._import is not None:
            for seq in self._import.lengths:
                if seq in self.cache.manager.sequences:
                    self.cache.remove_sequence(seq)
            self._import = None

    def _importing(self, what: str) -> _Import:
        if self._import is not None and not all(
            s in self.cache.manager.sequences for s in self._import.lengths
        ):
            self._import = None  # the cache was cleared
        if self._import is None:
            raise CheckpointError(f"{what}: prepare_import has not been called")
        return self._import


def clear_tail(layout: PageLayout, layer: int, slot: np.ndarray, valid: int) -> None:
    """Zero the elements of tokens from `valid` on, in the bytes of a layer's slot."""
    for tensor in layout.tensors:
        token = tensor.axis("token")
        if tensor.layer != layer or token is None or valid >= token.count:
            continue
        size = DTYPE_BYTES[tensor.dtype]
        axes = [axis for axis in tensor.axes if axis.name != "token"]
        shape = (token.count, *(axis.count for axis in axes), size)
        strides = (token.stride, *(axis.stride for axis in axes), 1)
        view = np.ndarray(shape, np.uint8, slot.data, tensor.offset, strides)
        view[valid:] = 0


def _dtype(layout: PageLayout, layer: int) -> np.dtype[Any]:
    return np.dtype({"f32": np.float32, "f16": np.float16}[layout.tensor(layer, "key").dtype])
