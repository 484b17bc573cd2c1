"""What tests of the engine share: a tiny model's engine, and drawing tokens from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from tests.support import device
from webkv.conversation import Conversation, TokenEvent
from webkv.engine import Engine
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
