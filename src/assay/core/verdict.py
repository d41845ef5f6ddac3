"""Verdicts, counterexamples, and `evaluate`: what one instance says about one claim."""

from __future__ import annotations

import hashlib
import json
import math
import random
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from assay.core import instance as instances
from assay.core.claim import Bound, Claim, Limit, Mean, Premise, Sides, Tail, Witness
from assay.core.enumeration import expectation_of, failure_of, law_of
from assay.core.errors import AssayError, InputError
from assay.core.number import Ball, Number, Strength, Truth, as_float, compare, precision

MAX_PRECISION = 1 << 13
"""Bits at which an undecided comparison is left UNKNOWN."""

ALPHA = Fraction(1, 10**6)
"""Miss probability of a statistical verdict."""


@dataclass(frozen=True, slots=True)
class PremiseResult:
    """One premise on one instance: its name, basis and truth."""

    name: str
    basis: str
    truth: Truth


@dataclass(frozen=True, slots=True)
class Verdict:
    """Truth and strength of a claim on one instance, why, and what it rests on.

    `sides` are the two sides that were compared; None where nothing was.  `alpha` is the miss probability of
    a STATISTICAL verdict.
    """

    truth: Truth
    strength: Strength
    reason: str
    sides: Sides | None = None
    premises: tuple[PremiseResult, ...] = ()
    alpha: Fraction | None = None
    facts: Mapping[str, Number] = field(default_factory=dict)

    @property
    def applies(self) -> bool:
        """False where a premise is broken or undecided: then the instance says nothing."""
        return all(p.truth is Truth.TRUE for p in self.premises)


@dataclass(frozen=True, slots=True)
class Counterexample:
    """An instance whose premises hold and on which the claim is FALSE.

    `grade` is ``genuine`` (premises checked or constructed, violation enclosed or exact), ``conditional``
    (a premise is only assumed), ``statistical`` (at level `Verdict.alpha`) or ``numerical`` (floats only).
    """

    claim_id: str
    instance: Any
    verdict: Verdict

    def __post_init__(self) -> None:
        if self.verdict.truth is not Truth.FALSE:
            raise InputError(f"a counterexample to {self.claim_id} needs a FALSE verdict")

    @property
    def grade(self) -> str:
        """Worst defect first: a float hit stays ``numerical`` however its premises stand."""
        if self.verdict.strength is Strength.FLOAT:
            return "numerical"
        if any(p.basis == "assumed" for p in self.verdict.premises):
            return "conditional"
        return "statistical" if self.verdict.strength is Strength.STATISTICAL else "genuine"


def evaluate(
    claim: Claim, instance: Any, *, precision: int = 128, draws: int = 0, max_precision: int = MAX_PRECISION
) -> Verdict:
    """What `instance` says about `claim`.

    Premises are checked first, in their order: a broken one makes the instance say nothing (UNKNOWN, "premise
    broken"), and those after it, which may presuppose it, are not looked at and stay UNKNOWN.
    Enclosures that overlap are recomputed at doubled precision, from `precision` bits up to `max_precision`.
    A `Mean` or `Tail` without an exact path samples `draws` times, with seeds from the claim's digest, and
    answers at level `ALPHA` by Hoeffding's inequality; where no draws are asked and the sampler's randomness is
    finite, all of its paths are walked and the answer is exact.

    Raises:
        InputError: the instance is of another type, or a side returns something that is no number.
    """
    if not isinstance(instance, claim.instance):
        raise InputError(
            f"{claim.id} speaks of a {claim.instance.__name__}, not of a {type(instance).__name__}"
        )
    form = claim.form
    if isinstance(form, Limit):
        return Verdict(
            Truth.UNKNOWN, Strength.EXACT, f"a limit is never evaluated; see {', '.join(form.implied_by)}"
        )
    premises = _premises(claim, instance, precision, max_precision)
    broken = [p for p in premises if p.truth is Truth.FALSE] or [
        p for p in premises if p.truth is Truth.UNKNOWN
    ]
    if broken:
        word = "broken" if broken[0].truth is Truth.FALSE else "undecided"
        return Verdict(Truth.UNKNOWN, Strength.EXACT, f"premise {word}: {broken[0].name}", None, premises)
    if isinstance(form, Bound):
        return _decide(lambda: form.sides(instance), premises, precision, max_precision)
    if isinstance(form, Witness):
        return _witness(form, instance, premises, precision, max_precision)
    exact = form.exact
    if exact is not None:
        if isinstance(form, Mean):
            relation, right = form.relation, form.bound
        else:
            relation, right = "<=", form.delta
        return _decide(
            lambda: Sides(exact(instance), relation, right(instance)), premises, precision, max_precision
        )
    if draws <= 0:
        if enumerated_sides(form, instance) is not None:
            return _decide(
                lambda: typing.cast(Sides, enumerated_sides(form, instance)),
                premises,
                precision,
                max_precision,
            )
        return Verdict(
            Truth.UNKNOWN, Strength.STATISTICAL, "no exact path, and no draws were asked", None, premises
        )
    return _sample(claim, instance, premises, draws)


