"""Two tabs on one chat, and a site without room: nobody waits, nothing is lost unsaid, the answer goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import Kind, write_tiny_llama
from tests.web.chatpage import ChatPage
from tests.web.chromium import browser, missing, served
from webkv.serve import Pages
from webkv.site import prepare

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MODEL = "tiny.gguf"
TOKENS = 96
# Room for the model and a few rows, not for the pages of a chat.
SPARE = 30_000


async def two_tabs(context: Any, root: str) -> dict[str, Any]:
    first = await ChatPage.open(context, root)
    await first.load(MODEL)
    await first.page.evaluate(f"webkv.send('say', {{ text: 'The sea.', max_tokens: {TOKENS} }})")
    await first.wait("token", 8)
    second = await ChatPage.open(context, root)
    found = {"notice": await second.notice()}
    await second.page.get_by_role("button", name="New chat").last.click()
    await second.idle()
    found["first"] = await first.answered()
    await second.page.close()
    await first.page.close()
    return found


# Keeps the model as the page would: a quota must be set before the origin's database is first used.
KEEP = """async (name) => {
  const root = await navigator.storage.getDirectory();
  const models = await root.getDirectoryHandle("models", { create: true });
  const file = await (await models.getFileHandle(name, { create: true })).createWritable();
  await (await fetch(`models/${name}`)).body.pipeTo(file);
}"""


async def without_room(context: Any, root: str, size: int) -> dict[str, Any]:
    page = await context.new_page()
    await page.goto(f"{root}icon.svg")
    await page.evaluate(KEEP, MODEL)
    session = await context.new_cdp_session(page)
    limits = {"origin": root.rstrip("/"), "quotaSize": size + SPARE}
    await session.send("Storage.overrideQuotaForOrigin", limits)
    chat = await ChatPage.open(context, root)
    await chat.load(MODEL)
    await chat.page.evaluate(f"webkv.send('say', {{ text: 'The sea.', max_tokens: {TOKENS} }})")
    answered = await chat.answered()
    return {"answered": answered, "status": (await chat.told("status"))[-1]}


_results: dict[str, Any] = {}


async def results() -> dict[str, Any]:
    """Both cases; the browser is driven once for all tests of this file."""
    if not _results:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / MODEL
            write_tiny_llama(model, d_ff=96, kind=Kind.Q8_0)
            pages = Pages(prepare(print), {MODEL: [model]})
            async with browser(Path(folder) / "profile") as context:
                with served(pages) as root:
                    _results["tabs"] = await two_tabs(context, root)
                with served(pages) as root:  # another port: another origin, whose quota was never looked at
                    _results["room"] = await without_room(context, root, model.stat().st_size)
    return _results


async def test_the_second_tab_says_who_has_the_chat() -> None:
    assert "This chat is open in another tab or window" in (await results())["tabs"]["notice"]


async def test_the_first_tab_is_not_disturbed() -> None:
    assert (await results())["tabs"]["first"]["tokens"] == TOKENS


async def test_an_answer_goes_on_without_room() -> None:
    assert (await results())["room"]["answered"]["tokens"] == TOKENS


async def test_the_status_says_that_there_is_no_room() -> None:
    status = (await results())["room"]["status"]
    assert status["state"] == "degraded"
    assert "no more room" in status["text"]
