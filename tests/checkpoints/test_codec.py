"""The delta codec against its definitions, transliterated here in plain Python: slow, and no code shared."""

from __future__ import annotations

import math
import struct
import tracemalloc
import zlib
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.checkpoints.codec import (
    Scheme,
    apply_block,
    decode_block,
    decode_exact,
    decode_lossless,
    encode_block,
    encode_exact,
    encode_lossless,
)
from assay.core.errors import InputError
from assay.numerics.philox import philox4x32, words

LEVELS = {8: 127, 4: 7, 3: 3, 2: 1}


# The definitions, naively -----------------------------------------------------------------------------------


def word(key, i):
    return philox4x32(((i // 4) & 0xFFFFFFFF, i // 4 >> 32, 0, 0), key)[i % 4]


def bfloat16_below(x: float) -> float:
    """Largest bfloat16 <= x, for 0 <= x."""
    near = ml_dtypes.bfloat16(x)
    bits = int(near.view(np.uint16)) if np.isfinite(near) else 0x7F7F
    while Fraction(float(np.uint16(bits).view(ml_dtypes.bfloat16))) > Fraction(x):
        bits -= 1
    return float(np.uint16(bits).view(ml_dtypes.bfloat16))


def bfloat16_above(x: float) -> float:
    """Smallest bfloat16 >= x, for 0 <= x."""
    low = bfloat16_below(x)
    if Fraction(low) == Fraction(x):
        return low
    return float((ml_dtypes.bfloat16(low).view(np.uint16) + np.uint16(1)).view(ml_dtypes.bfloat16))


def code_survivor(d: float, u: int, chances: int, bits: int, peak: float) -> float:
    """The signed code of one survivor: an integer for a quantiser, a bfloat16 for bits 16."""
    size = abs(d)
    if bits == 16:
        low, high = bfloat16_below(size), bfloat16_above(size)
        up = u * Fraction(high - low) < (Fraction(size) - Fraction(low)) * chances
        return math.copysign(high if up else low, d)
    scale = bfloat16_above(peak)
    if scale == 0:
        return 0
    levels = LEVELS[bits]
    a = size * (levels / scale)
    level = math.floor(a)
    level = min(level + (u < (a - level) * float(chances)), levels)
    return level if d >= 0 else -level


def decoded(code: float, bits: int, peak: float, rescale: float) -> np.float32:
    with np.errstate(over="ignore"):
        if bits == 16:
            return np.float32(float(code) / rescale)
        return np.float32(float(code) * bfloat16_above(peak) / (LEVELS[bits] * rescale))


def survivors(delta, start, scheme, keep=None):
    """(position, d, value) of every survivor of a flat block."""
    out = []
    for i, d in enumerate(delta):
        u = word(scheme.key, start + i)
        kept = u < scheme.threshold if keep is None else keep[i]
        if kept:
            span = i // scheme.span * scheme.span
            peak = max(abs(float(e)) for e in delta[span : span + scheme.span])
            chances = scheme.threshold if keep is None else 2**32
            code = code_survivor(float(d), u, chances, scheme.bits, peak)
            out.append((i, float(d), decoded(code, scheme.bits, peak, scheme.rescale)))
    return out


def variance(d: float, bits: int, peak: float) -> Fraction:
    """The exact variance of the quantiser at d (specification 1.h)."""
    size = Fraction(abs(d))
    if bits == 16:
        low, high = Fraction(bfloat16_below(abs(d))), Fraction(bfloat16_above(abs(d)))
        return (high - size) * (size - low)
    scale = Fraction(bfloat16_above(peak))
    if scale == 0:
        return Fraction(0)
    step = scale / LEVELS[bits]
    theta = size / step - math.floor(size / step)
    return step**2 * theta * (1 - theta)


# Blocks to test on ----------------------------------------------------------------------------------------

NUMBERS = {
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
BITS = {name: np.dtype(f"u{np.dtype(number).itemsize}") for name, number in NUMBERS.items()}
KEY = (0x12345678, 0x9ABCDEF0)


def raw(values, dtype: str) -> np.ndarray:
    return np.asarray(values).astype(NUMBERS[dtype]).view(BITS[dtype])


def floats(bits: np.ndarray, dtype: str) -> np.ndarray:
    return bits.view(NUMBERS[dtype]).astype(np.float64 if dtype == "F64" else np.float32)


def pair(shape, dtype: str = "BF16", seed: int = 0, spread: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    base = rng.standard_normal(shape)
    return raw(base, dtype), raw(base + spread * rng.standard_normal(shape), dtype)


def delta_of(base, finetuned, dtype: str) -> np.ndarray:
    return (floats(finetuned, dtype) - floats(base, dtype)).reshape(-1)


def check_against_naive(base, finetuned, dtype, start, scheme, keep=None):
    """Payload, moments and weights of one block, each against its definition."""
    block = encode_block(base, finetuned, dtype, start, scheme, keep=keep)
    index, value = decode_block(block.payload, start, base.size, scheme)
    delta = delta_of(base, finetuned, dtype)
    flat_keep = None if keep is None else keep.reshape(-1)
    expected = survivors(delta, start, scheme, flat_keep)
    assert index.tolist() == [i for i, _, _ in expected]
    assert np.array_equal(value, np.array([v for _, _, v in expected], np.float32))

    rows, columns = base.shape
    stats = block.stats
    assert stats.kept == len(expected)
    assert stats.changed == np.count_nonzero(delta)
    peaks = [np.abs(delta[i : i + scheme.span]).max() for i in range(0, delta.size, scheme.span)]
    values = {i: Fraction(float(v)) for i, _, v in expected}
    for row in range(rows):
        entries = range(row * columns, (row + 1) * columns)
        d = {i: Fraction(float(delta[i])) for i in entries}
        v = {i: variance(float(delta[i]), scheme.bits, float(peaks[i // scheme.span])) for i in entries}
        h = {i: step_of(float(delta[i]), scheme.bits, float(peaks[i // scheme.span])) for i in entries}
        close(stats.row_energy[row], sum(d[i] ** 2 for i in entries))
        close(stats.row_quantiser_proxy[row], sum(h[i] ** 2 / 4 for i in entries))
        close(stats.row_realised[row], sum((d[i] - values.get(i, 0)) ** 2 for i in entries))
        # frac(|d| / h) is known to 2 ulp of |d| / h, so the variance to about k ulp of h^2
        slack = float(sum(h[i] ** 2 for i in entries)) * 2**-44
        assert abs(stats.row_quantiser_variance[row] - float(sum(v.values()))) <= slack
    close(stats.delta_fourth, sum(Fraction(float(d)) ** 4 for d in delta))
    steps = (step_of(float(d), scheme.bits, float(peaks[i // scheme.span])) for i, d in enumerate(delta))
    close(stats.step_fourth, sum(h**4 for h in steps))
    assert stats.largest_delta == np.abs(delta).max(initial=0)
    assert stats.largest_value == np.abs(value).max(initial=0)

    weights, overflow = apply_block(base, dtype, index, value)
    exact = np.array(base).reshape(-1)
    for i, _, v in expected:
        if v != 0:
            old = floats(exact[i : i + 1], dtype)
            with np.errstate(over="ignore"):
                exact[i : i + 1] = raw(old + v.astype(old.dtype), dtype)
    assert np.array_equal(weights.reshape(-1), exact)
    assert overflow == stats.overflow == 0


def close(got: float, exact: Fraction) -> None:
    assert abs(Fraction(got) - exact) <= exact * Fraction(1, 2**45), (got, float(exact))


def step_of(d: float, bits: int, peak: float) -> Fraction:
    if bits == 16:
        return Fraction(bfloat16_above(abs(d))) - Fraction(bfloat16_below(abs(d)))
    return Fraction(bfloat16_above(peak)) / LEVELS[bits]


# Bit for bit against the definitions ----------------------------------------------------------------------


@pytest.mark.parametrize("bits", [16, 8, 4, 3, 2])
@pytest.mark.parametrize("dtype", list(NUMBERS))
def test_every_number_is_its_definition(dtype: str, bits: int) -> None:
    base, finetuned = pair((5, 37), dtype, seed=bits)
    scheme = Scheme(bits, 3 * 2**30, 0.75, KEY, span=23)
    check_against_naive(base, finetuned, dtype, 7, scheme)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 40),
    start=st.integers(0, 2**40),
    bits=st.sampled_from([16, 8, 4, 3, 2]),
    threshold=st.one_of(st.integers(1, 2**32), st.just(2**32)),
    span=st.integers(1, 200),
    coding=st.sampled_from(["entropy", "raw"]),
    stored=st.booleans(),
    dtype=st.sampled_from(["BF16", "F32", "F64"]),
    seed=st.integers(0, 99),
)
def test_any_shape_and_scheme(
    rows, columns, start, bits, threshold, span, coding, stored, dtype, seed
) -> None:
    base, finetuned = pair((rows, columns), dtype, seed, spread=10.0 ** -(seed % 7))
    keep = np.random.default_rng(seed).random((rows, columns)) < 0.4 if stored else None
    scheme = Scheme(bits, threshold, 0.3, KEY, span=span, coding=coding, stored_mask=stored)
    check_against_naive(base, finetuned, dtype, start, scheme, keep)


def test_a_block_longer_than_a_tile_matches_its_definition() -> None:
    base, finetuned = pair((3, 1501))
    for bits, span in ((4, 640), (16, 1)):
        check_against_naive(base, finetuned, "BF16", 3, Scheme(bits, 2**32 // 10, 0.1, KEY, span=span))
    wide = pair((2, 2500), seed=3)
    check_against_naive(*wide, "BF16", 1, Scheme(3, 2**32 // 10, 0.1, KEY, span=4999))


def test_rows_coded_apart_say_the_same_as_together() -> None:
    base, finetuned = pair((40, 300))
    scheme = Scheme(16, 2**30, 0.25, KEY)
    whole = encode_block(base, finetuned, "BF16", 0, scheme)
    parts = [
        encode_block(base[r : r + 8], finetuned[r : r + 8], "BF16", r * 300, scheme) for r in range(0, 40, 8)
    ]
    index, value = decode_block(whole.payload, 0, base.size, scheme)
    pieces = [decode_block(p.payload, 2400 * n, 2400, scheme) for n, p in enumerate(parts)]
    assert np.array_equal(index, np.concatenate([i + 2400 * n for n, (i, _) in enumerate(pieces)]))
    assert np.array_equal(value, np.concatenate([v for _, v in pieces]))
    assert sum(p.stats.kept for p in parts) == whole.stats.kept
    energies = np.concatenate([p.stats.row_energy for p in parts])
    assert np.allclose(energies, whole.stats.row_energy, rtol=1e-14, atol=0)


# Laws of the quantiser ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [16, 8, 4, 3, 2])
def test_mean_and_variance_over_every_dither_are_the_law(bits: int) -> None:
    """Enumerate u = 0 .. t - 1: the mean is d to within h / t (rounded away from 0), the variance V."""
    chances, peak = 1 << 10, 1.0
    for d in (0.0, 1 / 3, -5 / 7, 0.999, 1.0, -1.0, 2.0**-9, 0.5 + 2.0**-10):
        d = float(np.float32(d))
        codes = [Fraction(float(code_survivor(d, u, chances, bits, peak))) for u in range(chances)]
        unit = Fraction(1) if bits == 16 else Fraction(1, LEVELS[bits])
        atoms = [code * unit for code in codes]
        mean = sum(atoms) / chances
        step = step_of(d, bits, peak)
        assert 0 <= (mean - Fraction(d)) * (1 if d >= 0 else -1) <= step / chances + Fraction(1, 2**50)
        spread = sum((atom - mean) ** 2 for atom in atoms) / chances
        assert abs(spread - variance(d, bits, peak)) <= 2 * step**2 / chances


@pytest.mark.parametrize(
    ("w", "scale", "bits", "atoms"),
    [  # T6 of the specification, where k is one of 1, 3, 7, 127
        (0.0, 1.0, 2, {0.0: 1}),
        (1.0, 1.0, 3, {1.0: 1}),
        (0.5, 1.0, 2, {1.0: Fraction(1, 2), 0.0: Fraction(1, 2)}),
        (-2.0, 2.0, 3, {-2.0: 1}),
        (0.25, 1.0, 3, {1 / 3: Fraction(3, 4), 0.0: Fraction(1, 4)}),
        (-0.75, 1.0, 3, {-1.0: Fraction(1, 4), -2 / 3: Fraction(3, 4)}),
    ],
)
def test_atoms_of_the_quantiser(w, scale, bits, atoms) -> None:
    """The coded values of many equal entries are the two grid values, in the stated proportion.

    40 000 survivors; a proportion is off by more than 0.0175 = 7 sd / 2 sqrt(n) with probability < 2e-10
    (Hoeffding), and the key is fixed.
    """
    count = 40_000
    finetuned = np.full((1, count), w, np.float32)
    finetuned[0, 0] = scale
    base = np.zeros((1, count), np.uint32)
    scheme = Scheme(bits, 2**32, 1.0, KEY, span=2**20)
    block = encode_block(base, finetuned.view(np.uint32), "F32", 0, scheme)
    _, value = decode_block(block.payload, 0, count, scheme)
    seen = dict(zip(*np.unique(value[1:], return_counts=True), strict=True))
    assert sorted(seen) == sorted(np.float32(atom) for atom in atoms)
    for atom, chance in atoms.items():
        assert abs(seen[np.float32(atom)] / (count - 1) - float(chance)) < 0.0175


@pytest.mark.parametrize("bits", [16, 2])
def test_the_dither_decides_at_exactly_its_own_value(bits: int) -> None:
    """d is set from the mask words so that u / t equals the rounding probability: down; a hair more: up."""
    u = words(KEY, 0, 500).astype(float)
    scheme = Scheme(bits, 2**32, 1.0, KEY, span=1000)
    low, step = (1.0, 2.0**-7) if bits == 16 else (0.0, 1.0)
    for shift, expected in ((0.0, low), (2.0**-13, low + step)):
        finetuned = np.append(low + (u + shift) * 2.0**-32 * step, low + step).reshape(1, -1)
        base = np.zeros(finetuned.shape, np.uint64)
        block = encode_block(base, finetuned.view(np.uint64), "F64", 0, scheme)
        _, value = decode_block(block.payload, 0, base.size, scheme)
        assert set(value[:-1].tolist()) == {expected}


@pytest.mark.parametrize("bits", [16, 4])
def test_the_whole_is_unbiased_with_the_variance_of_the_specification(bits: int) -> None:
    """Sum of the error over a block, against 1.h: mean 0 (q = keep_prob), variance [p(1-p)Q + (1-p)V] / q^2.

    2000 independent masks of the same 400 entries: the mean is within 6 sd / sqrt(2000) (probability of a
    miss about 2e-9), the variance within 20 % (over 6 of its own standard deviations).
    """
    base, finetuned = pair((1, 400), seed=9)
    keep_prob, draws = 0.25, 2000
    errors = []
    delta = delta_of(base, finetuned, "BF16").astype(float)
    for draw in range(draws):
        scheme = Scheme(bits, 2**30, keep_prob, (draw, 99), span=400, coding="raw")
        block = encode_block(base, finetuned, "BF16", 0, scheme)
        index, value = decode_block(block.payload, 0, 400, scheme)
        errors.append(delta.sum() - value.astype(float).sum())
        assert np.isclose(block.stats.row_realised[0], ((delta - dense(index, value, 400)) ** 2).sum())
    p = 1 - keep_prob
    energy, quantiser = block.stats.row_energy[0], block.stats.row_quantiser_variance[0]
    law = (p * (1 - p) * energy + (1 - p) * quantiser) / keep_prob**2
    assert abs(np.mean(errors)) < 6 * np.sqrt(law / draws)
    assert 0.8 < np.var(errors) / law < 1.2


def dense(index, value, count) -> np.ndarray:
    out = np.zeros(count)
    out[index] = value
    return out


def test_scales_do_not_depend_on_the_mask() -> None:
    base, finetuned = pair((4, 500))
    moments = []
    for threshold, key in ((2**28, KEY), (2**31, (5, 6)), (0, KEY), (2**32, KEY)):
        stats = encode_block(base, finetuned, "BF16", 0, Scheme(4, threshold, 0.5, key, span=64)).stats
        moments.append(np.stack([stats.row_quantiser_variance, stats.row_quantiser_proxy]))
    for other in moments[1:]:
        assert np.array_equal(other, moments[0])


@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("dtype", ["BF16", "F64"])
def test_column_weights_weigh_every_moment(bits: int, dtype: str) -> None:
    base, finetuned = pair((6, 130), dtype)
    scheme = Scheme(bits, 2**31, 0.5, KEY, span=50)
    plain = encode_block(base, finetuned, dtype, 0, scheme)
    ones = encode_block(base, finetuned, dtype, 0, scheme, np.ones(130))
    weight = np.random.default_rng(1).random(130)
    weighted = encode_block(base, finetuned, dtype, 0, scheme, weight)
    columns = [
        encode_block(base, finetuned, dtype, 0, scheme, np.eye(130)[column]).stats for column in range(130)
    ]
    assert plain.payload == ones.payload == weighted.payload
    for name in ("row_energy", "row_quantiser_variance", "row_quantiser_proxy", "row_realised"):
        assert np.allclose(getattr(ones.stats, name), getattr(plain.stats, name), rtol=1e-13, atol=0)
        parts = np.stack([getattr(stats, name) for stats in columns], 1)
        assert np.allclose(getattr(weighted.stats, name), parts @ weight, rtol=1e-13, atol=0)


# Corners --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [16, 8, 4, 3, 2])
@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (1, 7), (3, 0), (0, 3)])
@pytest.mark.parametrize("threshold", [0, 1, 2**32])
def test_tiny_blocks(shape, bits, threshold) -> None:
    base, finetuned = pair(shape)
    scheme = Scheme(bits, threshold, 0.5, KEY, span=3)
    block = encode_block(base, finetuned, "BF16", 0, scheme)
    index, _ = decode_block(block.payload, 0, base.size, scheme)
    assert index.size == {0: 0, 1: 0, 2**32: base.size}[threshold]
    assert block.stats.row_energy.shape == (shape[0],)


def test_keeping_everything_at_bits_16_is_exact_for_representable_deltas() -> None:
    base = raw(np.zeros((2, 50)), "BF16")
    finetuned = pair((2, 50))[1]
    scheme = Scheme(16, 2**32, 1.0, KEY)
    block = encode_block(base, finetuned, "BF16", 0, scheme)
    weights, _ = apply_block(base, "BF16", *decode_block(block.payload, 0, 100, scheme))
    assert np.array_equal(weights, finetuned)
    assert not block.stats.row_realised.any()
    assert not block.stats.row_quantiser_variance.any()


def test_dropping_everything_keeps_the_bits_of_the_base() -> None:
    base = np.arange(65536, dtype=np.uint16).reshape(16, 4096)  # every bfloat16, NaNs and -0.0 among them
    scheme = Scheme(4, 0, 1.0, KEY)
    payload = encode_block(base, base[::-1].copy(), "BF16", 0, scheme).payload
    weights, overflow = apply_block(base, "BF16", *decode_block(payload, 0, base.size, scheme))
    assert np.array_equal(weights, base)
    assert overflow == 0


@pytest.mark.parametrize("bits", [16, 4])
def test_zeros_of_either_sign_and_subnormals(bits: int) -> None:
    base = np.array([[0x8000, 0x0000, 0x0001, 0x8001, 0x0080]], np.uint16)
    finetuned = np.array([[0x0000, 0x8000, 0x0002, 0x8003, 0x0081]], np.uint16)
    scheme = Scheme(bits, 2**32, 1.0, KEY)
    check_against_naive(base, finetuned, "BF16", 0, scheme)
    payload = encode_block(base, finetuned, "BF16", 0, scheme).payload
    weights, _ = apply_block(base, "BF16", *decode_block(payload, 0, 5, scheme))
    assert weights[0, 0] == 0x8000  # a delta of 0 leaves the sign of the base's zero alone


@pytest.mark.parametrize("bits", [16, 3])
def test_float64_deltas_beyond_float32(bits: int) -> None:
    base = np.zeros((1, 6))
    finetuned = np.array([[1e-300, -5e-46, 1e-40, 3e38, 1 + 2.0**-40, 0.0]])
    check_against_naive(
        base.view("u8"), finetuned.view("u8"), "F64", 0, Scheme(bits, 2**32, 1.0, KEY, span=2)
    )


def test_what_cannot_be_coded_is_counted_where_it_stands() -> None:
    base = np.ones((3, 4), np.float32)
    finetuned = base + 1
    base[1, 1], finetuned[1, 2], finetuned[2, 0] = np.inf, np.nan, -np.inf
    base[2, 3], finetuned[2, 3] = -3e38, 3e38  # finite both, but not their difference
    for bits in (16, 4):
        scheme = Scheme(bits, 2**32, 1.0, KEY)
        stats = encode_block(base.view(np.uint32), finetuned.view(np.uint32), "F32", 100, scheme).stats
        assert (stats.base_nonfinite, stats.first_base_nonfinite) == (1, 105)
        assert (stats.finetuned_nonfinite, stats.first_finetuned_nonfinite) == (2, 106)
        assert (stats.uncodable, stats.first_uncodable) == (4, 105)
        assert stats.row_energy.tolist() == [4.0, 2.0, 2.0]
        assert stats.changed == 8
        assert stats.overflow == 0


@pytest.mark.parametrize(
    ("dtype", "largest", "fits", "lost"),
    [
        ("BF16", 3.3895313892515355e38, 2.0**119 * 0.99, 2.0**119),
        ("F16", 65504.0, 15.99, 16.0),
        ("F32", float(np.finfo(np.float32).max), 2.0**102, 2.0**104),
        ("F8_E4M3", 448.0, 16.0, 16.25),
        ("F8_E5M2", 57344.0, 4095.0, 4096.0),
    ],
)
def test_overflow_is_counted_as_it_happens(dtype, largest, fits, lost) -> None:
    base = raw([[1.0, largest, -largest]], dtype)
    for size, expected in ((fits, 0), (lost, 2)):
        value = np.array([0, size, -size], np.float32)
        _, overflow = apply_block(base, dtype, np.arange(3), value)
        assert overflow == expected
    # and in advance: rescaling by 1/1000 carries base + v past the largest number
    small = raw([[1.0, largest * 0.875, -largest]], dtype)
    scheme = Scheme(16, 2**32, 1e-3, KEY)
    block = encode_block(base, small, dtype, 30, scheme)
    _, overflow = apply_block(base, dtype, *decode_block(block.payload, 30, 3, scheme))
    assert overflow == block.stats.overflow
    grows = encode_block(small, base, dtype, 30, scheme)
    _, overflow = apply_block(small, dtype, *decode_block(grows.payload, 30, 3, scheme))
    assert (overflow, overflow) == (grows.stats.overflow, 1)
    assert grows.stats.first_overflow == 31


def test_the_largest_delta_does_not_become_infinite() -> None:
    base = np.zeros((1, 2), np.uint16)
    finetuned = np.array([[0x7F7F, 0xFF7F]], np.uint16)
    for bits in (16, 8, 4, 3, 2):
        check_against_naive(base, finetuned, "BF16", 0, Scheme(bits, 2**32, 1.0, KEY))


# Size -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "most"), [(16, 16.0), (4, 4.25)])
def test_bits_per_parameter(bits: int, most: float) -> None:
    """16 d and 4.25 d (a scale per 64 survivors), before entropy coding; less after it."""
    base, finetuned = pair((512, 512))
    size = {}
    for coding in ("raw", "entropy"):
        scheme = Scheme(bits, 2**32 // 10, 0.1, KEY, span=640, coding=coding)
        block = encode_block(base, finetuned, "BF16", 0, scheme)
        size[coding] = 8 * len(block.payload) / block.stats.kept
    assert abs(size["raw"] - most) < 0.03
    assert size["entropy"] < (9.5 if bits == 16 else 3.6)


@pytest.mark.parametrize("keep_prob", [0.5, 0.01])
def test_a_stored_mask_takes_the_smaller_of_bitmap_and_gaps(keep_prob: float) -> None:
    base, finetuned = pair((256, 256))
    keep = np.random.default_rng(0).random((256, 256)) < keep_prob
    scheme = Scheme(2, 0, keep_prob, KEY, span=2**16, stored_mask=True)
    block = encode_block(base, finetuned, "BF16", 0, scheme, keep=keep)
    index, _ = decode_block(block.payload, 0, keep.size, scheme)
    assert np.array_equal(index, np.flatnonzero(keep))
    entropy = -(keep_prob * np.log2(keep_prob) + (1 - keep_prob) * np.log2(1 - keep_prob))
    mask_bits = 8 * len(block.payload) - 2 * block.stats.kept
    assert mask_bits < 1.12 * entropy * keep.size


# Exact blocks ---------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(["u1", "u2", "u4", "u8"]),
    shape=st.sampled_from([(0, 3), (1, 1), (5, 7), (100, 3)]),
    seed=st.integers(0, 99),
    near=st.booleans(),
    coding=st.sampled_from(["entropy", "raw"]),
)
def test_lossless_and_exact_blocks_come_back(dtype, shape, seed, near, coding) -> None:
    rng = np.random.default_rng(seed)
    top = np.iinfo(dtype).max
    base = rng.integers(0, top, shape, dtype, endpoint=True)
    other = (
        base + rng.integers(0, 3, shape, dtype) if near else rng.integers(0, top, shape, dtype, endpoint=True)
    )
    assert np.array_equal(decode_lossless(encode_lossless(base, other, coding), base), other)
    assert np.array_equal(decode_exact(encode_exact(base, coding), dtype, base.size), base.reshape(-1))


def test_an_unchanged_block_takes_next_to_nothing() -> None:
    base = pair((256, 256))[0]
    assert len(encode_lossless(base, base)) < 300


def test_a_lossless_delta_is_smaller_than_the_model() -> None:
    base, finetuned = pair((256, 256), spread=0.01)
    assert len(encode_lossless(base, finetuned)) < 0.6 * base.nbytes


# Damaged blocks -------------------------------------------------------------------------------------------


def _payloads():
    base, finetuned = pair((20, 50))
    keep = np.random.default_rng(0).random((20, 50)) < 0.2
    for bits in (16, 3, 4):
        for stored in (False, True):
            for coding in ("entropy", "raw"):
                scheme = Scheme(bits, 2**30, 0.25, KEY, span=100, coding=coding, stored_mask=stored)
                block = encode_block(base, finetuned, "BF16", 0, scheme, keep=keep if stored else None)
                yield scheme, block.payload


@pytest.mark.parametrize(("scheme", "payload"), list(_payloads()))
def test_damage_is_refused_or_harmless(scheme, payload) -> None:
    """Every cut, and many random edits: an InputError, or well-formed survivors; nothing else."""
    rng = np.random.default_rng(0)
    damaged = [payload[:cut] for cut in range(0, len(payload), 7)] + [payload + b"\0"]
    for _ in range(150):
        edit = bytearray(payload)
        for _ in range(rng.integers(1, 4)):
            edit[rng.integers(len(edit) if rng.random() < 0.5 else 30)] = rng.integers(256)
        damaged.append(bytes(edit))
    refused = 0
    for edit in damaged:
        try:
            index, value = decode_block(edit, 0, 1000, scheme)
        except InputError:
            refused += 1
        else:
            assert index.size == value.size
            assert not np.any(
                np.isnan(value)
            )  # a huge survivor may overflow when rescaled, and is then counted
            assert np.all(np.diff(index) > 0)
            assert index.size == 0 or 0 <= index[0] <= index[-1] < 1000
    assert refused >= len(damaged) // 3


@settings(max_examples=100, deadline=None)
@given(payload=st.binary(max_size=80), bits=st.sampled_from([16, 4, 3]), stored=st.booleans())
def test_noise_is_refused(payload, bits, stored) -> None:
    scheme = Scheme(bits, 2**30, 0.25, KEY, stored_mask=stored)
    with pytest.raises(InputError):
        decode_block(payload, 0, 1000, scheme)
    with pytest.raises(InputError):
        decode_exact(payload, np.uint16, 1000)
    with pytest.raises(InputError):
        decode_lossless(payload, np.zeros(1000, np.uint16))


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = bomb.compress(bytes(50_000_000)) + bomb.flush()
    head = struct.pack("<BBI", 3, 1, 10) + struct.pack("<BI", 1, len(stream))
    tracemalloc.start()
    with pytest.raises(InputError, match="wrong length"):
        decode_exact(head + stream, np.uint8, 10)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_the_wrong_seed_is_named() -> None:
    base, finetuned = pair((20, 50))
    payload = encode_block(base, finetuned, "BF16", 0, Scheme(4, 2**30, 0.25, KEY)).payload
    with pytest.raises(InputError, match="seed"):
        decode_block(payload, 0, 1000, Scheme(4, 2**30, 0.25, (0, 0)))


# Misuse ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"bits": 5}, {"threshold": -1}, {"threshold": 2**32 + 1}, {"rescale": 0.0}, {"rescale": float("nan")},
        {"span": 0}, {"span": 2**20 + 1}, {"coding": "zip"}, {"key": (0, 2**32)},
    ],
)  # fmt: skip
def test_a_scheme_checks_itself(change) -> None:
    with pytest.raises(InputError):
        Scheme(**{"bits": 4, "threshold": 1, "rescale": 1.0, "key": KEY} | change)


def test_misuse_is_refused() -> None:
    base, finetuned = pair((2, 3))
    scheme = Scheme(4, 2**31, 0.5, KEY)
    stored = Scheme(4, 2**31, 0.5, KEY, stored_mask=True)
    for call in (
        lambda: encode_block(base, finetuned, "I32", 0, scheme),
        lambda: encode_block(base, finetuned, "F32", 0, scheme),
        lambda: encode_block(base[0], finetuned[0], "BF16", 0, scheme),
        lambda: encode_block(base, finetuned[:, :2], "BF16", 0, scheme),
        lambda: encode_block(base, finetuned, "BF16", -1, scheme),
        lambda: encode_block(base, finetuned, "BF16", 0, scheme, np.ones(4)),
        lambda: encode_block(base, finetuned, "BF16", 0, stored),
        lambda: encode_block(base, finetuned, "BF16", 0, scheme, keep=np.ones((2, 3), bool)),
        lambda: encode_block(base, finetuned, "BF16", 0, stored, keep=np.ones((3, 2), bool)),
        lambda: apply_block(base, "BF16", np.array([6]), np.array([1.0], np.float32)),
        lambda: apply_block(base, "BF16", np.array([0, 1]), np.array([1.0], np.float32)),
        lambda: encode_lossless(base, finetuned.astype(np.uint32)),
        lambda: encode_exact(np.zeros(3)),
        lambda: decode_block(b"", 0, 2**31, scheme),
    ):
        with pytest.raises(InputError):
            call()
