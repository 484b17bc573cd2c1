"""A chat moves between the page and the command line as one file; its page bytes arrive as they were."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import Kind, write_tiny_llama
from tests.web.chatpage import ChatPage
from tests.web.chromium import browser, missing, served
from webkv.checkpoint import MemoryStore
from webkv.checkpoint.archive import export_session, import_session
from webkv.load import load
from webkv.resume import Chat
from webkv.serve import Pages
from webkv.site import prepare

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MODEL = "tiny.gguf"
MESSAGES = [{"role": "user", "content": "A letter from the far side of the sea."}]
TOKENS = 40


async def headless(model: Path, file: Path) -> dict[str, Any]:
    """Begin a chat here and write it to `file`."""
    loaded, store = await load(model), MemoryStore()
    chat = await Chat.begin(loaded, store, messages=MESSAGES, max_tokens=TOKENS, id="from-here")
    async for _ in chat.generate():
        pass
    state = {"tokens": list(chat.conversation.tokens), "pages": await chat.page_digests()}
    await chat.close()
    await export_session(store, chat.id, file)
    return state


async def taken_up(model: Path, file: Path) -> dict[str, Any]:
    """Resume the chat in `file` here; `stored` counts the pages that were imported."""
    loaded, store = await load(model), MemoryStore()
    chat = await Chat.resume(loaded, store, await import_session(store, file))
    state = {"tokens": list(chat.conversation.tokens), "pages": await chat.page_digests()}
    recovery = chat.recovery
    await chat.close()
    return {**state, "stored": recovery.pages, "moved": recovery.moved}


async def in_page(chat: ChatPage, file: Path) -> dict[str, Any]:
    """Begin a chat in the page and save it to `file`, as its button does."""
    text = MESSAGES[0]["content"]
    await chat.page.evaluate(f"webkv.send('say', {{ text: {text!r}, max_tokens: {TOKENS} }})")
    await chat.answered()
    state = await chat.state()
    async with chat.page.expect_download() as waiting:
        await chat.page.get_by_label("Save the chat").first.click()
    await (await waiting.value).save_as(file)
    await chat.idle()
    return state


async def brought(chat: ChatPage, file: Path) -> dict[str, Any]:
    """Bring the chat in `file` into the page and open it."""
    await chat.page.set_input_files("#import", str(file))
    await chat.wait("brought")
    await chat.idle()
    await chat.page.get_by_role("button", name="Open it").click()
    opened = await chat.wait("opened", 2)
    await chat.idle()
    return {**await chat.state(), "stored": opened["pages"], "moved": opened["moved"]}


_results: dict[str, Any] = {}


async def results() -> dict[str, Any]:
    """Both ways; the browser is driven once for all tests of this file."""
    if not _results:
        with tempfile.TemporaryDirectory() as folder:
            model, out, back = (
                Path(folder) / MODEL,
                Path(folder) / "a.safetensors",
                Path(folder) / "b.safetensors",
            )
            write_tiny_llama(model, d_ff=96, kind=Kind.Q8_0)
            _results["here"] = await headless(model, out)
            with served(Pages(prepare(print), {MODEL: [model]})) as root:
                async with browser(Path(folder) / "profile") as context:
                    chat = await ChatPage.open(context, root)
                    await chat.load(MODEL)
                    _results["page"] = await in_page(chat, back)
                    _results["here, then page"] = await brought(chat, out)
            _results["page, then here"] = await taken_up(model, back)
    return _results


WAYS = [("here", "here, then page"), ("page", "page, then here")]


@pytest.mark.parametrize(("begun", "taken"), WAYS)
async def test_the_tokens_arrive(begun: str, taken: str) -> None:
    found = await results()
    assert found[taken]["tokens"] == found[begun]["tokens"]


@pytest.mark.parametrize(("begun", "taken"), WAYS)
async def test_every_stored_page_arrives_byte_for_byte(begun: str, taken: str) -> None:
    found = await results()
    stored = [f"global/{block}" for block in range(found[taken]["stored"])]
    assert len(stored) == len(found[begun]["tokens"]) // 16
    assert [found[taken]["pages"][page] for page in stored] == [
        found[begun]["pages"][page] for page in stored
    ]


@pytest.mark.parametrize("taken", [taken for _, taken in WAYS])
async def test_it_is_said_that_another_device_goes_on(taken: str) -> None:
    said = (await results())[taken]["moved"]
    assert said.startswith("it began on ") and said.endswith("what follows may differ from there")
