"""Keep thresholds that differ by row and column, in integers: sixteen classes of rows times sixteen of columns.

A grid of sixteen factors is geometric and falls: ``f_0 = top`` and ``f_(l+1) = (f_l * ratio) >> 32``.  Row ``i``
has the code ``r_i`` and column ``j`` the code ``c_j``, both in ``0 .. 15``; the entry's keep threshold is

    t_ij = min(2**32, max(floor, (f_(r_i) * g_(c_j)) >> shift))

with ``f`` the grid of the rows and ``g`` that of the columns.  Every operation is on unsigned integers below
2**64, so encoder and decoder agree on any machine, and the keep probability ``t_ij / 2**32`` is exact.  What it
costs to store is four bits for each row and each column, and six integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import InputError

CLASSES = 16
FULL = 1 << 32
MAX_SHIFT = 63
_DIGITS = "0123456789abcdef"

Codes = NDArray[np.uint8]
Grid = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Factors:
    """The keep thresholds of one matrix.

    Attributes:
        row_codes: class of each row, uint8 [rows].
        column_codes: class of each column, uint8 [columns].
        row_grid, column_grid: (top, ratio), top in 0 .. 2**32 - 1 and ratio in 0 .. 2**32.
        shift: in 0 .. 63.
        floor: the least threshold, in 1 .. 2**32: every entry has a chance, so the plan is unbiased.

    >>> factors = Factors(np.array([0, 1], np.uint8), np.array([0, 15], np.uint8), (1 << 31, 1 << 31), (2, 1 << 32), 1, 7)
    >>> factors.thresholds[:2, 0]
    array([2147483648, 1073741824], dtype=uint64)
    >>> factors.mean_keep
    0.375
    """

    row_codes: Codes
    column_codes: Codes
    row_grid: Grid
    column_grid: Grid
    shift: int
    floor: int

    def __post_init__(self) -> None:
        for what, codes in (("row", self.row_codes), ("column", self.column_codes)):
            if codes.ndim != 1 or codes.dtype != np.uint8 or (codes.size and int(codes.max()) >= CLASSES):
                raise InputError(f"the codes of a {what} are bytes in 0 .. {CLASSES - 1}, in one dimension")
        for what, (top, ratio) in (("row", self.row_grid), ("column", self.column_grid)):
            if not (0 <= top < FULL and 0 <= ratio <= FULL):
                raise InputError(f"the {what} grid ({top}, {ratio}) does not lie in 0 .. 2**32")
        if not 0 <= self.shift <= MAX_SHIFT:
            raise InputError(f"a shift lies in 0 .. {MAX_SHIFT}, not {self.shift}")
        if not 1 <= self.floor <= FULL:
            raise InputError(f"the least keep threshold lies in 1 .. 2**32, not {self.floor}")

    @cached_property
    def thresholds(self) -> NDArray[np.uint64]:
        """Keep threshold of each pair of classes, uint64 [16, 16]."""
        rows, columns = (np.array(grid(*pair), np.uint64) for pair in (self.row_grid, self.column_grid))
        products = np.multiply.outer(rows, columns) >> np.uint64(self.shift)  # each factor is below 2**32
        return np.clip(products, np.uint64(self.floor), np.uint64(FULL))

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many entries each pair of classes has, int64 [16, 16]."""
        rows = np.bincount(self.row_codes, minlength=CLASSES)
        columns = np.bincount(self.column_codes, minlength=CLASSES)
        return np.outer(rows, columns)

    @property
    def mean_keep(self) -> float:
        """Mean keep probability over the entries; 0 for a matrix without entries."""
        total = int(self.sizes.sum())
        return float((self.sizes * (self.thresholds / FULL)).sum()) / total if total else 0.0

    def record(self) -> dict[str, Any]:
        """As the plan of a delta holds them."""
        return {
            "row_codes": "".join(_DIGITS[c] for c in self.row_codes),
            "column_codes": "".join(_DIGITS[c] for c in self.column_codes),
            "row_grid": list(self.row_grid),
            "column_grid": list(self.column_grid),
            "shift": self.shift,
            "floor": self.floor,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], rows: int, columns: int) -> Factors:
        """The inverse of :meth:`record`, for a matrix of the given size.

        Raises:
            InputError: the record is malformed.
        """
        codes = []
        for key, count in (("row_codes", rows), ("column_codes", columns)):
            text = record.get(key)
            if not isinstance(text, str) or len(text) != count or not set(text) <= set(_DIGITS):
                raise InputError(f"{key!r} of a factored tensor must be {count} hexadecimal digits")
            codes.append(np.array([_DIGITS.index(c) for c in text], np.uint8))
        grids = []
        for key in ("row_grid", "column_grid"):
            pair = record.get(key)
            if not isinstance(pair, list) or len(pair) != 2 or not all(type(n) is int for n in pair):
                raise InputError(f"{key!r} of a factored tensor must be two integers")
            grids.append((pair[0], pair[1]))
        numbers = [record.get(key) for key in ("shift", "floor")]
        if not all(type(n) is int for n in numbers):
            raise InputError("'shift' and 'floor' of a factored tensor must be integers")
        shift, floor = (int(n) for n in numbers if n is not None)
        return cls(codes[0], codes[1], grids[0], grids[1], shift, floor)


