"""Conversations that survive: crashes, further turns, iterators that are left, branches."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chats import CHAT, HOT, PROMPT, copy_of, finished, ids, tiny
from webkv.checkpoint import MemoryStore
from webkv.conversation import TokenEvent
from webkv.errors import (
    CacheError,
    CheckpointError,
)
from webkv.resume import Chat
from webkv.sampling import SamplingParams


@pytest.mark.parametrize("params", [SamplingParams(), HOT], ids=["greedy", "sampled"])
async def test_resumed_after_any_token_it_ends_as_the_whole_run_does(
    llama: Path, params: SamplingParams
) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    chat = await Chat.begin(loaded, store, prompt=PROMPT, params=params, max_tokens=24, id="s")
    crashes, shown = [], []
    async for event in chat.generate():
        shown.append(event.token)
        crashes.append((list(shown), await copy_of(store)))
    whole = chat.conversation.tokens, await chat.page_digests()
    await chat.close()
    for shown, left in crashes:
        again = await Chat.resume(loaded, left, "s")
        assert again.answer[: len(shown)] == shown
        assert await finished(again) == whole
    assert loaded.engine.cache.empty()


async def test_a_new_session_starts_from_the_stored_pages_of_an_equal_prompt(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    first = await finished(await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=5))
    second = await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=5)
    assert second.recovery.pages == (len(first[0]) - 5) // 16
    assert await finished(second) == first


async def test_decode_makes_no_gpu_object_once_warm(llama: Path) -> None:
    loaded = await tiny(llama)
    chat = await Chat.begin(loaded, MemoryStore(), prompt=PROMPT, max_tokens=120)
    events = chat.generate()
    for _ in range(40):  # two pages at least became full, and were exported, among them
        await anext(events)
    warm = replace(loaded.engine.device.created)
    assert len(await ids(events)) == 80
    assert loaded.engine.device.created == warm
    assert chat.status.pages_stored >= 7
    await chat.close()


async def test_a_finished_answer_has_nothing_left_to_give(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    whole = await finished(await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=5, id="s"))
    chat = await Chat.resume(loaded, store, "s")
    assert (chat.finished, chat.remaining()) == ("length", 0)
    assert await ids(chat.generate()) == []
    assert chat.conversation.tokens == whole[0]
    await chat.close()


async def test_a_larger_limit_continues_an_answer_that_ended_by_length(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    long = await finished(await Chat.begin(loaded, MemoryStore(), prompt=PROMPT, params=HOT, max_tokens=40))
    await finished(await Chat.begin(loaded, store, prompt=PROMPT, params=HOT, max_tokens=9, id="s"))
    chat = await Chat.resume(loaded, store, "s")
    events = chat.generate(40)
    await anext(events)
    assert chat.finished is None  # it is under way again
    await ids(events)
    assert chat.finished == "length"
    assert await finished(chat) == long


async def test_the_end_token_ends_an_answer_for_good(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    whole, _ = await finished(await Chat.begin(loaded, MemoryStore(), prompt=PROMPT, max_tokens=20))
    loaded.engine.tokenizer.eos_ids = frozenset({whole[-12]})
    stopped, _ = await finished(await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=20, id="s"))
    assert stopped == whole[: whole.index(whole[-12], len(whole) - 20) + 1]
    # A journal damaged after the last token has lost the row that says it is the end.
    *_, end = await store.keys("s/s/j/")
    await store.commit({}, [end])
    chat = await Chat.resume(loaded, store, "s")
    assert (chat.finished, chat.remaining(100)) == (None, 0)
    assert (await finished(chat))[0] == stopped
    assert chat.finished == "stop"


async def test_the_next_turn_is_resumed_with_its_draws(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    chat = await Chat.begin(loaded, store, messages=CHAT, params=HOT, max_tokens=10, id="s")
    await ids(chat.generate())
    await chat.say("and you?", max_tokens=12)
    crashes = [await copy_of(store)]
    async for _ in chat.generate():
        crashes.append(await copy_of(store))
    assert [message["role"] for message in chat.request["messages"]] == ["user", "assistant", "user"]
    whole = await finished(chat)
    for left in crashes:
        again = await Chat.resume(loaded, left, "s")
        assert await finished(again) == whole


async def test_a_crash_before_anything_was_computed(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    chat = await Chat.begin(loaded, store, messages=CHAT, max_tokens=3, id="s")
    await chat.session.flush()  # nothing is computed yet
    left = await copy_of(store)
    whole = await finished(chat)
    again = await Chat.resume(loaded, left, "s")
    assert (again.recovery.how, again.recovery.tokens) == ("new", 0)
    assert await finished(again) == whole


@pytest.mark.parametrize("at", [1, 4])
async def test_an_answer_that_was_left_goes_on_without_a_gap(llama: Path, at: int) -> None:
    loaded = await tiny(llama)
    whole = await finished(await Chat.begin(loaded, MemoryStore(), prompt=PROMPT, params=HOT, max_tokens=20))
    chat = await Chat.begin(loaded, MemoryStore(), prompt=PROMPT, params=HOT, max_tokens=20)
    seen: list[TokenEvent] = []
    while not seen or seen[-1].finish is None:
        async for event in chat.generate():  # broken off, not closed
            seen.append(event)
            if len(seen) % at == 0:
                break
    assert [event.token for event in seen] == whole[0][-20:]
    assert "".join(event.text for event in seen) == loaded.engine.tokenizer.decode(whole[0][-20:])
    assert await finished(chat) == whole


async def test_a_turn_may_follow_an_answer_that_was_left(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    chat = await Chat.begin(loaded, store, messages=CHAT, max_tokens=20, id="s")
    async for _ in chat.generate():
        break
    await chat.say("stop that", max_tokens=6)
    assert chat.conversation.tokens == chat.session.transcript.tokens
    left = await copy_of(store)
    whole = await finished(chat)
    assert await finished(await Chat.resume(loaded, left, "s")) == whole


async def test_closing_in_the_middle_of_an_answer(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    whole = await finished(await Chat.begin(loaded, MemoryStore(), prompt=PROMPT, max_tokens=20))
    chat = await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=20, id="s")
    answering = asyncio.create_task(ids(chat.generate()))
    while len(chat.answer) < 5:
        await asyncio.sleep(0)
    first, second = await asyncio.gather(chat.close(), chat.close())
    assert first.state == second.state == "durable"
    with pytest.raises(CacheError, match="generation was ended"):
        await answering
    assert await finished(await Chat.resume(loaded, store, "s")) == whole


async def test_what_is_computed_again_is_followed(llama: Path) -> None:
    loaded, store = await tiny(llama, chunk=16), MemoryStore()
    whole = await finished(await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=5, id="s"))
    await store.commit({}, await store.keys("p/"))
    told: list[tuple[int, int]] = []
    chat = await Chat.resume(loaded, store, "s", progress=lambda done, total: told.append((done, total)))
    last = len(whole[0]) - 1
    assert chat.recovery.how == f"replay({last})"
    assert told[:2] == [(16, last - 4), (32, last - 4)]
    assert told[-1] == (last, last)
    assert await finished(chat) == whole


async def test_a_full_page_whose_last_token_is_not_computed_yet_is_not_stored(llama: Path) -> None:
    """Killed between a prompt that fills its last page and the first token, before any page was stored."""
    loaded, store = await tiny(llama), MemoryStore()
    prompt = "x" * 48
    chat = await Chat.begin(loaded, store, prompt=prompt, max_tokens=40, id="s")
    await loaded.engine.prefill(chat.conversation, 48)
    await chat.session.durable(chat.session.computed(48))
    killed = MemoryStore()
    await killed.commit({key: value for key, value in await store.items("") if key.startswith(("s/", "m/"))})
    whole = await finished(chat)
    again = await Chat.resume(loaded, killed, "s")
    assert again.conversation.cached == 47
    await again.close()
    right = set(whole[1].values())
    assert {key.removeprefix("p/") for key in await killed.keys("p/")} <= right
    assert await finished(await Chat.resume(loaded, killed, "s")) == whole


async def test_a_branch_shares_its_pages_on_the_gpu(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    pool = loaded.engine.cache.manager.pools[0]
    chat = await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=30)
    await ids(chat.generate())
    before = pool.available
    branch = await chat.branch(len(chat.conversation.tokens))
    assert (branch.recovery.how, branch.recovery.nbytes) == ("fork", 0)
    assert before - pool.available == 1  # the page being filled is its own
    await chat.close()
    whole = await finished(branch)
    assert whole == await finished(await Chat.resume(loaded, store, branch.id))


async def test_branches_share_and_part(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    chat = await Chat.begin(loaded, store, prompt=PROMPT, params=HOT, max_tokens=30)
    await ids(chat.generate())
    prompt = len(chat.conversation.tokens) - 30
    other = await chat.branch(prompt + 20, id="b")
    assert other.recovery.pages == (prompt + 19) // 16
    await ids(other.generate())
    assert other.conversation.tokens == chat.conversation.tokens
    with pytest.raises(CacheError, match="too many sequences"):
        await chat.branch(3, id="c")
    for position in (0, prompt + 31):
        with pytest.raises(CheckpointError, match=f"branch position is {position}"):
            await other.branch(position, id="c")
    assert await store.keys("s/c/") == []
    await other.close()
    await chat.close()


@pytest.mark.parametrize("device", ["another GPU", None])
async def test_another_device_is_named_and_the_same_is_not(llama: Path, device: str | None) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    facts = {} if device is None else {"device": device}
    chat = await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=3, id="s", facts=facts)
    await finished(chat)
    again = await Chat.resume(loaded, store, "s")
    assert again.recovery.elsewhere == (device or "")
    assert ("it began on another GPU" in str(again.recovery)) == (device is not None)
    await again.close()
