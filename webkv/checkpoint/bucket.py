"""What the object store needs of a bucket, through obstore, with our errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from webkv.errors import StoreError

_MOST_IN_DELETE = 1000  # as S3 allows

T = TypeVar("T")


class Bucket:
    """The objects of an obstore store by path.  Every failure is a `StoreError`."""

    def __init__(self, objects: Any) -> None:
        self.objects = objects

    def __str__(self) -> str:
        return str(self.objects)

    async def create(self, path: str, data: bytes, replacing: str | None = None) -> str:
        """Write an object that does not exist, or has the tag `replacing`; its tag, or "" if refused."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if replacing is None else {"e_tag": replacing}
        try:
            made = await self.objects.put_async(path, data, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            return ""
        except Exception as error:
            raise self._named(error) from error
        return str(made["e_tag"])

    async def put(self, path: str, data: bytes) -> None:
        """Write an object, whether there is one or not."""
        await self._do(self.objects.put_async(path, bytes(data)))

    async def fetch(self, path: str) -> bytes | None:
        """An object's bytes, None if there is none."""
        found = await self.fetch_tagged(path)
        return None if found is None else found[0]

    async def fetch_tagged(self, path: str) -> tuple[bytes, str] | None:
        """An object's bytes and tag, None if there is none."""
        found = await self._do(_optional(self.objects.get_async(path)))
        if found is None:
            return None
        return bytes(await self._do(found.bytes_async())), str(found.meta["e_tag"])

    async def list(self, prefix: str, after: str = "") -> list[str]:
        """The paths under `prefix`, sorted, only those after `after`."""
        stream = self.objects.list(prefix, offset=after or None)
        return sorted(item["path"] for item in await self._do(stream.collect_async()))

    async def remove(self, paths: Iterable[str]) -> None:
        """Delete objects that nothing refers to; one that stays does no harm."""
        gone = [*paths]
        with contextlib.suppress(StoreError):
            for start in range(0, len(gone), _MOST_IN_DELETE):
                await self._do(self.objects.delete_async(gone[start : start + _MOST_IN_DELETE]))

    async def close(self) -> None:
        """Let obstore's threads finish; call it before the process ends."""
        # They touch Python objects a moment longer than a call takes; an interpreter that exits meanwhile is
        # aborted (PyO3/pyo3-async-runtimes#40).
        await asyncio.sleep(0.1)

    async def _do(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except Exception as error:
            raise self._named(error) from error

    def _named(self, error: Exception) -> StoreError:
        said = str(error).strip() or type(error).__name__
        return StoreError(f"{self.objects}: {said.splitlines()[0]}")


async def _optional(call: Awaitable[T]) -> T | None:
    try:
        return await call
    except FileNotFoundError:
        return None
