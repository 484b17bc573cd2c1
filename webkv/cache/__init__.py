"""Which page holds which token: a paged KV cache with TVM's operations, on one GPU device."""

from __future__ import annotations

from webkv.cache.config import CacheConfig, LayerGroup
from webkv.cache.exchange import Exported, export_sequence, import_sequence
from webkv.cache.paged import PagedKVCache
from webkv.cache.remap import Share, copy_sequence, copy_shares
from webkv.cache.rope import RopeConfig

__all__ = [
    "CacheConfig",
    "Exported",
    "LayerGroup",
    "PagedKVCache",
    "RopeConfig",
    "Share",
    "copy_sequence",
    "copy_shares",
    "export_sequence",
    "import_sequence",
]
