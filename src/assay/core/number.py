"""Numbers that can carry a proof: exact rationals, rational enclosures, and a three-valued comparison.

Three kinds of number may stand on a side of a claim.  A rational (`int` or `fractions.Fraction`) is
*exact*.  A `Ball` is an *enclosure*: the true value lies between its two rational ends.  A `float` is
*measured*: it takes part in searches, and never proves anything.

Transcendental functions live in `assay.numerics`, which returns balls; here is only ``+ - * /``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from assay.core.errors import InputError

__all__ = [
    "Ball",
    "Number",
    "Relation",
    "Strength",
    "Truth",
    "as_float",
    "compare",
    "decode_number",
    "encode_number",
    "precision",
    "working_precision",
]

RELATIONS = ("==", "<=", "<")
Relation = str  # one of RELATIONS

MAX_DIGITS = 4300
"""Most digits of an integer in a file, which is what Python itself converts; a million are an attack."""

_precision: ContextVar[int] = ContextVar("assay_working_precision", default=128)


class Truth(Enum):
    """Three-valued: UNKNOWN is an answer, not a failure."""

    TRUE = "TRUE"
    FALSE = "FALSE"
    UNKNOWN = "UNKNOWN"

    @classmethod
    def of(cls, value: bool | Truth) -> Truth:
        """A `bool` as a `Truth`; a `Truth` as itself."""
        return value if isinstance(value, Truth) else (cls.TRUE if value else cls.FALSE)

    def __and__(self, other: Truth) -> Truth:
        """Kleene's conjunction: FALSE wins, then UNKNOWN."""
        if Truth.FALSE in (self, other):
            return Truth.FALSE
        return Truth.TRUE if self is other is Truth.TRUE else Truth.UNKNOWN


class Strength(Enum):
    """How a truth value was reached, weakest first."""

    FLOAT = "FLOAT"
    STATISTICAL = "STATISTICAL"
    ENCLOSED = "ENCLOSED"
    EXACT = "EXACT"

    @property
    def rigorous(self) -> bool:
        """True for the two strengths that can carry a proof."""
        return self in (Strength.ENCLOSED, Strength.EXACT)

    def weaker(self, other: Strength) -> Strength:
        """The weaker of the two: a conclusion is no stronger than what it rests on."""
        order = list(Strength)
        return min(self, other, key=order.index)


