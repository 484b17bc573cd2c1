"""Token ids to the first activations."""

from __future__ import annotations

import wgpu

from webkv.gpu import Batch
from webkv.kernels.planes import planes_import
from webkv.kernels.quant import BLOCK, Weight
from webkv.kernels.rows import Stream
from webkv.kernels.shape import Binding

_LANES = 32


def embed(
    batch: Batch,
    *,
    ids: Binding,
    table: Weight,
    gain: wgpu.GPUBuffer,
    stream: Stream,
    step: Binding,
    n: int,
    scale: float = 1.0,
) -> None:
    """stream[t] = scale * table[ids[t]] for `n` rows, and times `gain[cols]`, the first norm's weight.

    `ids[n]` u32, each below the table's rows.  `step`: uniform u32x4, n first.
    """
    stride = stream.rows * stream.both.cols
    imports = {"planes": planes_import(batch.device), "codec": f"quant_{table.codec}"}
    for part in table.parts:
        sizes = {"K": table.cols, "N": part.rows, "FIRST": part.first, "SCALE": scale, "SCALED": stride}
        kernel = batch.device.kernel("embed", sizes, imports)
        group = kernel.bind(step, ids, gain, stream.both.storage, *part.planes)
        batch.dispatch(kernel, group, -(-table.cols // (BLOCK * _LANES)), n)
