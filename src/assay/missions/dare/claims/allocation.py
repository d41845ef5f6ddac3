"""How much to keep where, for a given total error (1.j)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from assay.core.claim import Bound, Claim, Premise, Sides
from assay.core.number import Truth, compare
from assay.missions.dare.claims._shared import derived, within
from assay.missions.dare.exact import Value
from assay.missions.dare.instances import EntryPlan, ErrorCurve, Plan, PricedLayer


@dataclass(frozen=True, slots=True)
class Task:
    """Scores sqrt(a/N), sizes N and a budget: energies are a = N score^2, so no root is taken."""

    scores: Sequence[Value]
    sizes: Sequence[Value]
    budget: Value

    def error(self, keep: Sequence[Value]) -> Value:
        """sum a (1/k - 1); infinite, so None, where a layer with energy is dropped whole."""
        total: Value = Fraction(0)
        for score, size, k in zip(self.scores, self.sizes, keep, strict=True):
            if score != 0:
                if k == 0:
                    return None
                total += size * score**2 * (1 / k - 1)
        return total

    def kept(self, keep: Sequence[Value]) -> Value:
        """sum N k."""
        return sum((size * k for size, k in zip(self.sizes, keep, strict=True)), start=Fraction(0))

    def feasible(self, keep: Sequence[Value]) -> bool:
        """Whether the plan's error is within the budget (floats: up to what cannot be told apart)."""
        error = self.error(keep)
        return error is not None and compare(error, "<=", self.budget)[0] is not Truth.FALSE

    def optimal(self) -> list[Value]:
        """k = min(1, multiplier * score), the multiplier fixed by the budget over the layers not clipped."""
        keep: list[Value] = [Fraction(int(score != 0)) for score in self.scores]
        if self.budget == 0:
            return keep
        active = [j for j, score in enumerate(self.scores) if score != 0]
        while active:
            inner = sum(self.sizes[j] * self.scores[j] for j in active)
            energy = sum(self.sizes[j] * self.scores[j] ** 2 for j in active)
            wanted = {j: inner / (self.budget + energy) * self.scores[j] for j in active}
            for j in active:
                keep[j] = min(wanted[j], Fraction(1))
            inside = [j for j in active if wanted[j] <= 1]
            if inside == active:
                break
            active = inside
        return keep


def layers_task(x: Plan) -> Task:
    """The plan's layers as they stand."""
    return Task([layer.score for layer in x.layers], [layer.size for layer in x.layers], x.budget)


def entries_task(x: EntryPlan) -> Task:
    """Entries of size 1 whose score is |w_j| sqrt(M_jj)."""
    scores = [abs(entry.weight) * entry.root_moment for entry in x.entries]
    return Task(scores, [Fraction(1)] * len(scores), x.budget)


def _optimal_against(task: Task, rival: Sequence[Value]) -> Sides:
    plan = task.optimal()
    least = task.kept(plan) if task.feasible(plan) else task.kept([Fraction(1)] * len(plan)) + 1
    return Sides(least, "<=", task.kept(rival))


BUDGET = Premise("budget >= 0", lambda x: x.budget >= 0)
INFEASIBLE = (
    "A plan over the budget counts as keeping more than everything, so the claim says feasible and optimal. "
)

allocation_feasible_and_optimal = Claim(
    id="dare.allocation_feasible_and_optimal",
    title="The unbiased plan of least size within an error budget",
    statement=(
        r"k^* \text{ minimises } \sum_l N_l k_l \text{ subject to } \sum_l a_l (1/k_l - 1) \le E, \quad"
        r" k_l^* = \min\bigl(1, \Lambda \sqrt{a_l/N_l}\bigr), \\"
        r" \Lambda = \frac{\sum_{\mathrm{act}} \sqrt{a_j N_j}}{E + \sum_{\mathrm{act}} a_j}"
    ),
    instance=Plan,
    form=Bound(lambda x: _optimal_against(layers_task(x), [layer.rival for layer in x.layers])),
    source=derived("1.j"),
    premises=(
        BUDGET,
        Premise(
            "scores are not negative, sizes positive", lambda x: all(l.score >= 0 < l.size for l in x.layers)
        ),
        Premise("rival keep probabilities lie in [0, 1]", lambda x: all(0 <= l.rival <= 1 for l in x.layers)),
        Premise("the rival plan is feasible", lambda x: layers_task(x).feasible([l.rival for l in x.layers])),
    ),
    uses=("dare.layer_error_diagonal",),
    notes=INFEASIBLE + "The instance gives sqrt(a/N) instead of a, which makes every number rational.",
)

