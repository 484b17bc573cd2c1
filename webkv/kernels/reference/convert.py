"""Twin of the kernel that changes dtypes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from webkv.kernels.reference.pages import PAGE_DTYPES, Floats, Words, quantize
from webkv.layout import CONVERTERS


def convert_runs(src: Words, dst: Words, runs: NDArray[np.uint32], converter: str) -> Words:
    """`dst` after each run (first src element, first dst element, elements, scale word)."""
    source, target = CONVERTERS[converter]
    made = dst.copy()
    for start, to, count, scale in runs.reshape(-1, 4).astype(np.int64):
        values: Floats = src.view(PAGE_DTYPES[source])[start : start + count].astype(np.float32)
        if source == "int8":
            values = values * src.view(np.float32)[scale]
        if target == "int8":
            values, made.view(np.float32)[scale : scale + 1] = quantize(values)
        if target == "f16":
            values = np.clip(values, -65504, 65504)
        made.view(PAGE_DTYPES[target])[to : to + count] = values
    return made
