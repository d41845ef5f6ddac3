"""Tail certificates of one pruned output: P(|H_q - E H_q| > T) <= gamma, from loosest to tightest.

| method | cost | what is returned |
|-|-|-|
| ``ks`` | n | Kearns-Saul, the goal bound: sqrt(Q Phi ln(2/gamma))/q |
| ``signed`` | n | Kearns-Saul on one sign, the variance on the other |
| ``chernoff-split`` | 20 n | best exponential bound, gamma/2 on each side |
| ``chernoff`` | 200 n | best exponential bounds, their sum equal to gamma |
| ``lattice`` | n N | bracket of the true quantile by a lattice transform with certified remainder |
| ``exact`` | 2^n | the quantile itself, all masks enumerated |
| ``saddlepoint`` | 200 n | Lugannani-Rice **estimate**, which may lie below the truth |

For every sub-Gaussian method the event is the strict |H| > T: when all coefficients are 0, T is 0.
Specification 1.b, 1.f and 1.h.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from assay.core.errors import InputError
from assay.missions.dare import _checks
from assay.missions.dare.algorithm import chernoff, lattice
from assay.missions.dare.model import (
    BernoulliSum,
    Floats,
    centred_law,
    cumulants,
    enumerate_law,
    phi,
)

ThresholdMethod = Literal["ks", "signed", "chernoff", "chernoff-split", "lattice", "exact", "saddlepoint"]
ProbabilityMethod = Literal["ks", "signed", "chernoff", "lattice", "exact", "saddlepoint"]
Side = Literal["both", "upper", "lower"]

STRENGTHS = {
    "ks": "upper bound",
    "signed": "upper bound",
    "chernoff": "upper bound",
    "chernoff-split": "upper bound",
    "quantised-proxy": "upper bound",
    "lattice": "certified bracket",
    "exact": "exact law",
    "saddlepoint": "estimate, not a bound",
}
"""What each method's number is; all are evaluated in float64 and carry its rounding."""

LATTICE_BINS = 1 << 16


@dataclass(frozen=True, slots=True)
class TailThreshold:
    """A level T with P(|H_q - E H_q| > T) <= gamma, in the sense ``strength`` says.

    Attributes:
        threshold: T, the upper end where there is a bracket.
        gamma: the failure probability.
        method: how T was found.
        strength: what kind of number T is, one of :data:`STRENGTHS`.
        lower: a lower bound on the true quantile, where the method gives one.
    """

    threshold: float
    gamma: float
    method: str
    strength: str
    lower: float | None = None


@dataclass(frozen=True, slots=True)
class TailProbability:
    """P(X >= level) for the named side of X = H_q - E H_q, as ``strength`` says.

    Attributes:
        probability: the bound, the upper end where there is a bracket.
        level: the level, not negative.
        side: ``upper`` P(X >= level), ``lower`` P(X <= -level), ``both`` their sum.
        method, strength, lower: as in :class:`TailThreshold`.
    """

    probability: float
    level: float
    side: str
    method: str
    strength: str
    lower: float | None = None


def tail_bound(energy: float, drop_prob: float, level: float, *, rescale: float | None = None) -> float:
    """Kearns-Saul bound 2 exp(-s^2 q^2/(Phi(p) Q)) on P(|H_q - E H_q| >= s); may exceed 1.

    Args:
        energy: Q = sum c_j^2, positive.
        drop_prob: p in (0, 1).
        level: s, positive.
        rescale: q; ``None`` is 1 - p.

    >>> tail_bound(4.0, 0.5, 2.0)
    1.2130613194252668
    """
    p = _strict_drop_prob(drop_prob)
    if not (energy > 0 and level > 0):
        raise InputError(f"energy {energy} and level {level} must both be positive for the tail bound")
    q = _checks.rescale_or_keep(rescale, p)
    return 2.0 * math.exp(-((level * q) ** 2) / (phi(p) * energy))


