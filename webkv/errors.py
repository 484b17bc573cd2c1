"""Every error that webkv raises at its border, in one tree.

::

    WebkvError
    ├── LayoutError            a page layout that cannot be declared or planned
    ├── DeviceError            no adapter, a limit too small, a shader that is refused
    │   └── DeviceLostError    the device went away; what it held is gone
    ├── CacheError             a cache operation that is refused; the cache is unchanged
    │   └── CacheFullError     too few free pages (says needed and available)
    ├── ModelError             a model file that is damaged or not supported
    ├── PromptError            a request the model cannot take
    ├── SiteError              the files of the browser page cannot be had or served
    ├── StoreError             the store failed; the last committed state is whole
    │   ├── StoreFullError     no room (says how many bytes are needed)
    │   └── StoreBusyError     another process holds the lock
    └── CheckpointError        a record that does not fit this cache or model
        ├── DamageError        bytes that fail their digest or break contiguity
        └── IdentityError      made by another model, tokenizer, rope or layout (names the field)

Internal mistakes are `assert`s, never one of these.
"""

from __future__ import annotations


class WebkvError(Exception):
    """Base of all errors meant for a caller of webkv."""


class LayoutError(WebkvError):
    """A page layout is inconsistent, or no copy plan between two layouts exists."""


class DeviceError(WebkvError):
    """No usable adapter, a limit that is too small, or a shader the device refuses."""


class DeviceLostError(DeviceError):
    """The GPU device was lost; its buffers are gone and a new device is needed."""


class CacheError(WebkvError):
    """A cache operation was refused; nothing changed."""


class CacheFullError(CacheError):
    """The page pool has too few free pages.

    Attributes: `needed` and `available`, both in pages of the named layer group.
    """

    def __init__(self, needed: int, available: int, group: str = "") -> None:
        where = f" of group {group!r}" if group else ""
        super().__init__(f"KV cache is full: {needed} free pages{where} needed, {available} available")
        self.needed = needed
        self.available = available
        self.group = group


class ModelError(WebkvError):
    """A model file is damaged, truncated, or needs something that is not supported."""


class PromptError(WebkvError):
    """A request does not fit the model, such as a prompt longer than the context."""


class SiteError(WebkvError):
    """A file that the browser page needs cannot be fetched, built or served."""


class StoreError(WebkvError):
    """The store could not do an operation; the last committed state is whole."""


class StoreFullError(StoreError):
    """The store has no room.  `needed` is in bytes, or None where the store cannot tell."""

    def __init__(self, message: str, needed: int | None = None) -> None:
        super().__init__(message)
        self.needed = needed


class StoreBusyError(StoreError):
    """Another process or tab holds the session."""


class CheckpointError(WebkvError):
    """Checkpoint data is refused; neither cache nor store changed."""


class DamageError(CheckpointError):
    """Stored bytes fail their digest, or records are missing, doubled or out of order."""


class IdentityError(CheckpointError):
    """A checkpoint was made by something else.

    Attributes: `field`, `found`, `expected`.
    """

    def __init__(self, field: str, found: object, expected: object) -> None:
        super().__init__(f"checkpoint is of another {field}: found {found!r}, expected {expected!r}")
        self.field = field
        self.found = found
        self.expected = expected
