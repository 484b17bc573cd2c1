"""Runs a TVM case (see tests/golden/README.md) on a `PagedKVCache` and compares everything the case holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.cache.hashed import hashed
from tests.cache.scenario_mla import mla_layer
from tests.support import read_array
from webkv.cache import CacheConfig, LayerGroup, PagedKVCache, RopeConfig
from webkv.errors import CacheError
from webkv.gpu import Device

CASES = Path(__file__).parent.parent / "golden" / "tvm_cases"
DEFAULTS: dict[str, Any] = {
    "reserved_num_seqs": 8, "max_total_len": 512, "prefill_chunk_size": 256, "page_size": 16,
    "support_sliding_window": False, "layer_sliding_window_size": 1024, "num_layers": 2, "num_qo_heads": 4,
    "num_kv_heads": 2, "head_dim": 64, "rope_mode": "normal", "rope_scale": 1.0, "rope_theta": 1e4,
    "dtype": "float32", "rope_scaling": {},
}  # fmt: skip
TOLERANCE = {"float32": 2e-3, "float16": 2e-2}


def rope_config(settings: dict[str, Any]) -> RopeConfig:
    """The case's RoPE; TVM applies no attention factor to yarn."""
    scaling = settings["rope_scaling"]
    kind = scaling.get("rope_type", "default")
    more: dict[str, Any] = {}
    if kind in ("llama3", "yarn", "longrope"):
        more["original_max_position"] = scaling["original_max_position_embeddings"]
    if kind in ("llama3", "yarn", "linear"):
        more["factor"] = scaling["factor"]
    if kind == "llama3":
        more |= {name: scaling[name] for name in ("low_freq_factor", "high_freq_factor")}
    if kind == "yarn":
        more |= {name: scaling[name] for name in ("beta_fast", "beta_slow") if name in scaling}
        more["attention_factor"] = 1.0
    pairing = "interleaved" if kind == "gptj" else "half"
    return RopeConfig(
        mode=settings["rope_mode"], rotary_dim=settings.get("rotary_dim"), theta=settings["rope_theta"],
        scale=settings["rope_scale"], pairing=pairing, scaling="default" if kind == "gptj" else kind, **more,
    )  # fmt: skip


def cache_config(settings: dict[str, Any], keep: bool) -> CacheConfig:
    """TVM's configuration as ours; `keep`: sliding layers keep all tokens, as TVM's do."""
    kinds = settings.get("attn_kinds", ["mha"] * settings["num_layers"])
    rope, sliding, pages = rope_config(settings), settings["support_sliding_window"], None
    if sliding and "mha_sliding" in kinds:
        # TVM takes the argument for inline rope and for more pages, then ignores it.
        rope = replace(rope, mode="inline" if rope.mode == "normal" else rope.mode)
        pages = -(-settings["max_total_len"] // settings["page_size"]) + 1
        pages, sliding = pages + 2 * settings["reserved_num_seqs"], False
    groups = []
    for kind in dict.fromkeys(kinds):
        groups.append(
            LayerGroup(
                kind, tuple(at for at, other in enumerate(kinds) if other == kind),
                kv_heads=settings["num_kv_heads"], q_heads=settings["num_qo_heads"],
                head_dim=settings["head_dim"], v_dim=settings.get("v_head_dim"),
                window=settings["layer_sliding_window_size"] if kind == "mha_sliding" else None,
                kind="mla" if kind == "mla" else "mha", rope=rope, num_pages=pages,
                rollback=settings["max_total_len"] if keep and kind == "mha_sliding" else 0,
            )
        )  # fmt: skip
    return CacheConfig(
        tuple(groups), page_tokens=settings["page_size"], max_total_len=settings["max_total_len"],
        reserved_num_seqs=settings["reserved_num_seqs"], prefill_chunk_size=settings["prefill_chunk_size"],
        page_dtype={"float32": "f32", "float16": "f16"}[settings["dtype"]],
        support_sliding_window=sliding,
    )  # fmt: skip


@dataclass
class Scenario:
    """One case: its settings, operations, and what TVM made of them."""

    name: str
    settings: dict[str, Any]
    ops: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]
    log: list[dict[str, Any]]

    @classmethod
    def load(cls, name: str) -> Scenario:
        case = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
        with np.load(CASES / f"{name}.npz") as file:
            arrays = dict(file)
        report = json.loads(arrays.pop("report").tobytes())
        return cls(name, DEFAULTS | case["config"], case["ops"], arrays, report["log"])