def goal_threshold(count: int, mean: float, variance: float, drop_prob: float, gamma: float) -> float:
    """Equation (8): T = sqrt(n (cbar^2 + sigma^2) Phi(p) ln(2/gamma))/(1-p), with P(|H| > T) <= gamma.

    Args:
        count: n >= 1, number of coefficients.
        mean: cbar, their mean.
        variance: sigma^2 >= 0, their variance (divisor n).
        drop_prob: p in (0, 1).
        gamma: failure probability in (0, 1).

    >>> goal_threshold(1, 1.0, 0.0, 0.5, 0.5)
    1.6651092223153954
    """
    p, failure = _strict_drop_prob(drop_prob), _checks.failure_prob(gamma)
    if count != int(count) or count < 1:
        raise InputError(f"count is {count}; the goal bound needs at least one coefficient")
    if not (variance >= 0 and math.isfinite(variance) and math.isfinite(mean)):
        raise InputError(f"mean {mean} and variance {variance} must be finite, the variance not negative")
    return math.sqrt(count * (mean**2 + variance) * phi(p) * math.log(2.0 / failure)) / (1.0 - p)


def tail_threshold(
    coefficients: ArrayLike,
    drop_prob: Any,
    gamma: float,
    method: ThresholdMethod = "chernoff",
    *,
    rescale: Any = None,
    noise: float = 0.0,
    bins: int = LATTICE_BINS,
) -> TailThreshold:
    """Level that |H_q - E H_q| exceeds with probability at most gamma.

    Args:
        coefficients: c [n].
        drop_prob: p, one number or one per coefficient (entries 0 are never dropped and do not vary).
        gamma: failure probability in (0, 1).
        method: see the module's table; each row is at most the one above it (``exact`` at most ``lattice``).
        rescale: q, one number or one per coefficient; ``None`` is 1 - p.
        noise: sub-Gaussian proxy, given the mask, of an error that comes on top (the quantiser's, 1.h); the
            bounds of the first five methods then hold for the sum.
        bins: lattice size N, a power of two (``lattice`` only).

    Raises:
        InputError: an argument out of range, an unknown method, noise with a method that cannot take it in,
            or too many coefficients to enumerate.

    >>> tail_threshold([1.0], 0.99, 0.005, "ks").threshold, tail_threshold([1.0], 0.99, 0.005).threshold
    (113.03973043584743, 98.99999999999991)
    """
    _checks.choice(method, "method", get_args(ThresholdMethod))
    failure = _checks.failure_prob(gamma)
    if noise and method in ("exact", "saddlepoint"):
        raise InputError(f"the method {method!r} knows the law of the mask alone; use 'lattice' with noise")
    law = centred_law(coefficients, drop_prob, rescale, noise=noise)
    lower: float | None = None
    if method == "ks":
        threshold = math.sqrt(2.0 * law.proxy() * math.log(2.0 / failure))
    elif method == "signed":
        threshold = _signed_threshold(law, failure)
    elif method == "chernoff":
        threshold = chernoff.two_sided_threshold(law, failure)
    elif method == "chernoff-split":
        threshold = chernoff.split_threshold(law, failure)
    elif method == "lattice":
        lower, threshold = _lattice_threshold(law, failure, _power_of_two(bins))
    elif method == "exact":
        value, prob = _centred_atoms(coefficients, drop_prob, rescale)
        threshold = lower = quantile(value, prob, failure)
    else:
        threshold = _saddlepoint_threshold(law, failure)
    return TailThreshold(threshold, failure, method, STRENGTHS[method], lower)


def _lattice_threshold(law: BernoulliSum, failure: float, bins: int) -> tuple[float | None, float]:
    """The lattice bracket; a hundredth of the failure probability buys the noise a bound of its own."""
    if not law.noise:
        return lattice.threshold(law, failure, bins)
    share = failure / 100.0
    spread = math.sqrt(2.0 * law.noise * math.log(2.0 / share))
    mask = dataclasses.replace(law, noise=0.0)
    if not mask.scale.size:
        return None, spread
    return None, lattice.threshold(mask, failure - share, bins)[1] + spread


