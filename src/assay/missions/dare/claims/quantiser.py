"""Sub-Gaussian bounds of drop and quantise, and of the realised squared error (1.h)."""

from __future__ import annotations

from fractions import Fraction

from assay.core.claim import Bound, Claim, Mean, Premise, Sides, Tail
from assay.missions.dare import exact
from assay.missions.dare.claims._shared import DROP_PROB, GAMMA, INDEPENDENT, RESCALE, derived
from assay.missions.dare.claims.exact_moments import ENTRIES_INSIDE, LEVELS, quantised_error
from assay.missions.dare.claims.tails import beyond
from assay.missions.dare.exact import Law, Value, kearns_saul
from assay.missions.dare.instances import Quantised, QuantisedMgf, QuantisedWithGamma, Stored
from assay.numerics.arb import log, sqrt


def _proxy(x: Quantised) -> Value:
    """[Phi Q/2 + sum x_j^2 h^2/4]/q^2."""
    step = x.scale / x.levels
    mask = exact.sum_of_squares(e.weight * e.input for e in x.entries) * kearns_saul(x.drop_prob) / 2
    noise = exact.sum_of_squares(e.input * step for e in x.entries) / 4
    return (mask + noise) / x.rescale**2


quantised_proxy = Claim(
    id="dare.quantised_proxy",
    title="Sub-Gaussian moment generating function of drop and quantise",
    statement=(
        r"\mathbb{E} e^{t (H_q - \mathbb{E} H_q)} \le e^{v t^2/2}, \quad"
        r" v = \frac{1}{q^2} \sum_j \Bigl(\frac{\Phi(p)}{2} c_j^2 + \frac{h^2}{4} x_j^2\Bigr)"
    ),
    instance=QuantisedMgf,
    form=Bound(
        lambda x: Sides(
            exact.log_mgf(exact.centred(quantised_error(x)), x.argument), "<=", x.argument**2 * _proxy(x) / 2
        )
    ),
    source=derived("1.h"),
    premises=(DROP_PROB, RESCALE, LEVELS, ENTRIES_INSIDE, INDEPENDENT),
    uses=("dare.mgf_sum", "dare.quantiser_range"),
    notes=(
        "Given the mask, Hoeffding for the quantiser, whose two values are one step apart; then Kearns-Saul for the "
        "mask. Named by the certificates of packed checkpoints."
    ),
)

quantised_threshold = Claim(
    id="dare.quantised_threshold",
    title="Threshold of the centred error of drop and quantise",
    statement=r"\mathbb{P}\bigl(|H_q - \mathbb{E} H_q| > \sqrt{2 v \ln(2/\gamma)}\bigr) \le \gamma",
    instance=QuantisedWithGamma,
    form=Tail(
        exact=lambda x: beyond(exact.centred(quantised_error(x)), 2 * _proxy(x) * log(2 / x.gamma)),
        delta=lambda x: x.gamma,
    ),
    source=derived("1.h"),
    premises=(DROP_PROB, RESCALE, LEVELS, ENTRIES_INSIDE, GAMMA, INDEPENDENT),
    uses=("dare.quantised_proxy",),
)


# --- the realised squared error --------------------------------------------------------------------------

STORED = Premise(
    "moments and steps are not negative", lambda x: all(min(e.moment, e.step) >= 0 for e in x.entries)
)


def _realised(x: Stored) -> Law:
    """The law of sum_j m_j (d_j - v_j)^2 over what is stored."""
    return exact.law_of_sum(
        [
            (e.moment * (e.delta - value) ** 2, prob)
            for value, prob in exact.stored_atoms(e.delta, x.drop_prob, x.rescale, e.step)
        ]
        for e in x.entries
    )


