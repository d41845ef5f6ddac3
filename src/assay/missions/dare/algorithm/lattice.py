"""Two-sided brackets of tails by a lattice Fourier transform with a certified remainder.

X = sum s_j (v_j - a_j) is rounded to a lattice, s_j = k_j d + r_j with |r_j| <= d/2.  The law of the
lattice sum Y = d sum k_j (v_j - a_j) comes from one inverse transform of prod_j (1 - a_j + a_j e^{-i f k_j}).
Four errors remain and each is bounded:

* remainder: R = sum r_j (v_j - a_j) exceeds sqrt(sum r_j^2 Phi(a_j) ln(1/eta)) with probability at most
  eta (Kearns-Saul, each sign);
* wrap-around: outcomes outside the window, by Chernoff;
* floating point: the l1 error of the probabilities is at most sqrt(2N) |P|_2 u (8 n + 8 log2 N) to first
  order (u = 2^-53, n factors each within a few u, transform within 8 u log2 N in l2);
* far tails: exponential tilting centres the window on the level, so these errors become relative.

Specification 1.f.3 and 1.f.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from assay.missions.dare.algorithm import chernoff
from assay.missions.dare.model import BernoulliSum

Floats = NDArray[np.float64]

TILT_BELOW = 1e-6
"""Failure probabilities below this are computed under a tilted law."""

_WINDOW_MASS = 1e-6
_REMAINDER_SHARE = 1e-3
_BLOCK = 2048


class Bracket(NamedTuple):
    """A certified pair lower <= true value <= upper."""

    lower: float
    upper: float


def threshold(law: BernoulliSum, gamma: float, bins: int) -> Bracket:
    """Bracket of the smallest s with P(|X| > s) <= gamma."""
    if law.scale.size == 0:
        return Bracket(0.0, 0.0)
    ceiling = chernoff.two_sided_threshold(law, gamma)
    if gamma >= TILT_BELOW:
        upper_tail = _LatticeTail.of(law, 0.0, _WINDOW_MASS * gamma, bins)
        lower_tail = upper_tail.reflected()
    else:
        upper_tail = _LatticeTail.at_level(law, ceiling, bins)
        lower_tail = _LatticeTail.at_level(law.mirror(), ceiling, bins)
    eta = _REMAINDER_SHARE * gamma
    deviation = max(upper_tail.deviation(eta / 2.0), lower_tail.deviation(eta / 2.0))
    if deviation == 0.0:
        eta = 0.0
    levels = np.concatenate([upper_tail.points, lower_tail.points])
    levels = np.unique(levels[levels >= max(0.0, upper_tail.points[0], lower_tail.points[0])])
    mass = upper_tail.beyond(levels) + lower_tail.beyond(levels)
    slack = eta + upper_tail.error(levels) + lower_tail.error(levels)
    enough = np.flatnonzero(mass + slack <= gamma)
    # Far below the level a tilted tail knows little: the last level certainly exceeded counts.
    exceeded = np.flatnonzero(mass - slack > gamma)
    upper = min(ceiling, float(levels[enough[0]]) + deviation) if enough.size else ceiling
    lower = float(levels[min(exceeded[-1] + 1, levels.size - 1)]) - deviation if exceeded.size else 0.0
    return Bracket(min(max(0.0, lower), upper), upper)


def upper_tail(law: BernoulliSum, level: float, bins: int) -> Bracket:
    """Bracket of P(X >= level), relatively accurate however small.

    A level within 1e-9 of a step of an outcome of a common-grid law is read as that outcome.
    """
    bound = chernoff.tail(law, level)
    if law.scale.size == 0 or level <= -law.mirror().supremum or bound == 0.0:
        return Bracket(bound, bound)
    if level >= law.supremum * (1.0 - chernoff.EDGE):
        return Bracket(bound, bound)
    lattice = _LatticeTail.at_level(law, level, bins)
    # The probability is about bound / (sqrt(2 pi) t sd_t) (Bahadur and Rao); eta is a share of that.
    eta = _REMAINDER_SHARE * bound / (1.0 + lattice.tilt * math.sqrt(law.log_mgf(lattice.tilt).second))
    deviation = lattice.deviation(eta)
    if deviation == 0.0:
        eta, nudge = 0.0, 1e-9 * lattice.step
        above = below = np.array([level - nudge])
    else:
        below, above = np.array([level - deviation]), np.array([level + deviation])
    upper = float((lattice.from_(below) + lattice.error(below))[0]) + eta
    lower = float((lattice.from_(above) - lattice.error(above))[0]) - eta
    return Bracket(max(0.0, lower), min(upper, bound))


@dataclass(frozen=True, eq=False)
class _LatticeTail:
    """Upper tail of the lattice sum Y on a window of its points.

    points: values y [N], ascending.  survival: P(Y >= y) [N].  The error at y is ``loose`` times
    exp(log_weight - t y).  remainder: sum r_j^2 Phi(a_j), a bound on the rounding left out.
    """

    points: Floats
    survival: Floats
    step: float
    tilt: float
    log_weight: float
    loose: float
    remainder: float
    masses: Floats

    @classmethod
    def at_level(cls, law: BernoulliSum, level: float, bins: int) -> _LatticeTail:
        """The tail computed under the tilt that makes ``level`` the mean (capped short of the supremum)."""
        t = chernoff.saddle_argument(law, min(level, law.supremum * (1.0 - 1e-6)))
        return cls.of(law, t, 1e-12, bins)

    @classmethod
    def of(cls, law: BernoulliSum, t: float, mass: float, bins: int) -> _LatticeTail:
        common = _common_step(law.scale)
        if common is not None and law.scale.sum() / common < bins // 2 - 8:
            # The rounding is exact and the whole range fits: a smaller transform loses less.
            step, k = common, np.rint(law.scale / common)
            residue = np.zeros_like(k)
            bins = 1 << (2 * int(k.sum()) + 15).bit_length()
        else:
            # Room for the rounded sum to reach further than the sum itself.
            room = min(law.scale.size, bins // 64) + 4
            step = 2.0 * chernoff.split_threshold(law.tilt(t).varying(), mass) / (bins - room)
            k = np.rint(law.scale / step)
            residue = law.scale - k * step
        rounded = BernoulliSum(k * step, law.prob, law.complement)
        used = k > 0
        tilted = rounded.tilt(t)
        index = BernoulliSum(k[used], tilted.prob[used], tilted.complement[used])
        reach = bins // 2 - 2
        wrap = chernoff.tail(index.varying(), reach) + chernoff.tail(index.varying().mirror(), reach)
        masses = np.fft.irfft(_characteristic(k[used].astype(np.int64) % bins, index.prob, bins), bins)
        rounding = (
            2.0**-53 * math.sqrt(2.0 * bins * float(masses @ masses)) * 8.0 * (k.size + math.log2(bins))
        )
        first = round(float(np.sum(index.scale * index.prob))) - bins // 2
        masses = np.maximum(np.roll(masses, -(first % bins)), 0.0)
        points = (np.arange(first, first + bins, dtype=np.float64) - float(np.sum(k * law.prob))) * step
        log_weight = rounded.log_mgf(t).value
        survival = np.cumsum((masses * np.exp(log_weight - t * points))[::-1])[::-1]
        remainder = 2.0 * BernoulliSum(np.abs(residue), law.prob, law.complement).proxy()
        return cls(points, survival, step, t, log_weight, wrap + rounding, remainder, masses)

    def reflected(self) -> _LatticeTail:
        """The upper tail of -Y, from the same untilted masses."""
        assert self.tilt == 0.0
        survival = np.cumsum(self.masses)[::-1]
        return _LatticeTail(
            -self.points[::-1], survival, self.step, 0.0, 0.0, self.loose, self.remainder, self.masses[::-1]
        )

    def deviation(self, eta: float) -> float:
        """Level that the remainder exceeds with probability at most eta (one sign)."""
        return math.sqrt(self.remainder * math.log(1.0 / eta)) if self.remainder > 0.0 else 0.0

    def from_(self, level: Floats) -> Floats:
        """P(Y >= level)."""
        return self._at(np.searchsorted(self.points, level, side="left"))

    def beyond(self, level: Floats) -> Floats:
        """P(Y > level)."""
        return self._at(np.searchsorted(self.points, level, side="right"))

    def error(self, level: Floats) -> Floats:
        """Bound on the error of :meth:`from_` and :meth:`beyond`."""
        return self.loose * np.exp(self.log_weight - self.tilt * level)

    def _at(self, position: NDArray[np.intp]) -> Floats:
        return np.append(self.survival, 0.0)[position]


def _common_step(scale: Floats) -> float | None:
    """A step of which every scale is a whole multiple up to rounding, if a simple one exists.

    Tried are the smallest scale and its fractions down to 1/256: integers and halves, not every lattice.
    """
    distinct = np.unique(scale)
    for divisor in range(1, 257):
        step = float(distinct[0]) / divisor
        for part in (distinct[:8], distinct):
            ratio = part / step
            if (np.abs(ratio - np.rint(ratio)) > 4e-16 * ratio).any():
                break
        else:
            return step
    return None


def _characteristic(k: NDArray[np.int64], prob: Floats, bins: int) -> NDArray[np.complex128]:
    """prod_j (1 - a_j + a_j e^{-2 pi i f k_j / N}) for f = 0..N/2."""
    angle = np.arange(bins) * (2.0 * np.pi / bins)
    real, imag = _product(k, prob, np.cos(angle), np.sin(angle))
    return real + 1j * imag


@njit(cache=True, nogil=True)
def _product(k, prob, cosine, sine):
    """The product in blocks of frequencies; a block that has vanished (below 1e-200) is left at 0."""
    bins = cosine.size
    count = bins // 2 + 1
    real, imag = np.ones(count), np.zeros(count)
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        for j in range(k.size):
            a, kj = prob[j], k[j]
            at = (start * kj) % bins
            for f in range(start, stop):
                x, y = 1.0 - a + a * cosine[at], -a * sine[at]
                re, im = real[f], imag[f]
                real[f], imag[f] = re * x - im * y, re * y + im * x
                at += kj
                if at >= bins:
                    at -= bins
            if j % 32 == 31:
                largest = 0.0
                for f in range(start, stop):
                    largest = max(largest, abs(real[f]) + abs(imag[f]))
                if largest < 1e-200:
                    real[start:stop] = 0.0
                    imag[start:stop] = 0.0
                    break
    return real, imag
