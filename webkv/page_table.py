"""What every page of a cache is used for, as the chat page draws it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webkv.load import Loaded
from webkv.resume import Chat


def page_table(loaded: Loaded, chats: Sequence[Chat]) -> list[dict[str, Any]]:
    """Per layer group: its pages as text, one character each, and what the shown sequence holds.

    `.` free, `1` held and not stored, `2` held and stored, `3` shared by sequences, `4` the page that is
    being filled.  `left` counts pages of the shown sequence that its window has left behind.
    """
    manager = loaded.engine.cache.manager
    told = []
    for at, (group, pool) in enumerate(zip(manager.groups, manager.pools, strict=True)):
        codes = bytearray(b"." * pool.num_pages)
        left = 0
        for chat in chats:
            found = manager.sequences[chat.conversation.id]
            held = found.pages[at]
            left = held.first_block
            stored = chat.session.stored
            for block, page in enumerate(held.view.tolist(), held.first_block):
                codes[page] = ord("2" if (group.name, block) in stored else "1")
                if pool.refs(page) > 1:
                    codes[page] = ord("3")
                elif (block + 1) * manager.page_tokens > found.length:
                    codes[page] = ord("4")
        told.append({"name": group.name, "window": group.window, "pages": codes.decode(), "left": left})
    return told
