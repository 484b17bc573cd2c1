"""Merging and word splitting on their own."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webkv.models.bpe import BYTE_TO_CHAR, merge, split_words, to_alphabet

RANKS = {"aa": 3.0, "aaa": 2.0, "ab": 1.0, "aab": 2.0, "ba": 3.0, "abab": 0.0, "cc": 5.0, "cccc": 5.0}


def one_at_a_time(symbols: list[str]) -> list[str]:
    """The definition of `merge`, quadratic: look at all pairs, join the best, start again."""
    while True:
        pairs = [(RANKS.get(a + b), index) for index, (a, b) in enumerate(pairwise(symbols))]
        found = [(rank, index) for rank, index in pairs if rank is not None]
        if not found:
            return symbols
        _, at = min(found)
        symbols = [*symbols[:at], symbols[at] + symbols[at + 1], *symbols[at + 2 :]]


@given(text=st.text("abc", max_size=40))
def test_merge_is_the_best_pair_leftmost_first(text: str) -> None:
    assert merge(text, lambda left, right: RANKS.get(left + right)) == one_at_a_time(list(text))


@given(text=st.text(max_size=40).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text)))
@pytest.mark.parametrize("numbers_apart", [True, False])
def test_words_are_the_whole_text(numbers_apart: bool, text: str) -> None:
    words = list(split_words(text, numbers_apart))
    assert "".join(words) == text
    assert "" not in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("it's don'T we'll", ["it", "'s", " don", "'", "T", " we", "'ll"]),
        ("a  b   ", ["a", " ", " b", "   "]),
        ("a\n\n b", ["a", "\n\n", " b"]),
        ("x = 12", ["x", " =", " ", "1", "2"]),
        ("Ⅷ½", ["Ⅷ", "½"]),
        ("\x1c\x85", ["\x1c", "\x85"]),
        ("", []),
    ],
)
def test_words_with_numbers_apart(text: str, words: list[str]) -> None:
    assert list(split_words(text, numbers_apart=True)) == words


def test_numbers_stay_together_in_gpt2() -> None:
    assert list(split_words("in 2024!", numbers_apart=False)) == ["in", " 2024", "!"]


def test_the_byte_alphabet_is_gpt2s() -> None:
    assert to_alphabet(" \n!é\x7f\xad") == "ĠĊ!Ã©ġÂŃ"
    assert len(set(BYTE_TO_CHAR)) == 256
