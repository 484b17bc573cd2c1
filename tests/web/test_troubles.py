"""What the page says when something is missing, broken or in the way; each message tells what to do."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import Kind, write_tiny_llama
from tests.web.chatpage import ChatPage
from tests.web.chromium import browser, missing, served
from webkv.serve import Joined, Pages
from webkv.site import prepare

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MODEL = "tiny.gguf"
# Prepended to the page's worker.
NO_ADAPTER = "navigator.gpu.requestAdapter = async () => null;\n"
# A browser that cannot compile a kernel.
NO_PREFILL = """const { createShaderModule } = GPUDevice.prototype;
GPUDevice.prototype.createShaderModule = function (made) {
  const code = made.label === "attend_prefill" ? "no shader" : made.code;
  return createShaderModule.call(this, { ...made, code });
};
"""
# A page whose schema is one version on.
NEXT_VERSION = """const { open } = IDBFactory.prototype;
IDBFactory.prototype.open = function (name, version) { return open.call(this, name, version + 1); };
"""
# As private windows of some browsers do.
NO_FILES = """navigator.storage.getDirectory = async () => {
  throw new DOMException("Security error when calling GetDirectory", "SecurityError");
};
"""


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    write_tiny_llama(tmp_path / MODEL, kind=Kind.Q8_0)
    return Pages(prepare(print), {MODEL: [tmp_path / MODEL]})


@asynccontextmanager
async def tab(pages: Pages, before: Any = None, preferences: Any = None) -> AsyncIterator[ChatPage]:
    """The page in a fresh browser; `before(context, root)` runs first, `preferences` are the profile's."""
    with served(pages) as root, tempfile.TemporaryDirectory() as profile:
        if preferences is not None:
            (Path(profile) / "Default").mkdir()
            (Path(profile) / "Default" / "Preferences").write_text(json.dumps(preferences))
        async with browser(Path(profile)) as context:
            if before is not None:
                await before(context, root)
            yield await ChatPage.open(context, root)


async def test_no_webgpu(pages: Pages) -> None:
    async def without(context: Any, root: str) -> None:
        await context.add_init_script("delete Navigator.prototype.gpu")

    async with tab(pages, without) as chat:
        assert "offers no WebGPU to this page. Use a current" in await chat.notice()


async def test_no_adapter(pages: Pages) -> None:
    pages.made["worker.js"] = NO_ADAPTER.encode() + (pages.site.web / "worker.js").read_bytes()
    async with tab(pages) as chat:
        assert "found no usable GPU: turn on hardware acceleration" in await chat.notice()


async def test_a_private_window_that_keeps_no_files(pages: Pages) -> None:
    pages.made["worker.js"] = NO_FILES.encode() + (pages.site.web / "worker.js").read_bytes()
    async with tab(pages) as chat:
        await chat.wait("device")
        await chat.page.get_by_text("forgets it with a private window").wait_for()
        await chat.page.get_by_role("button", name=f"Load {MODEL}").click()
        found = await chat.notice()
        assert "lets this page keep no files" in found
        assert "Leave private browsing, or allow site data" in found


async def test_a_kernel_that_the_browser_refuses_gives_an_error_and_no_token(pages: Pages) -> None:
    pages.made["worker.js"] = NO_PREFILL.encode() + (pages.site.web / "worker.js").read_bytes()
    async with tab(pages) as chat:
        await chat.load(MODEL)
        await chat.say("The sea, the night and the long way home.")
        found = await chat.notice()
        assert "the GPU refused" in found
        assert "What was shown is stored. Reload the page" in found
        assert await chat.told("token") == []


async def test_a_missing_wheel_is_named(pages: Pages) -> None:
    (name,) = [name for name in pages.files if "/wgpu-" in name]
    del pages.files[name]
    async with tab(pages) as chat:
        found = await chat.notice()
        assert name in found
        assert "is missing (HTTP 404). Run `webkv serve` again" in found


async def test_a_changed_wheel_is_not_run(pages: Pages) -> None:
    (name,) = [name for name in pages.files if "/wgpu-" in name]
    pages.made[name] = b"something else"
    async with tab(pages) as chat:
        assert "wgpu-0.32.0-py3-none-any.whl was changed" in await chat.notice()


async def test_a_file_that_is_no_model_is_refused_and_the_choice_offered_again(pages: Pages) -> None:
    async with tab(pages) as chat:
        await chat.wait("device")
        text = {"name": "notes.gguf", "mimeType": "text/plain", "buffer": b"Dear diary, nothing today."}
        await chat.page.set_input_files("#file", [text])
        assert "GGUF" in await chat.notice()
        await chat.page.wait_for_selector("#chooser:not([hidden])")


