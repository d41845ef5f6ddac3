"""The checker's own numbers: rationals, doubles, enclosures, and log, sqrt and Phi with proved bounds.

Everything is `fractions.Fraction`; an `Interval` is a pair of them that holds the true value.  The functions
round outward to `BITS` binary places, and each states why its bound holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from assay_verify.outcome import Rejected

__all__ = ["Interval", "Number", "compare", "double", "kearns_saul", "log", "number", "rational", "sqrt"]

BITS = 192
MAX_DIGITS = 100_000
FLOAT_SLACK = Fraction(1, 2**40)
RELATIONS = ("==", "<=", "<")

_CHUNK = 4000  # digits that int() converts in one go
_RATIONAL = re.compile(r"(-?)(0|[1-9][0-9]*)(?:/([1-9][0-9]*))?\Z")
_DOUBLE = re.compile(r"(-?)0x([01])(?:\.([0-9a-f]{1,13}))?p([+-])([0-9]{1,4})\Z")


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval with rational ends."""

    low: Fraction
    high: Fraction

    @classmethod
    def of(cls, value: Fraction | Interval) -> Interval:
        """A point, or the interval itself."""
        return value if isinstance(value, Interval) else cls(value, value)

    @property
    def midpoint(self) -> Fraction:
        """Halfway between the ends."""
        return (self.low + self.high) / 2


Number = Fraction | float | Interval


def number(data: Any, where: str) -> Number:
    """A rational, a double or an enclosure, each in its one notation.

    >>> number("355/113", "x"), number("0x1.8p+3", "x"), number(["1", "2"], "x")
    (Fraction(355, 113), 12.0, Interval(low=Fraction(1, 1), high=Fraction(2, 1)))

    Raises:
        Rejected: anything else: other spellings, NaN, floats that are no doubles, more than 100,000 characters.
    """
    if isinstance(data, list):
        if len(data) != 2:
            raise Rejected(f"{where} is no enclosure: it needs two ends")
        low, high = (rational(end, where) for end in data)
        if low > high:
            raise Rejected(f"{where} is no enclosure: its low end is above its high end")
        return Interval(low, high)
    if isinstance(data, str) and (data in ("inf", "-inf") or "x" in data[:3]):
        return double(data, where)
    return rational(data, where)


def rational(data: Any, where: str) -> Fraction:
    """A rational in lowest terms.

    >>> rational("2/4", "x")
    Traceback (most recent call last):
    assay_verify.outcome.Rejected: x = '2/4' is not in lowest terms
    """
    if not isinstance(data, str):
        raise Rejected(f"{where} must be a number, written as a string")
    if len(data) > MAX_DIGITS:
        raise Rejected(f"{where} is a numeral of more than {MAX_DIGITS} characters")
    match = _RATIONAL.match(data)
    if match is None or data == "-0":
        raise Rejected(f"{where} = {data[:40]!r} is no number")
    sign, numerator, denominator = match.groups()
    above, below = _digits(numerator), _digits(denominator or "1")
    if denominator is not None and (below == 1 or math.gcd(above, below) != 1):
        raise Rejected(f"{where} = {data[:40]!r} is not in lowest terms")
    return Fraction(-above if sign else above, below)


def _digits(numeral: str) -> int:
    """``int(numeral)``, by halves: Python refuses to convert more than 4300 digits at once."""
    if len(numeral) <= _CHUNK:
        return int(numeral)
    half = len(numeral) // 2
    return _digits(numeral[:-half]) * 10**half + _digits(numeral[-half:])


def double(data: Any, where: str) -> float:
    """A double in hexadecimal, or an infinity.

    >>> double("0x1.8p+3", "x")
    12.0
    """
    if data in ("inf", "-inf"):
        return math.inf if data == "inf" else -math.inf
    match = _DOUBLE.match(data) if isinstance(data, str) else None
    if match is None:
        raise Rejected(f"{where} = {str(data)[:40]!r} is no double in hexadecimal")
    sign, whole, fraction, exponent_sign, exponent = match.groups()
    fraction = fraction or ""
    scale = int(exponent_sign + exponent) - 4 * len(fraction)
    exact = int(whole + fraction, 16) * Fraction(2) ** scale
    try:
        value = float(-exact if sign else exact)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value) or abs(Fraction(value)) != exact:
        raise Rejected(f"{where} = {data[:40]!r} is no double: it would be rounded")
    return -0.0 if sign and value == 0 else value


def finite(value: Number, where: str) -> Fraction:
    """A rational or a finite double as a rational."""
    if isinstance(value, Interval) or (isinstance(value, float) and not math.isfinite(value)):
        raise Rejected(f"{where} must be a finite number")
    return Fraction(value)


def field(owner: Mapping[str, Any], key: str, where: str) -> Number:
    """The number ``owner[key]``."""
    if key not in owner:
        raise Rejected(f"{where} lacks the field {key!r}")
    return number(owner[key], f"{where}.{key}")


# --- comparison ---------------------------------------------------------------------------------------------


