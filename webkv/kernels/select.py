"""Choosing from rows of logits on the GPU, so that a token's read-back is bytes and not the vocabulary."""

from __future__ import annotations

import wgpu

from webkv.gpu import Batch

BLOCK = 64
MOST = 256
"""The largest k of `top_k`: its list of candidates lives in workgroup memory."""


def blocks_bytes(rows: int, vocab: int) -> int:
    """Bytes of the `blocks` scratch that `argmax` and `top_k` need."""
    return rows * -(-vocab // BLOCK) * 8


def picked_bytes(rows: int, k: int) -> int:
    """Bytes of `top_k`'s result."""
    return rows * (1 + 2 * k) * 4


def argmax(
    batch: Batch,
    *,
    logits: wgpu.GPUBuffer,
    blocks: wgpu.GPUBuffer,
    ids: wgpu.GPUBuffer,
    rows: int,
    vocab: int,
) -> None:
    """ids[row] u32: the index of the largest of `logits[rows][vocab]` f32, the lowest among equals.

    A NaN counts as -inf.  `blocks`: scratch of `blocks_bytes`.
    """
    _block_max(batch, logits, blocks, rows, vocab, with_sum=False)
    kernel = batch.device.kernel("argmax", {"N": vocab}, {"key": "key"})
    batch.dispatch(kernel, kernel.bind(logits, blocks, ids), rows)


def top_k(
    batch: Batch,
    *,
    logits: wgpu.GPUBuffer,
    blocks: wgpu.GPUBuffer,
    picked: wgpu.GPUBuffer,
    rows: int,
    vocab: int,
    k: int,
) -> None:
    """The `k` largest of each row of `logits[rows][vocab]` f32, the lower index first among equals.

    `picked[rows]`: records of u32: the bits of the whole row's logsumexp (natural base), `k` ids, the bits of
    `k` logits.  `k` is at most `MOST` and `vocab`; a NaN counts as -inf.  `blocks`: scratch, `blocks_bytes`.
    """
    assert 1 <= k <= min(MOST, vocab), f"top_k of {k} in {vocab}"
    _block_max(batch, logits, blocks, rows, vocab, with_sum=True)
    kernel = batch.device.kernel(
        "top_k", {"N": vocab, "TOP": k}, {"key": "key", "logsumexp": "row_logsumexp"}
    )
    batch.dispatch(kernel, kernel.bind(logits, blocks, picked), rows)


def _block_max(
    batch: Batch, logits: wgpu.GPUBuffer, blocks: wgpu.GPUBuffer, rows: int, vocab: int, *, with_sum: bool
) -> None:
    kernel = batch.device.kernel("block_max", {"N": vocab, "SUM": with_sum}, {"key": "key"})
    batch.dispatch(kernel, kernel.bind(logits, blocks), -(-vocab // (BLOCK * 64)), rows)
