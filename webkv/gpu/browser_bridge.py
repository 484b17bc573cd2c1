"""The crossing from Python to the page's WebGPU: calls, promises and errors.  Pyodide only.

`web/gpu.js` keeps the JavaScript objects in a table and Python keeps their numbers.  A call costs one
crossing (about 1 us), no object costs a proxy, and what JavaScript throws comes out as the error that wgpu
raises natively.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wgpu
from pyodide.code import run_js
from pyodide.ffi import JsException, run_sync
from wgpu import _classes

from webkv.gpu.shaders import packaged_folder

_table = run_js((packaged_folder("web") / "gpu.js").read_text(encoding="utf-8"))


def named_error(kind: str, message: str) -> wgpu.GPUError:
    """wgpu's error for a WebGPU or DOM error called `kind`."""
    text = " ".join(message.split())
    if kind in ("GPUOutOfMemoryError", "RangeError"):
        return wgpu.GPUOutOfMemoryError(f"out of memory: {text}")
    if kind in ("GPUInternalError", "OperationError"):
        return wgpu.GPUInternalError(text)
    if kind == "AbortError":  # mapAsync of a buffer that nobody unmapped: its device is gone
        return wgpu.GPUError(f"the device was lost: {text}")
    return wgpu.GPUValidationError(text)


def _function(name: str) -> Callable[..., Any]:
    bound = getattr(_table, name)

    def call(*arguments: Any) -> Any:
        try:
            return bound(*arguments)
        except JsException as error:
            raise named_error(str(error.name), str(error.message)) from None

    return call


class Table:
    """The functions of `web/gpu.js`, each looked up once."""

    available = staticmethod(_function("available"))
    adapter = staticmethod(_function("adapter"))
    about = staticmethod(_function("about"))
    device = staticmethod(_function("device"))
    watch = staticmethod(_function("watch"))
    push_scope = staticmethod(_function("pushScope"))
    pop_scope = staticmethod(_function("popScope"))
    buffer = staticmethod(_function("buffer"))
    shader = staticmethod(_function("shader"))
    group_layout = staticmethod(_function("groupLayout"))
    pipeline_layout = staticmethod(_function("pipelineLayout"))
    pipeline = staticmethod(_function("pipeline"))
    pipeline_async = staticmethod(_function("pipelineAsync"))
    layout_of = staticmethod(_function("layoutOf"))
    group = staticmethod(_function("group"))
    query_set = staticmethod(_function("querySet"))
    submit = staticmethod(_function("submit"))
    write = staticmethod(_function("write"))
    done = staticmethod(_function("done"))
    map = staticmethod(_function("map"))
    range = staticmethod(_function("range"))
    unmap = staticmethod(_function("unmap"))
    destroy = staticmethod(_function("destroy"))
    object = staticmethod(_function("object"))
    forget = staticmethod(_function("forget"))


class GPUPromise(_classes.GPUPromise):
    """wgpu's promise over a JavaScript one.  `sync_wait` needs stack switching; awaiting does not."""

    _js: Any = None

    def __init__(self, title: str, handler: Callable[[Any], Any] | None, **keywords: Any) -> None:
        # The base re-creates its own class in then() and catch() with keywords of its own.
        super().__init__(title, handler, **keywords)

    def follow(self, promise: Any) -> GPUPromise:
        """Settle as the JavaScript `promise` does."""
        self._js = promise.then(self._wgpu_set_input, self._refuse)
        return self

    def _refuse(self, error: Any) -> None:
        self._wgpu_set_error(named_error(str(error.name), str(error.message)))

    def _sync_wait(self) -> None:
        run_sync(self._js)
