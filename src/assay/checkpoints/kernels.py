"""The compiled loops of the delta codec.

Serial, free of the interpreter lock, cached on disk: run several at once from Python threads.  Results are
the same bits on any machine and for any number of workers (:mod:`assay.checkpoints.lanes`).

Floats enter as the raw bits of a file: ``uint16`` holds bfloat16, ``uint32`` float32, ``uint64`` float64.
Arguments are trusted here; :mod:`assay.checkpoints.codec` defines the format and checks them.

Compiled code is cached under the time of change of this file only: after an edit of ``lanes.py`` or
``philox.py``, touch this one.
"""
# mypy: ignore-errors
# numba infers the types of these functions from their arguments, by rules that mypy does not know

from __future__ import annotations

import numpy as np
from numba import njit

from assay.checkpoints.lanes import (
    LANES,
    bfloat16_sums,
    bits_of,
    float_of,
    mask_of_words,
    ones,
    span_sums,
    survivor_sums,
    trailing_zeros,
)
from assay.numerics.philox import fill_words

TILE = 4096  # elements worked on at once: the buffers of one tile stay in the first-level cache
SLACK = 72  # room past the end of words and positions, for the last whole vector and the last batch
LARGEST_BFLOAT16 = float(np.array(0x7F7F0000, np.uint32).view(np.float32))

# Layout of the result arrays of `encode`: float64 [4, rows], float64 [4], int64 [6] and int64 [6].
ENERGY, VARIANCE, PROXY, REALISED = range(4)
LARGEST_DELTA, LARGEST_VALUE, DELTA_FOURTH, STEP_FOURTH = range(4)
TOTALS = 4
KEPT, CHANGED, BASE_NONFINITE, FINETUNED_NONFINITE, UNCODABLE, OVERFLOW = range(6)
EVENTS = 6


@njit(nogil=True, error_model="numpy")
def _fold(lanes, first):
    """Sum of the 16 lanes from ``first`` on, as a balanced tree."""
    width = LANES // 2
    while width > 0:
        for j in range(first, first + width):
            lanes[j] += lanes[j + width]
        width //= 2
    return lanes[first]


@njit(nogil=True, error_model="numpy")
def _weighted_sums(delta, words, begin, end, last, inverse_step, weight, column, lanes):
    """Weighted sums of V, of the squared step, of d^2 over the dropped; and, with squared weights, of d^4 and of
    the step's fourth power.

    For a span, ``inverse_step`` >= 0, V and the step are in units of the step (th (1 - th) and 1); for
    bfloat16, ``inverse_step`` < 0, they are (hi - |d|)(|d| - lo) and hi - lo.
    """
    lanes[:] = 0.0
    for i in range(begin, end):
        x = np.float64(delta[i])
        w = weight[column + i - begin]
        lane = (i - begin) % LANES
        if inverse_step >= 0.0:
            theta = _fraction(abs(x) * inverse_step)
            lanes[lane] += w * (theta * (1.0 - theta))
            lanes[lane + LANES] += w
            lanes[lane + 4 * LANES] += w * w
        else:
            low, high = _bfloat16_neighbours(abs(delta[i]))
            lanes[lane] += w * ((high - abs(x)) * (abs(x) - low))
            step_square = w * ((high - low) * (high - low))
            lanes[lane + LANES] += step_square
            lanes[lane + 4 * LANES] += step_square * step_square
        square = w * (x * x)
        if words[i] > last:
            lanes[lane + 2 * LANES] += square
        lanes[lane + 3 * LANES] += square * square
    return (
        _fold(lanes, 0),
        _fold(lanes, LANES),
        _fold(lanes, 2 * LANES),
        _fold(lanes, 3 * LANES),
        _fold(lanes, 4 * LANES),
    )


@njit(nogil=True, error_model="numpy")
def _weighted_survivor_sums(x, value, index, begin, end, weight, offset):
    energy = 0.0
    realised = 0.0
    for e in range(begin, end):
        w = weight[index[e] + offset]
        energy += w * (x[e] * x[e])
        residual = x[e] - np.float64(value[e])
        realised += w * (residual * residual)
    return energy, realised


@njit(nogil=True, error_model="numpy")
def _fraction(a):
    return a - np.floor(a)


