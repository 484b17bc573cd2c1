"""RMSNorm (Zhang & Sennrich 2019) of its own, where no matmul can take it in.

`step`: uniform u32x4 with the number of rows n first.
"""

from __future__ import annotations

import wgpu

from webkv.gpu import Batch
from webkv.kernels.rows import Rows, Stream
from webkv.kernels.shape import Binding

_RMS = {"rms": "row_rms"}


def rms_norm(
    batch: Batch, *, x: Rows, weight: wgpu.GPUBuffer, y: Rows, eps: float, step: Binding, n: int
) -> None:
    """y = x / sqrt(mean(x^2) + eps) * weight for `n` rows; `weight[cols]` f32."""
    assert x.cols == y.cols
    kernel = batch.device.kernel("rms_norm", {"K": x.cols, "EPS": eps}, _RMS)
    batch.dispatch(kernel, kernel.bind(step, x.storage, weight, y.storage), n)


def norm_add(
    batch: Batch,
    *,
    x: Rows,
    weight: wgpu.GPUBuffer,
    stream: Stream,
    gain: wgpu.GPUBuffer,
    eps: float,
    step: Binding,
    n: int,
) -> None:
    """Add rms_norm(x) to the stream; its scaled half becomes the sum times the next norm's weight.

    `weight[cols]`, `gain[cols]` f32: the weights of this norm and of the next one.
    """
    assert x.cols == stream.both.cols
    constants = {"K": x.cols, "EPS": eps, "SCALED": stream.rows * stream.both.cols}
    kernel = batch.device.kernel("norm_add", constants, _RMS)
    batch.dispatch(kernel, kernel.bind(step, x.storage, weight, gain, stream.both.storage), n)


def head_norm(
    batch: Batch,
    *,
    rows: Rows,
    weights: wgpu.GPUBuffer,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    eps: float,
    step: Binding,
    n: int,
) -> None:
    """Norm each query and key head of `n` fused rows in place (QK-norm, Henry et al. 2020).

    `rows[n]` start with `[q_heads][head_dim] | [kv_heads][head_dim]`; the rest of a row stays.
    `weights[2][head_dim]` f32: the queries', then the keys'.
    """
    heads = q_heads + kv_heads
    assert heads * head_dim <= rows.cols
    constants = {"K": head_dim, "EPS": eps, "STRIDE": rows.cols, "Q_HEADS": q_heads}
    kernel = batch.device.kernel("head_norm", constants, _RMS)
    batch.dispatch(kernel, kernel.bind(step, weights, rows.storage), heads, n)
