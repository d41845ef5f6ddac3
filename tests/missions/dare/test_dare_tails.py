"""Tail certificates (specification T4, T5 and the table of 1.f)."""

import math
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from assay.core.errors import InputError
from assay.missions.dare import model, naive
from assay.missions.dare.algorithm import tails


def threshold(c, p, gamma, method, **options):
    return tails.tail_threshold(np.asarray(c, float), p, gamma, method, **options).threshold


@pytest.mark.parametrize(
    ("p", "n", "mean", "variance", "gamma", "value"),
    [
        (0.5, 1, 1, 0, 0.5, 1.6651092223153955127),
        (0.5, 4, 1, 0, 0.05, 5.432406062962477994),
        (0.99, 1, 1, 0, 0.005, 113.03973043584752665),
        (0.9, 256, 0, 1, 0.001, 266.17075207982867177),
        (0.1, 16, 0.5, 0.75, 0.05, 5.1507738602529506022),
        (0.3, 7, 0, 0, 0.01, 0.0),
    ],
)
def test_goal_bound(p, n, mean, variance, gamma, value):
    assert tails.goal_threshold(n, mean, variance, p, gamma) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 1, 0, 0.5, 0.5),
        (1, 1, 0, 0.0, 0.5),
        (1, 1, 0, 1.0, 0.5),
        (1, 1, 0, 0.5, 0.0),
        (1, 1, 0, 0.5, 1.0),
        (1, 1, -1, 0.5, 0.5),
        (1, math.nan, 0, 0.5, 0.5),
        (1.5, 1, 0, 0.5, 0.5),
        (1, 1, 0, 0.5, math.nan),
    ],
)
def test_goal_bound_refuses(arguments):
    with pytest.raises(InputError):
        tails.goal_threshold(*arguments)


@pytest.mark.parametrize(
    ("p", "energy", "level", "value"),
    [
        (0.5, 4.0, 2.0, 1.213061319425267),
        (0.1, 14.0, 5.0, 0.03764657389919326),
        (0.9, 1.0, 30.0, 3.679609779805162e-11),
        (0.99, 1.0, 99.0, 0.02019254990163652),
    ],
)
def test_tail_bound(p, energy, level, value):
    assert tails.tail_bound(energy, p, level) == pytest.approx(value, rel=1e-13)
    assert tails.tail_probability([math.sqrt(energy)], p, level, "ks").probability == pytest.approx(
        value, rel=1e-13
    )


T5 = [
    ((1,), F(99, 100), F(1, 200), 99, 113.039730435847, 106.300082271391, 99),
    ((1, 1), F(1, 2), F(3, 5), 0, 2.19451389088876, 2.19451389088876, 1.926987141114618636),
    ((1, -2, 3), F(1, 2), F(3, 10), 4, 7.28830292844670, 7.28830292844670, 5.912088696958230321),
    ((1, 2, 3, 4), F(9, 10), F(1, 20), 30, 63.4768882170413, 57.6188120647339, 55.65443166819869888),
    ((0, 0), F(1, 2), F(1, 10), 0, 0, 0, 0),
]


@pytest.mark.parametrize(("c", "p", "gamma", "exact", "ks", "signed", "chernoff"), T5)
def test_thresholds_of_small_cases(c, p, gamma, exact, ks, signed, chernoff):
    assert tails.quantile(*model.enumerate_law(list(c), p), gamma) == exact
    for method, value in {"exact": exact, "ks": ks, "signed": signed, "chernoff": chernoff}.items():
        assert threshold(c, float(p), float(gamma), method) == pytest.approx(value, rel=2e-14, abs=1e-14), (
            method
        )
    bracket = tails.tail_threshold(c, float(p), float(gamma), "lattice")
    assert bracket.lower <= exact * (1 + 1e-14) <= bracket.threshold * (1 + 1e-13)


def test_strict_event_when_nothing_varies():
    for method in ("ks", "signed", "chernoff", "chernoff-split", "lattice", "exact", "saddlepoint"):
        assert threshold([0.0, 0.0], 0.3, 0.01, method) == 0.0
        assert threshold([1.0, 2.0], 0.0, 0.01, method) == 0.0


