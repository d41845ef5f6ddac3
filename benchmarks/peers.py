"""The formats that a delta is compared with, matrix by matrix: what each decodes to, and how many bits it takes.

The count is generous to them.  Codes and masks take their empirical entropy, as if an ideal coder without tables were
at hand; nothing is counted for names, shapes or containers.  A scale counts 16 bits and is not rounded to them;
bfloat16 values count 16.

A matrix is [out, in].  Where a method uses the inputs, it is given the full second moment of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np
import scipy.linalg

Floats = np.ndarray

RANKS = (1, 2, 4, 8, 16, 32, 64)
KEEPS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
STEPS = (1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 1.5, 2, 3, 4, 6, 8)
"""Steps of the uniform quantisers, in standard deviations of the matrix."""

FEEDBACK_STEPS = (*STEPS, 12, 16, 24, 48)
"""With feedback, errors are passed on until they reach a step: it can be coarser."""

_DAMPING = 0.01
_GROUP = 128
"""Columns that are corrected together, and entries that share the scale of a 4-bit code."""

_CLIPS = np.linspace(0.4, 1.0, 13)
_SPAN = 4


class Matrix:
    """A delta [out, in] and the second moment of what it is fed, with what several methods need of them.

    Args:
        delta: float [out, in].
        moment: float64 [in, in]; None for uncorrelated inputs of unit size.
        seed: of random masks.
    """

    def __init__(self, delta: Floats, moment: Floats | None, seed: int) -> None:
        self.delta = delta.astype(np.float64)
        width = delta.shape[1]
        self.moment = np.eye(width) if moment is None else moment
        self.moment = self.moment + _DAMPING * np.trace(self.moment) / width * np.eye(width)
        self.seed = seed

    @cached_property
    def factors(self) -> tuple[Floats, Floats]:
        """U sqrt(s) [out, r] and sqrt(s) V [r, in] of the delta, r the largest rank wanted."""
        return _factors(self.delta)

    @cached_property
    def weighted_factors(self) -> tuple[Floats, Floats]:
        """Factors whose product is closest to the delta in the mean square of the outputs."""
        root = scipy.linalg.cholesky(self.moment, lower=True)
        left, right = _factors(self.delta @ root)
        return left, scipy.linalg.solve_triangular(root, right.T, lower=True, trans="T").T

    @cached_property
    def order(self) -> Floats:
        """Columns by falling size of their inputs, the order in which feedback works best."""
        return np.argsort(-np.diagonal(self.moment), kind="stable")

    @cached_property
    def feedback(self) -> Floats:
        """Upper Cholesky factor of the inverse second moment."""
        return _inverse_factor(self.moment)

    @cached_property
    def ordered_feedback(self) -> Floats:
        """The same with the columns in `order`."""
        return _inverse_factor(self.moment[np.ix_(self.order, self.order)])


@dataclass(frozen=True, slots=True)
class Packed:
    """What a matrix decodes to, and the bits that it takes."""

    delta: Floats
    bits: float


@dataclass(frozen=True, slots=True)
class Peer:
    """A format: its name, the settings to try, and what it does to a matrix at one of them."""

    name: str
    settings: tuple[float, ...]
    pack: Callable[[Matrix, float], Packed]


def entropy(codes: Floats) -> float:
    """Bits of integer codes at their empirical entropy.

    >>> entropy(np.array([0, 1, 0, 1]))
    4.0
    """
    _, counts = np.unique(codes, return_counts=True)
    return float(-(counts * np.log2(counts / counts.sum())).sum()) + 0.0


def mask_entropy(share: float, count: int) -> float:
    """Bits of a bitmap of which a known share is set.

    >>> mask_entropy(0.5, 8)
    8.0
    """
    return count * sum(-part * math.log2(part) for part in (share, 1 - share) if part > 0)


# The formats ------------------------------------------------------------------------------------------------


def dropped(matrix: Matrix, keep_prob: float) -> Packed:
    """DARE: a random mask, stored as a bitmap, and bfloat16 survivors."""
    random = np.random.Generator(np.random.Philox(key=matrix.seed))
    kept = random.random(matrix.delta.shape) < keep_prob
    values = _bfloat16(np.where(kept, matrix.delta / keep_prob, 0.0))
    share = float(kept.mean())
    return Packed(values, 16 * kept.sum() + mask_entropy(share, kept.size))


def one_bit(matrix: Matrix, _: float) -> Packed:
    """Signs times the mean absolute value."""
    positive = matrix.delta >= 0
    scale = np.abs(matrix.delta).mean()
    return Packed(np.where(positive, scale, -scale), entropy(positive) + 16)


def low_rank(weighted: bool, bits: int) -> Callable[[Matrix, float], Packed]:
    """The best factors of a rank, in bfloat16 or in integer codes with a scale for each component."""

    def pack(matrix: Matrix, rank: float) -> Packed:
        height, width = matrix.delta.shape
        if rank * (height + width) >= height * width:  # the factors would be larger than the matrix
            return _coded_factor(matrix.delta, bits)
        left, right = matrix.weighted_factors if weighted else matrix.factors
        parts = [_coded_factor(part, bits) for part in (left[:, : int(rank)].T, right[: int(rank)])]
        return Packed(parts[0].delta.T @ parts[1].delta, parts[0].bits + parts[1].bits)

    return pack


def nearest(matrix: Matrix, step_in_std: float) -> Packed:
    """Round to the nearest multiple of a step, and code by entropy."""
    step = step_in_std * matrix.delta.std()
    codes = np.rint(matrix.delta / step)
    return Packed(codes * step, entropy(codes) + 16)


def fed_back(matrix: Matrix, step_in_std: float) -> Packed:
    """The same, each column corrected for the errors of those before it (GPTQ), largest inputs first."""
    step = step_in_std * matrix.delta.std()
    result = np.empty_like(matrix.delta)
    result[:, matrix.order] = _feed_back(
        matrix.delta[:, matrix.order],
        matrix.ordered_feedback,
        lambda _, column: step * np.rint(column / step),
    )
    return Packed(result, entropy(np.rint(result / step)) + 16)


def two_of_four(matrix: Matrix, _: float) -> Packed:
    """The two largest of four neighbours, in 4 bits."""
    return _two_of_four_bits(_four_bits(_largest_two(matrix.delta**2), matrix.delta))


def two_of_four_fed_back(matrix: Matrix, _: float) -> Packed:
    """The same, chosen and corrected for what that does to the outputs (SparseGPT)."""
    scales = np.square(np.diagonal(matrix.feedback))
    kept = np.empty(matrix.delta.shape, bool)
    steps = _steps(matrix.delta, np.ones_like(kept))

    def quantise(column: int, rest: Floats) -> Floats:
        if column % _SPAN == 0:
            ahead = slice(column, column + _SPAN)
            kept[:, ahead] = _largest_two(rest[:, :_SPAN] ** 2 / scales[ahead])
        step = steps[:, column // _GROUP]
        codes = np.clip(np.rint(np.divide(rest[:, 0], step, out=np.zeros(len(rest)), where=step > 0)), -7, 7)
        return np.where(kept[:, column], codes * step, 0.0)

    values = _feed_back_whole(matrix.delta, matrix.feedback, quantise)
    step = np.repeat(steps, _GROUP, axis=1)[:, : values.shape[1]]
    codes = np.rint(np.divide(values, step, out=np.zeros_like(values), where=step > 0))
    return _two_of_four_bits((values, codes[kept]))


PEERS: tuple[Peer, ...] = (
    Peer("DARE, bitmask, bf16", KEEPS, dropped),
    Peer("1-bit signs", (1,), one_bit),
    *(
        Peer(f"{'weighted ' if weighted else ''}SVD, {bits}-bit factors", RANKS, low_rank(weighted, bits))
        for weighted in (False, True)
        for bits in (16, 8, 4)
    ),
    Peer("nearest + entropy code", STEPS, nearest),
    Peer("feedback + entropy code", FEEDBACK_STEPS, fed_back),
    Peer("2:4 + 4 bits", (1,), two_of_four),
    Peer("2:4 + 4 bits, feedback", (1,), two_of_four_fed_back),
)

IN_USE = (
    "1-bit signs",
    "SVD, 16-bit factors",
    "weighted SVD, 16-bit factors",
    "2:4 + 4 bits",
    "2:4 + 4 bits, feedback",
)
"""The formats in use that the first target is about."""

FOUR_BIT_FACTORS = ("SVD, 4-bit factors", "weighted SVD, 4-bit factors")
"""Those of the second."""


# Pieces -----------------------------------------------------------------------------------------------------


def _factors(values: Floats) -> tuple[Floats, Floats]:
    left, sizes, right = scipy.linalg.svd(values, full_matrices=False, lapack_driver="gesdd")
    root = np.sqrt(sizes[: RANKS[-1]])
    return left[:, : len(root)] * root, root[:, None] * right[: len(root)]


def _inverse_factor(moment: Floats) -> Floats:
    inverse = scipy.linalg.cho_solve(scipy.linalg.cho_factor(moment), np.eye(len(moment)))
    return scipy.linalg.cholesky((inverse + inverse.T) / 2)


def _bfloat16(values: Floats) -> Floats:
    return values.astype(ml_dtypes.bfloat16).astype(np.float64)


def _coded_factor(rows: Floats, bits: int) -> Packed:
    """Rows in bfloat16, or in symmetric codes with the scale for each row that loses least."""
    if bits == 16:
        return Packed(_bfloat16(rows), 16 * rows.size)
    levels = (1 << (bits - 1)) - 1
    best, codes, error = np.zeros_like(rows), np.zeros_like(rows), np.full(len(rows), np.inf)
    for clip in _CLIPS:
        scale = clip * np.abs(rows).max(axis=1, keepdims=True) / levels
        tried = np.clip(
            np.rint(np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0)), -levels, levels
        )
        lost = np.square(rows - tried * scale).sum(axis=1)
        better = lost < error
        best[better], codes[better], error[better] = (tried * scale)[better], tried[better], lost[better]
    return Packed(best, entropy(codes) + 16 * len(rows))


def _feed_back(values: Floats, factor: Floats, quantise: Callable[[int, Floats], Floats]) -> Floats:
    """Quantise column by column; `quantise` sees the number of a column and the column, corrected."""
    return _feed_back_whole(values, factor, lambda number, rest: quantise(number, rest[:, 0]))


def _feed_back_whole(values: Floats, factor: Floats, quantise: Callable[[int, Floats], Floats]) -> Floats:
    """The same; `quantise` sees all columns of the group from this one on."""
    left, result = values.copy(), np.empty_like(values)
    for start in range(0, values.shape[1], _GROUP):
        stop = min(start + _GROUP, values.shape[1])
        errors = np.empty((len(values), stop - start))
        for column in range(start, stop):
            result[:, column] = quantise(column, left[:, column:stop])
            error = (left[:, column] - result[:, column]) / factor[column, column]
            left[:, column:stop] -= np.outer(error, factor[column, column:stop])
            errors[:, column - start] = error
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return result


def _largest_two(sizes: Floats) -> Floats:
    """Which two of each four neighbours in a row are largest; what is left over at the end of a row counts as four."""
    height, width = sizes.shape
    padded = np.full((height, -(-width // _SPAN) * _SPAN), -1.0)
    padded[:, :width] = sizes
    groups = padded.reshape(height, -1, _SPAN)
    kept = np.zeros(groups.shape, bool)
    np.put_along_axis(kept, np.argsort(-groups, axis=-1, kind="stable")[..., :2], True, axis=-1)
    return kept.reshape(height, -1)[:, :width]


def _steps(values: Floats, kept: Floats) -> Floats:
    """The step of a 4-bit code for each `_GROUP` entries of a row, the one that loses least, [out, groups]."""
    height, width = values.shape
    steps = []
    for start in range(0, width, _GROUP):
        part = np.where(kept, values, 0.0)[:, start : start + _GROUP]
        top = np.abs(part).max(axis=1, keepdims=True) / 7
        found, error = np.zeros((height, 1)), np.full((height, 1), np.inf)
        for clip in _CLIPS:
            step = clip * top
            codes = np.clip(np.rint(np.divide(part, step, out=np.zeros_like(part), where=step > 0)), -7, 7)
            lost = np.square(part - codes * step).sum(axis=1, keepdims=True)
            found, error = np.where(lost < error, step, found), np.minimum(lost, error)
        steps.append(found)
    return np.concatenate(steps, axis=1)


def _four_bits(kept: Floats, values: Floats) -> tuple[Floats, Floats]:
    step = np.repeat(_steps(values, kept), _GROUP, axis=1)[:, : values.shape[1]]
    codes = np.clip(np.rint(np.divide(values, step, out=np.zeros_like(values), where=step > 0)), -7, 7)
    return np.where(kept, codes * step, 0.0), codes[kept]


def _two_of_four_bits(found: tuple[Floats, Floats]) -> Packed:
    values, codes = found
    groups = values.size / _SPAN
    scales = len(values) * -(-values.shape[1] // _GROUP)
    return Packed(values, entropy(codes) + groups * math.log2(6) + 16 * scales)
