"""`audit`: outcomes, bad input, stores, limits."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

import assay
from assay import Premise, Sides, Truth, audit, evaluate
from assay.audits import Store
from assay.audits.attacks import ATTACKS
from assay.core.errors import InputError, UnknownIdError
from assay.numerics.arb import exp

from .claims import (
    CUBE,
    CURVED,
    DICE,
    FALSE,
    FLOATS,
    LIMIT,
    NAN,
    NEVER,
    RAISES,
    RANDOM,
    ROOT,
    TRUE,
    Named,
    Nothing,
    Pair,
    Point,
    Proposed,
    Shares,
    bound,
)


def test_a_true_claim_survives_and_says_how_hard_it_was_tried():
    report = audit(TRUE, seconds=1)
    assert report.outcome == "survived"
    assert report.as_expected
    assert report.acceptance == 1
    assert report.effort.evaluations > 100
    assert set(report.effort.attacks) == set(ATTACKS)
    assert report.closest is not None
    assert report.closest.slack == 0
    assert report.resolution.damage == Fraction(1, 10**9)


def test_a_false_claim_falls_to_the_plainest_counterexample():
    report = audit(FALSE, seconds=5)
    assert report.outcome == "refuted"
    assert report.counterexample.grade == "genuine"
    assert report.counterexample.instance == Pair(Fraction(1), Fraction(1))
    assert evaluate(FALSE, report.counterexample.instance).truth is Truth.FALSE
    assert report.effort.seconds < 3


@pytest.mark.parametrize("attack", ["property", "evolve", "gradient", "smt"])
def test_each_attack_finds_it_alone(attack):
    report = audit(FALSE, seconds=8, attacks=[attack])
    assert report.outcome == "refuted"
    assert report.found_by == attack


def test_the_same_seed_finds_the_same_thing():
    first, second = (audit(FALSE, seconds=5, seed=3, attacks=["evolve"]) for _ in range(2))
    assert first.counterexample.instance == second.counterexample.instance


def test_a_finite_space_is_searched_whole():
    report = audit(DICE, seconds=5)
    assert report.outcome == "survived"
    assert report.exhaustive
    assert report.effort.accepted == 22


def test_no_accepted_instance_is_no_survival():
    report = audit(NEVER, seconds=0.5)
    assert report.outcome == "gave up"
    assert "meets the premises" in report.reason
    assert report.acceptance == 0


def test_dropping_a_premise():
    assert audit(CUBE, seconds=0.5).outcome == "survived"
    report = audit(CUBE, seconds=2, without=["x is positive"])
    assert report.outcome == "refuted"
    assert report.counterexample.instance == Point(Fraction(0))
    with pytest.raises(InputError, match="has no premise 'x is negative'"):
        audit(CUBE, without=["x is negative"])


def test_floats_never_refute():
    report = audit(FLOATS, seconds=0.5)
    assert report.outcome == "gave up"
    assert report.counterexample is None
    assert report.dead_hits[0].stage.startswith("arithmetic")


def test_a_hit_that_dies_is_kept_with_its_stage():
    """In floats 1e16 + 1 - 1e16 is 0: below 1 by cancellation alone."""
    claim = bound(lambda z: Sides(1, "<=", (z.x + 10**16 + 1) - z.x - 10**16), name="cancel")
    report = audit(claim, seconds=0.5)
    assert report.outcome == "survived"
    assert report.dead_hits
    assert report.dead_hits[0].stage == "exact comparison: the claim holds here"


def test_a_failing_producer_is_no_survival():
    report = audit(ROOT, seconds=1)
    assert report.outcome == "gave up"
    assert "producer" in report.reason


def test_a_limit_points_to_what_implies_it():
    report = audit(LIMIT, seconds=0.5, claims={"toy.true": TRUE})
    assert report.outcome == "gave up"
    assert report.implied_by["toy.true"].outcome == "survived"
    assert "toy.absent not in the catalogue" in report.reason


def test_transcendental_sides_are_confirmed_by_enclosures():
    assert audit(CURVED, seconds=0.5).outcome == "survived"


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_no_budget(seconds):
    with pytest.raises(InputError, match="looks at nothing"):
        audit(TRUE, seconds=seconds)


def test_unknown_attack_gets_a_hint():
    with pytest.raises(UnknownIdError, match="did you mean 'corner'"):
        audit(TRUE, attacks=["corners"])
    with pytest.raises(InputError, match="at least one attack"):
        audit(TRUE, attacks=[])


def test_not_a_claim():
    with pytest.raises(InputError, match="takes a Claim, not a str"):
        audit("toy.true")


def test_sides_that_raise():
    with pytest.raises(InputError, match=r"toy.raises: evaluating it raises .*on Point\(x=.*as a premise"):
        audit(RAISES, seconds=1)


def test_sides_that_are_nan():
    with pytest.raises(InputError, match=r"toy.nan: a side is NaN on this instance \(on Point\(x="):
        audit(NAN, seconds=1)


@pytest.mark.parametrize("attack", ["corner", "property"])
def test_sides_that_are_not_deterministic(attack):
    with pytest.raises(InputError, match="not deterministic"):
        audit(RANDOM, seconds=1, attacks=[attack])


def test_sides_that_are_nowhere_defined_decide_nothing():
    report = audit(bound(lambda z: Sides(1 / (z.x - z.x), "<=", 1)), seconds=0.3)
    assert report.outcome == "gave up"
    assert "a side divides by zero" in report.reason
    assert report.resolution is None


def test_enclosures_that_always_overlap_decide_nothing():
    report = audit(bound(lambda z: Sides(exp(z.x) * exp(-z.x + 1), "==", exp(1))), seconds=0.3)
    assert (report.outcome, report.counterexample) == ("gave up", None)


def test_sides_that_leave_the_process():
    def leave(_):
        raise SystemExit(7)

    with pytest.raises(InputError, match="evaluating it raises SystemExit: 7"):
        audit(bound(leave), seconds=0.3)


@pytest.mark.parametrize("where", ["sides", "premise"])
def test_what_does_not_come_back_is_cut_short(where, monkeypatch):
    monkeypatch.setattr("assay.audits.limit.GRACE", 0.2)

    def forever(_):
        while True:
            pass

    claim = (
        bound(forever)
        if where == "sides"
        else bound(lambda z: Sides(0, "<=", 1), Point, Premise("p", forever))
    )
    report = audit(claim, seconds=0.3)
    assert report.outcome == "gave up"
    assert "had not come back when the time was up, on Point(x=" in report.reason
    assert report.effort.seconds < 2


@pytest.mark.parametrize("answer", [None, 1, (v for v in ())])
def test_a_premise_that_does_not_answer(answer):
    with pytest.raises(InputError, match=r"the premise 'odd' answers with a .*, not True, False or Sides"):
        audit(bound(lambda z: Sides(0, "<=", 1), Point, Premise("odd", lambda z: answer)), seconds=0.3)


def test_an_instance_type_without_a_strategy():
    with pytest.raises(InputError, match="classmethod propose"):
        audit(bound(lambda z: Sides(0, "<=", 1), Named), seconds=1)


def test_an_instance_type_that_proposes():
    claim = bound(lambda z: Sides(z.x + len(z.name), "<=", 6), Proposed)
    report = audit(claim, seconds=5)
    assert report.outcome == "refuted"
    assert report.counterexample.instance == Proposed("ccc", Fraction(4))
    assert report.effort.attacks["evolve"].status.startswith("skipped")


@pytest.mark.parametrize("attack", ["corner", "property", "evolve", "gradient", "smt"])
def test_a_type_that_refuses_some_values(attack):
    true = bound(lambda z: Sides(4 * z.x * z.y, "<=", 1), Shares)
    outcome = audit(true, seconds=2, attacks=[attack]).outcome
    assert outcome == ("gave up" if attack == "smt" else "survived")  # a solver that finds none proposes none
    false = bound(lambda z: Sides(5 * z.x * z.y, "<=", 1), Shares)
    assert audit(false, seconds=8, attacks=[attack]).outcome == "refuted"


def test_an_instance_without_fields():
    assert audit(bound(lambda z: Sides(0, "<=", 1), Nothing), seconds=1).exhaustive
    assert audit(bound(lambda z: Sides(2, "<=", 1), Nothing), seconds=1).outcome == "refuted"


def test_a_missing_library_is_said(monkeypatch):
    monkeypatch.setattr("assay.audits.engine.missing_library", lambda name: "z3" if name == "smt" else None)
    report = audit(TRUE, seconds=0.3)
    assert report.effort.attacks["smt"].status == "skipped: needs z3, which the extra 'audit' brings"


def test_what_was_found_is_tried_first_next_time(tmp_path):
    store = Store(tmp_path)
    first = audit(FALSE, seconds=5, store=store)
    assert store.load(FALSE) == [first.counterexample.instance]
    again = audit(FALSE, seconds=5, store=store)
    assert again.found_by == "store"
    assert again.effort.evaluations == 1


def test_a_store_that_is_none_is_refused(tmp_path):
    store = Store(tmp_path)
    store.path(FALSE).write_text("{]")
    with pytest.raises(InputError, match="delete it to start afresh"):
        audit(FALSE, seconds=1, store=store)


def test_a_stored_instance_of_another_shape_is_skipped(tmp_path):
    store = Store(tmp_path)
    store.save(FALSE, Pair(Fraction(1), Fraction(1)))
    document = json.loads(store.path(FALSE).read_text())
    document["instances"].insert(0, {"z": "1"})
    store.path(FALSE).write_text(json.dumps(document))
    assert store.load(FALSE) == [Pair(Fraction(1), Fraction(1))]


def test_the_report_is_json_without_loss():
    report = audit(FALSE, seconds=2)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["outcome"] == "refuted"
    assert data["counterexample"]["instance"] == {"x": "1", "y": "1"}
    assert data["counterexample"]["verdict"]["lhs"] == "3"
    survived = json.loads(json.dumps(audit(CUBE, seconds=0.3).to_dict()))
    assert 1 <= survived["closest"]["slack"] < 2  # one side is 0


def test_the_names_of_the_package():
    assert assay.audit is audit
    with pytest.raises(AttributeError):
        _ = assay.nothing
