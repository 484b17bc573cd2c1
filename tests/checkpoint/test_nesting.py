"""JSON from outside is parsed as ever, unless it is nested deeply."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webkv.checkpoint.nesting import MAX_NESTING, parse_json

VALUES = st.recursive(
    st.none() | st.integers() | st.text('[]{}"\\a€'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('[{"\\'), inner),
)


@given(VALUES)
def test_values_are_parsed(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def test_many_brackets_beside_each_other_or_in_strings_are_not_deep() -> None:
    value = {"a": [[]] * 1000, "b": "[" * 1000, "c": '\\"[' * 1000, "d\\": "{" * 1000}
    assert parse_json(json.dumps(value).encode()) == value


def test_the_deepest_that_is_parsed() -> None:
    text = b"[" * MAX_NESTING + b"]" * MAX_NESTING
    assert json.dumps(parse_json(text)).encode() == text


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'["]",', b"[[],"])
@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 100_000])
def test_deeper_values_are_refused(opening: bytes, levels: int) -> None:
    with pytest.raises(ValueError, match="200 levels"):
        parse_json(opening * levels)


@pytest.mark.parametrize("data", [b"", b"{", b'"', b"\xff", b"[1,]", b"]" * 1000])
def test_what_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
        parse_json(data)


@pytest.mark.parametrize("text", [rb'"\ud800"', rb'{"a\uDC00": 1}', rb'["\ude00\ud83d"]'])
def test_half_a_character_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="lone surrogate"):
        parse_json(text)


def test_an_escaped_character_of_two_halves_is_text() -> None:
    assert parse_json(rb'["\ud83d\ude00", "\\ud83d"]') == ["\U0001f600", r"\ud83d"]
