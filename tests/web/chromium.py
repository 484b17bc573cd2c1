"""Chromium for tests: its flags, a served page, and what the page says on its console."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from webkv.serve import Pages, open_server

FLAGS = (
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # A software adapter, the same on every machine.
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    # Zero workgroup memory by a loop: SwiftShader makes a store per element of the extension's constant, and
    # attention takes three times as long to compile.
    "--disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension",
    # Compiling for a software adapter may take longer than the watchdog gives a GPU process.
    "--disable-gpu-watchdog",
    # Without both, the second crash of the GPU process leaves the browser without WebGPU.
    "--disable-domain-blocking-for-3d-apis",
    "--disable-gpu-process-crash-limit",
)


def executable() -> str:
    """The browser: `$WEBKV_CHROMIUM`, else the system's Chromium or Chrome; empty if there is none."""
    names = (os.environ.get("WEBKV_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), "")


def missing() -> str:
    """What a test that drives a browser lacks here; empty if nothing."""
    if sys.platform == "emscripten":
        return "drives a browser from outside"
    if not executable():
        return "Chromium is not installed (or name one in $WEBKV_CHROMIUM)"
    return "" if importlib.util.find_spec("playwright") else "playwright is not installed"


async def kill(context: Any, profile: Path) -> None:
    """Kill the browser that was started on `profile`; until playwright knows, closing `context` may fail."""
    async with context.expect_event("close"):
        os.kill(_browser_process(profile), signal.SIGKILL)


def _browser_process(profile: Path) -> int:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"--user-data-dir={profile}".encode() in words and not any(b"--type=" in w for w in words):
                return int(folder.name)
    raise AssertionError("the browser is not running")


@contextmanager
def served(pages: Pages) -> Iterator[str]:
    """The pages on a free port of localhost, for as long as the block runs; gives the root URL."""
    server = open_server(pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@asynccontextmanager
async def browser(profile: Path, *flags: str) -> AsyncIterator[Any]:
    """A headless browser on a profile folder that is kept (a fresh context would store nothing)."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            str(profile), executable_path=executable(), headless=True, args=[*FLAGS, *flags]
        )
        try:
            yield context
        finally:
            await context.close()
