"""What Apache TVM's own cache did, operation by operation: outputs, stored KV, pages, lengths, errors."""

from __future__ import annotations

import pytest

from tests.cache.scenario import Runner, Scenario
from tests.support import device

CASES = (
    "01_ragged_prefill_decode", "03_fork", "05_popn", "06_seq_sliding_none", "07_layer_sliding", "09_tree",
    "11_rope_scaling", "13_f16", "14_remove_reuse", "19_errors", "21_mla", "p0_layer_sliding_cpu",
)  # fmt: skip


@pytest.mark.parametrize("aux", ["plain", "cached"])
@pytest.mark.parametrize("name", CASES)
async def test_case_equals_tvm(name: str, aux: str) -> None:
    await Runner(await device(), Scenario.load(name), aux).run()
