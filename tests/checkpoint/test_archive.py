from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.checkpoint.toy import ToyEngine, identity, prompt
from webkv.checkpoint import MemoryStore, Session, verify
from webkv.checkpoint.archive import export_session, import_session
from webkv.checkpoint.journal import row_key
from webkv.errors import CheckpointError, DamageError, StoreError, WebkvError

MODEL = identity(None, 5)


async def stored(seed: int = 1, count: int = 12) -> tuple[MemoryStore, ToyEngine]:
    store = MemoryStore()
    engine = ToyEngine(await Session.create(store, MODEL, id="a", facts={"title": "a test"}))
    await engine.restore()
    await engine.turn(prompt(seed, 6), count)
    await engine.session.close()
    return store, engine


async def resumed(store: MemoryStore, id: str = "a") -> tuple[ToyEngine, str]:
    engine = ToyEngine(await Session.open(store, id, MODEL))
    plan = await engine.restore()
    return engine, plan.report


@pytest.mark.parametrize("name", [None, "b"])
async def test_a_session_moves_in_one_file(name: str | None, tmp_path: Path) -> None:
    store, engine = await stored()
    size = await export_session(store, "a", tmp_path / "a.safetensors")
    assert (tmp_path / "a.safetensors").stat().st_size == size
    other = MemoryStore()
    assert await import_session(other, tmp_path / "a.safetensors", name) == (name or "a")
    assert (await verify(other, name or "a")).problems == ()
    again, report = await resumed(other, name or "a")
    assert (again.tokens, report) == (engine.tokens, "kv+replay(1)")
    assert again.cache.image() == engine.cache.image()
    await again.session.close()
    assert await other.keys("p/") == await store.keys("p/")
    assert await other.keys("x/") == await store.keys("x/")


async def test_a_session_that_grows_meanwhile_is_exported_as_it_was(tmp_path: Path) -> None:
    class Growing(MemoryStore):
        """More is stored between reading the rows and the pages."""

        async def items(self, prefix: str) -> list[tuple[str, bytes]]:
            if prefix == "s/a/p/":
                await engine.turn(prompt(2, 9), 4)
                await engine.session.flush()
            return await super().items(prefix)

    store = Growing()
    engine = ToyEngine(await Session.create(store, MODEL, id="a"))
    await engine.restore()
    await engine.turn(prompt(1, 6), 7)
    await engine.session.flush()
    tokens = list(engine.tokens)
    await export_session(store, "a", tmp_path / "a.safetensors")
    assert len(engine.tokens) > len(tokens)
    other = MemoryStore()
    await import_session(other, tmp_path / "a.safetensors")
    assert (await resumed(other))[0].tokens == tokens


async def test_pages_after_a_damaged_row_are_left_out(tmp_path: Path) -> None:
    store, engine = await stored()
    await store.commit({row_key("a", 8): b"damaged"})
    await export_session(store, "a", tmp_path / "a.safetensors")
    other = MemoryStore()
    await import_session(other, tmp_path / "a.safetensors")
    again, _ = await resumed(other)
    assert again.tokens == engine.tokens[: len(again.tokens)]
    assert 4 < len(again.tokens) < len(engine.tokens)


