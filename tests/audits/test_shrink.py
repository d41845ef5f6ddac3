"""Counterexamples come out few, small and round."""

from __future__ import annotations

from fractions import Fraction

import pytest

from assay import Length, Premise, Sides, Truth, evaluate
from assay.audits.shrink import as_counterexample, cost, shrink

from .claims import FALSE, FLOATS, TRUE, Matrix, Pair, Point, Row, bound


def shrunk(claim, instance):
    found = shrink(claim, as_counterexample(claim, instance))
    assert evaluate(claim, found.instance).truth is Truth.FALSE
    return found.instance


def test_to_the_plainest_pair():
    messy = Pair(Fraction(123457, 131072), Fraction(1048573, 1048576))
    assert shrunk(FALSE, messy) == Pair(Fraction(1), Fraction(1))


def test_to_a_round_rational_inside_a_pocket():
    """Violated on [pi/3 - 0.01, pi/3 + 0.01] only: the simplest rational there is 22/21."""
    claim = bound(lambda z: Sides(Fraction(1, 10000), "<", (z.x - Fraction(1047, 1000)) ** 2))
    assert shrunk(claim, Point(Fraction(1047198, 1000000))) == Point(Fraction(21, 20))


def test_keeps_premises():
    claim = bound(lambda z: Sides(z.x, "<=", 0), Point, Premise("x > 5/2", lambda z: z.x > Fraction(5, 2)))
    assert shrunk(claim, Point(Fraction(7919, 2048))) == Point(Fraction(3))


def test_drops_rows_and_columns_together():
    def sides(m):
        total = sum(e * v for row in m.rows for e, v in zip(row.entries, m.vector, strict=True))
        return Sides(total, "<=", 1)

    square = Premise("fits", lambda m: all(len(r.entries) == len(m.vector) for r in m.rows))
    claim = bound(sides, Matrix, square)
    ones = (Fraction(2),) * 3
    assert shrunk(claim, Matrix((Row(ones),) * 3, ones)) == Matrix((Row((Fraction(1),)),), (Fraction(2),))


def test_no_counterexample_without_a_rigorous_violation():
    assert as_counterexample(TRUE, Pair(Fraction(1), Fraction(2))) is None
    assert as_counterexample(FLOATS, Point(Fraction(1))) is None


def test_cost_orders_by_number_then_size_then_sign():
    one, minus, third = Point(Fraction(1)), Point(Fraction(-1)), Point(Fraction(1, 3))
    assert (
        cost(Point(Fraction(0)))
        < cost(one)
        < cost(minus)
        < cost(third)
        < cost(Pair(Fraction(0), Fraction(0)))
    )


@pytest.mark.parametrize("length", [Length(1, 3)])
def test_never_below_the_least_length(length):
    claim = bound(lambda m: Sides(0, "<", 0), Matrix)
    found = shrunk(claim, Matrix((Row((Fraction(1),)),) * length.high, (Fraction(1),)))
    assert len(found.rows) == length.low


def test_one_row_shrinks_without_the_others():
    """Rows of different lengths: only the second may lose its tail."""
    claim = bound(
        lambda m: Sides(2, "<=", len(m.rows[0].entries)),
        Matrix,
        Premise("two rows", lambda m: len(m.rows) == 2),
    )
    one = (Fraction(1),)
    found = shrunk(claim, Matrix((Row(one), Row(one * 3)), one))
    assert [len(r.entries) for r in found.rows] == [1, 1]
