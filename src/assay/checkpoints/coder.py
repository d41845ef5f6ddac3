"""An entropy coder for small integers: buckets, a table of integer frequencies, and range asymmetric numeral systems.

The format is specified in ``docs/reference/block-codec.md``, coding 5; its decoder takes thirty lines of integer
arithmetic (`assay_verify.coder`).  The state machine is that of `constriction` (``AnsCoder``: words of 32 bits, a state
of 64, frequencies out of 2**24), which is given frequencies in integers, so no float decides what a byte means.

**Buckets.**  With `detail` s in 0 .. 3, magnitudes below 2**(s + 1) have a bucket each; above, each octave has 2**s
buckets of equal width.  A bucket's number goes through the frequency table; the place in it, and the sign of what
may be negative and is not 0, are bits of even odds.

**Table.**  One byte a bucket: 0, or 1 + 8 e + m for the weight (8 + m) 2**e, within a sixteenth of what was counted.
"""

from __future__ import annotations

from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from assay.checkpoints import buckets as buckets_of
from assay.core.errors import InputError

LARGEST = (1 << 23) - 1
"""The largest magnitude that can be coded."""

PRECISION = 24
_TOTAL = 1 << PRECISION
_DETAILS = range(4)
_FINEST = 3
_HEAD = 2
_MOST_BUCKETS = 24
"""For detail 0; twice as many for each more."""

Integers = NDArray[np.int32]
Counts = NDArray[np.int64]


def encode(values: NDArray[np.integer[Any]], *, signed: bool) -> bytes:
    """Code integers of magnitude at most `LARGEST` (none negative unless `signed`); equal values, equal bytes.

    >>> decode(encode(np.array([0, -3, 70000, 1]), signed=True), 4, signed=True)
    array([    0,    -3, 70000,     1], dtype=int32)
    >>> encode(np.array([], np.int32), signed=False)
    b'\\x00\\x00'
    """
    values = np.asarray(values)
    if values.size and not -LARGEST <= int(values.min()) <= int(values.max()) <= LARGEST:
        raise InputError(
            f"a code lies outside -{LARGEST} .. {LARGEST}, so it cannot be coded: the step is too small"
        )
    if not signed and values.size and int(values.min()) < 0:
        raise InputError("a negative number needs a signed code")
    values = np.ascontiguousarray(values, np.int32)
    fine = np.zeros(_MOST_BUCKETS << _FINEST, np.int64)
    buckets_of.tally(values, _FINEST, fine)
    if not fine[1:].any():
        return bytes([0, min(1, values.size)]) + (bytes([1]) if values.size else b"")
    coarser = [_merged(fine, detail) for detail in _DETAILS]
    detail = min(_DETAILS, key=lambda s: (_estimate(coarser[s], s), s))
    counts = coarser[detail]
    table = np.array([_weight_code(int(n)) for n in counts], np.uint8)
    ends = np.cumsum(counts)
    buckets, extras = np.empty(values.size, np.int32), np.empty(values.size, np.int32)
    buckets_of.split(values, detail, signed, ends - counts, buckets, extras)
    coder = constriction.stream.stack.AnsCoder()
    _, widths = _layout(counts.size, detail)
    for bucket, width in reversed(list(enumerate(_extra_bits(widths, signed)))):
        if width and counts[bucket]:
            chosen = extras[ends[bucket] - counts[bucket] : ends[bucket]]
            coder.encode_reverse(chosen, constriction.stream.model.Uniform(1 << width))
    if counts.size > 1:
        coder.encode_reverse(buckets, _model(table))
    words = coder.get_compressed().astype("<u4")
    return bytes([detail, counts.size]) + table.tobytes() + words.tobytes()