# --- the table of 1.f: Gaussian and heavy-tailed coefficients ----------------------------------------
# kind, n, p, gamma, true quantile, ratios to it: ks, signed, chernoff, lattice upper end, saddlepoint, printed 3.1
TABLE = """
gauss 16 0.5 0.05 4.7119 1.403 1.403 1.287 1.0004 0.9985 nan
gauss 16 0.5 0.001 7.2356 1.312 1.312 1.090 1.0003 0.9992 nan
gauss 16 0.9 0.05 15.073 1.872 1.618 1.416 1.0002 1.0009 1.316
gauss 16 0.9 0.001 26.921 1.504 1.301 1.125 1.0003 0.9745 1.058
gauss 16 0.99 0.05 56.07 3.851 2.849 2.091 1.0007 1.1832 1.173
gauss 16 0.99 0.001 134.79 2.299 1.705 1.411 1.0003 1.1336 0.701
gauss 256 0.5 0.05 28.719 1.387 1.387 1.376 1.0008 1.0000 nan
gauss 256 0.5 0.001 47.833 1.196 1.196 1.175 1.0005 1.0000 nan
gauss 256 0.9 0.05 86.478 1.966 1.701 1.407 1.0010 1.0006 1.382
gauss 256 0.9 0.001 147.81 1.651 1.433 1.200 1.0006 1.0002 1.161
gauss 256 0.99 0.05 303.44 4.287 3.195 1.594 1.0016 1.0041 1.306
gauss 256 0.99 0.001 596.89 3.129 2.369 1.288 1.0009 1.0008 0.953
gauss 4096 0.5 0.05 125.81 1.386 1.386 1.385 1.0052 1.0000 nan
gauss 4096 0.5 0.001 211.11 1.185 1.185 1.184 1.0035 1.0000 nan
gauss 4096 0.9 0.05 377.47 1.971 1.704 1.387 1.0063 1.0000 1.386
gauss 4096 0.9 0.001 634.41 1.683 1.455 1.186 1.0043 1.0000 1.183
gauss 4096 0.99 0.05 1255.1 4.536 3.353 1.410 1.0109 1.0002 1.382
gauss 4096 0.99 0.001 2147.7 3.805 2.813 1.206 1.0075 1.0001 1.159
heavy 16 0.5 0.05 9.2117 1.435 1.435 1.216 1.0004 0.9968 nan
heavy 16 0.5 0.001 13.015 1.458 1.458 1.057 1.0003 0.9951 nan
heavy 16 0.9 0.05 30.435 1.854 1.622 1.483 1.0003 0.9961 1.303
heavy 16 0.9 0.001 59.266 1.366 1.222 1.109 1.0002 0.9889 0.961
heavy 16 0.99 0.05 80.774 5.346 4.238 3.369 1.0006 1.7264 1.629
heavy 16 0.99 0.001 327.01 1.895 1.586 1.446 1.0002 1.1412 0.578
heavy 256 0.5 0.05 55.292 1.400 1.400 1.338 1.0008 0.9990 nan
heavy 256 0.5 0.001 88.891 1.250 1.250 1.154 1.0005 1.0001 nan
heavy 256 0.9 0.05 171.34 1.927 1.675 1.436 1.0010 0.9974 1.355
heavy 256 0.9 0.001 310.08 1.529 1.344 1.189 1.0006 0.9982 1.075
heavy 256 0.99 0.05 576.06 4.387 3.355 2.201 1.0017 1.1939 1.337
heavy 256 0.99 0.001 1745.7 2.078 1.658 1.231 1.0006 0.9897 0.633
heavy 4096 0.5 0.05 451.54 1.403 1.403 1.319 1.0053 0.9979 nan
heavy 4096 0.5 0.001 712.3 1.277 1.277 1.144 1.0038 1.0002 nan
heavy 4096 0.9 0.05 1448.7 1.866 1.615 1.389 1.0060 0.9895 1.312
heavy 4096 0.9 0.001 2478.1 1.566 1.358 1.161 1.0040 0.9995 1.101
heavy 4096 0.99 0.05 4223 4.898 3.646 2.559 1.0120 1.4808 1.492
heavy 4096 0.99 0.001 14221 2.088 1.577 1.210 1.0040 1.0057 0.636
"""


