"""The compiled loops: fixed summation order, masks and packings, each against a plain statement of it."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from assay.checkpoints import kernels, lanes
from assay.numerics.philox import words


@njit
def _sums(x, value, begin, end):
    return lanes.survivor_sums(x, value, begin, end)


@njit
def _mask(values, at, last):
    return lanes.mask_of_words(values, at, last)


@pytest.mark.parametrize("end", [3, 4, 18, 19, 20, 84])
def test_sums_add_every_sixteenth_term_in_order_and_fold_by_halves(end) -> None:
    """What lies beyond the end, NaN here, is read and plays no part."""
    rng = np.random.default_rng(0)
    x, value = np.full(100, np.nan), np.full(100, np.nan, np.float32)
    x[:end], value[:end] = rng.standard_normal(end), rng.standard_normal(end)
    expected = np.zeros((2, 16))
    for i in range(3, end):
        for total, factor in zip(expected, (x[i], x[i] - float(value[i])), strict=True):
            lane = (i - 3) % 16
            total[lane] = float(Fraction(total[lane]) + Fraction(factor) ** 2)
    for width in (8, 4, 2, 1):
        expected = expected[:, :width] + expected[:, width:]
    assert _sums(x, value, 3, end) == tuple(expected[:, 0])


def test_masks_of_sixty_four_words() -> None:
    values = words((1, 2), 0, 100)
    for last in (0, 1 << 30, 1 << 31, 0xFFFFFFFF):
        mask = int(_mask(values, 5, np.uint32(last)))
        assert [mask >> j & 1 for j in range(64)] == (values[5:69] <= last).astype(int).tolist()


@settings(max_examples=60, deadline=None)
@given(
    start=st.integers(0, 2**40),
    count=st.integers(0, 9000),
    threshold=st.one_of(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**32]), st.integers(0, 2**32)),
)
def test_survivors_are_the_words_below_the_threshold(start, count, threshold) -> None:
    index = np.full(count + kernels.SLACK + 1, -7, np.int32)
    key = np.uint32(11), np.uint32(12)
    found = kernels.survivors(*key, np.uint64(start), count, np.uint64(threshold), index[:-1])
    below = words((11, 12), start, count).astype(np.int64) < threshold
    assert np.array_equal(index[:found], np.flatnonzero(below))
    assert index[-1] == -7


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([2, 3, 4, 8]), count=st.integers(0, 50), whole=st.booleans(), seed=st.integers(0, 99)
)
def test_symbols_pack_least_significant_bit_first(bits, count, whole, seed) -> None:
    symbols = np.random.default_rng(seed).integers(0, 2**bits, count).astype(np.uint8)
    width = bits * (8 // bits) if whole else 8
    packed = np.empty(-(-count * bits // width), np.uint8)
    kernels.pack_symbols(symbols, bits, width, packed)
    stream = [byte >> bit & 1 for byte in packed.tolist() for bit in range(width)]
    expected = [symbol >> bit & 1 for symbol in symbols.tolist() for bit in range(bits)]
    assert stream[: count * bits] == expected
    assert not any(stream[count * bits :])
    back = np.empty(count, np.uint8)
    assert kernels.unpack_symbols(packed, bits, width, back) == 0
    assert np.array_equal(back, symbols)


def test_bits_left_over_are_reported() -> None:
    assert kernels.unpack_symbols(np.array([0x80], np.uint8), 3, 8, np.empty(2, np.uint8)) != 0


@settings(max_examples=80, deadline=None)
@given(st.sets(st.integers(0, 3000), max_size=40))
def test_gaps_come_back(positions) -> None:
    index = np.array(sorted(positions), np.int64)
    room = index.size + (int(index[-1]) + 1 if index.size else 0) // 255
    gaps = np.empty(room, np.uint8)
    gaps = gaps[: kernels.encode_gaps(index, gaps)]
    back = np.empty(index.size, np.int32)
    assert kernels.decode_gaps(gaps, 3001, back) == index.size
    assert np.array_equal(back, index)


@pytest.mark.parametrize("gaps", [[10], [255, 255], [0, 0, 0, 0], [255, 0, 200]])
def test_malformed_gaps_are_refused(gaps) -> None:
    """Past the end, a dangling escape, more than there is room for."""
    assert kernels.decode_gaps(np.array(gaps, np.uint8), 10, np.empty(3, np.int32)) == -1


@settings(max_examples=40, deadline=None)
@given(size=st.integers(0, 700), seed=st.integers(0, 99))
def test_histogram(size, seed) -> None:
    stream = np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)
    assert np.array_equal(kernels.histogram(stream), np.bincount(stream, minlength=256))


def test_adding_rounds_to_nearest_even_for_every_bfloat16() -> None:
    every = np.arange(65536, dtype=np.uint16)
    for value in (2.0**-133, 1e-3, -0.37, 1.0, 3.0e38):
        bits = every.copy()
        value32 = np.full(65536, value, np.float32)
        overflow = kernels.add_bfloat16(bits, np.arange(65536, dtype=np.int32), value32)
        old = every.view(ml_dtypes.bfloat16).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = (old + np.float32(value)).astype(ml_dtypes.bfloat16)
        nan = np.isnan(expected.astype(np.float32))
        assert np.array_equal(bits[~nan], expected.view(np.uint16)[~nan])
        assert np.array_equal(np.isnan(bits.view(ml_dtypes.bfloat16).astype(np.float32)), nan)
        assert overflow == np.count_nonzero(np.isfinite(old) & ~np.isfinite(expected.astype(np.float32)))


def test_a_value_of_zero_leaves_every_bit_alone() -> None:
    every = np.arange(65536, dtype=np.uint16)
    bits = every.copy()
    zeros = np.where(every % 2, np.float32(-0.0), np.float32(0.0)).astype(np.float32)
    assert kernels.add_bfloat16(bits, np.arange(65536, dtype=np.int32), zeros) == 0
    assert np.array_equal(bits, every)


def test_a_long_sum_stays_within_the_stated_radius() -> None:
    x = np.random.default_rng(3).standard_normal(100_000)
    total, _ = _sums(x, np.zeros(x.size, np.float32), 0, x.size)  # a multiple of 16
    exact = math.fsum(v**2 for v in x.tolist())
    assert abs(total - exact) <= (x.size / 16 + 5) * 2**-53 * exact
