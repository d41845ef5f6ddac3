"""Looking beyond an instance type's ranges: what it takes to break a premise that the ranges imply.

A range says where an audit proposes, and usually repeats what a premise says.  Drop the premise, and the range still
stands in its place; so the fields that the premise speaks of are widened, and no others.
"""

from __future__ import annotations

import dataclasses
import random
import typing
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Annotated, Any

from assay.audits.space import Leaf, Value, fields_of, has_strategy, leaves, random_shape, shapes
from assay.audits.space import propose as build
from assay.audits.tracing import truth_of
from assay.core.claim import Claim, Premise
from assay.core.instance import Field, Length, Range
from assay.core.number import Truth

PROBES = 200
"""Instances by which it is judged whether a premise can be broken."""

Place = tuple[type, str]
"""A field: the type that declares it, and its name."""


def dropped(claim: Claim, names: Sequence[str]) -> Claim:
    """The claim without these premises, over instances that can break them.

    >>> from assay.missions._template.claims import amgm
    >>> amgm.instance.__annotations__["values"]
    'Annotated[tuple[Fraction, ...], Length(1, 5), Range(0, 8)]'
    >>> free = dropped(amgm, ["all non-negative"])
    >>> free.premises, fields_of(free.instance)[0].range
    ((), Range(low=-8, high=16, open_low=False, open_high=False))
    """
    rest = claim.without(*names)
    places: set[Place] = set()
    for premise in claim.premises:
        if premise.name in names and premise.check is not None:
            places |= implying(claim.instance, premise)
    return dataclasses.replace(rest, instance=widened(claim.instance, frozenset(places))) if places else rest


def implying(kind: type, premise: Premise) -> set[Place]:
    """The fields whose ranges keep the premise from being broken; none where it can be, or widening does not help."""
    if not has_strategy(kind) or _breakable(kind, premise):
        return set()
    every = dict.fromkeys(_places(kind))
    alone = {place for place in every if _breakable(widened(kind, frozenset([place])), premise)}
    if alone or not _breakable(widened(kind, frozenset(every)), premise):
        return alone
    return set(every)


def _breakable(kind: type, premise: Premise) -> bool:
    return any(truth_of(premise, instance) is Truth.FALSE for instance in _probes(kind))


def _probes(kind: type) -> Iterator[Any]:
    """Every small shape, then random ones; a third of them plain, half of the others' values corners."""
    rng = random.Random(0)
    small = [s for s in shapes(kind) if len(leaves(kind, s)) <= 40]
    for i in range(PROBES):
        shape = small[i] if i < len(small) else random_shape(kind, rng)
        plain = i % 3 == 0
        values = [leaf.special()[0] if plain else _any_value(leaf, rng) for leaf in leaves(kind, shape)]
        instance = build(kind, shape, values)
        if instance is not None:
            yield instance


def _any_value(leaf: Leaf, rng: random.Random) -> Value:
    return rng.choice(leaf.special()) if rng.random() < 0.5 else leaf.at(rng.random())


def _places(kind: type) -> Iterator[Place]:
    for field in fields_of(kind):
        if dataclasses.is_dataclass(field.kind):
            yield from _places(field.kind)
        if _wider(field) != (field.range, field.length):
            yield kind, field.name


def _wider(field: Field) -> tuple[Range | None, Length | None]:
    """Its range by its own width on either side, ends included; a length that varies down to 0."""
    bounds, length = field.range, field.length
    if bounds is not None and field.kind in (int, Fraction):
        span = bounds.high - bounds.low
        bounds = Range(bounds.low - span, bounds.high + span)
    if length is not None and length.low < length.high:
        length = Length(0, length.high)
    return bounds, length


@cache
def widened(kind: type, places: frozenset[Place]) -> type:
    """A subtype of `kind` of the same name, with the ranges of these fields widened, at any depth."""
    changes: list[tuple[str, Any]] = []
    for field in fields_of(kind):
        inner = widened(field.kind, places) if dataclasses.is_dataclass(field.kind) else field.kind
        bounds, length = _wider(field) if (kind, field.name) in places else (field.range, field.length)
        if (inner, bounds, length) == (field.kind, field.range, field.length):
            continue
        hint: Any = typing.cast(Any, inner) if length is None else tuple[inner, ...]  # type: ignore[valid-type]
        for note in (bounds, length):
            hint = hint if note is None else Annotated[hint, note]
        changes.append((field.name, hint))
    if not changes:
        return kind
    namespace = {"__doc__": kind.__doc__, "__module__": kind.__module__}
    return dataclasses.make_dataclass(kind.__name__, changes, bases=(kind,), namespace=namespace, frozen=True)
