"""What pytest finds by itself: how async tests run, and the model that tests of whole conversations read."""

from __future__ import annotations

import asyncio
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest


def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Async tests need no plugin: natively they run in `asyncio.run`, in a browser on its running loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    coroutine = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    if sys.platform == "emscripten":
        from pyodide.ffi import run_sync

        run_sync(coroutine)
    else:
        asyncio.run(coroutine)
    return True


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama's file, which nobody changes."""
    from tests.models.tiny import write_tiny_llama  # needs gguf, which not every test has

    path = tmp_path_factory.mktemp("models") / "llama.gguf"
    write_tiny_llama(path)
    return path
