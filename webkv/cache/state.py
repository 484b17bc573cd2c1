"""The sequences of a cache and the pages they hold on the GPU, between forwards."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items

import numpy as np
import wgpu

from webkv.cache import adopt, debug
from webkv.cache.commit import apply_commit, plan_commit
from webkv.cache.config import CacheConfig
from webkv.cache.layers import Layer, make_layers
from webkv.cache.manager import SequenceManager
from webkv.cache.moves import PageMoves
from webkv.cache.step import Step
from webkv.cache.textures import PageTextures
from webkv.errors import CacheError
from webkv.gpu import Device
from webkv.layout import PageLayout


class CacheState:
    """What `PagedKVCache` does outside a forward.  A refusal is a `CacheError` that has changed nothing."""

    def __init__(self, device: Device, config: CacheConfig) -> None:
        self.device = device
        self.config = config
        self.manager = SequenceManager(config)
        self._layers = make_layers(device, config)
        self._textures = PageTextures(config, self._layers)
        self._moves = PageMoves(device, config, self._layers, self._textures.changed)
        self._step: Step | None = None

    # Sequences

    def clear(self) -> None:
        """Drop all sequences, and an open forward.  Page contents stay."""
        if self._step is not None:
            self._textures.abort()
        self._step = None
        self.manager.clear()

    def add_sequence(self, seq: int) -> None:
        """Add an empty sequence; refused when the id is taken or `reserved_num_seqs` are there."""
        self._require_closed("add_sequence")
        self.manager.add(seq)

    def remove_sequence(self, seq: int) -> None:
        """Forget a sequence and give back the pages that no other one shares."""
        self._require_closed("remove_sequence")
        self.manager.remove(seq)

    def fork_sequence(self, parent: int, child: int, pos: int = -1) -> None:
        """Add `child` with the first `pos` tokens of `parent` (-1: all), sharing its full pages.

        A partial last page is copied.  Raises `CacheFullError` if no page is left for that.
        """
        self._require_closed("fork_sequence")
        self._moves.copy(self.manager.fork(parent, child, pos))

    def popn(self, seq: int, n: int) -> None:
        """Take the last `n` tokens of a sequence off.

        Refused beyond the length, and beyond what a window still holds: `window` tokens at least are held
        between forwards, so one token can always be popped.
        """
        self._require_closed("popn")
        self._moves.copy(self.manager.popn(seq, n))

    def enable_sliding_window_for_seq(self, seq: int, window: int, sink: int = 0) -> None:
        """Keep the first `sink` tokens and the last ones of a sequence, `window` together (StreamingLLM).

        At the end of each forward the sequence is cut to `window` tokens; its length is `window` from then
        on, and positions count in what is kept.  Tokens shared with another sequence all stay as sinks.
        """
        self._require_closed("enable_sliding_window_for_seq")
        self.manager.enable_sliding(seq, window, sink)

    def commit_accepted_token_tree_nodes(self, seq_ids: Items[int], leaves: Items[int]) -> None:
        """Keep the path from the root to leaf `leaves[i]` of each sequence's token tree (-1: nothing of it).

        Leaves count in all nodes since the last commit; sequences may come in any order.
        """
        self._require_closed("commit_accepted_token_tree_nodes")
        self._moves.compact(plan_commit(self.manager, seq_ids, leaves))
        apply_commit(self.manager, seq_ids, leaves)

    # Queries

    def empty(self) -> bool:
        """Whether there is no sequence."""
        return not self.manager.sequences

    def num_available_pages(self, group: str | None = None) -> int:
        """Free pages of `group`; by default of the one with fewest, of those without a window if any."""
        if group is not None:
            return self.manager.pools[self._group(group)].available
        pools = list(zip(self.config.groups, self.manager.pools, strict=True))
        return min((g.window is not None, pool.available) for g, pool in pools)[1]

    def get_total_sequence_length(self) -> int:
        """Sum of all lengths; shared tokens count in each sequence."""
        return sum(found.length for found in self.manager.sequences.values())

    def get_sequence_length(self, seq: int) -> int:
        """Tokens of a sequence; refused while it is being imported."""
        found = self.manager.get(seq)
        if found.importing:
            raise CacheError(f"the length of sequence {seq} is unavailable until its import is finished")
        return found.length

    def settled_length(self, seq: int, what: str) -> int:
        """The length of a sequence whose tokens are all there, in plain order: no open forward, import, token
        tree or window of its own; else `CacheError`."""
        self._require_closed(what)
        length, found = self.get_sequence_length(seq), self.manager.get(seq)
        if found.tree is not None:
            raise CacheError(
                f"{what}: sequence {seq} has an uncommitted token tree of {found.tree.size} nodes"
            )
        if found.window is not None:
            raise CacheError(f"{what}: sequence {seq} has a window of its own, {found.window}")
        return length

    def check(self) -> None:
        """Assert that every page is owned exactly as often as it should be, and none is lost."""
        self.manager.check()

    def layer(self, layer: int) -> Layer:
        """The layer of that number; `CacheError` if the cache does not hold it."""
        found = self._layers.get(layer)
        if found is None:
            raise CacheError(f"layer id {layer} is out of range, the cache holds {list(self.config.layers)}")
        return found

    # Pages from and to a checkpoint

    def layout(self, group: str) -> PageLayout:
        """The declared layout of a group's pages; pool i is layer `layers[i]`'s buffer."""
        return self.config.layout(self.config.groups[self._group(group)])

    def layer_pages(self, layer: int) -> wgpu.GPUBuffer:
        """The buffer of a layer's pages: page p is at byte p * `slot_bytes` of its pool."""
        return self.layer(layer).pages

    def sequence_pages(self, seq: int, group: str) -> tuple[int, list[int]]:
        """(first block, page ids) of a sequence in a group; page i holds tokens from (first + i) *
        page_tokens.

        After a sequence's own window has slid, pages count in what is kept; see `Sequence`.
        """
        pages = self.manager.get(seq).pages[self._group(group)]
        return pages.first_block, pages.view.tolist()

    def adopt_pages(
        self, seq: int, group: str, first_block: int, n: int, shared: Mapping[int, int] | None = None
    ) -> list[int]:
        """Reserve `n` pages of an empty sequence, to be filled; it cannot be used until `seal`.

        `shared`: by place among them, pages that another sequence holds and that are full in both.
        """
        self._require_closed("adopt_pages")
        at = self._group(group)
        pages = adopt.adopt_pages(self.manager, seq, at, first_block, n, shared or {})
        self._textures.changed(at, pages)
        return pages

    def seal(self, seq: int, length: int) -> None:
        """End the import of a sequence whose adopted pages hold its first `length` tokens.

        A windowed group needs only the pages that the next query sees.
        """
        self._require_closed("seal")
        adopt.seal(self.manager, seq, length)

    # Debugging

    async def debug_get_kv(
        self, seq: int, start: int, end: int, group: str | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(K, V) of tokens `start .. end - 1` as stored, in logical order (sinks, then the window).

        f32 (layers, end - start, kv_heads, head_dim) and (..., v_dim), of `group`'s layers or of all.
        """
        ats = self._debug_groups(group)
        places = {at: debug.token_positions(self.manager, seq, at, start, end) for at in ats}
        read: dict[int, list[np.ndarray]] = {}
        for at in ats:
            layers = [self._layers[number] for number in self.config.groups[at].layers]
            made = await debug.read_tokens(self.device, layers, places[at])
            read |= {layer.number: kv for layer, *kv in zip(layers, *made, strict=True)}
        k, v = (np.stack([read[number][part] for number in sorted(read)]) for part in (0, 1))
        return k, v

    async def debug_get_kv_mla(self, seq: int, start: int, end: int) -> np.ndarray:
        """The compressed rows of tokens `start .. end - 1`, f32 (layers, end - start, head_dim)."""
        if any(group.kind != "mla" for group in self.config.groups):
            raise CacheError("debug_get_kv_mla needs a cache of mla layers only")
        return (await self.debug_get_kv(seq, start, end))[0][:, :, 0]

    def debug_set_kv(
        self, seq: int, start: int, k: np.ndarray, v: np.ndarray, group: str | None = None
    ) -> None:
        """Overwrite tokens from `start` on with K and V as `debug_get_kv` gives them; copies shared pages."""
        self._require_closed("debug_set_kv")
        ats = self._debug_groups(group)
        numbers = sorted(number for at in ats for number in self.config.groups[at].layers)
        shape = self._layers[numbers[0]].shape
        for what, found, dim in (("k", k, shape.head_dim), ("v", v, shape.v_dim)):
            expected = (len(numbers), k.shape[1] if k.ndim == 4 else -1, shape.kv_heads, dim)
            if found.shape != expected:
                raise CacheError(f"{what} has shape {found.shape}, expected {expected}")
        end = start + k.shape[1]
        for at in ats:
            debug.token_positions(self.manager, seq, at, start, end)
        for at in ats:
            copies: list[list[tuple[int, int, int]]] = [[] for _ in self.config.groups]
            copies[at] = adopt.own_pages(self.manager, seq, at, start, end)
            self._moves.copy(copies)
            layers = [self._layers[number] for number in self.config.groups[at].layers]
            rows = [numbers.index(layer.number) for layer in layers]
            places = debug.token_positions(self.manager, seq, at, start, end)
            parts = (np.ascontiguousarray(x[rows], np.float32) for x in (k, v))
            debug.write_tokens(self.device, layers, places, *parts)
            self._textures.changed(at, (places // self.config.page_tokens).tolist())

    def _debug_groups(self, group: str | None) -> list[int]:
        ats = list(range(len(self.config.groups))) if group is None else [self._group(group)]
        debug.same_shape(self.config, ats)
        return ats

    def _group(self, group: str) -> int:
        names = [g.name for g in self.config.groups]
        if group not in names:
            raise CacheError(f"layer group {group!r} is unknown, the cache has {', '.join(names)}")
        return names.index(group)

    def _open(self, what: str) -> Step:
        if self._step is None:
            raise CacheError(f"{what} needs an open forward: call begin_forward first")
        return self._step

    def _require_closed(self, what: str) -> None:
        if self._step is not None:
            raise CacheError(f"{what} inside a forward: call end_forward first")
