"""What is measured inside a page; `benchmarks/browser.py` sends this text there and calls its functions."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from webkv.checkpoint.indexeddb import IndexedDBStore
from webkv.gpu import open_device
from webkv.gpu.device import Kernel

NOTHING = """
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(1) fn main() { out[0] = out[0] + 1u; }
"""


async def encoding(dispatches: int, rounds: int) -> list[float]:
    """Milliseconds to record and submit so many dispatches, each with a bind group of its own, by round."""
    device = await open_device()
    buffers = [device.buffer(256) for _ in range(dispatches)]
    compute = {"module": device.raw.create_shader_module(code=NOTHING), "entry_point": "main"}
    kernel = Kernel("nothing", device.raw.create_compute_pipeline(layout="auto", compute=compute), device)
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        with device.batch() as batch:
            for buffer in buffers:
                batch.dispatch(kernel, kernel.bind(buffer), 1)
        times.append(1e3 * (time.perf_counter() - begun))
        await device.fence()
    device.destroy()
    return times


async def storing(pages: int, nbytes: int, rounds: int) -> dict[str, float]:
    """Median milliseconds to write and to read so many pages: in one IndexedDB commit, or a file for each."""
    costs: dict[str, list[float]] = {}
    values = [os.urandom(nbytes) for _ in range(pages)]

    async def timed(what: str, work: Callable[[], Awaitable[Any]]) -> None:
        begun = time.perf_counter()
        await work()
        costs.setdefault(what, []).append(1e3 * (time.perf_counter() - begun))

    async with IndexedDBStore("benchmark") as store:
        for number in range(rounds):
            names = [f"{number}-{at}" for at in range(pages)]
            entries = dict(zip(names, values, strict=True))
            await timed("commit", lambda: store.commit(entries, (), "relaxed"))  # noqa: B023
            await timed("files", lambda: write_files(entries))  # noqa: B023
            await timed("get", lambda: read_entries(store, names))  # noqa: B023
            await timed("read files", lambda: read_files(names, nbytes))  # noqa: B023
        await store.delete_all()
    return {what: median(found) for what, found in costs.items()}


async def read_entries(store: IndexedDBStore, names: list[str]) -> None:
    """Read values one by one, as a resume does."""
    for name in names:
        assert await store.get(name) is not None


async def write_files(entries: dict[str, bytes]) -> None:
    """Write and flush a file of the origin's private file system for each entry."""
    from pyodide.ffi import to_js

    for name, data in entries.items():
        handle = await opened(name)
        handle.write(to_js(data))
        handle.flush()
        handle.close()


async def read_files(names: list[str], nbytes: int) -> None:
    """Read the files back."""
    from js import Uint8Array

    for name in names:
        handle = await opened(name)
        room = Uint8Array.new(nbytes)
        handle.read(room)
        assert len(room.to_bytes()) == nbytes
        handle.close()


async def opened(name: str) -> Any:
    """A handle on a file, made if there is none."""
    from js import navigator

    folder = await navigator.storage.getDirectory()
    file = await folder.getFileHandle(name, create=True)
    return await file.createSyncAccessHandle()
