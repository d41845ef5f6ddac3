"""DARE: drop each entry of a delta with probability ``drop_prob`` and divide survivors by ``rescale``.

One output of a layer is a sum S = sum_j c_j with coefficients c_j = dW_j x_j.  With independent drop
indicators w_j ~ Bernoulli(drop_prob), **w_j = 1 meaning dropped**, the error of the pruned output is

    H_q = sum_j c_j (1 - (1 - w_j)/q),        q = rescale  (DARE: q = 1 - drop_prob, H_q unbiased).

Everything here is a definition or an exact formula.  Rational arguments (int, Fraction) give rational
answers; anything else is computed in float64.  ``drop_prob`` and ``rescale`` may also be given per entry.

Source: DAREx, arXiv 2410.09344; the moment and sub-Gaussian package restated there as goals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.core.errors import InputError
from assay.missions.dare import _checks

Floats = NDArray[np.float64]

ENUMERATION_LIMIT = 22
"""Most coordinates whose 2^n masks are enumerated."""


# --- the Kearns-Saul coefficient ---------------------------------------------------------------------


@overload
def phi(drop_prob: float | None = None, *, keep_prob: float | None = None) -> float: ...
@overload
def phi(drop_prob: Floats | None = None, *, keep_prob: Floats | None = None) -> Floats: ...
def phi(drop_prob: Any = None, *, keep_prob: Any = None) -> Any:
    """Kearns-Saul coefficient (1-2p)/ln((1-p)/p) of p = drop_prob, with value 1/2 at p = 1/2.

    Within a few units in the last place over the whole float range.  It is symmetric, so near
    drop_prob = 1 pass ``keep_prob`` instead and lose nothing to the subtraction.

    Args:
        drop_prob: probability in [0, 1], or an array of them.  0 and 1 give the limit 0.
        keep_prob: the complement, given instead of ``drop_prob``.

    Returns:
        A float, or an array of the argument's shape; values in [0, 1/2].

    Raises:
        InputError: none or both of the arguments given, or a value outside [0, 1].

    >>> phi(0.5), phi(keep_prob=1e-300)
    (0.5, 0.0014476482730108396)
    >>> round(phi(0.25), 15)                                     # 1/(2 ln 3)
    0.455119613313419
    """
    if (drop_prob is None) == (keep_prob is None):
        raise InputError("phi takes drop_prob or keep_prob; give exactly one of them")
    name, given = ("drop_prob", drop_prob) if keep_prob is None else ("keep_prob", keep_prob)
    prob = _checks.probability(given, name)
    if np.ndim(prob) == 0:
        return _phi_scalar(float(prob))
    # 1 - prob is exact above 1/2 (Sterbenz), so the smaller of the two loses nothing.
    small = np.where(prob > 0.5, 1.0 - prob, prob)
    u = 1.0 - 2.0 * small
    with np.errstate(divide="ignore", invalid="ignore"):
        central = u / (2.0 * np.arctanh(u))
        outer = u / (np.log1p(-small) - np.log(small))
    return np.where(
        small == 0.0, 0.0, np.where(np.abs(u) <= 1e-9, 0.5, np.where(small < 0.25, outer, central))
    )


def _phi_scalar(prob: float) -> float:
    small = 1.0 - prob if prob > 0.5 else prob
    if small == 0.0:
        return 0.0
    u = 1.0 - 2.0 * small
    if u <= 1e-9:  # the series 1/2 (1 - u^2/3 + ...) rounds to 1/2
        return 0.5
    if small < 0.25:
        return u / (math.log1p(-small) - math.log(small))
    return u / (2.0 * math.atanh(u))


# --- exact moments -----------------------------------------------------------------------------------


class Moments(NamedTuple):
    """First two moments of an error: mean_square = bias^2 + variance."""

    bias: Any
    variance: Any
    mean_square: Any


class Cumulants(NamedTuple):
    """First four cumulants of H_q: mean, variance, third central moment, fourth cumulant."""

    mean: Any
    variance: Any
    third: Any
    fourth: Any


def moments(coefficients: ArrayLike | Sequence[Fraction], drop_prob: Any, rescale: Any = None) -> Moments:
    """Exact bias, variance and mean square of H_q.

    bias = sum (1 - (1-p)/q) c_j,  variance = sum p(1-p) c_j^2 / q^2,  any n >= 0, 0 <= p <= 1, q > 0.

    Args:
        coefficients: c [n].
        drop_prob: p, one number or one per coefficient.
        rescale: q, likewise; ``None`` is DARE's q = 1 - p (needs p < 1).  ``inf`` deletes the delta.

    Returns:
        Fractions if every argument is rational, floats otherwise.

    Raises:
        InputError: p outside [0, 1], q not positive, a NaN, or lengths that differ.

    >>> moments([1, 2, 3], Fraction(9, 10), Fraction(5, 2))
    Moments(bias=Fraction(144, 25), variance=Fraction(126, 625), mean_square=Fraction(20862, 625))
    """
    total = cumulants(coefficients, drop_prob, rescale)
    return Moments(total.mean, total.variance, total.mean**2 + total.variance)


def cumulants(coefficients: ArrayLike | Sequence[Fraction], drop_prob: Any, rescale: Any = None) -> Cumulants:
    """First four cumulants of H_q; arguments and number types as in :func:`moments`.

    >>> cumulants([1], Fraction(3, 4))
    Cumulants(mean=Fraction(0, 1), variance=Fraction(3, 1), third=Fraction(-6, 1), fourth=Fraction(-6, 1))
    """
    if _checks.is_exact(coefficients, drop_prob, rescale):
        return _exact_cumulants(_checks.fractions(coefficients), drop_prob, rescale)
    c, p, q = _float_parameters(coefficients, drop_prob, rescale)
    a = c / q
    v = p * (1.0 - p)
    return Cumulants(
        float(np.sum((1.0 - (1.0 - p) / q) * c)),
        float(np.sum(v * a**2)),
        float(np.sum(v * (1.0 - 2.0 * p) * a**3)),
        float(np.sum(v * (1.0 - 6.0 * v) * a**4)),
    )


def _exact_cumulants(c: list[Fraction], drop_prob: Any, rescale: Any) -> Cumulants:
    p, q = _exact_parameters(len(c), drop_prob, rescale)
    mean = variance = third = fourth = Fraction(0)
    for cj, pj, qj in zip(c, p, q, strict=True):
        a, v = cj / qj, pj * (1 - pj)
        mean += (1 - (1 - pj) / qj) * cj
        variance += v * a**2
        third += v * (1 - 2 * pj) * a**3
        fourth += v * (1 - 6 * v) * a**4
    return Cumulants(mean, variance, third, fourth)


def _exact_parameters(count: int, drop_prob: Any, rescale: Any) -> tuple[list[Fraction], list[Fraction]]:
    p = _checks.fraction_per_entry(drop_prob, count, "drop_prob")
    for pj in p:
        _checks.probability(pj, "drop_prob")
    if rescale is None:
        return p, [_checks.rescale_or_keep(None, pj) for pj in p]
    q = _checks.fraction_per_entry(rescale, count, "rescale")
    return p, [_checks.rescale_or_keep(qj, None) for qj in q]


def _float_parameters(coefficients: Any, drop_prob: Any, rescale: Any) -> tuple[Floats, Any, Any]:
    c = _checks.array(coefficients, "coefficients", 1)
    p = np.asarray(_checks.probability(drop_prob, "drop_prob"), dtype=np.float64)
    q = np.asarray(_checks.rescale_or_keep(rescale, p), dtype=np.float64)
    for name, value in (("drop_prob", p), ("rescale", q)):
        if value.shape not in ((), c.shape):
            raise InputError(
                f"{name} has shape {value.shape} for {c.size} coefficients; give one number or one each"
            )
    return c, p, q


# --- the law of H_q - E H_q ---------------------------------------------------------------------------


class LogMgf(NamedTuple):
    """A cumulant function and its first two derivatives at one argument."""

    value: float
    first: float
    second: float


@dataclass(frozen=True, eq=False)
class BernoulliSum:
    """The centred sum  X = sum_j s_j (v_j - a_j)  of independent v_j ~ Bernoulli(a_j), with s_j > 0.

    H_q - E H_q is of this form (:func:`centred_law`): s_j = |c_j|/q_j and a_j is the probability of the
    larger atom, drop_prob for c_j > 0 and 1 - drop_prob for c_j < 0.

    Attributes:
        scale: s [n], not negative.
        prob: a [n], in (0, 1].
        complement: 1 - a [n], kept beside a so that neither is lost to rounding near 0.
        noise: proxy v of a further error that is sub-Gaussian given the v_j, such as a quantiser's: its
            moment generating function is at most e^{v t^2/2}.  Bounds take it in; the variance counts it whole.

    >>> law = centred_law([1.0], 0.99)                        # H is 1 (dropped) or -99 (kept)
    >>> round(law.supremum, 9), round(law.mirror().supremum, 9)
    (1.0, 99.0)
    """

    scale: Floats
    prob: Floats
    complement: Floats
    noise: float = 0.0

    @property
    def variance(self) -> float:
        return float(np.sum(self.scale**2 * self.prob * self.complement)) + self.noise

    @property
    def supremum(self) -> float:
        """Essential supremum, sum of the larger atoms; unknown, so infinite, with noise."""
        return math.inf if self.noise else float(np.sum(self.scale * self.complement))

    @property
    def log_supremum_mass(self) -> float:
        """Logarithm of the probability that the essential supremum is attained."""
        return float(np.sum(np.log(self.prob)))

    def mirror(self) -> BernoulliSum:
        """The law of -X."""
        return BernoulliSum(self.scale, self.complement, self.prob, self.noise)

    def log_mgf(self, t: float) -> LogMgf:
        """K(t) = ln E e^{tX} with K'(t) and K''(t), for t >= 0 (use the mirror for t < 0).

        Each coordinate is b x + ln(a + b e^{-x}) with b = 1 - a and x = t s: no term overflows, and the
        logarithm is taken as log1p where its argument is near 1.
        """
        a, b, x = self.prob, self.complement, t * self.scale
        minus, decay = np.expm1(-x), np.exp(-x)
        normaliser = a + b * decay
        spread = self.scale * a * b / normaliser
        logs = np.where(normaliser < 0.5, np.log(normaliser), np.log1p(np.maximum(b * minus, -0.75)))
        return LogMgf(
            float(np.sum(b * x + logs)) + self.noise * t * t / 2.0,
            float(-np.sum(spread * minus)) + self.noise * t,
            float(np.sum(spread * self.scale * decay / normaliser)) + self.noise,
        )

    def tilt(self, t: float) -> BernoulliSum:
        """The coordinates under dP_t = e^{tX - K(t)} dP, centred at their tilted means (t >= 0)."""
        rest = self.complement * np.exp(-t * self.scale)
        normaliser = self.prob + rest
        return BernoulliSum(self.scale, self.prob / normaliser, rest / normaliser)

    def varying(self) -> BernoulliSum:
        """Without the coordinates that do not vary (a tilt may make one certain to rounding)."""
        keep = (self.scale > 0.0) & (self.prob > 0.0) & (self.complement > 0.0)
        return BernoulliSum(self.scale[keep], self.prob[keep], self.complement[keep], self.noise)

    def proxy(self) -> float:
        """Kearns-Saul variance proxy v = sum s_j^2 Phi(a_j)/2:  ln E e^{tX} <= v t^2/2 for every t."""
        return float(np.sum(self.scale**2 * self._phi())) / 2.0 + self.noise

    def upper_proxy(self) -> float:
        """One-sided proxy: ln E e^{tX} <= v t^2/2 for t >= 0, with v at most :meth:`proxy`.

        A coordinate with a_j >= 1/2 counts its variance a_j (1-a_j) instead of Phi(a_j)/2, because the
        tilted variance a(1-a) only falls as t grows (one-sided lemma of Berend and Kontorovich).
        """
        falls = self.prob >= 0.5
        parts = np.where(falls, self.prob * self.complement, self._phi() / 2.0)
        return float(np.sum(self.scale**2 * parts)) + self.noise

    def _phi(self) -> Floats:
        return phi(np.minimum(self.prob, self.complement))


def centred_law(
    coefficients: ArrayLike, drop_prob: Any, rescale: Any = None, *, noise: float = 0.0
) -> BernoulliSum:
    """The law of H_q - E H_q; coordinates that cannot vary (c = 0, or drop_prob 0 or 1) are left out.

    Arguments and errors as in :func:`moments` (float64).
    """
    c, p, q = _float_parameters(coefficients, drop_prob, rescale)
    p = np.broadcast_to(p, c.shape)
    scale = np.abs(c) / q
    dropped_is_larger = c > 0.0
    prob, complement = np.where(dropped_is_larger, p, 1.0 - p), np.where(dropped_is_larger, 1.0 - p, p)
    if not 0.0 <= noise < math.inf:
        raise InputError(f"noise is {noise}; the proxy of a further error is a finite number, at least 0")
    return BernoulliSum(scale, prob, complement, float(noise)).varying()


def log_mgf(t: float, coefficients: ArrayLike, drop_prob: Any, rescale: Any = None) -> LogMgf:
    """Cumulant function K(t) = ln E exp(t (H_q - E H_q)) with K'(t) and K''(t), any real t.

    >>> round(log_mgf(0.5, [1.0, 2.0], 0.25).value, 15)
    0.242331966443611
    """
    if not math.isfinite(t):
        raise InputError(f"t is {t}; the cumulant function needs a finite argument")
    law = centred_law(coefficients, drop_prob, rescale)
    if t >= 0.0:
        return law.log_mgf(t)
    value, first, second = law.mirror().log_mgf(-t)
    return LogMgf(value, -first, second)


def essential_supremum(coefficients: ArrayLike, drop_prob: Any, rescale: Any = None) -> float:
    """Essential supremum of H_q - E H_q (for DARE: sum_j max(c_j, -c_j p/(1-p)))."""
    return centred_law(coefficients, drop_prob, rescale).supremum


def enumerate_law(
    coefficients: Sequence[Any] | Floats, drop_prob: Any, rescale: Any = None
) -> tuple[Any, Any]:
    """All 2^n atoms of H_q, as (values, probabilities): lists of Fractions or float64 arrays.

    Raises:
        InputError: more than :data:`ENUMERATION_LIMIT` coefficients, or as in :func:`moments`.

    >>> enumerate_law([1], Fraction(99, 100))
    ([Fraction(-99, 1), Fraction(1, 1)], [Fraction(1, 100), Fraction(99, 100)])
    """
    count = len(coefficients)
    if count > ENUMERATION_LIMIT:
        raise InputError(
            f"{count} coefficients have 2^{count} masks; at most {ENUMERATION_LIMIT} are enumerated"
        )
    if _checks.is_exact(coefficients, drop_prob, rescale):
        c = _checks.fractions(coefficients)
        p, q = _exact_parameters(count, drop_prob, rescale)
        values, probs = [Fraction(0)], [Fraction(1)]
        for cj, pj, qj in zip(c, p, q, strict=True):
            kept = cj * (1 - 1 / qj)
            values = [v + kept for v in values] + [v + cj for v in values]
            probs = [m * (1 - pj) for m in probs] + [m * pj for m in probs]
        return values, probs
    cf, pf, qf = _float_parameters(coefficients, drop_prob, rescale)
    value, prob = np.zeros(1), np.ones(1)
    for cj, kept, pj in zip(cf, cf * (1.0 - 1.0 / qf), np.broadcast_to(pf, cf.shape), strict=True):
        value = np.concatenate([value + kept, value + cj])
        prob = np.concatenate([prob * (1.0 - pj), prob * pj])
    return value, prob


# --- drop, then quantise the survivors ----------------------------------------------------------------


class Atom(NamedTuple):
    """A value and its probability."""

    value: Any
    prob: Any


def quantise_atoms(weight: Any, scale: Any, levels: int) -> tuple[Atom, Atom]:
    """Two-point law of the unbiased stochastic quantiser on the grid {-levels..levels} * scale/levels.

    With step h = scale/levels and l = max(1, ceil(|w|/h)): sign(w) l h with probability 1 - l + |w|/h,
    else sign(w)(l-1) h.  The mean is w exactly; the alphabet has 2*levels + 1 values, 0 included.

    Returns:
        (upper atom, lower atom) in modulus; rational when weight and scale are.

    Raises:
        InputError: |weight| > scale, scale <= 0 or levels < 1.

    >>> quantise_atoms(Fraction(-1, 3), Fraction(1), 2)
    (Atom(value=Fraction(-1, 2), prob=Fraction(2, 3)), Atom(value=Fraction(0, 1), prob=Fraction(1, 3)))
    """
    if not scale > 0:
        raise InputError(f"scale is {scale}; the quantiser's range must be positive")
    if levels != int(levels) or levels < 1:
        raise InputError(f"levels is {levels}; the quantiser needs a whole number of levels, at least 1")
    if not abs(weight) <= scale:
        raise InputError(f"weight {weight} is outside [-{scale}, {scale}]; widen the scale")
    if _checks.is_exact(weight, scale):
        weight, scale = _checks.fractions([weight, scale])
    step = scale / int(levels)
    sign = -1 if weight < 0 else 1
    level = min(max(1, math.ceil(abs(weight) / step)), int(levels))
    upper = 1 - level + abs(weight) / step
    return Atom(sign * level * step, upper), Atom(sign * (level - 1) * step, 1 - upper)


def quantiser_variance(weights: Any, step: Any) -> Any:
    """Variance h^2 f (1-f), f = frac(|w|/h), of the unbiased quantiser with step h; at most h^2/4.

    Args:
        weights: w, a number or an array.
        step: h > 0, a number or an array that broadcasts (per group, row or entry).

    >>> quantiser_variance(Fraction(5, 7), Fraction(2, 5))
    Fraction(33, 1225)
    """
    if _checks.is_exact(weights, step) and not hasattr(weights, "__len__"):
        weight, exact_step = _checks.fractions([weights, step])
        _require_positive_step(exact_step > 0)
        exact_part = (abs(weight) / exact_step) % 1
        return exact_step**2 * exact_part * (1 - exact_part)
    w, h = np.abs(np.asarray(weights, dtype=np.float64)), np.asarray(step, dtype=np.float64)
    _require_positive_step(bool((h > 0).all()))
    part = np.fmod(w, h) / h
    variance = h**2 * part * (1.0 - part)
    return float(variance) if variance.ndim == 0 else variance


def _require_positive_step(positive: bool) -> None:
    if not positive:
        raise InputError("step must be positive; it is the distance between two grid values")


def quantised_moments(weights: Any, inputs: Any, drop_prob: Any, rescale: Any, step: Any) -> Moments:
    """Moments of sum_j x_j (w_j - d_j Quant(w_j)/q): drop with probability p, quantise, divide by q.

    bias = (1 - (1-p)/q) S and variance = [p(1-p) Q + (1-p) sum x_j^2 V(w_j)]/q^2 with S, Q of c = w x.

    Args:
        weights: w [n].
        inputs: x [n].
        drop_prob: p, one number or one per entry.
        rescale: q, likewise; ``None`` is 1 - p.
        step: quantiser step h, one number or one per entry (so per group and per row too).

    >>> quantised_moments([Fraction(1, 3)], [1], Fraction(1, 2), Fraction(1, 2), Fraction(1, 2))
    Moments(bias=Fraction(0, 1), variance=Fraction(2, 9), mean_square=Fraction(2, 9))
    """
    if len(weights) != len(inputs):
        raise InputError(f"{len(weights)} weights meet {len(inputs)} inputs; their numbers must agree")
    if _checks.is_exact(weights, inputs, drop_prob, rescale, step):
        w, x = _checks.fractions(weights), _checks.fractions(inputs)
        bias, variance, _ = moments([a * b for a, b in zip(w, x, strict=True)], drop_prob, rescale)
        p, q = _exact_parameters(len(w), drop_prob, rescale)
        h = _checks.fraction_per_entry(step, len(w), "step")
        for wj, xj, pj, qj, hj in zip(w, x, p, q, h, strict=True):
            variance += (1 - pj) * xj**2 * quantiser_variance(wj, hj) / qj**2
        return Moments(bias, variance, bias**2 + variance)
    wf, xf = _checks.array(weights, "weights", 1), _checks.array(inputs, "inputs", 1)
    c, pf, qf = _float_parameters(wf * xf, drop_prob, rescale)
    bias, variance, _ = moments(c, pf, qf)
    variance += float(np.sum((1.0 - pf) * xf**2 * quantiser_variance(wf, step) / qf**2))
    return Moments(bias, variance, bias**2 + variance)
