"""Chernoff bounds of a centred Bernoulli sum by safeguarded Newton steps.

Every bound exp(K(t) - ts) holds for every t >= 0, so an iteration stopped early is loose, never wrong
(up to the rounding of K).  Specification 1.f.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from assay.missions.dare.model import BernoulliSum

EDGE = 1e-14
"""Relative distance to the essential supremum below which a level counts as the supremum itself."""


def find_root(
    function: Callable[[float], float], low: float, high: float, *, rtol: float, xtol: float = 2e-12
) -> float:
    """A zero of a function that changes sign between low and high (Brent's method)."""
    from scipy.optimize import brentq  # here, because it takes half a second that most runs need not wait

    return float(brentq(function, low, high, xtol=xtol, rtol=rtol))


def saddle_argument(law: BernoulliSum, level: float) -> float:
    """The t >= 0 with K'(t) = level, for 0 <= level < supremum."""
    if level <= 0.0:
        return 0.0
    low, high, t = 0.0, math.inf, level / law.variance
    for _ in range(200):
        _, first, second = law.log_mgf(t)
        if abs(first - level) <= 1e-13 * level:
            break
        if first < level:
            low = t
        else:
            high = t
        step = t + (level - first) / second if second > 0.0 else math.inf
        if low < step < min(high, 4.0 * t):
            following = step
        else:
            following = 2.0 * t if high == math.inf else 0.5 * (low + high)
        if following == t:
            break
        t = following
    return t


def tail(law: BernoulliSum, level: float) -> float:
    """Least exponential-moment bound on P(X >= level); at the supremum and beyond, the exact value."""
    if level <= 0.0 or law.variance == 0.0:
        return 1.0 if level <= 0.0 else 0.0
    top = law.supremum
    if level > top * (1.0 + EDGE):
        return 0.0
    if level >= top * (1.0 - EDGE):
        return math.exp(law.log_supremum_mass)
    t = saddle_argument(law, level)
    return math.exp(min(0.0, law.log_mgf(t).value - t * level))


def one_sided_threshold(law: BernoulliSum, log_inverse: float) -> float:
    """Smallest s with inf_t exp(K(t) - ts) <= exp(-log_inverse): min over t of (K(t) + log_inverse)/t.

    The minimum is where t K'(t) - K(t) = log_inverse, an increasing function of t; clipped at the
    essential supremum, which no outcome exceeds.
    """
    if law.variance == 0.0:
        return 0.0
    top, best = law.supremum, math.inf
    low, high = 0.0, math.inf
    t = math.sqrt(2.0 * log_inverse / law.variance)
    for _ in range(100):
        value, first, second = law.log_mgf(t)
        best = min(best, (value + log_inverse) / t)
        gap = t * first - value - log_inverse
        # The objective is flat at its minimum: a gap of 1e-8 moves it by about 1e-16.
        if abs(gap) <= 1e-8 * log_inverse:
            break
        if gap < 0.0:
            low = t
        else:
            high = t
        step = t - gap / (t * second) if second > 0.0 else math.inf
        if low < step < min(high, 4.0 * t):
            t = step
        elif high < math.inf:
            t = 0.5 * (low + high)
        elif top * t > 1e4 * (log_inverse - law.log_supremum_mass):
            break  # the infimum is at t = infinity, where the bound is the supremum
        else:
            t = 2.0 * t
    return min(best, top)


def split_threshold(law: BernoulliSum, gamma: float) -> float:
    """Threshold T with P(|X| > T) <= gamma that spends gamma/2 on each side."""
    log_inverse = math.log(2.0 / gamma)
    return max(one_sided_threshold(law, log_inverse), one_sided_threshold(law.mirror(), log_inverse))


def two_sided_threshold(law: BernoulliSum, gamma: float) -> float:
    """Smallest s with tail(law, s) + tail(mirror, s) <= gamma, clipped at the largest |outcome|."""
    if law.variance == 0.0:
        return 0.0
    mirror = law.mirror()
    log_inverse = math.log(1.0 / gamma)
    upper = split_threshold(law, gamma)
    lower = max(one_sided_threshold(law, log_inverse), one_sided_threshold(mirror, log_inverse))

    def excess(level: float) -> float:
        return tail(law, level) + tail(mirror, level) - gamma

    # One side ends at its supremum, where the sum jumps down; beyond it the other side is alone, and
    # `lower` already is that side's threshold.
    jump, longer = min((law.supremum, mirror), (mirror.supremum, law), key=lambda side: side[0])
    if lower > jump * (1.0 + EDGE):
        return lower
    if upper > jump:
        if excess(jump) > 0.0:
            return jump if tail(longer, jump) <= gamma else lower
        upper = jump
    if lower >= upper or excess(lower) <= 0.0:
        return min(lower, upper)
    if excess(upper) > 0.0:
        return upper
    root = find_root(excess, lower, upper, xtol=1e-14 * upper, rtol=1e-14)
    return root if excess(root) <= 0.0 else min(root * (1.0 + 1e-13), upper)
