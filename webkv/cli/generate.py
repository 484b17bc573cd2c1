"""`webkv generate` and `webkv resume`: text as it comes, on stdout; everything else on stderr."""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from webkv.checkpoint import MemoryStore, Options, Status, Store, walk
from webkv.cli.console import Steps, emit, human_size, human_time, note, show
from webkv.cli.stores import existing_store, open_store, require_session
from webkv.errors import CheckpointError, IdentityError, PromptError
from webkv.load import Loaded, load
from webkv.models.locate import locate
from webkv.resume import Chat
from webkv.sampling import SamplingParams


async def generate(arguments: Namespace) -> int:
    """A new session from a prompt."""
    params, what = _params(arguments), _what(arguments)
    if arguments.no_session:
        return await _generate(arguments, MemoryStore(), params, what)
    store = open_store(arguments.store)
    try:
        return await _generate(arguments, store, params, what)
    finally:
        await store.close()


async def _generate(arguments: Namespace, store: Store, params: SamplingParams, what: dict[str, Any]) -> int:
    with Steps() as steps:
        loaded = await load(
            locate(arguments.model), device_name=arguments.device, page_dtype=arguments.page_dtype,
            context=arguments.context, progress=steps.step,
        )  # fmt: skip
        _ready(arguments)
        chat = await Chat.begin(
            loaded,
            store,
            **what,
            params=params,
            max_tokens=arguments.max_tokens,
            id=arguments.session,
            facts=_facts(arguments, loaded),
            options=_options(arguments),
            progress=steps.step("reading the prompt", "tokens"),
        )
        return await _stream(arguments, chat, steps, arguments.max_tokens)


async def resume(arguments: Namespace) -> int:
    """Go on with a stored session."""
    async with await require_session(existing_store(arguments.store), arguments.id) as store:
        return await _resume(arguments, store)


async def _resume(arguments: Namespace, store: Store) -> int:
    facts = (await walk(store, arguments.id)).transcript.facts
    path = facts["path"] if isinstance(facts.get("path"), str) else None
    with Steps() as steps:
        loaded = await load(
            locate(arguments.model or path), device_name=arguments.device,
            page_dtype=facts.get("page_dtype", "f16"), context=facts.get("context"), progress=steps.step,
        )  # fmt: skip
        _ready(arguments)
        try:
            chat = await Chat.resume(
                loaded,
                store,
                arguments.id,
                recompute=arguments.recompute,
                options=_options(arguments),
                progress=steps.step("computing again", "tokens"),
            )
        except IdentityError as error:
            if arguments.recompute or error.field in ("namespace", "tokenizer"):
                raise
            raise CheckpointError(f"{error} (--recompute goes on from its tokens)") from error
        if arguments.say is not None:
            await _say(arguments, chat)
        return await _stream(arguments, chat, steps, arguments.max_tokens)


async def _say(arguments: Namespace, chat: Chat) -> None:
    try:
        if not arguments.say:
            raise PromptError("the next turn is empty")
        if chat.finished is None:
            raise PromptError(f"session {chat.id!r} has an unfinished answer: resume without --say first")
        await chat.say(arguments.say, max_tokens=arguments.max_tokens or chat.request["max_tokens"])
    except BaseException:
        await chat.close()
        raise


def _params(arguments: Namespace) -> SamplingParams:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    return SamplingParams(**{name: getattr(arguments, name) for name in names})


def _what(arguments: Namespace) -> dict[str, Any]:
    prompt = arguments.prompt
    if not prompt:
        raise PromptError("the prompt is empty")
    if arguments.raw:
        if arguments.system is not None:
            raise PromptError("--system needs the chat template, which --raw leaves out")
        return {"prompt": prompt}
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    return {"messages": [*system, {"role": "user", "content": prompt}]}


def _facts(arguments: Namespace, loaded: Loaded) -> dict[str, Any]:
    path = arguments.model
    if path is not None and Path(path).exists():
        # Stored as text: a name that is not UTF-8 needs --model again.
        path = str(Path(path).resolve()).encode(errors="replace").decode()
    return {"path": path, "page_dtype": arguments.page_dtype, "context": loaded.engine.context}