def _realised_mean(x: Stored) -> Value:
    p, q = x.drop_prob, x.rescale
    energy = sum((e.moment * e.delta**2 for e in x.entries), start=Fraction(0))
    noise = sum((e.moment * _step_variance(e.delta, e.step) for e in x.entries), start=Fraction(0))
    return (p + (1 - p) * (1 - 1 / q) ** 2) * energy + (1 - p) * noise / q**2


def _step_variance(weight: Value, step: Value) -> Value:
    return exact.central_moment(exact.law_of_sum([exact.grid_atoms(weight, step)]), 2)


def realised_proxy(x: Stored) -> Value:
    """Phi G/2 + R/4 of the certificate format."""
    q, none = x.rescale, 0 * x.rescale
    delta_root = sqrt(sum((e.moment**2 * e.delta**4 for e in x.entries), start=none))
    step_root = sqrt(sum((e.moment**2 * e.step**4 for e in x.entries), start=none))
    gap = abs(1 - (1 - 1 / q) ** 2) * delta_root + step_root / (4 * q**2)
    reach = 2 * abs(1 - 1 / q) * sqrt(delta_root * step_root) / q + step_root / q**2
    return kearns_saul(x.drop_prob) * gap**2 / 2 + reach**2 / 4


def _beyond_realised(x: Stored) -> Value:
    mean, width = _realised_mean(x), sqrt(2 * log(1 / x.gamma) * realised_proxy(x))
    return exact.probability(_realised(x), lambda value: exact.exceeds(value - mean, width))


realised_mean = Claim(
    id="dare.realised_mean",
    title="Mean of the realised squared error",
    statement=(
        r"\mathbb{E} \sum_j m_j (d_j - v_j)^2 = \bigl(p + (1-p)(1 - 1/q)^2\bigr) B + \frac{(1-p) V}{q^2}, \quad"
        r" B = \sum_j m_j d_j^2, \ V = \sum_j m_j V_j"
    ),
    instance=Stored,
    form=Mean(
        exact=lambda x: exact.expectation(_realised(x)),
        relation="==",
        bound=_realised_mean,
    ),
    source=derived("1.h"),
    premises=(DROP_PROB, RESCALE, STORED, INDEPENDENT),
    uses=("dare.quantised_moments",),
)

realised_tail = Claim(
    id="dare.realised_tail",
    title="Upper tail of the realised squared error",
    statement=(
        r"\mathbb{P}\bigl(Y > \mathbb{E} Y + \sqrt{2 v \ln(1/\gamma)}\bigr) \le \gamma, \quad"
        r" Y = \sum_j m_j (d_j - v_j)^2, \quad v = \Phi(p) G/2 + R/4, \\"
        r" G = \Bigl(|1 - (1 - 1/q)^2| \sqrt{D_4} + \frac{\sqrt{H_4}}{4 q^2}\Bigr)^2, \quad"
        r" R = \Bigl(\frac{2 |1 - 1/q| (D_4 H_4)^{1/4}}{q} + \frac{\sqrt{H_4}}{q^2}\Bigr)^2, \\"
        r" D_4 = \sum_j m_j^2 d_j^4, \ H_4 = \sum_j m_j^2 h_j^4"
    ),
    instance=Stored,
    form=Tail(exact=_beyond_realised, delta=lambda x: x.gamma),
    source=derived("1.h; the certificate format, kind pack"),
    premises=(DROP_PROB, RESCALE, STORED, GAMMA, INDEPENDENT),
    uses=("dare.kearns_saul_mgf", "dare.realised_mean", "dare.quantiser_variance_bound"),
    notes=(
        "Given the mask, entry j takes two values at most m_j (2 |d_j| |1 - 1/q| h_j/q + h_j^2/q^2) apart: Hoeffding, and "
        "Minkowski with Cauchy-Schwarz for the sum of squares. Its conditional mean takes two values m_j |(1 - (1 - 1/q)^2) "
        "d_j^2 - V_j/q^2| apart, with V_j at most h_j^2/4: Kearns-Saul. Named by the certificates of packed checkpoints."
    ),
)