@njit(nogil=True, error_model="numpy")
def _bfloat16_neighbours(size):
    """Largest bfloat16 <= size and smallest >= size, as float64."""
    single = np.float32(size)
    floor = bits_of(single)
    ceiling = floor
    if np.float64(single) > np.float64(size):
        floor = np.uint32(floor - np.uint32(1))
    if np.float64(single) < np.float64(size):
        ceiling = np.uint32(ceiling + np.uint32(1))
    low = np.uint32(floor & np.uint32(0xFFFF0000))
    high = np.uint32(np.uint32(ceiling + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000))
    return np.float64(float_of(low)), np.float64(float_of(high))


@njit(nogil=True, error_model="numpy")
def _difference(base, finetuned, delta):
    """finetuned - base; and its largest magnitude, the base's, and how many differ from 0.

    Magnitudes are compared as bits: a NaN counts as larger than infinity.
    """
    peak = bits_of(abs(float_of(finetuned[0]) - float_of(base[0])))
    base_peak = bits_of(abs(float_of(base[0])))
    changed = np.uint32(0)
    for i in range(delta.size):
        b = float_of(base[i])
        d = float_of(finetuned[i]) - b
        delta[i] = d
        peak = max(peak, bits_of(abs(d)))
        base_peak = max(base_peak, bits_of(abs(b)))
        changed = np.uint32(changed + np.uint32(d != 0))
    return float_of(peak), float_of(base_peak), np.int64(changed)


@njit(nogil=True, error_model="numpy")
def _peak(numbers):
    """Largest magnitude; a NaN counts as larger than infinity."""
    peak = bits_of(abs(numbers[0]))
    for i in range(numbers.size):
        peak = max(peak, bits_of(abs(numbers[i])))
    return float_of(peak)


@njit(nogil=True, error_model="numpy")
def _note(event, at, counts, first):
    if counts[event] == 0:
        first[event] = at
    counts[event] += 1


@njit(nogil=True, error_model="numpy")
def _set_aside(base, finetuned, at, delta, counts, first):
    """Count what cannot be coded, make its delta 0, and return how many still differ from 0."""
    changed = 0
    for i in range(delta.size):
        if not np.isfinite(float_of(base[i])):
            _note(BASE_NONFINITE, at + i, counts, first)
        if not np.isfinite(float_of(finetuned[i])):
            _note(FINETUNED_NONFINITE, at + i, counts, first)
        if not abs(delta[i]) <= LARGEST_BFLOAT16:
            _note(UNCODABLE, at + i, counts, first)
            delta[i] = 0
        changed += np.int64(delta[i] != 0)
    return changed


@njit(nogil=True, error_model="numpy")
def _scale(peak):
    """The smallest bfloat16 >= peak, as bits."""
    _, high = _bfloat16_neighbours(peak)
    return np.uint16(bits_of(np.float32(high)) >> np.uint32(16))


@njit(nogil=True, error_model="numpy")
def _positions(words, last, index):
    """Write the positions of words <= last, ascending; ``words`` is 64 n long, ``index`` 8 longer."""
    filled = 0
    for lo in range(0, words.size, 64):
        mask = mask_of_words(words, lo, last)
        found = np.int64(ones(mask))
        for batch in range(0, found, 8):
            out = index[filled + batch : filled + batch + 8]
            for j in range(8):
                out[j] = lo + np.int64(trailing_zeros(mask))
                mask &= mask - np.uint64(1)
        filled += found
    return filled


