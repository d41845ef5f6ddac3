"""Optimal rescale and its corollaries (specification 1.e, T1 layer)."""

import math
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.missions.dare import model
from assay.missions.dare.algorithm import rescale

DELTA = [[1, 2], [-1, 3], [0, F(1, 2)]]
INPUTS = [[1, 1], [2, -1], [0, 3]]


def test_layer_of_the_specification_exactly():
    energies = rescale.layer_energies(DELTA, INPUTS)
    assert energies == (F(631, 4), F(623, 4))
    best = rescale.compare_rescales(*energies, F(4, 5))
    assert best == (F(3123, 3155), F(393113, 3123), 623, F(631, 4), False)
    assert rescale.mean_square(*energies, F(4, 5), best.optimal) == best.optimal_error
    assert rescale.mean_square(*energies, F(4, 5), F(1, 5)) == best.dare_error


def test_float_layers_agree():
    delta, inputs = np.array(DELTA, float), np.array(INPUTS, float)
    assert rescale.layer_energies(delta, inputs) == pytest.approx((631 / 4, 623 / 4), rel=1e-14)
    rows = rescale.row_energies(delta, inputs.T @ inputs)
    assert rows.output.sum() == pytest.approx(631 / 4, rel=1e-14)
    assert rows.entry.sum() == pytest.approx(623 / 4, rel=1e-14)


rationals = st.fractions(min_value=-3, max_value=3, max_denominator=9)
probabilities = st.fractions(min_value=F(1, 30), max_value=F(29, 30), max_denominator=30)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(rationals, min_size=1, max_size=6), probabilities, st.fractions(F(1, 20), 5, max_denominator=20)
)
def test_corollaries(c, p, q):
    output, entry = rescale.output_energies(c)
    best = rescale.compare_rescales(output, entry, p)
    n = len(c)
    assert model.moments(c, p).mean_square == best.dare_error
    assert (
        best.optimal_error <= rescale.mean_square(output, entry, p, q) == model.moments(c, p, q).mean_square
    )
    if output == 0:
        assert best.optimal == math.inf
        return
    assert best.optimal >= 1 - p + p / n > 1 - p  # (i) the optimum always shrinks more than DARE
    assert (best.optimal > 1) == (entry > output)  # (ii)
    assert best.dare_beats_deleting == (output / entry > p / (1 - p))  # (iii)
    ratio = (1 - p) * output / ((1 - p) * output + p * entry)
    assert best.optimal_error == ratio * best.dare_error < best.dare_error  # (iv)
    assert best.optimal_error <= output


def test_rows_are_at_least_as_good_as_one_rescale():
    rng = np.random.default_rng(0)
    delta, x = rng.standard_normal((5, 7)), rng.standard_normal((20, 7))
    a, b = rescale.row_energies(delta, x.T @ x)
    per_row = rescale.optimal_row_rescales(a, b, 0.8)
    split = sum(rescale.mean_square(*pair, 0.8, q) for *pair, q in zip(a, b, per_row, strict=True))
    assert split <= rescale.compare_rescales(a.sum(), b.sum(), 0.8).optimal_error
    assert rescale.optimal_row_rescales([0.0], [1.0], 0.5)[0] == math.inf


def test_refit_is_never_worse():  # (v)
    rng = np.random.default_rng(1)
    delta, x = rng.standard_normal((4, 30)), rng.standard_normal((50, 30))
    for _ in range(10):
        keep = rng.random(delta.shape) > 0.9
        y, z = x @ delta.T, x @ (delta * keep).T
        r = rescale.refit_scalar(y, z)
        assert all(
            np.sum((y - r * z) ** 2) <= np.sum((y - z / q) ** 2) for q in (0.1, 0.5, 1.0, 1 / r + 1e-3)
        )
    assert rescale.refit_scalar([1.0], [0.0]) == 0.0


def test_certain_drop_and_refusals():
    assert rescale.compare_rescales(4, 14, 1).dare_error == math.inf
    for arguments in ((-1, 1, 0.5), (1, -1, 0.5), (1, 1, 2)):
        with pytest.raises(InputError):
            rescale.compare_rescales(*arguments)
    with pytest.raises(InputError, match="needs the full matrix"):
        rescale.row_energies([[1.0]], [1.0])
    with pytest.raises(InputError, match="must agree"):
        rescale.refit_scalar([1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="one entry per input"):
        rescale.layer_energies([[1, 2]], [[1]])