def compare(lhs: Number, relation: str, rhs: Number) -> tuple[str, str]:
    """Truth and strength of ``lhs relation rhs``.

    >>> compare(Fraction(1, 3), "<=", Fraction(1, 3))
    ('TRUE', 'EXACT')
    >>> compare(Interval(Fraction(0), Fraction(2)), "<", Fraction(1))
    ('UNKNOWN', 'ENCLOSED')
    """
    if isinstance(lhs, float) or isinstance(rhs, float):
        return _compare_doubles(_as_double(lhs), relation, _as_double(rhs)), "FLOAT"
    if isinstance(lhs, Fraction) and isinstance(rhs, Fraction):
        holds = {"==": lhs == rhs, "<=": lhs <= rhs, "<": lhs < rhs}[relation]
        return ("TRUE" if holds else "FALSE"), "EXACT"
    left, right = Interval.of(lhs), Interval.of(rhs)
    apart = left.high < right.low or right.high < left.low
    always, never = {
        "==": (left.low == left.high == right.low == right.high, apart),
        "<=": (left.high <= right.low, left.low > right.high),
        "<": (left.high < right.low, left.low >= right.high),
    }[relation]
    return ("TRUE" if always else "FALSE" if never else "UNKNOWN"), "ENCLOSED"


def _as_double(value: Number) -> float:
    if isinstance(value, float):
        return value
    exact = value.midpoint if isinstance(value, Interval) else value
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _compare_doubles(lhs: float, relation: str, rhs: float) -> str:
    if math.isfinite(lhs) and math.isfinite(rhs):
        gap = abs(Fraction(lhs) - Fraction(rhs))
        if gap <= FLOAT_SLACK * max(abs(Fraction(lhs)), abs(Fraction(rhs))):
            return "UNKNOWN"
    holds = {"==": lhs == rhs, "<=": lhs <= rhs, "<": lhs < rhs}[relation]
    return "TRUE" if holds else "FALSE"


# --- functions ----------------------------------------------------------------------------------------------


def outward(low: Fraction, high: Fraction, bits: int = BITS) -> Interval:
    """The interval with its ends rounded outward to `bits` binary places after the point."""
    scale = 1 << bits
    return Interval(Fraction(math.floor(low * scale), scale), Fraction(math.ceil(high * scale), scale))


def sqrt(x: Fraction) -> Interval:
    """An enclosure of the square root of x >= 0, by the integer square root, of relative width below 2^-150.

    >>> root = sqrt(Fraction(2))
    >>> root.low**2 < 2 < root.high**2
    True
    """
    if x < 0:
        raise ValueError("the square root of a negative number")
    if x == 0:
        return Interval(x, x)
    shift = max(0, BITS + x.denominator.bit_length() - x.numerator.bit_length())
    root = math.isqrt((x.numerator << 2 * shift) // x.denominator)
    return Interval(Fraction(root, 1 << shift), Fraction(root + 1, 1 << shift))


def log(x: Fraction) -> Interval:
    """An enclosure of ln x for x > 0.

    x = m 2^k with 2/3 <= m < 4/3, and ln m = 2 artanh z with z = (m-1)/(m+1), |z| <= 1/5.

    >>> ln2 = log(Fraction(2))
    >>> ln2.high - ln2.low < Fraction(1, 2**180)
    True
    >>> float(ln2.low)
    0.6931471805599453
    """
    if x <= 0:
        raise ValueError("the logarithm of a number that is not positive")
    k = x.numerator.bit_length() - x.denominator.bit_length()
    m = x / Fraction(2) ** k
    while m >= Fraction(4, 3):
        m, k = m / 2, k + 1
    while m < Fraction(2, 3):
        m, k = m * 2, k - 1
    part = _artanh((m - 1) / (m + 1))
    two = _log_two()
    ends = sorted((k * two.low, k * two.high))
    return outward(ends[0] + 2 * part.low, ends[1] + 2 * part.high)


@lru_cache(maxsize=1)
def _log_two() -> Interval:
    part = _artanh(Fraction(1, 3))
    return Interval(2 * part.low, 2 * part.high)


def _artanh(z: Fraction) -> Interval:
    """artanh z = z + z^3/3 + z^5/5 + ... for |z| <= 1/3, in integers scaled by 2^(BITS + 64).

    The terms of z > 0 are rounded down one by one: n terms lose less than 3n units (one for each power and
    one for each quotient, the former accumulating by less than a unit a term since z^2 < 1).  The tail after
    the term of power 2n - 1 is below z^(2n+1)/((2n+1)(1 - z^2)) <= the next term's power times 9/8.
    """
    if z < 0:
        mirrored = _artanh(-z)
        return Interval(-mirrored.high, -mirrored.low)
    places = BITS + 64
    scale = 1 << places
    power = math.floor(z * scale)
    square = math.floor(z * z * scale)
    total, n = 0, 0
    while power:
        total += power // (2 * n + 1)
        power = power * square >> places
        n += 1
    error = 4 * (n + 2)
    return Interval(Fraction(total, scale), Fraction(total + error, scale))


@lru_cache(maxsize=4096)
def kearns_saul(keep: Fraction) -> Interval:
    """An enclosure of Phi(p) = (1 - 2p)/ln((1-p)/p) at p = 1 - keep; 1/2 at 1/2, and 0 at 0 and 1.

    >>> phi = kearns_saul(Fraction(1, 10))
    >>> float(phi.low)
    0.36409569065073494
    """
    if keep in (0, 1):
        return Interval(Fraction(0), Fraction(0))
    if keep == Fraction(1, 2):
        return Interval(keep, keep)
    numerator = 2 * keep - 1
    bottom = log(keep / (1 - keep))
    ends = sorted((numerator / bottom.low, numerator / bottom.high))
    return outward(ends[0], ends[1])
