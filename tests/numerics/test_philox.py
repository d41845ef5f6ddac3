"""Philox: published vectors, and words that depend on their position only."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.numerics.philox import key_for, philox4x32, words

KNOWN = [  # Random123, kat_vectors, philox4x32 with 10 rounds
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def _hex(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(counter: str, key: str, output: str) -> None:
    assert philox4x32(_hex(counter), _hex(key)) == _hex(output)


def test_words_start_with_the_known_answer() -> None:
    assert tuple(words((0, 0), 0, 4)) == _hex(KNOWN[0][2])


@settings(max_examples=60, deadline=None)
@given(
    key=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    start=st.integers(0, 2**66 - 64),
    count=st.integers(0, 40),
    stream=st.integers(0, 2**32 - 1),
)
def test_every_word_is_its_definition(key, start, count, stream) -> None:
    got = words(key, start, count, stream)
    assert got.dtype == np.uint32
    expected = []
    for i in range(start, start + count):
        counter = ((i // 4) & 0xFFFFFFFF, (i // 4) >> 32, stream, 0)
        expected.append(philox4x32(counter, key)[i % 4])
    assert got.tolist() == expected


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 500), max_size=8), start=st.integers(2**34 - 300, 2**34 + 300))
def test_chunks_join_to_the_whole(cuts, start) -> None:
    edges = [0, *sorted(cuts), 500]
    parts = [words((3, 4), start + a, b - a) for a, b in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate(parts), words((3, 4), start, 500))


def test_streams_and_keys_differ() -> None:
    a, b, c = words((1, 2), 0, 1000), words((1, 2), 0, 1000, stream=1), words((1, 3), 0, 1000)
    assert not np.any(a == b)
    assert not np.any(a == c)


def test_keys_tell_seed_and_name_apart() -> None:
    pairs = [(0, "a"), (1, "a"), (0, "b"), (1, "1a"), (11, "a"), (2**200, "a"), (0, ""), (0, "ä")]
    assert len({key_for(*pair) for pair in pairs}) == len(pairs)
    assert key_for(7, "model.layers.0.mlp.up_proj.weight") == (1559050746, 990880595)


@pytest.mark.parametrize(
    "call",
    [
        lambda: key_for(-1, "a"),
        lambda: words((0, 0), -1, 1),
        lambda: words((0, 0), 2**66, 1),
        lambda: words((0, 2**32), 0, 1),
        lambda: words((0, 0), 0, 1, stream=-1),
        lambda: philox4x32((0, 0, 0, 2**32), (0, 0)),
    ],
)
def test_out_of_range_is_refused(call) -> None:
    with pytest.raises(InputError):
        call()
