"""Widening: the fields that keep a premise from being broken, and no others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import pytest

from assay import Bound, Claim, Length, Premise, Range, Sides, Truth
from assay.audits import ablate, audit
from assay.audits.tracing import truth_of
from assay.audits.widen import dropped, implying, widened
from assay.core.instance import decode, encode, fields

from .claims import SOURCE, Point

PROB = Premise("0 < p < 1", lambda x: 0 < x.p < 1)
SMALL = Premise("every part is small", lambda x: all(part.size <= 1 for part in x.parts))
NOT_ALL_0 = Premise("not all 0", lambda x: any(part.size != 0 for part in x.parts))


@dataclass(frozen=True, slots=True)
class Part:
    size: Annotated[Fraction, Range(0, 1)]
    colour: Annotated[int, Range(1, 3)]


@dataclass(frozen=True, slots=True)
class Whole:
    p: Annotated[Fraction, Range(0, 1, open_low=True, open_high=True)]
    parts: Annotated[tuple[Part, ...], Length(1, 2)]


def whole(sides, *premises) -> Claim:
    return Claim("toy.whole", "t", "s", Whole, Bound(sides), SOURCE, premises)


def test_only_the_fields_that_a_premise_speaks_of_are_widened():
    assert implying(Whole, PROB) == {(Whole, "p")}
    assert implying(Whole, SMALL) == {(Part, "size")}
    assert implying(Whole, NOT_ALL_0) == set()  # it can be broken as it is


def test_a_widened_type_is_the_same_but_for_its_ranges():
    wide = widened(Whole, frozenset({(Part, "size")}))
    p, parts = fields(wide)
    assert (p.range, parts.length) == (Range(0, 1, True, True), Length(1, 2))
    size, colour = fields(parts.kind)
    assert (size.range, colour.range) == (Range(-1, 2), Range(1, 3))
    assert (wide.__name__, parts.kind.__name__) == ("Whole", "Part")
    x = decode(wide, {"p": "1/2", "parts": [{"size": "3/2", "colour": "1"}]})
    assert isinstance(x, Whole)
    assert isinstance(x.parts[0], Part)
    assert decode(wide, encode(x)) == x == dataclasses.replace(x)


def test_nothing_to_widen_leaves_the_type_alone():
    claim = whole(lambda x: Sides(0, "<=", 1), NOT_ALL_0)
    assert dropped(claim, ["not all 0"]).instance is Whole
    assert widened(Whole, frozenset()) is Whole


def test_a_premise_that_raises_is_not_broken():
    assert truth_of(Premise("odd", lambda x: 1 / 0), Point(Fraction(1))) is not Truth.FALSE
    assert truth_of(Premise("sides", lambda x: Sides(x.x, "<=", 0)), Point(Fraction(1))) is Truth.FALSE


def test_a_premise_that_ranges_imply_gets_its_witness():
    claim = whole(lambda x: Sides(x.p * x.p, "<", x.p), PROB, SMALL)
    prob, small = ablate(claim, seconds=2)
    assert (prob.role, small.role) == ("needed", "not needed as far as seen")
    assert not 0 < prob.witness.instance.p < 1
    assert all(part.size <= 1 for part in prob.witness.instance.parts)
    assert prob.witness.grade == "genuine"


def test_what_is_undefined_does_not_hide_a_counterexample():
    claim = whole(lambda x: Sides(1, "<", 1 / x.p), PROB)
    (only,) = ablate(claim, seconds=2)
    assert only.role == "needed"
    assert only.witness.instance.p == 1 or only.witness.instance.p < 0


def test_what_is_only_undefined_defines():
    claim = whole(lambda x: Sides(0, "<", 1 / x.p**2), Premise("p > 0", lambda x: x.p > 0))
    (only,) = ablate(claim, seconds=1)
    assert only.role == "defines"
    assert only.reason.startswith("a side divides by zero on Whole(p=0")
    assert "where it is defined, the claim holds on all" in only.reason


def test_a_premise_that_the_others_imply_is_never_broken():
    claim = whole(lambda x: Sides(x.p, "<", 1), PROB, Premise("p > -1", lambda x: x.p > -1))
    assert ablate(claim, seconds=2)[1].role == "never broken"


def test_a_false_claim_is_needed_by_none_of_its_premises():
    """What breaks the premise is attacked, so a claim that fails anyway does not make a premise look needed."""
    claim = whole(lambda x: Sides(x.p, "<=", Fraction(1, 2)), Premise("p > 1/2", lambda x: 2 * x.p > 1))
    (only,) = ablate(claim, seconds=1)
    assert only.role == "not needed as far as seen"


@pytest.mark.parametrize("names", [["0 < p < 1"], ["0 < p < 1", "every part is small"]])
def test_an_audit_without_premises_looks_beyond_the_ranges(names):
    claim = whole(lambda x: Sides(x.p * x.p, "<=", x.p), PROB, SMALL)
    report = audit(claim, seconds=2, without=names)
    assert report.outcome == "refuted"
    assert not 0 <= report.counterexample.instance.p <= 1
