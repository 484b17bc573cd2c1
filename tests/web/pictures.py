"""Takes the pictures of the page that the README shows.

    python -m tests.web.pictures tests/web/screenshots

needs Chromium, playwright and the packaged SmolLM2; a software adapter takes a few minutes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.web.chatpage import ChatPage
from tests.web.chromium import browser, served
from webkv.models.locate import locate
from webkv.serve import Pages
from webkv.site import prepare

PROMPT = "Why is the sea salty?"


async def take(context: Any, root: str, model: str, folder: Path) -> None:
    chat = await ChatPage.open(context, root)
    await chat.page.set_viewport_size({"width": 1280, "height": 720})
    await chat.load(model)
    await chat.page.evaluate(f"webkv.send('say', {{ text: {PROMPT!r}, max_tokens: 56 }})")
    await chat.wait("token", 40)
    await chat.page.screenshot(path=folder / "page-answering.png")
    await chat.page.emulate_media(color_scheme="dark")
    await chat.page.reload()
    await chat.resumed()
    await chat.answered()
    await chat.page.screenshot(path=folder / "page-resumed.png")
    await chat.page.emulate_media(color_scheme="light")
    second = await ChatPage.open(context, root)
    await second.page.set_viewport_size({"width": 1280, "height": 720})
    await second.notice()
    await second.page.screenshot(path=folder / "page-second-tab.png")


async def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    files = locate("smollm2")
    pages = Pages(prepare(print), {files[0].name: files})
    with tempfile.TemporaryDirectory() as profile, served(pages) as root:
        async with browser(Path(profile)) as context:
            await take(context, root, files[0].name, folder)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
