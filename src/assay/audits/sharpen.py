"""Sharpening: by how much could the right-hand side shrink before a counterexample appears?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from assay.audits.engine import audit
from assay.audits.mutate import altered, damaged
from assay.audits.report import AuditReport
from assay.audits.shrink import as_counterexample
from assay.core.claim import Claim, Limit, Mean, Sides
from assay.core.errors import InputError
from assay.core.number import as_float
from assay.core.verdict import Counterexample, Verdict, evaluate
from assay.numerics.arb import log

SCALES = ("value", "exponent")
ROUNDS = 4
MARGIN = Fraction(1, 10**9)


@dataclass(frozen=True, slots=True)
class Sharpening:
    """The best constant of a bound, from both sides.

    The claim with its right-hand side times `refuted_at` is refuted by `extremal`; times `survived_at` it survived the
    audit.  The best factor lies between the two if the claim holds at `survived_at`.  `refuted_at` is None if
    no factor was refuted.  `verdict` is the claim's own on the extremal instance.
    """

    claim: Claim
    scale: str
    refuted_at: Fraction | None
    survived_at: Fraction | None
    extremal: Any
    verdict: Verdict | None
    witness: Counterexample | None
    evaluations: int

    @property
    def tight(self) -> bool:
        """Whether a loss of a millionth of the right-hand side is already refuted."""
        return self.refuted_at is not None and self.refuted_at >= 1 - Fraction(1, 10**6)


def sharpen(claim: Claim, *, seconds: float = 20, seed: int = 0, scale: str = "value") -> Sharpening:
    """Bracket the largest factor by which the right-hand side of `claim` can shrink.

    Args:
        claim: an inequality; an identity has nothing to sharpen.
        seconds: the budget.
        seed: of the search.
        scale: ``value`` multiplies the right-hand side; ``exponent`` multiplies its logarithm, which is the
            constant that matters in bounds of the form exp(c x) on positive quantities.

    Raises:
        InputError: a limit, an identity, a claim that only sampling can tell, or an unknown scale.
    """
    if scale not in SCALES:
        raise InputError(f"the scale {scale!r} is none of {', '.join(SCALES)}")
    if isinstance(claim.form, Limit):
        raise InputError(f"{claim.id} is a limit: sharpen one of {', '.join(claim.form.implied_by)} instead")
    shape = claim if scale == "value" else on_log_scale(claim)
    share = seconds / (ROUNDS + 1)
    report = audit(shape, seconds=share, seed=seed)
    evaluations = report.effort.evaluations
    if _relation(claim, report) == "==":
        raise InputError(f"{claim.id} is an identity: its constant cannot be sharpened, only damaged")
    if report.outcome == "gave up":
        raise InputError(f"{claim.id} cannot be sharpened: {report.reason}")
    extremal, low, high = _approach(report), None, None if report.outcome == "refuted" else Fraction(1)
    if extremal is not None:
        low = _largest_refuted(shape, extremal)
    for round_ in range(ROUNDS):
        if high is not None and low is not None and high - low < 10 * MARGIN:
            break
        trial = _trial(low, high)
        report = audit(damaged(shape, trial), seconds=share, seed=seed + round_ + 1)
        evaluations += report.effort.evaluations
        if report.outcome == "refuted":
            assert report.counterexample is not None
            better = _largest_refuted(shape, report.counterexample.instance)
            if better is not None and (low is None or better > low):
                low, extremal = better, report.counterexample.instance
        else:
            high = trial if high is None else min(high, trial)
    witness = None if low is None else as_counterexample(damaged(shape, low), extremal)
    verdict = None if extremal is None else evaluate(claim, extremal)
    return Sharpening(claim, scale, low, high, extremal, verdict, witness, evaluations)


def _relation(claim: Claim, report: AuditReport) -> str:
    """The relation that is claimed, read off the form or off one of the instances looked at."""
    if isinstance(claim.form, Mean):
        return claim.form.relation
    for seen in report.trace:
        sides = evaluate(claim, seen.instance).sides
        if sides is not None:
            return sides.relation
    return "<="


def _approach(report: AuditReport) -> Any:
    if report.counterexample is not None:
        return report.counterexample.instance
    return report.closest and report.closest.instance


def _trial(low: Fraction | None, high: Fraction | None) -> Fraction:
    """The next factor to try: halfway, or doubling where nothing has survived yet."""
    if high is None:
        return 2 * (low or Fraction(1))
    middle = ((low or Fraction(0)) + high) / 2
    return middle.limit_denominator(10**6) if middle.denominator > 10**6 else middle


def _largest_refuted(claim: Claim, instance: Any) -> Fraction | None:
    """The largest factor that `instance` refutes, to nine digits; None if it refutes none."""
    sides = evaluate(claim, instance).sides
    if sides is None or as_float(sides.rhs) == 0:
        return None
    lhs, rhs = as_float(sides.lhs), as_float(sides.rhs)
    ratio = 1 - (rhs - lhs) / abs(rhs)
    if not math.isfinite(ratio):
        return None
    for margin in (MARGIN, 100 * MARGIN, Fraction(1, 10**5)):
        factor = Fraction(ratio).limit_denominator(10**12) * (1 - margin) if ratio > 0 else Fraction(ratio)
        if as_counterexample(damaged(claim, factor), instance) is not None:
            return factor
    return None


def on_log_scale(claim: Claim) -> Claim:
    """The claim about the logarithms of its two sides; a left-hand side of 0 holds by itself."""

    def logarithms(_: Any, sides: Sides) -> Sides:
        if as_float(sides.lhs) <= 0:
            return Sides(0, sides.relation, 1)
        return Sides(log(sides.lhs), sides.relation, log(sides.rhs), sides.facts)

    return altered(claim, logarithms)
