"""Gemma 3 in the page: its template and tokenizer, two groups of pages, a fork that shares them, a reload."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import write_tiny_gemma3
from tests.web.chatpage import ChatPage
from tests.web.chromium import browser, missing, served
from webkv.cli.serve import models_of
from webkv.errors import ModelError
from webkv.models.chat import ChatTemplate
from webkv.models.gguf import open_gguf
from webkv.models.locate import locate
from webkv.models.tokenizer import Tokenizer
from webkv.serve import Pages
from webkv.site import prepare

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MODEL = "gemma.gguf"
WINDOW = 32
TEXT = "The sea and  the night.<end_of_turn>\n<start_of_turn>model\n"


def lacking() -> str:
    try:
        locate("gemma3")
    except ModelError as error:
        return str(error)
    return ""


def prompt(files: Sequence[Path], text: str) -> list[int]:
    """The tokens that a chat begins with, as computed here."""
    model = open_gguf(tuple(files))
    chat = [{"role": "user", "content": text}]
    return ChatTemplate.from_gguf(model).encode(chat, Tokenizer.from_gguf(model))


async def say(chat: ChatPage, text: str, tokens: int) -> None:
    await chat.page.evaluate("told => webkv.send('say', told)", {"text": text, "max_tokens": tokens})


async def groups(chat: ChatPage) -> dict[str, dict[str, Any]]:
    """The last picture of the page table, by layer group."""
    return {group["name"]: group for group in (await chat.told("pages"))[-1]["groups"]}


async def drive(context: Any, root: str) -> dict[str, Any]:
    """A chat past the window, forked, gone on with, its parent opened again, the fork reloaded."""
    chat = await ChatPage.open(context, root)
    await chat.load(MODEL)
    await say(chat, TEXT, 60)
    await chat.answered()
    found: dict[str, Any] = {"parent": await chat.state(), "alone": await groups(chat)}
    await chat.page.get_by_role("button", name="Fork this chat").click()
    await chat.wait("opened", 2)
    await chat.idle()
    found["fork line"] = await chat.resumed()
    found["forked"] = await groups(chat)
    found["words"] = await chat.page.locator("#pages canvas").last.get_attribute("aria-label")
    await say(chat, "And then?", 20)
    await chat.answered(2)
    found["fork"] = await chat.state()
    await chat.page.locator("#sessions .open").last.click()
    await chat.wait("opened", 3)
    await chat.idle()
    found["parent again"], found["parent line"] = await chat.state(), await chat.page.is_visible("#resumed")
    await chat.page.locator("#sessions .open").first.click()
    await chat.wait("opened", 4)
    await chat.idle()
    await chat.page.reload()
    found["reload line"] = await chat.resumed()
    await chat.idle()
    found["reloaded"] = await chat.state()
    return found


_results: dict[str, Any] = {}


async def results() -> dict[str, Any]:
    """The whole story; the browser is driven once for all tests of this file."""
    if not _results:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / MODEL
            write_tiny_gemma3(model, window=WINDOW)
            _results["prompt"] = prompt([model], TEXT)
            with served(Pages(prepare(print), {MODEL: [model]})) as root:
                async with browser(Path(folder) / "profile") as context:
                    _results.update(await drive(context, root))
    return _results


async def test_the_chat_begins_with_the_tokens_that_it_has_headless() -> None:
    found = await results()
    assert found["parent"]["tokens"][: len(found["prompt"])] == found["prompt"]


async def test_the_picture_shows_what_the_window_left_behind() -> None:
    found = await results()
    sliding, whole = found["alone"]["sliding"], found["alone"]["global"]
    pages = -(-len(found["parent"]["tokens"]) // 16)
    assert (sliding["window"], sliding["left"]) == (WINDOW, pages - 3)
    assert (whole["window"], whole["left"]) == (None, 0)
    assert [len(group["pages"].replace(".", "")) for group in (sliding, whole)] == [3, pages]


async def test_a_fork_shares_its_full_pages_on_the_gpu() -> None:
    found = await results()
    for name, group in found["alone"].items():
        full = group["pages"].count("1") + group["pages"].count("2")
        assert found["forked"][name]["pages"].count("3") == full
    assert f"{found['forked']['global']['pages'].count('3')} shared" in found["words"]
    assert found["fork line"].startswith(f"forked after {len(found['parent']['tokens']) - 1} tokens")


async def test_the_forks_parent_is_as_it_was_and_needs_no_resume() -> None:
    found = await results()
    assert found["parent again"] == found["parent"]
    assert not found["parent line"]


async def test_a_reload_takes_the_fork_up_past_the_window() -> None:
    found = await results()
    assert found["reloaded"] == found["fork"]
    assert found["reload line"].startswith("resumed ")


@pytest.mark.skipif(bool(lacking()), reason=lacking())
async def test_the_packaged_model_chats_and_comes_back_after_a_reload() -> None:
    ((name, files),) = models_of(["gemma3"]).items()
    with tempfile.TemporaryDirectory() as profile, served(Pages(prepare(print), {name: files})) as root:
        async with browser(Path(profile)) as context:
            chat = await ChatPage.open(context, root)
            await chat.load(name)
            await say(chat, TEXT, 6)
            await chat.answered()
            state, expected = await chat.state(), prompt(files, TEXT)
            assert state["tokens"][: len(expected)] == expected
            assert len(state["tokens"]) == len(expected) + 6
            found = await groups(chat)
            assert {group: told["window"] for group, told in found.items()} == {
                "sliding": 512,
                "global": None,
            }
            await chat.page.reload()
            assert "tokens" in await chat.resumed()
            await chat.idle()
            assert await chat.state() == state
