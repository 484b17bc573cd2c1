"""Products of activations with quantised weights, fused with the norm before and the sum or gate after.

All take `step`, a uniform u32x4 with the number of rows n first, and n itself for the grid.  A result depends
on its own row of x alone: not on n, nor on how many rows or tiles a workgroup takes (see matmul.wgsl).
"""

from __future__ import annotations

from typing import TypeAlias

import wgpu

from webkv.gpu import Batch, Device, Kernel, Slice
from webkv.kernels.planes import in_textures, planes_import, staged_rows
from webkv.kernels.quant import GATED, TILE, Weight
from webkv.kernels.rows import Rows, Stream
from webkv.kernels.shape import Binding

ACTIVATIONS = ("silu", "gelu")
FEATURES = ("subgroup", "shader-int64")
"""Optional features that faster variants use where a device has them, for the same bits."""

STAGED = 16
"""From so many rows on their copy into a texture pays, where textures load faster."""

UNIFORM_BYTES = 65536
"""What one uniform binding holds by WebGPU's default limits."""

Key: TypeAlias = "tuple[str, Rows, Rows, Binding, int, Binding | None, float | None, str, int, int, str]"
Launch: TypeAlias = tuple[Kernel, wgpu.GPUBindGroup, int]


def matmul(batch: Batch, *, x: Rows, weight: Weight, y: Rows, step: Binding, n: int, column: int = 0) -> None:
    """y[t, column + r] = W[r] . x[t] for the first `n` rows t."""
    _launch(batch, "store_sum", x, weight, y, step, n, column=column)


def matmul_add(
    batch: Batch,
    *,
    x: Rows,
    weight: Weight,
    stream: Stream,
    gain: wgpu.GPUBuffer,
    step: Binding,
    n: int,
) -> None:
    """Add W x to the stream; its scaled half becomes the sum times the next norm's weight, `gain[cols]`."""
    scaled = stream.rows * stream.both.cols
    _launch(batch, "store_add", x, weight, stream.both, step, n, side=gain, scaled=scaled)


def norm_matmul(
    batch: Batch,
    *,
    stream: Stream,
    weight: Weight,
    y: Rows,
    eps: float,
    step: Binding,
    n: int,
    column: int = 0,
) -> None:
    """y[t, column + r] = W[r] . rms_norm(stream[t]); the stream's scaled half carries the norm's weight.

    RMSNorm: Zhang & Sennrich 2019.
    """
    _launch(batch, "store_sum", stream.scaled, weight, y, step, n, column=column,
            side=stream.plain.storage, eps=eps)  # fmt: skip


def norm_gated_matmul(
    batch: Batch,
    *,
    stream: Stream,
    weight: Weight,
    y: Rows,
    activation: str,
    eps: float,
    step: Binding,
    n: int,
) -> None:
    """y = activation(G h) * (U h) with h = rms_norm(stream); `weight` holds 32 rows of G, 32 of U, and so on.

    `activation`: "silu" (SwiGLU, Shazeer 2020) or "gelu" (its tanh form).
    """
    assert activation in ACTIVATIONS and len(weight.parts) == 1 and weight.rows % (2 * GATED) == 0
    _launch(batch, "store_gate", stream.scaled, weight, y, step, n,
            side=stream.plain.storage, eps=eps, activation=activation)  # fmt: skip


