"""The benchmarks' arithmetic and their right answers.  Nothing here depends on how fast anything is."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import harness, limit, report, svg
from benchmarks.attention import Case, OnDevice, Pages, difference, too_large
from benchmarks.aux_data import Load, config_for, steps_of
from benchmarks.decode_attention import FULL, GOALS, QUICK, Decode
from benchmarks.generate import part_of
from benchmarks.harness import Bench, Candidate, Comparison, Cost, Goal, Row
from benchmarks.matvec import bytes_of_row
from benchmarks.peers import tvm
from tests import support
from webkv.kernels.reference import attend_prefill
from webkv.kernels.texels import copy_to_texture, page_texture

GENERATED = """
@group(0) @binding(0) var<storage, read> Q_ptr : array<f32>;
@group(0) @binding(1) var<storage, read_write> lse_ptr : array<f32>;
struct PODArgs {
  B: i32,
  pages_elem_offset: i32,
  sm_scale: f32,
  packGridDimX: u32
}
@group(0) @binding(2) var<uniform> podArgs : PODArgs;
@compute @workgroup_size(16, 3, 5)
fn main_kernel(@builtin(workgroup_id) at : vec3<u32>) { }
"""


def comparison(clock: str = "cpu") -> Comparison:
    return Comparison(
        {
            "ours": [Cost(1.0, 4.0), Cost(2.0, 4.0), Cost(9.0, 5.0)],
            "theirs": [Cost(3.0, 4.0), Cost(8.0, 8.0), Cost(9.0, 5.0)],
        },
        clock,
    )


def test_a_ratio_is_the_median_of_the_quotients_within_rounds() -> None:
    assert comparison().speedup("ours", "theirs") == 3.0  # of 3, 4 and 1; the medians' quotient would be 4


def test_a_ratio_uses_the_clock_of_the_comparison() -> None:
    assert comparison("wall").speedup("ours", "theirs") == 1.0


def test_milliseconds_are_medians_of_the_clock_asked_for() -> None:
    assert (comparison().ms("ours"), comparison().ms("ours", "wall")) == (2000.0, 4000.0)


def test_short_work_is_repeated_within_a_timing_and_long_work_is_not() -> None:
    assert [harness.repeats_for(s, 0.1) for s in (0.02, 3.0, 0.0)] == [5, 1, harness.MAX_REPEATS]


def test_rounds_fit_the_budget_but_never_fall_below_three() -> None:
    assert [harness.rounds_for(s, 7, 2.0) for s in (0.1, 0.5, 60.0)] == [7, 4, 3]


async def test_candidates_take_turns_and_every_other_round_goes_backwards() -> None:
    order: list[str] = []

    def logging(name: str) -> Candidate:
        async def run(repeats: int) -> None:
            order.append(name)

        return Candidate(name, run)

    result = await harness.compare([logging("a"), logging("b")], rounds=3, budget_s=60)
    assert "".join(order) == "aabb" + "ab" + "ba" + "ab"
    assert [len(costs) for costs in result.costs.values()] == [3, 3]


async def test_cost_is_per_piece_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    fake = SimpleNamespace(process_time=lambda: 2 * clock.now, perf_counter=lambda: clock.now)
    monkeypatch.setattr(harness, "time", fake)

    async def run(repeats: int) -> None:
        clock.now += 6.0 * repeats

    assert await harness.measure(Candidate("x", run, pieces=3), 4) == Cost(cpu=4.0, wall=2.0)


def test_a_goal_reduces_only_the_rows_it_names_that_have_the_ratio() -> None:
    rows = [
        Row("a", ratios={"peer": 2.0}, facts={"n": 1}), Row("b", ratios={"peer": 8.0}, facts={"n": 1}),
        Row("c", ratios={"peer": 0.1}, facts={"n": 2}), Row("d", ratios={}, facts={"n": 1}),
    ]  # fmt: skip
    goal = Goal("peer", 3.0, "where n is 1", lambda row: row.facts["n"] == 1)
    assert goal.value(rows) == 5.0
    assert report.goal_text(goal, 5.0) == "where n is 1: at least 3.0x peer: 5.0x reached"
    assert report.goal_text(goal, 2.9).endswith("2.9x MISSED")
    assert report.goal_text(goal, None).endswith("not measured")


def test_a_goal_of_the_worst_row() -> None:
    rows = [Row("a", ratios={"peer": 2.0}), Row("b", ratios={"peer": 8.0})]
    assert Goal("peer", 1.0, "worst", lambda row: True, min).value(rows) == 2.0


def test_rows_read_well() -> None:
    row = Row("case", 0.12345, 1234.5, "5 GB/s", {"read limit": 0.714, "TVM": 31.4, "x": 3.14}, "note")
    assert report.ratios_text(row) == "0.71x read limit  31x TVM  3.1x x  note"
    assert [report.ms_text(ms) for ms in (row.cpu_ms, row.wall_ms, None)] == ["0.123", "1234", ""]


async def test_a_result_is_kept_as_json_and_svg(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    bench = Bench(await support.device())
    rows = [Row("a <b>", 1.0, 2.0, "", {"peer": 2.0}), Row("skipped", note="too large")]
    goal = Goal("peer", 3.0, "all", lambda row: True)
    paths = report.save("mine", "How fast?", bench, rows, [goal])
    kept = json.loads(paths[0].read_text())
    assert [row["case"] for row in kept["rows"]] == ["a <b>", "skipped"]
    assert kept["goals"] == [{"baseline": "peer", "where": "all", "at_least": 3.0, "value": 2.0}]
    assert kept["environment"]["device"] == bench.device.facts.name
    assert "a &lt;b&gt;" in paths[1].read_text() and "skipped" not in paths[1].read_text()


@given(st.lists(st.floats(1e-3, 1e4), min_size=1))
def test_every_ratio_lies_on_the_plot(values: list[float]) -> None:
    first, last = svg.decades(values)
    assert all(0 <= svg.place(value, first, last) <= svg.PLOT for value in [1.0, *values])


def test_generated_wgsl_is_bound_by_the_names_it_declares() -> None:
    program = tvm.read_program(GENERATED)
    assert program.storage == ("Q", "lse")
    assert program.entry == "main_kernel"
    words = tvm.pod_bytes(program, {"B": 3, "sm_scale": 0.5, "packGridDimX": 2})
    assert words.tolist() == [3, 0, 0x3F000000, 2]


def test_a_uniform_field_that_nobody_knows_is_refused() -> None:
    with pytest.raises(AssertionError, match="sm_scale"):
        tvm.pod_bytes(tvm.read_program(GENERATED), {"B": 3, "packGridDimX": 2})


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
def test_the_answer_is_that_of_the_numpy_twin(dtype: str) -> None:
    case = Case("9/3x64", dtype, 48, batch=2, rows=5)
    host = Pages(case)
    index = host.index_arrays()
    table = (index["page_indptr"], index["page_indices"], index["length_info"])
    q = host.q.reshape(len(host.q), -1)
    words = host.data.reshape(-1).view(np.uint32)
    expected, _ = attend_prefill(q, words, table, index["qo_indptr"], case.shape)
    np.testing.assert_allclose(host.expected(), expected, atol=2e-6)


def test_an_output_with_nan_is_infinitely_wrong() -> None:
    found = np.array([1, np.nan], np.float32).tobytes()
    assert difference(found, np.array([1, 2], np.float32)) == float("inf")


def test_flop_counts_visible_pairs_only() -> None:
    # 2 heads' worth of dims 4 x 256, rows that see 254, 255 and 256 keys
    assert Case("4/1x256", "f32", 256, rows=3).flop == 4 * 4 * 256 * (254 + 255 + 256)


def test_cases_that_no_buffer_holds_are_named() -> None:
    case = Case("32/8x128", "f32", 16384)
    assert case.kv_bytes == 128 << 20
    assert too_large(case, 128 << 20) == ""
    assert too_large(case, 64 << 20) == "skipped: a layer of 128 MiB, the device binds 64 MiB"


def test_the_full_grid_holds_every_combination_once() -> None:
    assert len(FULL) == len(set(FULL)) == 4 * 3 * 2 * 4
    assert set(QUICK) <= set(FULL)


def test_every_goal_has_rows_in_the_full_grid() -> None:
    rows = [Row("", ratios={goal.baseline: 1.0 for goal in GOALS}, facts=case.facts) for case in FULL]
    assert [goal.value(rows) for goal in GOALS] == [1.0] * len(GOALS)


@pytest.mark.parametrize("texture", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
async def test_the_read_limit_reads_every_byte(dtype: str, texture: bool) -> None:
    gpu, rng = await support.device(), np.random.default_rng(3)
    values: np.ndarray[Any, Any] = rng.integers(-100, 100, 5 * limit.GROUP_BYTES)
    values = values.astype({"f32": np.float32, "f16": np.float16, "int8": np.int8}[dtype])
    values = values[: 3 * limit.GROUP_BYTES // values.itemsize]
    src = gpu.buffer(values.nbytes, data=values)
    source = page_texture(gpu, values.nbytes, "copy") if texture else src
    reader = limit.Reader(gpu, source, dtype)
    with gpu.batch() as batch:
        if texture:
            copy_to_texture(batch, src, source, limit.GROUP_BYTES, np.arange(3))
        reader.record(batch)
    sums = await support.read_array(gpu, reader.sums, np.float32, (reader.sums.size // 4,))
    assert sums.sum(dtype=np.float64) == values.sum(dtype=np.float64)
    reader.close()
    gpu.release(src)


async def test_the_decode_benchmark_runs_the_kernel_it_names() -> None:
    gpu, host = await support.device(), Pages(Case("9/3x64", "f16", 1024, batch=2))
    made = Decode(gpu, host)
    with gpu.batch() as batch:
        made.record(batch)
    assert difference(await gpu.read(made.out), host.expected()) < 1e-5
    assert made.dispatches == 2
    made.close()


async def test_closing_a_case_destroys_its_buffers() -> None:
    gpu, host = await support.device(), Pages(Case("9/3x64", "f32", 16))
    released: list[Any] = []
    spy = SimpleNamespace(
        facts=gpu.facts, buffer=gpu.buffer, release=lambda b: (released.append(b), gpu.release(b))
    )
    on: Any = OnDevice(spy, host)  # type: ignore[arg-type]
    on.close()
    assert {id(on.pages), id(on.q), id(on.out)} <= {id(b) for b in released}


def test_steps_for_the_aux_data_grow_by_their_rows() -> None:
    load = Load(2, 64, groups=2, rows=3)
    steps = steps_of(load, config_for(load))
    assert [int(step.positions[0]) for step in steps[:3]] == [64, 67, 70]
    assert len(steps[0].groups) == 2


def test_weights_count_as_they_are_in_files() -> None:
    kinds = ("F32", "F16", "Q8_0", "Q4_1", "Q4_K", "Q6_K")
    assert [bytes_of_row(kind, 256) for kind in kinds] == [1024, 512, 272, 160, 144, 210]


def test_parts_of_a_step_are_told_by_their_kernels() -> None:
    names = ("embed", "matmul", "append_kv", "attend_decode", "merge_splits", "head_norm")
    assert [part_of(name) for name in names] == ["matmul", "matmul", *["attention"] * 3, "other"]


def test_a_run_without_a_terminal_says_each_benchmark_once(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO())
    progress = command.Progress(console, console.status(""), ["limit", "matvec"])
    for name in ("limit", "matvec"):
        progress.begin(name)
        progress.say("busy")
    assert capsys.readouterr().err == "0:00 1/2 limit\n0:00 2/2 matvec\n"


def test_limits_are_raised_only_when_asked_for() -> None:
    assert command.needs(0) == {}
    assert command.needs(512)["max-storage-buffer-binding-size"] == 512 << 20


def test_the_command_line_names_its_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "nothing"])
    assert "decode_attention" in capsys.readouterr().err