entrywise_allocation = Claim(
    id="dare.entrywise_allocation",
    title="The best unbiased keep probabilities of entries follow the Wanda score",
    statement=(
        r"k_{ij}^* = \min\bigl(1, \Lambda |w_{ij}| \sqrt{M_{jj}}\bigr) \text{ minimises } \sum_{ij} k_{ij}"
        r" \text{ subject to } \sum_{ij} w_{ij}^2 M_{jj} (1/k_{ij} - 1) \le E"
    ),
    instance=EntryPlan,
    form=Bound(lambda x: _optimal_against(entries_task(x), [entry.rival for entry in x.entries])),
    source=derived("1.j"),
    premises=(
        BUDGET,
        Premise("root moments are not negative", lambda x: all(e.root_moment >= 0 for e in x.entries)),
        Premise(
            "rival keep probabilities lie in [0, 1]", lambda x: all(0 <= e.rival <= 1 for e in x.entries)
        ),
        Premise(
            "the rival plan is feasible", lambda x: entries_task(x).feasible([e.rival for e in x.entries])
        ),
    ),
    uses=("dare.allocation_feasible_and_optimal",),
    notes=INFEASIBLE + "Such a plan depends on the delta, so a decoder cannot redraw it from a seed.",
)


# --- layers at their best rescale ------------------------------------------------------------------------

RATIO = Premise("0 < ratio < 1", lambda x: 0 < x.ratio < 1)


def _best_error(ratio: Value, keep: Value) -> Value:
    """f(k)/A = rho (1-k)/(rho + (1-rho) k)."""
    return ratio * (1 - keep) / (ratio + (1 - ratio) * keep)


def _curve_convex(x: ErrorCurve) -> Sides:
    middle = _best_error(x.ratio, (x.first + x.second) / 2)
    ends = (_best_error(x.ratio, x.first) + _best_error(x.ratio, x.second)) / 2
    return Sides(middle, "<=", ends) if x.ratio <= 1 else Sides(ends, "<=", middle)


best_error_curve = Claim(
    id="dare.best_error_curve",
    title="The error at the best rescale is convex in the keep probability, or concave",
    statement=(
        r"f(k) = \frac{A \rho (1-k)}{\rho + (1-\rho) k}, \ \rho = B/A: \quad"
        r" f\bigl(\tfrac{k+k'}{2}\bigr) \le \tfrac12 (f(k) + f(k')) \ (\rho \le 1), \quad \ge \ (\rho \ge 1)"
    ),
    instance=ErrorCurve,
    form=Bound(_curve_convex),
    source=derived("1.j"),
    premises=(
        Premise("ratio > 0", lambda x: x.ratio > 0),
        Premise("keep probabilities lie in (0, 1]", lambda x: 0 < x.first <= 1 and 0 < x.second <= 1),
    ),
    uses=("dare.optimal_mean_square",),
    notes="For rho > 1 keep probabilities 0 and 1 are best, and the allocation is a knapsack.",
)


def _priced(x: PricedLayer) -> Sides:
    best = min(max((x.root_price - x.ratio) / (1 - x.ratio), 0), 1)

    def cost(keep: Value) -> Value:
        return keep + x.root_price**2 / x.ratio * _best_error(x.ratio, keep)

    return Sides(cost(best), "<=", cost(x.rival))


priced_keep_probability = Claim(
    id="dare.priced_keep_probability",
    title="The keep probability of a layer at its best rescale, for a price of error",
    statement=(
        r"k^* = \mathrm{clip}\Bigl(\frac{\sqrt{\mu A \rho/N} - \rho}{1 - \rho}, 0, 1\Bigr)"
        r" \text{ minimises } N k + \mu f(k) \text{ over } [0, 1] \quad (\rho < 1)"
    ),
    instance=PricedLayer,
    form=Bound(_priced),
    source=derived("1.j"),
    premises=(RATIO, Premise("root_price >= 0", lambda x: x.root_price >= 0), within("rival", 0, 1)),
    uses=("dare.best_error_curve",),
    notes="The instance gives sqrt(mu A rho/N), which makes every number rational; costs are divided by N.",
)