def rows():
    for line in TABLE.strip().splitlines():
        kind, n, *numbers = line.split()
        marks = pytest.mark.slow if n == "4096" else ()
        yield pytest.param(kind, int(n), *map(float, numbers), marks=marks, id="-".join(line.split()[:4]))


@pytest.mark.parametrize(
    ("kind", "n", "p", "gamma", "true", "ks", "signed", "chernoff", "lattice", "saddle", "printed"),
    list(rows()),
)
def test_table(kind, n, p, gamma, true, ks, signed, chernoff, lattice, saddle, printed):
    rng = np.random.default_rng(1)
    c = rng.standard_normal(n) if kind == "gauss" else rng.standard_t(2, n)
    bracket = tails.tail_threshold(c, p, gamma, "lattice")
    assert bracket.threshold / bracket.lower <= 1.02
    if n == 16:
        quantile = threshold(c, p, gamma, "exact")
        assert bracket.lower <= quantile <= bracket.threshold
    else:
        quantile = 0.5 * (bracket.lower + bracket.threshold)
    # The printed quantiles of n >= 256 are mid-points of wider brackets, so both carry their half-width.
    loose = 1e-4 if n == 16 else 1.5e-3 * (1 + (n == 4096))
    assert quantile == pytest.approx(true, rel=loose)
    digits = 0.0006 if n == 16 else 0.0015
    for method, ratio in {"ks": ks, "signed": signed, "chernoff": chernoff, "saddlepoint": saddle}.items():
        assert threshold(c, p, gamma, method) / quantile == pytest.approx(
            ratio, abs=digits * max(1.0, ratio)
        ), method
    assert bracket.threshold / quantile <= max(lattice + 5e-4, 1.0016)
    if not math.isnan(printed):
        claimed = math.sqrt(2 * p / (1 - p) * float(c @ c) * math.log(2 / gamma))
        assert claimed / quantile == pytest.approx(printed, abs=0.0015)
        assert (claimed < bracket.lower) == (printed < 1), (
            "printed Theorem 3.1 fails exactly where the table says"
        )


def test_printed_theorem_fails_on_one_coefficient():
    printed = math.sqrt(198 * math.log(400))
    assert printed == pytest.approx(34.442850932049461, rel=1e-14)
    assert printed < threshold([1.0], 0.99, 1 / 200, "exact") == pytest.approx(99, rel=1e-14)


# --- far tails ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "p", "dropped", "probability", "looseness"),
    [(40, 0.5, 38, 7.46695150155574e-10, 3.42), (100, 0.3, 80, 7.06350161188407e-25, 9.01)],
)
def test_far_tail_is_relatively_accurate(n, p, dropped, probability, looseness):
    level = (dropped - n * p) / (1 - p)
    truth = binom.sf(dropped - 1, n, p)
    assert truth == pytest.approx(probability, rel=1e-12)
    far = tails.tail_probability(np.ones(n), p, level, "lattice", side="upper")
    assert far.lower <= truth * (1 + 1e-13)
    assert far.probability >= truth * (1 - 1e-13)
    assert far.probability == pytest.approx(probability, rel=1e-11)
    assert 0.5 * (far.lower + far.probability) == pytest.approx(probability, rel=1e-12)
    chernoff = tails.tail_probability(np.ones(n), p, level, side="upper").probability
    assert chernoff / truth == pytest.approx(looseness, abs=0.005)


def test_far_threshold_of_a_binomial():
    bracket = tails.tail_threshold(np.ones(60), 0.5, 1e-12, "lattice")
    k = np.arange(31, 61)
    exact = 2 * (k[2 * binom.sf(k, 60, 0.5) <= 1e-12][0] - 30)
    assert bracket.lower <= exact * (1 + 1e-12)
    assert bracket.threshold == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("side", "level"), [("upper", 42.0), ("lower", 35.0), ("both", 42.0)])
def test_far_tail_of_incommensurable_coefficients(side, level):
    c = np.random.default_rng(3).standard_normal(18)
    truth = tails.tail_probability(c, 0.8, level, "exact", side=side).probability
    lattice = tails.tail_probability(c, 0.8, level, "lattice", side=side)
    assert 0 < truth < 1e-4
    assert lattice.lower <= truth <= lattice.probability <= 1.1 * truth
    assert lattice.lower >= 0.9 * truth


