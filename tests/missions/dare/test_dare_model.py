"""Definitions and exact formulas of the DARE mission (specification T1, T2, T3, T6)."""

import math
from fractions import Fraction as F

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.missions.dare import model, naive
from assay.missions.dare.algorithm.rescale import compare_rescales, output_energies

# c, p, q, bias, variance, mean square, q* (None: any, or none finite), least mean square
T1 = [
    ((), F(1, 3), F(2), 0, 0, 0, None, 0),
    ((1, -2, 3), F(0), F(1), 0, 0, 0, 1, 0),
    ((1, -2, 3), F(1), F(1, 2), 2, 0, 4, F(7, 2), 4),
    ((0, 0), F(1, 2), F(1, 2), 0, 0, 0, None, 0),
    ((1, 2, 3), F(1, 2), F(1, 2), 0, 14, 14, F(25, 36), F(252, 25)),
    ((1, 2, 3), F(9, 10), F(1, 10), 0, 126, 126, F(9, 20), 28),
    ((1, 2, 3), F(9, 10), F(5, 2), F(144, 25), F(126, 625), F(20862, 625), F(9, 20), 28),
    ((1,), F(99, 100), F(1, 100), 0, 99, 99, 1, F(99, 100)),
    ((F(1, 2), F(-1, 3)), F(1, 4), F(2, 3), F(-1, 48), F(39, 256), F(11, 72), 4, F(13, 576)),
    ((1, 1, 1, 1), F(9, 10), F(13, 40), F(36, 13), F(576, 169), F(144, 13), F(13, 40), F(144, 13)),
]


@pytest.mark.parametrize(("c", "p", "q", "bias", "variance", "square", "optimal", "least"), T1)
def test_moments_and_optimal_rescale_exactly(c, p, q, bias, variance, square, optimal, least):
    assert model.moments(list(c), p, q) == (bias, variance, square)
    assert all(isinstance(v, F) for v in model.moments(list(c), p, q))
    assert naive.moments(c, p, q) == (bias, variance, square)
    best = compare_rescales(*output_energies(list(c)), p)
    assert best.optimal == (math.inf if optimal is None else optimal)
    assert best.optimal_error == least
    floats = model.moments(np.array(c, dtype=float), float(p), float(q))
    np.testing.assert_allclose(floats, [float(bias), float(variance), float(square)], rtol=1e-13, atol=1e-14)


rationals = st.fractions(min_value=-3, max_value=3, max_denominator=12)
probabilities = st.fractions(min_value=F(1, 20), max_value=F(19, 20), max_denominator=20)


@settings(max_examples=25, deadline=None)
@given(st.lists(rationals, max_size=5), probabilities, st.fractions(F(1, 10), 3, max_denominator=10))
def test_cumulants_equal_enumeration(c, p, q):
    mean, variance, third, fourth = model.cumulants(c, p, q)
    assert (mean, variance) == naive.moments(c, p, q)[:2]
    assert third == naive.central_moment(c, p, q, 3)
    assert fourth == naive.central_moment(c, p, q, 4) - 3 * variance**2
    values, probs = model.enumerate_law(c, p, q)
    assert naive.atom_moments(list(zip(values, probs, strict=True)))[:2] == (mean, variance)
    assert sum(probs) == 1


def test_per_entry_probabilities_agree_with_the_uniform_formula():
    c, p = [F(1), F(-2), F(3)], F(3, 4)
    assert model.moments(c, [p] * 3) == model.moments(c, p)
    mixed = model.moments(c, [F(0), F(1, 2), F(3, 4)])
    assert mixed == (0, 4 * 1 + 9 * 3, 31)
    assert model.moments(np.array([1.0, -2, 3]), np.array([0, 0.5, 0.75])).variance == 31.0


