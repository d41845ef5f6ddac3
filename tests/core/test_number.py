"""Exact numbers, enclosures and the three-valued comparison."""

from __future__ import annotations

import math
import operator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.core.number import (
    Ball,
    Strength,
    Truth,
    compare,
    decode_number,
    encode_number,
    precision,
)

rationals = st.fractions(min_value=-1000, max_value=1000, max_denominator=10**9)


@given(rationals, rationals, st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv]))
def test_an_enclosure_contains_the_exact_result(a, b, operation):
    if operation is operator.truediv and b == 0:
        return
    with precision(16):
        ball = operation(Ball.of(a), b)
        other = operation(a, Ball.of(b))
    exact = operation(a, b)
    assert ball.low <= exact <= ball.high
    assert other.low <= exact <= other.high
    assert ball.radius <= abs(exact) * Fraction(1, 2**13)


@given(rationals, st.integers(0, 7))
def test_powers_of_a_straddling_enclosure_contain_the_powers_of_its_points(width, exponent):
    ball = Ball(-abs(width), abs(width) + 1)
    power = ball**exponent
    for point in (ball.low, Fraction(0), ball.high):
        assert power.low <= point**exponent <= power.high


def test_precision_bounds_the_size_of_the_ends():
    with precision(32):
        ball = Ball.of(Fraction(1, 3))
        for _ in range(50):
            ball = ball * Fraction(7, 5) + Fraction(1, 9)
    assert ball.low.numerator.bit_length() <= 40


def test_a_divisor_that_may_be_zero_is_refused():
    with pytest.raises(ZeroDivisionError):
        1 / Ball(Fraction(-1), Fraction(1))


@pytest.mark.parametrize(
    ("lhs", "relation", "rhs", "truth", "strength"),
    [
        (Fraction(1, 3), "==", Fraction(2, 6), Truth.TRUE, Strength.EXACT),
        (1, "<", 1, Truth.FALSE, Strength.EXACT),
        (1, "<=", 1, Truth.TRUE, Strength.EXACT),
        (Ball(Fraction(0), Fraction(1)), "<=", 1, Truth.TRUE, Strength.ENCLOSED),
        (Ball(Fraction(0), Fraction(1)), "<", 1, Truth.UNKNOWN, Strength.ENCLOSED),
        (Ball(Fraction(1), Fraction(2)), "<", 1, Truth.FALSE, Strength.ENCLOSED),
        (Ball(Fraction(2), Fraction(3)), "<=", 1, Truth.FALSE, Strength.ENCLOSED),
        (Ball(Fraction(2), Fraction(3)), "==", 1, Truth.FALSE, Strength.ENCLOSED),
        (Ball.of(2), "==", 2, Truth.TRUE, Strength.ENCLOSED),
        (1.0, "<=", 2, Truth.TRUE, Strength.FLOAT),
        (0.1 + 0.2, "<=", 0.3, Truth.UNKNOWN, Strength.FLOAT),
        (math.nan, "<=", 1, Truth.UNKNOWN, Strength.FLOAT),
        (1, "<=", math.inf, Truth.TRUE, Strength.FLOAT),
    ],
)
def test_comparison_table(lhs, relation, rhs, truth, strength):
    assert compare(lhs, relation, rhs) == (truth, strength)


@given(
    st.one_of(
        rationals, st.floats(allow_nan=False), st.tuples(rationals, rationals).map(lambda t: Ball(*sorted(t)))
    )
)
def test_numbers_survive_their_encoding(value):
    back = decode_number(encode_number(value))
    assert type(back) is (type(value) if not isinstance(value, int) else Fraction)
    assert back == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1/0",
        "1_0",
        " 1",
        "+1",
        "1.5",
        "nan",
        "1e5",
        "one",
        "--1",
        "9" * 200_000,
        3,
        None,
        ["1"],
        ["2", "1"],
    ],
)
def test_bad_numerals_are_one_sentence(text):
    with pytest.raises(InputError):
        decode_number(text)
