"""A small DEFLATE (RFC 1951) for byte planes: Huffman codes and runs, no search for matches.

The planes of a delta repeat nothing but runs of one byte, so one dynamic block with literals and distance-1
matches is all that pays.  Any inflater reads it, zlib for one.  Written here for two reasons: it is several
times faster than zlib's own Huffman-only mode, and its bytes do not depend on which zlib is installed.
"""
# mypy: ignore-errors
# numba infers the types of these functions from their arguments, by rules that mypy does not know

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_SYMBOLS = 286
_END = 256
_LONGEST = 12  # bits of a code: 15 are allowed, 12 cost nothing measurable and decode from a smaller table
_LEAST_RUN = 8  # shorter runs cost less as literals of about a bit each
_HEADER_ROOM = 400
_ORDER = np.array([16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15], np.int64)


def deflate(stream: NDArray[np.uint8], room: int) -> bytes | None:
    """``stream`` (at least one byte) as raw DEFLATE, if that takes fewer than ``room`` bytes.

    >>> import zlib
    >>> packed = deflate(np.zeros(1000, np.uint8), 1000)
    >>> len(packed), zlib.decompress(packed, -15) == bytes(1000)
    (17, True)
    """
    starts = np.zeros(
        stream.size, np.bool_
    )  # here and in the 7 places after it, a byte repeats the one before
    if stream.size > _LEAST_RUN:
        one = stream[1:] == stream[:-1]
        two = one[1:] & one[:-1]
        four = two[2:] & two[:-2]
        np.logical_and(four[4:], four[:-4], out=starts[1 : 1 + four.size - 4])
    out = np.empty(max(0, room) + _HEADER_ROOM, np.uint8)
    used = _deflate(stream, starts, room, out)
    return out[:used].tobytes() if 0 < used < room else None


@njit(nogil=True)
def _run(stream, at):
    """How many bytes from ``at`` on repeat the byte before it, at most 258; ``at`` starts a run of 8."""
    run = _LEAST_RUN
    while run < 258 and at + run < stream.size and stream[at + run] == stream[at]:
        run += 1
    return run


@njit(nogil=True)
def _length_symbol(run):
    """(symbol, extra bits, their value) of a match of length 3 .. 258."""
    if run == 258:
        return 285, 0, 0
    offset = run - 3
    if offset < 8:
        return 257 + offset, 0, 0
    extra = 0
    while offset >> (extra + 3) > 0:
        extra += 1
    return 257 + 4 * extra + (offset >> extra), extra, offset & ((1 << extra) - 1)


@njit(nogil=True)
def _count(stream, starts):
    """Occurrences of each literal and length symbol, and the bits that go with the lengths."""
    counts = np.zeros((2, _SYMBOLS), np.int64)  # two tables: equal neighbours do not wait for each other
    counts[0, _END] = 1
    extra_bits = 0
    at = 0
    while at < stream.size:
        if starts[at]:
            run = _run(stream, at)
            symbol, extra, _ = _length_symbol(run)
            counts[0, symbol] += 1
            extra_bits += extra + 1
            at += run
        else:
            counts[at & 1, stream[at]] += 1
            at += 1
    for symbol in range(_SYMBOLS):
        counts[0, symbol] += counts[1, symbol]
    return counts[0], extra_bits


@njit(nogil=True)
def _by_count(counts):
    """The symbols that occur, rarest first, equals in order (insertion: there are at most 286)."""
    order = np.empty(counts.size, np.int64)
    used = 0
    for symbol in range(counts.size):
        if counts[symbol] > 0:
            place = used
            while place > 0 and counts[order[place - 1]] > counts[symbol]:
                order[place] = order[place - 1]
                place -= 1
            order[place] = symbol
            used += 1
    return order[:used]


@njit(nogil=True)
def _code_lengths(counts, longest):
    """Lengths of a Huffman code for these counts (at least two above 0), none over ``longest``."""
    order = _by_count(counts)
    leaves = order.size
    weight = np.empty(2 * leaves - 1, np.int64)
    for leaf in range(leaves):
        weight[leaf] = counts[order[leaf]]
    parent = np.zeros(2 * leaves - 1, np.int64)
    leaf, inner = 0, leaves
    for node in range(leaves, 2 * leaves - 1):  # two sorted queues: leaves, and inner nodes as they arise
        total = 0
        for _ in range(2):
            if leaf < leaves and (inner >= node or weight[leaf] <= weight[inner]):
                child = leaf
                leaf += 1
            else:
                child = inner
                inner += 1
            total += weight[child]
            parent[child] = node
        weight[node] = total
    depth = np.zeros(2 * leaves - 1, np.int64)
    at_depth = np.zeros(64, np.int64)
    for node in range(2 * leaves - 3, -1, -1):
        depth[node] = depth[parent[node]] + 1
        if node < leaves:
            at_depth[min(depth[node], longest)] += 1
    # shortening the deepest leaves overfills the tree: lengthen others until the Kraft sum is 1 again
    kraft = 0
    for length in range(1, longest + 1):
        kraft += at_depth[length] << (longest - length)
    while kraft > 1 << longest:
        at_depth[longest] -= 1
        length = longest - 1
        while at_depth[length] == 0:
            length -= 1
        at_depth[length] -= 1
        at_depth[length + 1] += 2
        kraft -= 1
    lengths = np.zeros(counts.size, np.int64)
    place = 0
    for length in range(longest, 0, -1):  # the rarest symbols take the longest codes
        for _ in range(at_depth[length]):
            lengths[order[place]] = length
            place += 1
    return lengths


