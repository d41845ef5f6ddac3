"""The entropy coder of integers (coding 5), decoded with integer arithmetic alone.

A head of two bytes (detail, number of buckets), a byte of weight for each bucket, then little-endian words of 32 bits:
a stack, from whose end a state of 64 bits is fed.  Each symbol is told from the state's low 24 bits.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from assay_verify.outcome import Rejected

__all__ = ["decode"]

TOTAL = 1 << 24


def decode(data: bytes, count: int, signed: bool) -> list[int]:
    """The `count` integers that a stream codes.

    Raises:
        Rejected: it codes something else.

    >>> decode(bytes(2), 0, True), decode(bytes([0, 1, 1]), 3, True)
    ([], [0, 0, 0])
    """
    if len(data) < 2 or data[0] > 3 or len(data) < 2 + data[1] or (len(data) - 2 - data[1]) % 4:
        raise Rejected("a stream of codes has no proper head")
    detail, size = data[0], data[1]
    table, body = data[2 : 2 + size], data[2 + size :]
    words = [int.from_bytes(body[at : at + 4], "little") for at in range(0, len(body), 4)]
    if bool(size) != bool(count) or (size and not table[-1]) or (words and not (count and words[-1])):
        raise Rejected("the table or the end of a stream of codes is malformed")
    if size > 24 << detail:
        raise Rejected("a stream of codes has more buckets than there may be")
    widths = [max(0, (bucket >> detail) - 1) for bucket in range(size)]
    starts = [(bucket - (width << detail)) << width for bucket, width in enumerate(widths)]
    state = 0
    for _ in range(min(2, len(words))):
        state = state << 32 | words.pop()
    buckets = [0] * count
    if size > 1:
        frequencies = _frequencies(table)
        ends = list(accumulate(frequencies))
        for place in range(count):
            low = state & (TOTAL - 1)
            bucket = buckets[place] = bisect_right(ends, low)
            share = frequencies[bucket]
            state = (state >> 24) * share + low - (ends[bucket] - share)
            if state >> 32 == 0 and words:
                state = state << 32 | words.pop()
    values = [starts[bucket] for bucket in buckets]
    for bucket in range(size):
        width = widths[bucket] + (signed and bucket > 0)
        share = TOTAL >> width
        for place in range(count) if width else ():
            if buckets[place] == bucket:
                extra, rest = divmod(state & (TOTAL - 1), share)
                state = (state >> 24) * share + rest
                if state >> 32 == 0 and words:
                    state = state << 32 | words.pop()
                values[place] += extra >> 1 if signed else extra
                if signed and extra & 1:
                    values[place] = -values[place]
    if state or words:
        raise Rejected("a stream of codes has something left when all are decoded")
    return values


def _frequencies(table: bytes) -> list[int]:
    """Frequencies that add up to 2^24, from the weights (8 + m) 2^e that the bytes 1 + 8 e + m stand for."""
    weights = [(8 + (code - 1) % 8) << (code - 1) // 8 if code else 0 for code in table]
    room, total = TOTAL - len(weights), sum(weights)
    result = [1 + weight * room // total for weight in weights]
    result[weights.index(max(weights))] += TOTAL - sum(result)
    return result
