"""Maps between any two layouts, as byte runs.  Pure: no GPU, no values.

For every destination tensor, tokens are cut where either side's page ends and the other axes where the holder
changes; each piece comes from the lowest source rank that holds it.  So every destination byte is written
exactly once, replicas are read once and written everywhere, and a gap is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from webkv.errors import LayoutError
from webkv.layout.declare import PageLayout, Tensor, refuse, require_int
from webkv.layout.held import Held
from webkv.layout.runs import CONVERTERS, Run, merged

Holder = tuple[PageLayout, Held]
Box = dict[str, range]


@dataclass(frozen=True, slots=True)
class _Side:
    """One tensor as one rank holds it."""

    rank: int
    layout: PageLayout
    held: Held
    tensor: Tensor

    def box(self) -> Box:
        """Global indices held, by axis, without tokens."""
        spans = {}
        for axis in self.tensor.axes:
            if axis.name != "token":
                first = self.held.first(self.tensor, axis.name)
                spans[axis.name] = range(first, first + axis.count)
        return spans

    def page(self, token: int) -> int:
        return token // self.layout.page_tokens if self.layout.page_tokens else 0

    def offset(self, box: Box) -> int:
        """Bytes in the slot of the first element of a box, whose tokens lie in one page."""
        at = self.tensor.offset
        for name, span in box.items():
            page_first = self.page(span.start) * self.layout.page_tokens
            first = page_first if name == "token" else self.held.first(self.tensor, name)
            at += (span.start - first) * self.tensor.stride(name)
        return at

    def scale(self) -> _Side:
        """The f32 scales of this int8 tensor, declared with the same axes but dim."""
        layer, role, part = self.tensor.key
        scale = _Side(self.rank, self.layout, self.held, self.layout.tensor(layer, f"{role}_scale", part))
        rows = {name: span for name, span in self.box().items() if name != "dim"}
        if scale.box() != rows or scale.tensor.dtype != "f32":
            raise refuse(f"{scale.tensor.name} axes", scale.box(), f"f32 rows of {rows}")
        return scale


def plan(
    src: Sequence[Holder],
    dst: Sequence[Holder],
    tokens: tuple[int, int] = (0, 0),
    *,
    converters: Collection[str] = (),
) -> tuple[Run, ...]:
    """Runs that fill every destination byte of tokens `[start, stop)`, sorted by destination.

    `src` and `dst` are (layout, held) by rank.  State layouts have no tokens: their one page is copied whole.
    Values change only through a converter of `CONVERTERS` that is named in `converters`.  `LayoutError`
    names the tensor where no source declares it, nobody holds an index, or axes or dtypes differ.
    """
    start, stop = tokens
    require_int("tokens start", start, 0)
    require_int("tokens stop", stop, start)
    for name in converters:
        if name not in CONVERTERS:
            raise refuse("converters", name, f"one of {', '.join(CONVERTERS)}")
    for layout, held in (*src, *dst):
        held.check(layout)
    runs: list[Run] = []
    for side in _sides(dst):
        runs += _fill(side, src, (start, stop), converters)
    return merged(runs)


def _sides(holders: Sequence[Holder]) -> list[_Side]:
    return [
        _Side(rank, *holder, tensor) for rank, holder in enumerate(holders) for tensor in holder[0].tensors
    ]


def _fill(
    side: _Side, src: Sequence[Holder], tokens: tuple[int, int], converters: Collection[str]
) -> Iterator[Run]:
    if _written_with_rows(side, src):
        return
    sources = _sources(side, src)
    if not sources:
        raise LayoutError(f"{side.tensor.name}: no source declares it")
    converter = _converter(side, sources, converters)
    for box, source in _cells(side, sources):
        for start, stop in _token_pieces(side.layout.page_tokens, source.layout.page_tokens, tokens):
            piece = {**box, "token": range(start, stop)} if side.layout.page_tokens else box
            yield from _box_runs(side, source, piece, converter)


def _sources(side: _Side, src: Sequence[Holder]) -> list[_Side]:
    """The source ranks' tensors of the same (layer, role, part), with the same axes."""
    sources = [source for source in _sides(src) if source.tensor.key == side.tensor.key]
    expected = sorted(axis.name for axis in side.tensor.axes)
    for source in sources:
        found = sorted(axis.name for axis in source.tensor.axes)
        if found != expected:
            raise refuse(f"{side.tensor.name} axes", found, str(expected))
    return sources


def _written_with_rows(side: _Side, src: Sequence[Holder]) -> bool:
    """True for the scales of a destination that is quantized on the way: they are written with their rows."""
    layer, role, part = side.tensor.key
    rows = (layer, role.removesuffix("_scale"), part)
    if not role.endswith("_scale") or all(tensor.key != rows for tensor in side.layout.tensors):
        return False
    dtypes = {source.tensor.dtype for source in _sides(src) if source.tensor.key == rows}
    return side.layout.tensor(*rows).dtype == "int8" and bool(dtypes) and "int8" not in dtypes