@njit(nogil=True)
def _codes(lengths):
    """Canonical codes, first bit lowest."""
    next_code = np.zeros(17, np.int64)
    for length in lengths:
        if length > 0:
            next_code[length + 1] += 1
    for length in range(1, 16):
        next_code[length + 1] = (next_code[length] + next_code[length + 1]) << 1
    codes = np.zeros(lengths.size, np.uint64)
    for symbol in range(lengths.size):
        length = lengths[symbol]
        if length > 0:
            code = next_code[length]
            next_code[length] += 1
            for bit in range(length):
                codes[symbol] |= np.uint64(((code >> bit) & 1) << (length - 1 - bit))
    return codes


@njit(nogil=True)
def _put(out, at, pending, held, value, bits):
    """Append ``bits`` bits; whole bytes go out."""
    pending |= np.uint64(value) << np.uint64(held)
    held += bits
    while held >= 8:
        out[at] = np.uint8(pending & np.uint64(255))
        pending >>= np.uint64(8)
        held -= 8
        at += 1
    return at, pending, held


@njit(nogil=True)
def _write_header(lengths, out):
    """The header of a final dynamic block: all lengths of literals, one distance code of one bit."""
    symbols = _SYMBOLS
    while lengths[symbols - 1] == 0:
        symbols -= 1
    everything = np.ones(symbols + 1, np.int64)
    for symbol in range(symbols):
        everything[symbol] = lengths[symbol]
    token = np.empty(everything.size, np.int64)
    extra = np.zeros(everything.size, np.int64)
    tokens = 0
    at = 0
    while at < everything.size:
        run = 1
        while at + run < everything.size and run < 138 and everything[at + run] == everything[at]:
            run += 1
        if everything[at] == 0 and run >= 3:
            token[tokens] = 17 if run < 11 else 18
            extra[tokens] = run - 3 if run < 11 else run - 11
        else:
            run = 1
            token[tokens] = everything[at]
        at += run
        tokens += 1
    counts = np.zeros(19, np.int64)
    for t in range(tokens):
        counts[token[t]] += 1
    inner = _code_lengths(counts, 7)
    codes = _codes(inner)
    listed = 19
    while inner[_ORDER[listed - 1]] == 0:
        listed -= 1
    place, pending, held = 0, np.uint64(0), 0
    place, pending, held = _put(out, place, pending, held, 0b101, 3)
    place, pending, held = _put(out, place, pending, held, symbols - 257, 5)
    place, pending, held = _put(out, place, pending, held, 0, 5)
    place, pending, held = _put(out, place, pending, held, listed - 4, 4)
    for i in range(listed):
        place, pending, held = _put(out, place, pending, held, inner[_ORDER[i]], 3)
    for t in range(tokens):
        place, pending, held = _put(out, place, pending, held, codes[token[t]], inner[token[t]])
        if token[t] >= 17:
            place, pending, held = _put(out, place, pending, held, extra[t], 3 if token[t] == 17 else 7)
    return place, pending, held


@njit(cache=True, nogil=True)
def _deflate(stream, starts, room, out):
    """Write the block to ``out``; returns its length, 0 if it would reach ``room``."""
    counts, bits = _count(stream, starts)
    lengths = _code_lengths(counts, _LONGEST)
    for symbol in range(_SYMBOLS):
        bits += counts[symbol] * lengths[symbol]
    if bits // 8 >= room:
        return 0
    place, pending, held = _write_header(lengths, out)
    codes = _codes(lengths)
    table = np.empty(_SYMBOLS, np.uint32)  # code and length of a symbol side by side
    for symbol in range(_SYMBOLS):
        table[symbol] = np.uint32(np.uint32(codes[symbol] << np.uint64(4)) | np.uint32(lengths[symbol]))
    at = 0
    while at < stream.size:
        if starts[at]:
            run = _run(stream, at)
            symbol, extra, value = _length_symbol(run)
            place, pending, held = _put(out, place, pending, held, codes[symbol], lengths[symbol])
            place, pending, held = _put(out, place, pending, held, value, extra + 1)  # and distance code 0
            at += run
        else:
            literals = 1  # four at a time where no run starts: at most 7 + 4 * 12 bits are pending
            if at + 4 <= stream.size and not (starts[at + 1] | starts[at + 2] | starts[at + 3]):
                literals = 4
            for _ in range(literals):
                entry = table[stream[at]]
                pending |= np.uint64(entry >> np.uint32(4)) << np.uint64(held)
                held += np.int64(entry & np.uint32(15))
                at += 1
            for byte in range(6):
                out[place + byte] = np.uint8(pending >> np.uint64(8 * byte))
            whole = held >> 3
            place += whole
            pending >>= np.uint64(8 * whole)
            held -= 8 * whole
    place, pending, held = _put(out, place, pending, held, codes[_END], lengths[_END])
    if held > 0:
        out[place] = np.uint8(pending)
        place += 1
    return place
