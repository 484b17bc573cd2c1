"""The page's main states as a person meets them: wide and narrow, light and dark, by keyboard and by name."""

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
# Anything that can be used but has no name that a screen reader could say.
NAMELESS = """() => [...document.querySelectorAll("button, input, textarea, meter, canvas, [tabindex]")]
  .filter((e) => e.checkVisibility() && !e.closest("[hidden]"))
  .filter((e) => !(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.textContent.trim()
                   || e.labels?.length))
  .map((e) => e.outerHTML)"""
# Text whose contrast with the page's paper is below 4.5 : 1, WCAG's AA.
FAINT = """() => {
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const paper = (e) => {
    const back = parts(getComputedStyle(e).backgroundColor);
    return back[3] === 0 && e.parentElement ? paper(e.parentElement) : back;
  };
  return [...document.querySelectorAll("h1, h2, p, small, button:not(:disabled), label, b, span, li")]
    .filter((e) => e.checkVisibility() && e.textContent.trim())
    .filter((e) => {
      const [a, b] = [light(parts(getComputedStyle(e).color)), light(paper(e))].sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05) < 4.5;
    }).map((e) => e.outerHTML.slice(0, 120));
}"""


async def look(chat: ChatPage) -> dict[str, Any]:
    """What can be measured of how the page looks now."""
    too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    return {
        "picture": await chat.page.screenshot(),
        "too wide": await chat.page.evaluate(too_wide),
        "nameless": await chat.page.evaluate(NAMELESS),
        "faint": await chat.page.evaluate(FAINT),
    }


async def all_looks(root: str, profile: Path) -> dict[str, Any]:
    looks: dict[str, Any] = {}
    async with browser(profile) as context:
        chat = await ChatPage.open(context, root)
        await chat.page.set_viewport_size({"width": 1280, "height": 800})
        await chat.wait("device")
        await chat.page.wait_for_selector("#chooser:not([hidden])")
        looks["choose a model"] = await look(chat)
        await chat.load(MODEL)
        looks["ready"] = await look(chat)
        await chat.page.emulate_media(color_scheme="dark")
        looks["dark"] = await look(chat)
        await chat.page.set_viewport_size({"width": 380, "height": 700})
        looks["narrow"] = await look(chat)
        await chat.page.emulate_media(color_scheme="light")
        await chat.page.evaluate("webkv.send('open', { session: 'gone' })")
        await chat.notice()
        looks["trouble"] = await look(chat)
        await chat.page.set_viewport_size({"width": 1280, "height": 800})
        await chat.page.focus("body")
        looks["focus"] = []
        for _ in range(12):
            await chat.page.keyboard.press("Tab")
            looks["focus"].append(await chat.page.evaluate("document.activeElement.id"))
    return looks


_looks: dict[str, Any] = {}


async def looks() -> dict[str, Any]:
    """All states; the browser is driven once for all tests of this file."""
    if not _looks:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / MODEL
            write_tiny_llama(model, kind=Kind.Q8_0)
            with served(Pages(prepare(print), {MODEL: [model]})) as root:
                _looks.update(await all_looks(root, Path(folder) / "profile"))
    return _looks


STATES = ["choose a model", "ready", "dark", "narrow", "trouble"]


@pytest.mark.parametrize("state", STATES)
async def test_nothing_hangs_out_of_the_window(state: str) -> None:
    assert not (await looks())[state]["too wide"]


@pytest.mark.parametrize("state", STATES)
async def test_everything_that_can_be_used_has_a_name(state: str) -> None:
    assert (await looks())[state]["nameless"] == []


@pytest.mark.parametrize("state", STATES)
async def test_text_stands_out_from_its_paper(state: str) -> None:
    assert (await looks())[state]["faint"] == []


async def test_the_states_look_different() -> None:
    found = await looks()
    assert len({found[state]["picture"] for state in STATES}) == len(STATES)


async def test_the_keyboard_reaches_chats_message_and_settings() -> None:
    assert {"new", "text", "relaxed"} <= set((await looks())["focus"])
