"""Chats taken up by a cache with another page layout, another dtype, or by another model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import chats
from tests.chats import HOT, finished
from tests.models.tiny import Kind, write_tiny_gemma3, write_tiny_llama
from webkv.cache import PagedKVCache
from webkv.checkpoint import MemoryStore, sessions
from webkv.checkpoint.prefix import blob_key
from webkv.checkpoint.refs import page_refs
from webkv.engine import Engine
from webkv.errors import IdentityError
from webkv.layout import Held, PageLayout, plan
from webkv.load import Loaded, identity_of
from webkv.resume import Chat

PROMPT = "the quick brown fox jumps over the lazy dog and runs into the dark forest of the night"
TOKENS = 40
WRITERS = {"llama": partial(write_tiny_llama, d_ff=96, kind=Kind.Q8_0), "gemma3": write_tiny_gemma3}


async def tiny(folder: Path, kind: str = "llama", **options: Any) -> Loaded:
    path = folder / f"{kind}.gguf"
    if not path.exists():
        WRITERS[kind](path)
    return await chats.tiny(path, **options)


def rearranged(loaded: Loaded, **layout: Any) -> Loaded:
    """The same model on a cache whose pages are laid out in another way."""
    engine, theirs = loaded.engine, loaded.identity
    settings = replace(engine.cache.config, **layout)
    cache = PagedKVCache(engine.device, settings)
    identity = identity_of(settings, theirs.weights, theirs.tokenizer, theirs.namespace)
    return replace(loaded, engine=Engine(engine.model, cache, engine.tokenizer, 256), identity=identity)


async def other(folder: Path, kind: str, layout: str) -> Loaded:
    if layout.startswith("pages of"):
        return await tiny(folder, kind, page_tokens=int(layout.split()[-1]))
    return rearranged(await tiny(folder, kind), **{layout.split()[0]: layout.split()[1]})


async def begun(loaded: Loaded, store: MemoryStore, id: str = "s", drawn: int = TOKENS) -> Chat:
    """A chat with its answer's first `drawn` tokens."""
    chat = await Chat.begin(loaded, store, prompt=PROMPT, params=HOT, max_tokens=TOKENS, id=id)
    events = chat.generate()
    for _ in range(drawn):
        await anext(events)
    await events.aclose()
    return chat


