"""What is run: the balancing step that proves the inequality, returned with its instance."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from assay.missions._template.model import Numbers, arithmetic_mean


@dataclass(frozen=True, slots=True)
class Run:
    """The balanced numbers, how many steps it took, and the instance that the claims are certified on."""

    balanced: tuple[Fraction, ...]
    steps: int
    instance: Numbers


def balance(values: tuple[Fraction, ...]) -> Run:
    """Replace the smallest and the largest by the mean and what is left, until all are equal.

    >>> balance((Fraction(0), Fraction(2))).balanced
    (Fraction(1, 1), Fraction(1, 1))
    """
    instance = Numbers(values)
    current, mean, steps = list(values), arithmetic_mean(values), 0
    while any(v != mean for v in current):
        low, high = min(current), max(current)
        current.remove(low)
        current.remove(high)
        current += [mean, low + high - mean]
        steps += 1
    return Run(tuple(current), steps, instance)
