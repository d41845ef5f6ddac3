"""The entropy coder: round trips, two decoders that agree, known bytes, hostile bytes, and how near the entropy."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.checkpoints import coder
from assay.checkpoints.coder import LARGEST, decode, encode
from assay.core.errors import InputError
from assay_verify import coder as second
from assay_verify.outcome import Rejected

small = st.integers(-3, 3)
integers = st.one_of(small, st.integers(-LARGEST, LARGEST), st.sampled_from([LARGEST, -LARGEST, 0]))


@given(values=st.lists(integers, max_size=300), signed=st.booleans())
@settings(max_examples=150, deadline=None)
def test_both_decoders_give_back_what_was_coded(values, signed):
    array = np.array(values, np.int64) if signed else np.abs(np.array(values, np.int64))
    data = encode(array, signed=signed)
    assert decode(data, array.size, signed=signed).tolist() == array.tolist()
    assert second.decode(data, array.size, signed) == array.tolist()


@given(value=integers, count=st.integers(1, 5000))
@settings(max_examples=40, deadline=None)
def test_one_symbol_costs_next_to_nothing(value, count):
    data = encode(np.full(count, abs(value)), signed=False)
    assert decode(data, count, signed=False).tolist() == [abs(value)] * count
    if value in range(8):
        assert len(data) < 24


VECTORS = [
    ([], True, "0000"),
    ([0, 0, 0, 0], True, "000101"),
    (
        [0, 1, -1, 2, 0, 0, -300, 5, 70000, 1 - (1 << 23)],
        True,
        "00180d0901010000000000010000000000000001000000000001c17bdf3815170f3c62090b00",
    ),
    ([15, 3, 3, 4, 0, 9, 15, 8, 7], False, "00050100090911fd84ad4e0eea1400"),
]


@pytest.mark.parametrize(("values", "signed", "stated"), VECTORS)
def test_known_answers(values, signed, stated):
    """Bytes that any machine must write and read: no order of bytes and no float of the platform enters."""
    assert encode(np.array(values, np.int32), signed=signed).hex() == stated
    assert decode(bytes.fromhex(stated), len(values), signed=signed).tolist() == values
    assert second.decode(bytes.fromhex(stated), len(values), signed) == values


@pytest.mark.parametrize(
    ("bits", "factor", "detail", "stated"),
    [
        (2, 1, 0, "140fbdcfa5958c59"),
        (6, 1, 0, "3cf5ecd753454b74"),
        (10, 1, 0, "96c72581ff4118b6"),
        (22, 37, 2, "de1fae125effabdb"),
    ],
)
def test_known_digests_of_long_streams(bits, factor, detail, stated):
    """Many integers of every size and both signs, so that places in buckets are many too, and their order tells."""
    n = np.arange(20_000, dtype=np.int64)
    values = factor * ((n * n * 7919 % 99991) % (1 << bits)) * np.where(n % 3, 1, -1) * (n % 5 % 2)
    data = encode(values, signed=True)
    assert data[0] == detail
    assert hashlib.sha256(data).hexdigest()[:16] == stated
    assert decode(data, n.size, signed=True).tolist() == values.tolist()
    assert encode(values.repeat(2)[::2], signed=True) == data


@given(data=st.binary(max_size=60), count=st.integers(0, 400), signed=st.booleans())
@settings(max_examples=400, deadline=None)
def test_hostile_bytes_are_refused_by_both_or_read_alike(data, count, signed):
    try:
        found = decode(data, count, signed=signed).tolist()
    except InputError:
        found = None
    try:
        assert second.decode(data, count, signed) == found
    except Rejected:
        assert found is None


@given(values=st.lists(integers, min_size=1, max_size=60), at=st.integers(0), bit=st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_a_flipped_bit_is_never_the_same_integers(values, at, bit):
    array = np.array(values)
    data = bytearray(encode(array, signed=True))
    data[at % len(data)] ^= 1 << bit
    for read in (
        lambda: decode(bytes(data), array.size, signed=True),
        lambda: second.decode(bytes(data), array.size, True),
    ):
        try:
            found = read()
        except (InputError, Rejected):
            continue
        assert len(found) == array.size


def test_a_bomb_takes_no_more_than_its_count():
    start = time.perf_counter()
    with pytest.raises(InputError):
        decode(bytes([0, 255]) + bytes([255]) * 255 + b"\1" * 4, 1 << 20, signed=True)
    assert decode(bytes([0, 1, 1]), 1 << 20, signed=True).size == 1 << 20
    assert time.perf_counter() - start < 2


def test_what_cannot_be_coded_says_so():
    for values, signed in (([LARGEST + 1], True), ([-LARGEST - 1], True), ([-1], False)):
        with pytest.raises(InputError):
            encode(np.array(values), signed=signed)


@pytest.mark.parametrize("width", [0.3, 1.0, 4.0, 40.0])
def test_near_the_entropy(width):
    draw = np.random.default_rng(3)
    values = np.rint(draw.standard_normal(20_000) * width).astype(np.int64)
    _, counts = np.unique(values, return_counts=True)
    entropy = float((counts * np.log2(values.size / counts)).sum()) / 8
    assert len(encode(values, signed=True)) < 1.012 * entropy + 40


def test_frequencies_are_whole_and_whole_alone():
    for table in (bytes([1]), bytes([0, 255, 3]), bytes(range(1, 177))):
        found = coder.frequencies(table)
        assert sum(found) == 1 << 24
        assert min(found) >= 1