def _premises(claim: Claim, instance: Any, bits: int, limit: int) -> tuple[PremiseResult, ...]:
    results: list[PremiseResult] = []
    for premise in claim.premises:
        if any(r.truth is Truth.FALSE for r in results):
            results.append(PremiseResult(premise.name, premise.basis, Truth.UNKNOWN))
        else:
            results.append(_premise(premise, instance, bits, limit))
    return tuple(results)


def _premise(premise: Premise, instance: Any, bits: int, limit: int) -> PremiseResult:
    if premise.check is None:
        return PremiseResult(premise.name, premise.basis, Truth.TRUE)
    result = answer_of(premise, instance)
    if isinstance(result, Sides):
        check: Callable[[Any], Any] = premise.check
        result = _decide(lambda: check(instance), (), bits, limit).truth
    return PremiseResult(premise.name, premise.basis, Truth.of(result))


def answer_of(premise: Premise, instance: Any) -> bool | Truth | Sides:
    """What the check of a premise answers.

    Raises:
        InputError: it answers with something else, such as a generator, which would count as True.
    """
    assert premise.check is not None
    result = premise.check(instance)
    if isinstance(result, bool | Truth | Sides) or type(result).__name__ in ("bool_", "bool"):
        return result
    raise InputError(
        f"the premise {premise.name!r} answers with a {type(result).__name__}, not True, False or Sides; "
        "all(...) and any(...) make one answer of many"
    )


def _decide(
    sides: Callable[[], Sides], premises: tuple[PremiseResult, ...], bits: int, limit: int
) -> Verdict:
    """Compare at rising precision until decided; exact sides and floats need one look."""
    outcome, strength, truth = None, Strength.ENCLOSED, Truth.UNKNOWN
    while True:
        with precision(bits):
            try:
                outcome = sides()
            except ZeroDivisionError:
                truth = Truth.UNKNOWN
            else:
                _check_sides(outcome)
                truth, strength = compare(outcome.lhs, outcome.relation, outcome.rhs)
        if truth is not Truth.UNKNOWN or strength is not Strength.ENCLOSED or bits >= limit:
            break
        bits *= 2
    if outcome is None:
        return Verdict(Truth.UNKNOWN, strength, "a side divides by zero on this instance", None, premises)
    facts = dict(outcome.facts)
    if truth is Truth.UNKNOWN:
        reason = (
            "the floats are too close"
            if strength is Strength.FLOAT
            else f"the enclosures overlap at {bits} bits"
        )
    else:
        reason = f"lhs {outcome.relation} rhs " + ("holds" if truth is Truth.TRUE else "fails")
    return Verdict(truth, strength, reason, outcome, premises, None, facts)


def _check_sides(sides: object) -> None:
    if not isinstance(sides, Sides):
        raise InputError(f"a side function must return Sides(lhs, relation, rhs), not {type(sides).__name__}")
    for side in (sides.lhs, sides.rhs):
        if isinstance(side, bool) or not isinstance(side, int | Fraction | Ball | float):
            raise InputError(f"a side is a {type(side).__name__}, not an int, Fraction, Ball or float")
        if isinstance(side, float) and math.isnan(side):
            raise InputError("a side is NaN on this instance")


