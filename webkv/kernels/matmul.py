"""Products of activations with quantised weights, fused with the norm before and the sum or gate after.

All take `step`, a uniform u32x4 with the number of rows n first, and n itself for the grid.  A result depends
on its own row of x alone: not on n, nor on how many rows or tiles a workgroup takes (see matmul.wgsl).
"""

from __future__ import annotations

from collections.abc import Mapping

import wgpu

from webkv.gpu import Batch, Device
from webkv.kernels.quant import TILE, Weight
from webkv.kernels.rows import Rows, Stream
from webkv.kernels.shape import Binding

ACTIVATIONS = ("silu", "gelu")


def matmul(batch: Batch, *, x: Rows, weight: Weight, y: Rows, step: Binding, n: int, column: int = 0) -> None:
    """y[t, column + r] = W[r] . x[t] for the first `n` rows t."""
    _launch(batch, "store_sum", x, weight, y.storage, y.cols, step, n, column=column)


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
    constants = {"SCALED": stream.rows * stream.both.cols}
    y = stream.both
    _launch(batch, "store_add", x, weight, y.storage, y.cols, step, n, side=gain, constants=constants)


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
    _launch(batch, "store_sum", stream.scaled, weight, y.storage, y.cols, step, n, column=column,
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
    """y = activation(G h) * (U h) with h = rms_norm(stream); `weight` holds G's rows, then U's.

    `activation`: "silu" (SwiGLU, Shazeer 2020) or "gelu" (its tanh form).
    """
    assert activation in ACTIVATIONS and len(weight.parts) == 1 and weight.rows % (2 * TILE) == 0
    _launch(batch, "store_gate", stream.scaled, weight, y.storage, y.cols, step, n,
            side=stream.plain.storage, eps=eps, activation=activation)  # fmt: skip


def _launch(
    batch: Batch,
    store: str,
    x: Rows,
    weight: Weight,
    y: Binding,
    stride: int,
    step: Binding,
    n: int,
    *,
    column: int = 0,
    side: Binding | None = None,
    eps: float | None = None,
    activation: str = "silu",
    constants: Mapping[str, float] | None = None,
) -> None:
    assert x.cols == weight.cols and n <= x.rows
    device = batch.device
    halves = 2 if store == "store_gate" else 1
    imports = {
        "rows": "rows_uniform" if x.window else "rows_storage",
        "codec": f"quant_{weight.codec}",
        "scale": "scale_none" if eps is None else "scale_rms",
        "activation": activation,
        "store": store,
    }
    for part in weight.parts:
        shape = _shape(device, part.rows // halves, halves, n)
        sizes = {
            "K": weight.cols,
            "N": part.rows // halves,
            "Y_STRIDE": stride,
            "Y_FIRST": column + part.first,
        }
        values = {**sizes, **shape, **(constants or {}), **({} if eps is None else {"EPS": eps})}
        kernel = device.kernel("matmul", values, imports)
        stored = shape["ROWS"] // halves
        groups = -(-sizes["N"] // (TILE * stored))
        for count, window, base in x.inputs(n):
            group = kernel.bind(step, base, window, y, side, *part.planes)
            batch.dispatch(kernel, group, min(groups, _most_groups(device)), -(-count // shape["TOKENS"]))


def _shape(device: Device, rows: int, halves: int, n: int) -> dict[str, int]:
    """How much one workgroup does; no result depends on it, but for SPLIT, which is fixed per device kind.

    Software adapters (no latency to hide, costly loads) want few fat lanes; GPUs many thin ones.
    """
    tokens = 1 if n <= 2 else 4  # two rows twice are cheaper than four, two of them unused
    if device.facts.adapter_type == "CPU":
        return {"TOKENS": tokens, "ROWS": 8, "SPLIT": 1}
    return {"TOKENS": tokens, "ROWS": halves if tokens == 1 else 4, "SPLIT": 16}


def _most_groups(device: Device) -> int:
    """Cap on workgroups along the rows of W; they stride over the rest.  Each sums a norm once."""
    return 64 if device.facts.adapter_type == "CPU" else 65535
