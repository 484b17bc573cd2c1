"""Choosing the next token: greedy, temperature, top-k, top-p, min-p, repetition penalty, seed.

The steps, in this order: repetition penalty (Keskar et al. 2019, CTRL), top-k, top-p (nucleus; Holtzman et
al. 2020) over the probabilities at temperature 1, min-p (Nguyen et al. 2024) likewise, temperature over what
is left, then one draw by inverse CDF.  Tokens are ordered by logit, the lower id first among equals, so that
the same bits give the same token whether they come as a whole row or as its top candidates.

There is no hidden state: draw number `counter` under `seed` is a pure function, and the pair is all that a
checkpoint carries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from webkv.errors import DamageError, DeviceError, PromptError

CANDIDATES = 64  # how many of a row's top logits `Candidates` holds unless a caller says otherwise
NUCLEUS_FIRST = (
    1024  # logits sorted in the first try for top-p; the whole row is sorted only if they fall short
)
UINT64 = (1 << 64) - 1

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SamplingParams:
    """How to choose, greedily by default; `top_k` 0, `top_p` 1, `min_p` 0, `repetition_penalty` 1 are off.

    Raises `PromptError` naming the field that is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _require(
            "temperature", self.temperature, 0 <= _real(self.temperature) < math.inf, "a number of at least 0"
        )
        _require("top_k", self.top_k, _whole(self.top_k) >= 0, "an integer of at least 0")
        _require("top_p", self.top_p, 0 < _real(self.top_p) <= 1, "a number above 0 and up to 1")
        _require("min_p", self.min_p, 0 <= _real(self.min_p) < 1, "a number from 0 to below 1")
        penalty = self.repetition_penalty
        _require("repetition_penalty", penalty, 0 < _real(penalty) < math.inf, "a finite number above 0")
        _require("seed", self.seed, 0 <= _whole(self.seed) <= UINT64, "an integer from 0 to 2**64 - 1")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken and nothing is drawn."""
        return self.temperature == 0


@dataclass(frozen=True)
class SamplerState:
    """Where the random stream stands: `counter` draws made under `seed`.  Greedy choices draw nothing."""

    seed: int
    counter: int = 0

    def uniform(self) -> float:
        """This state's draw, in [0, 1) with 53 bits: output `counter` of splitmix64 (Steele et al. 2014)."""
        z = (self.seed + (self.counter + 1) * 0x9E3779B97F4A7C15) & UINT64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & UINT64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & UINT64
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53

    def next(self) -> SamplerState:
        """The state after one more draw."""
        return SamplerState(self.seed, self.counter + 1)

    def to_json(self) -> dict[str, int]:
        """For a checkpoint: `{"seed": ..., "counter": ...}`."""
        return {"seed": self.seed, "counter": self.counter}

    @staticmethod
    def from_json(value: object) -> SamplerState:
        """The inverse of `to_json`; raises `DamageError` naming the field that is missing or out of range."""
        if not isinstance(value, Mapping):
            raise DamageError(f"sampler state is {value!r}, expected an object")
        for name in ("seed", "counter"):
            if not 0 <= _whole(value.get(name)) <= UINT64:
                raise DamageError(f"sampler state has {name} {value.get(name)!r}, expected 0 to 2**64 - 1")
        return SamplerState(value["seed"], value["counter"])


@dataclass(frozen=True)
class Candidates:
    """A row's largest logits: `ids` int[k] and `logits` f32[k], descending, the lower id first among equals.

    `logsumexp` is that of the whole row, natural base.
    """

    ids: npt.NDArray[np.integer]
    logits: Floats
    logsumexp: float


def needs_full_logits(params: SamplingParams, row: Candidates | None = None) -> bool:
    """Whether candidates cannot give exactly what the whole row of logits would give.

    Without `row`, says whether `CANDIDATES` of them might fall short of it.  With `row`, looks whether these
    do: a nucleus or a min-p set is often complete within them.
    """
    if params.repetition_penalty != 1:  # may push a candidate below tokens that are none
        return True
    count = CANDIDATES if row is None else len(row.ids)
    if params.greedy or 0 < params.top_k <= count:
        return count == 0
    if row is None or count == 0:
        return True
    kept = np.exp(row.logits.astype(np.float64) - row.logsumexp)
    complete = _nucleus(kept, params.top_p) <= count or kept[-1] < params.min_p * kept[0]
    return params.top_k > 0 or not complete


