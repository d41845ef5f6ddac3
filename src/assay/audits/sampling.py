"""Draws of a statistical claim, each from its own counter-based seed, and the evidence that they add up to.

The seed of draw i is a digest of claim, instance and i, so that nobody can shop for it, evidence can be continued
another day, and any number of workers draws the same values.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from assay.core.claim import Claim, Mean, Tail
from assay.core.errors import AssayError, InputError
from assay.core.number import Ball, Number
from assay.core.verdict import seed_of, seed_stem
from assay.stats.betting import Wealth, bernoulli_e_value_below, log_growth, mean_e_value_below

SCREENING = 1 << 40
"""Draw indices from here on are for choosing instances; evidence never uses them."""


HOPELESS = Fraction(1, 10**5)
"""A bound below this and no failure yet: more draws than any budget has would be needed."""


class Stream:
    """The draws of one claim on one instance, mapped to [0, 1]: failures of a `Tail` are 1."""

    def __init__(self, claim: Claim, instance: Any) -> None:
        self.claim, self.instance = claim, instance
        self._stem = seed_stem(claim, instance)
        form = claim.form
        if isinstance(form, Tail):
            self.low, self.width = Fraction(0), Fraction(1)
            bound = form.delta(instance)
        elif isinstance(form, Mean) and form.support is not None:
            low, high = (_exact(end) for end in form.support(instance))
            if low >= high:
                raise InputError(f"{claim.id}: the declared support [{low}, {high}] is empty or a point")
            self.low, self.width = low, high - low
            bound = form.bound(instance)
        else:
            raise InputError(f"{claim.id} has nothing to sample")
        enclosure = Ball.of(bound) if not isinstance(bound, float) else Ball.of(Fraction(bound))
        self.upper = (enclosure.high - self.low) / self.width
        self.lower = (enclosure.low - self.low) / self.width
        """The bound on the scale of the draws, rounded to either side."""

    def seed(self, draw: int) -> int:
        """The seed that `assay.core.verdict.evaluate` gives this draw."""
        return seed_of(self._stem, draw)

    def values(self, start: int, stop: int) -> np.ndarray:
        """Draws `start` to `stop`, in [0, 1].

        Raises:
            InputError: a draw raises, is NaN, or leaves the declared support.
        """
        return np.array([self._value(i) for i in range(start, stop)], dtype=float)

    def _value(self, draw: int) -> float:
        form, rng = self.claim.form, random.Random(self.seed(draw))
        try:
            if isinstance(form, Tail):
                assert form.event is not None
                return 1.0 if form.event(self.instance, rng) is True else 0.0
            assert isinstance(form, Mean)
            assert form.draw is not None
            value = form.draw(self.instance, rng)
        except AssayError:
            raise
        except Exception as error:
            raise InputError(f"{self.claim.id}: a draw raises {type(error).__name__}: {error}") from error
        if isinstance(value, float) and math.isnan(value):
            raise InputError(f"{self.claim.id}: draw {draw} is NaN")
        scaled = (_exact(value) - self.low) / self.width
        if not 0 <= scaled <= 1:
            raise InputError(
                f"{self.claim.id}: a draw of {value} is outside the declared support, without which there is no test"
            )
        return float(scaled)


def _exact(value: Number) -> Fraction:
    return value.midpoint if isinstance(value, Ball) else Fraction(value)


@dataclass(frozen=True, slots=True)
class Side:
    """One null that is bet against: ``E Y <= bound`` with Y the draw, or 1 minus it where `flipped`."""

    bound: Fraction
    flipped: bool

    def of(self, values: np.ndarray) -> np.ndarray:
        """The draws as this null sees them."""
        return 1 - values if self.flipped else values


def sides_of(stream: Stream) -> tuple[Side, ...]:
    """The nulls of a claim: one, or two for ``==``."""
    form = stream.claim.form
    above = Side(stream.upper, False)
    if isinstance(form, Mean) and form.relation == "==":
        return (above, Side(1 - stream.lower, True))
    return (above,)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the draws so far say: their number and sum, and the wealth against each null (None where bets are moot)."""

    draws: int
    total: float
    wealth: tuple[Wealth | None, ...]

    @classmethod
    def start(cls, stream: Stream) -> Evidence:
        """Before the first draw."""
        return cls(
            0, 0.0, tuple(Wealth.start(s.bound) if 0 < s.bound < 1 else None for s in sides_of(stream))
        )

    def after(self, stream: Stream, values: np.ndarray) -> Evidence:
        """With these draws added."""
        wealth = tuple(
            None if w is None else w.after(side.of(values))
            for w, side in zip(self.wealth, sides_of(stream), strict=True)
        )
        return Evidence(self.draws + len(values), self.total + float(values.sum()), wealth)

    @property
    def log_e(self) -> float:
        """Of the better of the nulls; an infinity where a bound of 0 was exceeded is `impossible`'s to see."""
        return max((w.log_e for w in self.wealth if w is not None), default=0.0)

    @property
    def mean(self) -> float:
        """Of the draws on [0, 1]."""
        return self.total / self.draws if self.draws else 0.0


def impossible(stream: Stream, evidence: Evidence) -> bool:
    """Whether a single draw already contradicts the claim: a bound at or below the least possible value."""
    for side in sides_of(stream):
        mean = 1 - evidence.mean if side.flipped else evidence.mean
        if side.bound < 0 or (side.bound == 0 and mean > 0 and evidence.draws > 0):
            return True
    return False


def refutes(stream: Stream, evidence: Evidence, alpha: Fraction) -> bool:
    """Whether the evidence refutes the claim at level `alpha`, recomputed in rationals rounded down.

    The floats of `Evidence` only say when to look.
    """
    if impossible(stream, evidence):
        return True
    nulls = sides_of(stream)
    needed = len(nulls) / alpha
    for side, wealth in zip(nulls, evidence.wealth, strict=True):
        if wealth is None or wealth.log_e < math.log(needed) - 1e-6:
            continue
        values = side.of(stream.values(0, evidence.draws))
        if e_value_below(values, side.bound) >= needed:
            return True
    return False


def e_value_below(values: np.ndarray, bound: Fraction) -> Fraction:
    """A rational lower bound on the e-value of draws in [0, 1]."""
    if np.all((values == 0) | (values == 1)):
        return bernoulli_e_value_below(int(values.sum()), len(values), bound)
    return mean_e_value_below((Fraction(float(v)) for v in values), bound)


def blocks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """`start` to `stop` in blocks that end at multiples of `size`: how draws are dealt to workers."""
    while start < stop:
        end = min(stop, (start // size + 1) * size)
        yield start, end
        start = end


def joined(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Blocks of draws in their order."""
    return np.concatenate(list(parts))


def screening_score(stream: Stream, start: int, stop: int) -> float:
    """How promising an instance looks from screening draws `start` to `stop`: the likelier a refutation, the larger."""
    values = stream.values(SCREENING + start, SCREENING + stop)
    return max(_score(side.of(values), side.bound) for side in sides_of(stream))


def _score(values: np.ndarray, bound: Fraction) -> float:
    mean = float(values.mean())
    if bound <= 0:
        return math.inf if bound < 0 or mean > 0 else -math.inf
    if bound >= 1 or (mean == 0 and bound < HOPELESS):
        return -math.inf
    return float(log_growth(values, bound).mean(axis=0).max())
