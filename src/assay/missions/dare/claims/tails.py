"""Kearns-Saul: the coefficient, the moment generating function, tails and thresholds (1.b, 1.f)."""

from __future__ import annotations

from fractions import Fraction

from assay.core.claim import Bound, Claim, Premise, Sides, Tail, Witness
from assay.core.number import Ball, Truth, compare
from assay.missions.dare import exact
from assay.missions.dare.claims._shared import (
    DROP_PROB,
    GAMMA,
    INDEPENDENT,
    INNER_DROP_PROB,
    LEVEL,
    NOT_EMPTY,
    OPEN,
    RESCALE,
    SPREAD,
    darex,
    derived,
)
from assay.missions.dare.exact import Law, Value, kearns_saul
from assay.missions.dare.instances import (
    Bernoulli,
    BernoulliMgf,
    ChernoffPoint,
    Dropped,
    DroppedAtLevel,
    DroppedWithGamma,
    LatticePoint,
    Pruned,
    PrunedMgf,
    PrunedWithGamma,
    SmallerConstant,
    TwoProbabilities,
)
from assay.numerics.arb import exp, log, maximum

RESOLUTION = Fraction(1, 2**96)
"""Relative distance up to which two transcendental numbers that the theory calls equal may be found apart."""


# --- the coefficient -------------------------------------------------------------------------------------

phi_positive = Claim(
    id="dare.phi_positive",
    title="The Kearns-Saul coefficient is positive",
    statement=r"0 < \Phi(p), \quad \Phi(p) = \frac{1 - 2p}{\ln((1-p)/p)}, \ \Phi(1/2) = \tfrac12",
    instance=Bernoulli,
    form=Bound(lambda x: Sides(0, "<", kearns_saul(x.drop_prob))),
    source=darex("App. E.1, Kearns-Saul coefficient"),
    premises=(INNER_DROP_PROB,),
    proof=OPEN,
)

phi_range = Claim(
    id="dare.phi_range",
    title="The Kearns-Saul coefficient is at most 1/2",
    statement=r"\Phi(p) \le \tfrac12 \quad (0 < p < 1)",
    instance=Bernoulli,
    form=Bound(lambda x: Sides(kearns_saul(x.drop_prob), "<=", Fraction(1, 2))),
    source=darex("App. E.1, Kearns-Saul coefficient"),
    premises=(INNER_DROP_PROB,),
    proof=OPEN,
    notes="With dare.phi_positive this is 0 < Phi <= 1/2, so the denominator has no factor 4 (dare.phi_over_four).",
)


def _symmetric(x: Bernoulli) -> Sides:
    values = kearns_saul(x.drop_prob), kearns_saul(1 - x.drop_prob)
    smaller = -maximum(*(-value for value in values))
    return Sides(maximum(*values), "<=", (1 + RESOLUTION) * smaller)


phi_symmetric = Claim(
    id="dare.phi_symmetric",
    title="The Kearns-Saul coefficient is symmetric",
    statement=r"\Phi(p) = \Phi(1-p)",
    instance=Bernoulli,
    form=Bound(_symmetric),
    source=derived("1.b"),
    premises=(INNER_DROP_PROB,),
    notes=(
        "Enclosures can refute an equality of transcendental numbers and cannot confirm one, so what is evaluated "
        "is that the larger of the two is at most 1 + 2^-96 times the smaller."
    ),
)

phi_monotone = Claim(
    id="dare.phi_monotone",
    title="The Kearns-Saul coefficient increases up to 1/2",
    statement=r"\Phi(p) < \Phi(p') \quad (0 < p < p' \le 1/2)",
    instance=TwoProbabilities,
    form=Bound(lambda x: Sides(kearns_saul(x.smaller), "<", kearns_saul(x.larger))),
    source=derived("1.b"),
    premises=(Premise("0 < smaller < larger <= 1/2", lambda x: 0 < x.smaller < x.larger <= Fraction(1, 2)),),
)

