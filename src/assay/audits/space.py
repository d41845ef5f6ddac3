"""The space of instances, taken from the annotations of an instance type.

An instance is a *shape* (how long each tuple is, all the way down) and a flat list of exact *values*, one per
leaf.  Attacks work on those two and build the instance back:

>>> from assay.missions._template.model import Numbers
>>> shape, values = flatten(Numbers((Fraction(1), Fraction(2))))
>>> shape, values
((2,), [Fraction(1, 1), Fraction(2, 1)])
>>> build(Numbers, shape, values)
Numbers(values=(Fraction(1, 1), Fraction(2, 1)))
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from assay.core.errors import AssayError, InputError
from assay.core.instance import Field, Length, Range, fields

Value = Fraction | int | bool | str
Shape = tuple[Any, ...]
"""Per field: None for a number, a count for a tuple of numbers, shapes for instances and tuples of them."""

DEFAULT_RANGE = Range(-8, 8)
"""Where a number without a declared range is looked for."""

SIGNIFICANT_BITS = 20
"""Proposed reals are dyadic and this short, so that floats and rationals name the same instance."""


MAX_EVERYTHING = 50_000
"""A finite space no larger than this is tried whole."""


@dataclass(frozen=True)
class Leaf:
    """One number of an instance: the field it belongs to, its kind and its range."""

    name: str
    kind: type
    range: Range

    @property
    def span(self) -> Fraction:
        """Length of the range."""
        return Fraction(self.range.high) - self.range.low

    def special(self) -> tuple[Value, ...]:
        """Corner values, plainest first: 0, the ends, 1, -1, 1/2 and neighbours of the ends."""
        return _special(self.kind, self.range)

    def near(self, value: Fraction) -> Value:
        """The value of this leaf that is closest to `value`: inside the range, whole where it must be."""
        if self.kind is bool:
            return value >= Fraction(1, 2)
        low, high = Fraction(self.range.low), Fraction(self.range.high)
        if self.kind is int:
            return int(
                min(max(Fraction(round(value)), low + self.range.open_low), high - self.range.open_high)
            )
        nudge = self.span / 10**9
        value = min(max(value, low + nudge * self.range.open_low), high - nudge * self.range.open_high)
        rounded = shorten(value)
        return rounded if rounded in self.range else value

    def at(self, position: float, warp: str = "linear") -> Value:
        """The value at `position` in [0, 1] of the range.

        `warp` stretches the range: ``ends`` spends half of each side on the last thousandth before an end,
        ``zero`` does so around 0.  Ranges of many decades are stretched further, down to a thousandth.
        """
        low, span = self._floats
        if warp == "linear" or self.kind is not Fraction:
            return self._settle(low + span * position)
        side = 2 * position - 1  # in [-1, 1]
        if warp == "ends":
            inset = dyadic(span / 2 * 10.0 ** (-self._decades * abs(side)))
            value = self.range.low + inset if side < 0 else self.range.high - inset
            return value if value in self.range else self.near(value)
        magnitude = max(abs(low), abs(low + span)) * 10.0 ** (-self._decades * (1 - abs(side)))
        return self._settle(magnitude if side > 0 else -magnitude)

    @cached_property
    def _floats(self) -> tuple[float, float]:
        return float(self.range.low), float(self.span)

    @cached_property
    def _decades(self) -> float:
        """How many powers of ten a warp goes down from the span."""
        return max(6.0, math.log10(max(1.0, *map(abs, self._floats))) + 3)

    def _settle(self, value: float) -> Value:
        """`near`, with a short cut for reals well inside the range."""
        low, span = self._floats
        if self.kind is Fraction and low + 1e-6 * span < value < low + (1 - 1e-6) * span:
            return dyadic(value)
        return self.near(Fraction(value))

    def position(self, value: Value) -> float:
        """The inverse of the linear `at`."""
        return float((Fraction(value) - self.range.low) / self.span) if self.span else 0.0


@lru_cache(maxsize=1024)
def _special(kind: type, bounds: Range) -> tuple[Value, ...]:
    if kind is bool:
        return (False, True)
    low, high = Fraction(bounds.low), Fraction(bounds.high)
    span = high - low
    if kind is int:
        wanted = [Fraction(0), low, low + 1, high, Fraction(1), Fraction(-1), Fraction(2), Fraction(3)]
        wanted += [Fraction(int(low + span / 2)), high - 1]
    else:
        wanted = [Fraction(0), low, high, Fraction(1), Fraction(-1), Fraction(1, 2), low + span / 2]
        wanted += [end + sign * span / d for d in (100, 10, 10**6) for end, sign in ((low, 1), (high, -1))]
        wanted += [Fraction(2), Fraction(-1, 2), Fraction(1, 3), Fraction(2, 3)]
    inside = dict.fromkeys(v for v in wanted if v in bounds)
    return tuple(int(v) if kind is int else v for v in inside)


def dyadic(value: float) -> Fraction:
    """The nearest rational with `SIGNIFICANT_BITS` binary digits.

    >>> dyadic(0.5), dyadic(0.1)
    (Fraction(1, 2), Fraction(838861, 8388608))
    """
    mantissa, exponent = math.frexp(value)
    digits = round(mantissa * (1 << SIGNIFICANT_BITS))
    shift = SIGNIFICANT_BITS - exponent
    return Fraction(digits, 1 << shift) if shift >= 0 else Fraction(digits << -shift)


def shorten(value: Fraction, bits: int = SIGNIFICANT_BITS) -> Fraction:
    """The nearest dyadic with about `bits` significant bits."""
    if value.denominator.bit_length() <= bits and abs(value.numerator).bit_length() <= bits:
        return value
    exponent = bits - (abs(value.numerator).bit_length() - value.denominator.bit_length())
    scale = Fraction(2) ** exponent
    return round(value * scale) / scale


_known: dict[type, tuple[Field, ...]] = {}


def fields_of(kind: type) -> tuple[Field, ...]:
    """`fields`, which takes annotations apart at length, once per type."""
    if kind not in _known:
        _known[kind] = fields(kind)
    return _known[kind]


def _leaf(field: Field) -> Leaf:
    return Leaf(field.name, field.kind, field.range or (Range(0, 1) if field.kind is bool else DEFAULT_RANGE))


def has_strategy(kind: type) -> bool:
    """Whether every value can be proposed from annotations alone.

    Raises:
        InputError: a field is a str, and the type has no ``propose`` of its own.
    """
    if hasattr(kind, "propose"):
        return all(f.kind is not str for f in fields_of(kind))
    for field in fields_of(kind):
        if field.kind is str:
            raise InputError(
                f"the audit has no values to try for {kind.__name__}.{field.name}, a str: give {kind.__name__} a "
                "classmethod propose(cls, rng) that returns an instance"
            )
        if dataclasses.is_dataclass(field.kind) and not has_strategy(field.kind):
            return False
    return True


def leaves(kind: type, shape: Shape) -> list[Leaf]:
    """The leaves of an instance of that shape, in the order of its values."""
    result: list[Leaf] = []
    for field, part in zip(fields_of(kind), shape, strict=True):
        nested = dataclasses.is_dataclass(field.kind)
        if field.length is None:
            result += leaves(field.kind, part) if nested else [_leaf(field)]
        elif nested:
            for inner in part:
                result += leaves(field.kind, inner)
        else:
            result += [_leaf(field)] * part
    return result


def build(kind: type, shape: Shape, values: Sequence[Value]) -> Any:
    """The instance of that shape and values.

    Whatever the type's own ``__post_init__`` raises is passed on.
    """
    return _build(kind, shape, iter(values))


def _build(kind: type, shape: Shape, values: Iterator[Value]) -> Any:
    parts: list[Any] = []
    for field, part in zip(fields_of(kind), shape, strict=True):
        nested = dataclasses.is_dataclass(field.kind)
        if field.length is None:
            parts.append(_build(field.kind, part, values) if nested else next(values))
        elif nested:
            parts.append(tuple([_build(field.kind, inner, values) for inner in part]))
        else:
            parts.append(tuple(itertools.islice(values, part)))
    return kind(*parts)


def propose(kind: type, shape: Shape, values: Sequence[Value]) -> Any | None:
    """`build`, or None where the type itself refuses these values."""
    try:
        return build(kind, shape, values)
    except (AssayError, ValueError):
        return None


def everything(kind: type) -> Iterator[Any] | None:
    """All instances, where they are finitely many and no more than `MAX_EVERYTHING`; None otherwise."""
    lengths = _all_lengths(kind)
    if lengths is None:
        return None
    choices: list[tuple[Shape, list[range]]] = []
    total = 0
    for counts in itertools.product(*lengths):
        shape = _shape(kind, iter(counts))
        ranges: list[range] = []
        for leaf in leaves(kind, shape):
            if leaf.kind is Fraction:
                return None
            low = int(leaf.range.low) + leaf.range.open_low
            ranges.append(range(low, int(leaf.range.high) - leaf.range.open_high + 1))
        size = math.prod(len(r) for r in ranges)
        total += size
        if total > MAX_EVERYTHING:
            return None
        choices.append((shape, ranges))
    return _instances(kind, choices)


def _instances(kind: type, choices: list[tuple[Shape, list[range]]]) -> Iterator[Any]:
    for shape, ranges in choices:
        kinds = [leaf.kind for leaf in leaves(kind, shape)]
        for values in itertools.product(*ranges):
            row = [bool(v) if k is bool else v for k, v in zip(kinds, values, strict=True)]
            instance = propose(kind, shape, row)
            if instance is not None:
                yield instance


def lengths_of(instance: Any) -> set[int]:
    """How long the tuples of an instance are, all the way down; empty ones left out."""
    found: set[int] = set()
    for field in fields_of(type(instance)):
        value = getattr(instance, field.name)
        if field.length is not None:
            found.add(len(value))
        if dataclasses.is_dataclass(field.kind):
            for item in value if field.length is not None else (value,):
                found |= lengths_of(item)
    return found - {0}


def without_index(instance: Any, length: int, index: int) -> Any | None:
    """The instance with element `index` cut from every tuple of that length, at every depth.

    None where the type refuses what is left.
    """
    changes: dict[str, Any] = {}
    for field in fields_of(type(instance)):
        value = getattr(instance, field.name)
        if dataclasses.is_dataclass(field.kind):
            if field.length is None:
                value = without_index(value, length, index)
            else:
                value = tuple(without_index(item, length, index) for item in value)
        if field.length is not None and len(value) == length > field.length.low:
            value = value[:index] + value[index + 1 :]
        if value is None or (isinstance(value, tuple) and None in value):
            return None
        changes[field.name] = value
    return replaced(instance, **changes)


def cuts(instance: Any) -> Iterator[Any | None]:
    """Every instance with one element less in one of its tuples, at any depth."""
    for field in fields_of(type(instance)):
        value = getattr(instance, field.name)
        if field.length is not None and len(value) > field.length.low:
            for index in range(len(value)):
                yield replaced(instance, **{field.name: value[:index] + value[index + 1 :]})
        if dataclasses.is_dataclass(field.kind):
            items = value if field.length is not None else (value,)
            for index, item in enumerate(items):
                for less in cuts(item):
                    whole = less if field.length is None else (*items[:index], less, *items[index + 1 :])
                    yield None if less is None else replaced(instance, **{field.name: whole})


def replaced(instance: Any, **changes: Any) -> Any | None:
    """`dataclasses.replace`, or None where the type refuses the values."""
    try:
        return dataclasses.replace(instance, **changes)
    except (AssayError, ValueError):
        return None


def _all_lengths(kind: type) -> list[range] | None:
    """Every length of every tuple; None where a tuple holds instances, whose shapes may differ."""
    result: list[range] = []
    for field in fields_of(kind):
        nested = dataclasses.is_dataclass(field.kind)
        if field.length is not None:
            if nested:
                return None
            result.append(range(field.length.low, field.length.high + 1))
        elif nested:
            inner = _all_lengths(field.kind)
            if inner is None:
                return None
            result += inner
    return result if math.prod(len(r) for r in result) <= MAX_EVERYTHING else None


def flatten(instance: Any) -> tuple[Shape, list[Value]]:
    """Shape and values of an instance."""
    shape: list[Any] = []
    values: list[Value] = []
    for field in fields_of(type(instance)):
        value = getattr(instance, field.name)
        nested = dataclasses.is_dataclass(field.kind)
        items = value if field.length is not None else (value,)
        if nested:
            inner = [flatten(item) for item in items]
            part: Any = tuple(s for s, _ in inner)
            for _, more in inner:
                values += more
        else:
            part = len(items)
            values += items
        shape.append(part if field.length is not None else (part[0] if nested else None))
    return tuple(shape), values


def shapes(kind: type, limit: int = 64) -> list[Shape]:
    """Shapes worth trying, smallest first: every tuple equally long, then each of its own length.

    Lengths run over both ends of their range and everything small in between.
    """
    lengths = _lengths(kind)
    tied = [_shape(kind, itertools.repeat(n)) for n in sorted({n for choice in lengths for n in choice})]
    free = itertools.islice(itertools.product(*lengths), 4 * limit)
    loose = [_shape(kind, iter(choice)) for choice in free]
    unique = list(dict.fromkeys([*tied, *loose]))[:limit]
    return sorted(unique, key=lambda shape: len(leaves(kind, shape)))


def random_shape(kind: type, rng: random.Random) -> Shape:
    """A shape with lengths drawn from their ranges; half of the time all tuples are equally long."""
    if rng.random() < 0.5:
        return _shape(
            kind, itertools.repeat(rng.choice(sorted({n for c in _lengths(kind) for n in c}) or [0]))
        )
    return _shape(kind, (rng.choice(c) for c in itertools.cycle(_lengths(kind) or [(0,)])))


def _lengths(kind: type) -> list[tuple[int, ...]]:
    """The lengths to try of each tuple, in the order in which `_shape` asks for them."""
    result: list[tuple[int, ...]] = []
    for field in fields_of(kind):
        if field.length is not None:
            low, high = field.length.low, field.length.high
            result.append(tuple(sorted({*range(low, min(high, low + 4) + 1), (low + high) // 2, high})))
        if dataclasses.is_dataclass(field.kind):
            result += _lengths(field.kind)
    return result


def _clip(length: Length, count: int) -> int:
    return min(max(count, length.low), length.high)


def _shape(kind: type, counts: Iterator[int]) -> Shape:
    parts: list[Any] = []
    for field in fields_of(kind):
        nested = dataclasses.is_dataclass(field.kind)
        count = _clip(field.length, next(counts)) if field.length is not None else None
        if not nested:
            parts.append(count)
        else:
            inner = _shape(field.kind, counts)
            parts.append(inner if count is None else (inner,) * count)
    return tuple(parts)