def test_far_threshold_of_incommensurable_coefficients():
    c = np.random.default_rng(3).standard_normal(20)
    exact = threshold(c, 0.8, 1e-8, "exact")
    bracket = tails.tail_threshold(c, 0.8, 1e-8, "lattice")
    assert bracket.lower <= exact <= bracket.threshold <= 1.002 * bracket.lower


def test_beyond_the_supremum_nothing_happens():
    for method in ("chernoff", "lattice", "exact", "saddlepoint"):
        assert tails.tail_probability([1.0, 2.0], 0.5, 3.1, method).probability == 0.0
    at = tails.tail_probability([1.0, 2.0], 0.25, 3.0, "lattice", side="upper")
    assert at.probability == pytest.approx(1 / 16, rel=1e-12)


# --- laws --------------------------------------------------------------------------------------------

coefficients = st.lists(st.floats(-5, 5).filter(lambda v: abs(v) > 1e-3), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(
    coefficients,
    st.floats(0.01, 0.99),
    st.floats(1e-4, 0.9),
    st.sampled_from([None, 0.4, 1.0, 2.5]),
)
def test_each_method_is_at_most_the_looser_one(c, p, gamma, rescale):
    options = {"rescale": rescale}
    ks, signed, split, chernoff, exact = (
        threshold(c, p, gamma, m, **options) for m in ("ks", "signed", "chernoff-split", "chernoff", "exact")
    )
    near = 1 + 1e-9
    assert exact <= chernoff * near
    assert chernoff <= split * near
    assert split <= ks * near
    assert chernoff <= signed * near
    assert signed <= ks * near
    bracket = tails.tail_threshold(c, p, gamma, "lattice", rescale=rescale, bins=1 << 12)
    assert bracket.lower <= exact * near
    assert exact <= bracket.threshold * near
    assert bracket.threshold <= chernoff * near


@settings(max_examples=30, deadline=None)
@given(coefficients, st.floats(0.02, 0.98), st.floats(0.05, 0.95))
def test_probability_bounds_hold(c, p, share):
    level = share * max(model.essential_supremum(c, p), model.essential_supremum([-v for v in c], p))
    for side in ("both", "upper", "lower"):
        truth = tails.tail_probability(c, p, level, "exact", side=side).probability
        for method in ("ks", "signed", "chernoff"):
            assert truth <= tails.tail_probability(c, p, level, method, side=side).probability * (1 + 1e-9)
        bracket = tails.tail_probability(c, p, level, "lattice", side=side, bins=1 << 12)
        assert bracket.lower <= truth * (1 + 1e-9) + 1e-300
        assert truth <= bracket.probability * (1 + 1e-9)


def test_per_entry_probabilities():
    rng = np.random.default_rng(5)
    c, p = rng.standard_normal(14), rng.uniform(0, 0.95, 14)
    p[:3] = 0.0
    exact = threshold(c, p, 0.01, "exact")
    bracket = tails.tail_threshold(c, p, 0.01, "lattice")
    assert bracket.lower <= exact <= bracket.threshold <= threshold(c, p, 0.01, "chernoff")
    same = np.full(14, 0.7)
    for method in ("ks", "signed", "chernoff", "chernoff-split"):
        assert threshold(c, same, 0.01, method) == pytest.approx(threshold(c, 0.7, 0.01, method), rel=1e-12)


def test_one_sided_signed_bound_needs_its_sign():
    # For p > 1/2 the variance proxy is false for t < 0: the lower tail of c = 1 must use Phi/2.
    law = model.centred_law([1.0], 0.99)
    assert law.upper_proxy() == pytest.approx(0.99 * 0.01 / 0.01**2, rel=1e-12)
    assert law.mirror().upper_proxy() == pytest.approx(model.phi(0.99) / 2 / 0.01**2, rel=1e-12)


def test_quantised_threshold_holds_exactly():
    w, x, p, gamma = [F(1, 3), F(-1, 2), F(1, 5)], [F(2), F(1), F(-3)], F(3, 4), 0.02
    bound = tails.quantised_threshold(
        np.array(w, float), np.array(x, float), float(p), gamma, np.array([0.5, 0.5, 0.25])
    )
    atoms = naive.quantised_law(w[:2], x[:2], p, F(1, 4), F(1), 2)
    last = naive.quantised_law(w[2:], x[2:], p, F(1, 4), F(1), 4)
    both = [(a + b, m * k) for a, m in atoms for b, k in last]
    assert float(sum(m for v, m in both if abs(v) > bound.threshold)) <= gamma
    alone = tails.quantised_threshold([1.0], [2.0], 0.5, 0.05, 0.5).threshold
    proxy = (0.5 * 4 / 2 + 4 * 0.25 / 4) / 0.25
    assert alone == pytest.approx(math.sqrt(2 * proxy * math.log(40)), rel=1e-14)
    plain = tails.quantised_threshold(np.array(w, float), np.array(x, float), float(p), gamma, 0.0)
    c = [float(a * b) for a, b in zip(w, x, strict=True)]
    assert plain.threshold == pytest.approx(threshold(c, float(p), gamma, "ks"), rel=1e-14)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1.0], 0.5, 0.1, "chernov"), {}, "method is 'chernov'; choose one of"),
        (([1.0], 0.5, 1.0), {}, "gamma is 1.0"),
        (([1.0], 1.0, 0.1), {}, "divides by 0"),
        (([1.0], 0.5, 0.1, "lattice"), {"bins": 1000}, "power of two"),
        (([1.0] * 30, 0.5, 0.1, "exact"), {}, "at most 22"),
        (([math.inf], 0.5, 0.1), {}, "infinity"),
    ],
)
def test_threshold_refuses(arguments, options, message):
    with pytest.raises(InputError, match=message):
        tails.tail_threshold(*arguments, **options)


