"""A session in one portable file, and back: safetensors, which other tools can open too.

The file's metadata says `format`, `version`, `session` and `identity`; the tensors are `journal` (uint8, the
rows one after the other, each with its length before it) and one `page.<group>.<block>.<check>` (uint8) for
every stored page.  Everything is checked on import as strictly as a store's content is on resume.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from webkv.checkpoint.blobs import Blobs, FullPage, digest_of
from webkv.checkpoint.catalog import Summary
from webkv.checkpoint.journal import first_seed, follow, require_id, row_key, sealed_rows, walk
from webkv.checkpoint.nesting import parse_json
from webkv.checkpoint.prefix import Chains, blob_key, variants
from webkv.checkpoint.record import DIGEST_BYTES, Header, Row
from webkv.checkpoint.refs import alone, page_refs
from webkv.checkpoint.stores import SessionLock, Store, items
from webkv.checkpoint.transcript import Transcript
from webkv.errors import CheckpointError, DamageError, StoreError

FORMAT, VERSION = "webkv session", "1"
_LENGTH = struct.Struct("<I")
_MOST_HEADER = 100 << 20  # as the safetensors library allows
_MOST_TENSORS = 1 << 20


async def export_session(store: Store, session: str, path: Path) -> int:
    """Write a session to `path`, whole or not at all; returns the file's size in bytes.

    Damaged rows and pages are left out, and pages of later tokens than the rows have, which a session in use
    may store meanwhile.  Raises `CheckpointError` if there is no such session, `StoreError`
    if the file cannot be written.
    """
    walked = await walk(store, session)
    rows = [data for _, data in (await items(store, f"s/{session}/j/"))[: walked.rows]]
    tensors = {"journal": b"".join(_LENGTH.pack(len(row)) + row for row in rows)}
    refs, _ = await page_refs(store, session)
    keys = _chain_keys(walked.transcript)
    for (group, block), ref in sorted(refs.items()):
        if keys.get(group, [])[block : block + 1] != [ref.chain]:
            continue
        data = await store.get(blob_key(ref.digest))
        if data is not None and await digest_of(data) == ref.digest:
            tensors[f"page.{group}.{block:08}.{_check(ref.chain, ref.digest)}"] = data
    identity = walked.transcript.identity
    assert identity is not None
    facts = {
        "format": FORMAT, "version": VERSION, "session": session,
        "identity": json.dumps(identity.to_json(), sort_keys=True),
    }  # fmt: skip
    return _write(path, facts, tensors)


def _write(path: Path, facts: Mapping[str, str], tensors: Mapping[str, bytes]) -> int:
    header: dict[str, Any] = {"__metadata__": dict(facts)}
    at = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for data in tensors.values():
                file.write(data)
            file.flush()
            os.fsync(file.fileno())  # its session may be deleted next
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    return 8 + len(text) + at


async def import_session(store: Store, path: Path, session: str | None = None) -> str:
    """Add the session in the file `path` to a store, as `session` (None: under its own id); returns the id.

    Raises `CheckpointError` if the id is taken, `DamageError` naming what is wrong with the file,
    `StoreError` if it cannot be read or stored.  Nothing is stored unless all is.
    """
    facts, tensors = _read(path)
    theirs = facts["session"]
    name = theirs if session is None else session
    for id in (theirs, name):
        require_id(id)
    async with SessionLock(store, name), alone(store):
        if await store.keys(row_key(name, 0)):
            raise CheckpointError(f"session {name!r} exists")
        transcript, rows = _rows(theirs, tensors.pop("journal"))
        puts = sealed_rows(name, rows)
        puts |= await _pages(store, name, transcript, tensors)
        created = transcript.facts.get("created")
        summary = Summary(
            name, created if isinstance(created, float) else 0.0, 0.0, len(transcript.tokens),
            transcript.prompt_tokens, transcript.end, facts=dict(transcript.facts),
        )  # fmt: skip
        await store.commit(puts | summary.puts())
    return name


def _rows(session: str, data: bytes) -> tuple[Transcript, list[Row]]:
    """Check the journal; all rows of it, since a file has no reason to be torn."""
    rows: list[Row] = []
    transcript, at = Transcript(), 0
    seed = first_seed(session)
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at) if at + _LENGTH.size <= len(data) else (0,)
        row = data[at + _LENGTH.size : at + _LENGTH.size + size]
        if not size or len(row) != size:
            raise DamageError(f"row {len(rows)}: found {len(row)} of {size} bytes")
        rows.append(follow(transcript, session, len(rows), row_key(session, len(rows)), row, seed))
        seed = row[-DIGEST_BYTES:]
        at += _LENGTH.size + size
    if not rows or not isinstance(rows[0], Header):
        raise DamageError("journal: found no rows")
    return transcript, rows


async def _pages(
    store: Store, session: str, transcript: Transcript, tensors: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Entries for the pages of a file; each must belong to the journal's tokens, and have its very bytes."""
    identity = transcript.identity
    assert identity is not None
    chains, size = _chain_keys(transcript), identity.page_tokens
    modes = bytes(transcript.modes)
    kinds = variants(modes, size)
    pages = []
    for name, data in tensors.items():
        group, block, check = _page_id(name)
        keys = chains.get(group, [])
        if block >= len(keys) or len(data) != identity.group(group).page_bytes:
            raise DamageError(f"tensor {name!r}: found {len(data)} bytes, which fit no page of the journal")
        digest = await digest_of(data)
        if _check(keys[block], digest) != check:
            raise DamageError(f"tensor {name!r}: its bytes and its place do not fit its name")
        own = modes[block * size : (block + 1) * size]
        pages.append(FullPage((group, block), keys[block], kinds[block], own, data, digest))
    puts, _ = await Blobs(store, session, identity, None, None).entries(pages)
    return puts


