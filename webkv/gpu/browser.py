"""Opening a device in a browser page or worker, over `navigator.gpu`.  Pyodide only."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import wgpu
from pyodide.ffi import create_proxy

from webkv.errors import DeviceError
from webkv.gpu.browser_backend import gpu
from webkv.gpu.browser_bridge import Table, named_error
from webkv.gpu.device import Device, DeviceFacts
from webkv.gpu.native import adapter_name, granted_limits


def watch(device: Device) -> None:
    """Keep `device.lost` and `device.failure` up to date; a browser reports both later, never by raising."""

    known = weakref.ref(device)  # the two proxies below live as long as the page

    def lost(reason: str, message: str) -> None:
        if (device := known()) is not None:
            device.lost = device.lost or f"{message or 'no reason was given'} ({reason})"

    def failed(kind: str, message: str) -> None:
        if (device := known()) is not None:
            device.failure = device.failure or str(named_error(kind, message))

    Table.watch(device.raw._internal, create_proxy(lost), create_proxy(failed))


async def open_browser(needs: Mapping[str, int] | None = None, features: Iterable[str] = ()) -> Device:
    """Open the browser's adapter: default limits, more where `needs` asks, and those `features` it has.

    Raises `DeviceError` that says what to do when the page has no WebGPU, no adapter, or too small a limit.
    """
    try:
        adapter: Any = await gpu.request_adapter_async(power_preference="high-performance")
    except (wgpu.GPUError, RuntimeError) as error:
        raise DeviceError(str(error)) from error
    limits = granted_limits(adapter.limits, needs or {})
    wanted = sorted(set(features) & set(adapter.features))
    try:
        raw = await adapter.request_device_async(required_limits=limits, required_features=wanted)
    except (wgpu.GPUError, RuntimeError) as error:
        raise DeviceError(f"the adapter {adapter_name(adapter)} gave no device: {error}") from error
    kind = str(adapter.info["adapter_type"])
    facts = DeviceFacts(adapter_name(adapter), "WebGPU", kind, limits, frozenset(wanted))
    device = Device(raw, facts)
    watch(device)
    return device
