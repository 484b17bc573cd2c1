"""Chats that are damaged, of another format or model, and files that are no chat: what the page says."""

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
MODEL, OTHER = "tiny.gguf", "other.gguf"
TOKENS = 40
# Flips a bit of byte `at` of every entry whose key begins with `prefix`, from the `skip`-th on; how many.
FLIP = """async ([prefix, at, skip]) => {
  const ended = (request) => new Promise((done) => { request.onsuccess = () => done(request.result); });
  const db = await ended(indexedDB.open("webkv"));
  const table = db.transaction("entries", "readwrite").objectStore("entries");
  const range = IDBKeyRange.bound(prefix, prefix + "\\uffff");
  const [keys, values] = await Promise.all([ended(table.getAllKeys(range)), ended(table.getAll(range))]);
  keys.forEach((key, i) => {
    if (i < skip) return;
    values[i][at] ^= 64;
    table.put(values[i], key);
  });
  await new Promise((done) => { table.transaction.oncomplete = done; });
  db.close();
  return keys.length - skip;
}"""


async def begin(chat: ChatPage) -> dict[str, Any]:
    """A chat whose answer is complete and whose pages are stored: its id and state."""
    await chat.page.evaluate(f"webkv.send('say', {{ text: 'The sea.', max_tokens: {TOKENS} }})")
    await chat.answered(len(await chat.told("answered")) + 1)
    id = (await chat.told("opened"))[-1]["session"]
    async with chat.page.expect_download():  # which waits for the pages
        await chat.page.get_by_label("Save the chat").first.click()
    await chat.idle()
    return {"id": id, **await chat.state()}


async def reopened(chat: ChatPage) -> dict[str, Any]:
    """The open chat after a reload, and the line that says how it came back."""
    await chat.page.reload()
    await chat.wait("opened")
    await chat.idle()
    return {"line": await chat.resumed(), **await chat.state()}


async def damaged(chat: ChatPage) -> dict[str, Any]:
    """Changed pages, then changed rows: both chats before and after."""
    found: dict[str, Any] = {}
    for what, prefix, at, skip in (("pages", "p/", 100, 1), ("rows", "s/{}/j/", 20, 8)):
        before = await begin(chat)
        assert await chat.page.evaluate(FLIP, [prefix.format(before["id"]), at, skip]) > 0
        found[what] = before, await reopened(chat)
        await chat.page.evaluate("webkv.send('new')")
        await chat.idle()
    return found


async def of_another_format(chat: ChatPage) -> str:
    """What is said of a chat whose rows have a format version that is not known; another one can begin."""
    before = await begin(chat)
    assert await chat.page.evaluate(FLIP, [f"s/{before['id']}/j/", 2, 0]) > 0
    await chat.page.reload()
    said = await chat.notice()
    await chat.idle()
    await begin(chat)
    return said


async def of_another_model(chat: ChatPage) -> str:
    """What is said of a chat that is opened with another model, as after a file of that name was replaced."""
    before = await begin(chat)
    await chat.page.get_by_role("button", name="Other model").click()
    await chat.page.get_by_role("button", name=f"Load {OTHER}").click()
    await chat.wait("model", 2)
    await chat.idle()
    await chat.page.evaluate("id => webkv.send('open', { session: id })", before["id"])
    return await chat.notice()


async def bringing(chat: ChatPage, content: bytes) -> str:
    """What is said of a file that is brought in as a chat."""
    file = {"name": "a.safetensors", "mimeType": "application/octet-stream", "buffer": content}
    count = len(await chat.told("error"))
    await chat.page.set_input_files("#import", [file])
    await chat.wait("error", count + 1)
    await chat.idle()
    return await chat.notice()


_results: dict[str, Any] = {}


async def results() -> dict[str, Any]:
    """All cases; the browser is driven once for all tests of this file."""
    if not _results:
        with tempfile.TemporaryDirectory() as folder:
            models = {name: [Path(folder) / name] for name in (MODEL, OTHER)}
            for seed, (file,) in enumerate(models.values()):
                write_tiny_llama(file, seed=seed, d_ff=96, kind=Kind.Q8_0)
            with served(Pages(prepare(print), models)) as root:
                async with browser(Path(folder) / "profile") as context:
                    chat = await ChatPage.open(context, root)
                    await chat.load(MODEL)
                    _results.update(await damaged(chat))
                    _results["format"] = await of_another_format(chat)
                    _results["text"] = await bringing(chat, b"Dear diary, nothing today.")
                    _results["model"] = await of_another_model(chat)
    return _results


async def test_changed_pages_are_computed_again_and_told() -> None:
    before, after = (await results())["pages"]
    assert "damage was left out: stored pages are missing or changed" in after["line"]
    assert (after["tokens"], after["pages"]) == (before["tokens"], before["pages"])


async def test_changed_rows_are_left_out_and_the_answer_is_made_again() -> None:
    before, after = (await results())["rows"]
    assert "damage was left out: row 8: its digest does not fit" in after["line"]
    assert (after["tokens"], after["pages"]) == (before["tokens"], before["pages"])


async def test_a_chat_of_another_format_is_named_and_another_can_begin() -> None:
    said = (await results())["format"]
    assert "found format version 65, this program reads 1" in said
    assert "Delete it, or begin a new chat" in said


async def test_a_chat_of_another_model_is_refused_by_name() -> None:
    said = (await results())["model"]
    assert "checkpoint is of another weights" in said
    assert "Load that model, or begin a new chat" in said


async def test_a_file_that_is_no_chat_is_refused() -> None:
    said = (await results())["text"]
    assert "a.safetensors: found a header" in said
    assert "It is no chat that webkv has saved" in said
