"""Allocation of keep probabilities (specification 1.j, T8)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from assay.core.errors import InputError
from assay.missions.dare.algorithm import allocation


@pytest.mark.parametrize(
    ("energies", "sizes", "budget", "keep"),
    [
        ((1, 4), (1, 1), 5 / 2, (2 / 5, 4 / 5)),
        ((1, 4), (1, 1), 3 / 2, (6 / 13, 12 / 13)),
        ((1, 100), (1, 1), 1, (1 / 2, 1)),
        ((1, 4), (1, 1), 0, (1, 1)),
        ((0, 4), (1, 1), 4, (0, 1 / 2)),
        ((0, 0), (1, 5), 4, (0, 0)),
        ((0, 1), (1, 5), 0, (0, 1)),
    ],
)
def test_listed_allocations(energies, sizes, budget, keep):
    plan = allocation.allocate(energies, sizes, budget)
    np.testing.assert_allclose(plan.keep_prob, keep, rtol=1e-15, atol=0)
    assert plan.error <= budget * (1 + 1e-14)


positive = st.floats(0.01, 50)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(positive, st.floats(1, 30)), min_size=1, max_size=5), st.floats(0.05, 20))
def test_unbiased_plan_is_optimal(layers, budget):
    a, n = np.array(layers).T
    plan = allocation.allocate(a, n, budget)
    assert plan.error <= budget * (1 + 1e-12)
    result = minimize(
        lambda k: n @ k,
        np.clip(plan.keep_prob * 0.9 + 0.1, 1e-3, 1),
        jac=lambda k: n,
        bounds=[(1e-4, 1.0)] * len(a),
        constraints={
            "type": "ineq",
            "fun": lambda k: budget - np.sum(a * (1 / k - 1)),
            "jac": lambda k: a / k**2,
        },
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    if result.success:
        assert plan.kept <= result.fun * (1 + 1e-6) + 1e-9


def best_on_a_grid(a, rho, n, budget, points=401):
    grid = np.linspace(0, 1, points)
    k = np.stack(np.meshgrid(grid, grid, indexing="ij"))
    a, rho, n = (v[:, None, None] for v in (a, rho, n))
    error = (a * rho * (1 - k) / (rho + (1 - rho) * k)).sum(axis=0)
    return (n * k).sum(axis=0)[error <= budget].min()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(positive, st.sampled_from([0.1, 0.6, 1.0, 1.7, 9.0]), st.floats(1, 30)),
        min_size=2,
        max_size=2,
    ),
    st.floats(0.02, 0.98),
)
def test_optimal_rescale_plan(layers, share):
    a, rho, n = np.array(layers).T
    budget = share * a.sum()
    plan = allocation.allocate_optimal_rescale(a, a * rho, n, budget)
    assert plan.error <= budget * (1 + 1e-9)
    assert ((plan.keep_prob >= 0) & (plan.keep_prob <= 1)).all()
    best = best_on_a_grid(a, rho, n, budget)
    assert plan.least_kept <= best * (1 + 1e-9), "the dual bound is below every feasible plan"
    if (rho <= 1).all():
        assert plan.kept <= best * (1 + 1e-9)
        assert plan.kept == pytest.approx(plan.least_kept, rel=1e-6)


def test_optimal_rescale_cases():
    whole = allocation.allocate_optimal_rescale([1, 2, 3], [0.5, 2, 9], [1, 1, 1], 0.0)
    np.testing.assert_array_equal(whole.keep_prob, 1.0)
    nothing = allocation.allocate_optimal_rescale([1, 2], [1, 2], [1, 1], 3.0)
    assert (nothing.kept, nothing.error) == (0.0, 3.0)
    linear = allocation.allocate_optimal_rescale([4.0], [4.0], [10.0], 1.0)  # rho = 1: error 4 (1 - k)
    np.testing.assert_allclose(linear.keep_prob, [0.75], rtol=1e-12)
    concave = allocation.allocate_optimal_rescale([4.0], [12.0], [10.0], 1.0)  # error 12 (1-k)/(3-2k) = 1
    np.testing.assert_allclose(concave.keep_prob, [0.9], rtol=1e-12)
    # The dual sees the convex hull of the error, the line from (0, 4) to (10, 0): 7.5 entries at error 1.
    assert (concave.kept, concave.least_kept) == (pytest.approx(9.0), pytest.approx(7.5))
    # Two such layers: the second whole, then the first to error 3 (half of it; a quarter on its hull).
    two = allocation.allocate_optimal_rescale([4.0, 8.0], [12.0, 24.0], [10.0, 10.0], 3.0)
    np.testing.assert_allclose(two.keep_prob, [0.5, 1.0], rtol=1e-12)
    assert (two.kept, two.least_kept) == (pytest.approx(15.0), pytest.approx(12.5))
    silent = allocation.allocate_optimal_rescale([0.0, 4.0], [3.0, 4.0], [1.0, 1.0], 1.0)
    np.testing.assert_allclose(silent.keep_prob, [0.0, 0.75], rtol=1e-12)


def test_entry_plan_is_the_wanda_rule():
    rng = np.random.default_rng(0)
    delta, moment = rng.standard_normal((1, 50)), np.ones(50)
    uniform_keep = 0.25
    budget = float((delta**2).sum()) * (1 / uniform_keep - 1)
    plan = allocation.allocate_entries(delta, moment, budget)
    assert plan.error == pytest.approx(budget, rel=1e-12)
    assert plan.kept < 0.75 * 50 * uniform_keep, "8.0 instead of 12.5 in the specification's draw"
    free = plan.keep_prob < 1
    ratio = plan.keep_prob[free] / np.abs(delta[free])
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)
    full = allocation.allocate_entries(delta, np.diag(moment), budget)
    np.testing.assert_array_equal(full.keep_prob, plan.keep_prob)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1.0], [1.0], 1.0), "energy is negative"),
        (([1.0], [0.0], 1.0), "size is not positive"),
        (([1.0], [1.0, 2.0], 1.0), "one size per energy"),
        (([1.0], [1.0], -1.0), "error_budget is -1"),
        (([1.0], [1.0], float("nan")), "error_budget is nan"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(InputError, match=message):
        allocation.allocate(*arguments)


def test_entry_energy_is_checked():
    with pytest.raises(InputError, match="no entry energy"):
        allocation.allocate_optimal_rescale([1.0], [0.0], [1.0], 0.1)
    with pytest.raises(InputError, match="as many as"):
        allocation.allocate_optimal_rescale([1.0], [1.0, 1.0], [1.0], 0.1)
