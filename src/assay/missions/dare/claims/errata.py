"""Statements that are known to be false, each kept with what refutes it (1.d)."""

from __future__ import annotations

from fractions import Fraction

from assay.core.claim import Bound, Claim, Premise, Sides, Tail
from assay.missions.dare import exact
from assay.missions.dare.claims._shared import (
    GAMMA,
    INDEPENDENT,
    INNER_DROP_PROB,
    LEVEL,
    NOT_EMPTY,
    SPREAD,
    darex,
    derived,
)
from assay.missions.dare.claims.tails import (
    as_pruned,
    beyond,
    dare_error,
    indicator_law,
    signed_proxies,
    threshold_square,
)
from assay.missions.dare.exact import Value, kearns_saul
from assay.missions.dare.instances import BernoulliMgf, DroppedAtLevel, DroppedWithGamma
from assay.numerics.arb import exp, log

HALF = Fraction(1, 2)

printed_theorem_3_1 = Claim(
    id="dare.printed_theorem_3_1",
    title="Erratum: Theorem 3.1 as printed, branch p > 1/2",
    statement=r"\mathbb{P}\Bigl(|H| > \sqrt{\frac{2p}{1-p}\, n (\bar c^2 + \sigma^2) \ln(2/\gamma)}\Bigr) \le \gamma \quad (p > 1/2)",
    instance=DroppedWithGamma,
    form=Tail(
        exact=lambda x: beyond(
            dare_error(x),
            2 * x.drop_prob / (1 - x.drop_prob) * exact.sum_of_squares(x.coefficients) * log(2 / x.gamma),
        ),
        delta=lambda x: x.gamma,
    ),
    source=darex("Theorem 3.1, high pruning"),
    premises=(
        NOT_EMPTY,
        Premise("1/2 < drop_prob < 1", lambda x: HALF < x.drop_prob < 1),
        GAMMA,
        INDEPENDENT,
    ),
    expect="refuted",
    notes=(
        "The variance proxy of one tail is used for both. At n = 1, c = 1, p = 99/100, gamma = 1/200 the error is 99 with "
        "probability 1/100, above the printed threshold 34.44; eq. (8) gives 113.04 (dare.threshold), and the valid repair "
        "is dare.signed_threshold."
    ),
)

printed_theorem_3_1_low = Claim(
    id="dare.printed_theorem_3_1_low",
    title="Erratum: Theorem 3.1 as read, branch p <= 1/2",
    statement=(
        r"\mathbb{P}\Bigl(|H| > \frac{\Phi(p)}{1-p} \sqrt{n (\bar c^2 + \sigma^2) \ln(2/\gamma)}\Bigr) \le \gamma \quad (p \le 1/2)"
    ),
    instance=DroppedWithGamma,
    form=Tail(
        exact=lambda x: beyond(
            dare_error(x), threshold_square(as_pruned(x), x.gamma) * kearns_saul(x.drop_prob)
        ),
        delta=lambda x: x.gamma,
    ),
    source=darex("Theorem 3.1, low pruning"),
    premises=(
        NOT_EMPTY,
        Premise("0 < drop_prob <= 1/2", lambda x: 0 < x.drop_prob <= HALF),
        GAMMA,
        INDEPENDENT,
    ),
    expect="refuted",
    notes=(
        "A reading: the branch is known to lack the square root over Phi that eq. (8) has, and its exact typography was not "
        "seen. At n = 1, c = 1, p = 1/2, gamma = 3/4 the error is 1 in modulus, above the threshold .990."
    ),
)


def _reached(x: DroppedWithGamma) -> Value:
    square = threshold_square(as_pruned(x), x.gamma)
    return exact.probability(dare_error(x), lambda h: exact.reaches(h * h, square))


threshold_nonstrict = Claim(
    id="dare.threshold_nonstrict",
    title="Erratum: eq. (8) with a non-strict event",
    statement=r"\mathbb{P}(|H| \ge T) \le \gamma, \quad T = \frac{\sqrt{n (\bar c^2 + \sigma^2)\, \Phi(p) \ln(2/\gamma)}}{1-p}",
    instance=DroppedWithGamma,
    form=Tail(exact=_reached, delta=lambda x: x.gamma),
    source=derived("1.b, the case it warns of"),
    premises=(NOT_EMPTY, INNER_DROP_PROB, GAMMA, INDEPENDENT),
    expect="refuted",
    notes="False where all coefficients are 0, and only there: T is 0 and |H| >= 0 is certain.",
)

signed_wrong_side = Claim(
    id="dare.signed_wrong_side",
    title="Erratum: the signed refinement used on the wrong side",
    statement=r"\mathbb{P}(H \le -s) \le e^{-s^2/(2 v_+)}",
    instance=DroppedAtLevel,
    form=Tail(
        exact=lambda x: exact.probability(dare_error(x), lambda h: exact.reaches(-h, x.level)),
        delta=lambda x: exp(-(x.level**2) / (2 * signed_proxies(x)[0])),
    ),
    source=derived("1.b, the case it warns of"),
    premises=(INNER_DROP_PROB, LEVEL, SPREAD, INDEPENDENT),
    expect="refuted",
    notes="The proxy of the upper tail bounds the upper tail only (dare.signed_tail_up); this is what the printed proof does.",
)

phi_over_four = Claim(
    id="dare.phi_over_four",
    title="Erratum: the Kearns-Saul coefficient with a factor 4 in its denominator",
    statement=(
        r"p\, e^{t(1-p)} + (1-p)\, e^{-tp} \le \exp\Bigl(\frac{t^2}{4} \cdot \frac{1 - 2p}{4 \ln((1-p)/p)}\Bigr)"
    ),
    instance=BernoulliMgf,
    form=Bound(
        lambda x: Sides(
            exact.log_mgf(indicator_law(x.drop_prob), x.argument),
            "<=",
            x.argument**2 * kearns_saul(x.drop_prob) / 16,
        )
    ),
    source=derived("1.b, the reading it excludes"),
    premises=(INNER_DROP_PROB,),
    expect="refuted",
    notes="With the factor the coefficient would lie in (0, 1/8]; both sides are compared as logarithms.",
)

__all__ = [
    "phi_over_four",
    "printed_theorem_3_1",
    "printed_theorem_3_1_low",
    "signed_wrong_side",
    "threshold_nonstrict",
]
