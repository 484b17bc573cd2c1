"""Attention over pages in textures: what it reads from where, its truth, and its bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import wgpu

from tests import support
from tests.kernels import test_attention_prefill as prefill
from tests.kernels.paged import NAN_WORD, Held, Paged, rope_table, shape_of
from tests.kernels.test_attention_append import forget_last, places, rotated
from tests.support import featured_device, random, read_array
from webkv.gpu import Device
from webkv.kernels import reference
from webkv.kernels.attention import attend_decode, attend_prefill, decode_scratch_bytes
from webkv.kernels.texels import closed_blocks, copy_to_texture, open_tokens, page_texture
from webkv.kernels.variants import reads_textures


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device, which reads pages from textures."""
    if not reads_textures(featured_device(), shape_of()):
        pytest.skip("this device reads pages from buffers")
    monkeypatch.setattr(support, "_device", featured_device())
    return featured_device()


def closed_pages(case: Paged) -> tuple[np.ndarray, np.ndarray]:
    """The pages that decode reads from a texture, and those of them that it reads from nowhere else.

    A sequence's first key stands in for dead slots everywhere, and a window may lie within one split.
    """
    indptr, indices, info = case.table
    size, found = case.shape.page_tokens, list[np.ndarray]()
    for s, first in enumerate(np.reshape(info, (4, -1))[3]):
        held = indices[indptr[s] : indptr[s + 1]]
        slots = (first + len(held) - 1) * size + info[s]
        found.append(held[: closed_blocks(int(first), int(slots), size)])
    only = [] if case.shape.window else [pages[1:] for pages in found]
    return np.sort(np.concatenate(found)), np.concatenate([found[0][:0], *only])


