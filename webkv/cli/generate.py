"""`webkv generate` and `webkv resume`: text as it comes, on stdout; everything else on stderr."""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from webkv.checkpoint import MemoryStore, Options, SqliteStore, Status, Store, walk
from webkv.cli.console import Steps, emit, human_size, human_time, messages, show
from webkv.cli.sessions import existing_store, require_session
from webkv.errors import PromptError
from webkv.load import Loaded, load
from webkv.models.locate import locate
from webkv.resume import Chat
from webkv.sampling import SamplingParams


async def generate(arguments: Namespace) -> int:
    """A new session from a prompt."""
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    params = _params(arguments)
    store: Store = MemoryStore() if arguments.no_session else SqliteStore(arguments.store)
    with Steps(arguments.json) as steps:
        loaded = await load(
            locate(arguments.model), device_name=arguments.device, page_dtype=arguments.page_dtype,
            context=arguments.context, progress=steps.step,
        )  # fmt: skip
        _ready(arguments)
        chat = await Chat.begin(
            loaded,
            store,
            **_what(arguments, prompt),
            params=params,
            max_tokens=arguments.max_tokens,
            id=arguments.session,
            facts=_facts(arguments, loaded),
            options=_options(arguments),
        )
        return await _stream(arguments, chat, steps, arguments.max_tokens)


async def resume(arguments: Namespace) -> int:
    """Go on with a stored session."""
    store = await require_session(existing_store(arguments.store), arguments.id)
    facts = (await walk(store, arguments.id)).transcript.facts
    model = arguments.model or facts.get("path")
    with Steps(arguments.json) as steps:
        loaded = await load(
            locate(model), device_name=arguments.device, page_dtype=facts.get("page_dtype", "f16"),
            context=facts.get("context"), progress=steps.step,
        )  # fmt: skip
        _ready(arguments)
        chat = await Chat.resume(loaded, store, arguments.id, options=_options(arguments))
        limit = arguments.max_tokens
        if arguments.say is not None:
            if chat.finished is None:
                raise PromptError(f"session {chat.id!r} has an unfinished answer: resume without --say first")
            await chat.say(arguments.say, max_tokens=limit or 256)
        return await _stream(arguments, chat, steps, limit)


def _params(arguments: Namespace) -> SamplingParams:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    return SamplingParams(**{name: getattr(arguments, name) for name in names})


def _what(arguments: Namespace, prompt: str) -> dict[str, Any]:
    if arguments.raw:
        if arguments.system is not None:
            raise PromptError("--system needs the chat template, which --raw leaves out")
        return {"prompt": prompt}
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    return {"messages": [*system, {"role": "user", "content": prompt}]}


def _facts(arguments: Namespace, loaded: Loaded) -> dict[str, Any]:
    model = arguments.model
    path = str(Path(model).resolve()) if model and Path(model).exists() else model
    return {"path": path, "page_dtype": arguments.page_dtype, "context": loaded.engine.context}


def _options(arguments: Namespace) -> Options:
    def tell(status: Status) -> None:
        if arguments.json:
            emit("status", status=str(status))
        else:
            messages.print(f"[yellow]{status}[/yellow]" if status.state == "degraded" else str(status))

    return Options(relaxed=getattr(arguments, "durability", "exact") == "relaxed", on_status=tell)


def _ready(arguments: Namespace) -> None:
    if arguments.json:
        emit("ready")


async def _stream(arguments: Namespace, chat: Chat, steps: Steps, limit: int | None) -> int:
    """Print the answer, what was there of it first; then what it took."""
    _announce(arguments, chat)
    prefill = steps.step("reading the prompt", "tokens")
    begun, first, made = time.monotonic(), None, 0
    try:
        async for event in chat.generate(limit, progress=prefill):
            first = first or time.monotonic()
            steps.stop()
            made += 1
            if arguments.json:
                emit("token", token=event.token, position=event.position, text=event.text)
            else:
                show(event.text)
        ended = time.monotonic()
        pages = await chat.page_digests() if arguments.digests else {}
    finally:
        status = await asyncio.shield(chat.close())
    _report(arguments, chat, pages, status, (begun, first or ended, ended, made))
    return 0


def _announce(arguments: Namespace, chat: Chat) -> None:
    recovery, transcript = chat.recovery, chat.session.transcript
    if arguments.json:
        emit(
            "start", session=chat.id, how=recovery.how, recovered_tokens=recovery.tokens,
            recovered_pages=recovery.pages, recovered_bytes=recovery.nbytes, recovery_s=recovery.seconds,
            prompt_tokens=transcript.prompt_tokens, damage=recovery.damage,
        )  # fmt: skip
        return
    if recovery.tokens:
        messages.print(
            f"resumed {recovery.tokens} tokens, {recovery.pages} pages ({human_size(recovery.nbytes)}) "
            f"by {recovery.how} in {human_time(recovery.seconds)}"
        )
    if recovery.damage:
        messages.print(f"[yellow]damage was left out: {recovery.damage}[/yellow]")
    show(chat.loaded.engine.tokenizer.decode(t for t in chat.answer if t not in chat.loaded.config.stop_ids))


def _report(
    arguments: Namespace, chat: Chat, pages: dict[str, str], status: Status, timing: tuple[float, ...]
) -> None:
    begun, first, ended, made = timing
    transcript, device = chat.session.transcript, chat.loaded.engine.device.facts.name
    speed = (made - 1) / (ended - first) if made > 1 else 0.0
    if arguments.json:
        emit(
            "end", session=chat.id, finish=chat.finished, tokens=transcript.tokens, pages=pages,
            prompt_tokens=transcript.prompt_tokens, prefill_s=first - begun, tokens_per_s=speed,
            status=str(status), device=device,
        )  # fmt: skip
        return
    show("\n")
    messages.print(
        f"{made} tokens, {speed:.1f} tokens/s after {human_time(first - begun)} to the first, on {device}; "
        f"session {chat.id} is {status}"
    )
