"""A sequence into a cache of another page size, order, packing, dtype or share of the heads, on the GPU.

Plans come from `webkv.layout`; bytes go from page buffer to page buffer of one device and never to the host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from webkv.cache.config import LayerGroup
from webkv.cache.holdings import Holding, LayersPlan, fill, plan_layers
from webkv.cache.runs import COPIES_AT_MOST, PageIds
from webkv.cache.state import CacheState
from webkv.errors import CacheError, WebkvError
from webkv.layout import Held


@dataclass(frozen=True)
class Share:
    """A sequence of one cache, and which of the model's heads that cache holds (default: all of them)."""

    cache: CacheState
    seq: int
    held: Held = field(default_factory=Held)


@dataclass(frozen=True)
class Source:
    """What one holder has of a layer group, as stored: `first_token` is the first one it still holds.

    `group` and `stored` (see `stored_keys`) are for comparison; None where nobody knows.
    """

    holding: Holding
    first_token: int
    group: LayerGroup | None = None
    stored: object = None


@dataclass(frozen=True)
class Job:
    """How one group of a target is filled: `count` pages from block `first` on."""

    target: Share
    group: LayerGroup
    sources: Sequence[Source]
    first: int
    count: int
    missing: int
    plans: Sequence[LayersPlan]


def copy_sequence(
    src: CacheState, src_seq: int, dst: CacheState, dst_seq: int, *, converters: Collection[str] = ()
) -> None:
    """Add sequence `dst_seq` to `dst` with all that `src_seq` holds in `src`, mapped to `dst`'s layout.

    Both caches are on one device.  A windowed group gets the pages its next query sees.  `converters`: the
    value changes that are allowed, names of `webkv.layout.CONVERTERS` (all of them: pass it whole); equal
    dtypes are copied bit for bit.  Raises with nothing changed: `LayoutError` (no source has a layer or
    head, a dtype differs without its converter), `CacheFullError`, else `CacheError` (other head dims or
    rope, a window that is wider than what is held, a sequence that is not settled or not new).
    """
    copy_shares([Share(src, src_seq)], [Share(dst, dst_seq)], converters=converters)


def copy_shares(
    sources: Sequence[Share],
    targets: Sequence[Share],
    *,
    converters: Collection[str] = (),
    copies_at_most: int = COPIES_AT_MOST,
) -> None:
    """`copy_sequence` between caches that hold shares of one sequence each (tensor or pipeline parallel).

    Where several sources hold a head, the first one is read.  A `Share` without `held` has all heads.
    `copies_at_most`: see `webkv.cache.runs.COPIES_AT_MOST`.
    """
    length = _settled(sources, targets)
    jobs: list[Job] = []
    for target in targets:
        for group in target.cache.config.groups:
            found = [s for share in sources for s in _sources(share, group)]
            jobs.append(plan_job(found, target, group, length, converters))
    adopt_and_fill(jobs, length, copies_at_most)