def decode(data: bytes, count: int, *, signed: bool) -> Integers:
    """The inverse of :func:`encode`, int32 ``[count]``; memory and time are in proportion to `count`.

    Raises:
        InputError: these bytes are not the code of `count` integers.
    """
    if len(data) < _HEAD or data[0] not in _DETAILS:
        raise InputError("a stream of codes has no proper head: the delta is damaged")
    detail, size = data[0], data[1]
    if size > _MOST_BUCKETS << detail:
        raise InputError("a stream of codes has more buckets than there may be: the delta is damaged")
    table = np.frombuffer(data, np.uint8, min(size, len(data) - _HEAD), _HEAD)
    body = len(data) - _HEAD - size
    starts, widths = _layout(size, detail)
    if body < 0 or body % 4 or bool(size) != bool(count) or (size and not table[-1]):
        raise InputError("the table of a stream of codes is malformed: the delta is damaged")
    words = np.frombuffer(data, "<u4", body // 4, _HEAD + size).astype(np.uint32)
    if words.size and not words[-1]:
        raise InputError("a stream of codes ends in a zero word, as none does: the delta is damaged")
    if not count:
        if body:
            raise InputError("a stream of no codes holds some: the delta is damaged")
        return np.empty(0, np.int32)
    coder = constriction.stream.stack.AnsCoder(words)
    buckets = np.zeros(count, np.int32)
    if size > 1:
        buckets = coder.decode(_model(table), count)
    counts = np.bincount(buckets, minlength=size)
    ends = np.cumsum(counts)
    extras = np.zeros(count, np.int32)
    for bucket, width in enumerate(_extra_bits(widths, signed)):
        if width and counts[bucket]:
            extras[ends[bucket] - counts[bucket] : ends[bucket]] = coder.decode(
                constriction.stream.model.Uniform(1 << width), int(counts[bucket])
            )
    if not coder.is_empty():
        raise InputError("a stream of codes has something left when all are decoded: the delta is damaged")
    values = np.empty(count, np.int32)
    buckets_of.join(buckets, starts, signed, ends - counts, extras, values)
    return values


# Buckets ------------------------------------------------------------------------------------------------


def _merged(fine: Counts, detail: int) -> Counts:
    """Counts by the buckets of a detail, up to the last that is not 0, from those of the finest, which they unite."""
    used = np.flatnonzero(fine)
    starts = _layout(fine.size, _FINEST)[0][used]
    widths = np.maximum(np.frexp(starts.astype(np.float64))[1] - 1 - detail, 0)
    counts = np.zeros(_MOST_BUCKETS << detail, np.int64)
    np.add.at(counts, (widths << detail) + (starts >> widths), fine[used])
    return np.trim_zeros(counts, "b")


def _layout(size: int, detail: int) -> tuple[Counts, Counts]:
    """The least magnitude of each bucket, and the bits that tell a place in it."""
    buckets = np.arange(size, dtype=np.int64)
    widths = np.maximum(0, (buckets >> detail) - 1)
    return (buckets - (widths << detail)) << widths, widths


def _extra_bits(widths: Counts, signed: bool) -> list[int]:
    """Bits of even odds for each bucket: a place in it, and a sign."""
    return [int(width) + (signed and bucket > 0) for bucket, width in enumerate(widths)]


def _estimate(counts: Counts, detail: int) -> float:
    """Bits of what depends on the detail."""
    used = counts[counts > 0]
    entropy = float((used * np.log2(used.sum() / used)).sum())
    return entropy + float(counts @ _layout(counts.size, detail)[1]) + 8.0 * counts.size


# Frequencies --------------------------------------------------------------------------------------------


def _weight_code(count: int) -> int:
    """The byte whose weight is nearest to 8 times a count; 0 for none."""
    if not count:
        return 0
    eighths = 8 * count
    exponent = eighths.bit_length() - 4
    return 1 + 8 * exponent + ((eighths + (1 << exponent >> 1)) >> exponent) - 8


def frequencies(table: bytes) -> list[int]:
    """Frequencies that add up to 2**24, each at least 1: the weights to scale, what is left over to the largest.

    >>> frequencies(bytes([9, 1])), frequencies(bytes([0, 5]))
    ([11184811, 5592405], [1, 16777215])
    """
    weights = [(8 + (code - 1) % 8) << (code - 1) // 8 if code else 0 for code in table]
    room, total = _TOTAL - len(weights), sum(weights)
    result = [1 + weight * room // total for weight in weights]
    result[weights.index(max(weights))] += _TOTAL - sum(result)
    return result


def _model(table: NDArray[np.uint8]) -> Any:
    """The library's model with exactly these frequencies: it adds 1 to each weight and scales by a quotient of 1."""
    exact = np.array(frequencies(table.tobytes()), np.float64) - 1.0
    return constriction.stream.model.Categorical(exact, perfect=False)


__all__ = ["LARGEST", "decode", "encode", "frequencies"]
