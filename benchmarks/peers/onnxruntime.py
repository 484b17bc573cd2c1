"""ONNX Runtime's WebGPU GroupQueryAttention, where its Dawn and webkv see the same adapter: SwiftShader."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.attention import Case, Pages
from webkv.gpu import Device

NAME = "ONNX Runtime"


def supports(device: Device, case: Case) -> bool:
    """Whether the peer is installed and can run the case on the adapter that webkv uses."""
    return False


class GroupQueryAttention:
    def __init__(self, host: Pages) -> None: ...
    def once(self) -> bytes:
        return b""
    async def run(self, repeats: int) -> None: ...
