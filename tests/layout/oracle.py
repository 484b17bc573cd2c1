"""What a plan should do, found the slow way: every element carries its global name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from webkv.layout import Held, PageLayout, Run, Tensor

Place = tuple[int, int, int, int]  # rank, pool, page, byte
Label = Any  # ((layer, role, part), token, ((axis, index), ...), byte of the element)


def labels(rank: int, layout: PageLayout, held: Held, tokens: range) -> Iterator[tuple[Place, Label]]:
    """Every declared byte of the pages that hold `tokens`, with the global name of what belongs there."""
    for tensor in layout.tensors:
        for token in tokens if layout.page_tokens else (0,):
            page, slot = divmod(token, layout.page_tokens or 1)
            for place, label in _token_bytes(tensor, held, slot):
                yield (rank, tensor.pool, page, place), (tensor.key, token, *label)


def _token_bytes(tensor: Tensor, held: Held, slot: int) -> Iterator[tuple[int, Label]]:
    axes = sorted((axis for axis in tensor.axes if axis.name != "token"), key=lambda axis: axis.name)
    for index in product(*(range(axis.count) for axis in axes)):
        at = tensor.offset + slot * tensor.stride("token")
        at += sum(i * axis.stride for i, axis in zip(index, axes, strict=True))
        name = tuple(
            (axis.name, i + held.first(tensor, axis.name)) for i, axis in zip(index, axes, strict=True)
        )
        for byte in range(tensor.itemsize):
            yield at + byte, (name, byte)


def expected(
    src: Sequence[tuple[PageLayout, Held]], dst: Sequence[tuple[PageLayout, Held]], tokens: range
) -> dict[Place, Place]:
    """Destination byte -> source byte, from the lowest source rank that has it."""
    where: dict[Label, Place] = {}
    for rank, holder in enumerate(src):
        for place, label in labels(rank, *holder, tokens):
            where.setdefault(label, place)
    return {place: where[label] for rank, h in enumerate(dst) for place, label in labels(rank, *h, tokens)}


def moves(runs: Iterable[Run]) -> dict[Place, Place]:
    """What runs do, byte by byte; a destination byte written twice is an error."""
    done: dict[Place, Place] = {}
    for run in runs:
        for at in range(run.nbytes):
            place = (run.dst_rank, run.dst_pool, run.dst_page, run.dst_offset + at)
            assert place not in done, place
            done[place] = (run.src_rank, run.src_pool, run.src_page, run.src_offset + at)
    return done
