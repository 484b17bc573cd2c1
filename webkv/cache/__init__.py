"""Which page holds which token: a paged KV cache with TVM's operations, on one GPU device."""

from __future__ import annotations

from webkv.cache.config import CacheConfig, LayerGroup
from webkv.cache.paged import PagedKVCache
from webkv.cache.rope import RopeConfig

__all__ = ["CacheConfig", "LayerGroup", "PagedKVCache", "RopeConfig"]
