"""`webkv generate` and `resume`, run in this process with a tiny model on a real device."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import write_tiny_llama
from webkv.checkpoint import SqliteStore
from webkv.checkpoint.locks import FileLock
from webkv.cli import main
from webkv.load import load
from webkv.resume import Chat

PROMPT = "the quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny[b].gguf"
    write_tiny_llama(path)
    return path


class Runner:
    """Runs `webkv` with one store."""

    def __init__(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        code = main([*(str(argument) for argument in arguments), "--store", str(self.store)])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    def events(self, *arguments: object) -> list[dict[str, Any]]:
        code, out, _ = self(*arguments, "--json")
        assert code == 0
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def webkv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(tmp_path / "sessions.db", capsys)


def texts(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["event"] == "token")


def test_text_goes_to_stdout_and_the_rest_to_stderr(webkv: Runner, model: Path) -> None:
    request = "generate", "--model", model, "--raw", "--max-tokens", 12, PROMPT
    events = webkv.events(*request)
    assert [event["event"] for event in events] == ["ready", "start", *["token"] * 12, "end"]
    assert (events[-1]["finish"], events[-1]["status"]) == ("length", "durable")
    code, out, err = webkv(*request, "--session", "s")
    assert (code, out) == (0, texts(events) + "\n")
    assert "12 tokens (length), " in err
    assert err.endswith("; session s is durable\n")
    code, _, err = webkv("generate", "--model", model, "--raw", "--max-tokens", 2, "--no-session", PROMPT)
    assert "2 tokens (length), " in err
    assert "tokens/s" not in err  # both were shown at once


def test_resume_goes_on_and_says_when_there_is_nothing_to_do(webkv: Runner, model: Path) -> None:
    request = "generate", "--model", model, "--temperature", 1, "--seed", 3, PROMPT
    whole = webkv.events(*request, "--max-tokens", 30)
    webkv(*request, "--max-tokens", 9, "--session", "s")
    more = webkv.events("resume", "s", "--max-tokens", 30)
    assert more[1]["how"].startswith("kv+replay(")
    assert more[-1]["tokens"] == whole[-1]["tokens"]
    assert texts(more) == texts(whole)[-len(texts(more)) :]
    code, out, err = webkv("resume", "s", "--max-tokens", 30)
    assert (code, out) == (0, texts(whole) + "\n")
    assert "this answer was complete already (length); session s is durable" in err


def test_the_next_turn_is_said(webkv: Runner, model: Path) -> None:
    webkv("generate", "--model", model, "--max-tokens", 3, "--session", "s", "--system", "Be brief.", "hi")
    events = webkv.events("resume", "s", "--say", "and you?", "--max-tokens", 4)
    assert [event["event"] for event in events].count("token") == 4
    assert webkv.events("inspect", "s")[0]["turns"] == 2
    code, _, err = webkv("resume", "s", "--say", "")
    assert (code, err.splitlines()[-1]) == (2, "webkv: the next turn is empty")


def test_sessions_that_are_refused(webkv: Runner, model: Path, tmp_path: Path) -> None:
    webkv("generate", "--model", model, "--raw", "--max-tokens", 3, "--session", "s", PROMPT)
    before = webkv.store.read_bytes()
    write_tiny_llama(tmp_path / "other.gguf", seed=1)
    code, out, err = webkv("resume", "s", "--model", tmp_path / "other.gguf")
    assert (code, out) == (2, "")
    assert "webkv: checkpoint is of another weights: found " in err
    code, out, err = webkv("resume", "s", "--say", "more")
    assert (code, out) == (2, "")
    assert "began with a plain prompt" in err
    code, out, err = webkv("generate", "--model", model, "--max-tokens", 3, "--session", "s", "again")
    assert (code, out) == (2, "")
    assert "webkv: session 's' exists" in err
    held = FileLock(webkv.store.with_name("sessions.db.locks"), "s/s")
    held.acquire()
    code, out, err = webkv("resume", "s")
    held.release()
    assert (code, out) == (2, "")
    assert "is in use by process" in err
    assert webkv.store.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--model", "none.gguf", "hi"], "no model file 'none.gguf'"),
        (["--model", "{short}", "hi"], "short.gguf is truncated: tensor "),
        (["--model", "{short}", ""], "the prompt is empty"),
        (["--raw", "--system", "x", "hi"], "--system needs the chat template"),
        (["--temperature", "nan", "hi"], "temperature is nan, expected a number of at least 0"),
        (["--top-p", "0", "hi"], "top_p is 0.0, expected"),
        (["--seed", "-1", "hi"], "seed is -1, expected an integer from 0"),
        (["--model", "{model}", "--context", "4000", "hi"], "context is 4000, expected 1 to 2048"),
        (["--model", "{model}", "--device", "none such", "hi"], "no GPU adapter matches 'none such'"),
        (["--model", "{model}", "--context", "8", PROMPT], "tokens long, the context holds 8"),
        (["--model", "{model}", "--session", "a/b", "hi"], "session id is 'a/b', expected 1 to 64 of"),
        (["--model", "{model}", "--session", "", "hi"], "session id is '', expected 1 to 64 of"),
        (["--model", "{model}", "a\udcff"], "lone surrogate U+DCFF"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_writes_nothing(
    arguments: list[str], refusal: str, webkv: Runner, model: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(model.read_bytes()[:200_000])
    filled = [argument.format(model=model, short=short) for argument in arguments]
    code, out, err = webkv("generate", *filled)
    assert (code, out) == (2, "")
    assert refusal in err
    assert err.startswith("webkv: ")
    assert err.count("\n") == 1
    assert not webkv.store.exists()


def test_a_store_that_cannot_be_written_degrades_the_session(webkv: Runner, model: Path) -> None:
    webkv.store.write_text("a file")
    webkv.store = webkv.store / "sessions.db"
    code, out, err = webkv("generate", "--model", model, "--raw", "--max-tokens", 5, PROMPT)
    assert code == 0
    assert out.strip()
    assert err.startswith("degraded: cannot ")
    assert "5 tokens not durable" in err.splitlines()[-1]


def test_nothing_is_kept_when_that_is_asked_for(webkv: Runner, model: Path) -> None:
    code, out, err = webkv("generate", "--model", model, "--raw", "--max-tokens", 5, "--no-session", PROMPT)
    assert (code, bool(out.strip())) == (0, True)
    assert err.endswith("; nothing is kept\n")
    assert not webkv.store.exists()


def test_another_model_goes_on_from_the_tokens_only_when_asked(
    webkv: Runner, model: Path, tmp_path: Path
) -> None:
    write_tiny_llama(tmp_path / "other.gguf", seed=1)
    whole = webkv.events("generate", "--model", model, "--max-tokens", 9, "--session", "s", PROMPT)
    resume = "resume", "s", "--model", tmp_path / "other.gguf", "--max-tokens", 12
    code, out, err = webkv(*resume)
    assert (code, out) == (2, "")
    assert "checkpoint is of another weights: " in err
    assert err.endswith("(--recompute goes on from its tokens)\n")
    more = webkv.events(*resume, "--recompute")
    assert (more[1]["how"], more[1]["differs"]) == ("new", "weights")
    assert more[-1]["tokens"][: len(whole[-1]["tokens"])] == whole[-1]["tokens"]
    assert len([event for event in more if event["event"] == "token"]) == 3
    _, _, err = webkv("resume", "s", "--model", model, "--max-tokens", 14, "--recompute")
    assert "its KV is computed anew, the stored KV being of another weights" in err


def test_pages_of_another_size_are_converted_and_that_is_said(webkv: Runner, model: Path) -> None:
    async def store_pages_of_8() -> None:
        loaded = await load(model, page_tokens=8, context=256)
        async with SqliteStore(webkv.store) as store:
            chat = await Chat.begin(
                loaded, store, prompt=PROMPT, max_tokens=20, id="s", facts={"path": str(model)}
            )
            async for _ in chat.generate():
                pass
            await chat.close()

    asyncio.run(store_pages_of_8())
    whole = webkv.events("generate", "--model", model, "--raw", "--max-tokens", 30, PROMPT)
    _, _, err = webkv("resume", "s", "--max-tokens", 25)
    assert "its pages were converted exactly, the stored KV being of another page_tokens" in err
    assert webkv.events("resume", "s", "--max-tokens", 30)[-1]["tokens"] == whole[-1]["tokens"]