def test_deleting_is_the_limit_of_large_rescale():
    assert model.moments(np.array([1.0, 2.0]), 0.5, math.inf) == (3.0, 0.0, 9.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], 1.5), "drop_prob has the value 1.5"),
        (([1], F(3, 2)), "drop_prob is 3/2"),
        (([1.0], float("nan")), "drop_prob has the value nan"),
        (([1.0], 1.0), "drop_prob is 1, where DARE divides by 0"),
        (([1], F(1)), "drop_prob is 1, where DARE divides by 0"),
        (([1.0], 0.5, 0.0), "rescale is 0.0"),
        (([1], F(1, 2), F(-1)), "rescale is -1"),
        (([math.nan], 0.5), "coefficients holds a NaN"),
        (([[1.0]], 0.5), "coefficients has 2 axes"),
        ((["a"], 0.5), "coefficients cannot be read"),
        (([1.0, 2.0], [0.5, 0.5, 0.5]), "drop_prob has shape"),
        (([1, 2], [F(1, 2)] * 3), "drop_prob has 3 entries"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        model.moments(*arguments)


def test_enumeration_is_limited():
    with pytest.raises(InputError, match="at most 22"):
        model.enumerate_law(np.ones(23), 0.5)


# --- Phi (T2) ----------------------------------------------------------------------------------------

T2 = [
    (1e-300, 0.001447648273010839425503763),
    (0.001, 0.14449622608365993215746),
    (0.999, 0.14449622608365993215746),
    (0.1, 0.3640956906507349574456961),
    (0.9, 0.3640956906507349574456961),
    (0.25, 0.4551196133134186968071201),
    (0.75, 1 / (2 * math.log(3))),
    (0.3, 0.4720890004575314671868181),
    (0.49999999, 0.4999999999999999333333333),
    (0.5, 0.5),
    (0.99, 0.2132697365817990670588533),
]


@pytest.mark.parametrize(("p", "value"), T2)
def test_phi_values(p, value):
    assert model.phi(p) == pytest.approx(value, rel=1e-15)
    assert model.phi(np.array([p]))[0] == pytest.approx(value, rel=1e-15)


def exact_phi(p: float) -> arb:
    if p == 0.5:
        return arb(1) / 2
    x = arb(p)
    return (1 - 2 * x) / ((1 - x) / x).log()


def grid() -> list[float]:
    around = [5e-324, 2.2e-308, 1e-300, 2.0**-53, 0.25, math.nextafter(0.25, 0), math.nextafter(0.25, 1)]
    around += [0.5, math.nextafter(0.5, 0), math.nextafter(0.5, 1), 1 - 2.0**-53, 1 - 2.0**-30, 0.75]
    logs = [10.0 ** (-k / 7) for k in range(3, 2200)]
    near_half = [0.5 + s * 10.0 ** (-k / 9) for k in range(6, 140) for s in (-1, 1)]
    near_one = [1 - 10.0 ** (-k / 9) for k in range(3, 143)]
    return [p for p in around + logs + near_half + near_one if 0 < p < 1]


def test_phi_is_within_three_ulps_everywhere():
    points = grid()
    vector = model.phi(np.array(points))
    old = ctx.prec
    ctx.prec = 1300
    try:
        for p, v in zip(points, vector, strict=True):
            truth = exact_phi(p)
            nearest = float(truth)
            for value in (model.phi(p), float(v)):
                error = float(abs(arb(value) - truth)) / math.ulp(nearest)
                assert error <= 3.0, (p, value, error)
    finally:
        ctx.prec = old


def test_phi_facts():
    p = np.array([1e-12, 1e-3, 0.1, 0.3, 0.49, 0.5])
    values = model.phi(p)
    assert (np.diff(values) > 0).all()
    assert (values / 2 >= p * (1 - p)).all()
    assert values[-1] / 2 == 0.25
    np.testing.assert_array_equal(model.phi(keep_prob=p), values)
    assert model.phi(0.0) == model.phi(1.0) == 0.0
    assert naive.phi(0.3) == pytest.approx(model.phi(0.3), rel=1e-14)
    assert abs(naive.phi(0.5 + 1e-7) - model.phi(0.5 + 1e-7)) > 1e-12, "the naive form loses digits here"


def test_phi_takes_one_argument():
    for arguments in ({}, {"drop_prob": 0.5, "keep_prob": 0.5}):
        with pytest.raises(InputError, match="exactly one"):
            model.phi(**arguments)
    with pytest.raises(InputError, match=r"keep_prob has the value -0.1"):
        model.phi(keep_prob=-0.1)


# --- cumulant function (T3) --------------------------------------------------------------------------

T3 = [
    (0.25, 1.0, 0.107374019508788537, 0.113779903328354674),
    (0.25, -1.0, 0.0779889392428697494, 0.113779903328354674),
    (0.5, 2.0, 0.433780830483027187, 0.5),
    (0.9, -3.0, 0.767655944682648455, 0.819215303964153654),
    (0.3, 2 * math.log(7 / 3), 0.338919144154881445, 0.338919144154881445),
    (0.6, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("p", "t", "value", "bound"), T3)
def test_log_mgf_of_one_indicator(p, t, value, bound):
    # c = 1 and q = 1: H_q - E H_q = w - p
    assert model.log_mgf(t, [1.0], p, 1.0).value == pytest.approx(value, rel=1e-14)
    assert t**2 * model.phi(p) / 4 == pytest.approx(bound, rel=1e-14)


def test_log_mgf_of_a_sum():
    assert model.log_mgf(0.5, [1.0, 2.0], 0.25).value == pytest.approx(0.24233196644361079408, rel=1e-14)


@pytest.mark.parametrize("p", [1e-9, 0.01, 0.2, 0.49, 0.6, 0.9, 0.999])
def test_kearns_saul_is_attained(p):
    t = 2 * math.log((1 - p) / p)
    assert model.log_mgf(t, [1.0], p, 1.0).value == pytest.approx(t**2 * model.phi(p) / 4, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.floats(-60, 60), st.floats(1e-6, 1 - 1e-6))
def test_kearns_saul_mgf_bound(t, p):
    bound = t**2 * model.phi(p) / 4
    assert model.log_mgf(t, [1.0], p, 1.0).value <= bound * (1 + 1e-12) + 1e-15


def test_derivatives_and_tilted_law():
    rng = np.random.default_rng(0)
    c, p = rng.standard_normal(9), rng.uniform(0.1, 0.9, 9)
    law = model.centred_law(c, p)
    for t in (0.0, 0.3, 2.0):
        h = 1e-4
        k = model.log_mgf(t, c, p)
        up, down = (model.log_mgf(t + s * h, c, p) for s in (1, -1))
        assert k.first == pytest.approx((up.value - down.value) / (2 * h), abs=1e-6)
        assert k.second == pytest.approx((up.first - down.first) / (2 * h), rel=1e-5)
        assert law.tilt(t).variance == pytest.approx(k.second, rel=1e-12)
    assert model.log_mgf(0.0, c, p).second == pytest.approx(model.moments(c, p).variance, rel=1e-12)
    value, prob = model.enumerate_law(c, p)
    assert model.log_mgf(-0.7, c, p).value == pytest.approx(math.log(prob @ np.exp(-0.7 * value)), rel=1e-12)
    assert model.essential_supremum(c, p) == pytest.approx(value.max(), rel=1e-12)


def test_log_mgf_does_not_overflow():
    assert model.log_mgf(1e6, [1.0, -1.0], 0.9).value == pytest.approx(1e6 * (1 + 9), rel=1e-6)
    with pytest.raises(InputError, match="finite"):
        model.log_mgf(math.inf, [1.0], 0.5)


# --- quantiser (T6) ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("w", "scale", "levels", "upper", "lower", "variance"),
    [
        (F(0), F(1), 1, (1, 0), (0, 1), 0),
        (F(1), F(1), 3, (1, 1), (F(2, 3), 0), 0),
        (F(-1, 3), F(1), 2, (F(-1, 2), F(2, 3)), (0, F(1, 3)), F(1, 18)),
        (F(1, 2), F(1), 2, (F(1, 2), 1), (0, 0), 0),
        (F(5, 7), F(2), 5, (F(4, 5), F(11, 14)), (F(2, 5), F(3, 14)), F(33, 1225)),
        (F(-2), F(2), 4, (-2, 1), (F(-3, 2), 0), 0),
    ],
)
def test_quantiser_atoms(w, scale, levels, upper, lower, variance):
    atoms = model.quantise_atoms(w, scale, levels)
    assert atoms == (upper, lower)
    mean, spread, _ = naive.atom_moments(atoms)
    assert (mean, spread) == (w, variance)
    assert model.quantiser_variance(w, scale / levels) == variance
    assert model.quantiser_variance(float(w), float(scale / levels)) == pytest.approx(
        float(variance), abs=1e-15
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, 1, 1), "outside"),
        ((0, 0, 1), "scale is 0"),
        ((0, -1, 1), "scale is -1"),
        ((0, 1, 0), "levels is 0"),
    ],
)
def test_quantiser_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        model.quantise_atoms(*arguments)