def sample(
    row: Floats | Candidates, params: SamplingParams, state: SamplerState, recent: Iterable[int] = ()
) -> tuple[int, SamplerState]:
    """The next token id and the state after it.

    `row` is f32[vocab], or candidates that `needs_full_logits` found enough.  `recent` are the token ids that
    the repetition penalty applies to.  Raises `DeviceError` for logits that hold NaN or nothing finite.
    """
    if isinstance(row, Candidates):
        assert not needs_full_logits(params, row), "candidates do not suffice for these parameters"
        ids, logits, total = row.ids, row.logits, row.logsumexp
        _check_logits(logits)
    else:
        _check_logits(row)
        penalised = _penalise(row, params.repetition_penalty, recent)
        if params.greedy:
            return int(penalised.argmax()), state
        ids, logits, total = _shortlist(penalised, params)
    if params.greedy:
        return int(ids[0]), state
    kept = logits[: _kept(logits.astype(np.float64), total, params)].astype(np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to -inf, as it should
        weights = np.exp((kept - kept.max()) / params.temperature)
    steps = np.cumsum(weights)
    drawn = int(np.searchsorted(steps, state.uniform() * steps[-1], side="right"))
    return int(ids[min(drawn, len(kept) - 1)]), state.next()


def _kept(logits: npt.NDArray[np.float64], total: float, params: SamplingParams) -> int:
    """How many of the descending `logits` pass top-k, top-p and min-p; at least 1.

    `total` is the logsumexp of all tokens, which top-k replaces by that of its k.
    """
    if params.top_k:
        logits = logits[: params.top_k]
        total = _logsumexp(logits)
    if params.top_p == 1 and params.min_p == 0:
        return len(logits)
    shares = np.exp(logits - total)
    count = min(_nucleus(shares, params.top_p), len(shares))
    return max(1, min(count, int((shares >= params.min_p * shares[0]).sum())))


def _nucleus(shares: npt.NDArray[np.float64], top_p: float) -> int:
    """The least number of leading shares that reach `top_p`; one more than there are if they do not."""
    if top_p == 1:
        return len(shares) + 1
    return int(np.searchsorted(np.cumsum(shares), top_p, side="left")) + 1


def _shortlist(logits: Floats, params: SamplingParams) -> tuple[npt.NDArray[np.integer], Floats, float]:
    """As many of the top logits as the parameters can keep, with their ids and the row's logsumexp."""
    if params.top_k:
        ids = _top(logits, params.top_k)
        return ids, logits[ids], 0.0
    if params.top_p == 1 and params.min_p == 0:
        return np.arange(len(logits)), logits, 0.0
    total = _logsumexp(logits.astype(np.float64))
    for count in (NUCLEUS_FIRST, len(logits)):
        ids = _top(logits, count)
        found = Candidates(ids, logits[ids], total)
        if not needs_full_logits(SamplingParams(1.0, 0, params.top_p, params.min_p), found):
            break
    return ids, found.logits, total


def _top(logits: Floats, count: int) -> npt.NDArray[np.intp]:
    """Ids of the `count` largest logits, descending, the lower id first among equals."""
    if count < len(logits):
        least = np.partition(logits, len(logits) - count)[len(logits) - count]
        above, equal = np.flatnonzero(logits > least), np.flatnonzero(logits == least)
        ids = np.concatenate([above, equal[: count - len(above)]])
    else:
        ids = np.arange(len(logits))
    return ids[np.argsort(-logits[ids], kind="stable")]


def _penalise(logits: Floats, penalty: float, recent: Iterable[int]) -> Floats:
    """Recent tokens made less likely: positive ones divided and others multiplied by `penalty`."""
    if penalty == 1:
        return logits
    ids = np.unique(np.fromiter(recent, dtype=np.int64))
    out = logits.copy()
    out[ids] = np.where(out[ids] > 0, out[ids] / np.float32(penalty), out[ids] * np.float32(penalty))
    return out


def _logsumexp(logits: npt.NDArray[np.float64]) -> float:
    top = float(logits.max())
    return top + math.log(float(np.exp(logits - top).sum()))


def _check_logits(logits: Floats) -> None:
    top = logits.max() if len(logits) else -math.inf
    if not math.isfinite(top):  # a NaN anywhere is the maximum too
        bad = int(np.isnan(logits).sum())
        raise DeviceError(f"the device gave logits without a finite maximum: {bad} of {len(logits)} are NaN")


def _real(value: object) -> float:
    """The value, or NaN (which fails every comparison) where it is no real number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _whole(value: object) -> int:
    """The value, or -1 where it is no integer."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _require(name: str, value: object, fits: bool, expected: str) -> None:
    if not fits:
        raise PromptError(f"{name} is {value!r}, expected {expected}")
