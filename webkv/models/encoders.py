"""From a stretch of plain text to token ids, for the two kinds of vocabulary that GGUF files carry.

Both follow llama.cpp's result to the token.  Special tokens are cut out before a text comes here.
"""

from __future__ import annotations

from typing import Any, Protocol

from webkv.errors import ModelError
from webkv.models.bpe import merge, split_words, to_alphabet

SPACE_MARK = "\u2581"
WORDS_CACHED = 10_000  # distinct words whose ids are kept, as in the tokenizers library


class Encoder(Protocol):
    """Turns text without special tokens into ids."""

    def encode(self, text: str) -> list[int]: ...


class ByteBpe:
    """Byte-level BPE by merge rank, in Python alone: what the browser runs, and what `LibraryBpe` must equal.

    A byte whose character the vocabulary lacks gives no token, as in llama.cpp, and nothing merges across it.
    """

    def __init__(self, tokens: list[str], merges: list[tuple[str, str]], numbers_apart: bool) -> None:
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._numbers_apart = numbers_apart
        self._words: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in split_words(text, self._numbers_apart):
            found = self._words.get(word)
            if found is None:
                found = self._word(word)
                if len(self._words) < WORDS_CACHED:
                    self._words[word] = found
            ids += found
        return ids

    def _word(self, word: str) -> list[int]:
        symbols = merge(to_alphabet(word), lambda left, right: self._ranks.get((left, right)))
        return [self._ids[symbol] for symbol in symbols if symbol in self._ids]


class LibraryBpe:
    """The same through the `tokenizers` library.

    Bytes that the vocabulary lacks become an extra token past its end, which is dropped again: left to itself
    the library would skip such a byte and merge its neighbours.
    """

    def __init__(self, tokens: list[str], merges: list[tuple[str, str]], numbers_apart: bool) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        ids = {token: index for index, token in enumerate(tokens)}
        lacking = " "  # never a byte-level symbol: the alphabet has no space
        ids[lacking] = self._limit = len(tokens)
        bpe = models.BPE(vocab=ids, merges=merges, unk_token=lacking, fuse_unk=False)
        self._tokenizer: Any = Tokenizer(bpe)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = pre_tokenizers.Digits(individual_digits=True)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words] if numbers_apart else [words])

    def encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [index for index in ids if index < self._limit]


def byte_bpe(name: str, tokens: list[str], merges: list[str], numbers_apart: bool) -> Encoder:
    """A byte-level encoder, of the library if installed.  `merges` are the GGUF `"left right"` lines."""
    known = set(tokens)
    pairs: list[tuple[str, str]] = []
    for index, line in enumerate(merges):
        left, gap, right = line.partition(" ")
        if not gap or left not in known or right not in known or left + right not in known:
            raise ModelError(
                f"{name}: tokenizer.ggml.merges has {line!r} at {index}, whose tokens are not listed"
            )
        pairs.append((left, right))
    try:
        return LibraryBpe(tokens, pairs, numbers_apart)
    except ImportError:
        return ByteBpe(tokens, pairs, numbers_apart)


class Spm:
    """SentencePiece BPE: merges the pair whose joined text scores highest; unknown characters become bytes.

    The `tokenizers` library cannot express it: it ranks pairs, while here two pairs that join to one text are
    equals and the leftmost wins.
    """

    def __init__(self, name: str, tokens: list[str], scores: list[float]) -> None:
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._costs = {token: -score for token, score in zip(tokens, scores, strict=True)}
        try:
            self._bytes = [self._ids[f"<0x{byte:02X}>"] for byte in range(256)]
        except KeyError as missing:
            raise ModelError(f"{name}: the vocabulary lacks the byte token {missing}") from None

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        costs = self._costs
        for symbol in merge(text.replace(" ", SPACE_MARK), lambda left, right: costs.get(left + right)):
            found = self._ids.get(symbol)
            if found is None:
                ids += [self._bytes[byte] for byte in symbol.encode("utf-8")]
            else:
                ids.append(found)
        return ids