phi_dominates_variance = Claim(
    id="dare.phi_dominates_variance",
    title="The Kearns-Saul proxy is at least the variance",
    statement=r"p(1-p) \le \Phi(p)/2",
    instance=Bernoulli,
    form=Bound(
        lambda x: Sides(x.drop_prob * (1 - x.drop_prob), "<=", kearns_saul(x.drop_prob) / 2),
    ),
    source=derived("1.b"),
    premises=(INNER_DROP_PROB,),
    notes="Equality at p = 1/2 only.",
)


# --- moment generating functions -------------------------------------------------------------------------


def indicator_law(drop_prob: Value) -> Law:
    """The law of w - p."""
    return exact.law_of_sum([[(1 - drop_prob, drop_prob), (-drop_prob, 1 - drop_prob)]])


def centred_error(x: Pruned) -> Law:
    """The law of H_q - E H_q."""
    return exact.centred(exact.error_law(x.coefficients, x.drop_prob, x.rescale))


kearns_saul_mgf = Claim(
    id="dare.kearns_saul_mgf",
    title="Kearns-Saul inequality",
    statement=r"p\, e^{t(1-p)} + (1-p)\, e^{-tp} \le \exp\bigl(t^2 \Phi(p)/4\bigr) \quad (t \in \mathbb{R})",
    instance=BernoulliMgf,
    form=Bound(
        lambda x: Sides(
            exact.log_mgf(indicator_law(x.drop_prob), x.argument),
            "<=",
            x.argument**2 * kearns_saul(x.drop_prob) / 4,
        )
    ),
    source=darex("App. E.1, Kearns-Saul inequality"),
    premises=(INNER_DROP_PROB,),
    uses=("dare.phi_range",),
    proof=OPEN,
    notes="Both sides are compared as logarithms.",
)


def _tight_argument(x: SmallerConstant) -> Value:
    """The odds (1-p)/p, whose double logarithm is t*; at p = 1/2 a small t, since there t* = 0."""
    return x.loss if x.drop_prob == Fraction(1, 2) else (1 - x.drop_prob) / x.drop_prob


def _smaller_constant_fails(x: SmallerConstant, witness: Value) -> Sides:
    p, phi = x.drop_prob, kearns_saul(x.drop_prob)
    t = witness if p == Fraction(1, 2) else 2 * log(witness)
    mgf = p * exp(t * (1 - p)) + (1 - p) * exp(-t * p)
    return Sides((1 - x.loss) * t**2 * phi / 4, "<", log(mgf))


kearns_saul_mgf_tight = Claim(
    id="dare.kearns_saul_mgf_tight",
    title="The constant of the Kearns-Saul inequality cannot be lowered",
    statement=(
        r"\forall \varepsilon \in (0, 1]\ \exists t:\ p\, e^{t(1-p)} + (1-p)\, e^{-tp}"
        r" > \exp\bigl((1 - \varepsilon)\, t^2 \Phi(p)/4\bigr), \quad t^* = 2 \ln \frac{1-p}{p}"
    ),
    instance=SmallerConstant,
    form=Witness(_tight_argument, _smaller_constant_fails, refute=lambda x: x.loss <= 0),
    source=derived("1.b"),
    premises=(INNER_DROP_PROB, Premise("0 < loss <= 1", lambda x: 0 < x.loss <= 1)),
    uses=("dare.kearns_saul_mgf",),
    notes=(
        "At t* the inequality is an equality, for p other than 1/2; at 1/2 the witness is t = loss. Where nothing is lost "
        "no t exists: that is the inequality itself."
    ),
)


def proxy(x: Pruned) -> Value:
    """Kearns-Saul variance proxy Q Phi/(2 q^2) of H_q - E H_q."""
    return exact.sum_of_squares(x.coefficients) * kearns_saul(x.drop_prob) / (2 * x.rescale**2)


