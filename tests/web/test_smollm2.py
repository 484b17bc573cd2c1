"""The packaged SmolLM2 in the page: the browser is killed in the middle of an answer, which then goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.web.chatpage import ChatPage
from tests.web.chromium import browser, kill, missing, served
from webkv.errors import ModelError
from webkv.models.locate import locate
from webkv.serve import Pages
from webkv.site import prepare

PROMPT = "Why is the sea salty?"
TOKENS = 24
BEFORE = 12


def lacking() -> str:
    try:
        locate("smollm2")
    except ModelError as error:
        return str(error)
    return missing()


pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


async def ask(chat: ChatPage) -> None:
    await chat.page.evaluate(f"webkv.send('say', {{ text: {PROMPT!r}, max_tokens: {TOKENS} }})")


async def test_an_answer_goes_on_after_the_browser_was_killed() -> None:
    files = locate("smollm2")
    with (
        tempfile.TemporaryDirectory() as profile,
        served(Pages(prepare(print), {files[0].name: files})) as root,
    ):
        async with browser(Path(profile)) as context:
            chat = await ChatPage.open(context, root)
            await chat.load(files[0].name)
            await ask(chat)
            await chat.answered()
            whole: dict[str, Any] = await chat.state()
            await chat.page.evaluate("webkv.send('new')")
            await chat.idle()
            await chat.page.evaluate("told.length = 0")
            await ask(chat)
            await chat.wait("token", BEFORE)
            await kill(context, Path(profile))
        async with browser(Path(profile)) as context:
            chat = await ChatPage.open(context, root)
            await chat.answered()
            assert "resumed" in await chat.resumed()
            assert await chat.state() == whole
