"""`assay_verify.blocks` with numpy, where numpy happens to be installed.

The same definitions on whole blocks at once.  Every float64 operation that decides a code, a scale or a value
is the same as there, so those agree exactly; sums are taken in another order and agree to about 2^-50.
"""

from __future__ import annotations

from typing import Any

from assay_verify import floats
from assay_verify.blocks import Sums
from assay_verify.codec import Scheme, Survivors
from assay_verify.factors import ONE, Factors, kearns_saul
from assay_verify.outcome import Rejected, Unsupported

try:
    import numpy as np
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True

__all__ = ["AVAILABLE", "add_zigzag", "measure", "recode"]

Array = Any
_LOW = 0xFFFFFFFF


def measure(
    base: bytes,
    finetuned: bytes,
    dtype: str,
    columns: int,
    start: int,
    scheme: Scheme,
    stored: Survivors | None,
) -> tuple[int, list[Sums]]:
    """See `assay_verify.blocks.measure`."""
    with np.errstate(over="ignore", invalid="ignore"):
        delta = _decode(finetuned, dtype) - _decode(base, dtype)
    if not (np.abs(delta) <= floats.LARGEST_BFLOAT16).all():
        raise Rejected("a difference of the two checkpoints is not finite, so no delta can code it")
    delta = delta.astype(np.float64)
    words = _words(scheme.key, start, delta.size)
    thresholds = None if scheme.factors is None else _thresholds(scheme.factors, start, delta.size)
    if stored is not None and stored.positions is not None:
        kept = np.array(stored.positions, np.int64)
    else:
        kept = np.flatnonzero(words < (scheme.threshold if thresholds is None else thresholds))
    chances, rescales = float(scheme.chances), scheme.rescale
    if thresholds is not None:
        chances = thresholds[kept].astype(np.float64)
        rescales = chances / ONE
    quantise = _quantise if scheme.levels else _round
    if scheme.step is not None:
        quantise = _grid
    steps, variances, scales, codes = quantise(delta, words[kept], kept, chances, scheme)
    error = None
    if stored is not None:
        if stored.kept != kept.size:
            raise Rejected(f"a block stores {stored.kept} survivors, and its mask has {kept.size}")
        if not np.array_equal(stored.scales, scales):
            raise Rejected("the scales of a block are not those of its differences")
        if not np.array_equal(stored.codes, codes):
            raise Rejected("the codes of a block are not those that seed and differences give")
        error = delta.copy()
        error[kept] -= _values(kept, scales, codes, rescales, scheme)
    squares, grid = delta * delta, steps * steps
    table = [
        _row_sums(squares, columns),
        _row_sums(variances, columns),
        [total / 4 for total in _row_sums(grid, columns)],
        [None] * (delta.size // columns) if error is None else _row_sums(error * error, columns),
        _row_sums(squares * squares, columns),
        _row_sums(grid * grid, columns),
    ]
    if thresholds is not None and scheme.factors is not None:
        keep = thresholds / ONE
        values, places = np.unique(thresholds, return_inverse=True)
        phis = np.array([kearns_saul(int(value)) for value in values])[places]
        table.append(_row_sums((squares * (1 - keep) + variances) / keep, columns))
        table.append(_row_sums((phis * squares / 2 + grid / 4) / (keep * keep), columns))
    return int(kept.size), [Sums(*row) for row in zip(*table, strict=True)]


def recode(data: bytes, old: str, new: str) -> bytes:
    """See `assay_verify.floats.recode`."""
    if old == new:
        return data
    floats.refuse_recoding(old, new)
    values = _decode(data, old).astype(np.float64)
    if np.isnan(values).any():
        raise Unsupported(f"no rule that turns a NaN of type {old[:40]!r} into one of type {new[:40]!r}")
    if new == "F64":
        return bytes(values.astype("<f8").tobytes())
    form = floats.FORMATS[new]
    size = np.where(np.isinf(values), 0, np.abs(values))
    exponent = np.where(size > 0, np.maximum(1, np.frexp(size)[1].astype(np.int64) - 1 + form.bias), 1)
    with np.errstate(over="ignore"):
        fraction = np.rint(np.ldexp(size, form.bias + form.fraction - exponent))
    bits = (exponent - 1 << form.fraction) + fraction.astype(np.int64)
    bits[(bits > form.largest) | np.isinf(values)] = form.overflow
    sign = np.signbit(values)
    if not form.signed_zero:
        sign &= (bits != 0) & (bits != form.overflow)
    return bytes((bits | np.where(sign, form.sign, 0)).astype(f"<u{form.width}").tobytes())


def add_zigzag(base: bytes, zigzag: bytes, width: int) -> bytes:
    """See `assay_verify.blocks.add_zigzag`."""
    old, z = (np.frombuffer(data, f"<u{width}") for data in (base, zigzag))
    return bytes((old + ((z >> 1) ^ (0 - (z & 1)))).astype(f"<u{width}").tobytes())


def _thresholds(factors: Factors, start: int, count: int) -> Array:
    """Thresholds of the elements of a block, as uint64."""
    width = len(factors.columns)
    first = start // max(1, width)
    rows = np.array(factors.rows[first : first + count // max(1, width)], np.int64)
    table = np.array(factors.table, np.uint64)
    return table[rows[:, None], np.array(factors.columns, np.int64)[None, :]].reshape(-1)


def _row_sums(values: Array, columns: int) -> list[float]:
    return list(values.reshape(-1, columns).sum(axis=1).tolist())


def _decode(data: bytes, dtype: str) -> Array:
    """Values as float64 for F64, else as float32, so that a difference is a float32 difference."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F16", "F32", "F64"):
        kind = np.float64 if dtype == "F64" else np.float32
        return np.frombuffer(data, f"<f{int(dtype[1:]) // 8}").astype(kind)
    return np.array(floats.decode(bytes(range(256)), dtype), np.float32)[np.frombuffer(data, np.uint8)]


def _words(key: tuple[int, int], start: int, count: int) -> Array:
    """Philox4x32-10, all counters at once: uint64 lanes hold 32-bit words."""
    first = start // 4
    counters = np.arange(first, (start + count + 3) // 4, dtype=np.uint64)
    low, half = np.uint64(_LOW), np.uint64(32)
    c0, c1 = counters & low, counters >> half
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    k0, k1 = key
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> half) ^ c1 ^ np.uint64(k0), b & low, (a >> half) ^ c3 ^ np.uint64(k1), a & low
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    words = np.stack([c0, c1, c2, c3], axis=1).reshape(-1)
    return words[start % 4 : start % 4 + count]


def _bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _neighbours(x: Array) -> tuple[Array, Array]:
    """Bits of the bfloat16 numbers next to each x >= 0; x is first rounded down to a float32."""
    near = x.astype(np.float32)
    low = (near.view(np.uint32) - (near > x)) >> 16
    return low, low + (_bfloat16(low) < x)


def _quantise(
    delta: Array, words: Array, kept: Array, chances: Any, scheme: Scheme
) -> tuple[Array, Array, Array, Array]:
    levels = scheme.levels
    size = np.abs(delta)
    _, scales = _neighbours(np.maximum.reduceat(size, np.arange(0, size.size, scheme.span)))
    tops = _bfloat16(scales)
    inverses = np.divide(levels, tops, out=np.zeros_like(tops), where=tops > 0)
    spans = np.arange(size.size) // scheme.span
    steps = (tops / levels)[spans]
    a = size * inverses[spans]
    theta = a - np.floor(a)
    variances = theta * (1 - theta) * (steps * steps)
    above = np.floor(a[kept])
    level = np.minimum(above + (words < (a[kept] - above) * chances), levels)
    codes = np.where(delta[kept] >= 0, level, -level).astype(np.int64)
    return steps, variances, scales, codes


def _grid(
    delta: Array, words: Array, kept: Array, chances: Any, scheme: Scheme
) -> tuple[Array, Array, Array, Array]:
    step = scheme.step
    assert step is not None
    a = np.abs(delta) / step
    theta = a - np.floor(a)
    variances = theta * (1 - theta) * (step * step)
    level = np.floor(a[kept]) + (words < theta[kept] * chances)
    codes = np.where(delta[kept] >= 0, level, -level).astype(np.int64)
    return np.full(delta.size, step), variances, np.empty(0, np.int64), codes


def _round(
    delta: Array, words: Array, kept: Array, chances: Any, scheme: Scheme
) -> tuple[Array, Array, Array, Array]:
    size = np.abs(delta)
    low, high = _neighbours(size)
    below, above = _bfloat16(low), _bfloat16(high)
    steps = above - below
    variances = (above - size) * (size - below)
    up = words * steps[kept] < (size[kept] - below[kept]) * chances
    bits = np.where(up, high[kept], low[kept]).astype(np.int64)
    codes = np.where((delta[kept] < 0) & (bits > 0), bits | 0x8000, bits)
    return steps, variances, np.empty(0, np.int64), codes


def _values(kept: Array, scales: Array, codes: Array, rescales: Any, scheme: Scheme) -> Array:
    if scheme.step is not None:
        values = codes * scheme.step / rescales
    elif scheme.levels:
        tops = _bfloat16(scales)[kept // scheme.span]
        values = codes * tops / (scheme.levels * rescales)
    else:
        values = _bfloat16(codes) / rescales
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if not np.isfinite(single).all():
        raise Rejected("a difference or a decoded value is too large for a float32")
    return single.astype(np.float64)
