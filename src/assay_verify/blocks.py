"""One block of a lossy tensor, measured again: what its survivors must be, and what they lose.

This is the definition, in plain Python; `assay_verify.fast` does the same with numpy, and must agree.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from assay_verify import floats, philox
from assay_verify.codec import Scheme, Survivors
from assay_verify.factors import ONE, kearns_saul
from assay_verify.outcome import Rejected

__all__ = ["Sums", "add_zigzag", "measure", "recode"]

recode = floats.recode

UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over one row, with unit moments; letters as in the certificate's specification.

    Attributes:
        energy: sum d^2.
        variance: sum V.
        proxy: sum h^2/4.
        realised: sum (d - v)^2; None without the payload.
        fourth: sum d^4.
        step_fourth: sum h^4.
        spread, sub_gaussian: with factors, k the keep probability of an entry, sum (d^2 (1-k) + V)/k and
            sum (Phi d^2/2 + h^2/4)/k^2.
    """

    energy: float
    variance: float
    proxy: float
    realised: float | None
    fourth: float
    step_fourth: float
    spread: float | None = None
    sub_gaussian: float | None = None


def measure(
    base: bytes,
    finetuned: bytes,
    dtype: str,
    columns: int,
    start: int,
    scheme: Scheme,
    stored: Survivors | None,
) -> tuple[int, list[Sums]]:
    """Survivors and sums of each row of a block whose first element has flat index `start`.

    Raises:
        Rejected: the survivors stored are not those that seed, mask and checkpoints give.
    """
    delta = floats.difference(base, finetuned, dtype)
    words = philox.words(scheme.key, start, len(delta))
    thresholds = None if scheme.factors is None else scheme.factors.thresholds(start, len(delta))
    if stored is not None and stored.positions is not None:
        kept = stored.positions
    elif thresholds is not None:
        kept = [i for i, (word, t) in enumerate(zip(words, thresholds, strict=True)) if word < t]
    else:
        kept = [i for i, word in enumerate(words) if word < scheme.threshold]
    chances, rescales = [float(scheme.chances)] * len(kept), [scheme.rescale] * len(kept)
    if thresholds is not None:
        chances = [float(thresholds[i]) for i in kept]
        rescales = [t / ONE for t in chances]
    quantise = _quantise if scheme.levels else _round
    if scheme.step is not None:
        quantise = _grid
    steps, variances, scales, codes = quantise(delta, words, kept, chances, scheme)
    error: list[float] | None = None
    if stored is not None:
        if stored.kept != len(kept):
            raise Rejected(f"a block stores {stored.kept} survivors, and its mask has {len(kept)}")
        if stored.scales != scales:
            raise Rejected("the scales of a block are not those of its differences")
        if stored.codes != codes:
            raise Rejected("the codes of a block are not those that seed and differences give")
        error = list(delta)
        for i, value in zip(kept, _values(kept, scales, codes, rescales, scheme), strict=True):
            error[i] -= value
    rows = []
    for row in range(0, len(delta), columns):
        part = slice(row, row + columns)
        squares = [d * d for d in delta[part]]
        grid = [h * h for h in steps[part]]
        more: tuple[float, ...] = ()
        if thresholds is not None:
            more = _factored_sums(squares, variances[part], grid, thresholds[part])
        rows.append(
            Sums(
                math.fsum(squares),
                math.fsum(variances[part]),
                math.fsum(grid) / 4,
                None if error is None else math.fsum(e * e for e in error[part]),
                math.fsum(s * s for s in squares),
                math.fsum(g * g for g in grid),
                *more,
            )
        )
    return len(kept), rows


def _factored_sums(
    squares: Sequence[float], variances: Sequence[float], grid: Sequence[float], thresholds: Sequence[int]
) -> tuple[float, float]:
    """`spread` and `sub_gaussian` of one row."""
    spreads, proxies = [], []
    for square, variance, step_square, threshold in zip(squares, variances, grid, thresholds, strict=True):
        keep = threshold / ONE
        spreads.append((square * (1 - keep) + variance) / keep)
        proxies.append((kearns_saul(threshold) * square / 2 + step_square / 4) / (keep * keep))
    return math.fsum(spreads), math.fsum(proxies)


