"""Text to token ids and back, from the vocabulary inside a GGUF file.

Two vocabularies are known: GPT-2 byte-level BPE (`tokenizer.ggml.model` "gpt2", pre-tokenizers "smollm" and
"gpt-2") and SentencePiece BPE ("llama", as Gemma has it).
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Set
from functools import cached_property
from typing import Any

from webkv.errors import ModelError, PromptError
from webkv.models.architectures import stop_ids
from webkv.models.bpe import CHAR_TO_BYTE
from webkv.models.encoders import SPACE_MARK, Encoder, Spm, byte_bpe
from webkv.models.gguf import GgufFile
from webkv.models.keys import Keys

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SURROGATE = re.compile("[\ud800-\udfff]")
ANSWER = "\udfff"  # a surrogate that stands for no character: where an answer is in a chat
_STAND_INS = ord(ANSWER) - 0xD800
# tokenizer.ggml.pre -> whether every number is a word of its own
PRE_TOKENIZERS = {"smollm": True, "gpt-2": False}


class Cutter:
    """Finds given tokens in a text, leftmost first, the longest where several begin."""

    def __init__(self, tokens: dict[str, int]) -> None:
        self._ids = tokens
        self._lengths: dict[str, list[int]] = {}  # first two characters -> lengths, descending
        for token in tokens:
            lengths = self._lengths.setdefault(token[:2], [])
            if len(token) not in lengths:
                lengths.append(len(token))
        for lengths in self._lengths.values():
            lengths.sort(reverse=True)
        first = "".join(re.escape(char) for char in sorted({token[0] for token in tokens}))
        self._first = re.compile(f"[{first}]") if first else None

    def cut(self, text: str) -> Iterator[str | int]:
        """`text` as stretches of plain text (never empty) and ids of tokens found in it."""
        start = at = 0
        while self._first is not None and (found := self._first.search(text, at)):
            at = found.start()
            token = self._at(text, at)
            if token is None:
                at += 1
                continue
            if start < at:
                yield text[start:at]
            yield self._ids[token]
            start = at = at + len(token)
        if start < len(text):
            yield text[start:]

    def begins(self, text: str) -> Iterator[tuple[int, int]]:
        """Every position where a token begins, overlapping ones too, with the id of the longest there."""
        for found in self._first.finditer(text) if self._first is not None else ():
            token = self._at(text, found.start())
            if token is not None:
                yield found.start(), self._ids[token]

    def _at(self, text: str, at: int) -> str | None:
        for prefix in (text[at : at + 2], text[at]):
            for length in self._lengths.get(prefix, ()):
                if text[at : at + length] in self._ids:
                    return text[at : at + length]
        return None


class TextStream:
    """Decodes ids one by one; what it gives out never ends inside a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.space_prefix

    def push(self, token: int) -> str:
        """The text that became certain with `token`; empty while a character is incomplete."""
        text = self._utf8.decode(self._tokenizer.piece(token))
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character, or nothing."""
        return self._utf8.decode(b"", final=True)


class Tokenizer:
    """The tokenizer of one model.

    Attributes: `eos_ids` are the ids that end generation, `bos_id` the begin token or None, `add_bos` whether
    the model wants it before a text, `space_prefix` whether a text is given a leading space.
    """

    def __init__(self, name: str, metadata: dict[str, Any]) -> None:
        keys = Keys(name, metadata)
        tokens = keys.texts("tokenizer.ggml.tokens")
        types = keys.numbers("tokenizer.ggml.token_type", len(tokens))
        model = keys.text("tokenizer.ggml.model")
        self.tokens, self.types = tokens, types
        self.bos_id = keys.token_id("tokenizer.ggml.bos_token_id", len(tokens))
        eos = keys.token_id("tokenizer.ggml.eos_token_id", len(tokens))
        if eos is None:
            raise ModelError(f"{name}: metadata key tokenizer.ggml.eos_token_id is missing")
        self.eos_id = eos
        self.eos_ids = stop_ids(metadata, eos)
        self.add_bos = keys.flag("tokenizer.ggml.add_bos_token", model == "llama")
        self.space_prefix = model == "llama" and keys.flag("tokenizer.ggml.add_space_prefix", True)
        if self.add_bos and self.bos_id is None:
            raise ModelError(f"{name}: metadata key tokenizer.ggml.bos_token_id is missing")
        self._byte_level = model == "gpt2"
        self._encoder, self._rule = _encoder(keys, model, tokens)
        special = {UNKNOWN, CONTROL, USER_DEFINED}
        listed = [(token, index, kind) for index, (token, kind) in enumerate(zip(tokens, types, strict=True))]
        own = {token: index for token, index, kind in listed if kind == USER_DEFINED and token}
        every = {token: index for token, index, kind in listed if kind in special and token}
        self._cutters = {False: Cutter(own), True: Cutter(every)}
        self._hidden, self._shown = _stand_ins(name, every.keys() - own.keys())

    @staticmethod
    def from_gguf(gguf: GgufFile) -> Tokenizer:
        """The tokenizer in an open file.

        Raises `ModelError` naming the metadata key that is missing, of the wrong kind, or not supported.
        """
        return Tokenizer(gguf.name, gguf.metadata)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self.tokens)

    @cached_property
    def identity(self) -> str:
        """SHA-256 in hex over everything that decides how text becomes ids and ids become text."""
        flags = [self.bos_id, self.add_bos, self.space_prefix]
        parts = [self._byte_level, self._rule, self.tokens, self.types, flags]
        return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()

    def encode(self, text: str, *, special: bool = True, add_bos: bool | None = None) -> list[int]:
        """Token ids of `text`; an end token is never added.

        With `special`, the text of a control token (such as `<|im_end|>`) becomes that token; without, it is
        spelled out.  `add_bos` None follows the model.  Give False for a chat, whose template writes its own.
        Raises `PromptError` for a lone surrogate, which no UTF-8 text can hold.
        """
        _refuse_surrogates(text)
        return self._encode(text, special, self.add_bos if add_bos is None else add_bos)

    def hide(self, text: str) -> str:
        """`text` for a place inside a text for `encode_chat`, which will spell out the control tokens in it.

        Who writes a message cannot end its turn with them.  The first character of each is replaced by a lone
        surrogate that stands for it: a template's tests and trimming still work, and no text holds one by
        itself.  Raises `PromptError` as `encode` does.
        """
        _refuse_surrogates(text)
        characters = list(text)
        for at, token in self._cutters[True].begins(text):
            if self.types[token] != USER_DEFINED:
                characters[at] = self._hidden[text[at]]
        return "".join(characters)

    def encode_chat(self, text: str) -> list[int]:
        """Token ids of a chat's rendered text, with all control tokens but those that `hide` has hidden.

        No begin token is added: a chat template writes its own.  Raises `PromptError` as `encode` does.
        """
        return self._encode(text, True, False)

    def _encode(self, text: str, special: bool, add_bos: bool) -> list[int]:
        ids: list[int] = []
        if add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        prefix = " " if self.space_prefix else ""
        after_special = True
        for part in self._parts(text, special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encoder.encode(prefix + part if after_special else part)
            after_special = isinstance(part, int)
        return ids

    def _parts(self, text: str, special: bool) -> Iterator[str | int]:
        """`text` cut at its special tokens; what is hidden is shown and cut at user-defined ones alone."""
        for part in self._cutters[special].cut(text):
            if isinstance(part, str) and SURROGATE.search(part):
                shown = part.translate(self._shown)
                _refuse_surrogates(shown)  # a template may make one
                yield from self._cutters[False].cut(shown)
            else:
                yield part

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids` without control tokens; bytes that are not UTF-8 become U+FFFD."""
        stream = self.stream()
        return "".join([stream.push(token) for token in ids]) + stream.flush()

    def stream(self) -> TextStream:
        """A decoder for ids that come one by one."""
        return TextStream(self)

    def piece(self, token: int) -> bytes:
        """The bytes that one token stands for; none for a control token.

        Raises `PromptError` for an id outside the vocabulary.
        """
        if not 0 <= token < len(self.tokens):
            raise PromptError(f"token id is {token}, expected 0 to {len(self.tokens) - 1}")
        text, kind = self.tokens[token], self.types[token]
        if kind in (CONTROL, UNKNOWN):
            return b""
        if kind == BYTE:
            return bytes([int(text[3:5], 16)])
        if kind == USER_DEFINED:
            return text.encode("utf-8")
        if not self._byte_level:
            return text.replace(SPACE_MARK, " ").encode("utf-8")
        return bytes(CHAR_TO_BYTE[char] for char in text)


