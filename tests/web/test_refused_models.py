"""Model files that the page cannot take: each is refused with advice, and another one loads."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import Kind, write_tiny_gemma3, write_tiny_llama
from tests.web.chatpage import ChatPage
from tests.web.chromium import browser, missing, served
from webkv.serve import Pages
from webkv.site import prepare

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
GOOD = "good.gguf"
REFUSED = {
    "huge.gguf": "3000 MB does not fit into a page's memory. Choose a smaller model, or run this one with",
    "wide.gguf": "wide.gguf: layer group 'global': 513 pages of 524288 bytes per layer are over the device's "
    "limit of 134217728 bytes; a max_total_len of about 4096 tokens fits. Choose a smaller model: this one "
    "needs more than the GPU gives a page.",
    "mamba.gguf": "mamba.gguf: architecture 'mamba' is not supported, known are gemma3, llama. Choose an",
    "cut.gguf": "cut.gguf is truncated",
    "notes.gguf": "notes.gguf is not a GGUF file: it starts with b'Dear', expected b'GGUF'. Choose an",
}
# A kept model of a size that costs no disk: a hole.
KEEP = """async ([name, size]) => {
  const root = await navigator.storage.getDirectory();
  const models = await root.getDirectoryHandle("models", { create: true });
  const file = await (await models.getFileHandle(name, { create: true })).createWritable();
  await file.truncate(size);
  await file.close();
}"""


def write(folder: Path) -> dict[str, list[Path]]:
    """The model files that are served, by name."""
    write_tiny_llama(folder / GOOD, d_ff=96, kind=Kind.Q8_0)
    data = (folder / GOOD).read_bytes()
    # 512 KiB of K and V for each page of one layer.
    write_tiny_gemma3(folder / "wide.gguf", heads=32, kv_heads=32, head_dim=256, context=4096)
    (folder / "mamba.gguf").write_bytes(data.replace(b"llama", b"mamba"))
    (folder / "cut.gguf").write_bytes(data[: len(data) // 2])
    (folder / "notes.gguf").write_bytes(b"Dear diary, nothing today.")
    return {name: [folder / name] for name in (*REFUSED, GOOD) if name != "huge.gguf"}


async def tried(chat: ChatPage, name: str) -> str:
    """The message after a click on a model."""
    count = len(await chat.told("error"))
    await chat.page.get_by_role("button", name=f"Load {name}").click()
    await chat.wait("error", count + 1)
    return await chat.notice()


async def drive(context: Any, root: str) -> dict[str, str]:
    """The messages by model, and the name of the good one that was loaded last."""
    page = await context.new_page()
    await page.goto(f"{root}icon.svg")
    await page.evaluate(KEEP, ["huge.gguf", 3_000_000_000])
    chat = await ChatPage.open(context, root)
    await chat.wait("device")
    said = {name: await tried(chat, name) for name in REFUSED}
    await chat.load(GOOD)
    return {**said, GOOD: (await chat.told("model"))[-1]["name"]}


_results: dict[str, Any] = {}


async def results() -> dict[str, Any]:
    """What was said of each, and the good one that loaded last; one browser for all tests of this file."""
    if not _results:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            pages = Pages(prepare(print), write(folder))
            with served(pages) as root:
                async with browser(folder / "profile") as context:
                    _results.update(await drive(context, root))
    return _results


@pytest.mark.parametrize("name", REFUSED)
async def test_a_model_is_refused_with_advice(name: str) -> None:
    assert REFUSED[name] in (await results())[name]


async def test_a_good_model_loads_after_all_of_them() -> None:
    assert (await results())[GOOD] == GOOD
