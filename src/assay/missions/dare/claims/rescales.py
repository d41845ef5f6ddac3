"""The rescale of least mean square, and what it gains against DARE and against deleting the delta (1.e)."""

from __future__ import annotations

from assay.core.claim import Bound, Claim, Premise, Sides
from assay.missions.dare import exact
from assay.missions.dare.claims._shared import (
    INDEPENDENT,
    INNER_DROP_PROB,
    SPREAD,
    derived,
)
from assay.missions.dare.exact import Value
from assay.missions.dare.instances import Dropped, Refit, RescaleChoice

KEPT_SOMETIMES = Premise("drop_prob < 1", lambda x: 0 <= x.drop_prob < 1)
ENERGIES = Premise(
    "output > 0, entry >= 0, noise >= 0", lambda x: x.output > 0 and min(x.entry, x.noise) >= 0
)
RIVAL = Premise("inverse_rescale >= 0", lambda x: x.inverse_rescale >= 0)
NOT_CANCELLED = Premise("the coefficients' sum is not 0", lambda x: sum(x.coefficients) != 0)


def _mean_square(x: RescaleChoice, inverse_rescale: Value) -> Value:
    keep = 1 - x.drop_prob
    spread = keep * (x.drop_prob * x.entry + x.noise)
    return (1 - keep * inverse_rescale) ** 2 * x.output + spread * inverse_rescale**2


def _optimal(x: RescaleChoice) -> Value:
    return (1 - x.drop_prob) + (x.drop_prob * x.entry + x.noise) / x.output


def _least(x: RescaleChoice) -> Value:
    spread = x.drop_prob * x.entry + x.noise
    return x.output * spread / ((1 - x.drop_prob) * x.output + spread)


optimal_rescale = Claim(
    id="dare.optimal_rescale",
    title="The rescale of least mean square",
    statement=(
        r"\mathrm{MSE}(1/q^*) \le \mathrm{MSE}(r) \ (r \ge 0), \quad q^* = (1-p) + \frac{pB + V}{A}, \\"
        r" \mathrm{MSE}(r) = (1 - (1-p) r)^2 A + (1-p)(pB + V) r^2"
    ),
    instance=RescaleChoice,
    form=Bound(
        lambda x: Sides(_mean_square(x, 1 / _optimal(x)), "<=", _mean_square(x, x.inverse_rescale)),
    ),
    source=derived("1.e"),
    premises=(KEPT_SOMETIMES, ENERGIES, RIVAL),
    uses=("dare.moments", "dare.quantised_moments", "dare.layer_error"),
    notes=(
        "For one output A = S^2, B = Q and V = sum x_j^2 V(w_j); for a layer the sums over outputs and samples. "
        "The minimum is attained, and it reintroduces bias: tail bounds then speak of H_q - E H_q. Named by the "
        "certificates of packed checkpoints."
    ),
)

optimal_mean_square = Claim(
    id="dare.optimal_mean_square",
    title="The least mean square over all rescales",
    statement=r"\mathrm{MSE}(1/q^*) = \frac{A (pB + V)}{(1-p) A + pB + V}",
    instance=RescaleChoice,
    form=Bound(lambda x: Sides(_mean_square(x, 1 / _optimal(x)), "==", _least(x))),
    source=derived("1.e"),
    premises=(KEPT_SOMETIMES, ENERGIES),
    uses=("dare.optimal_rescale",),
)

optimal_never_worse_than_deleting = Claim(
    id="dare.optimal_never_worse_than_deleting",
    title="At its best rescale, pruning is never worse than deleting the delta",
    statement=r"\frac{A (pB + V)}{(1-p) A + pB + V} \le A",
    instance=RescaleChoice,
    form=Bound(lambda x: Sides(_mean_square(x, 1 / _optimal(x)), "<=", x.output)),
    source=derived("1.e (iv)"),
    premises=(KEPT_SOMETIMES, ENERGIES),
    uses=("dare.optimal_mean_square",),
)

