from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.cache.harness import Pair, config, group
from tests.cache.scenario import Runner, Scenario
from tests.support import device
from webkv.cache import CacheConfig, LayerGroup, PagedKVCache, RopeConfig
from webkv.checkpoint.primitives import CheckpointPrimitives
from webkv.errors import CacheError, CacheFullError, CheckpointError, DamageError, IdentityError, WebkvError


class CheckpointRunner(Runner):
    """Runs a TVM case with its checkpoint operations."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.primitives = CheckpointPrimitives(self.cache)
        self.made: dict[int, str] = {}

    async def run(self, compare: bool = True) -> None:
        self.compare = compare
        for at, op in enumerate(self.scenario.ops):
            before = self._facts()
            call = getattr(self, f"op_{op['op']}")
            if "error" in op:
                # TVM refuses until the next forward after a committed tree; there is no reason to.
                if self.scenario.ops[at - 1]["op"] == "commit":
                    await call(at, op)
                    continue
                with pytest.raises(WebkvError, match=None if op["error"] is True else _words(op["error"])):
                    await call(at, op)
                assert self._facts() == before, f"op {at} {op} failed and left a trace"
                continue
            await call(at, op)
            log = self.scenario.log[at]
            free, length = self._facts()
            assert free == log["free_pages"], f"op {at} {op}"
            # TVM counts a sequence that is being imported; ours has no tokens until it is finished.
            assert length == (0 if op["op"] == "prepare_import" else log["total_len"]), f"op {at} {op}"

    async def op_checkpoint(self, at: int, op: dict[str, Any]) -> None:
        text = self.primitives.get_checkpoint_metadata(op.get("seq", 0))
        self.made[at] = text
        if f"meta_{at}" not in self.scenario.arrays:
            return
        assert text.encode() == self.scenario.arrays[f"meta_{at}"].tobytes()
        for layer in self.cache.config.layers:
            self.close(f"group_{at}_{layer}", await self.primitives.export_page_group(layer))

    async def op_layout_hash(self, at: int, op: dict[str, Any]) -> None:
        assert self.primitives.get_layout_hash() == self.scenario.log[at]["result"]

    async def op_prepare_import(self, at: int, op: dict[str, Any]) -> None:
        fields = json.loads(self.made[op["source"]])
        for path, value in op.get("patch", {}).items():
            *outer, last = path.split(".")
            place = fields
            for name in outer:
                place = place[int(name)] if isinstance(place, list) else place[name]
            if value is None:
                del place[last]
            else:
                place[int(last) if isinstance(place, list) else last] = value
        self.primitives.prepare_import(json.dumps(fields))

    async def op_finish_import(self, at: int, op: dict[str, Any]) -> None:
        self.primitives.finish_import()

    async def op_import(self, at: int, op: dict[str, Any]) -> None:
        """TVM's own metadata and page groups go in, and come out as they were."""
        arrays = self.scenario.arrays
        text = arrays[f"meta_{op['source']}"].tobytes().decode()
        self.primitives.prepare_import(text)
        for layer in op["order"]:
            self.primitives.import_page_group(layer, arrays[f"group_{op['source']}_{layer}"])
        self.primitives.finish_import()
        assert self.primitives.get_checkpoint_metadata() == text
        for layer in op["order"]:
            found = await self.primitives.export_page_group(layer)
            assert found.tobytes() == arrays[f"group_{op['source']}_{layer}"].tobytes()

    async def op_seqlen(self, at: int, op: dict[str, Any]) -> None:
        assert self.primitives.get_sequence_length(op["seq"]) == self.scenario.log[at].get("result")


def _words(error: str) -> str:
    """The case's words in any wording of ours."""
    return {
        "before checkpoint import is finished": "import",
        "sequence length mismatch": "sequence length mismatch",
        "negative": "cannot be negative",
        "missing field": "missing field",
        "shape": r"shape",
        "until checkpoint import is finished": "until checkpoint import is finished",
    }.get(error, error)


@pytest.mark.parametrize("name", ["15_checkpoint", "16_checkpoint_errors"])
async def test_case_equals_tvm(name: str) -> None:
    await CheckpointRunner(await device(), Scenario.load(name)).run()


def full(**fields: Any) -> LayerGroup:
    return group("full", (0, 2), **fields)


def local(**fields: Any) -> LayerGroup:
    return group("local", (1,), window=20, **fields)


