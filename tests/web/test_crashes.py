"""Real crashes in real Chromium: after each, the chat goes on and ends as if nothing had happened."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import Kind, write_tiny_llama
from tests.web.chatpage import ChatPage
from tests.web.chromium import browser, kill, missing, served
from webkv.serve import Pages
from webkv.site import prepare

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MODEL = "tiny.gguf"
TEXT = "A story of the sea, and of those who went there."
TOKENS = 72  # ends inside a page of 16
BEFORE = 40  # tokens seen before the crash: some pages are stored, some are not


async def new_answer(chat: ChatPage, tokens: int) -> None:
    """Begin a new chat and wait until some of its answer was shown."""
    await chat.page.evaluate("webkv.send('new')")
    await chat.idle()
    await chat.page.evaluate("told.length = 0")
    await chat.page.evaluate(f"webkv.send('say', {{ text: {TEXT!r}, max_tokens: {TOKENS} }})")
    await chat.wait("token", tokens)


async def reopened(context: Any, root: str) -> ChatPage:
    """A new tab, which goes on with the answer by itself."""
    chat = await ChatPage.open(context, root)
    await chat.answered()
    return chat


async def lose_device(chat: ChatPage, context: Any, root: str) -> ChatPage:
    # `lose` waits for its turn like any command: stop the answer, lose the device, and ask for the rest.
    await chat.page.evaluate("webkv.send('stop')")
    await chat.wait("answered")
    await chat.idle()
    await chat.page.evaluate("webkv.send('lose')")
    await chat.idle()
    await chat.page.evaluate("webkv.send('more')")
    await chat.wait("opened", 2)
    await chat.idle()
    await chat.page.evaluate("webkv.send('more')")
    await chat.answered(2)
    return chat


async def crash_gpu(chat: ChatPage, context: Any, root: str) -> ChatPage:
    session = await context.browser.new_browser_cdp_session()
    await session.send("Browser.crashGpuProcess")
    await chat.answered()
    return chat


async def crash_renderer(chat: ChatPage, context: Any, root: str) -> ChatPage:
    session = await context.new_cdp_session(chat.page)
    asyncio.ensure_future(session.send("Page.crash")).add_done_callback(lambda task: task.exception())
    await chat.crashed.wait()
    await chat.page.close()
    return await reopened(context, root)


async def close_tab(chat: ChatPage, context: Any, root: str) -> ChatPage:
    await chat.page.close()
    return await reopened(context, root)


async def reload(chat: ChatPage, context: Any, root: str) -> ChatPage:
    await chat.page.reload()
    await chat.answered()
    return chat


Crash = Callable[[ChatPage, Any, str], Awaitable[ChatPage]]
CRASHES: dict[str, Crash] = {
    "device destroyed": lose_device,
    "GPU process crashed": crash_gpu,
    "renderer crashed": crash_renderer,
    "tab closed": close_tab,
    "page reloaded": reload,
}


async def outcome(chat: ChatPage) -> dict[str, Any]:
    opened = (await chat.told("opened"))[-1]
    return {**await chat.state(), "resumed": opened["tokens"], "pages_resumed": opened["pages"]}


async def run_all(root: str, profile: Path) -> dict[str, Any]:
    """The uninterrupted run and every crash, in one browser, then the browser's own death."""
    results: dict[str, Any] = {}
    async with browser(profile) as context:
        chat = await ChatPage.open(context, root)
        await chat.load(MODEL)
        await new_answer(chat, TOKENS)
        await chat.answered()
        results["uninterrupted"] = await chat.state()
        for name, crash in CRASHES.items():
            await new_answer(chat, BEFORE)
            chat = await crash(chat, context, root)
            results[name] = await outcome(chat)
        await new_answer(chat, BEFORE)
        await kill(context, profile)
    async with browser(profile) as context:
        results["browser killed"] = await outcome(await reopened(context, root))
    return results


_results: dict[str, Any] = {}


async def results() -> dict[str, Any]:
    """All outcomes; the browser is driven once for all tests of this file."""
    if not _results:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / MODEL
            write_tiny_llama(model, d_ff=96, kind=Kind.Q8_0)
            with served(Pages(prepare(print), {MODEL: [model]})) as root:
                _results.update(await run_all(root, Path(folder) / "profile"))
    return _results


HOWS = [*CRASHES, "browser killed"]


@pytest.mark.parametrize("how", HOWS)
async def test_the_chat_ends_with_the_tokens_of_the_uninterrupted_run(how: str) -> None:
    found = await results()
    assert found[how]["tokens"] == found["uninterrupted"]["tokens"]


@pytest.mark.parametrize("how", HOWS)
async def test_every_page_holds_the_bytes_of_the_uninterrupted_run(how: str) -> None:
    found = await results()
    assert found[how]["pages"] == found["uninterrupted"]["pages"]


@pytest.mark.parametrize("how", HOWS)
async def test_stored_pages_were_taken_up_not_computed_again(how: str) -> None:
    found = (await results())[how]
    assert found["pages_resumed"] >= 2
    assert found["resumed"] >= BEFORE