async def test_the_file_opens_with_the_safetensors_library(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    store, _ = await stored()
    await export_session(store, "a", tmp_path / "a.safetensors")
    with safetensors.safe_open(tmp_path / "a.safetensors", framework="np") as file:
        assert json.loads(file.metadata()["identity"]) == json.loads(json.dumps(MODEL.to_json()))
        pages = [name for name in file.keys() if name.startswith("page.full.")]  # noqa: SIM118
        assert len(pages) == 4
        assert file.get_tensor(pages[0]).nbytes == MODEL.group("full").page_bytes


async def test_a_file_written_by_the_safetensors_library_is_read(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    safetensors = pytest.importorskip("safetensors")
    store, engine = await stored()
    await export_session(store, "a", tmp_path / "a.safetensors")
    with safetensors.safe_open(tmp_path / "a.safetensors", framework="np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        numpy.save_file(tensors, tmp_path / "b.safetensors", file.metadata())
    other = MemoryStore()
    await import_session(other, tmp_path / "b.safetensors")
    assert (await resumed(other))[0].tokens == engine.tokens


async def test_every_flipped_byte_is_refused_or_harmless_and_stores_nothing(tmp_path: Path) -> None:
    store, engine = await stored(count=6)
    await export_session(store, "a", tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    refused = 0
    for at in range(len(data)):
        (tmp_path / "b.safetensors").write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        other = MemoryStore()
        try:
            await import_session(other, tmp_path / "b.safetensors", "b")
        except WebkvError:
            refused += 1
            assert await other.keys("") == []
            continue
        again, _ = await resumed(other, "b")
        assert again.tokens == engine.tokens
        assert again.cache.image() == engine.cache.image()
    # What may change unseen: the copy of the identity in the metadata, and padding.
    assert refused > len(data) - len(json.dumps(MODEL.to_json())) - 100


@pytest.mark.parametrize("size", [0, 7, 8, 100, 1000])
async def test_a_cut_file_is_refused(size: int, tmp_path: Path) -> None:
    store, _ = await stored()
    await export_session(store, "a", tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:size])
    with pytest.raises(DamageError):
        await import_session(MemoryStore(), tmp_path / "b.safetensors")


async def test_a_declared_size_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}")
    with pytest.raises(DamageError, match="header of 9223372036854775808 bytes in a file of 10"):
        await import_session(MemoryStore(), tmp_path / "a.safetensors")


async def test_a_header_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 100_000) + b"[" * 100_000)
    with pytest.raises(DamageError, match="nested more than 200 levels"):
        await import_session(MemoryStore(), tmp_path / "a.safetensors")


async def test_swapped_pages_are_refused(tmp_path: Path) -> None:
    store, _ = await stored()
    path = tmp_path / "a.safetensors"
    await export_session(store, "a", path)
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    first, second = [name for name in header if name.startswith("page.full.")][:2]
    header[first], header[second] = header[second], header[first]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    with pytest.raises(DamageError, match="its bytes and its place"):
        await import_session(MemoryStore(), path)


async def test_an_id_that_is_taken_is_refused(tmp_path: Path) -> None:
    store, _ = await stored()
    await export_session(store, "a", tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="'a' exists"):
        await import_session(store, tmp_path / "a.safetensors")


async def test_an_id_that_is_none_is_refused(tmp_path: Path) -> None:
    store, _ = await stored()
    await export_session(store, "a", tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"session id is '\.\./b'"):
        await import_session(MemoryStore(), tmp_path / "a.safetensors", "../b")


async def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    store, _ = await stored()
    with pytest.raises(StoreError, match="cannot read"):
        await import_session(store, tmp_path / "none.safetensors")
    with pytest.raises(StoreError, match="cannot write"):
        await export_session(store, "a", tmp_path / "none" / "a.safetensors")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "b.safetensors.part").mkdir()
    with pytest.raises(StoreError, match=r"cannot write .*b\.safetensors: Is a directory"):
        await export_session(store, "a", tmp_path / "b.safetensors")


@pytest.mark.parametrize("theirs", ["../b", "", "a\\ud800"])
async def test_a_file_of_a_session_that_cannot_be_is_refused_under_any_name(
    theirs: str, tmp_path: Path
) -> None:
    store, _ = await stored()
    path = tmp_path / "a.safetensors"
    await export_session(store, "a", path)
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = data[8 : 8 + size].replace(b'"session":"a"', f'"session":"{theirs}"'.encode())
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    with pytest.raises(CheckpointError, match=r"session id is|lone surrogate"):
        await import_session(MemoryStore(), path, "b")


async def test_a_session_may_be_exported_at_any_time_while_it_grows(tmp_path: Path) -> None:
    store, file = MemoryStore(), tmp_path / "a.safetensors"
    engine = ToyEngine(await Session.create(store, MODEL, id="a"))
    copies = MemoryStore()
    await engine.session.durable(engine.session.request({}))
    await engine.session.durable(engine.session.prompt(prompt(1, 9)))
    for count in range(1, 16):
        engine.session.transcript.end = None
        await engine.generate(count)
        await export_session(store, "a", file)
        await import_session(copies, file, f"at-{count}")
    for count in range(1, 16):
        again = ToyEngine(await Session.open(copies, f"at-{count}", MODEL))
        await again.restore()
        again.session.transcript.end = None
        await again.generate(15)
        assert (again.tokens, again.cache.image()) == (engine.tokens, engine.cache.image())
        await again.session.close()
