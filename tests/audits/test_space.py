"""Shapes and values: what the attacks move in."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import Range
from assay.audits.space import (
    Leaf,
    build,
    dyadic,
    everything,
    flatten,
    has_strategy,
    leaves,
    lengths_of,
    random_shape,
    shapes,
    without_index,
)
from assay.core.errors import InputError

from .claims import Dice, Matrix, Named, Pair, Proposed, Row

half_open = Leaf("p", Fraction, Range(0, 1, open_low=True, open_high=True))
positions = st.floats(0, 1)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_flatten_and_build_are_inverse(seed):
    rng = random.Random(seed)
    shape = random_shape(Matrix, rng)
    values = [leaf.at(rng.random()) for leaf in leaves(Matrix, shape)]
    instance = build(Matrix, shape, values)
    assert flatten(instance) == (shape, values)


@given(positions, st.sampled_from(["linear", "ends", "zero"]))
@settings(max_examples=100, deadline=None)
def test_every_position_is_inside_an_open_range(position, warp):
    value = half_open.at(position, warp)
    assert 0 < value < 1
    assert isinstance(value, Fraction)


@given(positions)
def test_whole_numbers_stay_whole_and_inside(position):
    value = Leaf("n", int, Range(2, 12, open_high=True)).at(position, "zero")
    assert isinstance(value, int)
    assert 2 <= value < 12


def test_the_ends_warp_reaches_a_millionth():
    assert half_open.at(0.0, "ends") < Fraction(1, 10**6)
    assert 1 - half_open.at(1.0, "ends") < Fraction(1, 10**6)


def test_special_values_are_inside_and_plain_first():
    assert half_open.special()[0] == Fraction(1, 2)
    assert all(0 < v < 1 for v in half_open.special())
    assert Leaf("n", int, Range(3, 5)).special() == (3, 4, 5)
    assert Leaf("b", bool, Range(0, 1)).special() == (False, True)


@given(st.floats(-1e6, 1e6).filter(lambda v: abs(v) > 1e-9))
def test_dyadics_are_short_and_close(value):
    short = dyadic(value)
    assert abs(short - Fraction(value)) <= abs(Fraction(value)) / 2**19
    assert float(short) == short


def test_shapes_start_small_and_tie_lengths():
    found = shapes(Matrix)
    assert found[0] == (((1,),), 1)
    assert (((3,), (3,), (3,)), 3) in found
    sizes = [len(leaves(Matrix, s)) for s in found]
    assert sizes == sorted(sizes)


def test_a_small_finite_space_is_listed_whole():
    assert len(list(everything(Dice))) == 22
    assert everything(Pair) is None
    assert everything(Matrix) is None


def test_cutting_an_index_cuts_it_at_every_depth():
    square = Matrix(
        (Row((Fraction(1), Fraction(2))), Row((Fraction(3), Fraction(4)))), (Fraction(5), Fraction(6))
    )
    assert lengths_of(square) == {2}
    assert without_index(square, 2, 0) == Matrix((Row((Fraction(4),)),), (Fraction(6),))


def test_a_string_has_no_strategy_unless_the_type_proposes():
    with pytest.raises(InputError, match=r"Named.name, a str: give Named a classmethod propose"):
        has_strategy(Named)
    assert has_strategy(Proposed) is False
    assert has_strategy(Pair) is True


def test_a_range_of_many_decades_is_reached_at_every_scale():
    wide = Leaf("x", Fraction, Range(1, 10**12))
    reached = [float(wide.at(i / 1000, "ends")) for i in range(500)]
    for scale in (2, 30, 10**3, 10**5, 10**8, 10**11):
        assert any(scale / 2 < v < 2 * scale for v in reached)
    assert all(wide.at(i / 10, warp) in wide.range for i in range(11) for warp in ("linear", "ends", "zero"))