def test_probability_refuses():
    with pytest.raises(InputError, match="level is 0"):
        tails.tail_probability([1.0], 0.5, 0.0)
    with pytest.raises(InputError, match="side is 'left'"):
        tails.tail_probability([1.0], 0.5, 1.0, side="left")
    with pytest.raises(InputError, match="must both be positive"):
        tails.tail_bound(0.0, 0.5, 1.0)


def test_strength_is_named():
    assert tails.tail_threshold([1.0, 2.0], 0.5, 0.1, "saddlepoint").strength == "estimate, not a bound"
    assert tails.tail_threshold([1.0, 2.0], 0.5, 0.1, "lattice").strength == "certified bracket"
    assert tails.tail_threshold([1.0, 2.0], 0.5, 0.1).lower is None


@pytest.mark.parametrize("method", ["ks", "signed", "chernoff", "chernoff-split", "lattice"])
def test_noise_is_covered_by_the_threshold(method):
    """Three-atom law by enumeration: mask, and a quantiser of step h on each survivor (1.h)."""
    weights, steps, p = np.array([1.0, -2.0, 0.5, 1.5]), np.array([0.6, 0.8, 0.3, 0.7]), 0.6
    atoms = [(0.0, 1.0)]
    for w, h in zip(weights, steps, strict=True):
        low = np.floor(w / h) * h
        up = (w - low) / h
        kept = [(w - low / (1 - p), (1 - p) * (1 - up)), (w - (low + h) / (1 - p), (1 - p) * up)]
        atoms = [(s + e, q * r) for s, q in atoms for e, r in [(w, p), *kept]]
    values, probs = (np.array(column) for column in zip(*atoms, strict=True))
    assert abs(values @ probs) < 1e-12
    noise = float((steps**2).sum()) / 4 / (1 - p) ** 2
    for gamma in (0.3, 0.05, 0.01):
        threshold = tails.tail_threshold(weights, p, gamma, method, noise=noise).threshold
        assert probs[np.abs(values) > threshold * (1 + 1e-12)].sum() <= gamma
        assert threshold >= tails.tail_threshold(weights, p, gamma, method).threshold
    alone = tails.tail_threshold(np.zeros(3), p, 0.05, method, noise=2.0).threshold
    assert alone == pytest.approx(math.sqrt(4 * math.log(2 / 0.05)), rel=0.5)
    with pytest.raises(InputError):
        tails.tail_threshold(weights, p, 0.05, "exact", noise=1.0)
