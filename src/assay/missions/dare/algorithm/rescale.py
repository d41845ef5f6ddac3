"""The rescale of least mean square, and what it costs or gains against DARE and against deleting the delta.

With A = E||dW x||^2 (the output energy) and B = sum_ij E x_j^2 dW_ij^2 (the entry energy; for one output
A = S^2 and B = Q), the mean square of the pruned output is (1-(1-p)/q)^2 A + p(1-p) B/q^2.  It is least at

    q* = (1-p) + p B/A,    where it is A p B / ((1-p) A + p B).

DARE (q = 1-p) gives pB/(1-p), so it beats deleting the delta exactly if A/B > p/(1-p).  The optimum
reintroduces bias: tail bounds then speak of H_q - E H_q.  Specification 1.e.
"""

from __future__ import annotations

import math
from numbers import Rational
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.core.errors import InputError
from assay.missions.dare import _checks

Floats = NDArray[np.float64]


class Energies(NamedTuple):
    """Output energy A and entry energy B of one output, of every row, or of a layer."""

    output: Any
    entry: Any


class RescaleComparison(NamedTuple):
    """Mean squares of three choices at one drop probability.

    Attributes:
        optimal: q*, ``inf`` when A = 0 (then dropping everything is best).
        optimal_error: mean square at q*.
        dare_error: mean square at q = 1-p; ``inf`` at p = 1.
        delete_error: mean square of deleting the delta, A.
        dare_beats_deleting: whether dare_error < delete_error.
    """

    optimal: Any
    optimal_error: Any
    dare_error: Any
    delete_error: Any
    dare_beats_deleting: bool


def output_energies(coefficients: Any) -> Energies:
    """A = S^2 and B = Q of one output with coefficients c [n]; rational for rational coefficients.

    >>> output_energies([1, 2, 3])
    Energies(output=Fraction(36, 1), entry=Fraction(14, 1))
    """
    if _checks.is_exact(coefficients):
        c = _checks.fractions(coefficients)
        return Energies(_checks.fractions([sum(c)])[0] ** 2, _checks.fractions([sum(v * v for v in c)])[0])
    values = _checks.array(coefficients, "coefficients", 1)
    return Energies(float(values.sum()) ** 2, float(values @ values))


def row_energies(delta: ArrayLike, second_moment: ArrayLike) -> Energies:
    """A_i and B_i of every row of ``delta`` [m, n] for inputs with second moment E x x^T [n, n].

    Their sums are the layer's A and B.

    Returns:
        Two arrays [m].
    """
    weights = _checks.array(delta, "delta", 2)
    moment = _checks.full_second_moment(second_moment, weights.shape[1])
    return Energies(np.einsum("ij,ij->i", weights @ moment, weights), weights**2 @ moment.diagonal())


def layer_energies(delta: Any, inputs: Any) -> Energies:
    """A and B summed over calibration rows ``inputs`` [N][n] and outputs of ``delta`` [m][n].

    Rational nested lists give rational sums.

    >>> from fractions import Fraction
    >>> layer_energies([[1, 2], [-1, 3], [0, Fraction(1, 2)]], [[1, 1], [2, -1], [0, 3]])
    Energies(output=Fraction(631, 4), entry=Fraction(623, 4))
    """
    if all(_checks.is_exact(row) for table in (delta, inputs) for row in table):
        rows, samples = [_checks.fractions(r) for r in delta], [_checks.fractions(x) for x in inputs]
        if len({len(r) for r in rows + samples}) > 1:
            raise InputError("rows of delta and of inputs differ in length; all need one entry per input")
        products = [[w * v for w, v in zip(r, x, strict=True)] for r in rows for x in samples]
        energies = [output_energies(c) for c in products]
        return Energies(sum(e.output for e in energies), sum(e.entry for e in energies))
    weights, x = _checks.array(delta, "delta", 2), _checks.array(inputs, "inputs", 2)
    if weights.shape[1] != x.shape[1]:
        raise InputError(f"delta has {weights.shape[1]} columns and inputs {x.shape[1]}; they must agree")
    return Energies(float(((x @ weights.T) ** 2).sum()), float((weights**2 @ (x**2).sum(axis=0)).sum()))


def mean_square(output: Any, entry: Any, drop_prob: Any, rescale: Any) -> Any:
    """(1-(1-p)/q)^2 A + p(1-p) B/q^2; rational for rational arguments."""
    _check_energies(output, entry)
    p = _scalar_drop_prob(drop_prob)
    q = _checks.rescale_or_keep(rescale, p)
    return (1 - (1 - p) / q) ** 2 * output + p * (1 - p) * entry / q**2


def compare_rescales(output: Any, entry: Any, drop_prob: Any) -> RescaleComparison:
    """The rescale q* of least mean square beside DARE and deletion.

    Args:
        output: A >= 0.
        entry: B >= 0.
        drop_prob: p in [0, 1].

    Raises:
        InputError: an energy is negative or p is not a probability.

    >>> from fractions import Fraction
    >>> best = compare_rescales(Fraction(631, 4), Fraction(623, 4), Fraction(4, 5))
    >>> print(best.optimal, best.optimal_error, best.dare_error, best.dare_beats_deleting)
    3123/3155 393113/3123 623 False
    """
    _check_energies(output, entry)
    p = _scalar_drop_prob(drop_prob)
    if isinstance(p, Rational) and _checks.is_exact(output, entry):
        p, output, entry = _checks.fractions([p, output, entry])
    dare = p * entry / (1 - p) if p < 1 else math.inf
    if output == 0:
        optimal: Any = math.inf
        least: Any = output
    else:
        optimal = (1 - p) + p * entry / output
        weight = (1 - p) * output + p * entry
        least = output * p * entry / weight if weight > 0 else output
    return RescaleComparison(optimal, least, dare, output, bool(dare < output))


def optimal_row_rescales(output: ArrayLike, entry: ArrayLike, drop_prob: float) -> Floats:
    """q_i* = (1-p) + p B_i/A_i of every row (``inf`` where A_i = 0); never worse than one q* for all."""
    a, b = _checks.array(output, "output", 1), _checks.array(entry, "entry", 1)
    p = float(_scalar_drop_prob(drop_prob))
    return (1.0 - p) + np.divide(p * b, a, out=np.full_like(a, np.inf), where=a > 0)


def refit_scalar(original: ArrayLike, pruned: ArrayLike) -> float:
    """The scalar r of least ||original - r pruned||, <original, pruned>/||pruned||^2.

    ``original`` holds dW x and ``pruned`` (dW o mask) x over calibration samples, any equal shapes.  For
    a realised mask it is never worse than r = 1/q.  All-zero ``pruned`` gives 0.

    >>> refit_scalar([2.0, 4.0], [1.0, 1.0])
    3.0
    """
    y, z = np.asarray(original, dtype=np.float64), np.asarray(pruned, dtype=np.float64)
    if y.shape != z.shape:
        raise InputError(f"original has shape {y.shape} and pruned {z.shape}; they must agree")
    size = float(np.vdot(z, z))
    return float(np.vdot(y, z)) / size if size > 0.0 else 0.0


def _scalar_drop_prob(drop_prob: Any) -> Any:
    p = _checks.probability(drop_prob, "drop_prob")
    if np.ndim(p) != 0:
        raise InputError("drop_prob must be one number here; rows share it")
    return p


def _check_energies(output: Any, entry: Any) -> None:
    if not (output >= 0 and entry >= 0):
        raise InputError(f"energies are {output} and {entry}; sums of squares are not negative")
