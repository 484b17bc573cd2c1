"""Chats of a model with sliding layers, taken up or branched after the window moved: the very same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chats import copy_of, tiny
from tests.models.tiny import write_tiny_gemma3
from webkv.checkpoint import MemoryStore
from webkv.load import Loaded
from webkv.resume import Chat

WINDOW = 32
PROMPT = "the quick brown fox jumps over the lazy dog and runs into the dark forest of the night"
TOKENS = 60
"""Drawn after a prompt of over 70 tokens: the window has moved by four pages at least."""


async def start(path: Path) -> Loaded:
    """A tiny Gemma 3 on a cache of its own: what a process has just after it began."""
    model = path / "tiny.gguf"
    write_tiny_gemma3(model, window=WINDOW)
    return await tiny(model)


async def begin(loaded: Loaded, store: MemoryStore) -> Chat:
    return await Chat.begin(loaded, store, prompt=PROMPT, max_tokens=TOKENS, id="s")


async def finish(chat: Chat) -> tuple[list[int], dict[str, str]]:
    """Draw what is left: all tokens, and the digests of all pages held."""
    async for _ in chat.generate():
        pass
    return chat.conversation.tokens, await chat.page_digests()


@pytest.mark.parametrize("drawn", [1, 23, 59])
async def test_killed_past_the_window_and_resumed(tmp_path: Path, drawn: int) -> None:
    store = MemoryStore()
    chat = await begin(await start(tmp_path), store)
    count, killed = 0, MemoryStore()
    async for _ in chat.generate():
        count += 1
        if count == drawn:
            killed = await copy_of(store)
    resumed = await Chat.resume(await start(tmp_path), killed, "s")
    assert resumed.recovery.pages > 0 or drawn == 1  # by then pages may still be on their way
    assert await finish(resumed) == (chat.conversation.tokens, await chat.page_digests())


@pytest.mark.parametrize("back", [1, 9, 31, 33, 50])
async def test_branched_inside_and_beyond_the_window(tmp_path: Path, back: int) -> None:
    loaded, store = await start(tmp_path), MemoryStore()
    chat = await begin(loaded, store)
    whole = await finish(chat)
    branch = await chat.branch(len(whole[0]) - back)
    assert branch.conversation.tokens == whole[0][: len(whole[0]) - back]
    await chat.close()
    assert await finish(branch) == whole
