"""Claims, instances and verdicts: what may and may not be said of each form."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from fractions import Fraction
from typing import Annotated

import pytest

from assay import (
    Bound,
    Claim,
    Counterexample,
    Limit,
    Mean,
    Premise,
    Sides,
    Source,
    Strength,
    Tail,
    Truth,
    Witness,
    certify,
    evaluate,
)
from assay.core import instance as instances
from assay.core.errors import InputError
from assay.core.instance import Length, Range
from assay.numerics import arb

SOURCE = Source("a test", "here")


@dataclass(frozen=True)
class Point:
    x: Annotated[Fraction, Range(-8, 8)]


@dataclass(frozen=True)
class Everything:
    n: Annotated[int, Range(0, 9)]
    flag: bool
    word: str
    points: tuple[Point, ...]
    values: Annotated[tuple[Fraction, ...], Length(0, 3), Range(0, 1, open_high=True)]


def claim(form, **changes) -> Claim:
    settings = {"id": "test.claim", "title": "a test", "statement": "x", "instance": Point, "source": SOURCE}
    return Claim(form=form, **(settings | changes))


def test_an_instance_survives_its_encoding():
    value = Everything(3, True, "é", (Point(Fraction(1, 3)),), (Fraction(0), Fraction(1, 7)))
    assert instances.decode(Everything, instances.encode(value)) == value


@pytest.mark.parametrize(
    "change",
    [
        {"n": "10"},
        {"n": "1/2"},
        {"flag": "true"},
        {"values": ["1"]},
        {"values": "1"},
        {"word": 3},
        {"new": "1"},
    ],
)
def test_an_instance_outside_its_type_is_refused(change):
    data = instances.encode(Everything(3, True, "", (), ()))
    with pytest.raises(InputError):
        instances.decode(Everything, data | change)


def test_a_field_without_a_known_type_is_refused():
    with pytest.raises(InputError, match=r"Bad.x"):
        instances.fields(make_dataclass("Bad", [("x", dict)], frozen=True))
    with pytest.raises(InputError, match="frozen"):
        instances.fields(make_dataclass("Soft", [("x", int)]))


def test_a_broken_premise_makes_the_instance_say_nothing():
    positive = Premise("positive", lambda p: p.x > 0)
    c = claim(Bound(lambda p: Sides(p.x, "<=", 0)), premises=(positive,))
    verdict = evaluate(c, Point(Fraction(-1)))
    assert verdict.truth is Truth.UNKNOWN
    assert verdict.reason == "premise broken: positive"
    assert evaluate(c.without("positive"), Point(Fraction(-1))).truth is Truth.TRUE
    with pytest.raises(InputError, match="positiv"):
        c.without("positiv")


def test_enclosures_are_refined_until_they_decide():
    c = claim(Bound(lambda p: Sides(arb.exp(p.x), "<=", 1 + p.x + p.x**2)))
    tiny = Point(Fraction(1, 10**60))
    assert evaluate(c, tiny, precision=32).truth is Truth.TRUE
    assert evaluate(c, tiny, precision=32).strength is Strength.ENCLOSED


def test_a_tight_transcendental_bound_stays_unknown_at_its_extremal_instance():
    verdict = evaluate(claim(Bound(lambda p: Sides(1 + p.x, "<=", arb.exp(p.x)))), Point(Fraction(0)))
    assert verdict.truth in (Truth.TRUE, Truth.UNKNOWN)
    assert evaluate(
        claim(Bound(lambda p: Sides(arb.sqrt(2 + p.x), "==", arb.sqrt(2 + p.x)))), Point(Fraction(0))
    ).truth is (Truth.UNKNOWN)


def test_a_failing_producer_refutes_the_producer_only():
    c = claim(Witness(lambda p: p.x + 1, lambda p, w: Sides(w, "<=", p.x)))
    verdict = evaluate(c, Point(Fraction(0)))
    assert verdict.truth is Truth.UNKNOWN
    assert "producer" in verdict.reason
    proved = claim(Witness(lambda p: p.x + 1, lambda p, w: Sides(w, "<=", p.x), refute=lambda p: True))
    assert evaluate(proved, Point(Fraction(0))).truth is Truth.FALSE


def test_a_limit_is_never_evaluated_and_never_certified():
    c = claim(Limit("almost surely", ("test.finite",)))
    assert evaluate(c, Point(Fraction(0))).truth is Truth.UNKNOWN
    with pytest.raises(InputError, match=r"test\.finite"):
        certify(c, Point(Fraction(0)))


def test_a_mean_is_exact_where_it_can_be_and_statistical_elsewhere():
    exact = claim(Mean(bound=lambda p: p.x, exact=lambda p: p.x - 1))
    assert evaluate(exact, Point(Fraction(1))).strength is Strength.EXACT
    sampled = claim(Mean(bound=lambda p: p.x, draw=lambda p, rng: rng.random(), support=lambda p: (0, 1)))
    assert evaluate(sampled, Point(Fraction(1))).truth is Truth.UNKNOWN
    yes, no = (evaluate(sampled, Point(Fraction(x)), draws=4000) for x in ("0.7", "0.3"))
    assert (yes.truth, no.truth) == (Truth.TRUE, Truth.FALSE)
    assert yes.strength is Strength.STATISTICAL
    assert yes.alpha == Fraction(1, 10**6)
    assert evaluate(sampled, Point(Fraction("0.7")), draws=4000) == yes


def test_a_draw_outside_its_declared_support_is_an_error():
    c = claim(Mean(bound=lambda p: 1, draw=lambda p, rng: 2, support=lambda p: (0, 1)))
    with pytest.raises(InputError, match="support"):
        evaluate(c, Point(Fraction(0)), draws=1)


def test_undecided_events_refute_and_never_support():
    never = claim(Tail(delta=lambda p: Fraction(1, 2), event=lambda p, rng: None))
    assert evaluate(never, Point(Fraction(0)), draws=1000).truth is Truth.UNKNOWN
    often = claim(
        Tail(delta=lambda p: Fraction(1, 10), event=lambda p, rng: True if rng.random() < 0.5 else None)
    )
    assert evaluate(often, Point(Fraction(0)), draws=1000).truth is Truth.FALSE


@pytest.mark.parametrize(
    ("sides", "word"),
    [
        (lambda p: 3, "Sides"),
        (lambda p: Sides(float("nan"), "<=", 1), "NaN"),
        (lambda p: Sides("1", "<=", 1), "str"),
    ],
)
def test_sides_that_are_no_numbers_are_one_sentence(sides, word):
    with pytest.raises(InputError, match=word):
        evaluate(claim(Bound(sides)), Point(Fraction(0)))


def test_grades_of_counterexamples():
    false = Bound(lambda p: Sides(1, "<=", 0))
    zero = Point(Fraction(0))

    def grade(c):
        return Counterexample(c.id, zero, evaluate(c, zero)).grade

    assert grade(claim(false)) == "genuine"
    assert grade(claim(false, premises=(Premise("black box", basis="assumed"),))) == "conditional"
    assert grade(claim(Bound(lambda p: Sides(1.0, "<=", 0)))) == "numerical"
    sampled = claim(Tail(delta=lambda p: Fraction(1, 10), event=lambda p, rng: True))
    verdict = evaluate(sampled, zero, draws=200)
    assert Counterexample(sampled.id, zero, verdict).grade == "statistical"
    with pytest.raises(InputError):
        Counterexample("test.claim", zero, evaluate(claim(Bound(lambda p: Sides(0, "<=", 1))), zero))


@pytest.mark.parametrize(
    "bad",
    [
        lambda: claim(Bound(lambda p: Sides(0, "<=", 1)), id="nodot"),
        lambda: claim(Bound(lambda p: Sides(0, "<=", 1)), expect="perhaps"),
        lambda: Sides(0, ">=", 1),
        lambda: Premise("p", basis="hoped"),
        lambda: Premise("p"),
        lambda: Mean(bound=lambda p: 1, draw=lambda p, r: 1),
        lambda: Tail(delta=lambda p: 1),
    ],
)
def test_ill_formed_claims_are_refused_where_they_are_written(bad):
    with pytest.raises(InputError):
        bad()


def test_the_digest_follows_the_statement_and_the_code():
    one = Bound(lambda p: Sides(p.x, "<=", 1))
    two = Bound(lambda p: Sides(p.x, "<=", 2))
    assert claim(one).digest() != claim(two).digest()
    assert claim(one).digest() == claim(one).digest()
    assert claim(one).digest() != claim(one, statement="y").digest()
