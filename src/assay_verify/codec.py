"""The bytes of a block, decoded with the standard library.

A payload is little-endian: a kind byte, the number of streams (a byte), the number of coded entries (uint32),
then for each stream its coding (a byte) and length (uint32), then the streams.  Kind 1 holds survivors: the
stored mask, if there is one; then the low and high bytes of the scales and the codes, or, for 16 bits, the low
and high bytes of the survivors as bfloat16.  Kinds 2 (lossless) and 3 (exact) hold one stream for each byte of
an element, lowest first.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from assay_verify import coder
from assay_verify.factors import Factors
from assay_verify.outcome import Rejected, Unsupported

__all__ = [
    "BLOCK",
    "EXACT",
    "LEVELS",
    "LOSSLESS",
    "Scheme",
    "Survivors",
    "coded_entries",
    "decode_planes",
    "decode_survivors",
]

BLOCK = 1 << 20  # elements in a block, about
LEVELS = {2: 1, 3: 3, 4: 7, 8: 127}
SURVIVORS, LOSSLESS, EXACT = 1, 2, 3
RAW, DEFLATE, DEFLATE_SYMBOLS, GAPS, DEFLATE_GAPS, INTEGERS = range(6)

_HEAD = struct.Struct("<BBI")
_STREAM = struct.Struct("<BI")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the survivors of a tensor are drawn and coded: the fields of its record, and its Philox key.

    With `factors` the thresholds differ by row and column; threshold and rescale then play no part.  With a `step`,
    too, survivors are whole multiples of it; bits and span then play no part.
    """

    bits: int
    threshold: int
    rescale: float
    span: int
    key: tuple[int, int]
    stored_mask: bool
    factors: Factors | None = None
    step: float | None = None

    @property
    def levels(self) -> int:
        """Codes run from -levels to levels; 0 for 16 bits."""
        return LEVELS.get(self.bits, 0)

    @property
    def chances(self) -> int:
        """The dither is uniform below this: the threshold, or 2^32 where the mask is stored."""
        return 1 << 32 if self.stored_mask else self.threshold


@dataclass(frozen=True, slots=True)
class Survivors:
    """What one block stores: kept positions (None where they are drawn), scales as bfloat16 bits, and codes.

    With 16 bits `codes` are bfloat16 bits and there are no scales; with a step multiples of it, and no scales; else they
    lie in -levels..levels.
    """

    kept: int
    positions: list[int] | None
    scales: list[int]
    codes: list[int]


def coded_entries(payload: bytes) -> int:
    """The number of entries that a block says it codes."""
    if len(payload) < _HEAD.size:
        raise Rejected("a block is too short for its header")
    return int(_HEAD.unpack_from(payload)[2])


