"""Run in a process of its own: drives the scripted session on a SQLite file, printing what it shows."""

from __future__ import annotations

import asyncio
import sys

from tests.checkpoint.faults import Script
from tests.checkpoint.toy import identity
from webkv.checkpoint import Options, SqliteStore


class Printed(dict[int, int]):
    """Shown tokens go to stdout at once, as a user would see them."""

    def __init__(self, id: str) -> None:
        self.id = id

    def __setitem__(self, position: int, token: int) -> None:
        print(self.id, position, token, flush=True)


async def main(path: str, large: str) -> None:
    async with SqliteStore(path, large=int(large)) as store:
        script = Script(store, identity(None, 5), Options())
        script.shown = {id: Printed(id) for id in "ab"}
        await script.run()
        await script.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