def tail_probability(
    coefficients: ArrayLike,
    drop_prob: Any,
    level: float,
    method: ProbabilityMethod = "chernoff",
    *,
    side: Side = "both",
    rescale: Any = None,
    bins: int = LATTICE_BINS,
) -> TailProbability:
    """Probability that H_q - E H_q reaches ``level`` > 0 (or ``-level``, or either).

    ``lattice`` tilts the law towards the level, so its bracket is relatively tight however rare the event.

    >>> far = tail_probability([1.0] * 100, 0.3, 50 / 0.7, "lattice", side="upper")    # 80 or more dropped
    >>> f"{far.lower:.9e} {far.probability:.9e}"
    '7.063501612e-25 7.063501612e-25'
    """
    _checks.choice(method, "method", get_args(ProbabilityMethod))
    _checks.choice(side, "side", get_args(Side))
    if not (level > 0 and math.isfinite(level)):
        raise InputError(f"level is {level}; a tail is asked at a positive finite level")
    law = centred_law(coefficients, drop_prob, rescale)
    sides = {"both": [law, law.mirror()], "upper": [law], "lower": [law.mirror()]}[side]
    lower: float | None = None
    if method == "exact":
        value, prob = _centred_atoms(coefficients, drop_prob, rescale)
        near = level * (1.0 - 1e-12)
        hit = {"both": np.abs(value) >= near, "upper": value >= near, "lower": value <= -near}[side]
        probability = lower = math.fsum(np.sort(prob[hit]))
    elif method == "lattice":
        brackets = [lattice.upper_tail(one, level, _power_of_two(bins)) for one in sides]
        lower, probability = sum(b.lower for b in brackets), sum(b.upper for b in brackets)
    elif method == "chernoff":
        probability = sum(chernoff.tail(one, level) for one in sides)
    elif method == "saddlepoint":
        probability = sum(_saddlepoint_tail(one, level) for one in sides)
    else:
        proxies = [one.proxy() if method == "ks" else one.upper_proxy() for one in sides]
        probability = sum(_gaussian_tail(level, proxy) for proxy in proxies)
    return TailProbability(probability, float(level), side, method, STRENGTHS[method], lower)


def quantised_threshold(
    weights: ArrayLike, inputs: ArrayLike, drop_prob: Any, gamma: float, step: Any, *, rescale: Any = None
) -> TailThreshold:
    """Threshold for drop + stochastic quantisation: sqrt(2 v ln(2/gamma)) with the sub-Gaussian proxy

        v = sum_j [ Phi(p_j) c_j^2/2 + x_j^2 h_j^2/4 ] / q_j^2

    (Kearns-Saul for the mask; given the mask, Hoeffding for each kept and quantised entry).

    Args:
        weights: w [n].
        inputs: x [n].
        drop_prob: p, one number or one per entry.
        gamma: failure probability in (0, 1).
        step: quantiser step h, one number or one per entry; 0 where a survivor is stored exactly.
        rescale: q, one number or one per entry; ``None`` is 1 - p.

    >>> round(quantised_threshold([1.0], [1.0], 0.5, 0.05, 0.5).threshold, 12)
    3.036807309542
    """
    failure = _checks.failure_prob(gamma)
    w, x = _checks.array(weights, "weights", 1), _checks.array(inputs, "inputs", 1)
    if w.shape != x.shape:
        raise InputError(f"{w.size} weights meet {x.size} inputs; their numbers must agree")
    h = np.asarray(step, dtype=np.float64)
    if not (h >= 0).all():
        raise InputError("step has a negative or NaN entry; it is the distance between two grid values")
    p = np.asarray(_checks.probability(drop_prob, "drop_prob"))
    q = np.asarray(_checks.rescale_or_keep(rescale, p), dtype=np.float64)
    proxy = centred_law(w * x, p, q).proxy() + float(np.sum((x * h / q) ** 2 * (p < 1.0))) / 4.0
    threshold = math.sqrt(2.0 * proxy * math.log(2.0 / failure))
    return TailThreshold(threshold, failure, "quantised-proxy", STRENGTHS["quantised-proxy"])