async def test_a_damaged_model_is_deleted_and_can_be_loaded_again(pages: Pages) -> None:
    manifest = json.loads(pages.made["manifest.json"])
    manifest["models"][0]["sha256"] = "0" * 64
    pages.made["manifest.json"] = json.dumps(manifest).encode()
    async with tab(pages) as chat:
        await chat.wait("device")
        await chat.page.get_by_role("button", name=f"Load {MODEL}").click()
        assert "arrived damaged" in await chat.notice()
        assert (await chat.told("models"))[-1]["kept"] == []


class Breaking(Joined):
    """A model file whose connection breaks half way, once."""

    begins: list[int]

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        self.begins.append(begin)
        if len(self.begins) > 1:
            yield from super().chunks(begin, end)
            return
        yield from super().chunks(begin, self.size // 2)
        raise ConnectionResetError


class Waiting(Joined):
    """A model file that comes when it may."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__(files)
        self.go_on = threading.Event()

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        self.go_on.wait(240)
        yield from super().chunks(begin, end)


async def test_a_broken_download_goes_on_where_it_stopped(pages: Pages) -> None:
    pages.files[f"models/{MODEL}"] = model = Breaking(pages.files[f"models/{MODEL}"].files)
    model.begins = []
    async with tab(pages) as chat:
        await chat.wait("device")
        await chat.page.get_by_role("button", name=f"Load {MODEL}").click()
        assert "it goes on where it stopped" in await chat.notice()
        await chat.page.get_by_role("button", name=f"Load {MODEL}").click()
        assert (await chat.wait("model"))["name"] == MODEL
    assert set(model.begins[1:]) == {model.size // 2}  # Chromium tries once more by itself


async def test_two_tabs_do_not_fetch_one_model_at_a_time(pages: Pages) -> None:
    pages.files[f"models/{MODEL}"] = model = Waiting(pages.files[f"models/{MODEL}"].files)
    async with tab(pages) as chat:
        await chat.wait("device")
        await chat.page.get_by_role("button", name=f"Load {MODEL}").click()
        await chat.wait("step")
        second = await ChatPage.open(chat.page.context, chat.page.url)
        await second.wait("device")
        await second.page.get_by_role("button", name=f"Load {MODEL}").click()
        assert "Another tab is fetching this model. Wait until it is done" in await second.notice()
        model.go_on.set()
        assert (await chat.wait("model"))["name"] == MODEL


async def test_a_model_is_fetched_once(pages: Pages, capsys: pytest.CaptureFixture[str]) -> None:
    asked = pages.files[f"models/{MODEL}"] = Breaking(pages.files[f"models/{MODEL}"].files)
    asked.begins = [0]  # it will not break
    async with tab(pages) as chat:
        await chat.load(MODEL)
        seconds = await chat.page.evaluate("performance.now() / 1000")
        with capsys.disabled():
            print(f"\na message could be sent {seconds:.1f} s after the page was opened")
        await chat.page.reload()
        await chat.wait("model")  # the page loads it by itself
    assert asked.begins == [0, 0]


async def test_too_little_room_for_the_model(pages: Pages) -> None:
    async def limited(context: Any, root: str) -> None:
        session = await context.new_cdp_session(context.pages[0])
        origin = root.rstrip("/")
        await session.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": 10_000})

    async with tab(pages, limited) as chat:
        await chat.wait("device")
        await chat.page.get_by_role("button", name=f"Load {MODEL}").click()
        assert "has no room for this model" in await chat.notice()


HOLD = """async (version) => {
  const request = indexedDB.open("webkv", version);
  await new Promise((done) => { request.onsuccess = done; });
  window.held = request.result;
}"""


def holding(version: int) -> Any:
    """A tab that makes the page's database, empty, in a version of its own, and keeps it open."""

    async def hold(context: Any, root: str) -> None:
        page = await context.new_page()
        await page.goto(f"{root}icon.svg")
        await page.evaluate(HOLD, version)

    return hold


async def test_a_database_of_a_newer_page(pages: Pages) -> None:
    async with tab(pages, holding(99)) as chat:
        assert "made by a newer webkv: reload the page" in await chat.notice()


async def test_a_database_of_another_program(pages: Pages) -> None:
    async with tab(pages, holding(1)) as chat:
        assert "not a database of webkv: clear this site's data" in await chat.notice()


async def test_an_older_page_in_another_tab_blocks_the_upgrade(pages: Pages) -> None:
    pages.made["worker.js"] = NEXT_VERSION.encode() + (pages.site.web / "worker.js").read_bytes()
    async with tab(pages, holding(1)) as chat:
        assert "close the other tabs of this page" in await chat.notice()


async def test_blocked_site_data(pages: Pages) -> None:
    blocked = {"profile": {"default_content_setting_values": {"cookies": 2}}}
    async with tab(pages, preferences=blocked) as chat:
        assert "allow site data" in await chat.notice()
