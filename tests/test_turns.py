"""What a stored turn has to say before it is gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chats import CHAT, tiny
from webkv.checkpoint import MemoryStore, Session
from webkv.errors import CheckpointError
from webkv.resume import Chat

WHOLE: dict[str, Any] = {"messages": CHAT, "params": {"seed": 3}, "max_tokens": 4}


async def stored(llama: Path, request: dict[str, Any] | None, state: bytes = b"") -> MemoryStore:
    """Session a, as any program may have made it: five given tokens, one drawn."""
    store = MemoryStore()
    async with await Session.create(store, (await tiny(llama)).identity, id="a") as session:
        if request is not None:
            session.request(request)
        session.prompt([5, 6, 7, 8, 9])
        session.computed(5)
        session.token(10, state)
    return store


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"params": None}, "params None, expected an object"),
        ({"params": [1]}, r"params \[1\], expected an object"),
        ({"params": {"heat": 1}}, "unexpected keyword argument 'heat'"),
        ({"params": {"temperature": "x"}}, "temperature is 'x', expected a number"),
        ({"max_tokens": "x"}, "max_tokens 'x', expected at least 1"),
        ({"max_tokens": True}, "max_tokens True, expected at least 1"),
        ({"messages": 5}, "messages 5, expected a list of objects"),
        ({"messages": ["hi"]}, r"messages \['hi'\], expected a list of objects"),
    ],
)
async def test_a_request_that_another_program_made_is_refused_by_field(
    llama: Path, changed: dict[str, Any], refusal: str
) -> None:
    loaded, store = await tiny(llama), await stored(llama, WHOLE | changed)
    before = await store.items("")
    with pytest.raises(CheckpointError, match=f"session 'a': its request has .*{refusal}"):
        await Chat.resume(loaded, store, "a")
    assert await store.items("") == before
    assert loaded.engine.cache.empty()


async def test_a_sampler_of_another_program_and_no_request_at_all_are_refused(llama: Path) -> None:
    with pytest.raises(CheckpointError, match="sampler's state at token 5: found 2 bytes, expected 16"):
        await Chat.resume(await tiny(llama), await stored(llama, WHOLE, b"xx"), "a")
    with pytest.raises(CheckpointError, match="its request has params None"):
        await Chat.resume(await tiny(llama), await stored(llama, None), "a")


async def test_a_request_that_is_whole_is_gone_on_with(llama: Path) -> None:
    chat = await Chat.resume(await tiny(llama), await stored(llama, WHOLE), "a")
    assert len([event async for event in chat.generate()]) == 3
    await chat.close()