def quantile(values: Any, probabilities: Any, gamma: Any) -> Any:
    """Smallest s >= 0 with P(|X| > s) <= gamma, X having the given atoms; exact on rational lists.

    >>> quantile([-99, 1], [0.01, 0.99], 0.005)
    99
    """
    if isinstance(values, np.ndarray):
        size = np.abs(values)
        order = np.argsort(-size, kind="stable")
        beyond = int(np.searchsorted(np.cumsum(np.asarray(probabilities)[order]), gamma, side="right"))
        return float(size[order][beyond]) if beyond < size.size else 0.0
    total: Any = 0
    for size, prob in sorted(((abs(v), m) for v, m in zip(values, probabilities, strict=True)), reverse=True):
        total += prob
        if total > gamma:
            return size
    return 0


# --- pieces ------------------------------------------------------------------------------------------


def _strict_drop_prob(drop_prob: float) -> float:
    p = float(drop_prob)
    if not 0.0 < p < 1.0:
        raise InputError(f"drop_prob is {drop_prob}; this bound holds strictly between 0 and 1")
    return p


def _power_of_two(bins: int) -> int:
    if bins < 64 or bins & (bins - 1):
        raise InputError(f"bins is {bins}; the lattice size must be a power of two, at least 64")
    return bins


def _centred_atoms(coefficients: ArrayLike, drop_prob: Any, rescale: Any) -> tuple[Floats, Floats]:
    c = _checks.array(coefficients, "coefficients", 1)
    p = _checks.probability(drop_prob, "drop_prob")
    value, prob = enumerate_law(c, np.asarray(p, dtype=np.float64), rescale)
    return value - cumulants(c, np.asarray(p, dtype=np.float64), rescale).mean, prob


def _gaussian_tail(level: float, proxy: float) -> float:
    return math.exp(-(level**2) / (2.0 * proxy)) if proxy > 0.0 else 0.0


def _signed_threshold(law: BernoulliSum, gamma: float) -> float:
    up, down = law.upper_proxy(), law.mirror().upper_proxy()
    if up == down:
        return math.sqrt(2.0 * up * math.log(2.0 / gamma))
    low = math.sqrt(2.0 * max(up, down) * math.log(1.0 / gamma))
    high = math.sqrt(2.0 * max(up, down) * math.log(2.0 / gamma))

    def excess(level: float) -> float:
        return _gaussian_tail(level, up) + _gaussian_tail(level, down) - gamma

    if excess(low) <= 0.0:
        return low
    return chernoff.find_root(excess, low, high, xtol=1e-15 * high, rtol=1e-15)


def _saddlepoint_tail(law: BernoulliSum, level: float) -> float:
    """Lugannani and Rice: sf(w) + pdf(w) (1/u - 1/w), w = sqrt(2(ts - K)), u = t sqrt(K'')."""
    if law.scale.size == 0 or level >= law.supremum:
        return 0.0
    t = chernoff.saddle_argument(law, level)
    value, _, second = law.log_mgf(t)
    w, u = math.sqrt(max(2.0 * (t * level - value), 0.0)), t * math.sqrt(second)
    if w == 0.0 or u == 0.0:
        return 0.5
    density = math.exp(-(w**2) / 2.0) / math.sqrt(2.0 * math.pi)
    return math.erfc(w / math.sqrt(2.0)) / 2.0 + density * (1.0 / u - 1.0 / w)


def _saddlepoint_threshold(law: BernoulliSum, gamma: float) -> float:
    if law.scale.size == 0:
        return 0.0
    mirror = law.mirror()
    low, high = 0.3 * math.sqrt(law.variance), chernoff.two_sided_threshold(law, gamma)

    def excess(level: float) -> float:
        return _saddlepoint_tail(law, level) + _saddlepoint_tail(mirror, level) - gamma

    if excess(high) > 0.0:
        return high
    return chernoff.find_root(excess, low, high, rtol=1e-12) if excess(low) > 0.0 else low