TWO = ([F(1, 3), F(-1, 2)], [F(2), F(1)])


@pytest.mark.parametrize(
    ("weights", "inputs", "p", "q", "levels", "expected"),
    [
        ([F(1, 3)], [F(1)], F(1, 2), F(1, 2), 2, (0, F(2, 9), F(2, 9))),
        (*TWO, F(3, 4), F(1, 4), 3, (0, F(79, 36), F(79, 36))),
        (*TWO, F(0), F(1), 3, (0, F(1, 36), F(1, 36))),
        (*TWO, F(1), F(2), 3, (F(1, 6), 0, F(1, 36))),
        (*TWO, F(3, 4), F(3, 2), 3, (F(5, 36), F(79, 1296), F(13, 162))),
        ([F(0)], [F(1)], F(1, 2), F(1, 2), 2, (0, 0, 0)),
    ],
)
def test_drop_and_quantise_moments(weights, inputs, p, q, levels, expected):
    assert model.quantised_moments(weights, inputs, p, q, F(1, levels)) == expected
    assert naive.atom_moments(naive.quantised_law(weights, inputs, p, q, F(1), levels)) == expected
    floats = model.quantised_moments(
        np.array(weights, float),
        np.array(inputs, float),
        float(p),
        float(q),
        np.full(len(weights), 1 / levels),
    )
    np.testing.assert_allclose(floats, [float(e) for e in expected], rtol=1e-13, atol=1e-15)


def test_step_and_shapes_are_checked():
    with pytest.raises(InputError, match="step must be positive"):
        model.quantiser_variance(0.3, 0.0)
    with pytest.raises(InputError, match="their numbers must agree"):
        model.quantised_moments([1.0], [1.0, 2.0], 0.5, None, 0.1)
