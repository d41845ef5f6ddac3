"""Elementary functions for any number: floats stay floats, exact numbers and enclosures give enclosures.

The enclosures come from Arb's ball arithmetic through python-flint, at `assay.core.number.working_precision`.

>>> from fractions import Fraction
>>> exp(0.0)
1.0
>>> enclosure = log(Fraction(2))
>>> enclosure.low < Fraction("0.69314718055994530941723212145817656807550013436026") < enclosure.high
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import flint

from assay.core.errors import InputError
from assay.core.number import Ball, Number, working_precision

_EXP_FLOOR = 1 << 16


def _to_arb(value: Fraction) -> flint.arb:
    return flint.arb(flint.fmpq(value.numerator, value.denominator))


def _fraction(dyadic: flint.arb) -> Fraction:
    mantissa, exponent = (int(part) for part in dyadic.man_exp())
    return Fraction(mantissa << exponent) if exponent >= 0 else Fraction(mantissa, 1 << -exponent)


def _enclose(value: flint.arb) -> Ball:
    if not value.is_finite():
        raise InputError("an enclosure is not finite: the argument touches a singularity of the function")
    return Ball(_fraction(value.lower()), _fraction(value.upper()))


def _increasing(name: str, measured: Callable[[float], float]) -> Callable[[Number], Number]:
    def function(value: Number) -> Number:
        if isinstance(value, float):
            return measured(value)
        ball = Ball.of(value)
        bits = working_precision()
        previous, flint.ctx.prec = flint.ctx.prec, bits + 16
        try:
            low = _enclose(getattr(_to_arb(ball.low), name)())
            high = low if ball.low == ball.high else _enclose(getattr(_to_arb(ball.high), name)())
        finally:
            flint.ctx.prec = previous
        return Ball(low.low, high.high)

    function.__name__ = name
    function.__doc__ = f"{name}(x): a float for a float, an enclosure for anything exact or enclosed."
    return function


def _measured_exp(value: float) -> float:
    return math.inf if value > 709.78 else math.exp(value)


_exp = _increasing("exp", _measured_exp)


def exp(value: Number) -> Number:
    """exp(x): a float for a float (infinite where it overflows), an enclosure for anything exact or enclosed.

    Below exp(-2^16) the enclosure begins at 0, so that no number with a huge denominator is built.

    Raises:
        InputError: the argument may exceed 2^24, whose exponential has millions of digits.
    """
    if isinstance(value, float):
        return _measured_exp(value)
    ball = Ball.of(value)
    if ball.high > 1 << 24:
        raise InputError("exp of more than 2^24 is too large to enclose; compare logarithms instead")
    if ball.low >= -_EXP_FLOOR:
        return _exp(ball)
    floor = Fraction(-_EXP_FLOOR)
    high = Ball.of(_exp(ball.high if ball.high > floor else floor)).high
    return Ball(Fraction(0), high)


log = _increasing("log", math.log)
sqrt = _increasing("sqrt", math.sqrt)
atanh = _increasing("atanh", math.atanh)
tanh = _increasing("tanh", math.tanh)


def log1p(value: Number) -> Number:
    """log(1 + x)."""
    return math.log1p(value) if isinstance(value, float) else log(1 + value)


def pi() -> Ball:
    """An enclosure of pi."""
    previous, flint.ctx.prec = flint.ctx.prec, working_precision() + 16
    try:
        return _enclose(flint.arb.pi())
    finally:
        flint.ctx.prec = previous


def maximum(first: Number, *others: Number) -> Number:
    """The largest of several numbers, enclosed where any of them is."""
    best = first
    for other in others:
        if isinstance(best, Ball) or isinstance(other, Ball):
            a, b = Ball.of(best), Ball.of(other)
            best = Ball(max(a.low, b.low), max(a.high, b.high))
        else:
            best = max(best, other)
    return best


__all__ = ["atanh", "exp", "log", "log1p", "maximum", "pi", "sqrt", "tanh"]
