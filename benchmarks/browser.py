"""A page: from its address to a chat, the cost of recording a step there, and where its pages could lie.

Runs in headless Chromium with its software adapter, whatever the device of the other benchmarks.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Bench, Goal, Row
from tests.models.tiny import Kind, write_tiny_llama
from tests.web.chatpage import ChatPage
from tests.web.chromium import browser, missing, served
from webkv.serve import Pages
from webkv.site import prepare

QUESTION = "How soon is a page usable, and what do a step and a page of KV cost there?"
MOST = "the 3 ms that recording a step may take"
FILES = "a file of its own for each page"
TEN = "the 10 s after which a page should be usable"
GOALS = (
    Goal(MOST, 1.0, "recording 300 dispatches", lambda row: True),
    Goal(TEN, 1.0, "page usable", lambda row: True),
)
HERE = Path(__file__).resolve().parent / "page"
DISPATCHES, ROUNDS = 300, 20
PAGES, PAGE_BYTES = 16, 360 << 10
"""Pages of SmolLM2 in f16 that a session commits at a time, and about their size."""

MODEL = "tiny"


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """The page until it is usable, twice; a recorded step; pages written and read."""
    lacking = missing()
    if lacking:
        yield Row("a page", note=lacking)
        return
    bench.say("building the page")
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "tiny.gguf"
        write_tiny_llama(model, kind=Kind.Q8_0)
        pages = Pages(prepare(bench.say), {MODEL: (model,)})
        pages.folders["benchmarks"] = HERE
        with served(pages) as root:
            async with browser(folder / "profile") as context:
                for visit in ("first", "second"):
                    bench.say(f"a page, {visit} visit")
                    yield await usable(context, root, visit)
                async for row in measured(bench, context, root):
                    yield row


async def usable(context: Any, root: str, visit: str) -> Row:
    """From the page's address to a message that could be sent; a second visit loads the last model itself."""
    begun = time.perf_counter()
    chat = await ChatPage.open(context, root)
    await (chat.load(MODEL) if visit == "first" else chat.idle())
    seconds = time.perf_counter() - begun
    await chat.page.close()
    return Row(f"page usable, {visit} visit", wall_ms=1e3 * seconds, ratios={TEN: 10 / seconds})


async def measured(bench: Bench, context: Any, root: str) -> AsyncIterator[Row]:
    """What `page/measure.py` finds."""
    page = await context.new_page()
    page.set_default_timeout(120_000)
    await page.goto(f"{root}benchmarks/index.html")
    await page.evaluate("text => run(text)", (HERE / "measure.py").read_text(encoding="utf-8") + "\nNone")

    async def call(what: str) -> Any:
        bench.say(what)
        return json.loads(await page.evaluate("text => run(text)", f"import json\njson.dumps(await {what})"))

    times = await call(f"encoding({DISPATCHES}, {ROUNDS})")
    ms = median(times)
    yield Row(f"record and submit {DISPATCHES} dispatches", wall_ms=ms, ratios={MOST: 3 / ms})
    costs = await call(f"storing({PAGES}, {PAGE_BYTES}, 7)")
    size = PAGES * PAGE_BYTES / 1e6
    for case, own, theirs in (("commit", "commit", "files"), ("read", "get", "read files")):
        yield Row(
            f"{case} {PAGES} pages", wall_ms=costs[own], rate=f"{size / costs[own]:.2f} GB/s",
            ratios={FILES: costs[theirs] / costs[own]}, note=f"{PAGES * PAGE_BYTES >> 20} MiB",
        )  # fmt: skip
