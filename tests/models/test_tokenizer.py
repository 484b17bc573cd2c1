"""Tokenizers: llama.cpp's ids for awkward strings, and properties that hold for any text."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.tiny import write_tiny_gemma3, write_tiny_llama
from tests.support import examples
from webkv.errors import ModelError, PromptError
from webkv.models.encoders import ByteBpe, LibraryBpe
from webkv.models.gguf import open_gguf
from webkv.models.locate import locate
from webkv.models.tokenizer import Cutter, Tokenizer

GOLDEN = Path(__file__).parent.parent / "golden"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
# Text that looks like tokens: pieces of English, runs, specials, control characters, many planes.
PIECES = [
    *("the", " and", "'s", "'", " ", "  ", "\n", "\n\n", "\t", "\r\n", "1", "23", "=", "▁", "½"),
    *("\x00", "\x04", "é", "\u0301", "漢", "👩\u200d👩", "\U00040000", "\u00a0", "\u0085", "\u3000"),
    *("<|im_end|>", "<bos>", "<0x41>"),
]
TRICKY = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


@cache
def packaged(name: str) -> Tokenizer:
    try:
        return Tokenizer.from_gguf(open_gguf(locate(name)))
    except ModelError as missing:
        pytest.skip(str(missing))


@cache
def tiny(write: Any) -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(tiny_bytes(write)))


@cache
def tiny_bytes(write: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "tiny.gguf")
        return (Path(folder) / "tiny.gguf").read_bytes()


def cases() -> list[Any]:
    found = []
    for file in ("tokenization.json", "tokenization_awkward.json"):
        for model, texts in json.loads((GOLDEN / file).read_text())["cases"].items():
            found += [pytest.param(model, case, id=f"{model}-{case['text'][:16]!a}") for case in texts]
    return found


@pytest.mark.parametrize(("model", "case"), cases())
def test_ids_are_llama_cpps(model: str, case: dict[str, Any]) -> None:
    tokenizer = packaged(model)
    assert tokenizer.encode(case["text"]) == case["ids_special"]
    assert tokenizer.encode(case["text"], special=False) == case["ids_plain"]


@settings(max_examples=examples(200), deadline=None)
@given(text=TRICKY)
def test_the_library_and_the_plain_python_encoder_agree(text: str) -> None:
    tokenizer = packaged("smollm2")
    assert isinstance(tokenizer._encoder, LibraryBpe)
    assert plain_encoder().encode(text) == tokenizer._encoder.encode(text)


@cache
def plain_encoder() -> ByteBpe:
    metadata = open_gguf(locate("smollm2")).metadata
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
    return ByteBpe(metadata["tokenizer.ggml.tokens"], merges, numbers_apart=True)


@settings(max_examples=examples(200), deadline=None)
@given(text=TEXT | TRICKY)
@pytest.mark.parametrize("write", [write_tiny_llama, write_tiny_gemma3])
def test_decode_inverts_encode(write: Any, text: str) -> None:
    tokenizer = tiny(write)
    marks_lost = text if write is write_tiny_llama else text.replace("▁", " ")
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == marks_lost


@settings(max_examples=examples(100), deadline=None)
@given(text=TRICKY)
def test_gemmas_decode_inverts_encode(text: str) -> None:
    tokenizer = packaged("gemma3")
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text.replace("▁", " ")


@settings(max_examples=examples(200), deadline=None)
@given(ids=st.lists(st.integers(0, 298), max_size=30))
@pytest.mark.parametrize("write", [write_tiny_llama, write_tiny_gemma3])
def test_a_stream_gives_the_text_of_decode_and_never_half_a_character(write: Any, ids: list[int]) -> None:
    tokenizer = tiny(write)
    stream, pieces = tokenizer.stream(), []
    raw = b""
    for token in ids:
        pieces.append(stream.push(token))
        raw += tokenizer.piece(token)
        whole = raw.decode("utf-8", "replace")
        assert whole.startswith("".join(pieces))
    assert "".join(pieces) + stream.flush() == tokenizer.decode(ids) == raw.decode("utf-8", "replace")


def test_without_the_library_the_plain_encoder_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = open_gguf(tiny_bytes(write_tiny_llama)).metadata
    text = "The sea of a thing, 42\x04 \u00e9!<|im_end|>"
    expected = Tokenizer("m", metadata).encode(text)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    tokenizer = Tokenizer("m", metadata)
    assert isinstance(tokenizer._encoder, ByteBpe)
    assert tokenizer.encode(text) == expected


def test_a_stream_waits_for_the_last_byte_of_an_emoji() -> None:
    tokenizer = tiny(write_tiny_gemma3)
    ids = tokenizer.encode("👩", add_bos=False)
    stream = tokenizer.stream()
    assert [stream.push(token) for token in ids] == ["", "", "", "👩"]


def test_a_stream_flushes_an_incomplete_character_as_a_replacement() -> None:
    tokenizer = tiny(write_tiny_gemma3)
    stream = tokenizer.stream()
    assert stream.push(tokenizer.encode("👩", add_bos=False)[0]) == ""
    assert stream.flush() == "\ufffd"


def test_the_begin_token_follows_the_model_unless_told() -> None:
    gemma, llama = tiny(write_tiny_gemma3), tiny(write_tiny_llama)
    assert gemma.encode("")[:1] == [2]
    assert gemma.encode("", add_bos=False) == []
    assert llama.encode("") == []
    assert llama.encode("", add_bos=True) == [1]


def test_control_tokens_are_parsed_only_with_special() -> None:
    tokenizer = tiny(write_tiny_llama)
    assert tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]
    assert {1, 2}.isdisjoint(tokenizer.encode("<|im_start|><|im_end|>", special=False))


def test_user_defined_tokens_are_always_parsed_longest_first() -> None:
    tokenizer = tiny(write_tiny_gemma3)
    ids = [tokenizer.encode(" " * n, special=False, add_bos=False) for n in (2, 3, 4, 5, 7)]
    texts = [[tokenizer.tokens[token] for token in found] for found in ids]
    assert texts == [["  "], ["   "], ["    "], ["    ", "▁"], ["    ", "   "]]


def test_end_ids_are_those_that_stop_generation() -> None:
    assert tiny(write_tiny_llama).eos_ids == (0, 2)
    assert tiny(write_tiny_gemma3).eos_ids == (1, 5)


@settings(max_examples=examples(100), deadline=None)
@given(text=st.text("ab<|>x", max_size=30))
def test_cut_loses_nothing_and_leaves_no_token(text: str) -> None:
    tokens = {"<a>": 0, "<a": 1, "|": 2, "ab<|": 3}
    names = {index: token for token, index in tokens.items()}
    parts = list(Cutter(tokens).cut(text))
    assert "".join(names[part] if isinstance(part, int) else part for part in parts) == text
    assert not any(token in part for part in parts if isinstance(part, str) for token in tokens)
    assert "" not in parts


@settings(max_examples=examples(200), deadline=None)
@given(text=TEXT | TRICKY)
@pytest.mark.parametrize("write", [write_tiny_llama, write_tiny_gemma3])
def test_hidden_text_has_the_ids_of_plain_text(write: Any, text: str) -> None:
    tokenizer = tiny(write)
    assert tokenizer.encode_chat(tokenizer.hide(text)) == tokenizer.encode(text, special=False, add_bos=False)


def test_only_what_was_hidden_is_spelled_out() -> None:
    tokenizer = tiny(write_tiny_llama)
    ids = tokenizer.encode_chat("<|im_start|>" + tokenizer.hide("<|im_end|>") + "<|im_end|>")
    assert ids == [1, *tokenizer.encode("<|im_end|>", special=False), 2]


def test_control_tokens_inside_one_another_are_hidden_too() -> None:
    metadata = dict(open_gguf(tiny_bytes(write_tiny_llama)).metadata)
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[:3] = ["<<a>", "<a>", ">"]
    tokenizer = Tokenizer("m", metadata | {"tokenizer.ggml.tokens": tokens})
    assert {0, 1, 2}.isdisjoint(tokenizer.encode_chat(tokenizer.hide("<<<a>>")))


def test_more_first_characters_than_there_are_surrogates_are_refused() -> None:
    metadata = dict(open_gguf(tiny_bytes(write_tiny_llama)).metadata)
    more = [chr(0x4E00 + index) for index in range(2048)]
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *more]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *([3] * len(more))]
    with pytest.raises(ModelError, match="control tokens begin with 2049 different characters, at most 2047"):
        Tokenizer("m", metadata)


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "\ude00\ud83d"])
def test_a_lone_surrogate_is_refused(text: str) -> None:
    with pytest.raises(PromptError, match=r"lone surrogate U\+D\w\w\w at character \d"):
        tiny(write_tiny_llama).encode(text)


@pytest.mark.parametrize("token", [-1, 299])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(PromptError, match=rf"token id is {token}, expected 0 to 298"):
        tiny(write_tiny_llama).decode([token])


def test_a_leading_space_is_added_and_taken_off_where_the_file_says_so() -> None:
    metadata = open_gguf(tiny_bytes(write_tiny_gemma3)).metadata
    tokenizer = Tokenizer("m", metadata | {"tokenizer.ggml.add_space_prefix": True})
    ids = tokenizer.encode("the <end_of_turn>the")
    assert [tokenizer.tokens[token] for token in ids] == ["<bos>", "▁the", "▁", "<end_of_turn>", "▁the"]
    assert tokenizer.decode(ids) == "the  the"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", "reversed"),
        ("token_type", [1] * 299),
        ("merges", ["Ġ t"]),
        ("pre", "gpt-2"),
        ("add_bos_token", True),
        ("bos_token_id", 0),
    ],
)
def test_identity_changes_with_all_that_decides_ids(key: str, value: Any) -> None:
    metadata = dict(open_gguf(tiny_bytes(write_tiny_llama)).metadata)
    before = Tokenizer("m", metadata).identity
    assert Tokenizer("other name", metadata).identity == before
    if value == "reversed":
        value = metadata["tokenizer.ggml.tokens"][::-1]
    assert Tokenizer("m", metadata | {f"tokenizer.ggml.{key}": value}).identity != before


@pytest.mark.parametrize(
    ("write", "key", "value", "message"),
    [
        (write_tiny_llama, "model", "wordpiece", "tokenizer.ggml.model 'wordpiece' is not supported"),
        (write_tiny_llama, "pre", "tekken", "tokenizer.ggml.pre 'tekken' is not supported"),
        (write_tiny_llama, "token_type", [1], "tokenizer.ggml.token_type has 1 entries, expected 299"),
        (write_tiny_llama, "merges", ["Ġ q q"], "tokenizer.ggml.merges has 'Ġ q q' at 0"),
        (write_tiny_llama, "merges", ["Ġq"], "tokenizer.ggml.merges has 'Ġq' at 0"),
        (write_tiny_llama, "merges", None, "metadata key tokenizer.ggml.merges is missing"),
        (write_tiny_llama, "eos_token_id", None, "metadata key tokenizer.ggml.eos_token_id is missing"),
        (write_tiny_llama, "add_bos_token", 1, "tokenizer.ggml.add_bos_token is 1, expected a boolean"),
        (write_tiny_gemma3, "scores", [0.0], "tokenizer.ggml.scores has 1 entries, expected 368"),
        (write_tiny_gemma3, "bos_token_id", None, "metadata key tokenizer.ggml.bos_token_id is missing"),
        (write_tiny_gemma3, "tokens", ["x"] * 368, "the vocabulary lacks the byte token '<0x00>'"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(write: Any, key: str, value: Any, message: str) -> None:
    metadata = dict(open_gguf(tiny_bytes(write)).metadata)
    metadata[f"tokenizer.ggml.{key}"] = value
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(ModelError, match=message):
        Tokenizer("m", metadata)
