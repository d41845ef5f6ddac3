"""The corner attack: the lattice of boundary and special values, degenerate shapes and ties.

Where the instance space is finite and small, it simply tries everything.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from assay.audits.space import Leaf, Shape, Value, everything, leaves, random_shape, shapes
from assay.audits.space import propose as build
from assay.audits.target import Target

UNIFORM_LIMIT = 300
LATTICE_LIMIT = 3000
LATTICE_LEAVES = 6
STALE_LIMIT = 3000


class Corner:
    """In turn: uniform instances of every shape, the full lattice of small shapes, random corners; plain values first."""

    def __init__(self, target: Target, rng: random.Random) -> None:
        self._target, self._rng = target, rng
        self._kind = target.claim.instance
        self._proposals = self._propose()
        self._pending: Any = None

    def run(self) -> None:
        """Propose corners; returns when a finite space is exhausted or nothing new turns up."""
        while True:
            if self._pending is None:
                self._pending = next(self._proposals, None)
                if self._pending is None:
                    return
            self._target.consider(self._pending)
            self._pending = None

    def _propose(self) -> Iterator[Any]:
        whole = everything(self._kind)
        if whole is not None:
            yield from whole
            self._target.exhausted = True
            return
        yield from _in_turn(self._all_uniform(), self._all_lattices(), self._random())

    def _all_uniform(self) -> Iterator[Any]:
        for shape in shapes(self._kind):
            yield from self._instances(shape, self._uniform(shape))

    def _all_lattices(self) -> Iterator[Any]:
        for shape in shapes(self._kind):
            if len(leaves(self._kind, shape)) <= LATTICE_LEAVES:
                yield from self._instances(shape, self._lattice(shape))

    def _instances(self, shape: Shape, rows: Iterator[Sequence[Value]]) -> Iterator[Any]:
        for values in rows:
            instance = build(self._kind, shape, values)
            if instance is not None:
                yield instance

    def _uniform(self, shape: Shape) -> Iterator[Sequence[Value]]:
        """Every field constant, over the product of its special values, plainest first."""
        parts = leaves(self._kind, shape)
        distinct = {(leaf.name, leaf.kind, leaf.range): leaf for leaf in parts}
        keys = list(distinct)
        for choice in _by_plainness([distinct[k].special() for k in keys], UNIFORM_LIMIT):
            value = dict(zip(keys, choice, strict=True))
            yield [value[leaf.name, leaf.kind, leaf.range] for leaf in parts]

    def _lattice(self, shape: Shape) -> Iterator[Sequence[Value]]:
        yield from _by_plainness([leaf.special() for leaf in leaves(self._kind, shape)], LATTICE_LIMIT)

    def _random(self) -> Iterator[Any]:
        """Endless random corners, every second value tied to the one before, until nothing new turns up."""
        stale = 0
        while stale < STALE_LIMIT:
            shape = random_shape(self._kind, self._rng)
            values: list[Value] = []
            before: Leaf | None = None
            for leaf in leaves(self._kind, shape):
                tie = before is not None and before.range is leaf.range and self._rng.random() < 0.5
                values.append(values[-1] if tie else self._rng.choice(leaf.special()))
                before = leaf
            instance = build(self._kind, shape, values)
            stale = stale + 1 if instance is None or self._target.has_seen(instance) else 0
            if instance is not None:
                yield instance


def _in_turn(*sources: Iterator[Any]) -> Iterator[Any]:
    """One of each, until all are exhausted."""
    left = list(sources)
    while left:
        for source in list(left):
            try:
                yield next(source)
            except StopIteration:
                left.remove(source)


def _by_plainness(choices: Sequence[Sequence[Value]], limit: int) -> Iterator[Sequence[Value]]:
    """The product of `choices` in order of the sum of indices, at most `limit` of them."""
    count = 0
    for total in range(sum(len(c) - 1 for c in choices) + 1):
        for indices in _summing_to(total, [len(c) for c in choices]):
            yield [c[i] for c, i in zip(choices, indices, strict=True)]
            count += 1
            if count >= limit:
                return


def _summing_to(total: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not sizes:
        if total == 0:
            yield ()
        return
    for first in range(min(total, sizes[0] - 1) + 1):
        for rest in _summing_to(total - first, sizes[1:]):
            yield (first, *rest)
