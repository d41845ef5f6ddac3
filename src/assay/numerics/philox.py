"""Philox4x32-10: random words that are a function of their position.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), the variant
with four 32-bit words and ten rounds.  A counter-based generator has no state: word ``i`` of a tensor's
stream is the same whether it is computed alone, in a chunk, or with the whole, by any number of workers
and in any order.  A mask drawn from it need not be stored.

The stream of a key is numbered by ``i = 0, 1, 2, ...``: word ``i`` is output word ``i % 4`` of the counter
``(lo32(i // 4), hi32(i // 4), stream, 0)``.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numba import njit
from numpy.typing import NDArray

from assay.core.errors import InputError

_MASK32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LAST_WORD = 1 << 66  # 2**64 counters of four words

Key = tuple[int, int]


def philox4x32(counter: tuple[int, int, int, int], key: Key) -> tuple[int, int, int, int]:
    """The four output words of one counter under one key, in plain integers.

    This is the definition; :func:`words` is the fast path and must agree with it.

    >>> [f"{word:08x}" for word in philox4x32((0, 0, 0, 0), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    if not all(0 <= word <= _MASK32 for word in (*counter, *key)):
        raise InputError("philox4x32 takes four counter words and two key words in 0..2**32 - 1")
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (second >> 32) ^ c1 ^ k0,
            second & _MASK32,
            (first >> 32) ^ c3 ^ k1,
            first & _MASK32,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK32, (k1 + _WEYL[1]) & _MASK32
    return c0, c1, c2, c3


def key_for(seed: int, name: str) -> Key:
    """The key of a named stream: the first 8 bytes of a sha256, as two little-endian words.

    The digest is taken of ``b"assay-philox-1\\0"``, the seed in decimal ASCII, one zero byte, and the name
    in UTF-8, so different (seed, name) pairs never share a preimage.

    >>> key_for(0, "model.embed_tokens.weight")
    (2600087823, 115338620)
    """
    if seed < 0:
        raise InputError(f"a seed is an integer >= 0, not {seed}")
    digest = hashlib.sha256(b"assay-philox-1\0%d\0" % seed + name.encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def words(key: Key, start: int, count: int, stream: int = 0) -> NDArray[np.uint32]:
    """Words ``start .. start + count - 1`` of the stream of ``key``: uint32 ``[count]``, each uniform.

    Cost: about half a nanosecond a word.  ``start`` is any integer in ``0 .. 2**66 - count``; ``stream``
    (0..2**32-1) selects one of 2**32 disjoint streams of the same key.

    >>> whole = words((1, 2), 0, 10)
    >>> bool((whole[3:8] == words((1, 2), 3, 5)).all())
    True
    >>> int(whole[5]) == philox4x32((1, 0, 0, 0), (1, 2))[1]
    True
    """
    if count < 0 or start < 0 or start + count > _LAST_WORD:
        raise InputError(
            f"no words {start} .. {start + count} in a Philox stream: they are numbered 0 .. 2**66 - 1"
        )
    if not all(0 <= word <= _MASK32 for word in (*key, stream)):
        raise InputError("a Philox key is two words, and a stream one word, in 0..2**32 - 1")
    skip = start % 4
    out = np.empty((skip + count + 3) // 4 * 4, np.uint32)
    fill_words(np.uint32(key[0]), np.uint32(key[1]), np.uint64(start // 4), np.uint32(stream), out)
    return out[skip : skip + count]


@njit(cache=True, nogil=True)
def fill_words(k0: np.uint32, k1: np.uint32, counter: np.uint64, stream: np.uint32, out: np.ndarray) -> None:
    """Fill ``out`` (uint32, size a multiple of 4) with the outputs of ``counter, counter + 1, ...``.

    The compiled core of :func:`words`, called from other compiled kernels.  64-bit lanes hold 32-bit words,
    so that each product is one widening vector multiplication.
    """
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    for block in range(out.size // 4):
        position = counter + np.uint64(block)
        c0 = position & low
        c1 = position >> half
        c2 = np.uint64(stream)
        c3 = np.uint64(0)
        a = np.uint64(k0)
        b = np.uint64(k1)
        for _ in range(10):
            first = np.uint64(0xD2511F53) * c0
            second = np.uint64(0xCD9E8D57) * c2
            c0 = (second >> half) ^ c1 ^ a
            c1 = second & low
            c2 = (first >> half) ^ c3 ^ b
            c3 = first & low
            a = (a + np.uint64(0x9E3779B9)) & low
            b = (b + np.uint64(0xBB67AE85)) & low
        out[4 * block] = np.uint32(c0)
        out[4 * block + 1] = np.uint32(c1)
        out[4 * block + 2] = np.uint32(c2)
        out[4 * block + 3] = np.uint32(c3)
