"""Derandomised masks and the fixed-size expectation (specification 1.i, T7)."""

from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.missions.dare import naive
from assay.missions.dare.algorithm import masks

FULL = [[2, -1, 0], [-1, 2, 1], [0, 1, 3]]

T7 = [
    ([1, 1], [[1, 0], [0, 1]], 1, F(1, 2), 2, 2),
    ([1, 2], [[2, 1], [1, 2]], 1, F(1, 2), 6, 10),
    ([1, 2, -1], FULL, 1, F(1, 3), 34, 26),
    ([1, 2, -1], FULL, 0, F(1, 3), 5, 5),
    ([1, 2, -1], FULL, 3, F(1), 0, 0),
    ([1, 2, -1], FULL, 2, F(5, 2), F(247, 75), F(709, 225)),
    ([3], [[2]], 1, F(1, 2), 18, None),
]


@pytest.mark.parametrize(("w", "moment", "kept", "q", "fixed", "bernoulli"), T7)
def test_fixed_size_expectation_exactly(w, moment, kept, q, fixed, bernoulli):
    assert masks.fixed_size_expectation(w, moment, kept, q) == fixed
    assert naive.fixed_size_expectation(w, moment, kept, q) == fixed
    floats = masks.fixed_size_expectation(np.array(w, float), np.array(moment, float), kept, float(q))
    assert floats == pytest.approx(float(fixed), rel=1e-13, abs=1e-13)
    if bernoulli is not None:
        assert naive.bernoulli_expectation(w, moment, 1 - F(kept, len(w)), q) == bernoulli


def test_fixed_size_single_weight_bernoulli():
    # The listed pair 18 | 18 is E_K at K = 1 and the independent mask at drop_prob 1/2.
    assert naive.bernoulli_expectation([3], [[2]], F(1, 2), F(1, 2)) == 18


small = st.integers(-4, 4)


@st.composite
def layer(draw):
    n = draw(st.integers(2, 5))
    x = draw(st.lists(st.lists(small, min_size=n, max_size=n), min_size=2, max_size=3))
    moment = [[sum(r[i] * r[j] for r in x) for j in range(n)] for i in range(n)]
    return draw(st.lists(small, min_size=n, max_size=n)), moment


