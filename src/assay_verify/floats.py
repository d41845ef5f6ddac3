"""Floating-point types of checkpoints, read and rounded with the standard library."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache

from assay_verify.outcome import Rejected, Unsupported

__all__ = ["LARGEST_BFLOAT16", "bfloat16", "decode", "difference", "neighbours", "recode", "to_single"]

LARGEST_BFLOAT16 = (2 - 2.0**-7) * 2.0**127
_STRUCT = {"F16": "e", "F32": "f", "F64": "d"}
_EIGHT = {"F8_E4M3": (4, 7), "F8_E5M2": (5, 15)}  # exponent bits and bias


def decode(data: bytes, dtype: str) -> Sequence[float]:
    """The values of little-endian floats.

    >>> list(decode(bytes([0x80, 0x3F, 0x00, 0xC0]), "BF16"))
    [1.0, -2.0]
    """
    if dtype == "BF16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return struct.unpack(f"<{len(data) // 2}f", wide)
    if dtype in _STRUCT:
        code = _STRUCT[dtype]
        return struct.unpack(f"<{len(data) // struct.calcsize('<' + code)}{code}", data)
    if dtype in _EIGHT:
        table = _eight(dtype)
        return [table[byte] for byte in data]
    raise Unsupported(f"no rule for a lossy tensor of type {dtype[:40]!r}")


@lru_cache(maxsize=2)
def _eight(dtype: str) -> tuple[float, ...]:
    """The 256 values of an 8-bit float: E5M2 as in IEEE 754, E4M3 without infinities (NaN is all ones)."""
    width, bias = _EIGHT[dtype]
    fraction = 7 - width
    values = []
    for byte in range(128):
        exponent, mantissa = byte >> fraction, byte & (1 << fraction) - 1
        top = exponent == (1 << width) - 1
        if top and width == 5:
            value = math.nan if mantissa else math.inf
        elif top and mantissa == (1 << fraction) - 1:
            value = math.nan
        elif exponent:
            value = math.ldexp((1 << fraction) + mantissa, exponent - bias - fraction)
        else:
            value = math.ldexp(mantissa, 1 - bias - fraction)
        values.append(value)
    return (*values, *(-value for value in values))


def to_single(values: Sequence[float]) -> Sequence[float]:
    """Each value rounded to the nearest float32, ties to even.

    Raises:
        Rejected: one is too large for a float32.
    """
    try:
        packed = struct.pack(f"<{len(values)}f", *values)
    except OverflowError:
        raise Rejected("a difference or a decoded value is too large for a float32") from None
    return struct.unpack(f"<{len(values)}f", packed)


def recode(data: bytes, old: str, new: str) -> bytes:
    """Floats of type `old` as bytes of type `new`, rounded to nearest even."""
    if old == new:
        return data
    if new not in ("BF16", "F16", "F32", "F64") or (old, new) == ("F64", "BF16"):
        raise Unsupported(f"no rule that rounds a base of type {old[:40]!r} to {new[:40]!r}")
    values = decode(data, old)
    if new == "BF16":
        words = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
        return struct.pack(f"<{len(words)}H", *((w + 0x7FFF + (w >> 16 & 1)) >> 16 for w in words))
    try:
        return struct.pack(f"<{len(values)}{_STRUCT[new]}", *values)
    except OverflowError:
        raise Rejected(f"a value of the base is too large for {new}") from None


def difference(base: bytes, finetuned: bytes, dtype: str) -> Sequence[float]:
    """fine-tuned less base: float64 for F64, else a float32 of the two float32 values.

    The float64 difference of two float32 numbers, rounded to float32, is their float32 difference: 53 bits are
    more than twice 24 plus two, so rounding twice rounds once.

    Raises:
        Rejected: a difference is not finite, or above the largest bfloat16: no delta codes it.
    """
    pairs = zip(decode(finetuned, dtype), decode(base, dtype), strict=True)
    delta: Sequence[float] = [f - b for f, b in pairs]
    if dtype != "F64":
        delta = to_single(delta)
    if not all(abs(d) <= LARGEST_BFLOAT16 for d in delta):
        raise Rejected("a difference of the two checkpoints is not finite, so no delta can code it")
    return delta


def bfloat16(bits: int) -> float:
    """The value of a bfloat16.

    >>> bfloat16(0x4049)
    3.140625
    """
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def neighbours(x: float) -> tuple[int, int]:
    """Bits of the bfloat16 numbers next to x >= 0: the largest not above it, the smallest not below it.

    >>> [hex(b) for b in neighbours(1.0)], [hex(b) for b in neighbours(1.001)]
    (['0x3f80', '0x3f80'], ['0x3f80', '0x3f81'])
    """
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    low = bits >> 16
    while bfloat16(low) > x:
        low -= 1
    return low, low if bfloat16(low) == x else low + 1