def grid(top: int, ratio: int) -> list[int]:
    """The sixteen factors of a grid.

    >>> grid(1 << 31, 1 << 31)[:3], grid(5, 1 << 32)[15]
    ([2147483648, 1073741824, 536870912], 5)
    """
    factors = [top]
    for _ in range(CLASSES - 1):
        factors.append((factors[-1] * ratio) >> 32)
    return factors


def log_codes(means: NDArray[np.floating[Any]]) -> tuple[Codes, float, float]:
    """Sort non-negative numbers into sixteen classes, even on the logarithmic scale.

    Returns:
        The codes, 0 for the largest; and the largest value and the ratio (in (0, 1]) between neighbouring classes,
        so that class ``l`` stands for ``largest * ratio**l``.  Zeros share the last class with the least number
        above zero that is within 2**-60 of the largest; so do smaller ones.

    >>> codes, largest, ratio = log_codes(np.array([1.0, 2.0**-15, 2.0**-1, 0.0]))
    >>> codes, largest, ratio
    (array([ 0, 15,  1, 15], dtype=uint8), 1.0, 0.5)
    """
    values = np.asarray(means, np.float64)
    largest = float(values.max()) if values.size else 0.0
    if largest <= 0:
        return np.zeros(values.size, np.uint8), 0.0, 1.0
    floored = np.maximum(values, largest * 2.0**-60)
    least = float(floored[values > 0].min())
    step = math.log(largest / least) / (CLASSES - 1)
    if step == 0:
        codes = np.zeros(values.size)
        codes[values == 0] = CLASSES - 1
        return codes.astype(np.uint8), largest, 1.0
    codes = np.clip(np.rint(np.log(largest / floored) / step), 0, CLASSES - 1)
    return codes.astype(np.uint8), largest, math.exp(-step)


def factors_from(
    row_codes: Codes,
    column_codes: Codes,
    row_ratio: float,
    column_ratio: float,
    top: float,
    floor: float,
) -> Factors:
    """Factors whose thresholds are, up to rounding, ``max(floor, top * row_ratio**r * column_ratio**c)`` clipped at 1.

    Args:
        row_codes, column_codes: the classes.
        row_ratio, column_ratio: in (0, 1].
        top: what the classes (0, 0) would keep without the clip, > 0; may exceed 1.
        floor: least keep probability.

    >>> codes = np.zeros(2, np.uint8)
    >>> made = factors_from(codes, codes, 0.5, 0.5, top=3.0, floor=0.01)
    >>> [round(float(t) / 2**32, 9) for t in made.thresholds[0, :4]]
    [1.0, 1.0, 0.75, 0.375]
    """
    if not (math.isfinite(top) and top > 0):
        raise InputError(f"the largest keep factor {top} must be a finite number above 0")
    whole = FULL - 1
    # (whole * column_top) >> shift is top * 2**32: the largest shift that leaves column_top below 2**32
    shift = max(0, min(MAX_SHIFT, 31 - math.frexp(top)[1]))
    column_top = min(whole, max(0, round(top * 2.0**shift)))
    return Factors(
        row_codes,
        column_codes,
        (whole, round(row_ratio * FULL)),
        (column_top, round(column_ratio * FULL)),
        shift,
        max(1, min(FULL, round(floor * FULL))),
    )
