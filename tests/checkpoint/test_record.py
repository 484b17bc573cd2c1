"""Rows come back as they were, and nothing else is ever taken for one."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache.harness import config, group, run
from tests.checkpoint.toy import identity
from tests.support import device, examples
from webkv.cache import PagedKVCache
from webkv.checkpoint import Identity, MemoryStore, Session, walk
from webkv.checkpoint.journal import first_seed, row_key, sealed_rows
from webkv.checkpoint.prefix import PageRef, PrefixEntry, pack_modes, unpack_modes
from webkv.checkpoint.primitives import CheckpointPrimitives
from webkv.checkpoint.record import (
    Computed,
    End,
    Header,
    Kind,
    Mode,
    Prompt,
    Request,
    Row,
    Token,
    Truncate,
    decode,
    encode,
    seal,
    unseal,
)
from webkv.errors import DamageError, IdentityError, WebkvError

quick = settings(deadline=None, max_examples=examples(150))
word = st.integers(0, 2**32 - 1)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=8), plain, max_size=5)
rows: st.SearchStrategy[Row] = st.one_of(
    st.builds(Header, st.just(identity(None, 6)), objects),
    st.builds(Request, objects),
    st.builds(Prompt, word, st.lists(word, max_size=20).map(tuple)),
    st.builds(Computed, word, st.lists(st.tuples(st.sampled_from(Mode), word), max_size=5).map(tuple)),
    st.builds(Token, word, word, st.binary(max_size=40), st.binary(max_size=40)),
    st.builds(Truncate, word),
    st.builds(End, st.text(max_size=20)),
)


@given(rows)
@quick
def test_a_row_comes_back_as_it_was(row: Row) -> None:
    kind, payload = encode(row)
    data = seal(kind, 7, payload, b"seed")
    assert decode(*unseal(data, b"seed", 7, "row"), "row") == row


@given(rows, st.integers(1, 2**31), st.binary(min_size=1, max_size=16))
@quick
def test_a_row_is_refused_elsewhere(row: Row, number: int, seed: bytes) -> None:
    kind, payload = encode(row)
    data = seal(kind, 0, payload, b"")
    with pytest.raises(DamageError, match="row: found number 0"):
        unseal(data, b"", number, "row")
    with pytest.raises(DamageError, match="row: its digest"):
        unseal(data, seed, 0, "row")


@given(st.binary(max_size=200))
@quick
def test_any_bytes_are_a_named_error(data: bytes) -> None:
    with pytest.raises(DamageError, match=r"^row: "):
        unseal(data, b"", 0, "row")
    for read in (PageRef.unpack, lambda key, value: PrefixEntry.unpack(key, value, 16)):
        with pytest.raises(DamageError, match=r"^key: "):
            read("key", data)


@given(st.integers(0, 255), st.binary(max_size=200) | objects.map(lambda o: json.dumps(o).encode()))
@quick
def test_any_payload_with_a_right_digest_is_a_row_or_a_named_error(kind: int, payload: bytes) -> None:
    data = seal(kind, 0, payload, b"")  # type: ignore[arg-type]
    try:
        decode(*unseal(data, b"", 0, "row"), "row")
    except DamageError as error:
        assert str(error)


@given(st.lists(rows, max_size=12))
@quick
def test_any_rows_with_right_digests_are_a_session_or_a_named_error(listed: list[Row]) -> None:
    async def go() -> None:
        store = MemoryStore()
        await store.commit(sealed_rows("a", [Header(identity()), *listed]))
        found = await walk(store, "a")
        assert len(found.transcript.tokens) <= 1 << 24
        if found.transcript.identity == identity():
            session = await Session.open(store, "a", identity())
            await session.plan()
            await session.close()

    run(go())


@given(st.recursive(plain, lambda inner: st.dictionaries(st.sampled_from(
    ["weights", "tokenizer", "rope", "groups", "page_tokens", "quantizer", "namespace", "name", "layout_id",
     "page_bytes", "window", "sinks"]), inner), max_leaves=12))  # fmt: skip
@settings(deadline=None, max_examples=examples(60))
def test_any_json_is_an_identity_or_a_named_error(data: Any) -> None:
    try:
        found = Identity.from_json(data)
    except DamageError:
        return
    assert Identity.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"\xff" * 12, Kind.TOKEN),
        (b"\0\0\0\0" + b"\x02\xff\xff\xff\xff" * 1000, Kind.COMPUTED),
        (b"[" * 100_000, Kind.REQUEST),
        (b'{"a":' * 50_000, Kind.HEADER),
        (b'{"a":' + b"9" * 10_000 + b"}", Kind.REQUEST),
        (encode(Header(identity()))[1].replace(b'"facts":{}', b'"facts":[1]'), Kind.HEADER),
    ],
)
async def test_a_declared_size_is_not_believed(payload: bytes, kind: Kind) -> None:
    store = MemoryStore()
    first = sealed_rows("a", [Header(identity())])
    seed = first[row_key("a", 0)][-16:]
    await store.commit({**first, row_key("a", 1): seal(kind, 1, payload, seed)})
    tracemalloc.start()
    found = await walk(store, "a")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.damage is not None
    assert most < 20 << 20


def test_the_first_row_is_bound_to_its_session() -> None:
    data = sealed_rows("a", [Header(identity())])[row_key("a", 0)]
    assert unseal(data, first_seed("a"), 0, "row")[0] is Kind.HEADER
    with pytest.raises(DamageError):
        unseal(data, first_seed("b"), 0, "row")


def test_the_format_is_fixed() -> None:
    data = seal(*encode_at(Token(3, 5, b"s", b"text")), b"")
    assert data[:-16].hex() == "776b010502000000110000000300000005000000" + "01000400" + "7374657874"


def encode_at(row: Row) -> tuple[Kind, int, bytes]:
    kind, payload = encode(row)
    return kind, 2, payload


def test_another_version_is_named() -> None:
    data = bytearray(seal(Kind.END, 0, b"stop", b""))
    data[2] = 2
    with pytest.raises(DamageError, match="found format version 2, this program reads 1"):
        unseal(bytes(data), b"", 0, "row")


@given(st.lists(st.sampled_from(Mode), min_size=1, max_size=40))
@quick
def test_modes_pack_into_bits(modes: list[Mode]) -> None:
    assert unpack_modes(pack_modes(bytes(modes)), len(modes)) == bytes(modes)


def cache(version: int) -> CheckpointPrimitives:
    async def make() -> CheckpointPrimitives:
        made = PagedKVCache(await device(), config(group(rope=group().rope), max_total_len=64))
        made.add_sequence(0)
        made.begin_forward([0], [20])
        made.end_forward()
        return CheckpointPrimitives(made, version)

    return run(make())


@pytest.mark.parametrize("version", [1, 2])
def test_any_metadata_is_imported_or_a_named_error_that_changes_nothing(version: int) -> None:
    primitives = cache(version)
    fields = json.loads(primitives.get_checkpoint_metadata(0))
    paths = list(leaves(fields))
    facts = primitives.cache.num_available_pages()

    @given(st.sampled_from(paths), plain, st.booleans())
    @quick
    def check(path: tuple[Any, ...], value: Any, drop: bool) -> None:
        changed = json.loads(json.dumps(fields))
        place = changed
        for name in path[:-1]:
            place = place[name]
        if drop and isinstance(place, dict):
            del place[path[-1]]
        else:
            place[path[-1]] = value
        text = json.dumps(changed)
        if text == json.dumps(fields):
            return
        try:
            primitives.prepare_import(text)
        except WebkvError:
            assert primitives.cache.num_available_pages() == facts
            assert primitives.cache.get_sequence_length(0) == 20
            return
        # What is not checked: capacities, and the id of the sequence.
        assert path[-1] in ("reserved_num_seqs", "num_total_pages", "prefill_chunk_size", "seq_id") or (
            changed == fields
        )
        primitives.cancel()
        primitives.cache.add_sequence(0) if 0 not in primitives.cache.manager.sequences else None
        primitives.cache.popn(0, primitives.cache.get_sequence_length(0))
        primitives.cache.begin_forward([0], [20])
        primitives.cache.end_forward()

    check()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """The path of every value inside a JSON value."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        yield from leaves(item, (*path, name))


def test_metadata_that_is_no_json_is_named() -> None:
    primitives = cache(1)
    for text in ("", "[]", "{", "[" * 100_000, '{"format_version": NaN}'):
        with pytest.raises((DamageError, IdentityError)):
            primitives.prepare_import(text)
