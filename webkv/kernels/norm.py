"""RMSNorm of its own, where nothing can be fused to it."""

from __future__ import annotations

import wgpu

from webkv.gpu import Batch
from webkv.kernels.rows import Rows
from webkv.kernels.shape import Binding


def rms_norm(
    batch: Batch, *, x: Rows, weight: wgpu.GPUBuffer, y: Rows, eps: float, step: Binding, n: int
) -> None:
    """y = x / sqrt(mean(x^2) + eps) * weight for `n` rows (Zhang & Sennrich 2019).

    `weight[cols]` f32.  `step`: uniform u32x4, n first.
    """
    assert x.cols == y.cols
    kernel = batch.device.kernel("rms_norm", {"K": x.cols, "EPS": eps})
    batch.dispatch(kernel, kernel.bind(step, x.storage, weight, y.storage), n)
