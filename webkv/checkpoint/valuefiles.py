"""Large values as files beside a database, each written once; the database names them.

A database would write a page's bytes twice, to its log and then to its file.  A file is written before the
transaction that names it commits and is never changed; one that no transaction names any more is removed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


class ValueFiles:
    """The files in `folder`, made with modes 0700 and 0600."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, values: Mapping[str, bytes], sync: bool) -> dict[str, str]:
        """A new file for each value: their names, by key.  With `sync` they survive a power cut.

        Raises `OSError`, having left none.
        """
        names: dict[str, str] = {}
        if not values:
            return names
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            for key, data in values.items():
                names[key] = secrets.token_hex(16)
                self._write(names[key], data, sync)
            if sync and os.name == "posix":
                _sync_folder(self.folder)
        except BaseException:
            self.remove(names.values())
            raise
        return names

    def _write(self, name: str, data: bytes, sync: bool) -> None:
        file = os.open(
            self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600
        )
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            if sync:
                os.fsync(file)
        finally:
            os.close(file)

    def read(self, name: str, size: int) -> bytes | None:
        """A file's bytes; None if it is gone or, after a power cut, not as long as it was."""
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        return data if len(data) == size else None

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; one that stays is swept later."""
        for name in names:
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()

    def sweep(self, kept: Iterable[str]) -> None:
        """Remove all files but `kept`: those that a killed process had not named yet, or not removed."""
        self.remove(set(self._names()) - set(kept))

    def _names(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError):
            yield from os.listdir(self.folder)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
