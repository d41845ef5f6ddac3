"""The order of premises and the climb of precision in `evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from assay.core.claim import Bound, Claim, Premise, Sides, Source
from assay.core.number import Ball, Truth, working_precision
from assay.core.verdict import evaluate


@dataclass(frozen=True)
class Point:
    x: Fraction


def claim_of(sides, *premises):
    return Claim("toy.claim", "t", "s", Point, Bound(sides), Source("p", "l"), premises)


def test_a_premise_after_a_broken_one_is_not_looked_at():
    looked = []

    def later(x):
        looked.append(x)
        return True

    claim = claim_of(lambda x: Sides(0, "<=", 1), Premise("first", lambda x: False), Premise("second", later))
    verdict = evaluate(claim, Point(Fraction(1)))
    assert verdict.reason == "premise broken: first"
    assert verdict.premises[1].truth is Truth.UNKNOWN
    assert looked == []


def test_a_broken_premise_is_named_before_an_undecided_one():
    claim = claim_of(
        lambda x: Sides(0, "<=", 1),
        Premise("undecided", lambda x: Truth.UNKNOWN),
        Premise("broken", lambda x: False),
    )
    assert evaluate(claim, Point(Fraction(1))).reason == "premise broken: broken"


def test_max_precision_ends_the_climb():
    bits = []

    def sides(x):
        bits.append(working_precision())
        return Sides(Ball(Fraction(0), Fraction(1)), "<=", Fraction(1, 2))

    verdict = evaluate(claim_of(sides), Point(Fraction(1)), precision=64, max_precision=256)
    assert verdict.truth is Truth.UNKNOWN
    assert bits == [64, 128, 256]
