"""An MLA layer of a TVM case, by parts as TVM takes it: decompressed new rows, absorbed past, merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.cache.hashed import hashed
from tests.support import read_array, upload

if TYPE_CHECKING:
    from tests.cache.scenario import Runner

WEIGHTS_STEP, WEIGHTS_SCALE = 1023, 1 / 16


class Layer:
    """The inputs of one layer of one step: rows, projections, and what they make of each other."""

    def __init__(self, settings: dict[str, int], step: int, layer: int, n: int) -> None:
        self.n, self.heads, self.nope = n, settings["num_qo_heads"], settings["qk_nope_head_dim"]
        self.latent = settings["v_head_dim"]
        rope, seed = settings["head_dim"] - self.latent, settings["seed"]
        self.scale = float((self.nope + rope) ** -0.5)
        up_k = hashed(seed, WEIGHTS_STEP, 0, 2, self.heads, self.nope, self.latent) * WEIGHTS_SCALE
        self.up_v = hashed(seed, WEIGHTS_STEP, 0, 3, self.heads, self.latent, self.nope) * WEIGHTS_SCALE
        self.q = hashed(seed, step, layer, 0, n, self.heads, self.nope + rope)
        self.rows = hashed(seed, step, layer, 1, n, self.latent + rope)
        below, turned = self.rows[:, : self.latent], self.rows[:, self.latent :]
        keys = np.einsum("nl,hdl->nhd", below, up_k)
        self.k = np.concatenate([keys, np.repeat(turned[:, None], self.heads, axis=1)], axis=2)
        self.v = np.einsum("nl,hld->nhd", below, self.up_v)
        absorbed = np.einsum("nhd,hdl->nhl", self.q[..., : self.nope], up_k)
        self.q_past = np.concatenate([absorbed, self.q[..., self.nope :]], axis=2)


async def mla_layer(runner: Runner, at: int, step: int, layer: int, lens: list[int]) -> None:
    """Run and compare every part; a step of single tokens has only the past, which holds them too."""
    gpu, cache, single = runner.gpu, runner.cache, max(lens) == 1
    it = Layer(runner.settings, step, layer, sum(lens))
    shapes = [(it.n, it.heads, it.nope), (it.n, it.heads), (it.n, it.heads, it.latent), (it.n, it.heads)]
    rows, q, k, v, q_past = inputs = upload(gpu, it.rows, it.q, it.k, it.v, it.q_past)
    own, own_lse, past, past_lse = made = [gpu.buffer(4 * int(np.prod(shape))) for shape in shapes]
    with gpu.batch() as batch:
        cache.append_mla_kv(batch, layer, rows)
        dims = {"head_dim": it.q.shape[2], "v_dim": it.nope}
        cache.self_attention(batch, layer, q, k, v, own, own_lse, it.scale, **dims)
        mode = "decode" if single else "prefill"
        cache.cross_attention(batch, layer, q_past, past, past_lse, it.scale, mode=mode)
    names = ("self", "self_lse", "cross", "cross_lse")
    for name, buffer, shape in list(zip(names, made, shapes, strict=True))[2 * single :]:
        runner.close(f"{name}_{at}_{layer}", await read_array(gpu, buffer, np.float32, shape))
    out = np.einsum("nhl,hld->nhd", await read_array(gpu, past, np.float32, shapes[2]), it.up_v)
    if not single:
        inputs += upload(gpu, out)
        with gpu.batch() as batch:
            cache.merge_attn_output_inplace(batch, layer, own, own_lse, inputs[-1], past_lse, it.nope)
        out = await read_array(gpu, own, np.float32, shapes[0])
    runner.close(f"out_{at}_{layer}", out)
    for buffer in (*inputs, *made):
        gpu.release(buffer)
