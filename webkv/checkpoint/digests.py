"""Digests of all the pages a sequence holds, the unfinished one too: how two caches are compared."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from webkv.cache import PagedKVCache
from webkv.checkpoint.identity import Identity
from webkv.checkpoint.transfer import CachePages
from webkv.layout import PageLayout


async def page_digests(cache: PagedKVCache, seq: int, identity: Identity) -> dict[str, str]:
    """SHA-256 in hex of each page's bytes over all its group's layers, by `group/block`.

    Slots that hold no token count as zeros, so that equal tokens give equal digests.
    """
    wanted = []
    for group in identity.groups:
        first, pages = cache.sequence_pages(seq, group.name)
        wanted += [(group.name, first + place) for place in range(len(pages))]
    length = cache.get_sequence_length(seq)
    digests = {}
    exported = CachePages(cache, seq, identity).export(wanted)
    for (group_name, block), data in zip(wanted, exported, strict=True):
        assert data is not None
        held = length - block * identity.page_tokens
        page = clear_unused(cache.layout(group_name), await data, held)
        digests[f"{group_name}/{block}"] = hashlib.sha256(page).hexdigest()
    return digests


def clear_unused(layout: PageLayout, data: bytes, tokens: int) -> bytes:
    """A page's bytes with the slots from `tokens` on zeroed; pools stand one after the other."""
    if tokens >= layout.page_tokens:
        return data
    cleared = bytearray(data)
    starts = [sum(layout.slot_bytes[:pool]) for pool in range(len(layout.slot_bytes))]
    for tensor in layout.tensors:
        token = tensor.axis("token")
        assert token is not None
        unused = replace(token, count=layout.page_tokens - tokens)
        axes = tuple(unused if axis is token else axis for axis in tensor.axes)
        tail = replace(tensor, offset=tensor.offset + tokens * token.stride, axes=axes)
        for start, size in tail.segments():
            at = starts[tensor.pool] + start
            cleared[at : at + size] = bytes(size)
    return bytes(cleared)
