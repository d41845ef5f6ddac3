"""Repair: from an instance that breaks a premise which is an equality to a near one that satisfies it exactly.

A random instance almost never lies on a simplex, on a sphere or among the symmetric matrices.  But along many lines
through it the equality is linear, or quadratic with one root known, so that its other root is rational:

* all values of a field scaled, or shifted, by one number (weights that add up to 1, entries that add up to 0);
* one value shifted (a closed form in one unknown; a symmetric matrix, where the ties that this finds are kept);
* the chord from an instance that is known to satisfy it (a sphere: stereographic projection).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from assay.audits.space import Leaf, Shape, Value, flatten, leaves
from assay.audits.space import propose as build
from assay.audits.tracing import Miss, miss, truth_of
from assay.core.claim import Premise
from assay.core.number import Truth

MAX_LINES = 24
MAX_ANCHORS = 3
MAX_BITS = 4000
HOPELESS = 200
"""A premise whose first so many repairs all fail is left alone."""

Line = Callable[[Fraction], list[Value]]


class Repair:
    """What was learned about the equalities of one claim: which lines worked, and instances to draw chords from."""

    def __init__(self) -> None:
        self._worked: dict[tuple[str, Shape, frozenset[int]], int] = {}
        self._anchors: dict[tuple[str, Shape], list[list[Value]]] = {}
        self._tries: dict[str, tuple[int, int]] = {}
        self._learned: dict[str, int] = {}
        self._ties: dict[tuple[str, Shape], dict[int, int]] = {}

    def learn(self, premise: Premise, instance: Any) -> None:
        """An instance that satisfies the premise: the first few are kept."""
        if self._learned.get(premise.name, 0) >= 100:
            return
        self._learned[premise.name] = self._learned.get(premise.name, 0) + 1
        shape, values = flatten(instance)
        anchors = self._anchors.setdefault((premise.name, shape), [])
        if len(anchors) < MAX_ANCHORS and values not in anchors:
            anchors.append(values)

    def hopeless(self, premise: Premise) -> bool:
        """Whether repairs of this premise were tried and never worked."""
        tries, hits = self._tries.get(premise.name, (0, 0))
        return tries >= HOPELESS and hits == 0

    def repaired(self, premise: Premise, instance: Any) -> Any | None:
        """A near instance that satisfies `premise` exactly, or None.

        The premise is known to be broken, and asked again at a few points of each line.
        """
        assert premise.check is not None
        if self.hopeless(premise):
            return None
        tied = self._tied(premise, instance)
        if tied is not None:
            return tied
        missed = miss(premise.check, instance)
        if missed is None or not missed.equality or missed.difference == 0:
            return None
        found = self._along_lines(premise, instance, missed)
        if found is not None:
            self._learn_tie(premise, instance, found, missed)
        tries, hits = self._tries.get(premise.name, (0, 0))
        self._tries[premise.name] = tries + 1, hits + (found is not None)
        return found

    def _learn_tie(self, premise: Premise, before: Any, after: Any, missed: Miss) -> None:
        """Where the repair made one value equal to another that the equality speaks of, next time do so at once."""
        shape, old = flatten(before)
        new = flatten(after)[1]
        changed = [i for i in missed.involved if old[i] != new[i]]
        if len(missed.involved) == 2 and len(changed) == 1:
            (other,) = missed.involved - set(changed)
            if new[changed[0]] == new[other]:
                self._ties.setdefault((premise.name, shape), {})[changed[0]] = other

    def _tied(self, premise: Premise, instance: Any) -> Any | None:
        """The instance with all known ties made, if that is all that the premise asks."""
        shape, values = flatten(instance)
        ties = self._ties.get((premise.name, shape))
        if not ties:
            return None
        moved = build(type(instance), shape, [values[ties.get(i, i)] for i in range(len(values))])
        return moved if moved is not None and truth_of(premise, moved) is Truth.TRUE else None

    def _along_lines(self, premise: Premise, instance: Any, missed: Miss) -> Any | None:
        kind = type(instance)
        shape, values = flatten(instance)
        parts = leaves(kind, shape)
        check, gap = premise.check, missed.difference
        assert check is not None

        def at(line: Line, t: Fraction) -> Any | None:
            moved = line(t)
            return build(kind, shape, moved) if all(map(_short, moved)) else None

        def difference(line: Line, t: Fraction) -> Fraction | None:
            """Left minus right at t; None where another comparison came first, or the type refuses the values."""
            moved = at(line, t)
            left = None if moved is None else miss(check, moved)
            return left.difference if left is not None and left.equality else None

        key = premise.name, shape, missed.involved
        lines = list(self._lines(key, parts, values))[:MAX_LINES]
        first = self._worked.get(key, 0)
        for index in dict.fromkeys([min(first, len(lines) - 1), *range(len(lines))] if lines else []):
            line, start, chord = lines[index]
            root = _root(lambda t, line=line: difference(line, t), gap, start, chord)  # type: ignore[misc]
            if root is None:
                continue
            moved = line(root)
            if not all(_inside(leaf, v) for leaf, v in zip(parts, moved, strict=True)):
                continue
            found = at(line, root)
            if found is not None and _gap_closed(premise, found, missed):
                self._worked[key] = index
                return found
        return None

    def _lines(
        self, key: tuple[str, Shape, frozenset[int]], parts: list[Leaf], values: list[Value]
    ) -> Iterator[tuple[Line, Fraction, bool]]:
        """Lines through `values`, the parameter there, and whether its other end (0) is known to be a root."""
        name, shape, involved = key
        real = [
            i for i, leaf in enumerate(parts) if leaf.kind is Fraction and (i in involved or not involved)
        ]
        fields: dict[str, list[int]] = {}
        for i in real:
            fields.setdefault(parts[i].name, []).append(i)
        for places in fields.values():
            if len(places) > 1:
                yield _moved(values, places, lambda _, v, t: v * t), Fraction(1), False
                yield _moved(values, places, lambda _, v, t: v + t), Fraction(0), False
        for i in reversed(real):
            yield _moved(values, [i], lambda _, v, t: v + t), Fraction(0), False
        for anchor in self._anchors.get((name, shape), ()):
            ends = [Fraction(v) if i in real else Fraction(0) for i, v in enumerate(anchor)]
            yield (
                _moved(values, real, lambda i, v, t, ends=ends: ends[i] + t * (v - ends[i])),
                Fraction(1),
                True,
            )


def _moved(values: list[Value], places: list[int], change: Callable[..., Fraction]) -> Line:
    chosen = set(places)
    return lambda t: [change(i, Fraction(v), t) if i in chosen else v for i, v in enumerate(values)]


def _root(
    difference: Callable[[Fraction], Fraction | None], gap: Fraction, start: Fraction, chord: bool
) -> Fraction | None:
    """The root of a linear difference, or the other root of a quadratic one that vanishes at 0."""
    if chord:
        mirrored = difference(Fraction(-1))
        if mirrored is None or gap + mirrored == 0:
            return None
        return -(gap - mirrored) / (gap + mirrored)
    other = difference(start + Fraction(1, 2))
    if other is None or other == gap:
        return None
    root = start - gap / (2 * (other - gap))
    return root if root != 0 or start == 0 else None


def _gap_closed(premise: Premise, instance: Any, before: Miss) -> bool:
    """Whether that equality holds now: all of the premise does, or what it misses next is about other values."""
    if truth_of(premise, instance) is Truth.TRUE:
        return True
    assert premise.check is not None
    after = miss(premise.check, instance)
    return after is not None and (not after.equality or after.involved != before.involved)


def _short(value: Value) -> bool:
    return not isinstance(value, Fraction) or value.denominator.bit_length() <= MAX_BITS


def _inside(leaf: Leaf, value: Value) -> bool:
    return isinstance(value, bool | str) or value in leaf.range