def working_precision() -> int:
    """Bits that enclosures are rounded to in the current context (default 128)."""
    return _precision.get()


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Round enclosures outward to `bits` significant bits inside the ``with`` block."""
    if not 2 <= bits <= 1 << 20:
        raise InputError(f"a precision of {bits} bits is outside 2..{1 << 20}; ask for a few hundred")
    token = _precision.set(bits)
    try:
        yield
    finally:
        _precision.reset(token)


def _round(value: Fraction, bits: int, *, up: bool) -> Fraction:
    """The nearest dyadic with `bits` significant bits on the asked side of `value`."""
    numerator, denominator = value.numerator, value.denominator
    if denominator & (denominator - 1) == 0 and numerator.bit_length() <= bits:
        return value
    shift = bits - (abs(numerator).bit_length() - denominator.bit_length())
    scaled = numerator << shift if shift >= 0 else numerator
    divisor = denominator if shift >= 0 else denominator << -shift
    whole = -((-scaled) // divisor) if up else scaled // divisor
    return Fraction(whole, 1 << shift) if shift >= 0 else Fraction(whole << -shift)


@dataclass(frozen=True, slots=True)
class Ball:
    """A closed interval with rational ends that contains a real number.

    Arithmetic rounds outward to `working_precision`, so an enclosure stays an enclosure.

    >>> third = Ball.of(1) / 3
    >>> third.low < Fraction(1, 3) < third.high
    True
    >>> Ball(Fraction(1), Fraction(2)) - 1
    Ball(low=Fraction(0, 1), high=Fraction(1, 1))
    """

    low: Fraction
    high: Fraction

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InputError(f"an enclosure needs low <= high, got [{self.low}, {self.high}]")

    @classmethod
    def of(cls, value: Number) -> Ball:
        """The point enclosure of a rational, or a ball as itself; floats are refused."""
        if isinstance(value, Ball):
            return value
        if isinstance(value, int | Fraction):
            return cls(Fraction(value), Fraction(value))
        raise TypeError(f"a {type(value).__name__} is measured, not enclosed")

    @classmethod
    def _outward(cls, low: Fraction, high: Fraction) -> Ball:
        bits = working_precision()
        return cls(_round(low, bits, up=False), _round(high, bits, up=True))

    @property
    def midpoint(self) -> Fraction:
        """Halfway between the ends."""
        return (self.low + self.high) / 2

    @property
    def radius(self) -> Fraction:
        """Half the width: 0 for a point."""
        return (self.high - self.low) / 2

    def __float__(self) -> float:
        return as_float(self.midpoint)

    def __neg__(self) -> Ball:
        return Ball(-self.high, -self.low)

    def __abs__(self) -> Ball:
        if self.low >= 0:
            return self
        return -self if self.high <= 0 else Ball(Fraction(0), max(-self.low, self.high))

    def __add__(self, other: Number) -> Ball:
        if isinstance(other, float):
            return NotImplemented
        o = Ball.of(other)
        return Ball._outward(self.low + o.low, self.high + o.high)

    __radd__ = __add__

    def __sub__(self, other: Number) -> Ball:
        if isinstance(other, float):
            return NotImplemented
        return self + -Ball.of(other)

    def __rsub__(self, other: Number) -> Ball:
        return -self + other

    def __mul__(self, other: Number) -> Ball:
        if isinstance(other, float):
            return NotImplemented
        o = Ball.of(other)
        ends = [a * b for a in (self.low, self.high) for b in (o.low, o.high)]
        return Ball._outward(min(ends), max(ends))

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Ball:
        if isinstance(other, float):
            return NotImplemented
        o = Ball.of(other)
        if o.low <= 0 <= o.high:
            raise ZeroDivisionError("the divisor's enclosure contains 0")
        return self * Ball._outward(1 / o.high, 1 / o.low)

    def __rtruediv__(self, other: Number) -> Ball:
        return Ball.of(other) / self

    def __pow__(self, exponent: int) -> Ball:
        if not isinstance(exponent, int):
            return NotImplemented
        if exponent < 0:
            return 1 / self**-exponent
        if exponent % 2 == 0:
            base = abs(self)
            return Ball._outward(base.low**exponent, base.high**exponent)
        return Ball._outward(self.low**exponent, self.high**exponent)


Number = int | Fraction | Ball | float


def as_float(value: Number) -> float:
    """The nearest float (the midpoint's, for a ball); overflow becomes an infinity.

    >>> as_float(Fraction(1, 3))
    0.3333333333333333
    >>> as_float(Fraction(10) ** 400)
    inf
    """
    if isinstance(value, Ball):
        value = value.midpoint
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


FLOAT_SLACK = 2.0**-40
"""Relative distance under which two floats are too close to tell apart: the answer is UNKNOWN."""


def compare(lhs: Number, relation: Relation, rhs: Number) -> tuple[Truth, Strength]:
    """Whether ``lhs relation rhs``, and how firmly that is known.

    Rationals compare exactly.  Enclosures compare when they are disjoint, and are UNKNOWN until precision
    rises when they overlap.  As soon as a float takes part the strength is FLOAT, and floats within a
    relative `FLOAT_SLACK` of one another are UNKNOWN.

    >>> compare(Fraction(1, 3), "<=", Fraction(1, 3))
    (<Truth.TRUE: 'TRUE'>, <Strength.EXACT: 'EXACT'>)
    >>> compare(Ball(Fraction(0), Fraction(2)), "<", 1)
    (<Truth.UNKNOWN: 'UNKNOWN'>, <Strength.ENCLOSED: 'ENCLOSED'>)
    >>> compare(0.1 + 0.2, "<=", 0.3)
    (<Truth.UNKNOWN: 'UNKNOWN'>, <Strength.FLOAT: 'FLOAT'>)
    """
    if relation not in RELATIONS:
        raise InputError(f"the relation {relation!r} is none of {', '.join(RELATIONS)}")
    if isinstance(lhs, float) or isinstance(rhs, float):
        return _compare_floats(as_float(lhs), relation, as_float(rhs)), Strength.FLOAT
    if not isinstance(lhs, Ball) and not isinstance(rhs, Ball):
        holds = {"==": lhs == rhs, "<=": lhs <= rhs, "<": lhs < rhs}[relation]
        return Truth.of(holds), Strength.EXACT
    left, right = Ball.of(lhs), Ball.of(rhs)
    if relation == "==":
        true = left.low == left.high == right.low == right.high
        false = left.high < right.low or right.high < left.low
    elif relation == "<=":
        true, false = left.high <= right.low, left.low > right.high
    else:
        true, false = left.high < right.low, left.low >= right.high
    truth = Truth.TRUE if true else Truth.FALSE if false else Truth.UNKNOWN
    return truth, Strength.ENCLOSED


def _compare_floats(lhs: float, relation: Relation, rhs: float) -> Truth:
    if math.isnan(lhs) or math.isnan(rhs):
        return Truth.UNKNOWN
    if math.isinf(lhs) or math.isinf(rhs):
        return Truth.of({"==": lhs == rhs, "<=": lhs <= rhs, "<": lhs < rhs}[relation])
    if abs(lhs - rhs) <= FLOAT_SLACK * max(abs(lhs), abs(rhs)):
        return Truth.UNKNOWN
    return Truth.FALSE if relation == "==" else Truth.of(lhs < rhs)


def encode_number(value: Number) -> str | list[str]:
    """A number as JSON without JSON's floats.

    A rational is ``"355/113"``, a double its hex form, an enclosure the pair of its ends.

    >>> encode_number(Fraction(355, 113)), encode_number(0.5), encode_number(Ball(Fraction(1), Fraction(2)))
    ('355/113', '0x1.0000000000000p-1', ['1', '2'])
    """
    if isinstance(value, bool):
        raise TypeError("a truth value is no number")
    if isinstance(value, float):
        return value.hex() if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Ball):
        return [_numeral(value.low), _numeral(value.high)]
    return _numeral(Fraction(value))


def _numeral(value: Fraction) -> str:
    try:
        return str(value)
    except ValueError:
        raise InputError(
            f"a number of more than {MAX_DIGITS} digits cannot be written to a file; use simpler rationals"
        ) from None


def decode_number(data: object) -> Number:
    """The inverse of `encode_number`.

    Raises:
        InputError: not a rational, hex float or pair of rationals, or longer than `MAX_DIGITS`.
    """
    if isinstance(data, list) and len(data) == 2:
        low, high = (decode_number(end) for end in data)
        if not isinstance(low, Fraction) or not isinstance(high, Fraction):
            raise InputError(f"the ends of the enclosure {data!r} must be rationals")
        return Ball(low, high)
    if not isinstance(data, str) or len(data) > 2 * MAX_DIGITS + 2:
        raise InputError(
            f"{str(data)[:40]!r} is no number: write '355/113', '0x1.8p+3' or a pair of rationals"
        )
    try:
        if "x" in data or "inf" in data:
            return float.fromhex(data)
        numerator, slash, denominator = data.partition("/")
        return Fraction(_integer(numerator), _integer(denominator) if slash else 1)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(f"{data[:40]!r} is no number: write '355/113' or '0x1.8p+3'") from None


def _integer(text: str) -> int:
    """A plain decimal integer: no spaces, underscores or plus signs, so that each value has one spelling."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(text)
    return int(text)
