"""Rotary position embedding (RoFormer, Su et al. 2021) as tables of cosines and sines, made on the host.

Everything is computed in float64 and rounded once, so that neither a GPU's `cos` nor the size of a position
matters, and every scaling rule is one line here instead of one kernel each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, log, pi, sqrt

import numpy as np

from webkv.errors import CacheError

MODES = ("none", "normal", "inline")
PAIRINGS = ("half", "interleaved")
SCALINGS = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True)
class RopeConfig:
    """How queries and keys of a layer group turn with their position.

    `mode`: `none`; `normal`, keys are stored turned; `inline`, keys are stored as they are and turned where
    attention reads them, by their place in the cache (what a per-sequence window with sinks needs).
    `rotary_dim`: the first R features turn, the rest pass (None: all of head_dim).  `pairing`: feature i
    turns with i + R/2 (`half`) or 2i with 2i + 1 (`interleaved`).  Angle of pair i at position p: `p *
    scale * inv_freq[i]`, with `inv_freq[i] = theta ** (-2i / R)` and then one `scaling`:

    * `linear`: divided by `factor` (position interpolation, Chen et al. 2023);
    * `llama3`: divided by `factor` where the wavelength is above `original_max_position / low_freq_factor`,
      kept where it is below `original_max_position / high_freq_factor`, blended between;
    * `yarn` (Peng et al. 2023): blended by pair index between the dims that turn `beta_fast` and `beta_slow`
      times in `original_max_position`; cos and sin times `attention_factor` (None: 0.1 ln(factor) + 1);
    * `longrope` (Ding et al. 2024): divided by `long_factors`, or by `short_factors` when no sequence gets
      longer than `original_max_position`; cos and sin times `attention_factor` (None: the paper's, from
      `max_position / original_max_position`).  `context` is the longest sequence (0: `max_position`): the
      choice is fixed for a cache's life, because stored keys cannot be turned again.

    Raises `CacheError` naming the field.
    """

    mode: str = "normal"
    rotary_dim: int | None = None
    theta: float = 10000.0
    scale: float = 1.0
    pairing: str = "half"
    scaling: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    max_position: int = 0
    context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("pairing", PAIRINGS), ("scaling", SCALINGS)):
            if getattr(self, name) not in known:
                raise CacheError(f"rope {name} is {getattr(self, name)!r}, known are {', '.join(known)}")
        if self.rotary_dim is not None and (self.rotary_dim < 2 or self.rotary_dim % 2):
            raise CacheError(f"rope rotary_dim is {self.rotary_dim}, expected an even number of at least 2")
        for name in ("theta", "scale", "factor"):
            if not getattr(self, name) > 0:
                raise CacheError(f"rope {name} is {getattr(self, name)}, expected a positive number")
        if self.scaling in ("llama3", "yarn", "longrope") and self.original_max_position < 1:
            found = self.original_max_position
            raise CacheError(f"rope original_max_position is {found}, {self.scaling} needs it to be positive")
        if self.scaling == "llama3" and not self.high_freq_factor > self.low_freq_factor > 0:
            factors = (self.low_freq_factor, self.high_freq_factor)
            raise CacheError(f"rope low and high_freq_factor are {factors}, expected 0 < low < high")
        if self.scaling == "longrope":
            self._check_longrope()

    def _check_longrope(self) -> None:
        if self.max_position < 1:
            raise CacheError(f"rope max_position is {self.max_position}, longrope needs it to be positive")
        if not len(self.short_factors) == len(self.long_factors) > 0:
            found = (len(self.short_factors), len(self.long_factors))
            raise CacheError(f"rope short and long_factors have {found} values, expected one per pair")
        if self.rotary_dim is not None and len(self.long_factors) != self.rotary_dim // 2:
            expected = self.rotary_dim // 2
            raise CacheError(f"rope long_factors has {len(self.long_factors)} values, expected {expected}")

    def angles(self, positions: np.ndarray) -> np.ndarray:
        """Angles in radians, float64 (n, R/2), of integer `positions` (n,).  `rotary_dim` must be known."""
        return np.multiply.outer(positions * self.scale, _inverse_frequencies(self)[0])

    def table(self, positions: np.ndarray) -> np.ndarray:
        """(cos, sin) of every pair, float32 (n, R/2, 2), for integer `positions` (n,)."""
        frequencies, magnitude = _inverse_frequencies(self)
        angles = np.multiply.outer(positions * self.scale, frequencies)
        made = np.empty((*angles.shape, 2), np.float32)
        made[..., 0] = np.cos(angles) * magnitude
        made[..., 1] = np.sin(angles) * magnitude
        return made


@lru_cache(maxsize=64)
def _inverse_frequencies(rope: RopeConfig) -> tuple[np.ndarray, float]:
    """Angle per position of each pair, float64 (R/2,), and what cos and sin are multiplied by."""
    assert rope.rotary_dim is not None, "a layer group fills in rotary_dim"
    pair = np.arange(rope.rotary_dim // 2, dtype=np.float64)
    plain = rope.theta ** (-2.0 * pair / rope.rotary_dim)
    if rope.scaling == "linear":
        return plain / rope.factor, 1.0
    if rope.scaling == "llama3":
        # Turns within the original context, blended linearly between the two thresholds.
        turns = rope.original_max_position * plain / (2 * pi)
        blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        keep = np.clip(blend, 0.0, 1.0)
        return plain * (keep + (1.0 - keep) / rope.factor), 1.0
    if rope.scaling == "yarn":
        keep = 1.0 - _yarn_ramp(rope, pair)
        own = 0.1 * log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
        magnitude = own if rope.attention_factor is None else rope.attention_factor
        return plain * (keep + (1.0 - keep) / rope.factor), magnitude
    if rope.scaling == "longrope":
        longest = rope.context or rope.max_position
        factors = rope.long_factors if longest > rope.original_max_position else rope.short_factors
        stretch = rope.max_position / rope.original_max_position
        own = sqrt(1.0 + log(stretch) / log(rope.original_max_position)) if stretch > 1 else 1.0
        magnitude = own if rope.attention_factor is None else rope.attention_factor
        return plain / np.asarray(factors, np.float64), magnitude
    return plain, 1.0


def _yarn_ramp(rope: RopeConfig, pair: np.ndarray) -> np.ndarray:
    """How much of each pair is interpolated, 0 to 1; one value per pair, so that both halves agree."""
    dims = rope.rotary_dim or 0

    def turning(times: float) -> float:
        return dims * log(rope.original_max_position / (times * 2 * pi)) / (2 * log(rope.theta))

    low = max(floor(turning(rope.beta_fast)), 0)
    high = min(ceil(turning(rope.beta_slow)), dims - 1)
    # A ramp of no width would divide by zero.
    return np.clip((pair - low) / max(high - low, 0.001), 0.0, 1.0)
