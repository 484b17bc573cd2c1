"""One GPU device behind one interface, wgpu's, natively and in a browser page."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from webkv.gpu.batch import TEXEL, Batch
from webkv.gpu.device import DEFAULT_LIMITS, Device, DeviceFacts, Kernel, Slice

__all__ = ["DEFAULT_LIMITS", "TEXEL", "Batch", "Device", "DeviceFacts", "Kernel", "Slice", "open_device"]

if sys.platform == "emscripten":
    import webkv.gpu.browser_backend  # noqa: F401  (registers with wgpu, for any wgpu program)


async def open_device(
    name: str | None = None, needs: Mapping[str, int] | None = None, features: Iterable[str] = ()
) -> Device:
    """Open a GPU device within WebGPU's default limits.

    `name`: part of an adapter's name (natively; default `$WEBKV_ADAPTER`).  `needs`: limits to raise, as
    wgpu names them; `DeviceError` if the adapter has less.  `features`: asked for where the adapter has them.
    """
    if sys.platform == "emscripten":
        from webkv.gpu.browser import open_browser

        return await open_browser(needs=needs, features=features)
    from webkv.gpu.native import open_native

    return await open_native(name, needs, features)