def _launch(
    batch: Batch,
    store: str,
    x: Rows,
    weight: Weight,
    y: Rows,
    step: Binding,
    n: int,
    *,
    column: int = 0,
    side: Binding | None = None,
    eps: float | None = None,
    activation: str = "silu",
    scaled: int = 0,
) -> None:
    assert x.cols == weight.cols and n <= x.rows
    tokens = 1 if n <= 2 else 4  # two rows twice are cheaper than four, two of them unused
    loaded = _loaded_from(batch.device, x, n)
    key = (store, x, y, step, column, side, eps, activation, scaled, tokens, loaded)
    launches = weight.launches.get(key)
    if launches is None:
        launches = weight.launches[key] = _prepared(batch.device, weight, key)
    if loaded == "x_texture":
        _stage(batch, x, step, n)
    for kernel, group, groups in launches:
        batch.dispatch(kernel, group, groups, -(-n // tokens))


def _prepared(device: Device, weight: Weight, key: Key) -> list[Launch]:
    """Pipeline, bind group and workgroups of each part of `weight`."""
    store, x, y, step, column, side, eps, activation, scaled, tokens, loaded = key
    halves = 2 if store == "store_gate" else 1
    imports = {
        "x": loaded,
        "rows": "rows_shared" if device.facts.subgroups_of_8 else "rows_each",
        "planes": planes_import(device),
        "codec": f"quant_{weight.codec}",
        "scale": "scale_none" if eps is None else "scale_rms",
        "side": _side_import(side, eps, loaded),
        "activation": activation,
        "store": store,
    }
    extra = {name: value for name, value in (("EPS", eps), ("SCALED", scaled)) if value}
    source = _source(device, x, loaded)
    beside = _first_64k(side) if imports["side"] == "side_uniform" else side
    launches = []
    for part in weight.parts:
        rows = part.rows // halves
        shape = _shape(device, halves, tokens)
        sizes = {"K": weight.cols, "N": rows, "Y_STRIDE": y.cols, "Y_FIRST": column + part.first}
        kernel = device.kernel("matmul", {**sizes, **shape, **extra}, imports)
        group = kernel.bind(step, source, y.storage, beside, *part.planes)
        launches.append((kernel, group, _groups(device, -(-rows // (TILE * shape["ROWS"] // halves)))))
    return launches


def _loaded_from(device: Device, x: Rows, n: int) -> str:
    """The import for `x`: where this device loads n rows fastest, a copy into a texture included."""
    if not in_textures(device):
        return "x_buffer"
    if n >= STAGED:
        return "x_texture"
    fits = n * x.cols * 4 <= UNIFORM_BYTES <= x.storage.size
    return "x_uniform" if fits else "x_buffer"


def _side_import(side: Binding | None, eps: float | None, loaded: str) -> str:
    """What a norm's rows are bound as follows x: both halves of a stream are of one size."""
    if eps is None:
        return "side_none" if side is None else "side_gain"
    return "side_uniform" if loaded == "x_uniform" else "side_buffer"


def _first_64k(binding: Binding | None) -> Slice:
    assert isinstance(binding, Slice)
    return Slice(binding.buffer, binding.offset, UNIFORM_BYTES)


def _source(device: Device, x: Rows, loaded: str) -> Binding | wgpu.GPUTextureView:
    if loaded == "x_uniform":
        return _first_64k(x.storage)
    return _texture_of(device, x) if loaded == "x_texture" else x.storage


def _texture_of(device: Device, x: Rows) -> wgpu.GPUTextureView:
    if x.texture is None:
        x.texture = staged_rows(device, x.rows * x.cols)
    return x.texture


def _stage(batch: Batch, x: Rows, step: Binding, n: int) -> None:
    """Copy `n` rows of x to their texture."""
    kernel = batch.device.kernel("stage_rows", {"K": x.cols})
    group = kernel.bind(step, x.storage, _texture_of(batch.device, x))
    batch.dispatch(kernel, group, -(-n * x.cols // 256))


def _shape(device: Device, halves: int, tokens: int) -> dict[str, int]:
    """How much one workgroup does; no result depends on it, but for SPLIT, which is fixed per kind of device.

    Software adapters (no latency to hide, costly loads) want few fat lanes; GPUs many thin ones.
    """
    if device.facts.adapter_type == "CPU":
        return {"TOKENS": tokens, "ROWS": 8, "SPLIT": 1}
    return {"TOKENS": tokens, "ROWS": halves if tokens == 1 else 4, "SPLIT": 16}


def _groups(device: Device, groups: int) -> int:
    """Workgroups along the rows of W: each strides over as many groups of tiles, and sums a norm once."""
    most = 16 if device.facts.adapter_type == "CPU" else 65535
    return -(-groups // -(-groups // most))
