"""A chat as one prompt text: the template in the GGUF file, or Gemma's own where the file has none."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, NoReturn

from webkv.errors import ModelError, PromptError
from webkv.models.gguf import GgufFile
from webkv.models.tokenizer import ANSWER, Tokenizer

Message = Mapping[str, str]

# The form of template that renders without jinja2, which a page may lack: ChatML turns, with the system
# message that is put in front where the chat has none.
CHATML = re.compile(
    r"\{% for message in messages %\}"
    r"(?:\{% if loop\.first and messages\[0\]\['role'\] != 'system' %\}"
    r"\{\{ '<\|im_start\|>system\n(?P<system>[^']*)<\|im_end\|>\n' \}\}\{% endif %\})?"
    r"\{\{'<\|im_start\|>' \+ message\['role'\] \+ '\n' \+ message\['content'\] \+ '<\|im_end\|>' \+ '\n'\}\}"
    r"\{% endfor %\}\{% if add_generation_prompt %\}\{\{ '<\|im_start\|>assistant\n' \}\}\{% endif %\}"
)


class ChatTemplate:
    """Makes messages `{"role": ..., "content": ...}` the text that a model was trained on, and its tokens.

    The text holds the template's special tokens, its begin token too.  `encode` and `encode_after` parse
    those and none that a message spells: a user ends no turn, and is no system, by writing `<|im_end|>`.
    """

    def __init__(self, name: str, source: str | None, bos_token: str = "", eos_token: str = "") -> None:
        """`source` is a jinja2 template, None for Gemma's format; `name` is the model's, for messages."""
        self._name = name
        self._source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @staticmethod
    def from_gguf(gguf: GgufFile) -> ChatTemplate:
        """The template in an open file.  Raises `ModelError` where it has none and is no Gemma."""
        metadata = gguf.metadata
        source = metadata.get("tokenizer.chat_template")
        gemma = source is None and metadata.get("general.architecture") == "gemma3"
        if not gemma and not isinstance(source, str):
            raise ModelError(
                f"{gguf.name}: metadata key tokenizer.chat_template is missing, use a plain prompt"
            )
        vocabulary = metadata.get("tokenizer.ggml.tokens", [])
        ids = (metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos"))
        texts = [vocabulary[index] if index is not None else "" for index in ids]
        return ChatTemplate(gguf.name, source, *texts)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The chat as one text, ending where the model's answer begins.

        Raises `PromptError` for messages that are malformed or that the template refuses, `ModelError` with
        the line number for a broken template.
        """
        _check(messages)
        if self._source is None:
            return self._tokens["bos_token"] + _render_gemma(messages, add_generation_prompt)
        try:
            import jinja2
        except ImportError:
            return self._render_chatml(messages, add_generation_prompt)
        try:
            return self._compiled.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except _Refused as refused:
            raise PromptError(f"the chat template of {self._name} refuses the chat: {refused}") from None
        except jinja2.TemplateSyntaxError as error:
            raise self._broken(error.lineno, error) from error
        except Exception as error:  # a template is a program: it may fail in any way
            raise self._broken(_template_line(error.__traceback__), error) from error

    def encode(self, messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
        """Token ids of the chat, ending where the model's answer begins.  Raises as `render` does."""
        return tokenizer.encode_chat(self.render(_hidden(messages, tokenizer)))

    def encode_after(self, messages: Sequence[Message], text: str, tokenizer: Tokenizer) -> list[int]:
        """Token ids that follow the model's answer to `messages`, with the user's `text` as the next turn."""
        asked = _hidden([*messages, {"role": "user", "content": text}], tokenizer)
        asked.insert(-1, {"role": "assistant", "content": ANSWER})
        _, found, after = self.render(asked).rpartition(ANSWER)
        if not found:
            raise ModelError(f"the chat template of {self._name} leaves out the model's answers")
        return tokenizer.encode_chat(after)

    @cached_property
    def _compiled(self) -> Any:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        return environment.from_string(self._source or "")

    def _broken(self, line: int | None, error: Exception) -> ModelError:
        where = f" line {line}" if line else ""
        return ModelError(f"the chat template of {self._name} is broken:{where}: {error}")

    def _render_chatml(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        found = CHATML.fullmatch(self._source or "")
        if found is None:
            raise ModelError(f"the chat template of {self._name} needs jinja2, which is not installed")
        turns = [(message["role"], message["content"]) for message in messages]
        if found["system"] is not None and turns and turns[0][0] != "system":
            turns.insert(0, ("system", found["system"]))
        text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")


def _render_gemma(messages: Sequence[Message], add_generation_prompt: bool) -> str:
    """Gemma's turns of "user" and "model"; a system message becomes the head of the first user turn."""
    head = ""
    if messages[0]["role"] == "system":
        head, messages = messages[0]["content"] + "\n\n", messages[1:]
    text = ""
    for index, message in enumerate(messages):
        expected, name = (("user", "user"), ("assistant", "model"))[index % 2]
        if message["role"] != expected:
            raise PromptError(f"turn {index} of the chat has role {message['role']!r}, expected {expected!r}")
        text += f"<start_of_turn>{name}\n{head}{message['content'].strip()}<end_of_turn>\n"
        head = ""
    return text + ("<start_of_turn>model\n" if add_generation_prompt else "")


def _hidden(messages: Sequence[Message], tokenizer: Tokenizer) -> list[Message]:
    _check(messages)
    return [{name: tokenizer.hide(value) for name, value in message.items()} for message in messages]


class _Refused(Exception):
    """A template called `raise_exception`."""


def _refuse(message: object) -> NoReturn:
    raise _Refused(str(message))


def _to_json(value: object, indent: int | None = None) -> str:
    """JSON without jinja's HTML escapes, as the templates expect."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise PromptError("the chat has no message")
    for index, message in enumerate(messages):
        given = message if isinstance(message, Mapping) else {}
        for field, value in {"role": None, "content": None, **given}.items():
            if not isinstance(value, str):
                raise PromptError(f"message {index} has {field} {value!r}, expected a string")


def _template_line(trace: TracebackType | None) -> int | None:
    """The line in the template where a rendering failed: jinja maps its frames to `<template>`."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
