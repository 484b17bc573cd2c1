"""`webkv export` and `webkv import`: a session as one safetensors file, to another store or machine."""

from __future__ import annotations

from argparse import Namespace

from webkv.checkpoint.archive import export_session, import_session
from webkv.cli.console import emit, human_size, note
from webkv.cli.stores import existing_store, open_store, require_session
from webkv.errors import CheckpointError


async def export(arguments: Namespace) -> int:
    """Write a session's journal and pages to one file."""
    if arguments.file.exists():
        raise CheckpointError(f"{arguments.file} exists; give the name of a new file")
    async with await require_session(existing_store(arguments.store), arguments.id) as store:
        size = await export_session(store, arguments.id, arguments.file)
    if arguments.json:
        emit("exported", session=arguments.id, file=str(arguments.file), bytes=size)
    else:
        note(f"wrote session {arguments.id} to {arguments.file} ({human_size(size)})")
    return 0


async def import_(arguments: Namespace) -> int:
    """Add the session in a file to the store; nothing is stored unless all of it is sound."""
    if not arguments.file.is_file():
        raise CheckpointError(f"no file {arguments.file}")
    async with open_store(arguments.store) as store:
        id = await import_session(store, arguments.file, arguments.session)
    if arguments.json:
        emit("imported", session=id)
    else:
        note(f"session {id} is there; go on with: webkv resume {id}")
    return 0
