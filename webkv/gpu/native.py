"""Opening a device outside a browser, over wgpu-native (Vulkan, Metal, D3D12)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import wgpu

from webkv.errors import DeviceError
from webkv.gpu.device import DEFAULT_LIMITS, Device, DeviceFacts

# Real GPUs first; a software adapter only when nothing else is there.
_PREFERENCE = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "CPU": 3}
_NO_ADAPTER = (
    "no GPU adapter was found; install your GPU's Vulkan driver, or a software one "
    "(Debian: apt-get install mesa-vulkan-drivers)"
)


def adapter_name(adapter: wgpu.GPUAdapter) -> str:
    """One line that names an adapter, as `webkv devices` shows it and `WEBKV_ADAPTER` matches it."""
    info = adapter.info
    name = info.get("device") or info.get("description") or "unknown adapter"
    return f"{name} ({info.get('backend_type')})"


@cache
def _prepare_instance() -> None:
    # OpenGL's compute is too limited.  Where there is no display, Mesa's layer that looks for one on Wayland
    # prints errors at every start; the variable is the layer's own switch.
    if "XDG_RUNTIME_DIR" not in os.environ:
        os.environ.setdefault("NODEVICE_SELECT", "1")
    from wgpu.backends.wgpu_native import extras

    with contextlib.suppress(RuntimeError):  # the host program made wgpu's instance first
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"])


async def list_adapters() -> list[wgpu.GPUAdapter]:
    """All usable adapters, the preferred one first."""
    try:
        _prepare_instance()
        found = await wgpu.gpu.enumerate_adapters_async()
    except (RuntimeError, OSError, ImportError) as error:
        raise DeviceError(f"{_NO_ADAPTER}: {error}") from error
    usable = [a for a in found if a.info.get("backend_type") not in ("OpenGL", "OpenGLES")]
    return sorted(usable, key=lambda a: _PREFERENCE.get(str(a.info.get("adapter_type")), 4))


async def choose_adapter(name: str | None = None) -> wgpu.GPUAdapter:
    """The adapter whose name contains `name` or `$WEBKV_ADAPTER` (any case), else the preferred one."""
    adapters = await list_adapters()
    wanted = name or os.environ.get("WEBKV_ADAPTER", "")
    matching = [a for a in adapters if wanted.lower() in adapter_name(a).lower()]
    if matching:
        return matching[0]
    if adapters:
        names = ", ".join(adapter_name(a) for a in adapters)
        raise DeviceError(f"no GPU adapter matches {wanted!r}; found: {names}")
    raise DeviceError(_NO_ADAPTER)


def granted_limits(available: Mapping[str, int], needs: Mapping[str, int]) -> dict[str, int]:
    """WebGPU's default limits, raised to `needs` where that is more and the adapter has it."""
    limits = dict(DEFAULT_LIMITS)
    for name, value in needs.items():
        if value <= limits[name]:
            continue
        if value > available[name]:
            raise DeviceError(f"{name}: {value} needed, the adapter allows {available[name]}")
        limits[name] = value
    return limits


class DirectCalls:
    """A compute pass's calls without wgpu-py's checks around each, which cost the host more than the calls.

    A wrong call makes `finish` of the command encoder raise instead.
    """

    def __init__(self, encoder: Any) -> None:
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        self._pass, self._none = encoder._internal, ffi.NULL
        self._set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        self._set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
        self._dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups

    def set_pipeline(self, pipeline: Any) -> None:
        """See `GPUComputePassEncoder`."""
        self._set_pipeline(self._pass, pipeline._internal)

    def set_bind_group(self, index: int, group: Any) -> None:
        """See `GPUComputePassEncoder`."""
        self._set_bind_group(self._pass, index, group._internal, 0, self._none)

    def dispatch_workgroups(self, x: int, y: int, z: int) -> None:
        """See `GPUComputePassEncoder`."""
        self._dispatch(self._pass, x, y, z)


async def open_native(
    name: str | None = None, needs: Mapping[str, int] | None = None, features: Iterable[str] = ()
) -> Device:
    """Open the adapter `name`: default limits, more where `needs` asks, and those `features` it has."""
    adapter = await choose_adapter(name)
    limits = granted_limits(adapter.limits, needs or {})
    wanted = sorted(set(features) & set(adapter.features))
    try:
        raw: Any = await adapter.request_device_async(required_limits=limits, required_features=wanted)
    except (wgpu.GPUError, RuntimeError) as error:
        raise DeviceError(f"the adapter {adapter_name(adapter)} gave no device: {error}") from error
    kind = str(adapter.info.get("adapter_type"))
    backend = str(adapter.info.get("backend_type"))
    facts = DeviceFacts(adapter_name(adapter), backend, kind, limits, frozenset(wanted))
    # wgpu-py's own read-backs use this mode: they too have submitted the copy, and need no other submission.
    return Device(raw, facts, DirectCalls, map_mode="READ_NOSYNC")