def _options(arguments: Namespace) -> Options:
    told = ""

    def tell(status: Status) -> None:
        nonlocal told
        if status.reason == told:
            return
        told = status.reason
        if arguments.json:
            with contextlib.suppress(BrokenPipeError):  # the next token's line meets it too
                emit("status", status=str(status))
        else:
            note(str(status), style="yellow" if status.state == "degraded" else None)

    relaxed = getattr(arguments, "durability", "exact") == "relaxed"
    return Options(relaxed=relaxed, cap=arguments.cap, on_status=tell)


def _ready(arguments: Namespace) -> None:
    if arguments.json:
        emit("ready")


async def _stream(arguments: Namespace, chat: Chat, steps: Steps, limit: int | None) -> int:
    """Print the answer, what was there of it first; then what it took."""
    prefill = steps.step("reading the prompt", "tokens")
    begun, first, made, status = time.monotonic(), None, 0, None
    try:
        steps.stop()
        _announce(arguments, chat)
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
        status = await chat.close()
    finally:
        steps.stop()
        if status is None:
            await _stopped(arguments, chat)
    _report(arguments, chat, pages, status, (begun, first or ended, ended, made))
    return 0


async def _stopped(arguments: Namespace, chat: Chat) -> None:
    """Close a chat that an error or Ctrl-C cut off, and say how to go on."""
    status = await chat.close()
    if status.lag:
        note(f"stopped; {status}", style="yellow")
    elif not getattr(arguments, "no_session", False):
        note(f"stopped; nothing that was shown is lost: `webkv resume {chat.id}` goes on")


def _announce(arguments: Namespace, chat: Chat) -> None:
    recovery, transcript = chat.recovery, chat.session.transcript
    if arguments.json:
        emit(
            "start", session=chat.id, how=recovery.how, recovered_tokens=recovery.tokens,
            recovered_pages=recovery.pages, recovered_bytes=recovery.nbytes, recovery_s=recovery.seconds,
            prompt_tokens=transcript.prompt_tokens, damage=recovery.damage, differs=recovery.differs,
            elsewhere=recovery.elsewhere,
        )  # fmt: skip
        return
    if recovery.tokens:
        done = "resumed" if hasattr(arguments, "id") else "reused"  # of sessions that began alike
        note(
            f"{done} {recovery.tokens} tokens, {recovery.pages} pages ({human_size(recovery.nbytes)}) "
            f"by {recovery.how} in {human_time(recovery.seconds)}"
        )
    if recovery.note:
        note(f"its pages were {recovery.note}" if recovery.pages else f"its KV is {recovery.note}")
    if recovery.moved:
        note(recovery.moved)
    if recovery.damage:
        note(f"damage was left out: {recovery.damage}", style="yellow")
    show(chat.loaded.engine.tokenizer.decode(t for t in chat.answer if t not in chat.loaded.config.stop_ids))


def _report(
    arguments: Namespace, chat: Chat, pages: dict[str, str], status: Status, timing: tuple[float, ...]
) -> None:
    begun, first, ended, made = timing
    transcript, device = chat.session.transcript, chat.loaded.engine.device.facts.name
    # The first token is stored while the second is computed, and the last one's storing waits for nothing.
    speed = (made - 2) / (ended - first) if made > 2 else 0.0
    if arguments.json:
        emit(
            "end", session=chat.id, finish=chat.finished, tokens=transcript.tokens, pages=pages,
            prompt_tokens=transcript.prompt_tokens, prefill_s=first - begun, tokens_per_s=speed,
            status=str(status), device=device,
        )  # fmt: skip
        return
    show("\n")
    kept = "nothing is kept" if getattr(arguments, "no_session", False) else f"session {chat.id} is {status}"
    if made:
        took = f"{human_time(first - begun)} to the first, on {device}"
        took = f"{speed:.1f} tokens/s after {took}" if speed else took
        note(f"{made} tokens ({chat.finished}), {took}; {kept}")
    else:
        note(f"this answer was complete already ({chat.finished}); {kept}")
