"""Stored pages under another layout: the same values in other places, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from webkv.checkpoint import Group, Identity, MemoryStore, Session, sessions
from webkv.checkpoint.relayout import facts_of, open_relaid
from webkv.errors import IdentityError, StoreFullError
from webkv.layout import PageLayout, kv, layout_id, with_replicated

TOKENS = 75
HEADS, DIM, LAYERS = 2, 4, (0, 3)
BASE: dict[str, Any] = {"heads": HEADS, "dim": DIM, "layers": LAYERS, "layers_in_slot": 1, "dtype": "f16"}
OLD = kv(page_tokens=16, **BASE)
NEW = {
    "smaller pages": kv(page_tokens=8, **BASE),
    "larger pages": kv(page_tokens=32, **BASE),
    "pages that do not divide": kv(page_tokens=12, **BASE),
    "token major": kv(page_tokens=16, order="token_major", **BASE),
    "packed": kv(page_tokens=16, packing="packed", **BASE),
    "both layers in one slot": kv(page_tokens=16, **{**BASE, "layers_in_slot": 2}),
}


def identity(layout: PageLayout, window: int | None = None, weights: str = "w") -> Identity:
    group = Group("full", layout_id(layout), layout.page_bytes, window)
    return Identity(weights, "t", "r", (group,), layout.page_tokens)


def value(layer: int, role: str, head: int, token: int, dim: int) -> int:
    """A different number for every element."""
    return ((LAYERS.index(layer) * 2 + (role == "value")) * HEADS + head) * 4096 + token * DIM + dim


def page(layout: PageLayout, block: int) -> bytes:
    """The bytes of a page, element by element."""
    data = np.zeros(layout.page_bytes, np.uint8)
    starts = np.cumsum([0, *layout.slot_bytes])
    for tensor in layout.tensors:
        for head in range(HEADS):
            for slot in range(layout.page_tokens):
                for dim in range(DIM):
                    at = starts[tensor.pool] + tensor.address(head=head, token=slot, dim=dim)
                    number = value(tensor.layer, tensor.role, head, block * layout.page_tokens + slot, dim)
                    data[at : at + 2] = np.frombuffer(np.uint16(number).tobytes(), np.uint8)
    return data.tobytes()


class Source:
    def __init__(self, layout: PageLayout) -> None:
        self.layout = layout

    def export(self, pages: Sequence[tuple[str, int]]) -> list[Awaitable[bytes] | None]:
        async def made(block: int) -> bytes:
            return page(self.layout, block)

        return [asyncio.ensure_future(made(block)) for _, block in pages]


class Target:
    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}

    def reserve(self, tokens: int) -> None:
        self.tokens = tokens

    def write(self, group: str, block: int, data: bytes) -> None:
        self.pages[block] = data

    def seal(self) -> None: ...

    def cancel(self) -> None: ...


async def stored(window: int | None = None, facts: Mapping[str, Any] | None = None) -> MemoryStore:
    store = MemoryStore()
    declared = facts_of({"full": OLD}) if facts is None else facts
    session = await Session.create(store, identity(OLD, window), id="a", facts=declared)
    session.request({})
    session.prompt(range(TOKENS))
    session.attach(Source(OLD))  # type: ignore[arg-type]
    session.computed(70)
    await session.close()
    return store


@pytest.mark.parametrize("kind", NEW)
async def test_pages_come_back_in_the_new_layout(kind: str) -> None:
    store, layout = await stored(), NEW[kind]
    session = await open_relaid(store, "a", identity(layout), {"full": layout})
    target = Target()
    plan = await session.restore(target)
    assert plan.computed == 70
    assert plan.imported == 64 // layout.page_tokens * layout.page_tokens
    assert target.pages == {block: page(layout, block) for block in range(64 // layout.page_tokens)}
    await session.close()
    again = await Session.open(store, "a", identity(layout))
    assert (await again.plan()).imported == plan.imported
    assert again.transcript.tokens == list(range(TOKENS))


async def test_a_windowed_group_converts_what_it_still_has() -> None:
    store, layout = await stored(window=20), NEW["smaller pages"]
    session = await open_relaid(store, "a", identity(layout, 20), {"full": layout})
    target = Target()
    assert (await session.restore(target)).imported == 64
    assert target.pages == {block: page(layout, block) for block in (5, 6, 7)}
    await session.close()


async def test_a_damaged_page_is_not_converted() -> None:
    store, layout = await stored(), NEW["token major"]
    third = (await store.keys("s/a/p/full/"))[2]
    digest = next(key for key in await store.keys("r/") if key.endswith(third[-8:])).split("/")[1]
    await store.commit({f"p/{digest}": b"damaged"})
    session = await open_relaid(store, "a", identity(layout), {"full": layout})
    assert (await session.plan()).imported == 32
    assert session.page_damage == "stored pages are missing or changed"
    await session.close()


async def test_another_dtype_is_refused_and_changes_nothing() -> None:
    store, layout = await stored(), kv(page_tokens=16, **{**BASE, "dtype": "f32"})
    before = await store.items("")
    with pytest.raises(
        IdentityError, match="layout dtype of layer group 'full': found 'f16', expected 'f32'"
    ):
        await open_relaid(store, "a", identity(layout), {"full": layout})
    assert await store.items("") == before


async def test_a_page_with_a_tensor_that_was_not_stored_is_refused() -> None:
    store, layout = await stored(), with_replicated(OLD, role="index_key", dim=4)
    with pytest.raises(IdentityError, match="layout of layer group 'full'"):
        await open_relaid(store, "a", identity(layout), {"full": layout})


async def test_a_store_that_takes_no_copies_has_all_computed_anew() -> None:
    class Full(MemoryStore):
        async def commit(self, puts: Mapping[str, bytes], *rest: Any) -> None:
            if any(key.startswith("p/") for key in puts):
                raise StoreFullError("full")
            await super().commit(puts, *rest)

    layout, store = NEW["token major"], Full()
    await MemoryStore.commit(store, dict(await (await stored()).items("")))
    session = await open_relaid(store, "a", identity(layout), {"full": layout})
    assert (await session.plan()).report == "replay(70)"
    await session.close()


@pytest.mark.parametrize("kind", ["smaller pages", "both layers in one slot"])
def test_a_declaration_takes_one_layer_where_layers_are_alike(kind: str) -> None:
    many = kv(page_tokens=16, **{**BASE, "layers": tuple(range(100)), "layers_in_slot": 1})
    assert len(json.dumps(facts_of({"full": many}))) < 1000
    assert ("slot" in facts_of({"full": NEW[kind]})["layouts"]["full"]) == (kind == "smaller pages")


async def test_lists_do_not_repeat_the_declaration() -> None:
    store = await stored()
    (summary,) = await sessions(store)
    assert "layouts" not in summary.facts
    assert [key for key, data in await store.items("") if b"slot_bytes" in data] == ["s/a/j/0000000000"]


async def test_other_weights_are_refused() -> None:
    layout = NEW["packed"]
    with pytest.raises(IdentityError, match="weights"):
        await open_relaid(await stored(), "a", identity(layout, weights="x"), {"full": layout})


async def test_a_session_without_declaration_is_refused() -> None:
    layout = NEW["packed"]
    with pytest.raises(IdentityError, match="no declaration"):
        await open_relaid(await stored(facts={}), "a", identity(layout), {"full": layout})


async def test_a_declaration_that_the_id_does_not_name_is_refused() -> None:
    layout = NEW["packed"]
    store = await stored(facts=facts_of({"full": layout}))
    with pytest.raises(IdentityError, match="declared layout"):
        await open_relaid(store, "a", identity(layout), {"full": layout})


async def test_a_session_may_be_converted_there_and_back() -> None:
    store, layout = await stored(), NEW["smaller pages"]
    await (await open_relaid(store, "a", identity(layout), {"full": layout})).close()
    session = await open_relaid(store, "a", identity(OLD), {"full": OLD})
    target = Target()
    assert (await session.restore(target)).imported == 64
    assert target.pages == {block: page(OLD, block) for block in range(4)}
    await session.close()


async def test_the_same_layout_is_opened_as_it_is() -> None:
    session = await open_relaid(await stored(), "a", identity(OLD), {"full": OLD})
    assert (await session.plan()).report == "kv+replay(6)"
    await session.close()
