"""Betting e-processes for Bernoulli and bounded means.

A gambler starts with 1 and bets against the null ``E X <= bound`` (X in [0, 1]).  Under the null no strategy grows
in expectation, so by Ville's inequality the chance that the wealth *ever* reaches ``1/alpha`` is at most alpha:
one may look after every draw, stop at any time, and continue another day.

The stake on an alternative mean ``a > bound`` multiplies the wealth by ``1 + (a - bound)/(bound (1 - bound)) (x - bound)``;
for Bernoulli draws this is the likelihood ratio of `a` to `bound`.  We hold equal stakes on a *geometric* ladder of
alternatives, since a bound may be wrong by any factor (Ville 1939; Waudby-Smith and Ramdas, "Estimating means of
bounded random variables by betting", JRSS B 2024, section 4).

Everything here is exact in rationals, so that a verifier can recompute an e-value from the draws; the floats of
`Wealth` only say when it is worth recomputing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from assay.core.errors import InputError

RATIO = Fraction(7, 5)
"""Between neighbouring alternatives."""

NEAREST = Fraction(11, 10)
"""The alternative closest to the bound, for small excesses."""

MAX_ALTERNATIVES = 64
BITS = 256


def alternatives(bound: Fraction) -> tuple[Fraction, ...]:
    """The means that are bet on: ``11/10 bound``, then ``bound (7/5)^i``, as long as they are below 1, and 1 itself.

    >>> alternatives(Fraction(1, 2))
    (Fraction(11, 20), Fraction(7, 10), Fraction(49, 50), Fraction(1, 1))
    """
    _check_bound(bound)
    ladder = [bound * NEAREST]
    ladder += [bound * RATIO**i for i in range(1, MAX_ALTERNATIVES)]
    return (*[a for a in ladder if a < 1], Fraction(1))


def _check_bound(bound: Fraction) -> None:
    if not 0 < bound < 1:
        raise InputError(
            f"a bound of {bound} on a mean in [0, 1] leaves nothing to bet on; it must be in (0, 1)"
        )


def bernoulli_e_value(failures: int, draws: int, bound: Fraction) -> Fraction:
    """The e-value of `failures` in `draws` against ``P(failure) <= bound``, exactly.

    >>> bernoulli_e_value(0, 0, Fraction(1, 20))
    Fraction(1, 1)
    >>> bernoulli_e_value(17, 1300, Fraction(1, 1000)) > 10**6
    True

    Raises:
        InputError: the bound is outside (0, 1), or the counts are no counts.
    """
    if not 0 <= failures <= draws:
        raise InputError(f"{failures} failures in {draws} draws is no count")
    ladder = alternatives(bound)
    total = sum(
        ((a / bound) ** failures * ((1 - a) / (1 - bound)) ** (draws - failures) for a in ladder), Fraction(0)
    )
    return total / len(ladder)


def bernoulli_e_value_below(failures: int, draws: int, bound: Fraction) -> Fraction:
    """A lower bound on `bernoulli_e_value` with 256 significant bits: all that a refutation needs, and fast.

    >>> exact = bernoulli_e_value(3, 40, Fraction(1, 20))
    >>> 0 <= exact - bernoulli_e_value_below(3, 40, Fraction(1, 20)) < exact / 2**200
    True
    """
    if not 0 <= failures <= draws:
        raise InputError(f"{failures} failures in {draws} draws is no count")
    ladder = alternatives(bound)
    total = Fraction(0)
    for a in ladder:
        total += _power_below(a / bound, failures) * _power_below((1 - a) / (1 - bound), draws - failures)
    return total / len(ladder)


def _power_below(base: Fraction, exponent: int) -> Fraction:
    result, square = Fraction(1), base
    while exponent:
        if exponent & 1:
            result = _down(result * square)
        square = _down(square * square)
        exponent >>= 1
    return result


def _down(value: Fraction) -> Fraction:
    """Round a non-negative rational down to `BITS` significant bits."""
    if value == 0:
        return value
    shift = BITS - (value.numerator.bit_length() - value.denominator.bit_length())
    if shift >= 0:
        return Fraction((value.numerator << shift) // value.denominator, 1 << shift)
    return Fraction(value.numerator // (value.denominator << -shift) << -shift)


def mean_e_value_below(values: Iterable[Fraction], bound: Fraction) -> Fraction:
    """A lower bound on the e-value of draws in [0, 1] against ``E X <= bound``, with 256 significant bits.

    >>> mean_e_value_below([Fraction(1)] * 3, Fraction(1, 2)) <= bernoulli_e_value(3, 3, Fraction(1, 2))
    True

    Raises:
        InputError: a draw is outside [0, 1]: then there is no theorem.
    """
    ladder = alternatives(bound)
    stakes = [(a - bound) / (bound * (1 - bound)) for a in ladder]
    wealth = [Fraction(1)] * len(ladder)
    for x in values:
        if not 0 <= x <= 1:
            raise InputError(f"a draw of {x} is outside [0, 1], where the wealth is no e-process")
        wealth = [_down(w * (1 + stake * (x - bound))) for w, stake in zip(wealth, stakes, strict=True)]
    return sum(wealth, Fraction(0)) / len(ladder)


@dataclass(frozen=True, slots=True)
class Wealth:
    """The running e-process in floats: log wealth per alternative after `draws` draws.

    Immutable, so evidence is kept, written down and continued: ``wealth.after(more)`` is the next state.

    >>> start = Wealth.start(Fraction(1, 20))
    >>> once = start.after(np.array([0.0, 1.0, 0.0, 1.0]))
    >>> twice = start.after(np.array([0.0, 1.0])).after(np.array([0.0, 1.0]))
    >>> bool(abs(once.log_e - twice.log_e) < 1e-12), once.draws
    (True, 4)
    """

    bound: Fraction
    draws: int
    logs: tuple[float, ...]

    @classmethod
    def start(cls, bound: Fraction) -> Wealth:
        """Before the first draw: wealth 1 on every alternative."""
        return cls(bound, 0, (0.0,) * len(alternatives(bound)))

    @property
    def log_e(self) -> float:
        """Logarithm of the e-value."""
        return _log_mean(np.array(self.logs))

    def after(self, values: np.ndarray) -> Wealth:
        """The state after more draws, each in [0, 1].

        Raises:
            InputError: a draw is outside [0, 1].
        """
        growth = log_growth(values, self.bound).sum(axis=0)
        return Wealth(self.bound, self.draws + len(values), tuple((np.array(self.logs) + growth).tolist()))


def log_growth(values: np.ndarray, bound: Fraction) -> np.ndarray:
    """Log growth of each alternative's wealth by each draw: shape ``(*values.shape, alternatives)``.

    Raises:
        InputError: a draw is outside [0, 1].
    """
    if not np.all((values >= 0) & (values <= 1)):
        raise InputError("a draw is outside [0, 1], where the wealth is no e-process")
    stakes = np.array([float((a - bound) / (bound * (1 - bound))) for a in alternatives(bound)])
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(1 + stakes * (values[..., None] - float(bound)), 0.0))


def _log_mean(logs: np.ndarray) -> float:
    top = float(logs.max())
    return top + float(np.log(np.exp(logs - top).mean())) if np.isfinite(top) else -np.inf


def lower_limit(values: np.ndarray, alpha: Fraction, *, steps: int = 40) -> float:
    """A lower confidence limit for E X from draws in [0, 1]: the largest bound that is refuted at level `alpha`.

    Measured in floats.  Zero if nothing is refuted.

    >>> 0.3 < lower_limit(np.tile([0.0, 1.0], 500), Fraction(1, 20)) < 0.5
    True
    """
    needed = float(-np.log(float(alpha))) + 1e-6
    low, high = 0.0, float(values.mean()) if len(values) else 0.0
    for _ in range(steps):
        middle = (low + high) / 2
        bound = Fraction(middle).limit_denominator(10**9)
        if not 0 < bound < 1:
            break
        refuted = _log_mean(log_growth(values, bound).sum(axis=0)) >= needed
        low, high = (float(bound), high) if refuted else (low, middle)
    return low
