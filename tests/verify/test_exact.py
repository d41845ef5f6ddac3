"""The checker's own numbers against independent values."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from assay_verify import exact
from assay_verify.outcome import Rejected

RATIONALS = st.fractions(min_value=Fraction(1, 10**12), max_value=10**12)


def contains(interval: exact.Interval, value: arb, width: Fraction) -> bool:
    """The interval holds what arb encloses much more tightly, and is itself narrow."""

    def ball(x: Fraction) -> arb:
        return arb(x.numerator) / x.denominator

    return ball(interval.low) <= value <= ball(interval.high) and interval.high - interval.low <= width


@settings(max_examples=60, deadline=None)
@given(RATIONALS)
def test_log_and_sqrt_enclose(x: Fraction) -> None:
    ctx.prec = 400
    point = arb(x.numerator) / x.denominator
    assert contains(exact.log(x), point.log(), Fraction(1, 2**180))
    assert contains(exact.sqrt(x), point.sqrt(), Fraction(1, 2**150) * (1 + x))


@pytest.mark.parametrize("threshold", [1, 2, 429496730, 2**31 - 1, 2**31 + 1, 2**32 - 1])
def test_kearns_saul_encloses(threshold: int) -> None:
    ctx.prec = 400
    keep = Fraction(threshold, 2**32)
    p = 1 - arb(threshold) / 2**32
    assert contains(exact.kearns_saul(keep), (1 - 2 * p) / ((1 - p) / p).log(), Fraction(1, 2**100))


def test_kearns_saul_at_its_ends() -> None:
    assert [exact.kearns_saul(Fraction(k, 2)) for k in (0, 1, 2)] == [
        exact.Interval(Fraction(x), Fraction(x)) for x in (0, Fraction(1, 2), 0)
    ]


@given(st.fractions())
def test_rationals_have_one_spelling(x: Fraction) -> None:
    assert exact.number(str(x), "x") == x


@given(st.floats(allow_nan=False))
def test_doubles_round_trip(x: float) -> None:
    spelled = x.hex() if math.isfinite(x) else str(x)
    value = exact.number(spelled, "x")
    assert isinstance(value, float)
    assert value == x
    assert math.copysign(1, value) == math.copysign(1, x)


SPELLINGS = """
    - +1 01 -0 1/1 2/4 1/0 1/-2 1_0 1e3 1.0 nan Inf infinity ٣
    0x1 0x2.0p+0 0x1.p+0 0x1.00000000000001p+0 0x1.0p+1024 0x1.0p-1080 0X1p+0
"""


@pytest.mark.parametrize("spelling", ["", " 1", "1 ", "1\n", *SPELLINGS.split()])
def test_other_spellings_are_refused(spelling: str) -> None:
    with pytest.raises(Rejected):
        exact.number(spelling, "x")


def test_a_numeral_of_the_largest_size_is_read() -> None:
    assert exact.rational("1" + "0" * 99_999, "x") == 10**99_999


SIDES = st.one_of(
    st.fractions(min_value=-3, max_value=3, max_denominator=4),
    st.tuples(*[st.fractions(min_value=-3, max_value=3, max_denominator=4)] * 2).map(
        lambda ends: exact.Interval(min(ends), max(ends))
    ),
    st.floats(-3, 3),
)


@settings(max_examples=300)
@given(SIDES, st.sampled_from(exact.RELATIONS), SIDES)
def test_the_comparison_agrees_with_the_producers(
    lhs: exact.Number, relation: str, rhs: exact.Number
) -> None:
    """Two implementations of the same rule, written apart."""
    from assay.core.number import Ball, compare

    ours = [Ball(x.low, x.high) if isinstance(x, exact.Interval) else x for x in (lhs, rhs)]
    truth, strength = compare(ours[0], relation, ours[1])
    assert exact.compare(lhs, relation, rhs) == (truth.value, strength.value)
