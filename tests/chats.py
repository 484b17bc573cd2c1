"""What tests of stored conversations share: a tiny model, and running a chat to its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from tests.support import device
from webkv.checkpoint import MemoryStore
from webkv.conversation import TokenEvent
from webkv.load import Loaded, load
from webkv.resume import Chat
from webkv.sampling import SamplingParams

PROMPT = "the quick brown fox jumps over the lazy dog"
CHAT = [{"role": "user", "content": "hello there"}]
HOT = SamplingParams(temperature=1.0, seed=7)


async def tiny(model: Path, **options: Any) -> Loaded:
    return await load(model, device=await device(), **{"context": 256, "sequences": 2, **options})


async def copy_of(store: MemoryStore) -> MemoryStore:
    """What a crash at this moment would leave."""
    left = MemoryStore()
    await left.commit(dict(await store.items("")))
    return left


async def ids(events: AsyncGenerator[TokenEvent, None]) -> list[int]:
    return [event.token async for event in events]


async def finished(chat: Chat) -> tuple[list[int], dict[str, str]]:
    """All tokens of a chat, once its answer is complete, and its page digests; closes it."""
    await ids(chat.generate())
    found = chat.conversation.tokens, await chat.page_digests()
    await chat.close()
    return found
