"""What a turn of a conversation asks for: as tokens, and as the request that its session keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from webkv.checkpoint import Session
from webkv.errors import CheckpointError, PromptError
from webkv.load import Loaded
from webkv.recovery import STATE
from webkv.sampling import SamplingParams

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Turn:
    """A chat's next turn: the whole chat up to it, and the tokens that follow those held so far."""

    messages: list[dict[str, str]]
    tokens: list[int]


def first_tokens(loaded: Loaded, prompt: str | None, messages: Messages | None) -> list[int]:
    """The tokens that a conversation begins with.  Raises `PromptError` if there are none."""
    if (prompt is None) == (messages is None):
        raise PromptError("give either a prompt or messages")
    tokenizer = loaded.engine.tokenizer
    if messages is not None:
        tokens = loaded.chat.encode(messages, tokenizer)
    else:
        tokens = tokenizer.encode(prompt or "", special=False)
    if not tokens:
        raise PromptError("the prompt is empty: at least one token is needed to generate from")
    return tokens


def stored_request(
    what: str | Messages | None, params: SamplingParams | None, max_tokens: int
) -> dict[str, Any]:
    """A turn's request, as JSON: `prompt` or `messages`, `params`, `max_tokens`."""
    if max_tokens < 1:
        raise PromptError(f"max_tokens is {max_tokens}, expected at least 1")
    kind = {"prompt": what} if isinstance(what, str) else {"messages": [dict(m) for m in what or ()]}
    return {**kind, "params": asdict(params or SamplingParams()), "max_tokens": max_tokens}


def require_turn(session: Session) -> None:
    """Raise `CheckpointError` unless the session says what going on with its last turn needs.

    Digests hold for any bytes that someone sealed, and a request is free JSON to the rooms below.
    """
    transcript, what = session.transcript, f"session {session.id!r}"
    if not transcript.tokens:
        raise CheckpointError(f"{what} holds no tokens: {session.damage or 'it is a beginning'}")
    request = transcript.requests[-1][1] if transcript.requests else {}
    params, most, messages = (request.get(name) for name in ("params", "max_tokens", "messages"))
    if not isinstance(params, dict):
        raise CheckpointError(f"{what}: its request has params {params!r:.60}, expected an object")
    try:
        SamplingParams(**params)
    except (PromptError, TypeError) as error:
        raise CheckpointError(f"{what}: its request has params {params!r:.200}: {error}") from None
    if type(most) is not int or most < 1:
        raise CheckpointError(f"{what}: its request has max_tokens {most!r:.60}, expected at least 1")
    if "messages" in request and not (
        isinstance(messages, list) and all(isinstance(m, dict) for m in messages)
    ):
        raise CheckpointError(
            f"{what}: its request has messages {messages!r:.60}, expected a list of objects"
        )
    for row in transcript.sampled.values():
        if row.state and len(row.state) != STATE.size:
            found = f"found {len(row.state)} bytes, expected {STATE.size}"
            raise CheckpointError(f"{what}: the sampler's state at token {row.position}: {found}")


def next_turn(loaded: Loaded, request: Mapping[str, Any], answer: Sequence[int], text: str) -> Turn:
    """The user's `text` after the `answer` that `request` got, as the chat template has it.

    The answer's own tokens stay as they were drawn; the template's text after it is encoded alone.
    """
    tokenizer = loaded.engine.tokenizer
    before, user = [dict(m) for m in request["messages"]], {"role": "user", "content": text}
    tokens = loaded.chat.encode_after(before, text, tokenizer)
    if answer and tokens and answer[-1] == tokens[0]:
        tokens = tokens[1:]  # the answer ended with the template's own end of turn
    reply = tokenizer.decode([token for token in answer if token not in tokenizer.eos_ids])
    return Turn([*before, {"role": "assistant", "content": reply}, user], tokens)