def _converter(side: _Side, sources: Sequence[_Side], converters: Collection[str]) -> str:
    """The converter all of a destination's sources need: "" where dtypes agree."""
    dtypes = {source.tensor.dtype for source in sources}
    if dtypes == {side.tensor.dtype}:
        return ""
    if len(dtypes) == 1:
        pair = (dtypes.pop(), side.tensor.dtype)
        for name in converters:
            if CONVERTERS[name] == pair:
                return name
        dtypes = {pair[0]}
    found, expected = ", ".join(sorted(dtypes)), side.tensor.dtype
    raise LayoutError(
        f"{side.tensor.name}: dtype differs, a named converter is needed: found {found}, expected {expected}"
    )


def _cells(side: _Side, sources: Sequence[_Side]) -> Iterator[tuple[Box, _Side]]:
    """The destination's box, cut where holders change, each part with the lowest rank that holds it."""
    boxes = [(source.box(), source) for source in sources]
    cuts = []
    for name, span in side.box().items():
        ends = {span.start, span.stop}
        for box, _ in boxes:
            ends |= {end for end in (box[name].start, box[name].stop) if span.start < end < span.stop}
        cuts.append([(name, range(*pair)) for pair in pairwise(sorted(ends))])
    for parts in product(*cuts):
        cell = dict(parts)
        yield cell, _lowest(side, cell, boxes)


def _lowest(side: _Side, cell: Box, boxes: Sequence[tuple[Box, _Side]]) -> _Side:
    def holds(box: Box, name: str) -> bool:
        return box[name].start <= cell[name].start and cell[name].stop <= box[name].stop

    for box, source in boxes:
        if all(holds(box, name) for name in cell):
            return source
    alone = [name for name in cell if not any(holds(box, name) for box, _ in boxes)] or list(cell)
    missing = ", ".join(f"{name} {cell[name].start}" for name in alone)
    raise LayoutError(f"{side.tensor.name}: nobody holds {missing}")


def _token_pieces(dst_page: int, src_page: int, tokens: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Token ranges that lie in one page on both sides; a state's page is one piece."""
    if not dst_page:
        yield 0, 0
        return
    at, stop = tokens
    while at < stop:
        end = min(stop, (at // dst_page + 1) * dst_page, (at // src_page + 1) * src_page)
        yield at, end
        at = end


def _box_runs(side: _Side, source: _Side, box: Box, converter: str) -> Iterator[Run]:
    """Runs of one box that is in one page on both sides, as long as both sides stay contiguous."""
    lanes = [
        (len(span), side.tensor.stride(name), source.tensor.stride(name), name)
        for name, span in box.items()
        if len(span) > 1
    ]
    lanes.sort(key=lambda lane: lane[1])
    dst_run, src_run = side.tensor.itemsize, source.tensor.itemsize
    row = _row_scale(side, source, box) if converter and "int8" in CONVERTERS[converter] else None
    while lanes and lanes[0][1:3] == (dst_run, src_run) and (row is None or lanes[0][3] == "dim"):
        count = lanes.pop(0)[0]
        dst_run, src_run = dst_run * count, src_run * count
    if row and any(lane[3] == "dim" for lane in lanes):
        raise refuse(f"{side.tensor.name} dim", "rows with gaps", f"contiguous rows for {converter}")
    token = box["token"].start if "token" in box else 0
    start = (side.offset(box), source.offset(box), row.offset(_rows(box)) if row else -1)
    steps = [
        [(at * d, at * s, at * _stride(row, name)) for at in range(n)] for n, d, s, name in reversed(lanes)
    ]
    for path in product(*steps):
        dst_at, src_at, scale_at = (first + sum(hop) for first, *hop in zip(start, *path, strict=True))
        yield Run(
            side.rank,
            side.tensor.pool,
            side.page(token),
            dst_at,
            source.rank,
            source.tensor.pool,
            source.page(token),
            src_at,
            dst_run,
            converter,
            row.tensor.pool if row else -1,
            scale_at,
        )


def _row_scale(side: _Side, source: _Side, box: Box) -> _Side:
    """The scale tensor of a conversion from or to int8, whose rows must be whole on both sides."""
    for end in (side, source):
        if end.box().get("dim") != box.get("dim"):
            raise refuse(f"{end.tensor.name} dim", end.box().get("dim"), f"whole rows of {box.get('dim')}")
    return (side if side.tensor.dtype == "int8" else source).scale()


def _rows(box: Box) -> Box:
    return {name: span for name, span in box.items() if name != "dim"}


def _stride(side: _Side | None, name: str) -> int:
    return side.tensor.stride(name) if side else 0
