"""RoPE tables against the formulas, written out one number at a time."""

from __future__ import annotations

from dataclasses import replace
from math import cos, floor, log, pi, sin, sqrt

import numpy as np
import pytest

from webkv.cache import RopeConfig
from webkv.errors import CacheError

LLAMA3 = RopeConfig(rotary_dim=64, theta=5e5, scaling="llama3", factor=8.0, original_max_position=64)
YARN = RopeConfig(rotary_dim=64, scaling="yarn", factor=4.0, original_max_position=4096)
LONG = RopeConfig(
    rotary_dim=4, scaling="longrope", original_max_position=4096, max_position=131072,
    short_factors=(1.0, 2.0), long_factors=(3.0, 5.0),
)  # fmt: skip


def frequency(rope: RopeConfig, pair: int) -> float:
    """Angle of one pair at position 1, read off the angles."""
    return float(rope.angles(np.array([1]))[0, pair])


def test_plain_table_is_cos_and_sin_of_position_over_powers_of_theta() -> None:
    table = RopeConfig(rotary_dim=8, theta=100.0, scale=0.5).table(np.array([0, 7]))
    assert table.shape == (2, 4, 2) and table.dtype == np.float32
    assert np.array_equal(table[0], [[1, 0]] * 4)
    for pair in range(4):
        angle = 3.5 / 100.0 ** (2 * pair / 8)
        assert np.allclose(table[1, pair], [cos(angle), sin(angle)], atol=1e-7)


def test_positions_beyond_float32_still_give_exact_angles() -> None:
    # 2**24 + 1 is no float32; an angle computed in float32 would be off by a whole radian.
    table = RopeConfig(rotary_dim=2).table(np.array([2**24 + 1]))
    assert np.allclose(table[0, 0], [cos(2**24 + 1), sin(2**24 + 1)], atol=1e-7)


def test_linear_divides_every_frequency() -> None:
    rope = RopeConfig(rotary_dim=8, scaling="linear", factor=8.0)
    assert frequency(rope, 2) == pytest.approx(10000 ** (-4 / 8) / 8)


def test_llama3_keeps_fast_pairs_divides_slow_ones_and_blends_between() -> None:
    assert frequency(LLAMA3, 0) == pytest.approx(1.0)
    assert frequency(LLAMA3, 31) == pytest.approx(5e5 ** (-62 / 64) / 8)
    pair = 4  # wavelength 32.4: between 64 / 4 and 64 / 1
    plain = 5e5 ** (-2 * pair / 64)
    smooth = (64 / (2 * pi / plain) - 1) / (4 - 1)
    assert 0 < smooth < 1
    assert frequency(LLAMA3, pair) == pytest.approx((1 - smooth) * plain / 8 + smooth * plain)


def test_yarn_blends_by_pair_between_32_turns_and_1() -> None:
    low = floor(64 * log(4096 / (32 * 2 * pi)) / (2 * log(1e4)))
    assert frequency(YARN, low) == pytest.approx(1e4 ** (-2 * low / 64))
    assert frequency(YARN, 31) == pytest.approx(1e4 ** (-62 / 64) / 4)
    assert 1e4 ** (-32 / 64) / 4 < frequency(YARN, 16) < 1e4 ** (-32 / 64)


def test_yarn_scales_cos_and_sin_by_its_attention_factor() -> None:
    table = YARN.table(np.array([5]))
    assert np.allclose(np.hypot(table[..., 0], table[..., 1]), 0.1 * log(4) + 1)
    table = replace(YARN, attention_factor=1.0).table(np.array([5]))
    assert np.allclose(np.hypot(table[..., 0], table[..., 1]), 1)


def test_longrope_takes_long_factors_for_long_contexts_only() -> None:
    assert frequency(LONG, 1) == pytest.approx(0.01 / 5)
    assert frequency(replace(LONG, context=4096), 1) == pytest.approx(0.01 / 2)
    assert frequency(replace(LONG, context=4097), 1) == pytest.approx(0.01 / 5)


def test_longrope_scales_cos_and_sin_by_the_stretch() -> None:
    table = LONG.table(np.array([5]))
    assert np.allclose(np.hypot(table[..., 0], table[..., 1]), sqrt(1 + log(32) / log(4096)))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"mode": "off"}, "mode"),
        ({"pairing": "thirds"}, "pairing"),
        ({"scaling": "magic"}, "scaling"),
        ({"rotary_dim": 7}, "rotary_dim"),
        ({"theta": 0.0}, "theta"),
        ({"factor": -1.0}, "factor"),
        ({"scaling": "yarn"}, "original_max_position"),
        ({"scaling": "llama3", "original_max_position": 9, "low_freq_factor": 4.0}, "high_freq_factor"),
        ({"scaling": "longrope", "original_max_position": 9}, "max_position"),
        ({"scaling": "longrope", "original_max_position": 9, "max_position": 9}, "long_factors"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], named: str) -> None:
    with pytest.raises(CacheError, match=named):
        RopeConfig(**fields)  # type: ignore[arg-type]
