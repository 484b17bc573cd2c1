"""The chat page as a test drives it: what it told so far, and what a person would do."""

from __future__ import annotations

import asyncio
from typing import Any

# Keeps every event of the page's worker, across restarts of the worker but not across reloads of the page.
_KEEP = "window.told = []; document.addEventListener('webkv', ({ detail }) => window.told.push(detail));"
# Compiling the kernels on a software adapter takes most of this.
PATIENCE_MS = 240_000


class ChatPage:
    """One tab with the chat page.  `said` collects console errors, for when a test fails."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.crashed = asyncio.Event()

    @classmethod
    async def open(cls, context: Any, root: str) -> ChatPage:
        """A new tab on the page at `root`."""
        made = cls(await context.new_page())
        made.page.on("console", lambda message: made.said.append(message.text))
        made.page.on("pageerror", lambda error: made.said.append(str(error)))
        made.page.on("crash", lambda _: made.crashed.set())
        made.page.set_default_timeout(PATIENCE_MS)
        await made.page.add_init_script(_KEEP)
        await made.page.goto(root)
        return made

    async def told(self, type: str) -> list[dict[str, Any]]:
        """All events of a type since the page was loaded."""
        return await self.page.evaluate("type => told.filter(event => event.type === type)", type)

    async def wait(self, type: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th event of a type, waited for."""
        script = "([type, count]) => told.filter(event => event.type === type).length >= count"
        await self.page.wait_for_function(script, arg=[type, count])
        return (await self.told(type))[count - 1]

    async def idle(self) -> None:
        """Wait until a message could be sent."""
        await self.page.wait_for_function("() => !document.getElementById('send').disabled")

    async def load(self, name: str) -> None:
        """Load a model from the list."""
        await self.wait("device")
        await self.page.get_by_role("button", name=f"Load {name}").click()
        await self.idle()

    async def say(self, text: str) -> None:
        """Write a message and send it."""
        await self.page.fill("#text", text)
        await self.page.keyboard.press("Enter")

    async def answered(self, count: int = 1) -> dict[str, Any]:
        """Wait for the end of the `count`-th answer, and until the page is idle."""
        told = await self.wait("answered", count)
        await self.idle()
        return told

    async def state(self) -> dict[str, Any]:
        """Token ids and page digests of the open chat."""
        count = len(await self.told("digests"))
        await self.page.evaluate("webkv.send('digests')")
        told = await self.wait("digests", count + 1)
        await self.idle()
        return {"tokens": told["tokens"], "pages": told["pages"]}

    async def notice(self) -> str:
        """The message at the top, waited for."""
        await self.page.wait_for_selector("#notice:not([hidden])")
        return await self.page.inner_text("#notice-text")

    async def resumed(self) -> str:
        """The line that says what a resume did, waited for."""
        await self.page.wait_for_selector("#resumed:not([hidden])")
        return await self.page.inner_text("#resumed")