def enumerated_sides(form: Mean | Tail, instance: Any) -> Sides | None:
    """The sides of a claim that is sampled, from all paths of a draw; None where they are not finite, or too many.

    Raises:
        InputError: a path leaves the declared support.
    """
    draw = form.draw if isinstance(form, Mean) else form.event
    try:
        law = None if draw is None else law_of(draw, instance)
    except AssayError:
        raise
    except Exception as error:
        raise InputError(f"a draw raises {type(error).__name__}: {error}") from error
    if law is None:
        return None
    if isinstance(form, Tail):
        return Sides(failure_of(law), "<=", form.delta(instance), {"paths": len(law)})
    assert form.support is not None
    low, high = form.support(instance)
    if compare(low, "<", high)[0] is Truth.FALSE:
        raise InputError(f"the declared support [{low}, {high}] is empty or a point")
    for value, _ in law:
        if compare(low, "<=", value)[0] is Truth.FALSE or compare(value, "<=", high)[0] is Truth.FALSE:
            raise InputError(f"a draw of {value!r} is outside the declared support [{low}, {high}]")
    return Sides(expectation_of(law), form.relation, form.bound(instance), {"paths": len(law)})


def _witness(
    form: Witness, instance: Any, premises: tuple[PremiseResult, ...], bits: int, limit: int
) -> Verdict:
    witness = form.produce(instance)
    verdict = _decide(lambda: form.sides(instance, witness), premises, bits, limit)
    if verdict.truth is not Truth.FALSE:
        return verdict
    if form.refute is not None and form.refute(instance):
        return Verdict(
            Truth.FALSE, Strength.EXACT, "a dual proof shows that no witness exists", verdict.sides, premises
        )
    reason = "the producer's witness fails, which refutes the producer and not the theorem"
    return Verdict(Truth.UNKNOWN, verdict.strength, reason, verdict.sides, premises)


def seed_stem(claim: Claim, instance: Any) -> bytes:
    """What all draws of a claim on an instance have in common: a digest of both, so that nobody can shop for seeds."""
    text = json.dumps([claim.digest(), instances.encode(instance)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def seed_of(stem: bytes, draw: int) -> int:
    """The seed of draw number `draw`."""
    return int.from_bytes(hashlib.sha256(stem + b"%d" % draw).digest()[:16], "little")


def _sample(claim: Claim, instance: Any, premises: tuple[PremiseResult, ...], draws: int) -> Verdict:
    """Hoeffding at level ALPHA from a fixed number of draws; the radius is rounded up."""
    form, undecided = claim.form, False
    stem = seed_stem(claim, instance)
    streams = (random.Random(seed_of(stem, i)) for i in range(draws))
    if isinstance(form, Tail):
        assert form.event is not None
        low, high, relation, bound = 0.0, 1.0, "<=", as_float(form.delta(instance))
        events = [form.event(instance, rng) for rng in streams]
        values = [1.0 if event is True else 0.0 for event in events]
        undecided = None in events
    else:
        assert isinstance(form, Mean)
        assert form.draw is not None
        assert form.support is not None
        low, high = (as_float(end) for end in form.support(instance))
        relation, bound = form.relation, as_float(form.bound(instance))
        values = [as_float(form.draw(instance, rng)) for rng in streams]
        outside = next((v for v in values if not low <= v <= high), None)
        if outside is not None:
            raise InputError(
                f"{claim.id}: a draw of {outside!r} is outside the declared support [{low}, {high}]"
            )
    mean = math.fsum(values) / draws
    radius = (high - low) * math.sqrt(math.log(2 / float(ALPHA)) / (2 * draws)) * (1 + 1e-9)
    interval = Ball(Fraction(mean - radius), Fraction(mean + radius))
    truth, _ = compare(interval, relation, Fraction(bound))
    if undecided and truth is Truth.TRUE:  # sound for refuting, never for support
        truth = Truth.UNKNOWN
    reason = f"{draws} draws put the expectation in [{mean - radius:.6g}, {mean + radius:.6g}]"
    sides = Sides(interval, relation, Fraction(bound))
    return Verdict(
        truth, Strength.STATISTICAL, reason, sides, premises, ALPHA, {"draws": draws, "mean": mean}
    )


__all__ = ["ALPHA", "Counterexample", "PremiseResult", "Verdict", "evaluate", "seed_of", "seed_stem"]