def as_pruned(x: Dropped) -> Pruned:
    """DARE's rescale, made explicit."""
    return Pruned(x.coefficients, x.drop_prob, 1 - x.drop_prob)


mgf_sum = Claim(
    id="dare.mgf_sum",
    title="Sub-Gaussian moment generating function of the output error",
    statement=r"\mathbb{E} e^{t (H_q - \mathbb{E} H_q)} \le \exp\Bigl(\frac{t^2 \Phi(p) Q}{4 q^2}\Bigr) \quad (t \in \mathbb{R})",
    instance=PrunedMgf,
    form=Bound(
        lambda x: Sides(exact.log_mgf(centred_error(x), x.argument), "<=", x.argument**2 * proxy(x) / 2)
    ),
    source=darex("App. E.1, moment generating function of the sum"),
    premises=(DROP_PROB, RESCALE, INDEPENDENT),
    uses=("dare.kearns_saul_mgf",),
    notes="The mission states q = 1-p; the same proof gives every q > 0. Phi is 0 at p = 0 and 1.",
)


# --- tails and thresholds --------------------------------------------------------------------------------


def dare_error(x: Dropped) -> Law:
    """The law of H, the error under DARE; its mean is 0."""
    return exact.error_law(x.coefficients, x.drop_prob, 1 - x.drop_prob)


def beyond(law: Law, square: Value) -> Value:
    """P(X^2 > square), strictly."""
    return exact.probability(law, lambda value: exact.exceeds(value * value, square))


def threshold_square(x: Pruned, gamma: Value) -> Value:
    """T^2 = 2 v ln(2/gamma) with the Kearns-Saul proxy v of H_q."""
    return 2 * proxy(x) * log(2 / gamma)


tail = Claim(
    id="dare.tail",
    title="Exponential tail of the output error",
    statement=r"\mathbb{P}(|H| \ge s) \le 2 \exp\Bigl(-\frac{s^2 (1-p)^2}{\Phi(p)\, Q}\Bigr) \quad (s > 0, \ Q > 0)",
    instance=DroppedAtLevel,
    form=Tail(
        exact=lambda x: exact.probability(dare_error(x), lambda h: exact.reaches(abs(h), x.level)),
        delta=lambda x: 2 * exp(-(x.level**2) / (2 * proxy(as_pruned(x)))),
    ),
    source=darex("App. E.1, exponential tail"),
    premises=(INNER_DROP_PROB, LEVEL, SPREAD, INDEPENDENT),
    uses=("dare.mgf_sum",),
    proof=OPEN,
)

threshold = Claim(
    id="dare.threshold",
    title="Threshold of the output error at failure probability gamma",
    statement=(
        r"\mathbb{P}(|H| > T) \le \gamma, \quad"
        r" T = \frac{\sqrt{n (\bar c^2 + \sigma^2)\, \Phi(p) \ln(2/\gamma)}}{1-p}"
    ),
    instance=DroppedWithGamma,
    form=Tail(
        exact=lambda x: beyond(dare_error(x), threshold_square(as_pruned(x), x.gamma)),
        delta=lambda x: x.gamma,
    ),
    source=darex("App. E.1, eq. (8)"),
    premises=(NOT_EMPTY, INNER_DROP_PROB, GAMMA, INDEPENDENT),
    uses=("dare.tail", "dare.coefficient_statistics"),
    proof=OPEN,
    notes=(
        "The goal of the mission. The event is strict: with all coefficients 0 the threshold is 0 and |H| >= 0 is "
        "certain (dare.threshold_nonstrict). Squares are compared, so no root is taken."
    ),
)

threshold_rescaled = Claim(
    id="dare.threshold_rescaled",
    title="Threshold of the centred output error for any rescale",
    statement=r"\mathbb{P}\Bigl(|H_q - \mathbb{E} H_q| > \sqrt{Q\, \Phi(p) \ln(2/\gamma)}/q\Bigr) \le \gamma",
    instance=PrunedWithGamma,
    form=Tail(
        exact=lambda x: beyond(centred_error(x), threshold_square(x, x.gamma)),
        delta=lambda x: x.gamma,
    ),
    source=derived("1.b"),
    premises=(DROP_PROB, RESCALE, GAMMA, INDEPENDENT),
    uses=("dare.mgf_sum",),
)


