"""Decode attention that appends for itself: every bit of `append_kv` and then `attend_decode`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.kernels.paged import NAN_WORD, Held, Paged, mla_shape, rope_table, shape_of
from tests.support import cases, device, random
from webkv.gpu.device import UNIFORM
from webkv.kernels import reference
from webkv.kernels.append import append_kv
from webkv.kernels.attention import attend_decode, decode_scratch_bytes
from webkv.kernels.shape import AttentionShape
from webkv.kernels.variants import appends


def places(case: Paged) -> np.ndarray:
    """Where each sequence's last token goes, -1 without one."""
    found = [reference.kv_positions(case.table, s, case.shape.page_tokens) for s in range(len(case.held))]
    return np.array([at[-1] if len(at) else -1 for at in found], np.int32)


def forget_last(case: Paged) -> None:
    """Poison the words of the last tokens."""
    rows = random(1, len(case.held), case.shape.fused_width)
    table = np.zeros((len(rows), case.shape.rotary_dim // 2, 2), np.float32)
    written = reference.append_kv(rows, case.pages, places(case), table, case.shape)[1]
    case.pages[written != case.pages] = NAN_WORD


async def step(case: Paged, rows: np.ndarray, at_once: bool, lse: bool = True) -> tuple[bytes, ...]:
    """`(pages, out, lse, rows)` after the last tokens were appended and attended to."""
    gpu, shape, n = await device(), case.shape, len(case.held)
    pages, page_table = case.upload(gpu)
    angles, at = rope_table(n, shape.rotary_dim, first=1000), places(case)
    qkv, table = gpu.buffer(rows.nbytes, data=rows), gpu.buffer(angles.nbytes, data=angles)
    out, lses = gpu.buffer(4 * n * shape.out_width), gpu.buffer(4 * n * shape.q_heads)
    scratch = gpu.buffer(decode_scratch_bytes(n, case.max_tiles(), shape))
    with gpu.batch() as batch:
        if not at_once:
            append_kv(
                batch, qkv=qkv, pages=pages, append_position_map=gpu.buffer(at.nbytes, data=at),
                rope_table=table, step=gpu.buffer(16, data=np.array([n, n, 0, 0], np.uint32), usage=UNIFORM),
                n=n, shape=shape,
            )  # fmt: skip
        attend_decode(
            batch, q=qkv, pages=pages, table=page_table, out=out, scratch=scratch, sequences=n,
            max_tiles=case.max_tiles(), shape=shape, lse=lses if lse else None,
            append=at_once, rope_table=table,
        )  # fmt: skip
    assert batch.dispatches == 1 + (case.max_tiles() > 1) + (not at_once)
    return tuple([await gpu.read(buffer) for buffer in (pages, out, lses, qkv)])


async def check(shape: AttentionShape, held: Sequence[Held], **more: Any) -> None:
    """Hold one dispatch against two."""
    case = Paged(shape, held)
    forget_last(case)
    rows = random(2, len(held), shape.fused_width)
    apart, (*at_once, kept) = await step(case, rows, False, **more), await step(case, rows, True, **more)
    assert not np.isnan(np.frombuffer(at_once[1], np.float32)).any()
    for one, other in zip(at_once, apart, strict=False):
        assert one == other
    assert kept == rows.tobytes()


def rotated(*sizes: int, **rules: Any) -> AttentionShape:
    """A shape with RoPE of all dims, unless `rules` say otherwise."""
    return shape_of(*sizes, **{"rope": "normal", "rotary_dim": sizes[2] if sizes else 64, **rules})


SHAPES = {
    "smollm f32": rotated(9, 3, 64),
    "smollm f16": rotated(9, 3, 64, dtype="f16"),
    "smollm int8": rotated(9, 3, 64, dtype="int8"),
    "one head of 256": rotated(4, 1, 256, dtype="f16"),
    "group of 14 in two parts": rotated(14, 1, 64, dtype="int8"),
    "no rope": shape_of(dtype="f16"),
    "half of some dims": rotated(rotary_dim=24, dtype="f16"),
    "interleaved of some dims": rotated(rotary_dim=20, pairing="interleaved"),
    "narrower values": rotated(4, 2, 96, v_dim=64),
    "page of 3": rotated(page_tokens=3, dtype="f16"),
    "token-major f16": rotated(order="token_major", page_tokens=4, dtype="f16"),
    "packed f16": rotated(packing="packed", dtype="f16"),
}
HELD = [Held(1), Held(16), Held(0), Held(17), Held(600), Held(513)]
# Of the shapes that differ in numbers only.
NATIVELY = [name for name in SHAPES if name not in ("smollm f16", "smollm int8", "half of some dims")]


@pytest.mark.parametrize("name", cases(SHAPES, natively=NATIVELY))
async def test_shapes(name: str) -> None:
    await check(SHAPES[name], HELD)


@pytest.mark.parametrize("length", [1, 16, 17, 256, 257, 512])
async def test_one_tile(length: int) -> None:
    await check(rotated(dtype="f16"), [Held(length)])
    await check(rotated(dtype="f16"), [Held(length)], lse=False)


async def test_windows_and_sinks() -> None:
    window = rotated(window=100)
    await check(window, [Held(1), Held(100), Held(513), Held(520, freed=400), Held(513, freed=400)])
    sinks = [Held(40, sink=4, offset=13), Held(300, sink=20, offset=31), Held(500, sink=3, offset=16)]
    await check(rotated(), sinks)


async def test_a_page_out_of_range_is_not_written() -> None:
    case = Paged(rotated(), [Held(40)])
    case.table[1][-1] = 2**30
    pages, *_ = await step(case, random(2, 1, case.shape.fused_width), True)
    assert pages == case.pages.tobytes()


async def test_the_shape_decides_whether_decode_appends() -> None:
    gpu = await device()
    assert all(appends(gpu, shape) for shape in SHAPES.values())
    apart = {
        "inline": rotated(rope="inline"),
        "latent": mla_shape(16, 96, 64),
        "half of twenty dims": rotated(rotary_dim=20),
        "half a block": rotated(4, 2, 12, dtype="f16"),
        "scales of two heads in a pair": rotated(order="token_major", dtype="int8"),
        "more queries than workgroup memory": rotated(8, 1, 256),
    }
    assert not any(appends(gpu, shape) for shape in apart.values())
