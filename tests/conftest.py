"""Async tests run without a plugin: natively through `asyncio.run`, in a browser on its running loop."""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import Any


def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
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