@settings(max_examples=30, deadline=None)
@given(layer(), st.sampled_from([F(1, 4), F(1, 2), F(3, 4)]), st.sampled_from([None, F(2, 3), F(2)]))
def test_d1_against_its_definition(case, p, q):
    w, moment = case
    q = 1 - p if q is None else q
    for penalty in (F(0), F(1, 3), F(-2)):
        mask = masks.derandomise([w], moment, float(p), rescale=float(q), penalty=float(penalty))
        expected = naive.bernoulli_expectation(w, moment, p, q)
        slow = naive.derandomised_bernoulli(w, moment, p, q, penalty)
        error = naive.mask_error(w, moment, slow, q)
        assert error + penalty * sum(slow) <= expected + penalty * (1 - p) * len(w), "the guarantee, exactly"
        assert mask.expected_random == pytest.approx(float(expected), rel=1e-12, abs=1e-12)
        assert mask.layer_error <= mask.guarantee + 1e-9 * (1 + abs(mask.guarantee))
        bound = float(expected + penalty * ((1 - p) * len(w) - mask.kept))
        assert mask.guarantee == pytest.approx(bound, rel=1e-12, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(layer(), st.sampled_from([F(1, 4), F(1, 2), F(3, 4)]))
def test_d2_against_its_definition(case, p):
    w, moment = case
    kept = round(float(1 - p) * len(w))
    slow, trace = naive.derandomised_fixed_size(w, moment, kept, 1 - p)
    start = naive.fixed_size_expectation(w, moment, kept, 1 - p)
    assert all(later <= earlier for earlier, later in zip([start, *trace], trace, strict=False)), "monotone"
    assert trace[-1] == naive.mask_error(w, moment, slow, 1 - p)
    for method in ("d2", "d2+d3"):
        mask = masks.derandomise([w], moment, float(p), method=method)
        assert mask.kept == kept == sum(slow)
        assert mask.guarantee == pytest.approx(float(start), rel=1e-12, abs=1e-12)
        assert mask.layer_error <= float(start) * (1 + 1e-12) + 1e-12


def test_the_compiled_steps_take_the_naive_decisions():
    rng = np.random.default_rng(7)
    w, x = rng.standard_normal(6), rng.standard_normal((8, 6))
    moment = x.T @ x
    order = np.argsort(-(w**2) * moment.diagonal(), kind="stable")
    v, m = w[order], moment[np.ix_(order, order)]
    exact_v, exact_m = [F(a) for a in v.tolist()], [[F(a) for a in row] for row in m.tolist()]
    d1 = masks.derandomise(w[None], moment, 0.5, penalty=0.25)
    assert tuple(d1.keep[0, order]) == naive.derandomised_bernoulli(
        exact_v, exact_m, F(1, 2), F(1, 2), F(1, 4)
    )
    d2 = masks.derandomise(w[None], moment, 0.5, method="d2")
    assert tuple(d2.keep[0, order]) == naive.derandomised_fixed_size(exact_v, exact_m, 3, F(1, 2))[0]


def column_by_column(delta, moment, p, q, penalty):
    """D1 without blocks: one rank-one update per column."""
    mean = 1 - (1 - p) / q
    error, keep = mean * delta, np.zeros(delta.shape, dtype=bool)
    gradient = error @ moment
    for j in np.argsort(-(delta**2).sum(axis=0) * moment.diagonal(), kind="stable"):
        w, d = delta[:, j], moment[j, j]
        base, kept = gradient[:, j] - error[:, j] * d, w * (1 - 1 / q)
        keep[:, j] = 2 * kept * base + kept**2 * d + penalty < 2 * w * base + w**2 * d
        change = np.where(keep[:, j], kept, w) - error[:, j]
        error[:, j] += change
        gradient += np.outer(change, moment[j])
    return keep


def fixed_size_column_by_column(delta, moment, kept, q):
    """D2 without maintained sums: every conditional expectation from its definition."""
    (m, n), keep = delta.shape, np.zeros(delta.shape, dtype=bool)
    order = np.argsort(-(delta**2).sum(axis=0) * moment.diagonal(), kind="stable")
    for i in range(m):
        error, left = np.zeros(n), kept
        for position, j in enumerate(order):
            rest = order[position + 1 :]
            w, sub = delta[i, rest], moment[np.ix_(rest, rest)]
            values = []
            for branch in (0, 1):
                error[j] = delta[i, j] * (1 - branch / q)
                value = error @ moment @ error
                if rest.size:
                    share = (left - branch) / rest.size
                    value += 2 * (1 - share / q) * error @ moment[:, rest] @ w
                    if 0 <= share <= 1:
                        value += masks.fixed_size_expectation(w, sub, left - branch, q)
                    else:
                        value = np.inf
                elif left != branch:
                    value = np.inf
                values.append(value)
            keep[i, j] = values[1] < values[0]
            error[j] = delta[i, j] * (1 - keep[i, j] / q)
            left -= int(keep[i, j])
    return keep


@pytest.mark.parametrize("q", [0.25, 0.6])
def test_blocks_change_nothing(q):
    rng = np.random.default_rng(8)
    moment, delta = calibrated(rng, 290, True), rng.standard_normal((6, 290))
    mask = masks.derandomise(delta, moment, 0.75, rescale=q, penalty=3.0)
    np.testing.assert_array_equal(mask.keep, column_by_column(delta, moment, 0.75, q, 3.0))


@pytest.mark.parametrize("q", [0.25, 0.6])
def test_blocks_change_nothing_at_fixed_size(monkeypatch, q):
    monkeypatch.setattr(masks, "_BLOCK", 16)
    rng = np.random.default_rng(9)
    moment, delta = calibrated(rng, 40, True), rng.standard_normal((12, 40))
    mask = masks.derandomise(delta, moment, 0.75, rescale=q, method="d2")
    np.testing.assert_array_equal(mask.keep, fixed_size_column_by_column(delta, moment, 10, q))


def calibrated(rng, n, correlated):
    x = rng.standard_normal((2 * n, n))
    if correlated:
        x = 0.5 * x + rng.standard_normal((2 * n, 8)) @ rng.standard_normal((8, n))
    return x.T @ x / (2 * n)


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("drop_prob", [0.5, 0.9])
def test_default_mask_is_far_below_a_random_one(correlated, drop_prob):
    rng = np.random.default_rng(0)
    moment = calibrated(rng, 300, correlated)  # 300 columns: the last block is not full
    delta = 0.02 * rng.standard_normal((40, 300))
    mask = masks.derandomise(delta, moment, drop_prob)
    assert mask.kept == mask.keep.sum() == round((1 - drop_prob) * delta.size)
    assert mask.layer_error == pytest.approx(
        masks.layer_error(delta, moment, mask.keep, mask.rescale), rel=1e-12
    )
    assert mask.layer_error <= mask.guarantee <= 1.01 * mask.expected_random
    if drop_prob == 0.9:
        assert mask.layer_error <= mask.expected_random / 5
    pure = masks.derandomise(delta, moment, drop_prob, penalty=0.0)
    assert pure.layer_error <= pure.guarantee == pure.expected_random
    swapped = masks.derandomise(delta[:4], moment, drop_prob, method="d2+d3")
    fixed = masks.derandomise(delta[:4], moment, drop_prob, method="d2")
    assert (swapped.keep.sum(axis=1) == round((1 - drop_prob) * 300)).all()
    assert swapped.layer_error < fixed.layer_error <= fixed.guarantee == swapped.guarantee


def test_random_expectation_is_the_mean_of_random_masks():
    rng = np.random.default_rng(3)
    moment, delta = calibrated(rng, 30, True), rng.standard_normal((5, 30))
    mask = masks.derandomise(delta, moment, 0.75, rescale=0.5)
    draws = [masks.layer_error(delta, moment, rng.random(delta.shape) > 0.75, 0.5) for _ in range(4000)]
    assert abs(np.mean(draws) - mask.expected_random) < 5 * np.std(draws) / 4000**0.5


@pytest.mark.parametrize("kept", [0, 1, 17, 59, 60])
def test_any_count_is_met_exactly(kept):
    rng = np.random.default_rng(4)
    moment, delta = calibrated(rng, 12, True), rng.standard_normal((5, 12))
    mask = masks.derandomise(delta, moment, 0.5, kept=kept)
    assert mask.kept == kept
    assert mask.layer_error <= mask.guarantee * (1 + 1e-12) + 1e-9


def test_degenerate_layers():
    zero = masks.derandomise(np.zeros((3, 4)), np.eye(4), 0.75)
    assert (zero.kept, zero.layer_error) == (3, 0.0)
    assert masks.derandomise(np.zeros((0, 4)), np.eye(4), 0.75).kept == 0
    assert masks.derandomise(np.ones((2, 4)), np.zeros((4, 4)), 0.5, method="d2").kept == 4
    assert masks.derandomise([[3.0]], [[2.0]], 0.5, method="d2+d3").keep.shape == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_prob": 0.0}, "strictly between"),
        ({"drop_prob": 1.0}, "strictly between"),
        ({"second_moment": np.ones(2)}, "full matrix"),
        ({"second_moment": np.eye(3)}, "second_moment has shape"),
        ({"second_moment": -np.eye(2)}, "negative diagonal"),
        ({"method": "d4"}, "choose one of d1, d2"),
        ({"kept": 3}, "0..2"),
        ({"kept": 1, "penalty": 0.0}, "not both"),
        ({"kept": 1, "method": "d2"}, "belong to method 'd1'"),
    ],
)
def test_refusals(options, message):
    arguments = {"delta": [[1.0, 2.0]], "second_moment": np.eye(2), "drop_prob": 0.5} | options
    with pytest.raises(InputError, match=message):
        masks.derandomise(**arguments)


def test_fixed_size_refusals():
    with pytest.raises(InputError, match=r"0..1"):
        masks.fixed_size_expectation([1], [[1]], 2, F(1, 2))
    assert masks.fixed_size_expectation([], [], 0, F(1)) == 0