# --- the signed refinement -------------------------------------------------------------------------------


def signed_gains(x: Dropped) -> tuple[Value, Value]:
    """Kearns-Saul proxy minus the signed proxy, of the upper and of the lower tail.

    The tilted variance of a summand falls on one side only, where p(1-p) may replace Phi/2: for p >= 1/2
    on the upper side of positive and on the lower side of negative coefficients, for p <= 1/2 the other way.
    """
    p = x.drop_prob
    gain = (kearns_saul(p) / 2 - p * (1 - p)) / (1 - p) ** 2
    positive = exact.sum_of_squares(c for c in x.coefficients if c > 0)
    negative = exact.sum_of_squares(c for c in x.coefficients if c < 0)
    upper, lower = (positive, negative) if p >= Fraction(1, 2) else (negative, positive)
    return gain * upper, gain * lower


def signed_proxies(x: Dropped) -> tuple[Value, Value]:
    """One-sided variance proxies of H, upper and lower."""
    full = proxy(as_pruned(x))
    upper, lower = signed_gains(x)
    return full - upper, full - lower


SIGNED = (
    "One-sided lemma of Berend and Kontorovich: for p >= 1/2 the log-MGF of w - p is at most p(1-p) t^2/2 for t >= 0 "
    "only. This is the correct repair of the printed Theorem 3.1."
)

signed_tail_up = Claim(
    id="dare.signed_tail_up",
    title="Upper tail, with the variance where the sign allows it",
    statement=(
        r"\mathbb{P}(H \ge s) \le e^{-s^2/(2 v_+)}, \quad v_+ = \frac{p(1-p) Q_+ + (\Phi/2) Q_-}{(1-p)^2} \ (p \ge 1/2), \\"
        r" v_+ = \frac{(\Phi/2) Q_+ + p(1-p) Q_-}{(1-p)^2} \ (p \le 1/2)"
    ),
    instance=DroppedAtLevel,
    form=Tail(
        exact=lambda x: exact.probability(dare_error(x), lambda h: exact.reaches(h, x.level)),
        delta=lambda x: exp(-(x.level**2) / (2 * signed_proxies(x)[0])),
    ),
    source=derived("1.b, signed refinement"),
    premises=(INNER_DROP_PROB, LEVEL, SPREAD, INDEPENDENT),
    uses=("dare.kearns_saul_mgf", "dare.phi_dominates_variance"),
    notes=SIGNED,
)

signed_tail_down = Claim(
    id="dare.signed_tail_down",
    title="Lower tail, with the variance where the sign allows it",
    statement=(
        r"\mathbb{P}(H \le -s) \le e^{-s^2/(2 v_-)}, \quad v_- = \frac{p(1-p) Q_- + (\Phi/2) Q_+}{(1-p)^2} \ (p \ge 1/2), \\"
        r" v_- = \frac{(\Phi/2) Q_- + p(1-p) Q_+}{(1-p)^2} \ (p \le 1/2)"
    ),
    instance=DroppedAtLevel,
    form=Tail(
        exact=lambda x: exact.probability(dare_error(x), lambda h: exact.reaches(-h, x.level)),
        delta=lambda x: exp(-(x.level**2) / (2 * signed_proxies(x)[1])),
    ),
    source=derived("1.b, signed refinement"),
    premises=(INNER_DROP_PROB, LEVEL, SPREAD, INDEPENDENT),
    uses=("dare.kearns_saul_mgf", "dare.phi_dominates_variance"),
    notes=SIGNED,
)


