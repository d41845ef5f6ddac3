"""Ablation, sharpening, mutation, symbols."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from assay import Bound, Claim, Premise, Sides, audit
from assay.audits import ablate, sharpen
from assay.audits.attacks.smt import NotPolynomial, Path, Smt, Symbol
from assay.audits.mutate import damaged, mutants
from assay.audits.target import Stopped, Target
from assay.core.errors import InputError
from assay.numerics.arb import exp

from .claims import CUBE, CURVED, DICE, FALSE, LIMIT, POSITIVE, SOURCE, TRUE, Coin, Pair, Point, bound


def test_a_needed_premise_gets_a_witness():
    claim = Claim(
        "toy.two",
        "t",
        "s",
        Point,
        Bound(lambda z: Sides(0, "<", z.x**3)),
        SOURCE,
        (
            POSITIVE,
            Premise("x is not 1", lambda z: z.x != 1),
            Premise("x is small", lambda z: z.x < 100),
            Premise("kind", None, "assumed"),
        ),
    )
    needed, idle, implied, fixed = ablate(claim, seconds=2)
    assert needed.role == "needed"
    assert needed.witness.instance == Point(Fraction(0))
    assert idle.role == "not needed as far as seen"
    assert implied.role == "never broken"
    assert fixed.role == "fixed"


def test_a_premise_without_which_the_sides_are_undefined():
    natural = Premise("x is not negative", lambda z: z.x >= 0)
    claim = bound(lambda z: Sides(math.isqrt(math.floor(z.x)), "<=", 2), Point, natural)
    (only,) = ablate(claim, seconds=1)
    assert only.role == "defines"
    assert "raises ValueError" in only.reason


def test_limits_are_not_ablated_or_sharpened():
    for function in (ablate, sharpen):
        with pytest.raises(InputError, match=r"is a limit: .* one of toy.true"):
            function(LIMIT)


def test_sharpening_a_loose_bound_brackets_its_constant():
    loose = bound(lambda z: Sides(z.x * z.y, "<=", z.x**2 + z.y**2), Pair)
    found = sharpen(loose, seconds=4)
    assert found.refuted_at == pytest.approx(0.5, abs=1e-6)
    assert found.survived_at >= Fraction(1, 2)
    assert found.extremal.x == found.extremal.y
    assert not found.tight
    assert found.witness.grade == "genuine"


def test_an_identity_is_not_sharpened_however_little_was_seen():
    identity = bound(lambda z: Sides(z.x - z.x, "==", 0))
    with pytest.raises(InputError, match="is an identity"):
        sharpen(identity, seconds=1)


def test_sharpening_recognises_a_tight_bound():
    assert sharpen(TRUE, seconds=2).tight


def test_sharpening_an_exponent():
    """exp(x^2) against exp(2 x^2): half the exponent would do, whatever the value at x = 0 says."""
    claim = bound(lambda z: Sides(exp(z.x**2), "<=", exp(2 * z.x**2)))
    assert sharpen(claim, seconds=2).tight
    assert sharpen(claim, seconds=3, scale="exponent").refuted_at == pytest.approx(0.5, abs=1e-4)


def test_sharpening_a_false_claim_says_how_far_it_is_off():
    found = sharpen(FALSE, seconds=5)
    assert found.refuted_at == pytest.approx(1.5, abs=1e-3)
    assert found.survived_at >= Fraction(3, 2)


def test_what_cannot_be_sharpened():
    identity = bound(lambda z: Sides(z.x + 1, "==", 1 + z.x))
    with pytest.raises(InputError, match="is an identity"):
        sharpen(identity, seconds=1)
    with pytest.raises(InputError, match="none of value, exponent"):
        sharpen(TRUE, scale="log")


def test_damage_takes_a_share_of_the_magnitude():
    negative = bound(lambda z: Sides(-5, "<=", Fraction(-4)))
    assert damaged(negative, Fraction(1, 2)).form.sides(Point(Fraction(0))).rhs == -6


def test_mutants_are_named_and_different():
    names = [name for name, _ in mutants(CUBE)]
    assert len(names) == len(set(names))
    assert "without 'x is positive'" in names
    assert "rhs at 1 - prob" in [n for n, _ in mutants(bound(lambda z: Sides(0, "<=", z.prob), Coin))]
    assert "rhs at sides - 1" in [n for n, _ in mutants(DICE)]


@pytest.mark.parametrize(
    "name", ["rhs x 1/2", "rhs x 9/10", "lhs doubled", "sides swapped", "strict", "equal"]
)
def test_mutants_of_a_tight_claim_fall(name):
    mutant = dict(mutants(TRUE))[name]
    assert audit(mutant, seconds=5).outcome == "refuted"


def test_a_path_visits_both_answers():
    import z3

    x = z3.Real("x")
    path, seen = Path([]), []
    while path is not None:
        symbol = Symbol(x, path)
        seen.append((symbol > 1, symbol > 2))
        path = path.next()
    assert seen == [(True, True), (True, False), (False, True), (False, False)]


def test_smt_proves_a_true_polynomial_on_its_shape():
    target = Target(TRUE)
    attack = Smt(target, random.Random(0))
    attack.run()
    assert attack.proved == [(None, None)]


def test_smt_branches_on_comparisons():
    """Only where x > y > 1 does the second branch break."""
    claim = bound(lambda z: Sides(z.x if z.x > z.y and z.y > 1 else 0, "<=", 1), Pair)
    report = audit(claim, seconds=5, attacks=["smt"])
    assert report.outcome == "refuted"
    assert report.counterexample.instance.x > report.counterexample.instance.y > 1


def test_smt_leaves_transcendental_sides_alone():
    target = Target(CURVED)
    Smt(target, random.Random(0)).run()
    assert target.proposed == 0


def test_symbols_refuse_what_is_no_polynomial():
    import z3

    symbol = Symbol(z3.Real("x"), Path([]))
    for nonsense in (lambda: symbol + 0.5, lambda: symbol ** Fraction(1, 2), lambda: symbol + True):
        with pytest.raises(NotPolynomial):
            nonsense()


def test_a_target_stops_when_time_is_up():
    target = Target(TRUE)
    target.until = 0
    with pytest.raises(Stopped):
        target.consider(Pair(Fraction(0), Fraction(0)))