optimal_gain = Claim(
    id="dare.optimal_gain",
    title="What the best rescale gains against DARE",
    statement=r"\mathrm{MSE}(1/q^*) \bigl((1-p) A + pB + V\bigr) = (1-p) A \cdot \mathrm{MSE}(1/(1-p))",
    instance=RescaleChoice,
    form=Bound(
        lambda x: Sides(
            _mean_square(x, 1 / _optimal(x))
            * ((1 - x.drop_prob) * x.output + x.drop_prob * x.entry + x.noise),
            "==",
            (1 - x.drop_prob) * x.output * _mean_square(x, 1 / (1 - x.drop_prob)),
        )
    ),
    source=derived("1.e (iv)"),
    premises=(KEPT_SOMETIMES, ENERGIES),
    uses=("dare.optimal_mean_square",),
)


def _one_output(x: Dropped) -> tuple[Value, Value]:
    return sum(x.coefficients) ** 2, exact.sum_of_squares(x.coefficients)


def _shrinks(x: Dropped) -> Sides:
    output, entry = _one_output(x)
    keep = 1 - x.drop_prob
    return Sides(keep + x.drop_prob / len(x.coefficients), "<=", keep + x.drop_prob * entry / output)


optimal_shrinks = Claim(
    id="dare.optimal_shrinks",
    title="The best rescale always shrinks more than DARE",
    statement=r"q^* \ge 1 - p + p/n",
    instance=Dropped,
    form=Bound(_shrinks),
    source=derived("1.e (i)"),
    premises=(INNER_DROP_PROB, NOT_CANCELLED),
    uses=("dare.optimal_rescale",),
    notes="From S^2 <= n Q; equality for equal coefficients.",
)


def _exceeds_one(x: Dropped) -> Sides:
    output, entry = _one_output(x)
    optimal = (1 - x.drop_prob) + x.drop_prob * entry / output
    return Sides((optimal - 1) * output, "==", x.drop_prob * (entry - output))


optimal_exceeds_one_iff = Claim(
    id="dare.optimal_exceeds_one_iff",
    title="The best rescale shrinks even the survivors if, and only if, Q > S^2",
    statement=r"(q^* - 1) S^2 = p (Q - S^2), \quad \text{so } q^* > 1 \iff Q > S^2",
    instance=Dropped,
    form=Bound(_exceeds_one),
    source=derived("1.e (ii)"),
    premises=(INNER_DROP_PROB, NOT_CANCELLED),
    uses=("dare.optimal_rescale",),
)


def _beats_deletion(x: Dropped) -> Sides:
    output, entry = _one_output(x)
    law = exact.error_law(x.coefficients, x.drop_prob, 1 - x.drop_prob)
    better = exact.expectation(law, lambda h: h * h) < output
    return Sides(int(better), "==", int(output * (1 - x.drop_prob) > x.drop_prob * entry))


beats_deletion_iff = Claim(
    id="dare.beats_deletion_iff",
    title="When DARE beats deleting the whole delta",
    statement=r"\mathbb{E} H^2 < S^2 \iff \frac{S^2}{Q} > \frac{p}{1-p}",
    instance=Dropped,
    form=Bound(_beats_deletion),
    source=derived("1.e (iii)"),
    premises=(INNER_DROP_PROB, SPREAD, INDEPENDENT),
    uses=("dare.moments",),
    notes=(
        "Both sides are truth values, 1 or 0. At p = .9 the signal must be nine times the energy: for incoherent "
        "coefficients DARE with p > 1/2 is worse in mean square than the base model."
    ),
)


def _refit(x: Refit) -> Sides:
    original = [sum(e.weight * e.inputs[s] for e in x.entries) for s in range(3)]
    pruned = [sum(e.weight * e.inputs[s] for e in x.entries if e.keep) for s in range(3)]
    size = sum(z * z for z in pruned)
    best = sum(y * z for y, z in zip(original, pruned, strict=True)) / size if size else 0
    errors = [
        exact.sum_of_squares(y - scalar * z for y, z in zip(original, pruned, strict=True))
        for scalar in (best, x.scalar)
    ]
    return Sides(errors[0], "<=", errors[1])


refit_never_worse = Claim(
    id="dare.refit_never_worse",
    title="Given the mask, the least-squares scalar is never worse than any other",
    statement=(
        r"\|y - r^* z\|^2 \le \|y - r z\|^2 \ (r \in \mathbb{R}), \quad r^* = \frac{\langle y, z \rangle}{\|z\|^2},"
        r" \ y = \Delta W x, \ z = (\Delta W \circ d) x"
    ),
    instance=Refit,
    form=Bound(_refit),
    source=derived("1.e (v)"),
    notes="r = 1/q among them. Over several outputs and samples y and z are stacked.",
)