def _beyond_signed(x: DroppedWithGamma) -> Value:
    """P(|H| > T): the two tail bounds fall in s and add up to gamma at T, so |H| > T iff they are below it."""
    upper, lower = signed_proxies(x)

    def below(h: Value) -> Value:
        bounds = exp(-(h**2) / (2 * upper)) + exp(-(h**2) / (2 * lower))
        return exact.exceeds(x.gamma, bounds)

    return exact.probability(dare_error(x), below)


signed_threshold = Claim(
    id="dare.signed_threshold",
    title="Two-sided threshold from the two signed tails",
    statement=r"\mathbb{P}(|H| > T) \le \gamma, \quad e^{-T^2/(2 v_+)} + e^{-T^2/(2 v_-)} = \gamma",
    instance=DroppedWithGamma,
    form=Tail(exact=_beyond_signed, delta=lambda x: x.gamma),
    source=derived("1.b, signed refinement"),
    premises=(INNER_DROP_PROB, GAMMA, SPREAD, INDEPENDENT),
    uses=("dare.signed_tail_up", "dare.signed_tail_down"),
    notes="The root T itself is not computed: an atom lies beyond it if the sum of the bounds there is below gamma.",
)


def _signed_never_worse(x: DroppedWithGamma) -> Sides:
    upper, lower = signed_gains(x)
    full, rate = proxy(as_pruned(x)), log(2 / x.gamma)
    shares = [exp(-rate * gain / (full - gain)) for gain in (upper, lower)]
    return Sides(shares[0] + shares[1], "<=", 2)


signed_never_worse = Claim(
    id="dare.signed_never_worse",
    title="The signed threshold is at most the threshold of eq. (8)",
    statement=r"e^{-T_8^2/(2 v_+)} + e^{-T_8^2/(2 v_-)} \le \gamma, \quad \text{so } T \le T_8",
    instance=DroppedWithGamma,
    form=Bound(_signed_never_worse),
    source=derived("1.b, signed refinement"),
    premises=(INNER_DROP_PROB, GAMMA, SPREAD),
    uses=("dare.signed_threshold", "dare.threshold"),
    notes="Both sides are divided by gamma/2, which makes the comparison exact where nothing is gained.",
)


# --- tighter certificates --------------------------------------------------------------------------------


def capped_exp(exponent: Value) -> Value:
    """exp(exponent) as a bound on a probability: 1 where it is surely more."""
    if isinstance(exponent, Ball):
        return Fraction(1) if exponent.low > 0 else exp(exponent)
    return Fraction(1) if exponent > 0 else exp(exponent)


chernoff = Claim(
    id="dare.chernoff",
    title="Exact Chernoff bound of the output error",
    statement=(
        r"\mathbb{P}(H \ge s) \le \min\bigl(1, e^{K(t) - ts}\bigr) \quad (t \ge 0), \quad"
        r" K(t) = \sum_j \ln\bigl(p\, e^{t c_j} + (1-p)\, e^{-t c_j p/(1-p)}\bigr)"
    ),
    instance=ChernoffPoint,
    form=Tail(
        exact=lambda x: exact.probability(dare_error(x), lambda h: exact.reaches(h, x.level)),
        delta=lambda x: capped_exp(exact.log_mgf(dare_error(x), x.argument) - x.argument * x.level),
    ),
    source=derived("1.f.1"),
    premises=(
        INNER_DROP_PROB,
        Premise("argument >= 0", lambda x: x.argument >= 0),
        INDEPENDENT,
    ),
    notes="For every t, so also for the best one. The other tail is that of the negated coefficients.",
)


def _chernoff_at_kearns_saul(x: DroppedAtLevel) -> Sides:
    p, keep = x.drop_prob, 1 - x.drop_prob
    spread = proxy(as_pruned(x))
    t = x.level / spread
    exponent = -t * x.level
    for c in x.coefficients:
        if c != 0:  # the larger atom is taken out, so no exponential is above 1
            larger, mass = (c, p) if c > 0 else (-c * p / keep, keep)
            exponent += t * larger + log(mass + (1 - mass) * exp(-t * abs(c) / keep))
    return Sides(exponent, "<=", -(x.level**2) / (2 * spread))