def _refuse_surrogates(text: str) -> None:
    found = SURROGATE.search(text)
    if found is not None:
        raise PromptError(f"the text has a lone surrogate U+{ord(found[0]):04X} at character {found.start()}")


def _stand_ins(name: str, controls: Set[str]) -> tuple[dict[str, str], dict[int, str]]:
    """A lone surrogate for each character with which a control token begins, and the way back."""
    first = sorted({token[0] for token in controls})
    if len(first) > _STAND_INS:
        raise ModelError(
            f"{name}: control tokens begin with {len(first)} different characters, at most {_STAND_INS} can"
        )
    return (
        {char: chr(0xD800 + index) for index, char in enumerate(first)},
        {0xD800 + index: char for index, char in enumerate(first)},
    )


def _encoder(keys: Keys, model: str, tokens: list[str]) -> tuple[Encoder, list[Any]]:
    """The encoder for a vocabulary, and the merges or scores it goes by (for the identity)."""
    if model == "gpt2":
        pre = keys.text("tokenizer.ggml.pre")
        if pre not in PRE_TOKENIZERS:
            known = ", ".join(PRE_TOKENIZERS)
            raise ModelError(f"{keys.file}: tokenizer.ggml.pre {pre!r} is not supported, known are {known}")
        merges = keys.texts("tokenizer.ggml.merges")
        return byte_bpe(keys.file, tokens, merges, PRE_TOKENIZERS[pre]), [pre, *merges]
    if model == "llama":
        scores = keys.numbers("tokenizer.ggml.scores", len(tokens))
        return Spm(keys.file, tokens, scores), scores
    raise ModelError(
        f"{keys.file}: tokenizer.ggml.model {model!r} is not supported, known are gpt2 and llama"
    )
