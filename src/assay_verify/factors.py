"""Keep thresholds by row and column, from a tensor's record in the plan of a delta (treatment ``factored``).

A grid of sixteen factors has f_0 = top and f_(l+1) = (f_l * ratio) >> 32; with the codes r_i of row i and c_j of
column j the threshold of entry (i, j) is min(2^32, max(floor, (f_(r_i) * g_(c_j)) >> shift)), all in integers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from assay_verify import exact
from assay_verify.canonical import array, integer, text
from assay_verify.outcome import Rejected

__all__ = ["FIELDS", "ONE", "Factors", "digest_of", "kearns_saul", "read"]

CLASSES = 16
ONE = 1 << 32
FIELDS = ("row_codes", "column_codes", "row_grid", "column_grid", "shift", "floor")
DIGITS = "0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Factors:
    """Classes of the rows and the columns, and the threshold of each pair of classes, [16][16]."""

    rows: Sequence[int]
    columns: Sequence[int]
    table: Sequence[Sequence[int]]

    def thresholds(self, start: int, count: int) -> list[int]:
        """Thresholds of the elements `start` .. `start + count - 1`, which are whole rows."""
        width = len(self.columns)
        first = start // width if width else 0
        return [
            self.table[r][c] for r in self.rows[first : first + count // max(1, width)] for c in self.columns
        ]


def read(record: Mapping[str, Any], rows: int, columns: int, where: str) -> Factors:
    """The factors of a matrix of the given size.

    Raises:
        Rejected: the record is malformed.
    """
    codes = []
    for key, count in (("row_codes", rows), ("column_codes", columns)):
        digits = text(record, key, where)
        if len(digits) != count or not set(digits) <= set(DIGITS):
            raise Rejected(f"{where}.{key} must be {count} hexadecimal digits")
        codes.append([DIGITS.index(digit) for digit in digits])
    grids = []
    for key in ("row_grid", "column_grid"):
        pair = array(record, key, where, int)
        if len(pair) != 2 or not 0 <= pair[0] < ONE or not 0 <= pair[1] <= ONE:
            raise Rejected(f"{where}.{key} must be two integers, below 2^32 and up to 2^32")
        grid = [pair[0]]
        while len(grid) < CLASSES:
            grid.append(grid[-1] * pair[1] >> 32)
        grids.append(grid)
    shift, floor = integer(record, "shift", where, 0, 63), integer(record, "floor", where, 1, ONE)
    table = [[min(ONE, max(floor, f * g >> shift)) for g in grids[1]] for f in grids[0]]
    return Factors(codes[0], codes[1], table)


def digest_of(record: Mapping[str, Any]) -> str:
    """sha256 of the canonical form of the six fields, as the certificate states it."""
    fields = {key: record.get(key) for key in FIELDS}
    form = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(form.encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=4096)
def kearns_saul(threshold: int) -> float:
    """The Kearns-Saul coefficient at the keep probability threshold/2^32, in the middle of its enclosure."""
    enclosure = exact.kearns_saul(Fraction(threshold, ONE))
    return float((enclosure.low + enclosure.high) / 2)
