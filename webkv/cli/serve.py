"""`webkv serve`: the chat page on this machine."""

from __future__ import annotations

import asyncio
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from webkv.cli.console import messages
from webkv.errors import ModelError
from webkv.models.locate import PACKAGED, locate
from webkv.serve import Pages, open_server
from webkv.site import prepare


def models_of(names: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """The files of each model, by the name the page shows; without names, of every installed one."""
    found = {}
    for name in names or PACKAGED:
        try:
            files = locate(name)
        except ModelError:
            if names:
                raise
            continue
        found[re.sub(r"\.part\d+$", "", files[0].name)] = files
    return found


async def serve(arguments: Namespace) -> int:
    """Serve the page until Ctrl-C, or write it to a folder."""
    source = arguments.pyodide or ("local" if arguments.out is None else "cdn")
    site = prepare(lambda line: messages.print(line), cdn=source == "cdn")
    if arguments.out is not None:
        site.write(arguments.out)
        messages.print(f"wrote the page to {arguments.out}")
        return 0
    pages = Pages(site, models_of(arguments.model))
    server = open_server(pages, arguments.host, arguments.port)
    messages.print(f"webkv's page is at http://localhost:{server.server_port}/ (Ctrl-C stops it)")
    try:
        await asyncio.to_thread(server.serve_forever)
    finally:
        server.shutdown()
        server.server_close()
    return 0
