"""The compiled loops of the entropy coder: integers into buckets and places in them, and back.

As :mod:`assay.checkpoints.kernels`, whose conventions these functions follow; buckets are those of
:mod:`assay.checkpoints.coder`.  Places are sorted by bucket, and in the order of the integers within one.
"""
# mypy: ignore-errors
# numba infers the types of these functions from their arguments, by rules that mypy does not know

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def tally(values, detail, counts):
    """Add to `counts` (int64, of each bucket) how many of the `values` (int32 [n]) it holds."""
    limit = np.int32(2 << detail)
    for value in values:
        reduced = abs(value)
        width = 0
        while reduced >= limit:
            reduced >>= 1
            width += 1
        counts[(width << detail) + reduced] += 1


@njit(cache=True, nogil=True)
def split(values, detail, signed, places, buckets, extras):
    """The bucket of each of the `values` (int32 [n]), and its place there.

    places        in: int64 of each bucket, where its first extra goes; out: where its last went, plus 1
    buckets       out: int32 [n]
    extras        out: int32 [n], sorted by bucket: the place in the bucket; with `signed` twice that, plus 1 where negative
    """
    limit = np.int32(2 << detail)
    for i in range(values.size):
        magnitude = abs(values[i])
        reduced = magnitude
        width = 0
        while reduced >= limit:
            reduced >>= 1
            width += 1
        bucket = (width << detail) + reduced
        extra = magnitude - (reduced << width)
        if signed and magnitude:
            extra = 2 * extra + (values[i] < 0)
        buckets[i] = bucket
        extras[places[bucket]] = extra
        places[bucket] += 1


@njit(cache=True, nogil=True)
def join(buckets, starts, signed, places, extras, values):
    """The inverse of :func:`split`, with `starts` (int64) the least magnitude of each bucket; `values` is int32 [n], out."""
    for i in range(buckets.size):
        bucket = buckets[i]
        extra = extras[places[bucket]]
        places[bucket] += 1
        if not signed:
            values[i] = starts[bucket] + extra
        elif extra & 1:
            values[i] = -(starts[bucket] + (extra >> 1))
        else:
            values[i] = starts[bucket] + (extra >> 1)
