"""Our DEFLATE streams are read by zlib, and are no longer than its own Huffman-only streams by much."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.checkpoints.deflate import deflate


def inflated(packed: bytes) -> bytes:
    decoder = zlib.decompressobj(-15)
    out = decoder.decompress(packed)
    assert decoder.eof
    assert not decoder.unused_data
    return out


def huffman_only(stream: np.ndarray, strategy: int) -> int:
    coder = zlib.compressobj(6, zlib.DEFLATED, -15, 9, strategy)
    return len(coder.compress(stream.tobytes()) + coder.flush())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 255), st.integers(1, 700)), min_size=1, max_size=20))
def test_runs_of_any_length_come_back(runs) -> None:
    stream = np.concatenate([np.full(length, value, np.uint8) for value, length in runs])
    packed = deflate(stream, 10**9)
    assert inflated(packed) == stream.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    size=st.integers(1, 3000),
    values=st.integers(1, 256),
    sparsity=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
)
def test_noise_of_any_kind_comes_back(seed, size, values, sparsity) -> None:
    rng = np.random.default_rng(seed)
    stream = rng.integers(0, values, size).astype(np.uint8)
    stream[rng.random(size) < sparsity] = 7
    assert inflated(deflate(stream, 10**9)) == stream.tobytes()


def test_code_lengths_are_limited_where_huffman_would_go_deeper() -> None:
    """Fibonacci counts want a code of 20 bits; ours stops at 12."""
    counts = [1, 1]
    while len(counts) < 22:
        counts.append(counts[-1] + counts[-2])
    stream = np.repeat(np.arange(22, dtype=np.uint8), counts)
    stream = np.random.default_rng(0).permutation(stream)
    packed = deflate(stream, 10**9)
    assert inflated(packed) == stream.tobytes()
    assert len(packed) < 1.01 * huffman_only(stream, zlib.Z_HUFFMAN_ONLY)


@pytest.mark.parametrize("kind", ["pairs", "exponents", "sparse", "skewed", "zeros"])
def test_as_small_as_zlib(kind: str) -> None:
    rng = np.random.default_rng(1)
    pair = rng.normal(7, 2.2, (2, 50_000)).round().clip(0, 14).astype(np.uint8)
    stream = {
        "pairs": pair[0] | pair[1] << 4,
        "exponents": (rng.standard_normal(50_000).astype(np.float32).view(np.uint32) >> 24).astype(np.uint8),
        "sparse": np.where(rng.random(50_000) < 0.05, rng.integers(0, 256, 50_000), 0).astype(np.uint8),
        "skewed": np.minimum(rng.geometric(0.5, 50_000) ** 2, 255).astype(np.uint8),
        "zeros": np.zeros(50_000, np.uint8),
    }[kind]
    packed = deflate(stream, 10**9)
    assert inflated(packed) == stream.tobytes()
    best = min(huffman_only(stream, strategy) for strategy in (zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE))
    assert len(packed) <= 1.01 * best


def test_no_stream_when_there_is_no_room() -> None:
    stream = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    packed = deflate(stream, 10**9)
    assert deflate(stream, len(packed)) is None
    assert deflate(stream, len(packed) + 1) == packed
    assert deflate(stream, 0) is None
