"""Statements about delta pruning and greedy compression: the true ones, and the false ones that were in print or nearly.

Source for all: the specification's audit of DAREx (arXiv 2410.09344) and of randomised greedy compression (COLT 2026).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from assay import Ball, Bound, Claim, Length, Premise, Range, Sides, Source, Truth
from assay.core.number import compare
from assay.numerics.arb import atanh, exp, log, maximum, sqrt

DARE = Source("DAREx, arXiv 2410.09344", "Theorem 3.1 and its repair")
GREEDY = Source("Randomised greedy compression, COLT 2026", "source audit")
Open = Annotated[Fraction, Range(0, 1, open_low=True, open_high=True)]


def proxy(p):
    """Phi(p) = (1 - 2p) / ln((1-p)/p), and 1/2 at 1/2."""
    u = 1 - 2 * p
    if u == 0:
        return Fraction(1, 2) if isinstance(p, Fraction) else 0.5
    return u / (2 * atanh(u))


# Tails of one pruned output ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Output:
    """Coefficients of one output, drop probability and miss probability."""

    coefficients: Annotated[tuple[Fraction, ...], Length(1, 4), Range(-4, 4)]
    drop_prob: Open
    gamma: Open

    @property
    def energy(self):
        return sum(c**2 for c in self.coefficients)


def atoms(x: Output) -> Iterator[tuple]:
    """The error original - pruned of DARE, and its probability, mask by mask."""
    p = x.drop_prob
    for dropped in itertools.product((True, False), repeat=len(x.coefficients)):
        error = sum(c if w else -c * p / (1 - p) for c, w in zip(x.coefficients, dropped, strict=True))
        yield error, math.prod(p if w else 1 - p for w in dropped)


def beyond(x: Output, threshold, relation: str = "<"):
    """P(|H| > threshold), or >= where the relation is ``<=``: an enclosure where a comparison is undecided."""
    sure = possible = 0 * x.drop_prob
    for error, prob in atoms(x):
        truth, _ = compare(threshold, relation, abs(error))
        sure += prob * (truth is Truth.TRUE)
        possible += prob * (truth is not Truth.FALSE)
    if sure == possible or isinstance(sure, float):
        return sure
    return Ball(sure, possible)


def tail_claim(
    name: str, title: str, threshold, *, relation: str = "<", premises=(), expect="refuted"
) -> Claim:
    return Claim(
        f"variants.{name}",
        title,
        r"P(|H| > T) \le \gamma",
        Output,
        Bound(lambda x: Sides(beyond(x, threshold(x), relation), "<=", x.gamma)),
        DARE,
        premises,
        expect=expect,
    )


def eq8(x: Output):
    return sqrt(x.energy * proxy(x.drop_prob) * log(2 / x.gamma)) / (1 - x.drop_prob)


def printed_high(x: Output):
    return sqrt(2 * x.drop_prob / (1 - x.drop_prob) * x.energy * log(2 / x.gamma))


def printed_low(x: Output):
    return proxy(x.drop_prob) / (1 - x.drop_prob) * sqrt(x.energy * log(2 / x.gamma))


def centred(x: Output):
    mean = sum(x.coefficients) / len(x.coefficients)
    spread = sum((c - mean) ** 2 for c in x.coefficients)
    return sqrt(spread * proxy(x.drop_prob) * log(2 / x.gamma)) / (1 - x.drop_prob)


mostly_dropped = Premise("p > 1/2", lambda x: x.drop_prob > Fraction(1, 2))
mostly_kept = Premise("p <= 1/2", lambda x: x.drop_prob <= Fraction(1, 2))

threshold = tail_claim("threshold", "Equation (8)", eq8, expect="survives")
threshold_not_strict = tail_claim(
    "threshold_not_strict", "Equation (8) with >=, which fails at Q = 0", eq8, relation="<="
)
printed_high_branch = tail_claim(
    "printed_high_branch", "Theorem 3.1 as printed, p > 1/2", printed_high, premises=(mostly_dropped,)
)
printed_low_branch = tail_claim(
    "printed_low_branch",
    "Theorem 3.1 as printed, p <= 1/2, square root misplaced",
    printed_low,
    premises=(mostly_kept,),
)
threshold_centred = tail_claim("threshold_centred", "Equation (8) without the mean", centred)
threshold_one_sided = tail_claim(
    "threshold_one_sided",
    "Equation (8) with ln(1/gamma)",
    lambda x: sqrt(x.energy * proxy(x.drop_prob) * log(1 / x.gamma)) / (1 - x.drop_prob),
)
threshold_keep_for_drop = tail_claim(
    "threshold_keep_for_drop",
    "Equation (8) with p for 1 - p in the denominator",
    lambda x: sqrt(x.energy * proxy(x.drop_prob) * log(2 / x.gamma)) / x.drop_prob,
)


# The moment generating function ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bernoulli:
    drop_prob: Open
    t: Annotated[Fraction, Range(-8, 8)]


def mgf(x: Bernoulli):
    p = x.drop_prob
    return p * exp(x.t * (1 - p)) + (1 - p) * exp(-x.t * p)


def mgf_claim(name: str, title: str, exponent, *, premises=(), expect: str = "refuted") -> Claim:
    return Claim(
        f"variants.{name}",
        title,
        r"\log(p e^{t(1-p)} + (1-p) e^{-tp}) \le \ldots",
        Bernoulli,
        Bound(lambda x: Sides(log(mgf(x)), "<=", exponent(x))),
        Source("Kearns and Saul (1998); Berend and Kontorovich (2013)", "lemma"),
        premises,
        expect=expect,
    )


kearns_saul = mgf_claim(
    "kearns_saul", "Kearns-Saul", lambda x: x.t**2 * proxy(x.drop_prob) / 4, expect="survives"
)
kearns_saul_quarter = mgf_claim(
    "kearns_saul_quarter", "Phi with a 4 in its denominator", lambda x: x.t**2 * proxy(x.drop_prob) / 16
)
positive_side = Premise("t >= 0", lambda x: x.t >= 0)
negative_side = Premise("t <= 0", lambda x: x.t <= 0)
one_sided = mgf_claim(
    "one_sided",
    "The one-sided refinement on its side",
    lambda x: x.drop_prob * (1 - x.drop_prob) * x.t**2 / 2,
    premises=(mostly_dropped, positive_side),
    expect="survives",
)
one_sided_wrong = mgf_claim(
    "one_sided_wrong",
    "The one-sided refinement on the wrong side",
    lambda x: x.drop_prob * (1 - x.drop_prob) * x.t**2 / 2,
    premises=(mostly_dropped, negative_side),
)


# Moments and rescaling ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rescaled:
    coefficients: Annotated[tuple[Fraction, ...], Length(0, 4), Range(-4, 4)]
    drop_prob: Annotated[Fraction, Range(0, 1)]
    rescale: Annotated[Fraction, Range(0, 4, open_low=True)]


def enumerated(x: Rescaled, power: int, shift=0):
    p, total = x.drop_prob, 0 * x.drop_prob
    for dropped in itertools.product((True, False), repeat=len(x.coefficients)):
        error = sum(c if w else c * (1 - 1 / x.rescale) for c, w in zip(x.coefficients, dropped, strict=True))
        total += math.prod(p if w else 1 - p for w in dropped) * (error - shift) ** power
    return total


def rescaled_claim(name: str, title: str, sides, *, premises=(), expect: str = "refuted") -> Claim:
    return Claim(f"variants.{name}", title, title, Rescaled, Bound(sides), DARE, premises, expect=expect)


def bias(x: Rescaled):
    return (1 - (1 - x.drop_prob) / x.rescale) * sum(x.coefficients)


def variance(x: Rescaled):
    return x.drop_prob * (1 - x.drop_prob) * sum(c**2 for c in x.coefficients) / x.rescale**2


def best_rescale(x: Rescaled):
    s, q = sum(x.coefficients), sum(c**2 for c in x.coefficients)
    return 1 - x.drop_prob + x.drop_prob * q / s**2


some_sum = Premise("S is not 0", lambda x: sum(x.coefficients) != 0)

moments = rescaled_claim(
    "moments",
    "E H_q^2 = bias^2 + variance",
    lambda x: Sides(enumerated(x, 2), "==", bias(x) ** 2 + variance(x)),
    expect="survives",
)
third_moment_sign = rescaled_claim(
    "third_moment_sign",
    "Third central moment with 2p - 1",
    lambda x: Sides(
        enumerated(x, 3, bias(x)),
        "==",
        x.drop_prob
        * (1 - x.drop_prob)
        * (2 * x.drop_prob - 1)
        * sum((c / x.rescale) ** 3 for c in x.coefficients),
    ),
)
rescale_below_one = rescaled_claim(
    "rescale_below_one",
    "The best rescale is at most 1",
    lambda x: Sides(best_rescale(x), "<=", 1),
    premises=(some_sum,),
)
dare_beats_deleting = rescaled_claim(
    "dare_beats_deleting",
    "DARE's error is at most that of deleting the delta",
    lambda x: Sides(
        x.drop_prob * sum(c**2 for c in x.coefficients), "<=", (1 - x.drop_prob) * sum(x.coefficients) ** 2
    ),
)


@dataclass(frozen=True)
class Layer:
    """Two weights of a row, two calibration rows, drop probability and rescale."""

    weights: Annotated[tuple[Fraction, ...], Length(2, 2), Range(-2, 2)]
    inputs: Annotated[tuple[Fraction, ...], Length(4, 4), Range(-2, 2)]
    drop_prob: Annotated[Fraction, Range(0, 1)]
    rescale: Annotated[Fraction, Range(0, 4, open_low=True)]

    def moment(self, i: int, j: int):
        return (self.inputs[i] * self.inputs[j] + self.inputs[2 + i] * self.inputs[2 + j]) / 2


def layer_error(x: Layer):
    p, total = x.drop_prob, 0 * x.drop_prob
    for dropped in itertools.product((True, False), repeat=2):
        e = [w if d else w * (1 - 1 / x.rescale) for w, d in zip(x.weights, dropped, strict=True)]
        value = sum(e[i] * e[j] * x.moment(i, j) for i in (0, 1) for j in (0, 1))
        total += math.prod(p if d else 1 - p for d in dropped) * value
    return total


def layer_formula(x: Layer, *, diagonal_only: bool):
    pairs = [(i, j) for i in (0, 1) for j in (0, 1) if i == j or not diagonal_only]
    full = sum(x.weights[i] * x.weights[j] * x.moment(i, j) for i, j in pairs)
    diagonal = sum(x.weights[j] ** 2 * x.moment(j, j) for j in (0, 1))
    keep = 1 - x.drop_prob
    return (1 - keep / x.rescale) ** 2 * full + x.drop_prob * keep / x.rescale**2 * diagonal


def layer_claim(name: str, title: str, *, diagonal_only: bool, premises=(), expect: str = "refuted") -> Claim:
    sides = Bound(lambda x: Sides(layer_error(x), "==", layer_formula(x, diagonal_only=diagonal_only)))
    return Claim(f"variants.{name}", title, title, Layer, sides, DARE, premises, expect=expect)


dare_rescale = Premise("q = 1 - p", lambda x: x.rescale == 1 - x.drop_prob)
layer_moments = layer_claim(
    "layer_moments", "Layer error with the full moment", diagonal_only=False, expect="survives"
)
layer_diagonal = layer_claim(
    "layer_diagonal", "Layer error with the diagonal only, any q", diagonal_only=True
)


@dataclass(frozen=True)
class Row:
    """Two weights and the positive semidefinite form x x^T + y y^T on them."""

    weights: Annotated[tuple[Fraction, ...], Length(2, 2), Range(-2, 2)]
    inputs: Annotated[tuple[Fraction, ...], Length(4, 4), Range(-2, 2)]


def fixed_size_sides(x: Row) -> Sides:
    """Keep exactly one of two at q = 1/2, against keeping each with probability 1/2."""
    w, u = x.weights, x.inputs
    a = (w[0] * u[0] + w[1] * u[1]) ** 2 + (w[0] * u[2] + w[1] * u[3]) ** 2
    t = w[0] ** 2 * (u[0] ** 2 + u[2] ** 2) + w[1] ** 2 * (u[1] ** 2 + u[3] ** 2)
    return Sides(2 * (t - a / 2), "<=", t)


fixed_size_better = Claim(
    "variants.fixed_size_better",
    "Keeping an exact number is never worse than keeping each with that probability",
    r"E_K F \le E_{Bern} F",
    Row,
    Bound(fixed_size_sides),
    DARE,
    expect="refuted",
)


# Greedy compression -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantised:
    weight: Annotated[Fraction, Range(-2, 2)]
    scale: Annotated[Fraction, Range(0, 2, open_low=True)]
    levels: Annotated[int, Range(1, 6)]


def upper_prob(x: Quantised):
    steps = abs(x.weight) * x.levels / x.scale
    level = max(1, math.ceil(steps))
    return 1 - level + steps, level


def prob_of_zero(x: Quantised):
    upper, level = upper_prob(x)
    return 1 - upper if level == 1 else 0 * upper


def quantiser_variance(x: Quantised):
    upper, _ = upper_prob(x)
    return (x.scale / x.levels) ** 2 * upper * (1 - upper)


in_range = Premise("|w| <= M", lambda x: abs(x.weight) <= x.scale)


def quantiser_claim(name: str, title: str, sides, *, premises=(in_range,), expect: str = "refuted") -> Claim:
    return Claim(f"variants.{name}", title, title, Quantised, Bound(sides), GREEDY, premises, expect=expect)


quantiser_error = quantiser_claim(
    "quantiser_error",
    "The quantiser's variance is at most (M/k)^2 / 4",
    lambda x: Sides(quantiser_variance(x), "<=", (x.scale / x.levels) ** 2 / 4),
    expect="survives",
)
alphabet = quantiser_claim(
    "alphabet", "2k values suffice: 0 is never taken", lambda x: Sides(prob_of_zero(x), "==", 0)
)


@dataclass(frozen=True)
class Condition:
    """A condition of the theorem at width ratio 1, error level xi, keep probability."""

    xi: Open
    delta: Annotated[Fraction, Range(0, Fraction(1, 16), open_low=True)]
    keep_prob: Annotated[Fraction, Range(0, Fraction(1, 10), open_low=True)]


ALPHA = Fraction(99, 100)
inverted_ratio = Claim(
    "variants.inverted_ratio",
    "Theorem 6 with the ratio of (27) inverted, on a Hadamard layer",
    r"1 \le \frac{\alpha (1-p) \delta}{p (1-\alpha)} \implies 1 - 1.01 p \le (1 + \xi) \xi",
    Condition,
    Bound(lambda x: Sides(1 - Fraction(101, 100) * x.keep_prob, "<=", (1 + x.xi) * x.xi)),
    GREEDY,
    premises=(
        Premise(
            "the printed (27)", lambda x: x.keep_prob * (1 - ALPHA) <= ALPHA * (1 - x.keep_prob) * x.delta
        ),
        Premise("xi at most 1/2", lambda x: x.xi <= Fraction(1, 2)),
    ),
    expect="refuted",
)


@dataclass(frozen=True)
class Norm:
    c1: Annotated[Fraction, Range(0, 4, open_low=True)]


condition_20 = Claim(
    "variants.condition_20",
    "The printed (20) implies what the recurrence needs, for every c1",
    r"1 \vee c_1^{-4} \le 1 \vee c_1^4",
    Norm,
    Bound(lambda x: Sides(maximum(x.c1**4, 1), "<=", maximum(x.c1**8, x.c1**4))),
    GREEDY,
    expect="refuted",
    notes="both sides times c1^4",
)


@dataclass(frozen=True)
class Projection:
    u: Annotated[Fraction, Range(-4, 4)]
    v: Annotated[Fraction, Range(-4, 4)]
    radius: Annotated[Fraction, Range(0, 4)]


def projected(x: Projection):
    return x.v if abs(x.v) <= x.radius else (x.radius if x.v > 0 else -x.radius)


projection = Claim(
    "variants.projection",
    "Projecting does not move away from a point of the ball",
    r"|u| \le \kappa \implies |u - [v]_\kappa| \le |u - v|",
    Projection,
    Bound(lambda x: Sides(abs(x.u - projected(x)), "<=", abs(x.u - x.v))),
    GREEDY,
    premises=(Premise("u in the ball", lambda x: abs(x.u) <= x.radius),),
)


@dataclass(frozen=True)
class Growth:
    start: Annotated[Fraction, Range(0, 4)]
    rate: Annotated[Fraction, Range(0, 2, open_low=True)]
    offset: Annotated[Fraction, Range(0, 2, open_low=True)]
    steps: Annotated[int, Range(1, 6)]


def last_step(x: Growth):
    value = x.start
    for _ in range(x.steps - 1):
        value = (1 + x.rate) * value + x.offset
    return x.rate * value + x.offset


def gronwall_claim(name: str, title: str, fewer: int, expect: str) -> Claim:
    def sides(x: Growth) -> Sides:
        return Sides(last_step(x), "<=", exp((x.steps - fewer) * x.rate) * (x.rate * x.start + x.offset))

    return Claim(f"variants.{name}", title, title, Growth, Bound(sides), GREEDY, expect=expect)


gronwall = gronwall_claim("gronwall", "Discrete Gronwall, extremal sequence", 0, "survives")
gronwall_two_less = gronwall_claim("gronwall_two_less", "Discrete Gronwall with exponent n - 2", 2, "refuted")
