"""Repair: instances moved onto the equalities of a premise, exactly."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import Bound, Claim, Length, Premise, Range, Sides, Truth, audit
from assay.audits.repair import HOPELESS, Repair
from assay.audits.space import flatten, leaves, random_shape
from assay.audits.space import propose as build
from assay.audits.tracing import miss, truth_of

from .claims import SOURCE

HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Weights:
    weights: Annotated[tuple[Fraction, ...], Length(2, 5), Range(0, 1)]
    other: Annotated[Fraction, Range(-3, 3)]


@dataclass(frozen=True)
class Row:
    entries: Annotated[tuple[Fraction, ...], Length(3, 3), Range(-2, 2)]


@dataclass(frozen=True)
class Square:
    rows: Annotated[tuple[Row, ...], Length(3, 3)]


def symmetric(x: Square) -> bool:
    return all(x.rows[i].entries[j] == x.rows[j].entries[i] for i in range(3) for j in range(i))


SIMPLEX = Premise("sum is 1", lambda x: Sides(sum(x.weights), "==", 1))
SIMPLEX_BOOL = Premise("sum is 1", lambda x: sum(x.weights) == 1)
SPHERE = Premise("norm is 1", lambda x: sum(w * w for w in x.weights) == 1)
PRODUCT = Premise("product", lambda x: Sides(x.other * x.weights[0], "==", x.weights[1] - HALF))
SYMMETRIC = Premise("symmetric", symmetric)


def drawn(kind, seed):
    rng = random.Random(seed)
    shape = random_shape(kind, rng)
    return build(kind, shape, [leaf.at(rng.random()) for leaf in leaves(kind, shape)])


@pytest.mark.parametrize("premise", [SIMPLEX, SIMPLEX_BOOL, PRODUCT])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_what_is_repaired_holds_exactly_and_stays_in_range(premise, seed):
    x = drawn(Weights, seed)
    found = Repair().repaired(premise, x)
    if found is not None:
        assert truth_of(premise, found) is Truth.TRUE
        shape, values = flatten(found)
        assert all(v in leaf.range for leaf, v in zip(leaves(Weights, shape), values, strict=True))


@pytest.mark.parametrize("premise", [SIMPLEX, SIMPLEX_BOOL])
def test_a_simplex_is_always_reached(premise):
    repair = Repair()
    assert all(repair.repaired(premise, drawn(Weights, seed)) is not None for seed in range(20))


def test_a_sphere_is_reached_from_a_point_on_it():
    repair, x = Repair(), Weights((HALF, Fraction(1, 3), Fraction(4, 5)), Fraction(0))
    assert repair.repaired(SPHERE, x) is None
    repair.learn(SPHERE, Weights((Fraction(0), Fraction(0), Fraction(1)), Fraction(1)))
    found = repair.repaired(SPHERE, x)
    assert truth_of(SPHERE, found) is Truth.TRUE
    assert found.weights[0] / found.weights[1] == Fraction(3, 2)  # on the chord through both
    assert found.other == 0  # the premise does not speak of it


def test_a_symmetric_matrix_is_reached_in_three_steps_and_then_in_one():
    repair = Repair()
    x = drawn(Square, 1)
    for _ in range(3):
        x = repair.repaired(SYMMETRIC, x)
    assert truth_of(SYMMETRIC, x) is Truth.TRUE
    assert truth_of(SYMMETRIC, repair.repaired(SYMMETRIC, drawn(Square, 2))) is Truth.TRUE


def test_an_inequality_is_left_alone():
    assert Repair().repaired(Premise("p", lambda x: x.weights[0] > 2), drawn(Weights, 3)) is None


def test_a_premise_that_cannot_be_repaired_is_soon_left_alone():
    calls = 0

    def never(x):
        nonlocal calls
        calls += 1
        return x.other**2 == 2

    repair, premise = Repair(), Premise("root of two", never)
    for seed in range(HOPELESS + 5):
        assert repair.repaired(premise, drawn(Weights, seed)) is None
    before = calls
    assert repair.repaired(premise, drawn(Weights, 0)) is None
    assert calls == before


def test_a_miss_says_by_how_much_and_of_what():
    x = Weights((HALF, HALF, HALF), Fraction(3))
    missed = miss(lambda x: x.other > 0 and x.weights[0] + x.weights[2] == x.other, x)
    assert (missed.difference, missed.equality, missed.involved) == (Fraction(-2), True, {0, 2, 3})
    assert not miss(lambda x: x.other < 1, x).equality
    assert miss(lambda x: x.other > 1, x) is None
    assert miss(lambda x: 1 / 0, x) is None


def test_an_audit_under_an_equality_finds_what_a_random_instance_never_meets():
    thin = Claim(
        "toy.thin",
        "t",
        "s",
        Weights,
        Bound(lambda x: Sides(sum(w * w for w in x.weights), "<=", Fraction(13, 20))),
        SOURCE,
        (SIMPLEX_BOOL, Premise("no corner", lambda x: max(x.weights) < Fraction(9, 10)), PRODUCT),
    )
    report = audit(thin, seconds=5)
    assert report.outcome == "refuted"
    assert report.counterexample.grade == "genuine"