def plan_job(
    sources: Sequence[Source], target: Share, group: LayerGroup, length: int, converters: Collection[str]
) -> Job:
    """What fills `group` of `target` with a sequence of `length` tokens; raises if nothing can."""
    cache, size = target.cache, target.cache.config.page_tokens
    for source in sources:
        _check_same(source, cache, group)
    _check_heads(sources, target, group)
    held_from = max((source.first_token for source in sources), default=0)
    end, held = -(-length // size), group.held_pages(size)
    first = 0 if held is None else max(0, end - held)
    needed = 0 if group.window is None else max(0, length - group.window + 1)
    if held_from > needed:
        raise CacheError(
            f"layer group {group.name!r} of window {group.window} needs the sequence from token {needed} on, "
            f"the source holds it from token {held_from} on"
        )
    first = max(first, min(-(-held_from // size), needed // size))
    start = max(held_from, first * size)
    holders = [(source.holding.layout, source.holding.held) for source in sources]
    layout = cache.layout(group.name)
    plans = plan_layers(holders, (layout, target.held), range(start, length), converters)
    return Job(target, group, sources, first, end - first, start - first * size, plans)


def adopt_and_fill(jobs: Sequence[Job], length: int, copies_at_most: int = COPIES_AT_MOST) -> None:
    """Add the targets' sequences and fill them; all or nothing."""
    for job in jobs:
        cache = job.target.cache
        cache.manager.pools[cache.layer(job.group.layers[0]).at].require(job.count)
    targets = list({id(job.target.cache): job.target for job in jobs}.values())
    added: list[Share] = []
    try:
        for target in targets:
            target.cache.add_sequence(target.seq)
            added.append(target)
        for job in jobs:
            _fill(job, copies_at_most)
        for target in targets:
            target.cache.seal(target.seq, length)
    except WebkvError:
        for target in added:
            target.cache.remove_sequence(target.seq)
        raise


def _fill(job: Job, copies_at_most: int) -> None:
    cache, group = job.target.cache, job.group
    ids = cache.adopt_pages(job.target.seq, group.name, job.first, job.count)
    pages = PageIds(job.first, np.array(ids, np.int64))
    target = _holding(job.target, group, pages)
    if job.missing:
        cache.manager.get(job.target.seq).pages[cache.layer(group.layers[0]).at].missing = job.missing
        for buffer, size in zip(target.buffers, target.layout.slot_bytes, strict=True):
            cache.device.write(buffer, bytes(size), ids[0] * size)
    fill(cache.device, job.plans, [source.holding for source in job.sources], target, copies_at_most)


def source_of(share: Share, group: LayerGroup) -> Source:
    """What `share` has of one of its cache's groups."""
    cache = share.cache
    first, ids = cache.sequence_pages(share.seq, group.name)
    at = cache.layer(group.layers[0]).at
    first_token = cache.manager.get(share.seq).pages[at].first_token(cache.config.page_tokens)
    holding = _holding(share, group, PageIds(first, np.array(ids, np.int64)))
    return Source(holding, first_token, group, stored_keys(cache, group))


def _sources(share: Share, wanted: LayerGroup) -> list[Source]:
    """What `share` has of any layer of `wanted`."""
    groups = share.cache.config.groups
    return [source_of(share, group) for group in groups if set(group.layers) & set(wanted.layers)]


def _holding(share: Share, group: LayerGroup, pages: PageIds) -> Holding:
    buffers = tuple(share.cache.layer_pages(layer) for layer in group.layers)
    return Holding(share.cache.layout(group.name), share.held, pages, buffers)


def stored_keys(cache: CacheState, group: LayerGroup) -> object:
    """Equal exactly when two groups store the same key the same way: rotated or not, and by which angles."""
    mode = cache.layer(group.layers[0]).shape.rope
    if mode == "none":
        return mode
    rope = group.rope
    return mode, rope.rotary_dim, rope.pairing, rope.table(np.array([1, 1000])).tobytes()


def _settled(sources: Sequence[Share], targets: Sequence[Share]) -> int:
    """The length of the sources' sequence, checked together with everything that is not about pages."""
    caches = [share.cache for share in (*sources, *targets)]
    if not sources or not targets:
        raise CacheError(f"found {len(sources)} sources and {len(targets)} targets, expected one of each")
    if len({id(cache) for cache in caches}) != len(caches):
        raise CacheError("a cache is named twice, expected different ones; within one use fork_sequence")
    if any(cache.device is not caches[0].device for cache in caches):
        raise CacheError("the KV caches are on different devices, expected one")
    lengths = [share.cache.settled_length(share.seq, "copy_sequence") for share in sources]
    if len(set(lengths)) > 1:
        raise CacheError(f"the sources hold {lengths} tokens, expected equal lengths")
    return lengths[0]


def _check_same(source: Source, cache: CacheState, group: LayerGroup) -> None:
    """Raise unless rows and keys of `source` are what `group` takes them for."""
    ours = {tensor.key: tensor.axis("dim") for tensor in cache.layout(group.name).tensors}
    for tensor in source.holding.layout.tensors:
        found, expected = tensor.axis("dim"), ours.get(tensor.key)
        if found and expected and found.count != expected.count:
            raise group.error(f"dim of {tensor.name} in the source", found.count, str(expected.count))
    if source.group is None or source.stored is None:
        return
    if source.group.value_dim != group.value_dim:
        raise group.error("v_dim of the source", source.group.value_dim, str(group.value_dim))
    if source.stored != stored_keys(cache, group):
        raise group.error("rope of the source", source.group.rope, str(group.rope))


def _check_heads(sources: Sequence[Source], target: Share, group: LayerGroup) -> None:
    """Raise if a target that says nothing of shares has fewer heads than there are."""
    total = 0
    for source in sources:
        for tensor in source.holding.layout.tensors:
            head = tensor.axis("head")
            total = max(total, source.holding.held.first(tensor, "head") + head.count if head else 1)
    if total > group.kv_heads and not _says_heads(target.held):
        raise group.error("kv_heads of the source", total, str(group.kv_heads))


def _says_heads(held: Held) -> bool:
    firsts: list[Mapping[str, int]] = [held.axes, *held.tensors.values()]
    return any("head" in each for each in firsts)
