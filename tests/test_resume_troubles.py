"""What resuming refuses, and what lost devices, full stores and damaged pages cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chats import CHAT, PROMPT, finished, ids, tiny
from tests.models.tiny import write_tiny_llama
from webkv.checkpoint import MemoryStore, Options, SqliteStore, Status
from webkv.errors import (
    CheckpointError,
    DeviceLostError,
    IdentityError,
    PromptError,
    StoreBusyError,
    StoreError,
)
from webkv.gpu import open_device
from webkv.load import load
from webkv.resume import Chat


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"messages": []}, "the chat has no message"),
        ({"messages": [{"role": "user"}]}, "message 0 has content None"),
        ({}, "give either a prompt or messages"),
        ({"prompt": "a\udcff"}, "lone surrogate"),
        ({"prompt": PROMPT * 20}, "tokens long, the context holds 256"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens is 0, expected at least 1"),
    ],
)
async def test_a_request_that_is_refused_writes_nothing(llama: Path, request_: Any, refusal: str) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    with pytest.raises(PromptError, match=refusal):
        await Chat.begin(loaded, store, **request_)
    assert await store.keys("") == []
    assert loaded.engine.cache.empty()


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "é"])
async def test_a_session_id_that_is_refused(llama: Path, name: str) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    with pytest.raises(CheckpointError, match="session id is"):
        await Chat.begin(loaded, store, prompt="x", id=name)
    assert await store.keys("") == []
    assert loaded.engine.cache.empty()


async def test_a_prompt_that_fills_the_context_leaves_no_room_for_an_answer(llama: Path) -> None:
    prompt = len((await tiny(llama)).engine.tokenizer.encode(PROMPT))
    with pytest.raises(PromptError, match=f"the context holds {prompt}"):
        await Chat.begin(await tiny(llama, context=prompt), MemoryStore(), prompt=PROMPT)
    chat = await Chat.begin(await tiny(llama, context=prompt + 1), MemoryStore(), prompt=PROMPT)
    assert len(await ids(chat.generate())) == 1
    assert (chat.finished, chat.remaining(1000)) == ("length", 0)


async def test_a_turn_that_is_refused_changes_nothing(llama: Path) -> None:
    loaded, store = await tiny(llama, context=64), MemoryStore()
    chat = await Chat.begin(loaded, store, messages=CHAT, max_tokens=3)
    await ids(chat.generate())
    before = list(chat.conversation.tokens), await store.keys("")
    with pytest.raises(PromptError, match="the context holds 64"):
        await chat.say("very long " * 20)
    with pytest.raises(PromptError, match="max_tokens is 0"):
        await chat.say("hi", max_tokens=0)
    assert (list(chat.conversation.tokens), await store.keys("")) == before
    plain = await Chat.begin(loaded, store, prompt="x", max_tokens=1)
    with pytest.raises(PromptError, match="began with a plain prompt"):
        await plain.say("hi")


async def test_sessions_that_cannot_be_resumed(llama: Path, tmp_path: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    await finished(await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=5, id="s"))
    with pytest.raises(CheckpointError, match="there is no session 'nope'"):
        await Chat.resume(loaded, store, "nope")
    write_tiny_llama(tmp_path / "other.gguf", seed=1)
    with pytest.raises(IdentityError, match="another weights"):
        await Chat.resume(await tiny(tmp_path / "other.gguf"), store, "s")
    with pytest.raises(IdentityError, match="layout"):
        await Chat.resume(await tiny(llama, page_dtype="f32"), store, "s")
    with pytest.raises(PromptError, match="the context holds 16"):
        await Chat.resume(await tiny(llama, context=16), store, "s")
    chat = await Chat.resume(loaded, store, "s")  # and no refusal has kept it locked
    with pytest.raises(StoreBusyError):
        await Chat.resume(loaded, store, "s")
    await chat.close()
    assert loaded.engine.cache.empty()


async def test_a_lost_device_costs_no_token(llama: Path) -> None:
    gpu, store = await open_device(), MemoryStore()
    lost = await load(llama, device=gpu, context=128)
    chat = await Chat.begin(lost, store, prompt=PROMPT, max_tokens=40, id="s")
    shown = []
    with pytest.raises(DeviceLostError):
        async for event in chat.generate():
            shown.append(event.token)
            if len(shown) == 20:
                gpu.destroy()
    await chat.close()
    loaded = await tiny(llama)
    whole = await finished(await Chat.begin(loaded, MemoryStore(), prompt=PROMPT, max_tokens=40))
    again = await Chat.resume(loaded, store, "s")
    assert again.answer[: len(shown)] == shown
    assert await finished(again) == whole


async def test_closing_a_chat_whose_device_is_lost(llama: Path) -> None:
    gpu = await open_device()
    loaded, store = await load(llama, device=gpu, context=64), MemoryStore(quota=4000)
    chat = await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=3)
    await ids(chat.generate())
    await chat.session.flush()
    assert chat.status.pages_stored == 0  # no room: they are still to be exported
    gpu.destroy()
    assert (await chat.close()).state == "degraded"
    assert loaded.engine.cache.empty()


async def test_a_store_that_fills_up_degrades_the_session_and_not_the_answer(llama: Path) -> None:
    loaded, told = await tiny(llama), []
    whole = await finished(await Chat.begin(loaded, MemoryStore(), prompt=PROMPT, max_tokens=40))
    chat = await Chat.begin(
        loaded, MemoryStore(quota=6000), prompt=PROMPT, max_tokens=40, options=Options(on_status=told.append)
    )
    assert await finished(chat) == whole
    assert {status.state for status in told} == {"degraded"}
    assert "quota 6000 bytes" in str(told[0])


async def test_a_store_that_is_no_database_degrades_the_session(llama: Path, tmp_path: Path) -> None:
    loaded, told = await tiny(llama), []
    (tmp_path / "notes.txt").write_text("not a database" * 100)
    store = SqliteStore(tmp_path / "notes.txt")
    chat = await Chat.begin(
        loaded, store, prompt=PROMPT, max_tokens=3, options=Options(on_status=told.append)
    )
    assert len(await ids(chat.generate())) == 3
    status: Status = await chat.close()
    assert (status.state, status.lag) == ("degraded", 3)
    assert (tmp_path / "notes.txt").read_text() == "not a database" * 100
    with pytest.raises(StoreError, match="damaged"):
        await Chat.resume(loaded, store, "s")
    await store.close()


async def test_changed_pages_are_computed_again_and_told(llama: Path) -> None:
    loaded, store = await tiny(llama), MemoryStore()
    whole = await finished(await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=5, id="s"))
    pages = await store.items("p/")
    await store.commit({key: data[:9] + bytes([data[9] ^ 1]) + data[10:] for key, data in pages})
    chat = await Chat.resume(loaded, store, "s")
    assert chat.recovery.damage == "stored pages are missing or changed"
    assert await finished(chat) == whole
