"""`webkv sessions`, `inspect`, `delete`, `gc`: what is stored, and letting go of it."""

from __future__ import annotations

import datetime
from argparse import Namespace
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from webkv.checkpoint import Store, Summary, collect, delete, evict, unlisted, verify, walk
from webkv.checkpoint import sessions as stored_sessions
from webkv.checkpoint.refs import page_refs, stored_page_bytes
from webkv.checkpoint.stores import SessionLock
from webkv.cli.console import emit, human_size, note
from webkv.cli.stores import existing_store, require_session
from webkv.errors import CheckpointError


async def sessions(arguments: Namespace) -> int:
    """List stored sessions; with `--verify` check every byte, and exit 1 if any is damaged."""
    store = existing_store(arguments.store)
    if store is None:
        if not arguments.json:
            note("no sessions yet: `webkv generate` makes one")
        return 0
    async with store:
        found = await stored_sessions(store)
        problems = {}
        if arguments.verify:
            found += await unlisted(store)
            problems = {summary.id: await _problems(store, summary) for summary in found}
        used, _ = await store.estimate()
    if arguments.json:
        for summary in found:
            _emit_summary(summary, problems.get(summary.id))
    else:
        Console().print(_table(found, problems))
        plural = "" if len(found) == 1 else "s"
        note(f"{len(found)} session{plural}, {human_size(used)} in {store}")
    return 1 if any(problems.values()) else 0


async def _problems(store: Store, summary: Summary) -> tuple[str, ...]:
    lost = (summary.damage,) if summary.damage else ()
    try:
        return (*lost, *(await verify(store, summary.id)).problems)
    except CheckpointError as error:  # nothing but the summary is left
        return (*lost, str(error))


def _emit_summary(summary: Summary, problems: tuple[str, ...] | None) -> None:
    checked = {} if problems is None else {"problems": list(problems)}
    emit(
        "session", session=summary.id, tokens=summary.tokens, page_bytes=summary.page_bytes,
        end=summary.end, used=summary.used, created=summary.created, facts=dict(summary.facts),
        damage=summary.damage, **checked,
    )  # fmt: skip


def _table(found: list[Summary], problems: dict[str, tuple[str, ...]]) -> Table:
    # Ids are to be copied, so they are never cut.
    id = Column("id", no_wrap=True, min_width=max((len(summary.id) for summary in found), default=0))
    table = Table(id, "used", "tokens", "pages", "state", "title", box=None, pad_edge=False)
    for summary in found:
        wrong = problems.get(summary.id) or ((summary.damage,) if summary.damage else ())
        style = "red" if wrong else "" if summary.end else "yellow"
        state = Text(f"damaged: {wrong[0]}" if wrong else summary.end or "unfinished", style)
        used = datetime.datetime.fromtimestamp(summary.used).strftime("%Y-%m-%d %H:%M")
        size = human_size(summary.page_bytes)
        # As text, not markup; without control characters, which a prompt may hold.
        title = "".join(c if c.isprintable() else " " for c in str(summary.facts.get("title", "")))
        table.add_row(Text(summary.id), used, str(summary.tokens), size, state, Text(title))
    return table


async def inspect(arguments: Namespace) -> int:
    """Show one session: its model, turns, tokens and stored pages."""
    async with await require_session(existing_store(arguments.store), arguments.id) as store:
        walked = await walk(store, arguments.id)
        refs, damaged = await page_refs(store, arguments.id)
    transcript = walked.transcript
    identity = transcript.identity
    assert identity is not None
    pages = {f"{group}/{block}": ref.digest.hex() for (group, block), ref in sorted(refs.items())}
    facts: dict[str, Any] = {
        "model": transcript.facts.get("model"),
        "weights": identity.weights,
        "tokens": len(transcript.tokens),
        "prompt tokens": transcript.prompt_tokens,
        "computed": transcript.computed,
        "turns": len(transcript.requests),
        "end": transcript.end,
        "damage": walked.damage or ", ".join(damaged) or None,
        "text": transcript.text(),
    }
    if arguments.json:
        fields = {name.replace(" ", "_"): value for name, value in facts.items()}
        emit("inspect", session=arguments.id, pages=pages, **fields)
        return 0
    for name, value in facts.items():
        print(f"{name:14} {'-' if value is None else value}")
    total = sum(ref.nbytes for ref in refs.values())
    print(f"{'stored pages':14} {len(pages)} ({human_size(total)})")
    for name, digest in pages.items():
        print(f"  {name:20} sha256 {digest[:16]}")
    return 0


async def delete_sessions(arguments: Namespace) -> int:
    """Delete sessions; refuses all of them if one does not exist or is in use."""
    store = existing_store(arguments.store)
    ids = list(dict.fromkeys(arguments.id))
    for id in ids:
        async with SessionLock(await require_session(store, id), id):
            pass
    assert store is not None
    async with store:
        for id in ids:
            await delete(store, id)
            if arguments.json:
                emit("deleted", session=id)
            else:
                note(f"deleted {id}")
    return 0


async def gc(arguments: Namespace) -> int:
    """Remove entries that nothing refers to any more."""
    store = existing_store(arguments.store)
    removed = 0
    if store is not None:
        async with store:
            if arguments.cap is not None:
                await evict(store, await stored_page_bytes(store) - arguments.cap)
            removed = await collect(store)
            await store.compact()
    if arguments.json:
        emit("gc", removed=removed)
    else:
        note(f"removed {removed} entries that nothing referred to")
    return 0
