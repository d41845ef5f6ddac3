"""How much of each layer, or of each entry, to keep for a given total error.

Layer l has size N_l and error a_l (1/k_l - 1) at keep probability k_l (DARE, unbiased), or
A_l rho_l (1-k)/(rho_l + (1-rho_l) k) with rho_l = B_l/A_l at the rescale of least mean square.
Minimised is the expected number of kept entries sum N_l k_l.  Specification 1.j.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from assay.core.errors import InputError
from assay.missions.dare import _checks
from assay.missions.dare.model import Floats


@dataclass(frozen=True, eq=False)
class Allocation:
    """Keep probabilities for an error budget.

    Attributes:
        keep_prob: k, one per layer or entry, in [0, 1].
        kept: expected number of kept entries, sum N k.
        error: the error the plan has, at most the budget.
        least_kept: no plan within the budget keeps fewer in expectation (the dual bound); equal to
            ``kept`` up to rounding where the problem is convex.
    """

    keep_prob: Floats
    kept: float
    error: float
    least_kept: float


def allocate(energies: ArrayLike, sizes: ArrayLike, error_budget: float) -> Allocation:
    """Unbiased plan: minimise sum N_l k_l subject to sum a_l (1/k_l - 1) <= E.

    k_l = min(1, Lam sqrt(a_l/N_l)) with Lam fixed by the budget over the layers not clipped at 1; a layer
    with a_l = 0 is dropped whole.

    Args:
        energies: a [L], not negative: a_l = s_l sum_j M_jj ||dW_j||^2, s_l a sensitivity weight.
        sizes: N [L], positive.
        error_budget: E >= 0; 0 keeps every layer with a_l > 0.

    Raises:
        InputError: a negative energy or budget, a size not positive, or lengths that differ.

    >>> allocate([1, 4], [1, 1], 2.5).keep_prob
    array([0.4, 0.8])
    """
    a, size = _energies_and_sizes(energies, sizes)
    budget = _budget(error_budget)
    keep = (a > 0.0).astype(np.float64)
    if budget > 0.0:
        active = a > 0.0
        while active.any():
            inner = float(np.sum(np.sqrt(a[active] * size[active]))) / (budget + float(a[active].sum()))
            wanted = inner * np.sqrt(a[active] / size[active])
            keep[active] = np.minimum(wanted, 1.0)
            if (wanted <= 1.0).all():
                break
            active[active] = wanted <= 1.0
    alive = keep > 0.0
    error = float(np.sum(a[alive] * (1.0 / keep[alive] - 1.0)))
    kept = float(size @ keep)
    return Allocation(keep, kept, error, kept)


def allocate_entries(delta: ArrayLike, second_moment: ArrayLike, error_budget: float) -> Allocation:
    """Entry-wise unbiased plan: k_ij = min(1, Lam |w_ij| sqrt(M_jj)), survivors divided by k_ij.

    Optimal unbiased sampling is proportional to the Wanda score.  Such a plan depends on the delta itself,
    so it cannot be redrawn from a seed.

    Args:
        delta: w [m, n].
        second_moment: M = E x x^T [n, n] or its diagonal [n].
        error_budget: E >= 0 on E||Ex||^2.

    Returns:
        The plan with ``keep_prob`` [m, n].
    """
    weights = _checks.array(delta, "delta", 2)
    moment = _checks.second_moment(second_moment, weights.shape[1])
    energy = weights**2 * (moment if moment.ndim == 1 else moment.diagonal())
    plan = allocate(energy.ravel(), np.ones(energy.size), error_budget)
    return Allocation(plan.keep_prob.reshape(energy.shape), plan.kept, plan.error, plan.least_kept)


def allocate_optimal_rescale(
    output: ArrayLike, entry: ArrayLike, sizes: ArrayLike, error_budget: float
) -> Allocation:
    """Plan when every layer uses its rescale of least mean square: error A rho (1-k)/(rho + (1-rho) k).

    Each layer minimises N k + mu error(k): for rho = B/A <= 1 the error is convex and
    k = clip((sqrt(mu A rho/N) - rho)/(1-rho), 0, 1); for rho >= 1 it is concave (linear at 1) and k is
    0 or 1.  mu is the least price that meets the budget; slack left by a layer that jumps at that price
    is spent on that layer.  With a concave layer the problem is a knapsack, so the plan may keep more than
    the optimum; ``least_kept`` bounds by how much.

    Args:
        output: A [L], not negative (the error of deleting the layer).
        entry: B [L], not negative.
        sizes: N [L], positive.
        error_budget: E >= 0.
    """
    a, size = _energies_and_sizes(output, sizes)
    b = _checks.array(entry, "entry", 1)
    if b.shape != a.shape or (b < 0.0).any():
        raise InputError("entry energies must be as many as the layers and not negative")
    budget = _budget(error_budget)
    costly = (a > 0.0) & (b > 0.0)
    if float(a.sum()) <= budget:
        return Allocation(np.zeros_like(a), 0.0, float(a.sum()), 0.0)
    # B = 0 < A cannot be: A is at most n B; a layer without energy costs nothing at k = 0.
    if (a > 0.0).sum() != costly.sum():
        raise InputError("a layer has output energy but no entry energy; A <= n B always")
    a_on, rho, n_on = a[costly], b[costly] / a[costly], size[costly]

    def plan(price: float) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            inner = (np.sqrt(price * a_on * rho / n_on) - rho) / (1.0 - rho)
        return np.where(rho < 1.0, np.clip(inner, 0.0, 1.0), (price * a_on > n_on).astype(np.float64))

    def errors(keep: Floats) -> Floats:
        return a_on * rho * (1.0 - keep) / (rho + (1.0 - rho) * keep)

    # At `high` every layer is whole (convex: sqrt(mu A rho/N) >= 1; concave: mu A > N).
    low, high = 0.0, 2.0 * float(np.max(n_on / (a_on * np.minimum(rho, 1.0))))
    while True:
        price = 0.5 * (low + high)
        if price in (low, high):
            break
        if float(errors(plan(price)).sum()) <= budget:
            high = price
        else:
            low = price
    keep = _spend_slack(plan(low), plan(high), errors, a_on, rho, budget)
    error = float(errors(keep).sum())
    cheapest = plan(low)
    dual = float(n_on @ cheapest) + low * (float(errors(cheapest).sum()) - budget)
    full = np.zeros_like(a)
    full[costly] = keep
    kept = float(size @ full)
    return Allocation(full, kept, error, min(kept, max(0.0, dual)))


def _spend_slack(
    below: Floats, above: Floats, errors: Callable[[Floats], Floats], a: Floats, rho: Floats, budget: float
) -> Floats:
    """From the feasible plan ``above``, lower the layers that jump at the price until the budget is met."""
    keep = above.copy()
    for layer in np.flatnonzero(above - below > 1e-9):
        trial = keep.copy()
        trial[layer] = below[layer]
        if float(errors(trial).sum()) <= budget:
            keep = trial
            continue
        # error_l(k) = allowed solves to k = rho (A - f)/(rho A + (1-rho) f).
        allowed = budget - (float(errors(keep).sum()) - float(errors(keep)[layer]))
        solved = rho[layer] * (a[layer] - allowed) / (rho[layer] * a[layer] + (1.0 - rho[layer]) * allowed)
        keep[layer] = float(np.clip(solved, below[layer], above[layer]))
    return keep


def _energies_and_sizes(energies: ArrayLike, sizes: ArrayLike) -> tuple[Floats, Floats]:
    a, size = _checks.array(energies, "energies", 1), _checks.array(sizes, "sizes", 1)
    if a.shape != size.shape:
        raise InputError(f"{a.size} energies meet {size.size} sizes; give one size per energy")
    if (a < 0.0).any():
        raise InputError("an energy is negative; it is a sum of squares")
    if (size <= 0.0).any():
        raise InputError("a size is not positive; leave empty layers out")
    return a, size


def _budget(error_budget: float) -> float:
    budget = float(error_budget)
    if not 0.0 <= budget < np.inf:
        raise InputError(f"error_budget is {error_budget}; give a finite error, at least 0")
    return budget
