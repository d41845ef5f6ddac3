"""Argument checks of the DARE mission: each returns a clean value or says in one sentence what is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Rational
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.core.errors import InputError

Floats = NDArray[np.float64]


def is_exact(*values: Any) -> bool:
    """Whether every value (a number, or a sequence of numbers) is rational, so the answer can be too."""
    for value in values:
        if value is None or isinstance(value, Rational):
            continue
        if isinstance(value, str | float | complex) or not hasattr(value, "__len__"):
            return False
        if isinstance(value, np.ndarray) and value.dtype.kind not in "iuO":
            return False
        if not all(isinstance(entry, Rational) for entry in value):
            return False
    return True


def fractions(values: Any) -> list[Fraction]:
    """Rational entries as Fractions (numpy integers included)."""
    return [Fraction(int(v.numerator), int(v.denominator)) for v in values]


def fraction_per_entry(value: Any, count: int, name: str) -> list[Fraction]:
    """One rational per coordinate, from a rational or a sequence of them."""
    if isinstance(value, Rational):
        return fractions([value]) * count
    entries = fractions(value)
    if len(entries) != count:
        raise InputError(
            f"{name} has {len(entries)} entries for {count} coefficients; give one per coefficient"
        )
    return entries


def array(values: Any, name: str, ndim: int) -> Floats:
    """Finite float64 array with ``ndim`` axes."""
    try:
        result = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} cannot be read as numbers: {error}") from error
    if result.ndim != ndim:
        raise InputError(f"{name} has {result.ndim} axes; {ndim} expected")
    if not np.isfinite(result).all():
        raise InputError(f"{name} holds a NaN or an infinity; clean it first")
    return result


def probability(value: Any, name: str) -> Any:
    """A probability, or an array of them, in [0, 1]; rationals stay rational."""
    if isinstance(value, Rational):
        if not 0 <= Fraction(value) <= 1:
            raise InputError(f"{name} is {value}; a probability lies in [0, 1]")
        return value
    try:
        entries = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be read as numbers: {error}") from error
    if not ((entries >= 0) & (entries <= 1)).all():
        raise InputError(f"{name} has the value {_first_bad(entries)}; a probability lies in [0, 1]")
    return float(entries) if entries.ndim == 0 else entries


def rescale_or_keep(rescale: Any, drop_prob: Any) -> Any:
    """The rescale q, checked; ``None`` means DARE's own q = 1 - drop_prob, which must then be positive."""
    if rescale is None:
        keep = 1 - drop_prob if not isinstance(drop_prob, list | tuple) else 1 - np.asarray(drop_prob)
        if np.any(np.asarray(keep, dtype=np.float64) <= 0):
            raise InputError("drop_prob is 1, where DARE divides by 0; give a rescale, or delete the delta")
        return keep
    if isinstance(rescale, Rational):
        positive = Fraction(rescale) > 0
    else:
        positive = bool(np.all(np.asarray(rescale, dtype=np.float64) > 0))
    if not positive:
        raise InputError(f"rescale is {rescale}; survivors are divided by it, so it must be positive")
    return rescale


def failure_prob(gamma: float) -> float:
    """A failure probability strictly between 0 and 1."""
    value = float(gamma)
    if not 0.0 < value < 1.0 or math.isnan(value):
        raise InputError(f"gamma is {gamma}; a failure probability lies strictly between 0 and 1")
    return value


def choice(value: str, name: str, known: Sequence[str]) -> str:
    """One of the known words."""
    if value not in known:
        raise InputError(f"{name} is {value!r}; choose one of {', '.join(known)}")
    return value


def second_moment(moment: ArrayLike, inputs: int) -> Floats:
    """Input second moment E x x^T [n, n] (symmetric), or its diagonal [n]."""
    matrix = array(moment, "second_moment", np.ndim(moment))
    if matrix.shape not in ((inputs,), (inputs, inputs)):
        raise InputError(
            f"second_moment has shape {matrix.shape}; with {inputs} inputs give ({inputs}, {inputs}) "
            f"or its diagonal ({inputs},)"
        )
    diagonal = matrix if matrix.ndim == 1 else matrix.diagonal()
    if (diagonal < 0).any():
        raise InputError("second_moment has a negative diagonal entry; E x x^T has none")
    if matrix.ndim == 2:
        size = float(np.abs(matrix).max(initial=0.0))
        if float(np.abs(matrix - matrix.T).max(initial=0.0)) > 1e-9 * size:
            raise InputError("second_moment is not symmetric; E x x^T is")
    return matrix


def full_second_moment(moment: ArrayLike, inputs: int) -> Floats:
    """Input second moment as a full matrix [n, n]; a diagonal alone is refused."""
    matrix = second_moment(moment, inputs)
    if matrix.ndim == 1:
        raise InputError("second_moment is a diagonal; this computation needs the full matrix E x x^T")
    return matrix


def _first_bad(entries: Floats) -> float:
    flat = np.atleast_1d(entries).ravel()
    return float(flat[~((flat >= 0) & (flat <= 1))][0])
