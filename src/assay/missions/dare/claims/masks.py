"""Masks that are chosen instead of drawn (1.i)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from assay.core.claim import Bound, Claim, Mean, Premise, Sides
from assay.missions.dare import exact, naive
from assay.missions.dare.claims._shared import DROP_PROB, RESCALE, derived
from assay.missions.dare.exact import Value
from assay.missions.dare.instances import CountedRow, FairRow, MaskedRow, PenalisedRow, RowProblem

ORDER = 4
"""Order of the second moment in the instances."""

COUNT = Premise("0 <= kept <= n", lambda x: 0 <= x.kept <= len(x.weights))
FAIR_COUNT = Premise("1 <= kept <= n, n >= 2", lambda x: 1 <= x.kept <= len(x.weights) >= 2)
NOT_NEGATIVE = Premise("w^T M w >= 0", lambda x: naive.quadratic(x.weights, moment_of(x)) >= 0)


def moment_of(x: RowProblem) -> list[list[Value]]:
    """M [n, n]."""
    return exact.symmetric(x.second_moment, len(x.weights), ORDER)


def _closed_bernoulli(x: PenalisedRow) -> Value:
    moment, p, q = moment_of(x), x.drop_prob, x.rescale
    signal = (1 - (1 - p) / q) ** 2 * naive.quadratic(x.weights, moment)
    return signal + p * (1 - p) / q**2 * exact.diagonal_form(x.weights, moment)


def closed_fixed_size(
    weights: Sequence[Value], moment: list[list[Value]], kept: int, rescale: Value
) -> Value:
    """E_K F, the mean over uniform masks with exactly K keeps."""
    count = len(weights)
    share = Fraction(kept, count)
    signal, energy = naive.quadratic(weights, moment), exact.diagonal_form(weights, moment)
    biased = (1 - share / rescale) ** 2 * signal
    if count == 1:
        return biased
    return biased + share * (1 - share) / rescale**2 * count * (energy - signal / count) / (count - 1)


def _bernoulli_guarantee(x: PenalisedRow) -> Sides:
    moment = moment_of(x)
    mask = naive.derandomised_bernoulli(x.weights, moment, x.drop_prob, x.rescale, x.penalty)
    price = naive.mask_error(x.weights, moment, mask, x.rescale) + x.penalty * sum(mask)
    expected = _closed_bernoulli(x) + x.penalty * (1 - x.drop_prob) * len(x.weights)
    return Sides(price, "<=", expected, {"kept": sum(mask)})


def _fixed_size_guarantee(x: CountedRow) -> Sides:
    moment = moment_of(x)
    mask, _ = naive.derandomised_fixed_size(x.weights, moment, x.kept, x.rescale)
    bound = closed_fixed_size(x.weights, moment, x.kept, x.rescale)
    return Sides(naive.mask_error(x.weights, moment, mask, x.rescale), "<=", bound, {"kept": sum(mask)})


EVERY_ORDER = "It holds for every order of the columns and every symmetric M."

derandomised_bernoulli = Claim(
    id="dare.derandomised_bernoulli",
    title="Guarantee of masks by conditional expectations (D1)",
    statement=r"F(e) + \lambda K \le \mathbb{E}_{\mathrm{Bern}} F + \lambda (1-p) n, \quad F(e) = e^\top M e",
    instance=PenalisedRow,
    form=Bound(_bernoulli_guarantee),
    source=derived("1.i, D1"),
    premises=(DROP_PROB, RESCALE),
    uses=("dare.layer_error",),
    notes=f"The mask is built by the literal algorithm, which the fast one is tested against. {EVERY_ORDER}",
)

derandomised_fixed_size = Claim(
    id="dare.derandomised_fixed_size",
    title="Guarantee of fixed-size masks by conditional expectations (D2)",
    statement=r"F(e) \le \mathbb{E}_K F, \quad \text{with exactly } K \text{ entries kept}",
    instance=CountedRow,
    form=Bound(_fixed_size_guarantee),
    source=derived("1.i, D2"),
    premises=(COUNT, RESCALE),
    uses=("dare.fixed_size_expectation",),
    notes=f"The mask is built by the literal algorithm, which the fast one is tested against. {EVERY_ORDER}",
)

derandomised_count = Claim(
    id="dare.derandomised_count",
    title="Fixed-size masks keep exactly the asked number of entries (D2)",
    statement=r"|\{j : d_j = 1\}| = K",
    instance=CountedRow,
    form=Bound(lambda x: Sides(_fixed_size_guarantee(x).facts["kept"], "==", x.kept)),
    source=derived("1.i, D2"),
    premises=(COUNT, RESCALE),
)

fixed_size_expectation = Claim(
    id="dare.fixed_size_expectation",
    title="Mean error over all masks of one size",
    statement=(
        r"\mathbb{E}_K F = \Bigl(1 - \frac{\pi}{q}\Bigr)^2 A + \frac{\pi(1-\pi)}{q^2} \frac{n}{n-1}"
        r" \Bigl(T - \frac{A}{n}\Bigr), \quad \pi = \frac{K}{n}, \ A = w^\top M w, \ T = \sum_j w_j^2 M_{jj}"
    ),
    instance=CountedRow,
    form=Mean(
        exact=lambda x: naive.fixed_size_expectation(x.weights, moment_of(x), x.kept, x.rescale),
        relation="==",
        bound=lambda x: closed_fixed_size(x.weights, moment_of(x), x.kept, x.rescale),
    ),
    source=derived("1.i, D2"),
    premises=(COUNT, RESCALE),
    notes="At n = 1 the last term is 0.",
)


def _fair(x: FairRow) -> tuple[Value, Value]:
    """E_K F by enumeration, and E_Bern F, at q = K/n = 1 - p."""
    keep, moment = Fraction(x.kept, len(x.weights)), moment_of(x)
    energy = exact.diagonal_form(x.weights, moment)
    fixed = naive.fixed_size_expectation(x.weights, moment, x.kept, keep)
    return fixed, (1 - keep) / keep * energy


def _fixed_against_bernoulli(x: FairRow) -> Sides:
    fixed, independent = _fair(x)
    count = len(x.weights)
    return Sides(fixed, "<=", independent * Fraction(count, count - 1))


def _fixed_gain(x: FairRow) -> Sides:
    fixed, independent = _fair(x)
    keep, moment = Fraction(x.kept, len(x.weights)), moment_of(x)
    advantage = naive.quadratic(x.weights, moment) - exact.diagonal_form(x.weights, moment)
    return Sides((independent - fixed) * (len(x.weights) - 1), "==", (1 - keep) / keep * advantage)


fixed_vs_bernoulli = Claim(
    id="dare.fixed_vs_bernoulli",
    title="Fixing the count costs at most a factor n/(n-1)",
    statement=r"\mathbb{E}_K F \le \frac{n}{n-1} \mathbb{E}_{\mathrm{Bern}} F \quad (q = 1-p = K/n)",
    instance=FairRow,
    form=Bound(_fixed_against_bernoulli),
    source=derived("1.i, D2"),
    premises=(FAIR_COUNT, NOT_NEGATIVE),
    uses=("dare.fixed_size_expectation", "dare.layer_error"),
    notes="A layer treated as one row of length mn makes the factor mn/(mn-1).",
)

fixed_beats_bernoulli_iff = Claim(
    id="dare.fixed_beats_bernoulli_iff",
    title="When fixing the count helps",
    statement=(
        r"(n-1) (\mathbb{E}_{\mathrm{Bern}} F - \mathbb{E}_K F) = \frac{p}{1-p} (A - T), \quad"
        r" \text{so } \mathbb{E}_K F \le \mathbb{E}_{\mathrm{Bern}} F \iff A \ge T"
    ),
    instance=FairRow,
    form=Bound(_fixed_gain),
    source=derived("1.i, D2"),
    premises=(FAIR_COUNT,),
    uses=("dare.fixed_size_expectation",),
)


def _swap(x: MaskedRow) -> Sides:
    moment, mask = moment_of(x), [int(k) for k in x.keep[: len(x.weights)]]
    old, new = mask.index(1), mask.index(0)
    swapped = [1 - k if j in (old, new) else k for j, k in enumerate(mask)]
    error = [w * (1 - k / Fraction(x.rescale)) for w, k in zip(x.weights, mask, strict=True)]
    gradient = [sum(moment[i][j] * error[j] for j in range(len(error))) for i in range(len(error))]
    change = {old: x.weights[old] / x.rescale, new: -x.weights[new] / x.rescale}
    linear = sum(2 * step * gradient[j] + step**2 * moment[j][j] for j, step in change.items())
    predicted = linear + 2 * change[old] * change[new] * moment[old][new]
    before, after = (naive.mask_error(x.weights, moment, m, x.rescale) for m in (mask, swapped))
    return Sides(after - before, "==", predicted)


swap_change = Claim(
    id="dare.swap_change",
    title="What a swap of a kept and a dropped entry changes (D3)",
    statement=r"F(e') - F(e) = \sum_{a \in \{i, j\}} (2 s_a g_a + s_a^2 M_{aa}) + 2 s_i s_j M_{ij}, \quad g = M e, \ s = e' - e",
    instance=MaskedRow,
    form=Bound(_swap),
    source=derived("1.i, D3"),
    premises=(
        RESCALE,
        Premise("an entry is kept and another is dropped", lambda x: len(set(x.keep[: len(x.weights)])) == 2),
    ),
    notes="Descent by such swaps keeps the count, and only lowers F, so the guarantees of D1 and D2 persist.",
)
