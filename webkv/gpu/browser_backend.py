"""The adapter and entry point of the browser backend, registered with wgpu.  Pyodide only.

wgpu 0.32's own `js_webgpu` backend is a stub.  Importing this module makes `wgpu.gpu` work over the page's
`navigator.gpu`, compute only, so that programs written for wgpu-py run unchanged in a page or a worker.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import wgpu
from pyodide.ffi import JsException
from wgpu import _classes

from webkv.gpu.browser_bridge import GPUPromise, Table, named_error
from webkv.gpu.browser_objects import GPUDevice, GPUQueue

NO_WEBGPU = (
    "this browser offers no WebGPU to this page: use a current Chrome, Edge, Firefox or Safari, and open the "
    "page through https or http://localhost"
)
NO_ADAPTER = (
    "the browser has WebGPU but found no usable GPU: turn on hardware acceleration in its settings, update "
    "the graphics driver, or close other pages that use the GPU"
)


def _dashed(name: str) -> str:
    """wgpu-py's name of a limit: maxTextureDimension1D is max-texture-dimension-1d."""
    return re.sub(r"\d?[A-Z]", lambda match: "-" + match[0].lower(), name)


def _about(number: int) -> tuple[set[str], dict[str, int], dict[str, Any]]:
    """Features, limits (by their names in JavaScript) and info of an adapter or device."""
    facts = json.loads(Table.about(number))
    return set(facts["features"]), facts["limits"], facts["info"]


def _dashed_limits(limits: Mapping[str, int]) -> dict[str, int]:
    return {_dashed(name): int(value) for name, value in limits.items()}


class GPUAdapter(_classes.GPUAdapter):
    """An adapter.  A browser's adapter gives one device only, so each request asks for a fresh one."""

    _internal: int

    def __init__(self, number: int, options: tuple[str | None, bool]) -> None:
        features, limits, raw = _about(number)
        self._options = options
        self._names = {_dashed(name): name for name in limits}
        soft = bool(raw.get("isFallbackAdapter")) or raw.get("architecture") == "swiftshader"
        known = {k: raw.get(k, "") for k in ("vendor", "architecture", "device", "description")}
        known["device"] = known["device"] or f"{known['vendor']} {known['architecture']}".strip()
        kind = "CPU" if soft else "Unknown"
        info = _classes.GPUAdapterInfo(**known, adapter_type=kind, backend_type="WebGPU")
        super().__init__(number, features, _dashed_limits(limits), info)

    def _release(self) -> None:
        Table.forget(self._internal)

    def request_device_async(
        self,
        *,
        label: str = "",
        required_features: Sequence[str] = (),
        required_limits: Mapping[str, int | None] | None = None,
        default_queue: Any = None,
    ) -> GPUPromise:
        limits = {}
        for name, value in (required_limits or {}).items():
            known = self._names.get(name.replace("_", "-"))
            if known is None:
                raise KeyError(f"Unknown limit name {name!r}")
            if value is not None:
                limits[known] = value

        def made(number: int) -> GPUDevice:
            features, granted, _ = _about(number)
            return GPUDevice(
                label, number, self, features, _dashed_limits(granted), GPUQueue("", number, None)
            )

        async def request() -> Any:
            fresh = await Table.adapter(*self._options)
            if not fresh:
                raise wgpu.GPUInternalError(NO_ADAPTER)
            try:
                wanted = json.dumps(sorted(required_features)), json.dumps(limits)
                return await Table.device(fresh, label, *wanted)
            finally:
                Table.forget(fresh)

        return _following("adapter.request_device", made, request())


def _following(title: str, handler: Any, work: Any) -> GPUPromise:
    """A wgpu promise that settles as a coroutine does."""
    promise = GPUPromise(title, handler)

    async def run() -> None:
        try:
            promise._wgpu_set_input(await work)
        except JsException as error:
            promise._wgpu_set_error(named_error(str(error.name), str(error.message)))
        except Exception as error:
            promise._wgpu_set_error(error)

    promise._js = asyncio.ensure_future(run())
    return promise


class GPU(_classes.GPU):
    """`navigator.gpu`."""

    def request_adapter_async(
        self,
        *,
        feature_level: str = "core",
        power_preference: str | None = None,
        force_fallback_adapter: bool = False,
        canvas: Any = None,
    ) -> GPUPromise:
        options = (power_preference, force_fallback_adapter)

        def made(number: int) -> GPUAdapter:
            if not number:
                raise RuntimeError(NO_ADAPTER)
            return GPUAdapter(number, options)

        if not Table.available():
            raise RuntimeError(NO_WEBGPU)
        return GPUPromise("gpu.request_adapter", made).follow(Table.adapter(*options))

    def request_adapter_sync(self, **options: Any) -> GPUAdapter:
        return self.request_adapter_async(**options).sync_wait()

    def enumerate_adapters_async(self) -> GPUPromise:
        """A browser shows one adapter, the one it prefers."""
        promise = GPUPromise("gpu.enumerate_adapters", None)
        first = self.request_adapter_async(power_preference="high-performance")
        first.then(lambda adapter: promise._wgpu_set_input([adapter]), promise._wgpu_set_error)
        promise._js = first._js
        return promise

    def enumerate_adapters_sync(self) -> list[GPUAdapter]:
        return self.enumerate_adapters_async().sync_wait()


gpu = GPU()
vars(wgpu)["gpu"] = gpu
# Whoever asks wgpu for its automatic backend gets this one, never the stub, which would replace it.
sys.modules["wgpu.backends.auto"] = sys.modules[__name__]