def add_zigzag(base: bytes, zigzag: bytes, width: int) -> bytes:
    """The elements of `base` plus the signed differences that `zigzag` codes, modulo 2^(8 width).

    >>> add_zigzag(bytes([10, 20, 30]), bytes([2, 1, 0]), 1)
    b'\\x0b\\x13\\x1e'
    """
    form = f"<{len(base) // width}{UNSIGNED[width]}"
    mask = (1 << 8 * width) - 1
    pairs = zip(struct.unpack(form, base), struct.unpack(form, zigzag), strict=True)
    return struct.pack(form, *((old + ((z >> 1) ^ -(z & 1))) & mask for old, z in pairs))


def _quantise(
    delta: Sequence[float],
    words: Sequence[int],
    kept: Sequence[int],
    chances: Sequence[float],
    scheme: Scheme,
) -> tuple[list[float], list[float], list[int], list[int]]:
    """Steps, variances, scales and codes on a grid of `levels` steps up to the largest of each span."""
    levels = scheme.levels
    steps: list[float] = []
    variances: list[float] = []
    scales: list[int] = []
    inverses: list[float] = []
    for first in range(0, len(delta), scheme.span):
        part = delta[first : first + scheme.span]
        bits = floats.neighbours(max(map(abs, part)))[1]
        scale = floats.bfloat16(bits)
        step, inverse = scale / levels, (levels / scale if scale else 0.0)
        scales.append(bits)
        inverses.append(inverse)
        for x in part:
            theta = abs(x) * inverse
            theta -= math.floor(theta)
            steps.append(step)
            variances.append(theta * (1 - theta) * (step * step))
    codes = []
    for i, ways in zip(kept, chances, strict=True):
        a = abs(delta[i]) * inverses[i // scheme.span]
        level = math.floor(a)
        level = min(level + (words[i] < (a - level) * ways), levels)
        codes.append(level if delta[i] >= 0 else -level)
    return steps, variances, scales, codes


def _grid(
    delta: Sequence[float],
    words: Sequence[int],
    kept: Sequence[int],
    chances: Sequence[float],
    scheme: Scheme,
) -> tuple[list[float], list[float], list[int], list[int]]:
    """Steps, variances and codes of stochastic rounding to whole multiples of the step; there are no scales."""
    step = scheme.step
    assert step is not None
    variances = []
    for x in delta:
        theta = abs(x) / step
        theta -= math.floor(theta)
        variances.append(theta * (1 - theta) * (step * step))
    codes = []
    for i, ways in zip(kept, chances, strict=True):
        a = abs(delta[i]) / step
        level = math.floor(a)
        level += words[i] < (a - level) * ways
        codes.append(level if delta[i] >= 0 else -level)
    return [step] * len(delta), variances, [], codes


def _round(
    delta: Sequence[float],
    words: Sequence[int],
    kept: Sequence[int],
    chances: Sequence[float],
    scheme: Scheme,
) -> tuple[list[float], list[float], list[int], list[int]]:
    """Steps, variances and codes of stochastic rounding to bfloat16; there are no scales."""
    lows, steps, variances = [], [], []
    for x in delta:
        low, high = floats.neighbours(abs(x))
        below, above = floats.bfloat16(low), floats.bfloat16(high)
        lows.append((low, high, below, above))
        steps.append(above - below)
        variances.append((above - abs(x)) * (abs(x) - below))
    codes = []
    for i, ways in zip(kept, chances, strict=True):
        low, high, below, above = lows[i]
        bits = high if words[i] * (above - below) < (abs(delta[i]) - below) * ways else low
        codes.append(bits | 0x8000 if delta[i] < 0 and bits else bits)
    return steps, variances, [], codes


def _values(
    kept: Sequence[int],
    scales: Sequence[int],
    codes: Sequence[int],
    rescales: Sequence[float],
    scheme: Scheme,
) -> Sequence[float]:
    """The decoded values of the survivors, as float32."""
    if scheme.step is not None:
        return floats.to_single([code * scheme.step / q for code, q in zip(codes, rescales, strict=True)])
    if not scheme.levels:
        return floats.to_single([floats.bfloat16(code) / q for code, q in zip(codes, rescales, strict=True)])
    decoded = [floats.bfloat16(bits) for bits in scales]
    return floats.to_single(
        [
            code * decoded[i // scheme.span] / (scheme.levels * q)
            for i, code, q in zip(kept, codes, rescales, strict=True)
        ]
    )