EXTENDED = {
    "mixed windows": config(full(), local()),
    "f16": config(full(), page_dtype="f16"),
    "int8": config(full(), local(), page_dtype="int8"),
    "different head dims": config(full(v_dim=8), order="token_major"),
    "packed": config(full(), packing="packed"),
    "mla": config(LayerGroup("mla", (0, 1), 1, 4, 24, v_dim=16, kind="mla", rope=RopeConfig(mode="none"))),
    "rope factors": config(
        full(
            rope=RopeConfig(
                scaling="longrope",
                original_max_position=32,
                max_position=64,
                short_factors=(1.0,) * 8,
                long_factors=(2.0,) * 8,
            )
        )
    ),
}


async def filled(made: CacheConfig, lengths: dict[int, int]) -> PagedKVCache:
    """A cache whose pages hold random bytes, NaN patterns among them."""
    cache = PagedKVCache(await device(), made)
    for layer in made.layers:
        pages = cache.layer_pages(layer)
        cache.device.write(pages, np.random.default_rng(layer).integers(0, 2**32, pages.size // 4, np.uint32))
    for seq, length in lengths.items():
        cache.add_sequence(seq)
        for start in range(0, length, made.prefill_chunk_size):
            cache.begin_forward([seq], [min(made.prefill_chunk_size, length - start)])
            cache.end_forward()
    return cache


@pytest.mark.parametrize("kind", EXTENDED)
async def test_extended_page_groups_come_back_as_they_were(kind: str) -> None:
    cache = await filled(EXTENDED[kind], {7: 50, 3: 16, 4: 0})
    primitives = CheckpointPrimitives(cache, 2)
    text = primitives.get_checkpoint_metadata([3, 7, 4])
    count = len(cache.config.layers)
    groups = [await primitives.export_page_group(at, [3, 7, 4]) for at in range(count)]
    for seq in (7, 3, 4):
        cache.remove_sequence(seq)
    cache.add_sequence(1)
    primitives.prepare_import(text)
    for at in reversed(range(count)):
        primitives.import_page_group(at, groups[at])
    primitives.finish_import()
    cache.check()
    assert [cache.get_sequence_length(seq) for seq in (3, 7, 4, 1)] == [16, 50, 0, 0]
    assert primitives.get_checkpoint_metadata([3, 7, 4]) == text
    for at in range(count):
        assert np.array_equal(await primitives.export_page_group(at, [3, 7, 4]), groups[at])


@pytest.mark.parametrize("kind", ["int8", "packed", "different head dims"])
async def test_unused_slots_are_zero_in_every_layout(kind: str) -> None:
    made = EXTENDED[kind]
    cache = await filled(made, {0: 17})
    found = await CheckpointPrimitives(cache, 2).export_page_group(0, 0)
    layout = made.layout(made.groups[0])
    used = np.zeros(layout.slot_bytes[0], bool)
    for tensor in (t for t in layout.tensors if t.layer == 0):
        heads = tensor.axis("head")
        for head in range(heads.count if heads else 1):
            start = tensor.address(head=head) if heads else tensor.offset
            dim = tensor.axis("dim")
            used[start : start + (dim.count if dim else 1) * tensor.itemsize] = True
    assert not found[1][~used].any()
    assert found[1][used].any()
    assert found[0].any()


async def test_shared_pages_are_exported_once() -> None:
    cache = await filled(config(full()), {0: 40})
    cache.fork_sequence(0, 1, 35)
    primitives = CheckpointPrimitives(cache, 2)
    pages = await primitives.export_page_group(0, [0, 1])
    assert len(pages) == 3 + 1
    fields = json.loads(primitives.get_checkpoint_metadata([0, 1]))
    tables = [sequence["layer_groups"][0]["pages"] for sequence in fields["sequences"]]
    assert tables == [[0, 1, 2], [0, 1, 3]]


async def test_decoding_goes_on_after_an_import() -> None:
    pair = Pair(await device(), config(full(), local()))
    pair.do("add_sequence", 0)
    await pair.agrees([0], [37])
    primitives = CheckpointPrimitives(pair.cache, 2)
    text = primitives.get_checkpoint_metadata(0)
    groups = [await primitives.export_page_group(at, 0) for at in range(3)]
    pair.cache.remove_sequence(0)
    pair.poison_freed()
    primitives.prepare_import(text)
    for at, data in enumerate(groups):
        primitives.import_page_group(at, data)
    primitives.finish_import()
    await pair.agrees([0], [1])
    await pair.agrees([0], [30])


@pytest.mark.parametrize(
    ("path", "value", "error", "words"),
    [
        (("page_size",), 8, IdentityError, "page_size"),
        (("layer_groups", 0, "layout_id"), "x", IdentityError, "layout_id of layer group 'full'"),
        (("layer_groups", 1, "window"), 21, IdentityError, "window of layer group 'local'"),
        (("layer_groups", 0, "rope", "theta"), 5.0, IdentityError, "rope of layer group 'full'"),
        (("layout_hash",), "x", IdentityError, "layout hash"),
        (("sequences", 0, "seq_length"), -1, DamageError, "seq_length"),
        (("sequences", 0, "seq_length"), 49.0, DamageError, "seq_length"),
        (("sequences", 0, "seq_length"), 2**40, DamageError, "seq_length"),
        (("sequences", 0, "seq_length"), 100, DamageError, "pages 0 to 4, expected 0 to 7"),
        (("sequences", 0, "layer_groups", 0, "pages"), [0, 1, 2, 2], DamageError, "different numbers"),
        (("sequences", 0, "layer_groups", 0, "pages"), [0, 1, 2, 9], DamageError, "not 0 to 3"),
        (("sequences", 0, "layer_groups", 1, "first_page"), 3, DamageError, "local"),
        (("sequences", 0, "seq_id"), 5, CheckpointError, "sequence id 5 is in the cache"),
        (("groups", 1, "nbytes"), 1, DamageError, "nbytes"),
        (("groups",), None, DamageError, "'groups'"),
    ],
)
async def test_extended_refusals_name_the_field_and_change_nothing(
    path: tuple[Any, ...], value: Any, error: type[WebkvError], words: str
) -> None:
    cache = await filled(config(full(), local()), {0: 50, 5: 10})
    primitives = CheckpointPrimitives(cache, 2)
    fields = json.loads(primitives.get_checkpoint_metadata(0))
    cache.remove_sequence(0)
    place = fields
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    before = [cache.num_available_pages(g.name) for g in cache.config.groups]
    with pytest.raises(error, match=words):
        primitives.prepare_import(json.dumps(fields))
    assert [cache.num_available_pages(g.name) for g in cache.config.groups] == before
    assert cache.get_sequence_length(5) == 10


async def test_too_few_pages_are_refused_before_anything_changes() -> None:
    big = CheckpointPrimitives(await filled(config(full()), {0: 300}), 2)
    small = await filled(config(full(), max_total_len=100), {5: 10})
    with pytest.raises(CacheFullError, match="19 free pages of group 'full' needed, 7 available"):
        CheckpointPrimitives(small, 2).prepare_import(big.get_checkpoint_metadata(0))
    assert small.get_sequence_length(5) == 10


async def test_a_cancelled_import_leaves_nothing() -> None:
    cache = await filled(config(full()), {0: 40})
    primitives = CheckpointPrimitives(cache, 2)
    text = primitives.get_checkpoint_metadata(0)
    cache.remove_sequence(0)
    primitives.prepare_import(text)
    with pytest.raises(CacheError):
        cache.begin_forward([0], [1])
    primitives.cancel()
    assert cache.empty()
    with pytest.raises(CheckpointError, match="prepare_import"):
        primitives.finish_import()


async def test_uncommitted_trees_and_own_windows_are_refused() -> None:
    cache = await filled(config(full()), {0: 5})
    primitives = CheckpointPrimitives(cache, 2)
    cache.begin_forward([0], [2], [-1, -1])
    cache.end_forward()
    with pytest.raises(CheckpointError, match="committed token-chain"):
        primitives.get_checkpoint_metadata(0)
    sliding = await filled(config(full(), support_sliding_window=True), {0: 5})
    sliding.enable_sliding_window_for_seq(0, 4, 1)
    with pytest.raises(CheckpointError, match="window of its own"):
        CheckpointPrimitives(sliding, 2).get_checkpoint_metadata(0)
    plain = await filled(config(group(), support_sliding_window=True), {0: 5})
    with pytest.raises(CheckpointError, match="windows per sequence"):
        CheckpointPrimitives(plain).get_checkpoint_metadata(0)


@pytest.mark.parametrize("kind", EXTENDED)
async def test_what_tvm_has_no_place_for_is_refused_by_name(kind: str) -> None:
    cache = await filled(EXTENDED[kind], {0: 5})
    with pytest.raises(CheckpointError, match="TVM's checkpoint format has no place for"):
        CheckpointPrimitives(cache).get_checkpoint_metadata(0)
