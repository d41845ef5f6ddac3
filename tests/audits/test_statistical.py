"""Audits by sampling: evidence is counted, continued, and the same for any number of workers."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Annotated

import pytest

from assay import Claim, Length, Mean, Premise, Range, Strength, Tail, audit, evaluate
from assay.audits import Store
from assay.audits.sampling import Evidence, Stream, blocks, joined, refutes
from assay.core.errors import InputError
from assay.core.verdict import ALPHA, seed_of, seed_stem

from .claims import FAIR, SOURCE, UNFAIR, Coin, Named

HALF = Coin(Fraction(1, 2))


def test_a_true_mean_survives():
    report = audit(FAIR, seconds=1.5)
    assert report.outcome == "survived"
    assert report.effort.draws > 1000


def test_a_false_tail_is_refuted_at_level_alpha():
    report = audit(UNFAIR, seconds=5)
    assert report.outcome == "refuted"
    found = report.counterexample
    assert found.grade == "statistical"
    assert found.verdict.strength is Strength.STATISTICAL
    assert found.verdict.alpha == ALPHA
    sides = found.verdict.sides
    assert sides.lhs.low > sides.rhs
    assert sides.lhs.low < found.instance.prob


@dataclasses.dataclass(frozen=True)
class Ugly:
    prob: Annotated[Fraction, Range(Fraction(1, 3), Fraction(2, 3))]
    idle: Annotated[tuple[Fraction, ...], Length(1, 3), Range(Fraction(1, 7), 3)]


def test_a_statistical_counterexample_is_shrunk_at_the_same_level():
    claim = dataclasses.replace(UNFAIR, instance=Ugly)
    found = audit(claim, seconds=5).counterexample
    assert found.grade == "statistical"
    assert found.verdict.alpha == ALPHA
    assert found.instance == Ugly(Fraction(1, 2), (Fraction(1),))


def test_what_is_walked_is_exact_and_what_is_not_is_bet_on():
    walked = dataclasses.replace(
        UNFAIR, form=Tail(UNFAIR.form.delta, event=lambda z, rng: rng.random() < z.prob)
    )
    assert audit(walked, seconds=2).counterexample.grade == "genuine"
    report = audit(FAIR, seconds=1.5)
    assert "instances were decided exactly, and hold" in report.reason


def test_seeds_are_those_of_evaluate():
    assert Stream(FAIR, HALF).seed(7) == seed_of(seed_stem(FAIR, HALF), 7)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_any_number_of_workers_draws_the_same(workers):
    stream = Stream(UNFAIR, HALF)
    whole = stream.values(0, 200)
    with ThreadPoolExecutor(workers) as pool:
        dealt = joined(pool.map(lambda b: stream.values(*b), blocks(0, 200, 200 // workers)))
    assert (whole == dealt).all()
    assert Evidence.start(stream).after(stream, dealt) == Evidence.start(stream).after(stream, whole)


def test_evidence_is_continued_by_the_next_run(tmp_path):
    store = Store(tmp_path)
    first = audit(FAIR, seconds=1, store=store)
    kept = store.load_evidence(FAIR)
    second = audit(FAIR, seconds=1, store=store)
    after = store.load_evidence(FAIR)
    assert first.outcome == second.outcome == "survived"
    assert all(after[i].draws > e.draws for i, e in kept.items())
    some, evidence = next(iter(after.items()))
    stream = Stream(FAIR, some)
    afresh = Evidence.start(stream).after(stream, stream.values(0, evidence.draws))
    assert afresh.total == evidence.total
    assert afresh.log_e == pytest.approx(evidence.log_e)


def test_evidence_for_other_code_is_dropped(tmp_path):
    store = Store(tmp_path)
    audit(FAIR, seconds=0.6, store=store)
    changed = dataclasses.replace(FAIR, statement="another")
    assert store.load_evidence(FAIR)
    assert store.load_evidence(changed) == {}


def test_evidence_against_another_bound_is_dropped(tmp_path):
    def claim(divisor):
        return dataclasses.replace(
            UNFAIR, form=Tail(delta=lambda z: z.prob / divisor, event=UNFAIR.form.event)
        )

    store = Store(tmp_path)
    audit(claim(1), seconds=0.6, store=store)
    assert claim(1).digest() == claim(2).digest()  # the constant is not in the source text of the function
    assert len(store.load_evidence(claim(1))) > 0
    assert (
        store.load_evidence(claim(2))
        .keys()
        .isdisjoint(k for k, e in store.load_evidence(claim(1)).items() if e.wealth != (None,))
    )


def test_a_bound_of_zero_falls_with_the_first_failure():
    claim = Claim("toy.zero", "t", "s", Coin, Tail(delta=lambda z: 0, event=lambda z, rng: True), SOURCE)
    stream = Stream(claim, HALF)
    assert not refutes(stream, Evidence.start(stream), ALPHA)
    assert refutes(stream, Evidence.start(stream).after(stream, stream.values(0, 1)), ALPHA)
    assert audit(claim, seconds=1).outcome == "refuted"


def test_undecided_events_count_as_no_failure():
    claim = Claim(
        "toy.maybe", "t", "s", Coin, Tail(delta=lambda z: Fraction(1, 2), event=lambda z, rng: None), SOURCE
    )
    assert Stream(claim, HALF).values(0, 10).sum() == 0


def sampled(draw, support=lambda z: (0, 1)):
    return Claim("toy.draw", "t", "s", Coin, Mean(bound=lambda z: 1, draw=draw, support=support), SOURCE)


def test_a_draw_outside_the_declared_support():
    with pytest.raises(InputError, match="outside the declared support"):
        audit(sampled(lambda z, rng: 2), seconds=1)


def test_a_draw_that_raises_or_is_nan():
    with pytest.raises(InputError, match="a draw raises ZeroDivisionError"):
        audit(sampled(lambda z, rng: 1 / 0), seconds=1)
    with pytest.raises(InputError, match="is NaN"):
        audit(sampled(lambda z, rng: float("nan")), seconds=1)


def test_an_empty_support():
    with pytest.raises(InputError, match="is empty or a point"):
        audit(sampled(lambda z, rng: 0, support=lambda z: (1, 1)), seconds=1)


def test_no_accepted_instance_gives_up():
    claim = dataclasses.replace(FAIR, premises=(Premise("never", lambda z: False),))
    assert audit(claim, seconds=0.5).outcome == "gave up"


def test_no_strategy():
    with pytest.raises(InputError, match="classmethod propose"):
        audit(dataclasses.replace(FAIR, instance=Named), seconds=1)


def test_the_interval_of_evaluate_agrees():
    verdict = evaluate(FAIR, HALF, draws=500)
    assert verdict.sides.lhs.low < Fraction(1, 2) < verdict.sides.lhs.high
