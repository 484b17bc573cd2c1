"""Byte-pair merging, GPT-2's word split and byte alphabet, without any library.

`merge` serves both kinds of vocabulary: merges by rank (Sennrich et al. 2016; GPT-2) and by the score of the
joined text (SentencePiece).
"""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

Rank = Callable[[str, str], "float | None"]

# Unicode's White_Space; Python's str.isspace has U+001C..1F besides.
WHITE_SPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
)
# GPT-2's pattern: a contraction is looked for in the text, the rest in its string of character classes, where
# L, N are letters and numbers, ' ' is a space, S other white space and O all else.
CONTRACTION = re.compile("'(?:[stmd]|re|ve|ll)")
WORD = re.compile(" ?L+| ?N+| ?O+|[ S]+(?![LNO])|[ S]+")
NUMBER_APART = re.compile("N|[^N]+")
WHOLE = re.compile(".+")


def _byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte: itself where Latin-1 prints it, else U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(rest)) for byte in range(256)]


BYTE_TO_CHAR = _byte_alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}


def to_alphabet(text: str) -> str:
    """The UTF-8 bytes of `text` in GPT-2's alphabet, one character a byte."""
    return "".join([BYTE_TO_CHAR[byte] for byte in text.encode("utf-8")])


def split_words(text: str, numbers_apart: bool) -> Iterator[str]:
    """GPT-2's pre-tokenizer; `numbers_apart` first cuts every numeric character off as a word of its own."""
    classes = "".join(map(_char_class, text))
    for run in (NUMBER_APART if numbers_apart else WHOLE).finditer(classes):
        at, end = run.span()
        while at < end:
            found = CONTRACTION.match(text, at, end) or WORD.match(classes, at, end)
            assert found is not None, "every class is in one of the alternatives"
            yield text[at : found.end()]
            at = found.end()


@lru_cache(maxsize=4096)
def _char_class(char: str) -> str:
    if char in WHITE_SPACE:
        return " " if char == " " else "S"
    kind = unicodedata.category(char)[0]
    return kind if kind in "LN" else "O"


def merge(symbols: Sequence[str], rank: Rank) -> list[str]:
    """Join neighbours until none can be joined: lowest `rank(left, right)` first, leftmost among equals.

    `rank` gives None for a pair that does not merge.  Takes O(n log n) steps for n symbols.
    """
    texts = list(symbols)
    count = len(texts)
    before, after = list(range(-1, count - 1)), list(range(1, count + 1))
    heap = []
    for left, pair in enumerate(pairwise(texts)):
        found = rank(*pair)
        if found is not None:
            heap.append((found, left, *pair))
    heapq.heapify(heap)
    while heap:
        _, left, first, second = heapq.heappop(heap)
        right = after[left]
        if texts[left] != first or right >= count or texts[right] != second:
            continue  # one of the two has merged with something else
        texts[left], texts[right] = first + second, ""
        after[left] = after[right]
        if after[left] < count:
            before[after[left]] = left
        for one, two in ((before[left], left), (left, after[left])):
            if one >= 0 and two < count:
                found = rank(texts[one], texts[two])
                if found is not None:
                    heapq.heappush(heap, (found, one, texts[one], texts[two]))
    return [text for text in texts if text]