async def decode(
    gpu: Device, case: Paged, rows: np.ndarray, *, append: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """`(out, pages)`: closed pages are poisoned in the buffer, all others in the texture."""
    shape, n, page_bytes = case.shape, len(case.held), 4 * case.shape.page_words
    pages, table = case.upload(gpu)
    texture = page_texture(gpu, pages.size, "pages")
    closed, only = closed_pages(case)
    hidden = case.pages.reshape(-1, shape.page_words).copy()
    hidden[only] = NAN_WORD
    poison = gpu.buffer(pages.size, data=np.full_like(case.pages, NAN_WORD))
    with gpu.batch() as batch:
        copy_to_texture(batch, poison, texture, page_bytes, np.arange(len(hidden)))
        copy_to_texture(batch, pages, texture, page_bytes, closed)
    gpu.write(pages, hidden)
    angles = rope_table(n, shape.rotary_dim, first=1000)
    out = gpu.buffer(4 * n * shape.out_width)
    with gpu.batch() as batch:
        attend_decode(
            batch, q=gpu.buffer(rows.nbytes, data=rows), pages=pages, table=table, out=out,
            scratch=gpu.buffer(decode_scratch_bytes(n, case.max_tiles(), shape)), sequences=n,
            max_tiles=case.max_tiles(), shape=shape, append=append, closed=texture,
            rope_table=gpu.buffer(max(angles.nbytes, 4), data=angles),
        )  # fmt: skip
    assert batch.dispatches == 1 + (case.max_tiles() > 1)
    written = (await read_array(gpu, pages, np.uint32, hidden.shape)).copy()
    written[only] = case.pages.reshape(hidden.shape)[only]
    return await read_array(gpu, out, np.float32, (n, shape.q_heads, shape.v_dim)), written.ravel()


SHAPES = {
    "smollm f32": shape_of(9, 3, 64),
    "smollm f16": shape_of(9, 3, 64, dtype="f16"),
    "smollm int8": shape_of(9, 3, 64, dtype="int8"),
    "one head of 256": shape_of(4, 1, 256, dtype="f16"),
    "group of 14 in two parts": shape_of(14, 1, 64, dtype="f16"),
    "page of 4 token-major": shape_of(4, 2, 64, page_tokens=4, order="token_major", dtype="f16"),
    "page of 12": shape_of(page_tokens=12),
    "packed int8": shape_of(4, 2, 64, packing="packed", dtype="int8"),
}
HELD = [Held(1), Held(0), Held(513), Held(300), Held(640), Held(1100), Held(512)]


@pytest.mark.parametrize("name", SHAPES)
async def test_decode_reads_closed_pages_from_the_texture_and_the_others_from_the_buffer(
    gpu: Device, name: str
) -> None:
    case = Paged(SHAPES[name], HELD)
    q = case.queries(len(HELD))
    found, _ = await decode(gpu, case, q)
    want, _ = reference.attend_decode(q, case.pages, case.table, case.shape)
    np.testing.assert_allclose(found, want, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("length", [513, 514, 575, 576, 577, 1024, 1025])
async def test_lengths_at_the_edges_of_splits_and_of_what_is_open(gpu: Device, length: int) -> None:
    case = Paged(shape_of(), [Held(length)])
    q = case.queries(1)
    want, _ = reference.attend_decode(q, case.pages, case.table, case.shape)
    np.testing.assert_allclose((await decode(gpu, case, q))[0], want, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [shape_of(window=17), shape_of(window=100), shape_of(window=700)])
async def test_windows(gpu: Device, shape: Any) -> None:
    case = Paged(shape, [Held(1), Held(513), Held(520, freed=400), Held(577), Held(1100, freed=300)])
    q = case.queries(len(case.held))
    want, _ = reference.attend_decode(q, case.pages, case.table, case.shape)
    np.testing.assert_allclose((await decode(gpu, case, q))[0], want, atol=2e-6, rtol=1e-5)


async def test_sinks(gpu: Device) -> None:
    case = Paged(shape_of(), [Held(700, sink=4, offset=13), Held(540, sink=20, offset=31)])
    q = case.queries(2)
    want, _ = reference.attend_decode(q, case.pages, case.table, case.shape)
    np.testing.assert_allclose((await decode(gpu, case, q))[0], want, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [rotated(9, 3, 64, dtype=dtype) for dtype in ("f32", "f16", "int8")])
async def test_decode_appends_in_the_buffer(gpu: Device, shape: Any) -> None:
    case = Paged(shape, HELD)
    forget_last(case)
    rows = random(2, len(HELD), shape.fused_width)
    found, written = await decode(gpu, case, rows, append=True)
    table = rope_table(len(HELD), shape.rotary_dim, first=1000)
    turned, pages = reference.append_kv(rows, case.pages, places(case), table, shape)
    want, _ = reference.attend_decode(turned, pages, case.table, shape)
    np.testing.assert_allclose(found, want, atol=4e-3 if shape.dtype == "int8" else 4e-6, rtol=1e-5)
    assert np.count_nonzero(written != case.pages) == np.count_nonzero(pages != case.pages)


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_a_row_alone_equals_the_row_in_a_batch(gpu: Device, dtype: str) -> None:
    shape = shape_of(dtype=dtype)
    case = Paged(shape, HELD)
    q = case.queries(len(HELD))
    together, _ = await decode(gpu, case, q)
    for row, held in enumerate(HELD):
        alone, _ = await decode(gpu, Paged(shape, [held]), q[row : row + 1])
        assert alone.tobytes() == together[row].tobytes()


@pytest.mark.parametrize("freed", [16, 512, 900])
async def test_pages_freed_behind_the_window_change_no_bit(gpu: Device, freed: int) -> None:
    shape = shape_of(window=200)
    q = Paged(shape, [Held(1130)]).queries(1)
    whole, _ = await decode(gpu, Paged(shape, [Held(1130)]), q)
    cut, _ = await decode(gpu, Paged(shape, [Held(1130, freed=freed)]), q)
    assert cut.tobytes() == whole.tobytes()


async def prefill_of_texture(gpu: Device, case: Paged, q: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """What prefill reads from a texture; its buffer is not bound."""
    shape, n = case.shape, sum(rows)
    pages, table = case.upload(gpu)
    texture = page_texture(gpu, pages.size, "pages")
    indptr = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    out = gpu.buffer(4 * n * shape.out_width)
    with gpu.batch() as batch:
        count = len(case.pages) // shape.page_words
        copy_to_texture(batch, pages, texture, 4 * shape.page_words, np.arange(count))
        attend_prefill(
            batch, q=gpu.buffer(q.nbytes, data=q), pages=texture, table=table,
            qo_indptr=gpu.buffer(indptr.nbytes, data=indptr), out=out, sequences=len(rows),
            max_rows=max(rows), shape=shape,
        )  # fmt: skip
    return await read_array(gpu, out, np.float32, (n, shape.q_heads, shape.v_dim))


@pytest.mark.parametrize("name", SHAPES)
async def test_prefill_from_a_texture_gives_the_bits_of_its_buffer(gpu: Device, name: str) -> None:
    case, rows = Paged(SHAPES[name], [Held(1), Held(300), Held(40), Held(15)]), [1, 13, 40, 7]
    q = case.queries(sum(rows))
    there = await prefill_of_texture(gpu, case, q, rows)
    here, _ = await prefill.prefill(case, q, rows, lse=False)
    assert there.tobytes() == here.tobytes()


async def texels_of(gpu: Device, texture: wgpu.GPUTextureView, rows: int) -> np.ndarray:
    """The texture's bytes."""
    made = gpu.buffer(rows << 14)
    encoder = gpu.raw.create_command_encoder()
    target = {"buffer": made, "offset": 0, "bytes_per_row": 1 << 14}
    encoder.copy_texture_to_buffer({"texture": texture.texture}, target, (1024, rows, 1))
    gpu.queue.submit([encoder.finish()])
    return np.frombuffer(await gpu.read(made), np.uint8)


@pytest.mark.parametrize("page_bytes", [16, 12288, 16384, 24576, 40000 // 16 * 16])
async def test_pages_lie_in_a_texture_as_in_their_buffer(gpu: Device, page_bytes: int) -> None:
    data = np.random.default_rng(3).integers(0, 256, 9 * page_bytes).astype(np.uint8)
    texture = page_texture(gpu, len(data), "pages")
    ids = np.array([0, 2, 3, 4, 5, 8])
    buffer = gpu.buffer(len(data), data=data)
    with gpu.batch() as batch:
        copy_to_texture(batch, buffer, texture, page_bytes, ids)
    found = await texels_of(gpu, texture, -(-len(data) // 16384))
    want = np.zeros(len(found), np.uint8)
    pages = want[: len(data)].reshape(9, page_bytes)
    pages[ids] = data.reshape(9, page_bytes)[ids]
    assert found.tobytes() == want.tobytes()


def test_what_is_open_ends_with_a_page_and_with_both_quads() -> None:
    assert [open_tokens(size) for size in (4, 12, 16, 20, 68, 128)] == [64, 96, 64, 160, 544, 128]


def test_a_sequence_in_one_split_has_no_closed_pages() -> None:
    found = [closed_blocks(0, slots, 16) for slots in (1, 512, 513, 576, 577, 640, 641)]
    assert found == [0, 0, 32, 32, 36, 36, 40]
    assert [closed_blocks(32, slots, 16) for slots in (513, 1024, 1025)] == [0, 0, 32]
