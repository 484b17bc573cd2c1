"""A lock on a file that the operating system frees when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path

from webkv.errors import StoreBusyError, StoreError

_HOLDER_BYTES = 64
# Windows locks bytes, and nobody else may read a locked one: lock a byte behind the holder's name.
_LOCK_BYTE = 1 << 20


class FileLock:
    """Holds `name` in `folder` from `acquire` to `release`; never waits.

    Uses `flock` (POSIX) or `msvcrt.locking` (Windows).  The file says which process holds it; it is removed
    on release, and one left by a killed process is simply taken over.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.path = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.lock"
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock.  Raises `StoreBusyError` naming the holder's process id."""
        assert self._file is None, "acquired twice"
        while True:
            file = self._open()
            if not _try_lock(file):
                holder = os.pread(file, _HOLDER_BYTES, 0) if hasattr(os, "pread") else b""
                os.close(file)
                who = f"process {holder.decode(errors='replace').strip()}" if holder else "another process"
                raise StoreBusyError(f"{self.name} is in use by {who}")
            if _is_at(file, self.path):
                break
            os.close(file)  # its holder removed the file between our open and our lock
        with contextlib.suppress(OSError):  # on a full disk it is locked all the same, but says not by whom
            os.truncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())
        self._file = file

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"cannot make the lock file {self.path}: {error.strerror}") from error

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._file is None:
            return
        file, self._file = self._file, None
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: int) -> bool:
        os.lseek(file, _LOCK_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(file, 0, os.SEEK_SET)
        return True
else:

    def _try_lock(file: int) -> bool:
        try:
            import fcntl
        except ImportError as error:  # a browser: sessions there are locked by its own store
            raise StoreError("this platform has no file locks") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