def decode_survivors(payload: bytes, scheme: Scheme, count: int) -> Survivors:
    """Decode a block of kind 1 that covers `count` elements.

    Raises:
        Rejected: it is no such block.
        Unsupported: a stream has a coding that this checker does not know.
    """
    if scheme.step is not None:
        kept, [(coding, stream)] = _split(payload, SURVIVORS, 1, count)
        if coding != INTEGERS:
            raise Unsupported(f"a stream of a block has the coding {coding}, which is unknown here")
        return Survivors(kept, None, [], coder.decode(stream, kept, True))
    streams = int(scheme.stored_mask) + (3 if scheme.levels else 2)
    kept, parts = _split(payload, SURVIVORS, streams, count)
    positions = _mask(*parts.pop(0), kept, count) if scheme.stored_mask else None
    if not scheme.levels:
        codes = _words(parts, kept)
        if any(code & 0x7F80 == 0x7F80 for code in codes):
            raise Rejected("a survivor of a block is not finite")
        return Survivors(kept, positions, [], codes)
    scales = _words(parts[:2], -(-count // scheme.span))
    if any(scale >= 0x7F80 for scale in scales):
        raise Rejected("a scale of a block is negative or not finite")
    return Survivors(kept, positions, scales, _symbols(*parts[2], kept, scheme))


def decode_planes(payload: bytes, kind: int, width: int, count: int) -> bytes:
    """The elements of a block of kind 2 or 3, little-endian, `width` bytes each."""
    coded, parts = _split(payload, kind, width, count)
    if coded != count:
        raise Rejected(f"a block codes {coded} entries where its tensor has {count}")
    data = bytearray(width * count)
    for plane, (coding, stream) in enumerate(parts):
        data[plane::width] = _plain(coding, stream, count)
    return bytes(data)


def _split(payload: bytes, kind: int, streams: int, most: int) -> tuple[int, list[tuple[int, bytes]]]:
    table = _HEAD.size + streams * _STREAM.size
    if len(payload) < table:
        raise Rejected("a block is too short for its header")
    found, number, coded = _HEAD.unpack_from(payload)
    if (found, number) != (kind, streams) or coded > most:
        raise Rejected(
            f"a block is of kind {found} with {number} streams and {coded} entries, "
            f"where its record asks for kind {kind}, {streams} streams and at most {most} entries"
        )
    parts, at = [], table
    for index in range(streams):
        coding, length = _STREAM.unpack_from(payload, _HEAD.size + index * _STREAM.size)
        parts.append((coding, payload[at : at + length]))
        at += length
    if at != len(payload):
        raise Rejected(f"the streams of a block take {at} bytes, and it has {len(payload)}")
    return coded, parts


def _inflate(stream: bytes, most: int) -> bytes:
    coder = zlib.decompressobj(-15)
    try:
        data = coder.decompress(stream, most + 1)
    except zlib.error:
        raise Rejected("a stream of a block is not raw DEFLATE") from None
    if len(data) > most or not coder.eof or coder.unused_data:
        raise Rejected("a stream of a block inflates to the wrong length")
    return data


def _plain(coding: int, stream: bytes, size: int) -> bytes:
    """A stream of `size` bytes, as it is or raw DEFLATE."""
    if coding not in (RAW, DEFLATE):
        raise Unsupported(f"a stream of a block has the coding {coding}, which is unknown here")
    data = _inflate(stream, size) if coding == DEFLATE else stream
    if len(data) != size:
        raise Rejected(f"a stream of a block has {len(data)} bytes, not {size}")
    return data


def _words(parts: Sequence[tuple[int, bytes]], count: int) -> list[int]:
    """16-bit words from their low and high bytes."""
    low, high = (_plain(coding, stream, count) for coding, stream in parts)
    return [a | b << 8 for a, b in zip(low, high, strict=True)]


def _symbols(coding: int, stream: bytes, kept: int, scheme: Scheme) -> list[int]:
    """Codes of `bits` bits each, least significant first: unbroken, or whole ones in every byte for coding 2."""
    bits, levels = scheme.bits, scheme.levels
    width = bits * (8 // bits) if coding == DEFLATE_SYMBOLS else 8
    packed = _plain(DEFLATE if coding == DEFLATE_SYMBOLS else coding, stream, -(-kept * bits // width))
    codes, pending, held, at = [], 0, 0, 0
    for _ in range(kept):
        while held < bits:
            if packed[at] >> width:
                raise Rejected("a code of a block is out of range")
            pending |= packed[at] << held
            held, at = held + width, at + 1
        code = pending & (1 << bits) - 1
        if code > 2 * levels:
            raise Rejected("a code of a block is out of range")
        codes.append(code - levels)
        pending, held = pending >> bits, held - bits
    if pending:
        raise Rejected("a block has something after its last code")
    return codes


def _mask(coding: int, stream: bytes, kept: int, count: int) -> list[int]:
    """The kept positions of a stored mask: a bitmap, or the gaps between them."""
    positions: list[int] = []
    if coding in (GAPS, DEFLATE_GAPS):
        most = kept + count // 255 + 1
        gap, at = 0, -1
        for byte in _inflate(stream, most) if coding == DEFLATE_GAPS else stream[: most + 1]:
            gap += byte
            if byte < 255:
                at += gap + 1
                positions.append(at)
                gap = 0
        if gap:
            raise Rejected("the stored mask of a block is cut short")
    else:
        bitmap = _plain(coding, stream, -(-count // 8))
        positions = [8 * i + b for i, byte in enumerate(bitmap) if byte for b in range(8) if byte >> b & 1]
    if len(positions) != kept or (positions and positions[-1] >= count):
        raise Rejected("the stored mask of a block does not fit its survivors")
    return positions
