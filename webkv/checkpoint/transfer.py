"""Full pages of a cache's sequence, out of GPU memory and back in.

A page is the slots of all its group's layers, one after the other, as `PageLayout` declares them.  Each slot
is contiguous in its layer's buffer, so buffer copies move it at the speed of a plain read-back; pages with
neighbouring ids go in one copy per layer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import wgpu

from webkv.cache import PagedKVCache
from webkv.checkpoint.identity import Identity
from webkv.checkpoint.refs import PageId
from webkv.errors import CacheError
from webkv.gpu import Device

_READ = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
_PAGES_PER_WRITE = 16


Pieces = Sequence[tuple[int, int]]


class Staging:
    """Read-back buffers of one device, used again; several read-backs may be under way."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._free: dict[int, list[wgpu.GPUBuffer]] = {}

    def start(
        self, parts: Sequence[tuple[wgpu.GPUBuffer, int, int]], results: Sequence[Pieces] | None = None
    ) -> asyncio.Task[list[bytes]]:
        """Submit copies of (buffer, offset, bytes) now; they come back one after the other.

        The task gives one `bytes` per item of `results`, each made of (start, bytes) pieces of what came
        back; by default all of it.
        """
        self.device.check(keep=True)  # what was refused is the model's work, which must hear of it
        size = sum(part[2] for part in parts)
        room = 1 << max(8, (size - 1).bit_length())
        room = min(room, max(size, self.device.facts.limits["max-buffer-size"]))
        free = self._free.setdefault(room, [])
        buffer = free.pop() if free else self.device.buffer(room, label="page staging", usage=_READ)
        at = 0
        with self.device.batch() as batch:
            for source, offset, nbytes in parts:
                batch.copy(source, offset, buffer, at, nbytes)
                at += nbytes
        task = asyncio.ensure_future(self._read(buffer, size, results or [[(0, size)]]))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody has to wait for it
        return task

    async def _read(self, buffer: wgpu.GPUBuffer, size: int, results: Sequence[Pieces]) -> list[bytes]:
        try:
            self.device.check(keep=True)  # this runs later than the copy: the device may be gone by now
            await buffer.map_async(self.device.map_mode, 0, size)
            self.device.check(keep=True)
            # The mapped memory itself, so that every byte is copied once; it is gone after unmap.
            mapped = memoryview(buffer.read_mapped(0, size, copy=False)).cast("B")
            made = [b"".join([mapped[at : at + count] for at, count in pieces]) for pieces in results]
            mapped.release()
            buffer.unmap()
        except (wgpu.GPUError, RuntimeError) as error:
            raise self.device.translate(error) from error
        self._free[buffer.size].append(buffer)
        return made


@dataclass(frozen=True)
class _Exported(Awaitable[bytes]):
    """One page of a read-back."""

    read: asyncio.Task[list[bytes]]
    place: int

    def __await__(self) -> Generator[Any, None, bytes]:
        return (yield from asyncio.shield(self.read).__await__())[self.place]


class CachePages:
    """One sequence of a cache, as the `PageSource` and `PageTarget` of a session."""

    def __init__(self, cache: PagedKVCache, seq: int, identity: Identity) -> None:
        self.cache = cache
        self.seq = seq
        self.identity = identity
        self._staging = Staging(cache.device)
        # (layer, bytes of its slot) of each group, in declared order.
        self._layers = {
            group.name: list(zip(group.layers, cache.layout(group.name).slot_bytes, strict=True))
            for group in cache.config.groups
        }
        self._places: dict[PageId, int] = {}
        self._waiting: dict[str, list[tuple[int, bytes]]] = {}
        self._tokens = 0

    def export(self, pages: Sequence[PageId]) -> list[Awaitable[bytes] | None]:
        """See `PageSource`; one submit and one read-back for all of them."""
        groups = dict.fromkeys(page[0] for page in pages)
        held = {group: self.cache.sequence_pages(self.seq, group) for group in groups}
        parts: list[tuple[wgpu.GPUBuffer, int, int]] = []
        pieces: dict[int, list[tuple[int, int]]] = {}
        start = 0
        for group, (first, ids) in held.items():
            blocks = [(block - first, at) for at, (name, block) in enumerate(pages) if name == group]
            places = sorted((ids[block], at) for block, at in blocks if 0 <= block < len(ids))
            neighbours = runs(places)
            pieces |= {at: [] for _, at in places}
            for layer, size in self._layers[group]:
                buffer = self.cache.layer_pages(layer)
                parts += [(buffer, page * size, count * size) for page, count in neighbours]
                for place, (_, at) in enumerate(places):
                    pieces[at].append((start + place * size, size))
                start += len(places) * size
        if not parts:
            return [None] * len(pages)
        read = self._staging.start(parts, list(pieces.values()))
        results = {at: _Exported(read, place) for place, at in enumerate(pieces)}
        return [results.get(at) for at in range(len(pages))]

    def full(self, tokens: int) -> int:
        """How many full pages of the first `tokens` tokens are held, in all groups."""
        blocks = tokens // self.identity.page_tokens
        held = [self.cache.sequence_pages(self.seq, group.name) for group in self.identity.groups]
        return sum(min(blocks - first, len(ids)) for first, ids in held)

    def reserve(self, tokens: int) -> None:
        """See `PageTarget`."""
        assert not self._places, "reserved twice"
        try:
            for group in self.identity.groups:
                blocks = list(group.needed(tokens, self.identity.page_tokens))
                assert blocks == list(range(blocks[0], blocks[0] + len(blocks))), blocks
                ids = self.cache.adopt_pages(self.seq, group.name, blocks[0], len(blocks))
                self._places |= {(group.name, block): page for block, page in zip(blocks, ids, strict=True)}
        except CacheError:
            self.cancel()
            raise
        self._tokens = tokens

    def write(self, group: str, block: int, data: bytes) -> None:
        """See `PageTarget`."""
        waiting = self._waiting.setdefault(group, [])
        waiting.append((self._places[group, block], data))
        if len(waiting) == _PAGES_PER_WRITE:
            self._flush(group)

    def _flush(self, group: str) -> None:
        waiting = self._waiting.pop(group)
        waiting.sort(key=lambda item: item[0])
        start = 0
        for layer, size in self._layers[group]:
            buffer, place = self.cache.layer_pages(layer), 0
            for page, count in runs(waiting):
                slots = [memoryview(data)[start : start + size] for _, data in waiting[place : place + count]]
                self.cache.device.write(buffer, b"".join(slots), page * size)
                place += count
            start += size

    def seal(self) -> None:
        """See `PageTarget`."""
        for group in list(self._waiting):
            self._flush(group)
        self.cache.seal(self.seq, self._tokens)
        self._places.clear()

    def cancel(self) -> None:
        """See `PageTarget`."""
        self._places.clear()
        self._waiting.clear()
        self.cache.remove_sequence(self.seq)
        self.cache.add_sequence(self.seq)


def runs(pages: Sequence[tuple[int, Any]]) -> list[tuple[int, int]]:
    """(first page, count) for each run of neighbouring ids in sorted `pages`."""
    runs: list[tuple[int, int]] = []
    for page, *_ in pages:
        if runs and page == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((page, 1))
    return runs
