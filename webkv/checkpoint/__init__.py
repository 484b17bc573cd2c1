"""What survives: sessions, their journal and pages, and the stores that keep them."""

from __future__ import annotations

from webkv.checkpoint.sqlite import SqliteStore
from webkv.checkpoint.stores import MemoryStore, Store, default_path

__all__ = ["MemoryStore", "SqliteStore", "Store", "default_path"]
