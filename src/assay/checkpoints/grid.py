"""The compiled loop of the grid quantiser: survivors rounded, without bias, to whole multiples of one step.

As :mod:`assay.checkpoints.kernels`, whose conventions these functions follow; compiled code is cached under the time of
change of this file only: after an edit of ``kernels.py``, touch this one.
"""
# mypy: ignore-errors
# numba infers the types of these functions from their arguments, by rules that mypy does not know

from __future__ import annotations

import numpy as np
from numba import njit

from assay.checkpoints.kernels import (
    CHANGED,
    DELTA_FOURTH,
    ENERGY,
    FACTORED_PROXY,
    FACTORED_VARIANCE,
    KEPT,
    LARGEST_DELTA,
    LARGEST_VALUE,
    OVERFLOW,
    PROXY,
    REALISED,
    SLACK,
    STEP_FOURTH,
    TILE,
    UNCODABLE,
    VARIANCE,
    _difference,
    _draw,
    _note,
    _set_aside,
)
from assay.checkpoints.lanes import float_of


@njit(cache=True, nogil=True, error_model="numpy")
def encode_grid(
    base, finetuned, weight, row_codes, column_codes, thresholds, phis, k0, k1, start, step, largest, limit,
    delta, codes, rows, totals, counts, first,
):  # fmt: skip
    """`kernels.encode_factored` for a grid.

    step          the spacing, > 0; a survivor's code is |d| / step rounded down or up, by the dither, with d's sign
    largest       the largest code; an entry beyond it cannot be coded
    codes         out: int32 [n], of each survivor
    """
    count = base.size
    columns = column_codes.size
    weighted = weight.size > 0
    keeps = thresholds.astype(np.float64) / 4294967296.0
    words = np.empty(TILE + SLACK, np.uint32)
    step_square = step * step
    quarter = step_square * 0.25
    kept = 0
    row = 0
    column = 0
    for lo in range(0, count, TILE):
        hi = min(lo + TILE, count)
        size = hi - lo
        d = delta[:size]
        _difference(base[lo:hi], finetuned[lo:hi], d)
        counts[CHANGED] += _set_aside(base[lo:hi], finetuned[lo:hi], lo, d, counts, first)
        drawn = words[_draw(k0, k1, start + np.uint64(lo), size, words) :]
        for i in range(size):
            code_row = row_codes[row]
            code_column = column_codes[column]
            threshold = thresholds[code_row, code_column]
            keep = keeps[code_row, code_column]
            x = np.float64(d[i])
            a = abs(x) / step
            if not a < largest:
                _note(UNCODABLE, lo + i, counts, first)
                x = 0.0
                a = 0.0
            level = np.floor(a)
            theta = a - level
            spread = theta * (1.0 - theta) * step_square
            w = weight[column] if weighted else 1.0
            square = x * x
            value = np.float32(0.0)
            word = drawn[i]
            if np.uint64(word) < threshold:
                if np.float64(word) < theta * np.float64(threshold):
                    level += 1.0
                code = level if x >= 0.0 else -level
                codes[kept] = np.int32(code)
                value = np.float32(code * step / keep)
                kept += 1
                totals[LARGEST_VALUE] = max(totals[LARGEST_VALUE], np.float64(abs(value)))
                if value != 0 and not abs(float_of(base[lo + i]) + value) < limit:
                    _note(OVERFLOW, lo + i, counts, first)
            totals[LARGEST_DELTA] = max(totals[LARGEST_DELTA], abs(x))
            residual = x - np.float64(value)
            rows[ENERGY, row] += w * square
            rows[VARIANCE, row] += w * spread
            rows[PROXY, row] += w * quarter
            rows[REALISED, row] += w * (residual * residual)
            rows[FACTORED_VARIANCE, row] += w * ((square * (1.0 - keep) + spread) / keep)
            phi = phis[code_row, code_column]
            rows[FACTORED_PROXY, row] += w * ((phi * square * 0.5 + quarter) / (keep * keep))
            totals[DELTA_FOURTH] += (w * square) * (w * square)
            totals[STEP_FOURTH] += (w * step_square) * (w * step_square)
            column += 1
            if column == columns:
                column = 0
                row += 1
    counts[KEPT] = kept
