"""A generation that cannot go on: taken over, closed, out of pages, without a device, refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines import GREEDY, PARAMS, TEXTS, drawn, ids, loaded_engine, opened
from webkv.cache import PagedKVCache
from webkv.conversation import Conversation, Sampled
from webkv.engine import Engine
from webkv.errors import CacheError, CacheFullError, DeviceLostError, PromptError, StoreError
from webkv.gpu import open_device
from webkv.load import load


async def test_a_second_generate_takes_over(llama: Path) -> None:
    engine = (await loaded_engine(llama)).engine
    whole = ids(await drawn(engine, TEXTS[0], GREEDY, 12))
    conversation = opened(engine, TEXTS[0])
    first = engine.generate(conversation, GREEDY, max_tokens=12)
    begun = [await anext(first), await anext(first)]
    rest = ids([event async for event in engine.generate(conversation, GREEDY, max_tokens=9)])
    assert (ids(begun) + rest)[:12] == whole
    with pytest.raises(CacheError, match="taken up elsewhere"):
        await anext(first)


async def test_closing_a_conversation_ends_its_generation(llama: Path) -> None:
    engine = (await loaded_engine(llama)).engine
    conversation = opened(engine, TEXTS[0])
    events = engine.generate(conversation, GREEDY, max_tokens=50)
    await anext(events)
    engine.close(conversation)
    with pytest.raises(CacheError, match="conversation was closed"):
        async for _ in events:
            pass
    assert engine.cache.empty()


async def outcome(engine: Engine, text: str, limit: int, events: list[int]) -> Exception | None:
    conversation = opened(engine, text)
    try:
        async for event in engine.generate(conversation, GREEDY, max_tokens=limit):
            events.append(event.token)
    except CacheFullError as error:
        return error
    finally:
        engine.close(conversation)
    return None


async def test_a_full_cache_ends_the_newest_conversations_and_the_oldest_goes_on(llama: Path) -> None:
    engine = (await loaded_engine(llama)).engine
    texts = TEXTS[0], TEXTS[2], TEXTS[3]
    alone = [ids(await drawn(engine, text, GREEDY, 40)) for text in texts]
    small = replace(engine.cache.config, max_total_len=6 * 16)
    engine = Engine(engine.model, PagedKVCache(engine.device, small), engine.tokenizer, engine.context)
    found: list[list[int]] = [[], [], []]
    errors = await asyncio.gather(
        *(outcome(engine, *each) for each in zip(texts, (40, 40, 40), found, strict=True))
    )
    assert errors[0] is None
    assert errors[-1] is not None
    for error, events, whole in zip(errors, found, alone, strict=True):
        assert events == (whole[: len(events)] if error else whole)
    engine.cache.check()
    assert engine.cache.empty()


async def test_the_conversation_that_needs_a_page_is_the_one_that_ends(llama: Path) -> None:
    engine = (await loaded_engine(llama)).engine
    whole = ids(await drawn(engine, TEXTS[0], GREEDY, 4))
    three = replace(engine.cache.config, max_total_len=2 * 16)
    engine = Engine(engine.model, PagedKVCache(engine.device, three), engine.tokenizer, engine.context)
    assert engine.cache.num_available_pages() == 3
    older = engine.open(engine.tokenizer.encode(TEXTS[1])[:30])  # two pages, two slots left in them
    newer = opened(engine, TEXTS[0])  # the third page, with room

    async def all_of(conversation: Conversation, limit: int) -> list[int]:
        return ids([event async for event in engine.generate(conversation, GREEDY, max_tokens=limit)])

    full, done = await asyncio.gather(all_of(older, 9), all_of(newer, 4), return_exceptions=True)
    assert isinstance(full, CacheFullError)
    assert done == whole


async def test_a_lost_device_is_named_to_every_consumer(llama: Path) -> None:
    gpu = await open_device()
    loaded = await load(llama, device=gpu, context=64, sequences=2)
    seen: list[list[int]] = [[], []]

    async def consume(at: int) -> None:
        async for event in loaded.engine.generate(opened(loaded.engine, TEXTS[at]), GREEDY, max_tokens=40):
            seen[at].append(event.token)
            if sum(map(len, seen)) == 10:
                gpu.destroy()

    errors = await asyncio.gather(consume(0), consume(1), return_exceptions=True)
    assert [type(error) for error in errors] == [DeviceLostError, DeviceLostError]
    engine = (await loaded_engine(llama)).engine
    for events, text in zip(seen, TEXTS, strict=False):
        assert events == ids(await drawn(engine, text, GREEDY, 40))[: len(events)]


class FailingJournal:
    """Keeps three tokens, then fails."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def advanced(self, conversation: Conversation, prefilled: tuple[int, int] | None) -> None:
        pass

    async def commit(self, conversation: Conversation, sampled: Sequence[Sampled]) -> None:
        if len(self.kept) >= 3:
            raise StoreError("gone")
        self.kept += [made.token for made in sampled]


async def test_a_journal_that_fails_ends_only_its_own_conversation(llama: Path) -> None:
    engine = (await loaded_engine(llama)).engine
    alone = await drawn(engine, TEXTS[1], PARAMS[1], 20)
    journal, seen = FailingJournal(), []

    async def journaled() -> None:
        conversation = opened(engine, TEXTS[0])
        async for event in engine.generate(conversation, GREEDY, max_tokens=20, journal=journal):
            seen.append(event.token)

    failed, events = await asyncio.gather(
        journaled(), drawn(engine, TEXTS[1], PARAMS[1], 20), return_exceptions=True
    )
    assert isinstance(failed, StoreError)
    assert seen == journal.kept
    assert len(seen) == 3
    assert events == alone


@pytest.mark.parametrize(
    ("tokens", "refusal"),
    [
        ([5] * 21, "prompt is 21 tokens long, the context holds 20"),
        ([299], "token id 299 is not in the vocabulary of 299"),
        ([-1], "token id -1 is not in the vocabulary of 299"),
    ],
)
async def test_prompts_that_are_refused(llama: Path, tokens: list[int], refusal: str) -> None:
    engine = (await loaded_engine(llama, context=20)).engine
    with pytest.raises(PromptError, match=refusal):
        engine.open(tokens)
    assert engine.cache.empty()


async def test_nothing_is_drawn_from_no_prompt(llama: Path) -> None:
    engine = (await loaded_engine(llama)).engine
    with pytest.raises(PromptError, match="the prompt is empty"):
        await anext(engine.generate(engine.open(), GREEDY, max_tokens=1))
