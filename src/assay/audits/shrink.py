"""Shrinking: from a confirmed counterexample to one with few, small, round rationals.

Every step is judged by `evaluate` in exact arithmetic, so what comes out is as firm as what went in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from assay.audits.space import Leaf, Value, cuts, flatten, leaves, lengths_of, without_index
from assay.audits.space import propose as build
from assay.audits.target import SEARCH_PRECISION
from assay.core.claim import Claim
from assay.core.number import Strength, Truth
from assay.core.verdict import Counterexample, evaluate

DENOMINATORS = (
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    12,
    16,
    20,
    25,
    32,
    50,
    64,
    100,
    200,
    256,
    500,
    1000,
    4096,
    10**4,
    10**5,
    10**6,
)


def cost(instance: Any) -> tuple[int, float]:
    """What shrinking makes small: the number of values, then how much there is to write down.

    >>> from assay.missions._template.model import Numbers
    >>> cost(Numbers((Fraction(1),))) < cost(Numbers((Fraction(22, 7),))) < cost(Numbers((Fraction(0),) * 2))
    True
    """
    _, values = flatten(instance)
    return len(values), sum(_weight(v) for v in values)


def _weight(value: Value) -> float:
    """0 weighs 0; whole numbers weigh less than fractions, and positive ones less than negative ones."""
    if isinstance(value, str):
        return 0.0
    exact = Fraction(value)
    below = exact.denominator
    round_decimal = 0.5 if below in (10, 20, 100, 1000) else 1.0
    return math.log2(1 + abs(exact.numerator)) + 2 * round_decimal * math.log2(below) + 0.5 * (exact < 0)


def shrink(claim: Claim, counterexample: Counterexample, *, seconds: float = 2.0) -> Counterexample:
    """The simplest counterexample reached within `seconds` that is as firm as the one given."""
    deadline = time.monotonic() + seconds
    tried: set[Any] = set()
    grade = counterexample.grade

    def attempt(instance: Any) -> Counterexample | None:
        if instance is None or instance in tried or time.monotonic() > deadline:
            return None
        tried.add(instance)
        return as_counterexample(claim, instance, grade)

    best, improved = _round_off(counterexample, attempt), True
    while improved and time.monotonic() <= deadline:
        improved = False
        for candidate in plainer(best.instance):
            found = attempt(candidate)
            if found is not None:
                best, improved = found, True
                break
    return best


def plainer(instance: Any) -> Iterator[Any]:
    """Instances that cost less: one element less, one value simpler, values tied; whether they refute is not looked at."""
    for propose in (_shorter, _plainer, _tied):
        for candidate in propose(instance):
            if candidate is not None and cost(candidate) < cost(instance):
                yield candidate


def as_counterexample(claim: Claim, instance: Any, grade: str = "genuine") -> Counterexample | None:
    """The instance as a counterexample of that grade, or None where it is none."""
    try:
        verdict = evaluate(claim, instance, precision=64, max_precision=SEARCH_PRECISION)
    except Exception:  # outside of where the sides are defined: no counterexample
        return None
    if verdict.truth is not Truth.FALSE or verdict.strength is Strength.FLOAT:
        return None
    found = Counterexample(claim.id, instance, verdict)
    return found if found.grade == grade else None


Attempt = Callable[[Any], Counterexample | None]


def _round_off(best: Counterexample, attempt: Attempt) -> Counterexample:
    """All values at once to rationals of growing denominator: the first on which the violation survives."""
    kind = type(best.instance)
    shape, values = flatten(best.instance)
    for denominator in DENOMINATORS:
        rounded = [v.limit_denominator(denominator) if isinstance(v, Fraction) else v for v in values]
        if rounded == values:
            break
        parts = leaves(kind, shape)
        if all(_inside(leaf, v) for leaf, v in zip(parts, rounded, strict=True)):
            found = attempt(build(kind, shape, rounded))
            if found is not None:
                return found
    return best


def _inside(leaf: Leaf, value: Value) -> bool:
    return isinstance(value, bool | str) or value in leaf.range


def _shorter(instance: Any) -> Iterator[Any]:
    """One element less: the same index of every tuple of one length, or of a single tuple."""
    for length in sorted(lengths_of(instance), reverse=True):
        for index in range(length):
            yield without_index(instance, length, index)
    yield from cuts(instance)


def _plainer(instance: Any) -> Iterator[Any]:
    """One value made simpler."""
    kind = type(instance)
    shape, values = flatten(instance)
    for i, leaf in enumerate(leaves(kind, shape)):
        for value in _simpler(leaf, values[i]):
            yield build(kind, shape, [*values[:i], value, *values[i + 1 :]])


def _simpler(leaf: Leaf, value: Value) -> list[Value]:
    if leaf.kind is str:
        return []
    if leaf.kind is bool:
        return [False]
    exact = Fraction(value)
    wanted = [Fraction(n) for n in (0, 1, -1, 2)] + [Fraction(1, 2), abs(exact), Fraction(math.trunc(exact))]
    wanted += [Fraction(round(exact)), exact / 2, exact - 1, Fraction(leaf.range.low)]
    if leaf.kind is not int:
        wanted += [exact.limit_denominator(d) for d in DENOMINATORS]
        wanted += [1 - 1 / Fraction(round(1 / (1 - exact)))] if Fraction(1, 2) < exact < 1 else []
    inside = {v for v in wanted if v in leaf.range and _weight(v) < _weight(value)}
    whole = [v for v in inside if leaf.kind is not int or v.denominator == 1]
    return [int(v) if leaf.kind is int else v for v in sorted(whole, key=_weight)]


def _tied(instance: Any) -> Iterator[Any]:
    """All values of one field made equal to one of them."""
    kind = type(instance)
    shape, values = flatten(instance)
    parts = leaves(kind, shape)
    for name in dict.fromkeys(leaf.name for leaf in parts):
        places = [i for i, leaf in enumerate(parts) if leaf.name == name]
        for value in dict.fromkeys(values[i] for i in places) if len(places) > 1 else ():
            yield build(kind, shape, [value if i in places else v for i, v in enumerate(values)])
