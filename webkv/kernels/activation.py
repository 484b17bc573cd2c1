"""Elementwise kernels over rows.  `step`: uniform u32x4 with the number of rows n first."""

from __future__ import annotations

from webkv.gpu import Batch
from webkv.kernels.rows import Rows, Stream
from webkv.kernels.shape import Binding

_LANES = 64


def silu_mul(batch: Batch, *, gate: Rows, up: Rows, y: Rows, step: Binding, n: int) -> None:
    """y = silu(gate) * up for `n` rows (SwiGLU, Shazeer 2020)."""
    _gated_mul(batch, "silu", gate, up, y, step, n)


def gelu_mul(batch: Batch, *, gate: Rows, up: Rows, y: Rows, step: Binding, n: int) -> None:
    """y = gelu(gate) * up for `n` rows, in GELU's tanh form."""
    _gated_mul(batch, "gelu", gate, up, y, step, n)


def add(batch: Batch, *, x: Rows, y: Rows, step: Binding, n: int) -> None:
    """y = y + x for `n` rows."""
    kernel = batch.device.kernel("add", {"COLS": y.cols})
    batch.dispatch(kernel, kernel.bind(step, x.storage, y.storage), _groups(y.cols), n)


def gather_rows(batch: Batch, *, x: Stream, y: Stream, indices: Binding, step: Binding, n: int) -> None:
    """y[t] = x[indices[t]] for `n` rows t, both halves of the streams.  `indices[n]` u32."""
    constants = {"COLS": y.both.cols, "X_HALF": x.rows, "Y_HALF": y.rows}
    kernel = batch.device.kernel("gather_rows", constants)
    group = kernel.bind(step, indices, x.both.storage, y.both.storage)
    batch.dispatch(kernel, group, _groups(y.both.cols), n, 2)


def _gated_mul(batch: Batch, activation: str, gate: Rows, up: Rows, y: Rows, step: Binding, n: int) -> None:
    kernel = batch.device.kernel("gated_mul", {"COLS": y.cols}, {"activation": activation})
    group = kernel.bind(step, gate.storage, up.storage, y.storage)
    batch.dispatch(kernel, group, _groups(y.cols), n)


def _groups(cols: int) -> int:
    assert cols % 4 == 0
    return -(-cols // (4 * _LANES))