def _chain_keys(transcript: Transcript) -> dict[str, list[bytes]]:
    """The key of every full block of computed tokens, by layer group."""
    assert transcript.identity is not None
    chains = Chains(transcript.identity)
    chains.extend(transcript.tokens[: transcript.computed])
    return chains.keys


def _check(chain: bytes, digest: bytes) -> str:
    """Binds a page's bytes to the tokens they are for."""
    return hashlib.sha256(chain + digest).hexdigest()[:32]


def _page_id(name: str) -> tuple[str, int, str]:
    found = re.fullmatch(r"page\.(.+)\.([0-9]{8})\.([0-9a-f]{32})", name)
    if found is None:
        raise DamageError(f"tensor {name!r:.100}: expected 'journal' or 'page.<group>.<block>.<check>'")
    return found[1], int(found[2]), found[3]


def _read(path: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """The metadata and tensors of a file, its header checked before anything of a stated size is read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if len(data) < 8:
        raise DamageError(f"{path}: found {len(data)} bytes, expected a safetensors file")
    (size,) = struct.unpack_from("<Q", data)
    if size > min(len(data) - 8, _MOST_HEADER):
        raise DamageError(f"{path}: found a header of {size} bytes in a file of {len(data)}")
    try:
        header = parse_json(data[8 : 8 + size])
    except ValueError as error:
        raise DamageError(f"{path}: its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise DamageError(f"{path}: its header is a JSON {type(header).__name__}, expected an object")
    facts = _facts(path, header.pop("__metadata__", None))
    tensors = _tensors(path, header, memoryview(data)[8 + size :])
    if "journal" not in tensors:
        raise DamageError(f"{path}: found no tensor 'journal'")
    return facts, tensors


def _facts(path: Path, found: object) -> dict[str, str]:
    expected = {"format": FORMAT, "version": VERSION}
    if not isinstance(found, dict) or not isinstance(found.get("session"), str):
        raise DamageError(f"{path}: found no session in its metadata")
    for name, value in expected.items():
        if found.get(name) != value:
            raise DamageError(f"{path}: {name} is {found.get(name)!r}, expected {value!r}")
    return found


def _tensors(path: Path, header: Mapping[str, Any], data: memoryview) -> dict[str, bytes]:
    if len(header) > _MOST_TENSORS:
        raise DamageError(f"{path}: found {len(header)} tensors, expected at most {_MOST_TENSORS}")
    spans = sorted(_span(path, name, entry) for name, entry in header.items())
    at = 0
    for start, stop, name in spans:
        if start != at or stop > len(data):
            raise DamageError(f"{path}: tensor {name!r} is at {start} to {stop}, expected from {at} on")
        at = stop
    if at != len(data):
        raise DamageError(f"{path}: {len(data) - at} bytes belong to no tensor")
    return {name: bytes(data[start:stop]) for start, stop, name in spans}


def _span(path: Path, name: str, entry: object) -> tuple[int, int, str]:
    match entry:
        case {"data_offsets": [int(start), int(stop)], "dtype": "U8", "shape": [int(size)]}:
            if 0 <= start <= stop and size == stop - start:
                return start, stop, name
    raise DamageError(f"{path}: tensor {name!r:.60} is not plain bytes: {entry!r:.100}")
