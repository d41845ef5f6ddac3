"""Damaged copies of a claim: what an audit must notice, and by how much at least.

`damaged` weakens the constant of the right-hand side; `mutants` makes the mechanical slips that authors make.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from assay.audits.space import replaced
from assay.core.claim import Bound, Claim, Mean, Sides, Tail, Witness
from assay.core.errors import InputError
from assay.core.instance import fields
from assay.core.number import Number

Change = Callable[[Any, Sides], Sides]


def damaged(claim: Claim, factor: Fraction) -> Claim:
    """The claim with its right-hand side moved to ``rhs - (1 - factor) |rhs|``: times `factor` where positive.

    >>> from assay.missions._template.claims import amgm
    >>> from assay.missions._template.model import Numbers
    >>> damaged(amgm, Fraction(1, 2)).form.sides(Numbers((Fraction(3),))).rhs
    Fraction(3, 2)
    """
    return altered(claim, lambda _, s: Sides(s.lhs, s.relation, scaled(s.rhs, factor), s.facts))


def scaled(value: Number, factor: Fraction) -> Number:
    """`value` less ``(1 - factor)`` of its magnitude; floats stay floats."""
    share: Any = 1 - factor
    magnitude: Any = abs(value)
    return value - magnitude * (float(share) if isinstance(value, float) else share)


def altered(claim: Claim, change: Change) -> Claim:
    """The claim with ``change(instance, sides)`` in place of its sides.

    Raises:
        InputError: the claim has no sides: it is a `Limit`.
    """
    form = claim.form
    if isinstance(form, Bound):
        sides = form.sides
        return dataclasses.replace(claim, form=Bound(lambda x: change(x, sides(x))))
    if isinstance(form, Witness):
        check = form.sides
        return dataclasses.replace(
            claim, form=dataclasses.replace(form, sides=lambda x, w: change(x, check(x, w)))
        )
    if isinstance(form, Mean):
        bound, relation = form.bound, form.relation
        return dataclasses.replace(
            claim, form=dataclasses.replace(form, bound=lambda x: change(x, Sides(0, relation, bound(x))).rhs)
        )
    if isinstance(form, Tail):
        delta = form.delta
        return dataclasses.replace(
            claim, form=dataclasses.replace(form, delta=lambda x: change(x, Sides(0, "<=", delta(x))).rhs)
        )
    raise InputError(f"{claim.id} is a limit: it has no sides to alter")


def mutants(claim: Claim) -> Iterator[tuple[str, Claim]]:
    """Mechanical slips, named: constants, exponents, strictness, dropped premises, arguments confused.

    A mutant is not always false: a loose bound survives a smaller constant.  Only `Bound` claims are confused in
    their arguments, since it needs both sides in one function.
    """
    for factor in (Fraction(1, 2), Fraction(9, 10)):
        yield f"rhs x {factor}", damaged(claim, factor)
    yield "rhs squared", altered(claim, lambda _, s: Sides(s.lhs, s.relation, s.rhs * s.rhs))
    for premise in claim.premises:
        yield f"without {premise.name!r}", claim.without(premise.name)
    form = claim.form
    if not isinstance(form, Bound):
        return
    sides = form.sides
    yield "sides swapped", altered(claim, lambda _, s: Sides(s.rhs, s.relation, s.lhs))
    yield "lhs doubled", altered(claim, lambda _, s: Sides(2 * s.lhs, s.relation, s.rhs))
    yield (
        "strict",
        altered(claim, lambda _, s: Sides(s.lhs, "<" if s.relation == "<=" else s.relation, s.rhs)),
    )
    yield "equal", altered(claim, lambda _, s: Sides(s.lhs, "==", s.rhs))
    for name, confuse in _confusions(claim.instance):
        yield f"rhs at {name}", altered(claim, _confused(sides, confuse))


def _confused(sides: Callable[[Any], Sides], confuse: Callable[[Any], Any]) -> Change:
    def change(x: Any, s: Sides) -> Sides:
        other = confuse(x)
        return s if other is None else Sides(s.lhs, s.relation, sides(other).rhs)

    return change


def _confusions(kind: type) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Nearby instances: p for 1 - p, n - 1 for n, a last element forgotten."""
    for field in fields(kind):
        bounds = field.range
        if field.length is not None:
            low = field.length.low
            if low == field.length.high:
                continue

            def shorter(x: Any, name: str = field.name, low: int = low) -> Any:
                value = getattr(x, name)
                return replaced(x, **{name: value[:-1]}) if len(value) > low else None

            yield f"{field.name} without its last", shorter
        elif field.kind is Fraction and bounds is not None and (bounds.low, bounds.high) == (0, 1):

            def opposite(x: Any, name: str = field.name) -> Any:
                return replaced(x, **{name: 1 - getattr(x, name)})

            yield f"1 - {field.name}", opposite
        elif field.kind is int and bounds is not None:

            def lower(x: Any, name: str = field.name, low: Fraction | int = bounds.low) -> Any:
                value = getattr(x, name)
                return replaced(x, **{name: value - 1}) if value - 1 >= low else None

            yield f"{field.name} - 1", lower
