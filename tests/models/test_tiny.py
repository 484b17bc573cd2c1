"""The tiny models that other tests run: the same bytes every time, small, and with every weight type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import write_tiny_gemma3, write_tiny_llama
from webkv.models.architectures import read_config
from webkv.models.gguf import open_gguf
from webkv.models.header import TENSOR_TYPES


@pytest.mark.parametrize("write", [write_tiny_llama, write_tiny_gemma3])
def test_bytes_follow_from_the_seed(tmp_path: Path, write: Any) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write(tmp_path / name, seed=seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert len(a) < 2**19


def test_every_weight_type_occurs(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "llama.gguf")
    write_tiny_gemma3(tmp_path / "gemma3.gguf")
    files = [open_gguf(tmp_path / name) for name in ("llama.gguf", "gemma3.gguf")]
    found = {tensor.type for file in files for tensor in file.tensors.values()}
    assert found == {name for name, _, _ in TENSOR_TYPES.values()}


def test_sizes_can_be_chosen(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "llama.gguf", layers=1, d_model=64, heads=4, kv_heads=4, context=128)
    config = read_config(open_gguf(tmp_path / "llama.gguf"))
    assert (config.n_layers, config.d_model, config.head_dim, config.context) == (1, 64, 16, 128)
    write_tiny_gemma3(tmp_path / "gemma3.gguf", layers=7, window=8)
    assert read_config(open_gguf(tmp_path / "gemma3.gguf")).windows == (8, 8, 8, 8, 8, None, 8)
