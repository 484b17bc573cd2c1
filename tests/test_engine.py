"""Tokens out of a real tiny model: several conversations at once, iterators left, all that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.tiny import write_tiny_gemma3, write_tiny_llama
from tests.support import device
from webkv.cache import PagedKVCache
from webkv.checkpoint.digests import page_digests
from webkv.conversation import Conversation, Sampled, TokenEvent
from webkv.engine import Engine
from webkv.errors import CacheError, CacheFullError, DeviceLostError, PromptError, StoreError
from webkv.gpu import open_device
from webkv.load import Loaded, load
from webkv.sampling import SamplingParams

GREEDY = SamplingParams()
TEXTS = ("the quick", "a b c d e f g h i j k l m n o p q r s", "hello there", "in the of and to is")
PARAMS = (
    GREEDY,
    SamplingParams(temperature=1.0, seed=5),  # needs the whole row of logits
    SamplingParams(temperature=0.9, repetition_penalty=1.2),
    SamplingParams(temperature=0.7, top_k=20, seed=9),  # its largest are enough
)


async def loaded_engine(model: Path, sequences: int = 4, context: int = 128, chunk: int = 256) -> Loaded:
    return await load(model, device=await device(), context=context, sequences=sequences, chunk=chunk)


def opened(engine: Engine, text: str) -> Conversation:
    return engine.open(engine.tokenizer.encode(text))


async def drawn(
    engine: Engine, text: str, params: SamplingParams, limit: int, pause: float = 0
) -> list[TokenEvent]:
    conversation = opened(engine, text)
    events = []
    async for event in engine.generate(conversation, params, max_tokens=limit):
        events.append(event)
        if pause:
            await asyncio.sleep(pause)
    engine.close(conversation)
    return events


def ids(events: Iterable[TokenEvent]) -> list[int]:
    return [event.token for event in events]


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
