"""Floating-point types of checkpoints, read and rounded with the standard library."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from assay_verify.outcome import Rejected, Unsupported

__all__ = [
    "FORMATS",
    "LARGEST_BFLOAT16",
    "Format",
    "bfloat16",
    "decode",
    "difference",
    "neighbours",
    "recode",
    "refuse_recoding",
    "to_single",
]

LARGEST_BFLOAT16 = (2 - 2.0**-7) * 2.0**127
_STRUCT = {"F16": "e", "F32": "f", "F64": "d"}
_WIDTHS = {1: "B", 2: "H", 4: "I"}


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point type narrower than float64: a sign bit, then exponent, then fraction.

    Attributes:
        width: bytes of a number.
        fraction: bits of the fraction.
        bias: of the exponent.
        largest: bits of the largest finite number.
        overflow: bits of what a larger one becomes: infinity, or NaN where there is none.
        signed_zero: whether -0 is a number; where it is not, its bits are the one NaN.
    """

    width: int
    fraction: int
    bias: int
    largest: int
    overflow: int
    signed_zero: bool = True

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << 8 * self.width - 1


FORMATS: Mapping[str, Format] = {
    "F32": Format(4, 23, 127, 0x7F7FFFFF, 0x7F800000),
    "BF16": Format(2, 7, 127, 0x7F7F, 0x7F80),
    "F16": Format(2, 10, 15, 0x7BFF, 0x7C00),
    "F8_E4M3": Format(1, 3, 7, 0x7E, 0x7F),
    "F8_E5M2": Format(1, 2, 15, 0x7B, 0x7C),
    "F8_E4M3FNUZ": Format(1, 3, 8, 0x7F, 0x80, signed_zero=False),
    "F8_E5M2FNUZ": Format(1, 2, 16, 0x7F, 0x80, signed_zero=False),
}
"""float32; its upper half; IEEE 754 half precision; and the 8-bit types of Micikevicius et al. (arXiv:2209.05433) and
of Noune et al. (arXiv:2206.02915), as safetensors names them."""


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
    if dtype in FORMATS:
        table = _eight(dtype)
        return [table[byte] for byte in data]
    raise Unsupported(f"no rule for the values of a tensor of type {dtype[:40]!r}")


@lru_cache(maxsize=4)
def _eight(dtype: str) -> tuple[float, ...]:
    """The 256 values of an 8-bit float."""
    form = FORMATS[dtype]
    values = []
    for byte in range(128):
        exponent, fraction = byte >> form.fraction, byte & (1 << form.fraction) - 1
        if byte > form.largest:
            value = math.inf if byte == form.overflow and dtype == "F8_E5M2" else math.nan
        else:
            leading = (1 << form.fraction) if exponent else 0
            value = math.ldexp(leading + fraction, max(1, exponent) - form.bias - form.fraction)
        values.append(value)
    negative = [-value for value in values]
    if not form.signed_zero:
        negative[0] = math.nan
    return (*values, *negative)


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
    """Floats of type `old` as bytes of type `new`, each rounded once, to nearest even.

    >>> recode(struct.pack("<d", 1 + 2.0**-8 + 2.0**-40), "F64", "BF16").hex()
    '813f'
    >>> recode(struct.pack("<3f", 464, 465, -1e-9), "F32", "F8_E4M3").hex()
    '7e7f80'

    Raises:
        Unsupported: a type that is no float; or a NaN, whose bits are not specified.
    """
    if old == new:
        return data
    refuse_recoding(old, new)
    values = decode(data, old)
    if any(value != value for value in values):
        raise Unsupported(f"no rule that turns a NaN of type {old[:40]!r} into one of type {new[:40]!r}")
    if new in _STRUCT:
        try:
            return struct.pack(f"<{len(values)}{_STRUCT[new]}", *values)
        except OverflowError:
            pass  # one becomes infinite
    form = FORMATS[new]
    return struct.pack(f"<{len(values)}{_WIDTHS[form.width]}", *(_rounded(x, form) for x in values))


def refuse_recoding(old: str, new: str) -> None:
    """Refuse types that are no floats."""
    known = FORMATS.keys() | {"F64"}
    if not {old, new} <= known:
        raise Unsupported(f"no rule that rounds a base of type {old[:40]!r} to {new[:40]!r}")


def _rounded(x: float, form: Format) -> int:
    """The bits of x, rounded to nearest even; x is no NaN.

    The number is a whole multiple n of 2^(E - bias - fraction), E >= 1 its biased exponent; scaling by a power of two
    is exact, and `round` rounds to even.  The bits of magnitude and exponent are then (E - 1) 2^fraction + n, whether n
    has its leading bit, lacks it (E = 1), or was rounded up to the next power of two.
    """
    size = abs(x)
    if math.isinf(size):
        bits = form.overflow
    else:
        exponent = max(1, math.frexp(size)[1] - 1 + form.bias) if size else 1
        bits = (exponent - 1 << form.fraction) + round(math.ldexp(size, form.bias + form.fraction - exponent))
        if bits > form.largest:
            bits = form.overflow
    if not form.signed_zero and bits in (0, form.overflow):
        return bits
    return bits | (form.sign if math.copysign(1, x) < 0 else 0)


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
