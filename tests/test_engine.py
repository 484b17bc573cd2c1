"""Tokens out of a real tiny model: several conversations at once, iterators left, forks, ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.engines import GREEDY, PARAMS, TEXTS, drawn, ids, loaded_engine, opened
from tests.models.tiny import write_tiny_gemma3, write_tiny_llama
from webkv.checkpoint.digests import page_digests
from webkv.conversation import TokenEvent
from webkv.errors import CacheError


@pytest.mark.parametrize("write_tiny", [write_tiny_llama, write_tiny_gemma3])
async def test_a_conversation_does_not_notice_its_neighbours(write_tiny, tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.gguf")
    loaded = await loaded_engine(tmp_path / "tiny.gguf")

    async def one(at: int, pause: float = 0) -> tuple[list[TokenEvent], dict[str, str]]:
        conversation, events = opened(loaded.engine, TEXTS[at]), []
        async for event in loaded.engine.generate(conversation, PARAMS[at], max_tokens=20 + 6 * at):
            events.append(event)
            await asyncio.sleep(pause)
        pages = await page_digests(loaded.engine.cache, conversation.id, loaded.identity)
        loaded.engine.close(conversation)
        return events, pages

    alone = [await one(at) for at in range(4)]
    assert [len(events) for events, _ in alone] == [20, 26, 32, 38]
    assert await asyncio.gather(*(one(at) for at in range(4))) == alone
    # Consumers that are slow each in its own way make other batches.
    assert await asyncio.gather(*(one(at, at * 0.004) for at in range(4))) == alone


async def test_more_conversations_than_a_step_of_the_default_model_holds(llama: Path) -> None:
    engine = (await loaded_engine(llama, sequences=20, context=32)).engine
    alone = [ids(await drawn(engine, text, GREEDY, 5)) for text in TEXTS]
    together = await asyncio.gather(*(drawn(engine, TEXTS[at % 4], GREEDY, 5) for at in range(20)))
    assert [ids(events) for events in together] == [alone[at % 4] for at in range(20)]


async def test_two_engines_on_one_device(llama: Path) -> None:
    first, second = (await loaded_engine(llama)).engine, (await loaded_engine(llama, sequences=1)).engine
    alone = [await drawn(first, TEXTS[at], PARAMS[at], 20) for at in (0, 1)]
    both = asyncio.gather(
        drawn(first, TEXTS[0], PARAMS[0], 20, 0.001), drawn(second, TEXTS[1], PARAMS[1], 20, 0.002)
    )
    assert await both == alone


async def test_chunks_do_not_show(llama: Path) -> None:
    pages = []
    for chunk in (7, 256):
        loaded = await loaded_engine(llama, sequences=1, chunk=chunk)
        conversation = opened(loaded.engine, TEXTS[1])
        async for _ in loaded.engine.generate(conversation, GREEDY, max_tokens=3):
            pass
        pages.append(await page_digests(loaded.engine.cache, conversation.id, loaded.identity))
    assert pages[0] == pages[1]


async def test_a_slow_consumer_pauses_only_its_own_sequence(llama: Path) -> None:
    engine = (await loaded_engine(llama)).engine
    alone = ids(await drawn(engine, TEXTS[1], PARAMS[1], 100))
    slow = opened(engine, TEXTS[1])
    events = engine.generate(slow, PARAMS[1], max_tokens=100)
    first = await anext(events)
    assert len(await drawn(engine, TEXTS[0], GREEDY, 100)) == 100
    assert 60 < len(slow.unread) < 70
    assert [first.token, *ids([event async for event in events])] == alone


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
@pytest.mark.parametrize("at", [1, 2, 5])
async def test_an_iterator_that_is_left_loses_no_token(llama: Path, at: int, closed: bool) -> None:
    engine = (await loaded_engine(llama)).engine
    whole = await drawn(engine, TEXTS[2], PARAMS[1], 20)
    conversation, events = opened(engine, TEXTS[2]), []
    prompt = len(conversation.tokens)
    while not events or events[-1].finish is None:
        left = 20 - (len(conversation.tokens) - prompt)
        iterator = engine.generate(conversation, PARAMS[1], max_tokens=left, shown=ids(events))
        for _ in range(at):
            events.append(await anext(iterator))
            if events[-1].finish is not None:
                break
        if closed:
            await iterator.aclose()
    assert events == whole


async def test_a_cancelled_consumer_leaves_the_others_alone(llama: Path) -> None:
    engine = (await loaded_engine(llama)).engine
    alone = ids(await drawn(engine, TEXTS[0], GREEDY, 30))
    left = asyncio.create_task(drawn(engine, TEXTS[3], GREEDY, 30))
    stays = asyncio.create_task(drawn(engine, TEXTS[0], GREEDY, 30))
    await asyncio.sleep(0.01)
    left.cancel()
    assert ids(await stays) == alone
    assert left.cancelled()


async def test_a_stop_token_ends_and_has_no_text(llama: Path) -> None:
    engine = (await loaded_engine(llama)).engine
    whole = await drawn(engine, TEXTS[0], GREEDY, 10)
    conversation = opened(engine, TEXTS[0])
    stop = whole[4].token
    events = [e async for e in engine.generate(conversation, GREEDY, max_tokens=10, stop=[stop])]
    assert ids(events) == ids(whole[: ids(whole).index(stop) + 1])
    assert events[-1].finish == "stop"
    assert events[-1].text in ("", "�")  # what a character was cut off by, but not the token's own text


async def test_a_fork_goes_on_as_its_parent_does(llama: Path) -> None:
    engine = (await loaded_engine(llama)).engine
    parent = opened(engine, TEXTS[1])
    prompt = len(parent.tokens)
    whole = ids([e async for e in engine.generate(parent, GREEDY, max_tokens=20)])
    child = engine.fork(parent, prompt + 7)
    assert ids([e async for e in engine.generate(child, GREEDY, max_tokens=13)]) == whole[7:]
    with pytest.raises(CacheError, match="fork position is 99"):
        engine.fork(parent, 99)


async def test_the_context_ends_an_answer(llama: Path) -> None:
    engine = (await loaded_engine(llama, context=20)).engine
    conversation = opened(engine, TEXTS[0])
    events = [e async for e in engine.generate(conversation, GREEDY, max_tokens=1000)]
    assert len(conversation.tokens) == 20
    assert [event.finish for event in events if event.finish] == ["length"]
    assert [e async for e in engine.generate(conversation, GREEDY, max_tokens=1000)] == []


async def test_progress_follows_the_prompt_and_not_the_answer(llama: Path) -> None:
    engine = (await loaded_engine(llama, chunk=16)).engine
    conversation, told = opened(engine, TEXTS[1]), []
    prompt = len(conversation.tokens)
    events = engine.generate(
        conversation, GREEDY, max_tokens=5, progress=lambda done, total: told.append((done, total))
    )
    async for _ in events:
        pass
    assert told == [(done, prompt) for done in (*range(16, prompt, 16), prompt)]
