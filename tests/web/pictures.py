"""Takes the pictures of the page that the README shows.

    python -m tests.web.pictures tests/web/screenshots

Each state is taken in light and in dark.  Needs Chromium, playwright and the packaged models; a software
adapter takes some minutes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.models.tiny import write_tiny_gemma3
from tests.web.chatpage import ChatPage
from tests.web.chromium import browser, served
from webkv.cli.serve import models_of
from webkv.serve import Pages
from webkv.site import prepare

PROMPT = "Why is the sea salty?"
README = Path(__file__).parent.parent.parent / "README.md"
LONG = 2000
"""Characters of a message that is longer than Gemma's window of 512 tokens."""
WIDE = "a-model-too-wide.gguf"


class Camera:
    """Saves what a page shows as `folder/NAME.png` and `folder/NAME-dark.png`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def take(self, chat: ChatPage, name: str, width: int = 1280, height: int = 720) -> None:
        await chat.page.set_viewport_size({"width": width, "height": height})
        for scheme, suffix in (("dark", "-dark"), ("light", "")):
            await chat.page.emulate_media(color_scheme=scheme)
            await chat.page.wait_for_timeout(500)  # the picture of the pages is drawn anew
            await chat.page.screenshot(path=self.folder / f"{name}{suffix}.png")


async def say(chat: ChatPage, text: str, tokens: int) -> None:
    await chat.page.evaluate("told => webkv.send('say', told)", {"text": text, "max_tokens": tokens})


async def survive(context: Any, root: str, camera: Camera, model: str) -> None:
    """A model that is refused; an answer, cut off by a reload, goes on; a second tab."""
    chat = await ChatPage.open(context, root)
    await chat.wait("device")
    await chat.page.get_by_role("button", name=f"Load {WIDE}").click()
    await chat.notice()
    await camera.take(chat, "page-refused")
    await chat.page.get_by_role("button", name="Close").click()
    await chat.load(model)
    await say(chat, PROMPT, 56)
    await chat.wait("token", 20)
    await camera.take(chat, "page-answering")
    await chat.page.reload()
    await chat.resumed()
    await chat.answered()
    await camera.take(chat, "page-resumed")
    await camera.take(chat, "page-narrow", 390, 844)
    second = await ChatPage.open(context, root)
    await second.notice()
    await camera.take(second, "page-second-tab")


async def fork(context: Any, root: str, camera: Camera, model: str) -> None:
    """Gemma 3 past its window, and a fork that shares pages and has gone on."""
    chat = await ChatPage.open(context, root)
    await chat.load(model)
    await say(chat, README.read_text(encoding="utf-8")[:LONG], 12)
    await chat.answered()
    await chat.page.get_by_role("button", name="Fork this chat").click()
    await chat.wait("opened", 2)
    await chat.idle()
    await say(chat, "And what is a page?", 24)
    await chat.answered(2)
    await camera.take(chat, "page-fork", height=800)


async def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    camera, models = Camera(folder), models_of(["smollm2", "gemma3"])
    smollm2, gemma3 = models
    with tempfile.TemporaryDirectory() as name:
        wide = Path(name) / WIDE
        write_tiny_gemma3(wide, heads=32, kv_heads=32, head_dim=256, context=4096)
        with served(Pages(prepare(print), {WIDE: (wide,), **models})) as root:
            for story, model in ((survive, smollm2), (fork, gemma3)):
                async with browser(Path(name) / model) as context:
                    await story(context, root, camera, model)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
