"""A GGUF model file, memory-mapped: plain metadata values and raw tensor bytes.

The header is walked by `header.py`, which checks every count and length against the bytes that exist before
it trusts them.  The `gguf` package's own reader is the oracle in the tests and not the reader here, for two
reasons: it makes a numpy view per array element (measured: 3.9 s for a vocabulary of 49 k tokens and 18.5 s
for one of 262 k, where the walk takes 0.1 s and 0.3 s), and it does not exist in the browser.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from webkv.errors import ModelError
from webkv.models.header import Header, TensorInfo, Truncated, parse_header

Progress = Callable[[int, int], None]
PathLike = str | os.PathLike[str]
Source = PathLike | Sequence[PathLike] | bytes | bytearray | memoryview

DIGEST_CHUNK = 4 << 20


class _Parts:
    """Byte buffers read as if they were one; a range inside one part is returned without a copy."""

    def __init__(self, views: list[memoryview]) -> None:
        self.views = views
        self.starts = [0]
        for view in views:
            self.starts.append(self.starts[-1] + len(view))

    @property
    def size(self) -> int:
        return self.starts[-1]

    def read(self, start: int, size: int) -> memoryview:
        """Bytes `start .. start + size`, which must exist; copied only where they straddle two parts."""
        assert start >= 0 and start + size <= self.size
        pieces = []
        for begin, view in zip(self.starts, self.views, strict=False):
            low, high = max(start - begin, 0), min(start + size - begin, len(view))
            if low < high:
                pieces.append(view[low:high])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


@dataclass(frozen=True)
class GgufTensor:
    """One tensor as it lies in the file.

    `shape` is row-major, `(out, in)` for a matrix (GGUF order reversed); `type` is a GGML type name such
    as `"Q4_1"`; `nbytes` counts the quantised bytes, rows one after the other without padding.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int
    offset: int
    _parts: _Parts = field(repr=False, compare=False)

    @property
    def data(self) -> memoryview:
        """The raw bytes, read-only, uint8[nbytes].  Zero-copy unless the tensor straddles two part files."""
        return self._parts.read(self.offset, self.nbytes).toreadonly()


class GgufFile:
    """An open GGUF file: `metadata` maps keys to plain Python values, `tensors` names to `GgufTensor`."""

    def __init__(self, name: str, parts: _Parts, header: Header) -> None:
        self.name = name
        self.metadata: dict[str, Any] = header.metadata
        self.tensors: dict[str, GgufTensor] = {
            info.name: GgufTensor(info.name, info.shape, info.type, info.nbytes, info.offset, parts)
            for info in header.tensors
        }
        self._parts = parts

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file."""
        return self._parts.size

    def digest(self, progress: Progress | None = None) -> str:
        """SHA-256 in hex over the whole file: the identity of weights and metadata together.

        `progress(done, total)` is called in bytes, after every 4 MiB.  Part files give their whole's digest.
        """
        sha = hashlib.sha256()
        done = 0
        for view in self._parts.views:
            for low in range(0, len(view), DIGEST_CHUNK):
                chunk = view[low : low + DIGEST_CHUNK]
                sha.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, self.nbytes)
        return sha.hexdigest()


def open_gguf(source: Source) -> GgufFile:
    """Open a GGUF given by path, by the paths of part files whose concatenation it is, or by its bytes.

    Nothing is read but the header; tensor data stays on disk until `GgufTensor.data` is used.

    Raises `ModelError` in one line for a file that cannot be read, is no GGUF, has an unsupported version or
    tensor type (named), is truncated, or whose counts, lengths or offsets contradict its size.
    """
    name, views = _views(source)
    parts = _Parts(views)
    if parts.size == 0:
        raise ModelError(f"{name} is empty, expected a GGUF file")
    header = _header(name, parts)
    _check_extents(name, header.tensors, parts.size)
    return GgufFile(name, parts, header)


def _views(source: Source) -> tuple[str, list[memoryview]]:
    if isinstance(source, bytes | bytearray | memoryview):
        return "model", [memoryview(source).cast("B")]
    paths = [source] if isinstance(source, str | os.PathLike) else list(source)
    if not paths:
        raise ModelError("no model file given")
    name = Path(paths[0]).name if len(paths) == 1 else re.sub(r"\.part\d+$", "", Path(paths[0]).name)
    return name, [_map(Path(path)) for path in paths]


def _map(path: Path) -> memoryview:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ModelError(f"cannot read model file {path}: {reason}") from error


def _header(name: str, parts: _Parts) -> Header:
    """The header, taken from as few part files as hold it whole."""
    for count in range(1, len(parts.views) + 1):
        try:
            return parse_header(name, parts.read(0, parts.starts[count]))
        except Truncated:
            if count == len(parts.views):
                raise
    raise AssertionError("unreachable: the loop returns or raises")


def _check_extents(name: str, tensors: list[TensorInfo], size: int) -> None:
    """Every tensor's bytes exist and belong to it alone."""
    end, owner = 0, ""
    for info in sorted(tensors, key=lambda info: info.offset):
        if info.offset < end:
            raise ModelError(f"{name} is damaged: tensors {owner} and {info.name} overlap")
        end, owner = info.offset + info.nbytes, info.name
        if end > size:
            raise ModelError(f"{name} is truncated: tensor {owner} ends at byte {end}, the file has {size}")