class Runner:
    """Executes a scenario's operations in order."""

    def __init__(self, gpu: Device, scenario: Scenario, aux: str = "plain", keep: bool = True) -> None:
        self.gpu, self.scenario, self.settings = gpu, scenario, scenario.settings
        self.cache = PagedKVCache(gpu, cache_config(self.settings, keep), aux)
        self.tolerance = TOLERANCE[self.settings["dtype"]]
        self.worst = 0.0
        for layer in self.cache.config.layers:
            pages = self.cache.layer_pages(layer)
            gpu.write(pages, b"\xff" * pages.size)

    async def run(self, compare: bool = True) -> None:
        """Every operation; `compare` its results with TVM's (false where TVM is wrong: only that it runs)."""
        self.compare = compare
        for at, op in enumerate(self.scenario.ops):
            before = self._facts()
            if "error" in op:
                await self._fails(at, op)
                assert self._facts() == before, f"op {at} {op} failed and left a trace"
                continue
            await getattr(self, f"op_{op['op']}")(at, op)
            self.cache.check()
            if op["op"] not in SKIPPED and compare:
                log = self.scenario.log[at]
                expected = (log["free_pages"], log["total_len"])
                assert self._facts() == expected, f"op {at} {op}: (free pages, total length)"

    def _facts(self) -> tuple[int, int]:
        return self.cache.num_available_pages(), self.cache.get_total_sequence_length()

    async def _fails(self, at: int, op: dict[str, Any]) -> None:
        try:
            await getattr(self, f"op_{op['op']}")(at, op)
        except CacheError as error:
            text = str(error)
            wanted = op["error"]
            same = wanted is True or wanted.lower() in text.lower()
            assert same, f"op {at}: {text!r} does not contain {wanted!r}"
            return
        raise AssertionError(f"op {at} {op} did not fail")

    def close(self, name: str, found: np.ndarray) -> None:
        """Compare with the case's array, if it has it."""
        expected = self.scenario.arrays.get(name)
        if expected is None or not self.compare:
            return
        assert found.shape == expected.shape, name
        assert np.isfinite(found).all(), name
        worst = float(np.abs(found - expected.astype(np.float64)).max()) if found.size else 0.0
        self.worst = max(self.worst, worst)
        assert worst <= self.tolerance, f"{name} differs by {worst}"

    async def op_add(self, at: int, op: dict[str, Any]) -> None:
        self.cache.add_sequence(op["seq"])

    async def op_remove(self, at: int, op: dict[str, Any]) -> None:
        self.cache.remove_sequence(op["seq"])

    async def op_fork(self, at: int, op: dict[str, Any]) -> None:
        self.cache.fork_sequence(op["parent"], op["child"], op["pos"])

    async def op_popn(self, at: int, op: dict[str, Any]) -> None:
        self.cache.popn(op["seq"], op["n"])

    async def op_sliding(self, at: int, op: dict[str, Any]) -> None:
        self.cache.enable_sliding_window_for_seq(op["seq"], op["window"], op["sink"])

    async def op_clear(self, at: int, op: dict[str, Any]) -> None:
        self.cache.clear()

    async def op_empty(self, at: int, op: dict[str, Any]) -> None:
        assert self.cache.empty() == self.scenario.log[at]["result"]

    async def op_seqlen(self, at: int, op: dict[str, Any]) -> None:
        assert self.cache.get_sequence_length(op["seq"]) == self.scenario.log[at]["result"]

    async def op_commit(self, at: int, op: dict[str, Any]) -> None:
        self.cache.commit_accepted_token_tree_nodes(op["seqs"], op["leaves"])

    async def op_kv(self, at: int, op: dict[str, Any]) -> None:
        seq = op["seq"]
        start, end = op.get("start", 0), op.get("end", self.cache.get_sequence_length(seq))
        if "mla" in self.settings.get("attn_kinds", ()):
            self.close(f"kv_{at}_{seq}", await self.cache.debug_get_kv_mla(seq, start, end))
            return
        k, v = await self.cache.debug_get_kv(seq, start, end)
        self.close(f"k_{at}_{seq}", k)
        self.close(f"v_{at}_{seq}", v)

    async def op_forward(self, at: int, op: dict[str, Any]) -> None:
        step = op.get("step", at)
        self.cache.begin_forward(op["seqs"], op["lens"], op.get("tree"))
        positions = self.cache.get_query_positions()
        expected = self.scenario.arrays.get(f"qpos_{at}")
        if self.compare and expected is not None:
            assert np.array_equal(positions, expected)
        for layer in self.cache.config.layers:
            if self._mla:
                await mla_layer(self, at, step, layer, op["lens"])
            else:
                await self._layer(at, step, layer, op)
        self.cache.end_forward()

    @property
    def _mla(self) -> bool:
        return "mla" in self.settings.get("attn_kinds", ())

    async def _layer(self, at: int, step: int, layer: int, op: dict[str, Any]) -> None:
        q_heads, kv_heads, dim = (
            self.settings[name] for name in ("num_qo_heads", "num_kv_heads", "head_dim")
        )
        rows, pad = sum(op["lens"]), op.get("pad", 0)
        qkv = hashed(self.settings["seed"], step, layer, 0, rows + pad, q_heads + 2 * kv_heads, dim)
        mode = "decode" if max(op["lens"]) == 1 and "tree" not in op else "prefill"
        fused = self.gpu.buffer(qkv.nbytes, data=qkv)
        out = self.gpu.buffer(4 * (rows + pad) * q_heads * dim)
        with self.gpu.batch() as batch:
            self.cache.attention(batch, layer, fused, out, mode=mode)
        found = await read_array(self.gpu, out, np.float32, (rows, q_heads, dim))
        self.close(f"out_{at}_{layer}", found)
        for buffer in (fused, out):
            self.gpu.release(buffer)

    async def _skipped(self, at: int, op: dict[str, Any]) -> None:
        return

    op_checkpoint = op_layout_hash = _skipped


SKIPPED = ("checkpoint", "layout_hash")