chernoff_never_worse = Claim(
    id="dare.chernoff_never_worse",
    title="The Chernoff bound is at most the Kearns-Saul tail",
    statement=r"\inf_{t \ge 0} e^{K(t) - ts} \le e^{K(s/v) - s^2/v} \le e^{-s^2/(2v)}, \quad v = \frac{\Phi(p) Q}{2(1-p)^2}",
    instance=DroppedAtLevel,
    form=Bound(_chernoff_at_kearns_saul),
    source=derived("1.f.1"),
    premises=(INNER_DROP_PROB, LEVEL, SPREAD),
    uses=("dare.chernoff", "dare.mgf_sum"),
    notes="Both sides are compared as logarithms, at the argument t = s/v.",
)


def _supremum(x: Dropped) -> Sides:
    p, keep = x.drop_prob, 1 - x.drop_prob
    varying = [c for c in x.coefficients if c != 0]
    largest = sum(max(c, -c * p / keep) for c in varying)
    mass = Fraction(1)
    for c in varying:
        mass *= p if c > 0 else keep
    attained = exact.probability(dare_error(x), lambda h: compare(h, "<", largest)[0] is not Truth.TRUE)
    return Sides(attained, "==", mass)


essential_supremum = Claim(
    id="dare.essential_supremum",
    title="The largest error and its probability",
    statement=(
        r"\mathbb{P}(H \ge s_{\max}) = \prod_{c_j > 0} p \prod_{c_j < 0} (1-p), \quad"
        r" s_{\max} = \sum_j \max\bigl(c_j, -c_j p/(1-p)\bigr)"
    ),
    instance=Dropped,
    form=Bound(_supremum),
    source=derived("1.f.1"),
    premises=(INNER_DROP_PROB, INDEPENDENT),
    notes="Beyond s_max the tail is 0, so a threshold never exceeds it where gamma is below the product.",
)


def _lattice(x: LatticePoint) -> Sides:
    p, keep = x.drop_prob, 1 - x.drop_prob
    scaled = [c / keep for c in x.coefficients]
    grid = [x.step * round(g / x.step) for g in scaled]
    residual = exact.sum_of_squares(g - k for g, k in zip(scaled, grid, strict=True))
    deviation = kearns_saul(p) * residual * log(2 / x.share)
    rounded = exact.law_of_sum([(k * (1 - p), p), (-k * p, keep)] for k in grid)

    def far(h: Value) -> Value:  # |h| > level + deviation's root
        over = abs(h) - x.level
        return exact.exceeds(over * over, deviation) if over > 0 else False

    near = exact.probability(rounded, lambda value: exact.exceeds(abs(value), x.level))
    return Sides(exact.probability(dare_error(x), far), "<=", near + x.share)


lattice_residual = Claim(
    id="dare.lattice_residual",
    title="Rounding the coefficients to a lattice, at a certified price",
    statement=(
        r"\mathbb{P}\bigl(|H| > u + \sqrt{\Phi(p)\, \textstyle\sum_j r_j^2 \ln(2/\eta)}\bigr)"
        r" \le \mathbb{P}\bigl(|\sum_j k_j \delta (w_j - p)| > u\bigr) + \eta, \quad"
        r" \frac{c_j}{1-p} = k_j \delta + r_j"
    ),
    instance=LatticePoint,
    form=Bound(_lattice),
    source=derived("1.f.3"),
    premises=(
        INNER_DROP_PROB,
        Premise("step > 0", lambda x: x.step > 0),
        Premise("level >= 0", lambda x: x.level >= 0),
        Premise("0 < share < 1", lambda x: 0 < x.share < 1),
        INDEPENDENT,
    ),
    uses=("dare.threshold_rescaled",),
    notes="What the lattice certificate rests on; its floating-point transform is not part of the statement.",
)