@njit(nogil=True, error_model="numpy")
def _draw(k0, k1, start, count, words):
    """Fill ``words`` so that ``words[start % 4 :][:count]`` are the words ``start ..``; return start % 4."""
    skip = np.int64(start % np.uint64(4))
    fill_words(k0, k1, start // np.uint64(4), np.uint32(0), words[: (skip + count + 3) // 4 * 4])
    return skip


@njit(nogil=True, error_model="numpy")
def _tile_survivors(words, count, last, index):
    """Positions of the survivors of one tile; the words after ``count`` are overwritten."""
    padded = (count + 63) // 64 * 64
    for i in range(count, padded):
        words[i] = np.uint32(0xFFFFFFFF)
    filled = _positions(words[:padded], last, index)
    while filled > 0 and index[filled - 1] >= count:
        filled -= 1
    return filled


@njit(cache=True, nogil=True, error_model="numpy")
def survivors(k0, k1, start, count, threshold, index):
    """Positions ``i < count`` whose word ``start + i`` is below ``threshold``; returns their number.

    ``index``: int32, ``count + SLACK`` long.
    """
    if threshold == np.uint64(0):
        return 0
    last = np.uint32(threshold - np.uint64(1))
    words = np.empty(TILE + SLACK, np.uint32)
    filled = 0
    for lo in range(0, count, TILE):
        size = min(TILE, count - lo)
        skip = _draw(k0, k1, start + np.uint64(lo), size, words)
        found = _tile_survivors(words[skip:], size, last, index[filled:])
        if lo > 0:
            for e in range(filled, filled + found):
                index[e] += lo
        filled += found
    return filled


@njit(nogil=True, error_model="numpy")
def _gather(index, found, delta, words, peaks, span, x, dither, scale):
    """Delta, word and peak of the span of each survivor, side by side."""
    begin = 0
    for part in range(peaks.size):
        stop = begin
        while stop < found and index[stop] < (part + 1) * span:
            stop += 1
        for e in range(begin, stop):
            i = np.uint32(index[e])  # unsigned: no look for negative indices
            x[e] = np.float64(delta[i])
            dither[e] = np.float64(words[i])
            scale[e] = peaks[part]
        begin = stop


@njit(nogil=True, error_model="numpy")
def _quantise(x, dither, scale, levels, rescale, chances, symbol, value):
    """Symbols and decoded values of survivors; ``scale`` is that of each one's span."""
    divisor = levels * rescale
    for e in range(x.size):
        inverse_step = levels / scale[e] if scale[e] > 0.0 else 0.0
        a = abs(x[e]) * inverse_step
        level = np.floor(a)
        level = min(level + (1.0 if dither[e] < (a - level) * chances else 0.0), levels)
        code = level if x[e] >= 0.0 else -level
        symbol[e] = np.uint8(np.int32(code + levels))
        value[e] = np.float32(code * scale[e] / divisor)


@njit(nogil=True, error_model="numpy")
def _round_bfloat16(x, dither, rescale, chances, bits, value):
    """Bits and decoded values of survivors, rounded to bfloat16; a zero is positive."""
    for e in range(x.size):
        size = abs(x[e])
        down, up = _bfloat16_neighbours(size)
        rounded = up if dither[e] * (up - down) < (size - down) * chances else down
        code = np.float32(-rounded if x[e] < 0.0 and rounded > 0.0 else rounded)
        bits[e] = np.uint16(bits_of(code) >> np.uint32(16))
        value[e] = np.float32(np.float64(code) / rescale)


@njit(cache=True, nogil=True, error_model="numpy")
def encode(
    base, finetuned, keep, weight, columns, k0, k1, start, threshold, levels, span, rescale, limit,
    delta, scales, symbols, bfloats, rows, totals, counts, first,
):  # fmt: skip
    """Difference, mask, quantise and measure one block.

    base, finetuned   uint16/32/64 [n]: bits of bfloat16, float32, float64; n is rows * columns
    keep              uint8 [n] stored mask, or [0]: draw it
    weight            float64 [columns] of the moments, or [0]: all one
    levels, span      quantiser: codes -levels..levels, one scale per ``span`` entries; levels 0: bfloat16
    rescale           q; decoded values are divided by it
    limit             a sum of base and value overflows when its magnitude reaches this
    delta             scratch of the float type, max(span, TILE) + SLACK long
    scales            out: uint16 [ceil(n / span)]
    symbols           out: uint8 [n], code + levels of each survivor (levels > 0)
    bfloats           out: uint16 [n], bits of each survivor (levels 0)
    rows, totals, counts, first   out: the moments, in the order of the constants above
    """
    count = base.size
    quantised = levels > 0
    tile = min(count, span * max(1, TILE // span))
    weighted = weight.size > 0
    stored = keep.size > 0
    chances = 4294967296.0 if stored else np.float64(threshold)
    last = np.uint32(0)
    if not stored and threshold > np.uint64(0):
        last = np.uint32(threshold - np.uint64(1))
    words = np.empty(tile + SLACK, np.uint32)
    # stands in for the words where they do not decide: 1 > last = 0 is dropped
    mask = np.ones(tile + SLACK, np.uint32)
    index = np.empty(tile + SLACK, np.int32)
    lanes = np.zeros(5 * LANES)
    peaks = np.empty(-(-tile // span))
    x = np.empty(tile + SLACK)
    dither = np.empty(tile + SLACK)
    scale = np.empty(tile + SLACK)
    value = np.empty(tile + SLACK, np.float32)
    kept = 0
    for lo in range(0, count, tile):
        hi = min(lo + tile, count)
        size = hi - lo

        largest_base = 0.0
        for part in range(-(-size // span)):
            at, end = part * span, min((part + 1) * span, size)
            d = delta[at:end]
            peak, base_peak, changed = _difference(base[lo + at : lo + end], finetuned[lo + at : lo + end], d)
            if not peak <= LARGEST_BFLOAT16:
                changed = _set_aside(
                    base[lo + at : lo + end], finetuned[lo + at : lo + end], lo + at, d, counts, first
                )
                peak = _peak(d)
            counts[CHANGED] += changed
            peaks[part] = peak
            totals[LARGEST_DELTA] = max(totals[LARGEST_DELTA], peaks[part])
            largest_base = max(largest_base, np.float64(base_peak))
            if quantised:
                bits = _scale(peak)
                scales[lo // span + part] = bits
                peaks[part] = np.float64(float_of(bits))

        # who survives
        drawn = words[_draw(k0, k1, start + np.uint64(lo), size, words) :]
        compared = mask
        found = 0
        if stored:
            for i in range(size):
                mask[i] = np.uint32(keep[lo + i] == 0)
                index[found] = i
                found += np.int64(keep[lo + i] != 0)
        elif threshold > np.uint64(0):
            compared = drawn
            found = _tile_survivors(drawn, size, last, index)
        _gather(index, found, delta, drawn, peaks, span, x, dither, scale)
        values = value[:found]
        if quantised:
            out = symbols[kept : kept + found]
            _quantise(x[:found], dither, scale, levels, rescale, chances, out, values)
        else:
            _round_bfloat16(x[:found], dither, rescale, chances, bfloats[kept : kept + found], values)

        # moments, row by row and span by span
        at = 0
        row = lo // columns
        part = 0
        summed_to = 0
        while at < size:
            end = min((row + 1) * columns - lo, (part + 1) * span, size)
            step = peaks[part] / levels if quantised else 1.0
            inverse_step = -1.0
            if quantised:
                inverse_step = levels / peaks[part] if peaks[part] > 0.0 else 0.0
            begin = summed_to
            while summed_to < found and index[summed_to] < end:
                summed_to += 1
            if weighted:
                column = lo + at - row * columns
                spread, steps, dropped, fourth, step_fourth = _weighted_sums(
                    delta, compared, at, end, last, inverse_step, weight, column, lanes
                )
                energy, realised = _weighted_survivor_sums(
                    x, value, index, begin, summed_to, weight, lo - row * columns
                )
            else:
                if quantised:
                    spread, dropped, fourth = span_sums(delta, compared, at, end, last, inverse_step)
                    steps = step_fourth = np.float64(end - at)
                else:
                    spread, steps, dropped, fourth, step_fourth = bfloat16_sums(
                        delta, compared, at, end, last
                    )
                energy, realised = survivor_sums(x, value, begin, summed_to)
            rows[ENERGY, row] += dropped + energy
            rows[VARIANCE, row] += spread * (step * step)
            rows[PROXY, row] += steps * (step * step) * 0.25
            rows[REALISED, row] += dropped + realised
            totals[DELTA_FOURTH] += fourth
            totals[STEP_FOURTH] += step_fourth * (step * step) * (step * step)
            at = end
            row += np.int64((row + 1) * columns - lo == end)
            part += np.int64((part + 1) * span == end)

        if found > 0:
            largest = np.float64(_peak(values))
            totals[LARGEST_VALUE] = max(totals[LARGEST_VALUE], largest)
            if not largest + largest_base < 0.5 * limit:  # far from it: no need to look
                for e in range(found):
                    i = lo + index[e]
                    if value[e] != 0 and not abs(float_of(base[i]) + value[e]) < limit:
                        _note(OVERFLOW, i, counts, first)
        kept += found
    counts[KEPT] = kept


@njit(cache=True, nogil=True, error_model="numpy")
def dequantise(index, symbols, scales, span, levels, rescale, value):
    """Decoded values of quantised survivors: code * scale / (levels * rescale), rounded to float32."""
    divisor = levels * rescale
    end = 0
    block = -1
    scale = 0.0
    for e in range(index.size):
        while index[e] >= end:
            end += span
            block += 1
            scale = np.float64(float_of(scales[block]))
        value[e] = np.float32((np.float64(symbols[e]) - levels) * scale / divisor)


@njit(cache=True, nogil=True, error_model="numpy")
def decode_bfloat16(low, high, divisor, value):
    """Decoded values of bfloat16 survivors from their byte planes; False if one is not finite.

    divisor   float64 [1], of all survivors, or one for each
    """
    finite = True
    for e in range(low.size):
        bits = np.uint16(np.uint16(low[e]) | np.uint16(np.uint16(high[e]) << np.uint16(8)))
        finite &= (bits & np.uint16(0x7F80)) != np.uint16(0x7F80)
        value[e] = np.float32(np.float64(float_of(bits)) / divisor[e if divisor.size > 1 else 0])
    return finite


@njit(cache=True, nogil=True, error_model="numpy")
def add_bfloat16(bits, index, value):
    """Add ``value`` in place to the bfloat16 numbers at ``index``, rounding to nearest even.

    Entries whose value is 0 keep their bits.  Returns the number of finite entries that became infinite.
    """
    overflow = 0
    for e in range(index.size):  # without branches: a zero is too frequent for a guess to pay
        i = np.uint32(index[e])  # unsigned: no look for negative indices
        old = bits[i]
        total = float_of(old) + value[e]
        wide = bits_of(total)
        odd = np.uint32((wide >> np.uint32(16)) & np.uint32(1))
        new = np.uint16(np.uint32(wide + np.uint32(0x7FFF) + odd) >> np.uint32(16))
        new = new if total == total else np.uint16(0x7FC0)
        new = new if value[e] != 0 else old
        overflow += np.int64(abs(float_of(old)) < np.inf) & np.int64(abs(float_of(new)) == np.inf)
        bits[i] = new
    return overflow


@njit(cache=True, nogil=True, error_model="numpy")
def difference_at(base, finetuned, index, divisor, value):
    """(finetuned - base) / divisor at the positions ``index``."""
    for e in range(index.size):
        i = np.uint32(index[e])  # unsigned: no look for negative indices
        value[e] = np.float64(float_of(finetuned[i]) - float_of(base[i])) / divisor


@njit(cache=True, nogil=True)
def add_sparse(first, first_value, second, second_value, index, value):
    """Merge two ascending lists of positions, adding the values where they meet; returns the length of the union."""
    filled = 0
    a = 0
    b = 0
    while a < first.size and b < second.size:
        i, j = first[a], second[b]
        index[filled] = min(i, j)
        value[filled] = (first_value[a] if i <= j else 0.0) + (second_value[b] if j <= i else 0.0)
        filled += 1
        a += np.int64(i <= j)
        b += np.int64(j <= i)
    for e in range(a, first.size):
        index[filled] = first[e]
        value[filled] = first_value[e]
        filled += 1
    for e in range(b, second.size):
        index[filled] = second[e]
        value[filled] = second_value[e]
        filled += 1
    return filled


@njit(cache=True, nogil=True)
def histogram(stream):
    """How often each of the 256 byte values occurs: int64 [256]."""
    counts = np.zeros((4, 256), np.int64)  # four tables: equal neighbours do not wait for each other
    full = stream.size // 4 * 4
    for i in range(0, full, 4):
        counts[0, stream[i]] += 1
        counts[1, stream[i + 1]] += 1
        counts[2, stream[i + 2]] += 1
        counts[3, stream[i + 3]] += 1
    for i in range(full, stream.size):
        counts[0, stream[i]] += 1
    return counts[0] + counts[1] + counts[2] + counts[3]


@njit(cache=True, nogil=True)
def pack_symbols(symbols, bits, width, out):
    """Write ``bits``-bit symbols least significant bit first, ``width`` bits of every byte in use.

    width 8 gives one unbroken bit stream; width = bits * (8 // bits) whole symbols in every byte.
    """
    pending = np.uint32(0)
    held = 0
    at = 0
    for symbol in symbols:
        pending = np.uint32(pending | np.uint32(np.uint32(symbol) << np.uint32(held)))
        held += bits
        if held >= width:
            out[at] = np.uint8(pending & np.uint32((1 << width) - 1))
            pending = np.uint32(pending >> np.uint32(width))
            held -= width
            at += 1
    if held > 0:
        out[at] = np.uint8(pending)


@njit(cache=True, nogil=True)
def unpack_symbols(packed, bits, width, symbols):
    """The inverse of :func:`pack_symbols`; returns the bits left over at the end (0 when well formed)."""
    pending = np.uint32(0)
    held = 0
    at = 0
    field = np.uint32((1 << bits) - 1)
    for e in range(symbols.size):
        if held < bits:
            pending = np.uint32(pending | np.uint32(np.uint32(packed[at]) << np.uint32(held)))
            held += width
            at += 1
        symbols[e] = np.uint8(pending & field)
        pending = np.uint32(pending >> np.uint32(bits))
        held -= bits
    return np.int64(pending)


@njit(cache=True, nogil=True)
def encode_gaps(index, out):
    """Distances between kept positions less one, a byte each, 255 meaning "255 more"; returns the length.

    ``out``: uint8, at least ``index.size + (index[-1] + 1) // 255`` long.
    """
    at = 0
    expected = 0
    for e in range(index.size):
        gap = index[e] - expected
        while gap >= 255:
            out[at] = 255
            gap -= 255
            at += 1
        out[at] = gap
        at += 1
        expected = index[e] + 1
    return at


@njit(cache=True, nogil=True)
def decode_gaps(gaps, count, index):
    """Fill ``index`` with the kept positions below ``count``; returns how many there are, -1 if malformed."""
    filled = 0
    position = 0
    for gap in gaps:
        position += np.int64(gap)
        if gap == 255:
            continue
        if position >= count or filled >= index.size:
            return -1
        index[filled] = position
        filled += 1
        position += 1
    if gaps.size > 0 and gaps[-1] == 255:
        return -1
    return filled


# Keep thresholds by row and column (assay.checkpoints.factors) ---------------------------------------------

FACTORED_VARIANCE, FACTORED_PROXY = 4, 5
"""Two more rows of moments that `encode_factored` writes."""


@njit(cache=True, nogil=True, error_model="numpy")
def encode_factored(
    base, finetuned, weight, row_codes, column_codes, thresholds, phis, k0, k1, start, levels, span, limit,
    delta, scales, symbols, bfloats, rows, totals, counts, first,
):  # fmt: skip
    """`encode` with the keep threshold ``thresholds[row_codes[i], column_codes[j]]`` of entry (i, j).

    Survivors are divided by their own keep probability.  Arguments as for `encode`, and

    row_codes     uint8 [n / columns], of the rows of this block
    column_codes  uint8 [columns]
    thresholds    uint64 [16, 16], each in 1 .. 2**32
    phis          float64 [16, 16], the Kearns-Saul coefficients
    rows          out: float64 [6, rows]
    """
    count = base.size
    columns = column_codes.size
    quantised = levels > 0
    weighted = weight.size > 0
    tile = min(count, span * max(1, TILE // span))
    keeps = thresholds.astype(np.float64) / 4294967296.0
    words = np.empty(tile + SLACK, np.uint32)
    kept = 0
    row = 0
    column = 0
    for lo in range(0, count, tile):
        hi = min(lo + tile, count)
        size = hi - lo
        d = delta[:size]
        _difference(base[lo:hi], finetuned[lo:hi], d)
        counts[CHANGED] += _set_aside(base[lo:hi], finetuned[lo:hi], lo, d, counts, first)
        drawn = words[_draw(k0, k1, start + np.uint64(lo), size, words) :]
        for span_lo in range(0, size, span):
            span_hi = min(span_lo + span, size)
            peak = np.float64(_peak(d[span_lo:span_hi]))
            totals[LARGEST_DELTA] = max(totals[LARGEST_DELTA], peak)
            scale = 0.0
            step = 0.0
            inverse_step = 0.0
            if quantised:
                scale_bits = _scale(peak)
                scales[(lo + span_lo) // span] = scale_bits
                scale = np.float64(float_of(scale_bits))
                step = scale / levels
                inverse_step = levels / scale if scale > 0.0 else 0.0
            for i in range(span_lo, span_hi):
                code_row = row_codes[row]
                code_column = column_codes[column]
                threshold = thresholds[code_row, code_column]
                keep = keeps[code_row, code_column]
                x = np.float64(d[i])
                w = weight[column] if weighted else 1.0
                a = 0.0
                down = 0.0
                up = 0.0
                if quantised:
                    a = abs(x) * inverse_step
                    theta = _fraction(a)
                    spread = theta * (1.0 - theta) * (step * step)
                else:
                    down, up = _bfloat16_neighbours(abs(d[i]))
                    step = up - down
                    spread = (up - abs(x)) * (abs(x) - down)
                square = x * x
                quarter = step * step * 0.25
                value = np.float32(0.0)
                word = drawn[i]
                if np.uint64(word) < threshold:
                    chances = np.float64(threshold)
                    if quantised:
                        level = np.floor(a)
                        level = min(
                            level + (1.0 if np.float64(word) < (a - level) * chances else 0.0), levels
                        )
                        code = level if x >= 0.0 else -level
                        symbols[kept] = np.uint8(np.int32(code + levels))
                        value = np.float32(code * scale / (levels * keep))
                    else:
                        rounded = up if np.float64(word) * step < (abs(x) - down) * chances else down
                        single = np.float32(-rounded if x < 0.0 and rounded > 0.0 else rounded)
                        bfloats[kept] = np.uint16(bits_of(single) >> np.uint32(16))
                        value = np.float32(np.float64(single) / keep)
                    kept += 1
                    totals[LARGEST_VALUE] = max(totals[LARGEST_VALUE], np.float64(abs(value)))
                    if value != 0 and not abs(float_of(base[lo + i]) + value) < limit:
                        _note(OVERFLOW, lo + i, counts, first)
                residual = x - np.float64(value)
                rows[ENERGY, row] += w * square
                rows[VARIANCE, row] += w * spread
                rows[PROXY, row] += w * quarter
                rows[REALISED, row] += w * (residual * residual)
                rows[FACTORED_VARIANCE, row] += w * ((square * (1.0 - keep) + spread) / keep)
                phi = phis[code_row, code_column]
                rows[FACTORED_PROXY, row] += w * ((phi * square * 0.5 + quarter) / (keep * keep))
                totals[DELTA_FOURTH] += (w * square) * (w * square)
                totals[STEP_FOURTH] += (w * step * step) * (w * step * step)
                column += 1
                if column == columns:
                    column = 0
                    row += 1
    counts[KEPT] = kept


@njit(cache=True, nogil=True, error_model="numpy")
def survivors_factored(k0, k1, start, count, row_codes, column_codes, thresholds, index, keep):
    """Positions ``i < count`` whose word is below their threshold, and their keep probabilities; how many.

    ``index``: int32 [count]; ``keep``: float64 [count].
    """
    columns = column_codes.size
    keeps = thresholds.astype(np.float64) / 4294967296.0
    words = np.empty(TILE + SLACK, np.uint32)
    filled = 0
    row = 0
    column = 0
    for lo in range(0, count, TILE):
        size = min(TILE, count - lo)
        skip = _draw(k0, k1, start + np.uint64(lo), size, words)
        for i in range(size):
            code_row = row_codes[row]
            code_column = column_codes[column]
            if np.uint64(words[skip + i]) < thresholds[code_row, code_column]:
                index[filled] = lo + i
                keep[filled] = keeps[code_row, code_column]
                filled += 1
            column += 1
            if column == columns:
                column = 0
                row += 1
    return filled


@njit(cache=True, nogil=True, error_model="numpy")
def dequantise_factored(index, symbols, scales, span, levels, keep, value):
    """`dequantise` with a divisor of its own for each survivor."""
    end = 0
    block = -1
    scale = 0.0
    for e in range(index.size):
        while index[e] >= end:
            end += span
            block += 1
            scale = np.float64(float_of(scales[block]))
        value[e] = np.float32((np.float64(symbols[e]) - levels) * scale / (levels * keep[e]))
