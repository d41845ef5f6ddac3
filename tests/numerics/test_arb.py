"""Enclosures of elementary functions at the ends of their range."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from assay.core.errors import InputError
from assay.core.number import Ball
from assay.numerics.arb import exp, log


def test_exp_of_a_very_negative_number_is_enclosed_without_a_huge_number():
    far = exp(-(Fraction(10) ** 30))
    assert far.low == 0 < far.high < Fraction(1, 2**90000)
    assert far.high.denominator.bit_length() < 100_000


def test_exp_of_an_enclosure_across_the_floor_contains_both_ends():
    across = exp(Ball(-(Fraction(10) ** 30), Fraction(0)))
    assert across == Ball(Fraction(0), Fraction(1))


def test_exp_above_the_floor_is_tight():
    tight = exp(Fraction(-60000))
    assert 0 < tight.low < tight.high
    assert tight.radius / tight.low < Fraction(1, 2**120)
    assert abs(log(tight).midpoint + 60000) < Fraction(1, 2**100)


def test_exp_refuses_what_no_memory_holds():
    with pytest.raises(InputError, match="compare logarithms"):
        exp(Fraction(10) ** 30)


def test_exp_of_floats_overflows_to_infinity():
    assert exp(1000.0) == math.inf
    assert exp(709.0) == math.exp(709.0)
    assert exp(-1000.0) == 0.0
