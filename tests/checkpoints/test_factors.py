"""Keep thresholds by row and column: exact integers, and blocks that survive the round trip."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.checkpoints import codec
from assay.checkpoints.factors import CLASSES, FULL, Factors, factors_from, grid, log_codes
from assay.core.errors import InputError
from assay.missions.dare.model import phi
from assay.numerics.philox import key_for, words


def factors(rows: int, columns: int, seed: int = 0, **changes) -> Factors:
    draw = np.random.default_rng(seed)
    fields = {
        "row_codes": draw.integers(0, CLASSES, rows).astype(np.uint8),
        "column_codes": draw.integers(0, CLASSES, columns).astype(np.uint8),
        "row_grid": (FULL - 1, 3_500_000_000),
        "column_grid": (2_400_000_000, 3_900_000_000),
        "shift": 32,
        "floor": 20_000_000,
    }
    return Factors(**{**fields, **changes})


def scheme(bits: int, made: Factors, seed: int = 5, span: int = 97) -> codec.Scheme:
    return codec.Scheme(bits, 0, 1.0, key_for(seed, "w"), span, factors=made)


def pair(rows: int, columns: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    base = draw.standard_normal((rows, columns)).astype(np.float32)
    return base, base + (0.01 * draw.standard_normal((rows, columns))).astype(np.float32)


def dense_thresholds(made: Factors) -> np.ndarray:
    return made.thresholds[made.row_codes[:, None], made.column_codes[None, :]]


# The definition ---------------------------------------------------------------------------------------------


@given(
    st.integers(0, FULL - 1), st.integers(0, FULL), st.integers(0, FULL - 1), st.integers(0, FULL),
    st.integers(0, 63), st.integers(1, FULL),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_thresholds_are_the_integers_of_the_definition(top, ratio, other_top, other_ratio, shift, floor):
    codes = np.arange(CLASSES, dtype=np.uint8)
    made = Factors(codes, codes, (top, ratio), (other_top, other_ratio), shift, floor)
    for r in (0, 1, 7, 15):
        for c in (0, 3, 15):
            f, g = top, other_top
            for _ in range(r):
                f = f * ratio // 2**32
            for _ in range(c):
                g = g * other_ratio // 2**32
            assert int(made.thresholds[r, c]) == min(2**32, max(floor, f * g // 2**shift))


def vector_block() -> tuple[np.ndarray, np.ndarray, Factors]:
    """A block made of integers alone, so that no generator or library can change it."""
    codes = (np.arange(6) * 5 % CLASSES).astype(np.uint8), (np.arange(50) * 3 % CLASSES).astype(np.uint8)
    made = Factors(*codes, (FULL - 1, 3_500_000_000), (2_400_000_000, 3_900_000_000), 32, 20_000_000)
    delta = ((np.arange(300) * 7919 % 1009 - 504) / 65536).astype(np.float32).reshape(6, 50)
    return np.zeros((6, 50), np.uint32), delta.view(np.uint32), made


VECTORS = [
    (16, 27, "f8f150845b3c373e", "d5f0afcb8e667b6e"),
    (8, 27, "f8f150845b3c373e", "f31e8bb024088914"),
    (4, 27, "f8f150845b3c373e", "854f18859b051acd"),
    (3, 27, "f8f150845b3c373e", "434d0833e33f578e"),
    (2, 27, "f8f150845b3c373e", "758b3f62df8d1a1a"),
]
"""Bits, survivors, and the first 16 digits of sha256 of positions (int32) and of values (float32)."""


def test_known_thresholds_and_survivors_never_change():
    """Another machine or another version must find these."""
    base, finetuned, made = vector_block()
    assert [int(t) for t in made.thresholds[2, :4]] == [1593777192, 1447212660, 1314126275, 1193278579]
    page = (Path(__file__).parents[2] / "docs" / "reference" / "block-codec.md").read_text(encoding="utf-8")
    assert ", ".join(str(int(made.thresholds[10, c])) for c in (0, 3, 6, 9)) in page
    for bits, survivors, positions, values in VECTORS:
        payload = codec.encode_block(base, finetuned, "F32", 0, scheme(bits, made)).payload
        index, value = codec.decode_block(payload, 0, 300, scheme(bits, made))
        assert index.size == survivors
        digests = [
            hashlib.sha256(x.astype(t).tobytes()).hexdigest()[:16]
            for x, t in ((index, "<i4"), (value, "<f4"))
        ]
        assert digests == [positions, values]


@given(st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_codes_are_within_half_a_step_of_the_logarithm(means):
    codes, largest, ratio = log_codes(np.array(means))
    assert 0 < ratio <= 1
    for value, code in zip(means, codes, strict=True):
        if value > largest * 2.0**-60 and ratio < 1:
            assert abs(np.log(value / largest) - code * np.log(ratio)) <= -0.5001 * np.log(ratio) + 1e-9


@given(st.floats(1e-6, 8), st.floats(0.3, 1), st.floats(0.3, 1), st.floats(1e-7, 1))
@settings(max_examples=60, deadline=None)
def test_factors_from_real_numbers_keep_what_was_asked(top, row_ratio, column_ratio, floor):
    codes = np.arange(CLASSES, dtype=np.uint8)
    made = factors_from(codes, codes, row_ratio, column_ratio, top, floor)
    r, c = np.indices((CLASSES, CLASSES))
    wanted = np.minimum(1, np.maximum(floor, top * row_ratio**r * column_ratio**c))
    np.testing.assert_allclose(made.thresholds / FULL, wanted, rtol=1e-4, atol=2**-27)


def test_a_record_gives_the_factors_back():
    made = factors(7, 5)
    again = Factors.from_record(made.record(), 7, 5)
    assert again.record() == made.record()
    np.testing.assert_array_equal(again.thresholds, made.thresholds)
    assert made.mean_keep == pytest.approx(float(dense_thresholds(made).mean()) / FULL, rel=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"row_codes": "0g00000"}, {"row_codes": "000"}, {"row_codes": None}, {"column_codes": "00000٣"},
        {"row_grid": [1]}, {"row_grid": [1, 2.5]}, {"row_grid": [-1, 2]}, {"row_grid": [2**32, 2]},
        {"column_grid": [1, 2**32 + 1]}, {"shift": 64}, {"shift": -1}, {"shift": "1"}, {"shift": True},
        {"floor": 0}, {"floor": 2**32 + 1}, {"floor": None},
    ],
)  # fmt: skip
def test_malformed_records_are_refused(change):
    with pytest.raises(InputError):
        Factors.from_record(factors(7, 5).record() | change, 7, 5)


def test_grids_fall():
    assert grid(FULL - 1, FULL // 3) == sorted(grid(FULL - 1, FULL // 3), reverse=True)


# Blocks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [16, 8, 4, 3, 2])
@pytest.mark.parametrize("dtype", ["F32", "F64", "BF16"])
def test_a_block_is_the_plain_definition(bits, dtype):
    """Mask, codes, values and moments against a few lines that follow the reference page."""
    made = factors(9, 31)
    base, finetuned = pair(9, 31)
    if dtype == "F64":
        base, finetuned = base.astype(np.float64), finetuned.astype(np.float64)
    if dtype == "BF16":
        base, finetuned = (
            x.view(np.uint32) & np.uint32(0xFFFF0000) for x in (base, np.float32(1.5) * finetuned)
        )
        base, finetuned = base.view(np.float32), finetuned.view(np.float32)
    raw = [
        x.view(np.uint64) if dtype == "F64" else
        (x.view(np.uint32) >> 16).astype(np.uint16) if dtype == "BF16" else x.view(np.uint32)
        for x in (base, finetuned)
    ]  # fmt: skip
    s = scheme(bits, made)
    weight = np.random.default_rng(3).random(31)
    block = codec.encode_block(*raw, dtype, 0, s, weight)
    index, value = codec.decode_block(block.payload, 0, base.size, s)

    d = (finetuned - base).astype(np.float64).reshape(-1)
    u = words(s.key, 0, d.size).astype(np.float64)
    t = dense_thresholds(made).reshape(-1).astype(np.float64)
    k = t / FULL
    np.testing.assert_array_equal(index, np.flatnonzero(u < t))
    low, high = neighbours(np.abs(d))
    step = high - low
    variance = (high - np.abs(d)) * (np.abs(d) - low)
    size = np.where(u * step < (np.abs(d) - low) * t, high, low) / k
    if bits < 16:
        levels = 2 ** (bits - 1) - 1
        tops = np.array([neighbours(np.abs(d[i : i + 97]).max())[1] for i in range(0, d.size, 97)])
        top = tops[np.arange(d.size) // 97]
        a = np.abs(d) * (levels / top)
        level = np.floor(a)
        step, theta = top / levels, a - level
        variance = theta * (1 - theta) * step**2
        size = np.minimum(level + (u < theta * t), levels) * top / (levels * k)
    decoded = np.where(u < t, np.sign(d) * size, 0).astype(np.float32)
    np.testing.assert_array_equal(value, decoded[index])

    stats, w = block.stats, np.tile(weight, 9)

    def rows(x):
        return (w * x).reshape(9, 31).sum(axis=1)

    np.testing.assert_allclose(stats.row_energy, rows(d * d), rtol=1e-12)
    np.testing.assert_allclose(stats.row_quantiser_variance, rows(variance), rtol=1e-9)
    np.testing.assert_allclose(stats.row_quantiser_proxy, rows(step**2 / 4), rtol=1e-12)
    np.testing.assert_allclose(stats.row_realised, rows((d - decoded.astype(np.float64)) ** 2), rtol=1e-12)
    np.testing.assert_allclose(stats.row_variance, rows((d * d * (1 - k) + variance) / k), rtol=1e-9)
    proxy = (phi(keep_prob=k) * d * d / 2 + step**2 / 4) / k**2
    np.testing.assert_allclose(stats.row_proxy, rows(proxy), rtol=1e-12)
    assert stats.kept == index.size
    assert stats.changed == np.count_nonzero(d)


def neighbours(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bfloat16 numbers next to each x >= 0."""
    near = np.asarray(x, np.float64).astype(np.float32)
    bits = (near.view(np.uint32) - (near > x)) >> 16
    low = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    up = ((bits + (low < x)).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return low, up


def test_equal_factors_are_the_uniform_scheme():
    base, finetuned = (x.view(np.uint32) for x in pair(40, 300))
    threshold = FULL // 10
    codes = np.zeros(40, np.uint8), np.zeros(300, np.uint8)
    made = Factors(*codes, (0, 0), (0, 0), 0, threshold)
    for bits in (16, 4, 2):
        plain = codec.Scheme(bits, threshold, threshold / FULL, key_for(5, "w"), 640)
        drawn = codec.Scheme(bits, 0, 1.0, key_for(5, "w"), 640, factors=made)
        one, two = (codec.encode_block(base, finetuned, "F32", 0, s) for s in (plain, drawn))
        assert one.payload == two.payload
        for left, right in zip(
            codec.decode_block(one.payload, 0, 12000, plain),
            codec.decode_block(two.payload, 0, 12000, drawn),
            strict=True,
        ):
            np.testing.assert_array_equal(left, right)


def test_blocks_of_a_tensor_are_parts_of_the_whole():
    made = factors(30, 64)
    base, finetuned = (x.view(np.uint32) for x in pair(30, 64))
    s = scheme(16, made)
    whole = codec.decode_block(codec.encode_block(base, finetuned, "F32", 0, s).payload, 0, 30 * 64, s)
    parts = []
    for start, stop in ((0, 7), (7, 8), (8, 30)):
        payload = codec.encode_block(base[start:stop], finetuned[start:stop], "F32", 64 * start, s).payload
        index, value = codec.decode_block(payload, 64 * start, 64 * (stop - start), s)
        parts.append((index + 64 * start, value))
    for number in (0, 1):
        np.testing.assert_array_equal(whole[number], np.concatenate([part[number] for part in parts]))


def test_survivors_are_unbiased_over_the_words():
    """Average over seeds against the delta, in units of the standard error of each entry."""
    made = factors(4, 25, floor=FULL // 3)
    base, finetuned = pair(4, 25)
    d = (finetuned - base).astype(np.float64).reshape(-1)
    for bits in (16, 3):
        total, square, runs = np.zeros(100), np.zeros(100), 1500
        for seed in range(runs):
            s = scheme(bits, made, seed)
            block = codec.encode_block(base.view(np.uint32), finetuned.view(np.uint32), "F32", 0, s)
            index, value = codec.decode_block(block.payload, 0, 100, s)
            dense = np.zeros(100)
            dense[index] = value
            total += dense
            square += dense**2
        mean = total / runs
        error = np.sqrt((square / runs - mean**2) / runs)
        assert np.abs((mean - d) / error).max() < 4.5
        variance = (square / runs - d**2).reshape(4, 25).sum(axis=1)
        np.testing.assert_allclose(variance, block.stats.row_variance, rtol=0.2)


def test_a_block_outside_its_matrix_is_refused():
    made = factors(6, 50)
    base = np.zeros((6, 50), np.uint32)
    for rows, start in ((6, 50), (6, 1), (2, 250)):
        with pytest.raises(InputError, match="does not lie"):
            codec.encode_block(base[:rows], base[:rows], "F32", start, scheme(16, made))
    payload = codec.encode_block(base, base, "F32", 0, scheme(16, made)).payload
    with pytest.raises(InputError):
        codec.decode_block(payload, 0, 299, scheme(16, made))
    with pytest.raises(InputError, match="does not lie"):
        codec.decode_block(payload, 50, 300, scheme(16, made))
    with pytest.raises(InputError, match="not both"):
        codec.Scheme(16, 0, 1.0, (1, 2), stored_mask=True, factors=made)


def test_another_plan_is_noticed_by_the_count():
    base, finetuned = (x.view(np.uint32) for x in pair(6, 50))
    payload = codec.encode_block(base, finetuned, "F32", 0, scheme(4, factors(6, 50))).payload
    with pytest.raises(InputError, match="survivors"):
        codec.decode_block(payload, 0, 300, scheme(4, factors(6, 50, seed=9)))


def test_thresholds_are_exact_rationals():
    made = factors(2, 2)
    for threshold in made.thresholds.reshape(-1):
        assert Fraction(float(threshold) / FULL) == Fraction(int(threshold), FULL)
