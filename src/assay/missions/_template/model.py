"""Definitions: non-negative numbers and their means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, TypeVar

from assay.core.instance import Length, Range

N = TypeVar("N", float, Fraction)


@dataclass(frozen=True, slots=True)
class Numbers:
    """At least one number between 0 and 8."""

    values: Annotated[tuple[Fraction, ...], Length(1, 5), Range(0, 8)]


def arithmetic_mean(values: Sequence[N]) -> N:
    """The sum over the count.

    >>> arithmetic_mean([Fraction(1), Fraction(2)])
    Fraction(3, 2)
    """
    return sum(values[1:], start=values[0]) / len(values)
