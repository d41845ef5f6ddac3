"""What a premise answers; and rationals that remember how they were compared: by how much one that says False is missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from assay.audits.space import build, flatten
from assay.core.claim import Premise, Sides
from assay.core.number import Truth, compare


@dataclass(frozen=True, slots=True)
class Miss:
    """The comparison that a broken premise ended on.

    `difference` is left minus right, `equality` whether equality was asked, and `involved` the places of the values that
    the two sides were computed from (none where that is not known).
    """

    difference: Fraction
    equality: bool
    involved: frozenset[int]


_last: list[Miss | None] = [None]


class Traced(Fraction):
    """A rational that knows which values it comes from (the bits of `origin`), and notes how it is compared.

    >>> half = Traced.of(Fraction(1, 2), 1 << 3)
    >>> half * 2 == Fraction(3, 4), _last[0].difference, _last[0].involved
    (False, Fraction(1, 4), frozenset({3}))
    """

    __hash__ = Fraction.__hash__
    origin: int

    @classmethod
    def of(cls, value: Fraction, origin: int) -> Traced:
        """`value`, traced to these places."""
        traced = Fraction.__new__(cls, value)
        traced.origin = origin
        return traced

    def __eq__(self, other: Any) -> bool:
        return self._note(Fraction.__eq__(self, other), other, True)

    def __ne__(self, other: Any) -> bool:
        return self._note(not Fraction.__eq__(self, other), other, False)

    def _note(self, answer: Any, other: Any, equality: bool) -> Any:
        if isinstance(other, int | Fraction):
            origin = self.origin | getattr(other, "origin", 0)
            _last[0] = Miss(Fraction(self) - Fraction(other), equality, _places(origin))
        return answer


def _places(origin: int) -> frozenset[int]:
    return frozenset(i for i in range(origin.bit_length()) if origin >> i & 1)


def _traced(method: Callable[..., Any]) -> Callable[..., Any]:
    def operation(self: Traced, *others: Any) -> Any:
        result = method(self, *others)
        if not isinstance(result, Fraction):
            return result
        origin = self.origin
        for other in others:
            origin |= getattr(other, "origin", 0)
        return Traced.of(result, origin)

    return operation


def _noted(method: Callable[..., Any]) -> Callable[..., Any]:
    def comparison(self: Traced, other: Any) -> Any:
        return self._note(method(self, other), other, False)

    return comparison


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "neg", "pos", "abs"):
    setattr(Traced, f"__{_name}__", _traced(getattr(Fraction, f"__{_name}__")))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Traced, f"__{_name}__", _noted(getattr(Fraction, f"__{_name}__")))


def truth_of(premise: Premise, instance: Any) -> Truth:
    """Whether a checked premise holds for certain, or is broken; an exception is no answer."""
    assert premise.check is not None
    try:
        result = premise.check(instance)
        if isinstance(result, Sides):
            result, _ = compare(result.lhs, result.relation, result.rhs)
        return Truth.of(result)
    except Exception:  # outside of where the premise itself is defined
        return Truth.UNKNOWN


def miss(check: Callable[[Any], Any], instance: Any) -> Miss | None:
    """By how much a broken premise is missed; None where that cannot be told.

    A premise that returns `Sides` is taken at its word; of any other, the last comparison that it made counts.
    """
    shape, values = flatten(instance)
    traced = [Traced.of(v, 1 << i) if type(v) is Fraction else v for i, v in enumerate(values)]
    _last[0] = None
    try:
        result = check(build(type(instance), shape, traced))
        if isinstance(result, Sides):
            lhs, rhs = result.lhs, result.rhs
            if isinstance(lhs, int | Fraction) and isinstance(rhs, int | Fraction):
                difference = Fraction(lhs) - Fraction(rhs)
                places = _places(getattr(lhs, "origin", 0) | getattr(rhs, "origin", 0))
                return Miss(difference, result.relation == "==", places) if difference else None
            return None
        return _last[0] if Truth.of(result) is Truth.FALSE else None
    except Exception:  # what a premise does with other numbers than it expects is its own affair
        return None
