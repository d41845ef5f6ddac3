"""Slow, literal versions of the DARE formulas, as oracles: enumerate every mask, use Fractions.

Nothing here is fast and nothing is clever; the tests compare :mod:`model` and :mod:`algorithm` with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from assay.missions.dare.model import quantise_atoms

Vector = Sequence[Any]
Matrix = Sequence[Sequence[Any]]


def phi(drop_prob: float) -> float:
    """(1-2p)/ln((1-p)/p) as printed, 1/2 at p = 1/2: loses digits near 1/2 and 1."""
    return 0.5 if drop_prob == 0.5 else (1.0 - 2.0 * drop_prob) / math.log((1.0 - drop_prob) / drop_prob)


def masks(count: int, drop_prob: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Every keep mask (1 = kept) with its probability."""
    for mask in itertools.product((0, 1), repeat=count):
        prob: Any = Fraction(1)
        for kept in mask:
            prob = prob * ((1 - drop_prob) if kept else drop_prob)
        yield mask, prob


def error(coefficients: Vector, mask: Sequence[int], rescale: Any) -> Any:
    """H_q = sum c_j - sum_kept c_j/q."""
    pruned = sum(
        (c / Fraction(rescale) for c, kept in zip(coefficients, mask, strict=True) if kept), Fraction(0)
    )
    return sum(coefficients, Fraction(0)) - pruned


def moments(coefficients: Vector, drop_prob: Any, rescale: Any) -> tuple[Any, Any, Any]:
    """Bias, variance and mean square by the definition of expectation."""
    atoms = [(error(coefficients, m, rescale), prob) for m, prob in masks(len(coefficients), drop_prob)]
    return atom_moments(atoms)


def atom_moments(atoms: Sequence[tuple[Any, Any]]) -> tuple[Any, Any, Any]:
    """Mean, variance and mean square of a finite law."""
    mean = sum(value * prob for value, prob in atoms)
    square = sum(value**2 * prob for value, prob in atoms)
    return mean, square - mean**2, square


def central_moment(coefficients: Vector, drop_prob: Any, rescale: Any, power: int) -> Any:
    """E (H_q - E H_q)^power."""
    mean = moments(coefficients, drop_prob, rescale)[0]
    law = masks(len(coefficients), drop_prob)
    return sum((error(coefficients, m, rescale) - mean) ** power * prob for m, prob in law)


def quantised_law(
    weights: Vector, inputs: Vector, drop_prob: Any, rescale: Any, scale: Any, levels: int
) -> list[tuple[Any, Any]]:
    """Every outcome of drop + quantise with its probability: three atoms per entry."""
    atoms = [(Fraction(0), Fraction(1))]
    for w, x in zip(weights, inputs, strict=True):
        entry = [(x * w, drop_prob)]
        entry += [
            (x * (w - a / Fraction(rescale)), (1 - drop_prob) * pr)
            for a, pr in quantise_atoms(w, scale, levels)
        ]
        atoms = [(v + e, p * pe) for v, p in atoms for e, pe in entry]
    return atoms


def quadratic(error_vector: Vector, second_moment: Matrix) -> Any:
    """F(e) = e^T M e."""
    n = range(len(error_vector))
    return sum((error_vector[i] * second_moment[i][j] * error_vector[j] for i in n for j in n), Fraction(0))


def mask_error(weights: Vector, second_moment: Matrix, mask: Sequence[int], rescale: Any) -> Any:
    """F of one realised mask."""
    e = [w * (1 - kept / Fraction(rescale)) for w, kept in zip(weights, mask, strict=True)]
    return quadratic(e, second_moment)


def bernoulli_expectation(weights: Vector, second_moment: Matrix, drop_prob: Any, rescale: Any) -> Any:
    """E F under independent masks."""
    law = masks(len(weights), drop_prob)
    return sum(mask_error(weights, second_moment, m, rescale) * prob for m, prob in law)


def fixed_size_expectation(weights: Vector, second_moment: Matrix, kept: int, rescale: Any) -> Any:
    """E F under a uniform mask with exactly ``kept`` keeps."""
    chosen = [m for m in itertools.product((0, 1), repeat=len(weights)) if sum(m) == kept]
    return sum(mask_error(weights, second_moment, m, rescale) for m in chosen) / Fraction(len(chosen))


def derandomised_bernoulli(
    weights: Vector, second_moment: Matrix, drop_prob: Any, rescale: Any, penalty: Any
) -> tuple[int, ...]:
    """D1 on one row by enumerating all completions at every decision."""
    decided: tuple[int, ...] = ()
    for _ in weights:
        values = []
        for branch in (0, 1):
            prefix = (*decided, branch)
            value: Any = penalty * sum(prefix)
            for rest, prob in masks(len(weights) - len(prefix), drop_prob):
                value += mask_error(weights, second_moment, prefix + rest, rescale) * prob
            values.append(value)
        decided = (*decided, int(values[1] < values[0]))
    return decided


def derandomised_fixed_size(
    weights: Vector, second_moment: Matrix, kept: int, rescale: Any
) -> tuple[tuple[int, ...], list[Any]]:
    """D2 on one row by enumerating all completions; returns the mask and the conditional expectations."""
    decided: tuple[int, ...] = ()
    trace = []
    everything = [m for m in itertools.product((0, 1), repeat=len(weights)) if sum(m) == kept]
    for _ in weights:
        values: dict[int, Any] = {}
        for branch in (0, 1):
            prefix = (*decided, branch)
            completions = [m for m in everything if m[: len(prefix)] == prefix]
            if completions:
                total = sum(mask_error(weights, second_moment, m, rescale) for m in completions)
                values[branch] = total / Fraction(len(completions))
        best = min(values, key=lambda b: (values[b], b))
        decided = (*decided, best)
        trace.append(values[best])
    return decided, trace
