"""Page kernels against their twins, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.paged import mla_shape, shape_of
from tests.support import device, read_array
from webkv.gpu import Device
from webkv.kernels import reference
from webkv.kernels.pages import compact_kv, copy_pages, copy_runs, export_pages, import_pages
from webkv.kernels.shape import AttentionShape

SHAPES = {
    "f32": shape_of(dtype="f32"),
    "f16 narrow": shape_of(4, 2, 12, v_dim=20, dtype="f16"),
    "f16 token major": shape_of(dtype="f16", order="token_major"),
    "int8 pages of 3": shape_of(dtype="int8", page_tokens=3),
    "int8 packed": shape_of(dtype="int8", packing="packed"),
    "int8 token major": shape_of(4, 2, 20, dtype="int8", order="token_major"),
    "latent int8": mla_shape(4, 96, 64, "int8"),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


def random_pages(shape: AttentionShape, count: int = 6) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2**32, count * shape.page_words, np.uint32)


def upload(gpu: Device, array: np.ndarray) -> object:
    return gpu.buffer(array.nbytes, data=array)


@each_shape
async def test_copy_pages(shape: AttentionShape) -> None:
    gpu, pages = await device(), random_pages(shape)
    copies = np.array([[0, 3, 1], [1, 5, shape.page_tokens], [0, 4, 0]], np.int32)
    buffer = upload(gpu, pages)
    with gpu.batch() as batch:
        copy_pages(batch, pages=buffer, copies=upload(gpu, copies), count=3, shape=shape)
    want = reference.copy_pages(pages, copies, shape)
    np.testing.assert_array_equal(await read_array(gpu, buffer, np.uint32, pages.shape), want)


@each_shape
async def test_export_pages(shape: AttentionShape) -> None:
    gpu, pages = await device(), random_pages(shape)
    exports = np.array([[4, shape.page_tokens], [0, 2], [5, 0]], np.int32)
    out = upload(gpu, np.full(3 * shape.page_words, 0xFFFFFFFF, np.uint32))
    with gpu.batch() as batch:
        export_pages(
            batch, pages=upload(gpu, pages), exports=upload(gpu, exports), out=out, count=3, shape=shape
        )
    want = reference.export_pages(pages, exports, shape)
    np.testing.assert_array_equal(await read_array(gpu, out, np.uint32, want.shape), want)


@each_shape
async def test_import_pages(shape: AttentionShape) -> None:
    gpu, pages = await device(), random_pages(shape)
    data, imports = random_pages(shape, 2)[::-1].copy(), np.array([5, 0], np.int32)
    buffer = upload(gpu, pages)
    with gpu.batch() as batch:
        import_pages(
            batch, data=upload(gpu, data), pages=buffer, imports=upload(gpu, imports), count=2, shape=shape
        )
    want = reference.import_pages(data, pages, imports, shape)
    np.testing.assert_array_equal(await read_array(gpu, buffer, np.uint32, pages.shape), want)


@each_shape
async def test_compact_kv_moves_in_order(shape: AttentionShape) -> None:
    gpu, pages, size = await device(), random_pages(shape), shape.page_tokens
    moves = np.array([[2, 1], [size + 1, 2], [size + 2, size + 1], [4 * size, 3 * size]], np.int32)
    indptr = np.array([0, 3, 3, 4], np.int32)
    buffer = upload(gpu, pages)
    with gpu.batch() as batch:
        compact_kv(
            batch, pages=buffer, moves=upload(gpu, moves), move_indptr=upload(gpu, indptr), sequences=3,
            shape=shape,
        )  # fmt: skip
    want = reference.compact_kv(pages, moves, shape)
    np.testing.assert_array_equal(await read_array(gpu, buffer, np.uint32, pages.shape), want)


async def test_copy_runs() -> None:
    gpu = await device()
    src, dst = np.arange(200, dtype=np.uint32), np.full(100, 7, np.uint32)
    runs = np.array([[3, 10, 40], [150, 0, 1], [0, 60, 0], [199, 99, 1]], np.uint32)
    buffer = upload(gpu, dst)
    with gpu.batch() as batch:
        copy_runs(batch, src=upload(gpu, src), dst=buffer, runs=upload(gpu, runs), count=4, max_words=40)
    want = reference.copy_runs(src, dst, runs)
    np.testing.assert_array_equal(await read_array(gpu, buffer, np.uint32, dst.shape), want)


async def test_pages_out_of_range_are_left_alone() -> None:
    gpu, shape = await device(), shape_of()
    pages = random_pages(shape)
    buffer = upload(gpu, pages)
    with gpu.batch() as batch:
        copies = upload(gpu, np.array([[0, 6, 16], [-1, 1, 16]], np.int32))
        copy_pages(batch, pages=buffer, copies=copies, count=2, shape=shape)
        imports = upload(gpu, np.array([6], np.int32))
        import_pages(batch, data=upload(gpu, pages), pages=buffer, imports=imports, count=1, shape=shape)
    np.testing.assert_array_equal(await read_array(gpu, buffer, np.uint32, pages.shape), pages)
