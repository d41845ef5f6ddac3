"""Exact moments: of one output (1.a), of its quantised survivors (1.h) and of a merge."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from assay.core.claim import Bound, Claim, Mean, Premise, Sides
from assay.missions.dare import exact, model
from assay.missions.dare.claims._shared import (
    DROP_PROB,
    INDEPENDENT,
    NOT_EMPTY,
    OPEN,
    PROVED_MOMENTS,
    RESCALE,
    darex,
    derived,
)
from assay.missions.dare.exact import Law, Value
from assay.missions.dare.instances import (
    Coefficients,
    Merge,
    Pruned,
    Quantised,
    QuantisedWeight,
)

FORMAL = "The formal theorem speaks of the definitions of the model: independent masks, any n, any q > 0."


def _error(x: Pruned) -> Law:
    return exact.error_law(x.coefficients, x.drop_prob, x.rescale)


def _closed(x: Pruned) -> model.Cumulants:
    return model.cumulants(x.coefficients, x.drop_prob, x.rescale)


def _fourth_cumulant(x: Pruned) -> Value:
    law = _error(x)
    return exact.central_moment(law, 4) - 3 * exact.central_moment(law, 2) ** 2


def _coefficient_statistics(x: Coefficients) -> Sides:
    count = len(x.coefficients)
    mean = sum(x.coefficients, start=Fraction(0)) / count
    variance = sum((c - mean) ** 2 for c in x.coefficients) / count
    return Sides(count * (mean**2 + variance), "==", exact.sum_of_squares(x.coefficients))


coefficient_statistics = Claim(
    id="dare.coefficient_statistics",
    title="The sum of squares in terms of mean and variance of the coefficients",
    statement=r"Q = \sum_j c_j^2 = n (\bar c^2 + \sigma^2), \quad \bar c = \tfrac1n \sum_j c_j, \ \sigma^2 = \tfrac1n \sum_j (c_j - \bar c)^2",
    instance=Coefficients,
    form=Bound(_coefficient_statistics),
    source=darex("App. E.1, coefficient statistics"),
    premises=(NOT_EMPTY,),
    proof=OPEN,
)

bias = Claim(
    id="dare.bias",
    title="Mean of the output error",
    statement=r"\mathbb{E} H_q = \Bigl(1 - \frac{1-p}{q}\Bigr) S, \quad S = \sum_j c_j",
    instance=Pruned,
    form=Mean(exact=lambda x: exact.expectation(_error(x)), relation="==", bound=lambda x: _closed(x).mean),
    source=darex("App. E.1, exact moments"),
    premises=(DROP_PROB, RESCALE, INDEPENDENT),
    proof=PROVED_MOMENTS,
    notes=FORMAL,
)

moments = Claim(
    id="dare.moments",
    title="Mean square of the output error",
    statement=r"\mathbb{E} H_q^2 = \Bigl(1 - \frac{1-p}{q}\Bigr)^2 S^2 + \frac{p(1-p)}{q^2} Q, \quad S = \sum_j c_j, \ Q = \sum_j c_j^2",
    instance=Pruned,
    form=Mean(
        exact=lambda x: exact.expectation(_error(x), lambda h: h * h),
        relation="==",
        bound=lambda x: model.moments(x.coefficients, x.drop_prob, x.rescale).mean_square,
    ),
    source=darex("App. E.1, exact moments"),
    premises=(DROP_PROB, RESCALE, INDEPENDENT),
    uses=("dare.bias", "dare.variance"),
    proof=PROVED_MOMENTS,
    notes=FORMAL + " The left side is the sum over all masks, the right side the model's formula.",
)

variance = Claim(
    id="dare.variance",
    title="Variance of the output error",
    statement=r"\mathbb{E} (H_q - \mathbb{E} H_q)^2 = \frac{p(1-p)}{q^2} Q",
    instance=Pruned,
    form=Mean(
        exact=lambda x: exact.central_moment(_error(x), 2),
        relation="==",
        bound=lambda x: _closed(x).variance,
    ),
    source=darex("App. E.1, exact moments"),
    premises=(DROP_PROB, RESCALE, INDEPENDENT),
    uses=("dare.bias",),
    notes="A consequence of the two moments that are proved formally; not stated formally by itself.",
)

third_cumulant = Claim(
    id="dare.third_cumulant",
    title="Third central moment of the output error",
    statement=r"\mathbb{E} (H_q - \mathbb{E} H_q)^3 = p(1-p)(1-2p) \sum_j (c_j/q)^3",
    instance=Pruned,
    form=Mean(
        exact=lambda x: exact.central_moment(_error(x), 3), relation="==", bound=lambda x: _closed(x).third
    ),
    source=derived("1.a"),
    premises=(DROP_PROB, RESCALE, INDEPENDENT),
    notes="Its sign decides on which side the variance alone bounds the tail (dare.signed_tail_up).",
)

fourth_cumulant = Claim(
    id="dare.fourth_cumulant",
    title="Fourth cumulant of the output error",
    statement=r"\mathbb{E} (H_q - b_q)^4 - 3 \operatorname{Var}(H_q)^2 = p(1-p)(1 - 6p(1-p)) \sum_j (c_j/q)^4",
    instance=Pruned,
    form=Bound(lambda x: Sides(_fourth_cumulant(x), "==", _closed(x).fourth)),
    source=derived("1.a"),
    premises=(DROP_PROB, RESCALE, INDEPENDENT),
    uses=("dare.variance",),
)


# --- the quantiser and its moments -----------------------------------------------------------------------

INSIDE = Premise("|weight| <= scale", lambda x: abs(x.weight) <= x.scale)
SCALE = Premise("scale > 0", lambda x: x.scale > 0)
LEVELS = Premise("levels >= 1", lambda x: x.levels >= 1)
ENTRIES_INSIDE = Premise(
    "every |weight| <= scale", lambda x: all(abs(entry.weight) <= x.scale for entry in x.entries)
)


def _grid_law(x: QuantisedWeight) -> Law:
    return exact.law_of_sum([model.quantise_atoms(x.weight, x.scale, x.levels)])


def quantised_error(x: Quantised) -> Law:
    """The law of sum_j x_j (w_j - v_j), v_j the stored value of w_j; |w_j| <= scale."""
    return exact.law_of_sum(
        [
            (e.input * (e.weight - value), prob)
            for value, prob in exact.stored_atoms(e.weight, x.drop_prob, x.rescale, x.scale / x.levels)
        ]
        for e in x.entries
    )


def _quantised_closed(x: Quantised) -> model.Moments:
    weights, inputs = [e.weight for e in x.entries], [e.input for e in x.entries]
    return model.quantised_moments(weights, inputs, x.drop_prob, x.rescale, x.scale / x.levels)


quantiser_unbiased = Claim(
    id="dare.quantiser_unbiased",
    title="The stochastic quantiser is unbiased",
    statement=r"\mathbb{E}\, \mathrm{Quant}(w; M, k) = w \quad (|w| \le M)",
    instance=QuantisedWeight,
    form=Mean(exact=lambda x: exact.expectation(_grid_law(x)), relation="==", bound=lambda x: x.weight),
    source=derived("1.h"),
    premises=(SCALE, LEVELS, INSIDE),
    notes="The alphabet is {-k..k} M/k, 2k+1 values with 0: a weight below one step is 0 with positive probability.",
)

quantiser_range = Claim(
    id="dare.quantiser_range",
    title="The stochastic quantiser moves a weight by at most one step",
    statement=r"|\mathrm{Quant}(w; M, k) - w| \le h = M/k",
    instance=QuantisedWeight,
    form=Bound(
        lambda x: Sides(max(abs(value - x.weight) for value in _grid_law(x)), "<=", x.scale / x.levels)
    ),
    source=derived("1.h"),
    premises=(SCALE, LEVELS, INSIDE),
)

quantiser_variance = Claim(
    id="dare.quantiser_variance",
    title="Variance of the stochastic quantiser",
    statement=r"\operatorname{Var} \mathrm{Quant}(w; M, k) = h^2 \vartheta (1 - \vartheta), \quad h = M/k, \ \vartheta = \mathrm{frac}(|w|/h)",
    instance=QuantisedWeight,
    form=Mean(
        exact=lambda x: exact.central_moment(_grid_law(x), 2),
        relation="==",
        bound=lambda x: model.quantiser_variance(x.weight, x.scale / x.levels),
    ),
    source=derived("1.h"),
    premises=(SCALE, LEVELS, INSIDE),
    uses=("dare.quantiser_unbiased",),
)

quantiser_variance_bound = Claim(
    id="dare.quantiser_variance_bound",
    title="The quantiser's variance is at most a quarter of its squared step",
    statement=r"\operatorname{Var} \mathrm{Quant}(w; M, k) \le h^2/4",
    instance=QuantisedWeight,
    form=Mean(
        exact=lambda x: exact.central_moment(_grid_law(x), 2),
        relation="<=",
        bound=lambda x: (x.scale / x.levels) ** 2 / 4,
    ),
    source=derived("1.h"),
    premises=(SCALE, LEVELS, INSIDE),
    uses=("dare.quantiser_variance",),
    notes="Attained halfway between two grid values.",
)

quantised_bias = Claim(
    id="dare.quantised_bias",
    title="Quantising the survivors adds no bias",
    statement=r"\mathbb{E} \sum_j x_j \bigl(w_j - d_j \mathrm{Quant}(w_j)/q\bigr) = \Bigl(1 - \frac{1-p}{q}\Bigr) \sum_j w_j x_j",
    instance=Quantised,
    form=Mean(
        exact=lambda x: exact.expectation(quantised_error(x)),
        relation="==",
        bound=lambda x: _quantised_closed(x).bias,
    ),
    source=derived("1.h"),
    premises=(DROP_PROB, RESCALE, LEVELS, ENTRIES_INSIDE, INDEPENDENT),
    uses=("dare.bias", "dare.quantiser_unbiased"),
)

quantised_moments = Claim(
    id="dare.quantised_moments",
    title="Mean square error of drop and quantise",
    statement=(
        r"\mathbb{E} \Bigl(\sum_j x_j (w_j - d_j \mathrm{Quant}(w_j)/q)\Bigr)^2 = \Bigl(1 - \frac{1-p}{q}\Bigr)^2 S^2"
        r" + \frac{p(1-p) Q + (1-p) \sum_j x_j^2 V(w_j)}{q^2}"
    ),
    instance=Quantised,
    form=Mean(
        exact=lambda x: exact.expectation(quantised_error(x), lambda h: h * h),
        relation="==",
        bound=lambda x: _quantised_closed(x).mean_square,
    ),
    source=derived("1.h"),
    premises=(DROP_PROB, RESCALE, LEVELS, ENTRIES_INSIDE, INDEPENDENT),
    uses=("dare.moments", "dare.quantised_bias", "dare.quantiser_variance"),
    notes=(
        "Named by the certificates of packed checkpoints, which apply it row by row. Dropping first or quantising "
        "first is the same law, since the quantiser maps 0 to 0."
    ),
)


# --- a merge --------------------------------------------------------------------------------------------


def _merged_law(x: Merge) -> Law:
    return exact.law_of_sum(
        [
            (part.weight * value, prob)
            for value, prob in exact.error_law(part.coefficients, part.drop_prob, part.rescale).items()
        ]
        for part in x.parts
    )


def _part_moments(part: Any) -> model.Moments:
    return model.moments(part.coefficients, part.drop_prob, part.rescale)


merged_variance = Claim(
    id="dare.merged_variance",
    title="Variance of a weighted merge of independently pruned deltas",
    statement=r"\operatorname{Var} \sum_t \alpha_t H^{(t)} = \sum_t \alpha_t^2 \operatorname{Var} H^{(t)}",
    instance=Merge,
    form=Mean(
        exact=lambda x: exact.central_moment(_merged_law(x), 2),
        relation="==",
        bound=lambda x: sum(part.weight**2 * _part_moments(part).variance for part in x.parts),
    ),
    source=derived("1.a"),
    premises=(
        Premise("0 <= drop_prob <= 1", lambda x: all(0 <= part.drop_prob <= 1 for part in x.parts)),
        Premise("rescale > 0", lambda x: all(part.rescale > 0 for part in x.parts)),
        Premise("deltas are pruned with independent masks", basis="constructed"),
    ),
    uses=("dare.variance",),
    notes="The weights are squared. Deltas packed with one seed share their masks, and then it does not hold.",
)
