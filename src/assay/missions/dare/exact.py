"""The model's definitions over any kind of number, by enumeration: what the claims are checked against.

Everything is written once for exact rationals, enclosures and floats (`assay.core.number`), and literally:
an expectation is a sum over a law, a probability the mass of an event.  Only a handful of coordinates fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from assay.core.number import Ball, Truth, compare
from assay.missions.dare.model import phi
from assay.numerics.arb import exp, log

Value = Any
"""An `assay.core.number.Number`: rational, enclosure or float, one kind within one instance."""

Law = dict[Value, Value]
"""A finite law: probability by value."""

Atoms = Sequence[tuple[Value, Value]]
"""The (value, probability) pairs of one coordinate."""


def law_of_sum(coordinates: Iterable[Atoms]) -> Law:
    """The law of a sum of independent coordinates; equal values are merged.

    >>> half = Fraction(1, 2)
    >>> {int(value): str(prob) for value, prob in law_of_sum([[(0, half), (1, half)]] * 2).items()}
    {0: '1/4', 1: '1/2', 2: '1/4'}
    """
    law: Law = {Fraction(0): Fraction(1)}
    for atoms in coordinates:
        longer: Law = {}
        for value, prob in law.items():
            for step, share in atoms:
                if share != 0:
                    longer[value + step] = longer.get(value + step, 0) + prob * share
        law = longer
    return law


def expectation(law: Law, function: Callable[[Value], Value] = lambda value: value) -> Value:
    """E f(X)."""
    return sum((prob * function(value) for value, prob in law.items()), start=Fraction(0))


def centred(law: Law) -> Law:
    """The law of X - E X."""
    mean = expectation(law)
    return {value - mean: prob for value, prob in law.items()}


def central_moment(law: Law, power: int) -> Value:
    """E (X - E X)^power."""
    return expectation(centred(law), lambda value: value**power)


def probability(law: Law, event: Callable[[Value], Truth | bool]) -> Value:
    """P(event): exact if every atom is decided, else an enclosure over the undecided ones."""
    sure = undecided = Fraction(0)
    for value, prob in law.items():
        truth = Truth.of(event(value))
        if truth is Truth.TRUE:
            sure += prob
        elif truth is Truth.UNKNOWN:
            undecided += prob
    return Ball(sure, sure + undecided) if undecided else sure


def exceeds(value: Value, threshold: Value) -> Truth:
    """Whether value > threshold; floats compare as they are, since they prove nothing anyway."""
    if isinstance(value, float) or isinstance(threshold, float):
        return Truth.of(value > threshold)
    return compare(threshold, "<", value)[0]


def reaches(value: Value, threshold: Value) -> Truth:
    """Whether value >= threshold."""
    if isinstance(value, float) or isinstance(threshold, float):
        return Truth.of(value >= threshold)
    return compare(threshold, "<=", value)[0]


def log_mgf(law: Law, argument: Value) -> Value:
    """ln E e^{tX}, exact where X is constant under the law."""
    exponents = [(argument * value, prob) for value, prob in law.items()]
    top = max(exponent for exponent, _ in exponents)
    if all(exponent == top for exponent, _ in exponents):
        return top
    return top + log(sum((prob * exp(exponent - top) for exponent, prob in exponents), start=Fraction(0)))


def kearns_saul(drop_prob: Value) -> Value:
    """Phi(p) = (1-2p)/ln((1-p)/p), 1/2 at p = 1/2 and 0 at p in {0, 1}: an enclosure unless p is one of these.

    >>> kearns_saul(Fraction(1, 2)), round(float(kearns_saul(Fraction(1, 4))), 12)
    (Fraction(1, 2), 0.455119613313)
    """
    if isinstance(drop_prob, float):
        return phi(drop_prob)
    if drop_prob in (0, 1):
        return Fraction(0)
    if drop_prob == Fraction(1, 2):
        return Fraction(1, 2)
    return (1 - 2 * drop_prob) / log((1 - drop_prob) / drop_prob)


def error_atoms(coefficient: Value, drop_prob: Value, rescale: Value) -> Atoms:
    """One coordinate of H_q: c if dropped, c (1 - 1/q) if kept."""
    return [(coefficient, drop_prob), (coefficient - coefficient / rescale, 1 - drop_prob)]


def error_law(coefficients: Iterable[Value], drop_prob: Value, rescale: Value) -> Law:
    """The law of H_q, original minus pruned.

    >>> {int(v): str(m) for v, m in error_law([Fraction(1)], Fraction(99, 100), Fraction(1, 100)).items()}
    {1: '99/100', -99: '1/100'}
    """
    return law_of_sum(error_atoms(c, drop_prob, rescale) for c in coefficients)


def sum_of_squares(values: Iterable[Value]) -> Value:
    """Q of coefficients."""
    return sum((value * value for value in values), start=Fraction(0))


def grid_atoms(weight: Value, step: Value) -> Atoms:
    """The unbiased quantiser with the given step (0: none): the two grid values around the weight."""
    if step == 0:
        return [(weight, Fraction(1))]
    sign = -1 if weight < 0 else 1
    level = max(1, math.ceil(abs(weight) / step))
    upper = 1 - level + abs(weight) / step
    return [(sign * level * step, upper), (sign * (level - 1) * step, 1 - upper)]


def stored_atoms(weight: Value, drop_prob: Value, rescale: Value, step: Value) -> Atoms:
    """One weight after drop, quantiser and rescale: 0, or a grid value over q."""
    survivors = [(value / rescale, (1 - drop_prob) * prob) for value, prob in grid_atoms(weight, step)]
    return [(0 * weight, drop_prob), *survivors]


def symmetric(triangle: Sequence[Value], size: int, order: int) -> list[list[Value]]:
    """The leading [size, size] block of a symmetric [order, order] matrix, given as its upper triangle by rows.

    >>> symmetric([1, 2, 3, 4, 5, 6], 2, 3)
    [[1, 2], [2, 4]]
    """
    full = [[triangle[0]] * order for _ in range(order)]
    entries = iter(triangle)
    for i in range(order):
        for j in range(i, order):
            full[i][j] = full[j][i] = next(entries)
    return [row[:size] for row in full[:size]]


def diagonal_form(weights: Sequence[Value], moment: Sequence[Sequence[Value]]) -> Value:
    """T = sum_j w_j^2 M_jj."""
    return sum((w * w * moment[j][j] for j, w in enumerate(weights)), start=Fraction(0))