LAYOUTS = [
    ("llama", "pages of 8"), ("llama", "pages of 1"), ("llama", "packing packed"), ("gemma3", "pages of 8"),
    ("gemma3", "pages of 32"), ("gemma3", "order token_major"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
async def test_pages_of_another_layout_are_converted_and_not_computed(
    tmp_path: Path, kind: str, layout: str
) -> None:
    store, old, new = MemoryStore(), await tiny(tmp_path, kind), await other(tmp_path, kind, layout)
    whole = await finished(await begun(new, MemoryStore()))
    await (await begun(old, store, drawn=30)).close()
    chat = await Chat.resume(new, store, "s")
    size = new.identity.page_tokens
    assert chat.recovery.pages > 0
    assert chat.recovery.how in {"kv", *(f"kv+replay({n})" for n in range(1, size + 16))}
    assert "converted exactly" in str(chat.recovery)
    assert await finished(chat) == whole
    again = await Chat.resume(new, store, "s")  # it is a session of the new layout now
    assert (again.recovery.differs, again.recovery.tokens) == ("", len(whole[0]) - 1)
    await again.close()


async def test_a_windows_larger_pages_begin_before_what_is_stored_and_are_computed(tmp_path: Path) -> None:
    store, old = MemoryStore(), await tiny(tmp_path, "gemma3")
    new = await tiny(tmp_path, "gemma3", page_tokens=32)
    whole = await finished(await begun(new, MemoryStore()))
    await (await begun(old, store, drawn=25)).close()
    chat = await Chat.resume(new, store, "s")
    assert (chat.recovery.how[:7], chat.recovery.pages) == ("replay(", 0)
    assert "computed anew, the stored KV being of another page_tokens" in str(chat.recovery)
    assert await finished(chat) == whole


async def test_converted_pages_hold_the_stored_bytes(tmp_path: Path) -> None:
    store, old, new = MemoryStore(), await tiny(tmp_path), await tiny(tmp_path, page_tokens=8)
    chat = await begun(old, store, drawn=30)
    await chat.close()
    stored = await blobs(store)
    await (await Chat.resume(new, store, "s")).close()
    made = await blobs(store)
    assert len(made) >= 2 * len(stored) >= 8
    layouts = [loaded.engine.cache.layout(loaded.identity.groups[0].name) for loaded in (old, new)]
    for run in plan([(layouts[0], Held())], [(layouts[1], Held())], (0, 16 * len(stored))):
        assert (
            slot(made[run.dst_page], layouts[1], run.dst_pool)[run.dst_offset :][: run.nbytes]
            == slot(stored[run.src_page], layouts[0], run.src_pool)[run.src_offset :][: run.nbytes]
        )


async def blobs(store: MemoryStore) -> list[bytes]:
    """The stored bytes of the session's pages, in order."""
    refs, _ = await page_refs(store, "s")
    return [store._data[blob_key(ref.digest)] for _, ref in sorted(refs.items())]


def slot(page: bytes, layout: PageLayout, pool: int) -> bytes:
    start = sum(layout.slot_bytes[:pool])
    return page[start : start + layout.slot_bytes[pool]]


async def test_a_crash_while_pages_are_converted_costs_time_only(tmp_path: Path) -> None:
    old, new, store = await tiny(tmp_path), await tiny(tmp_path, page_tokens=8), MemoryStore()
    whole = await finished(await begun(new, MemoryStore()))
    await (await begun(old, store, drawn=30)).close()
    left: list[MemoryStore] = []

    class Watched(MemoryStore):
        async def commit(self, *arguments: Any) -> None:
            await super().commit(*arguments)
            left.append(MemoryStore())
            await left[-1].commit(dict(await self.items("")))

    watched = Watched()
    await watched.commit(dict(await store.items("")))
    await (await Chat.resume(new, watched, "s")).close()
    assert len(left) >= 3
    for at in left:
        assert await finished(await Chat.resume(new, at, "s")) == whole


async def test_another_dtype_is_refused_by_field_and_computed_anew_when_asked(tmp_path: Path) -> None:
    store, old, new = MemoryStore(), await tiny(tmp_path), await tiny(tmp_path, page_dtype="f32")
    chat = await begun(old, store, drawn=20)
    drawn = chat.answer
    await chat.close()
    before = await store.items("")
    with pytest.raises(IdentityError, match=r"layout dtype of layer group '.*': found 'f16', expected 'f32'"):
        await Chat.resume(new, store, "s")
    assert await store.items("") == before
    again = await Chat.resume(new, store, "s", recompute=True)
    assert (again.recovery.how, again.recovery.pages) == ("new", 0)
    assert "computed anew, the stored KV being of another layout_id" in str(again.recovery)
    tokens, pages = await finished(again)
    assert again.answer[: len(drawn)] == drawn
    assert len(again.answer) == TOKENS
    third = await Chat.resume(new, store, "s")
    assert third.recovery.differs == ""
    assert await finished(third) == (tokens, pages)


@pytest.mark.parametrize("cut", [0, 70, 90])
async def test_other_weights_go_on_from_the_tokens_though_cut_off_half_way(tmp_path: Path, cut: int) -> None:
    write_tiny_llama(tmp_path / "other.gguf", seed=1, d_ff=96, kind=Kind.Q8_0)
    other = await chats.tiny(tmp_path / "other.gguf", chunk=16)
    old, store = await tiny(tmp_path), MemoryStore()
    chat = await begun(old, store, drawn=30)
    drawn = chat.answer
    await chat.close()
    with pytest.raises(IdentityError, match="another weights"):
        await Chat.resume(other, store, "s")
    again = await Chat.resume(other, store, "s", recompute=True)
    if cut:  # the process dies after some chunks
        await other.engine.prefill(again.conversation, cut)
        again.session.computed(again.conversation.cached)
        await again.close()
        again = await Chat.resume(other, store, "s")
        assert again.recovery.tokens == cut
    tokens, pages = await finished(again)
    assert again.answer[: len(drawn)] == drawn
    assert len(again.answer) == TOKENS
    third = await Chat.resume(other, store, "s")
    assert await finished(third) == (tokens, pages)


async def test_a_branch_and_the_next_turn_can_be_converted_too(tmp_path: Path) -> None:
    old, new, store = await tiny(tmp_path), await tiny(tmp_path, page_tokens=8), MemoryStore()
    chat = await Chat.begin(old, store, messages=[{"role": "user", "content": PROMPT}], max_tokens=30, id="s")
    async for _ in chat.generate():
        pass
    await (await chat.branch(80, id="b")).close()
    await chat.close()
    branch = await Chat.resume(new, store, "b")
    assert branch.recovery.pages == 9
    await branch.close()
    again = await Chat.resume(new, store, "s")
    await again.say("go on", max_tokens=10)
    whole = await finished(again)
    assert await finished(await Chat.resume(new, store, "s")) == whole


async def test_the_list_says_nothing_of_layouts_and_no_row_repeats_them(tmp_path: Path) -> None:
    store = MemoryStore()
    await (await begun(await tiny(tmp_path), store)).close()
    (summary,) = await sessions(store)
    assert "layouts" not in summary.facts
    holding = [key for key, value in await store.items("") if b"slot_bytes" in value]
    assert holding == ["s/s/j/0000000000"]
    assert len(store._data[holding[0]]) < 2000
