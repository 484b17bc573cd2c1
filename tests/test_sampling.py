"""Sampling: exact choices, a draw that is a pure function of its state, candidates equal to whole rows."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webkv.errors import DamageError, DeviceError, PromptError
from webkv.sampling import Candidates, SamplerState, SamplingParams, needs_full_logits, sample

STATE = SamplerState(seed=7)
# Logits on a coarse grid, so that ties are common.
LOGITS = st.lists(st.integers(-24, 24), min_size=1, max_size=200).map(lambda v: np.array(v, np.float32) / 4)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 300]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)


def row(*logits: float) -> Any:
    return np.array(logits, np.float32)


def candidates(logits: Any, count: int) -> Candidates:
    """The top of a row as the device gives it."""
    ids = np.lexsort((np.arange(len(logits)), -logits))[:count].astype(np.uint32)
    wide = logits.astype(np.float64)
    return Candidates(ids, logits[ids], float(np.log(np.exp(wide - wide.max()).sum()) + wide.max()))


def draws(logits: Any, params: SamplingParams, count: int = 4000) -> Any:
    """How often each id comes in `count` draws, as shares."""
    state, found = STATE, np.zeros(len(logits))
    for _ in range(count):
        token, state = sample(logits, params, state)
        found[token] += 1
    return found / count


def test_greedy_takes_the_lowest_id_among_equals_and_draws_nothing() -> None:
    assert sample(row(1, 3, 3, 2), SamplingParams(), STATE) == (1, STATE)
    assert sample(candidates(row(1, 3, 3, 2), 2), SamplingParams(), STATE) == (1, STATE)


def test_the_generator_is_splitmix64() -> None:
    # The published first outputs for seed 1234567, cut to 53 bits.
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [SamplerState(1234567, n).uniform() for n in range(4)] == [(x >> 11) / 2**53 for x in outputs]


def test_a_draw_advances_the_counter_by_one() -> None:
    _, after = sample(row(1, 1), SamplingParams(temperature=1.0), STATE)
    assert after == SamplerState(seed=7, counter=1)


def test_the_same_state_draws_the_same_token() -> None:
    params = SamplingParams(temperature=1.0)
    logits = np.zeros(1000, np.float32)
    assert sample(logits, params, SamplerState(3, 17)) == sample(logits, params, SamplerState(3, 17))
    assert sample(logits, params, SamplerState(3, 17)) != sample(logits, params, SamplerState(3, 18))
    assert sample(logits, params, SamplerState(3, 17)) != sample(logits, params, SamplerState(4, 17))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_shares_of_draws_follow_the_softmax(temperature: float) -> None:
    logits = row(0, 1, 2, -math.inf)
    expected = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    assert draws(logits, SamplingParams(temperature=temperature)) == pytest.approx(expected, abs=0.03)


def test_top_k_keeps_k_tokens_the_lower_ids_among_equals() -> None:
    found = draws(row(1, 2, 1, 1), SamplingParams(temperature=1.0, top_k=2), 500)
    assert np.flatnonzero(found).tolist() == [0, 1]


def test_top_p_keeps_the_least_set_that_reaches_it() -> None:
    logits = np.log(np.array([0.1, 0.5, 0.3, 0.1], np.float32))
    for top_p, kept in ((0.4, [1]), (0.6, [1, 2]), (0.85, [0, 1, 2]), (0.95, [0, 1, 2, 3])):
        found = draws(logits, SamplingParams(temperature=1.0, top_p=top_p), 500)
        assert np.flatnonzero(found).tolist() == kept


def test_min_p_keeps_what_is_likely_beside_the_likeliest() -> None:
    logits = np.log(np.array([0.1, 0.5, 0.3, 0.1], np.float32))
    found = draws(logits, SamplingParams(temperature=1.0, min_p=0.5), 500)
    assert np.flatnonzero(found).tolist() == [1, 2]


def test_filters_look_at_probabilities_before_the_temperature() -> None:
    logits = np.log(np.array([0.6, 0.4], np.float32))
    found = draws(logits, SamplingParams(temperature=100.0, top_p=0.5), 100)
    assert found.tolist() == [1, 0]


def test_a_nucleus_wider_than_the_first_sort_is_still_whole() -> None:
    logits = np.zeros(5000, np.float32)
    params = SamplingParams(temperature=1.0, top_p=0.5)
    tokens = {sample(logits, params, SamplerState(0, n))[0] for n in range(300)}
    assert 1024 < max(tokens) < 2500


@pytest.mark.parametrize(
    ("logits", "penalty", "recent", "token"),
    [
        (row(2, 1.5), 1.5, [0], 1),  # 2 / 1.5 < 1.5
        (row(2, 1.5), 1.5, [0, 1], 0),
        (row(-1, -1.2), 1.5, [0], 1),  # -1 * 1.5 < -1.2
        (row(-1, -1.2), 1.5, [0, 0, 0], 1),  # once, however often it occurred
        (row(1, 2), 0.4, [0], 0),  # below 1 it attracts
        (row(2, 1), 1.5, [], 0),
    ],
)
def test_the_repetition_penalty(logits: Any, penalty: float, recent: list[int], token: int) -> None:
    before = logits.copy()
    assert sample(logits, SamplingParams(repetition_penalty=penalty), STATE, recent)[0] == token
    assert (logits == before).all()


@settings(max_examples=300)
@given(logits=LOGITS, params=PARAMS, count=st.integers(1, 80), counter=st.integers(0, 1000))
def test_candidates_that_suffice_give_the_token_of_the_whole_row(
    logits: Any, params: SamplingParams, count: int, counter: int
) -> None:
    top = candidates(logits, count)
    state = SamplerState(5, counter)
    if needs_full_logits(params, top):
        assert params.top_k == 0 or params.top_k > len(top.ids)
    else:
        assert sample(top, params, state) == sample(logits, params, state)


@settings(max_examples=200)
@given(logits=LOGITS, params=PARAMS, counter=st.integers(0, 1000))
def test_a_drawn_token_is_among_those_kept(logits: Any, params: SamplingParams, counter: int) -> None:
    token, _ = sample(logits, params, SamplerState(1, counter))
    better = int((logits > logits[token]).sum())
    assert params.top_k == 0 or better < params.top_k
    assert logits[token] >= logits.max() + math.log(params.min_p or 1e-300) - 1e-5
    shares = np.exp(logits.astype(np.float64))
    if params.top_k == 0:
        assert shares[logits > logits[token]].sum() / shares.sum() < params.top_p + 1e-9


@pytest.mark.parametrize(
    ("params", "needed"),
    [
        (SamplingParams(), False),
        (SamplingParams(temperature=1.0), True),
        (SamplingParams(temperature=1.0, top_k=64), False),
        (SamplingParams(temperature=1.0, top_k=65), True),
        (SamplingParams(temperature=1.0, top_p=0.9), True),
        (SamplingParams(repetition_penalty=1.1), True),
        (SamplingParams(temperature=1.0, top_k=4, repetition_penalty=1.1), True),
    ],
)
def test_whether_candidates_may_fall_short(params: SamplingParams, needed: bool) -> None:
    assert needs_full_logits(params) is needed


def test_a_nucleus_within_the_candidates_needs_no_more() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.1, 0.06, 0.04], np.float32))
    top = candidates(logits, 3)
    assert not needs_full_logits(SamplingParams(temperature=1.0, top_p=0.75), top)
    assert needs_full_logits(SamplingParams(temperature=1.0, top_p=0.95), top)
    assert not needs_full_logits(SamplingParams(temperature=1.0, min_p=0.3), top)
    assert needs_full_logits(SamplingParams(temperature=1.0, min_p=0.1), top)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in (-0.1, math.nan, math.inf, "1", True, None)),
        *(("top_k", value) for value in (-1, 1.5, True, None)),
        *(("top_p", value) for value in (0, -0.5, 1.01, math.nan)),
        *(("min_p", value) for value in (-0.1, 1, math.nan)),
        *(("repetition_penalty", value) for value in (0, -1, math.inf, math.nan)),
        *(("seed", value) for value in (-1, 2**64, 0.5, True)),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(PromptError, match=rf"^{field} is .*, expected "):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("logits", [row(1, math.nan), row(math.inf, 1), row(-math.inf, -math.inf), row()])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_finite_maximum_are_refused(logits: Any, temperature: float) -> None:
    with pytest.raises(DeviceError, match="logits without a finite maximum"):
        sample(logits, SamplingParams(temperature=temperature), STATE)


def test_a_tiny_temperature_is_greedy() -> None:
    assert sample(row(1, 3, 2), SamplingParams(temperature=1e-300), STATE)[0] == 1


@given(seed=st.integers(0, 2**64 - 1), counter=st.integers(0, 2**64 - 1))
def test_a_state_survives_json(seed: int, counter: int) -> None:
    state = SamplerState(seed, counter)
    assert SamplerState.from_json(json.loads(json.dumps(state.to_json()))) == state
    assert 0 <= state.uniform() < 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "sampler state is None, expected an object"),
        ({"seed": 1}, "sampler state has counter None"),
        ({"seed": -1, "counter": 0}, "sampler state has seed -1"),
        ({"seed": 1, "counter": 2**64}, f"sampler state has counter {2**64}"),
        ({"seed": "1", "counter": 0}, "sampler state has seed '1'"),
    ],
)
def test_a_damaged_state_is_refused(value: Any, message: str) -> None:
    with pytest.raises(DamageError, match=message):
        SamplerState.from_json(value)
