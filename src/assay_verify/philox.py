"""Philox4x32-10 in plain integers, and the streams that a delta draws its masks from.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).  Word i of a
stream is output word i % 4 of the counter (low half of i // 4, high half of i // 4, 0, 0).
"""

from __future__ import annotations

import hashlib

__all__ = ["key_for", "philox", "words"]

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF

Key = tuple[int, int]


def philox(c0: int, c1: int, c2: int, c3: int, key: Key) -> tuple[int, int, int, int]:
    """The four output words of one counter.

    >>> [f"{w:08x}" for w in philox(*[_LOW] * 4, (_LOW, _LOW))]
    ['408f276d', '41c83b0e', 'a20bc7c6', '6d5451fd']
    """
    k0, k1 = key
    for _ in range(10):
        a, b = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _LOW, (a >> 32) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


def key_for(seed: int, name: str) -> Key:
    """The key of a tensor's stream: two little-endian words of sha256("assay-philox-1" NUL seed NUL name)."""
    digest = hashlib.sha256(b"assay-philox-1\0" + str(seed).encode() + b"\0" + name.encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def words(key: Key, start: int, count: int) -> list[int]:
    """Words start .. start + count - 1 of the stream of `key`.

    >>> words((1, 2), 3, 2) == words((1, 2), 0, 5)[3:]
    True
    """
    out: list[int] = []
    for counter in range(start // 4, (start + count + 3) // 4):
        out += philox(counter & _LOW, counter >> 32, 0, 0, key)
    skip = start % 4
    return out[skip : skip + count]
