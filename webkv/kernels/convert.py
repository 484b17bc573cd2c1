"""Changing the dtype of runs of page elements on the way from one buffer to another."""

from __future__ import annotations

from webkv.gpu import Batch
from webkv.kernels.shape import ELEMENTS_PER_WORD, Binding
from webkv.layout import CONVERTERS

_LANES = 32


def convert_runs(
    batch: Batch, *, src: Binding, dst: Binding, runs: Binding, count: int, max_elements: int, converter: str
) -> None:
    """Write runs of `src` elements to `dst` in another dtype, rounded as `append_kv` rounds.

    `converter`: a name of `webkv.layout.CONVERTERS`.  `runs[count][4]` u32: (first element in src, first
    element in dst, elements, scale word), at most `max_elements` each and all multiples of 4.  If one side is
    int8 a run is one row, and its f32 scale is at that u32 word of the int8 side's buffer: read there, or
    written as absmax / 127.  f32 to f16 rounds to nearest even and saturates; f16 to f32 is exact.  Runs must
    not overlap in `dst`; `src` and `dst` are different buffers.
    """
    source, target = CONVERTERS[converter]
    constants = {"FROM_PER_WORD": ELEMENTS_PER_WORD[source], "LANES": _LANES}
    imports = {"encode": f"encode_{target}", "store": f"page_store_{target}"}
    kernel = batch.device.kernel("convert_runs", constants, imports)
    group = kernel.bind(src, dst, runs)
    if target == "int8":
        batch.dispatch(kernel, group, -(-count // _LANES))
    else:
        batch.dispatch(kernel, group, -(-max_elements // (4 * _LANES)), count)
