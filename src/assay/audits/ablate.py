"""Ablation: which premises carry a claim?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from assay.audits.engine import audit
from assay.audits.report import AuditReport
from assay.audits.shrink import cost
from assay.audits.target import shown, sides_function
from assay.audits.tracing import truth_of
from assay.audits.widen import dropped
from assay.core.claim import Claim, Limit, Premise
from assay.core.errors import InputError
from assay.core.number import Truth
from assay.core.verdict import Counterexample, evaluate


@dataclass(frozen=True, slots=True)
class Ablation:
    """What happens to a claim where one premise fails and the others hold.

    `role` is ``needed`` (here is an instance that breaks only this premise, and the claim with it), ``defines`` (no
    counterexample was found, but the claim is not even defined somewhere; `reason` says where), ``not needed as far as
    seen`` (every instance looked at that breaks it satisfies the claim), ``never broken`` (no instance was found that
    breaks it and meets the others), ``fixed`` (constructed or assumed: there is nothing to drop) or ``undecided``.

    `report` is the audit of the claim with the premise turned into its opposite: all that it accepted breaks it.
    """

    premise: Premise
    role: str
    reason: str
    witness: Counterexample | None = None
    report: AuditReport | None = None


def ablate(claim: Claim, *, seconds: float = 10, seed: int = 0) -> tuple[Ablation, ...]:
    """Break each premise in turn while the others hold, and look for a counterexample there; the budget is shared.

    Where the ranges of the instance type keep a premise from being broken, the fields it speaks of are widened by
    their own width on either side.

    >>> from assay.missions._template.claims import amgm
    >>> [(a.premise.name, a.role) for a in ablate(amgm, seconds=1)]
    [('all non-negative', 'needed')]

    Raises:
        InputError: the claim is a limit.
    """
    if isinstance(claim.form, Limit):
        raise InputError(f"{claim.id} is a limit: ablate one of {', '.join(claim.form.implied_by)} instead")
    checked = [p for p in claim.premises if p.check is not None]
    share = seconds / max(1, len(checked))
    return tuple(_ablation(claim, premise, share, seed) for premise in claim.premises)


def _ablation(claim: Claim, premise: Premise, seconds: float, seed: int) -> Ablation:
    if premise.check is None:
        return Ablation(premise, "fixed", f"it is {premise.basis}: no instance breaks it")
    free, outside = dropped(claim, [premise.name]), Outside()
    sampled = sides_function(claim) is None
    try:
        if sampled:  # its draws are seeded by the claim, so it is attacked as a replay will look at it
            report = audit(free, seconds=seconds, seed=seed)
        else:
            report = audit(broken(claim, premise, free.instance, outside), seconds=seconds, seed=seed)
    except InputError as error:
        return Ablation(premise, "defines", str(error))
    found = report.counterexample
    if found is not None:
        if sampled and truth_of(premise, found.instance) is not Truth.FALSE:
            return Ablation(premise, "undecided", "the claim falls where all premises hold", None, report)
        witness = (
            found if sampled else Counterexample(claim.id, found.instance, evaluate(free, found.instance))
        )
        return Ablation(premise, "needed", witness.verdict.reason, witness, report)
    if sampled and report.outcome == "survived":
        return Ablation(premise, "not needed as far as seen", report.reason, None, report)
    if report.outcome == "survived":
        tried = f"the claim holds on all {report.effort.accepted} instances tried that break it and meet the others"
        if outside.first:
            return Ablation(
                premise, "defines", f"{outside.first}; where it is defined, {tried}", None, report
            )
        return Ablation(premise, "not needed as far as seen", tried, None, report)
    if report.effort.accepted == 0:
        if outside.first:
            return Ablation(premise, "defines", outside.first, None, report)
        reason = f"none of {report.effort.proposed} instances breaks it while the other premises hold"
        return Ablation(premise, "never broken", reason, None, report)
    return Ablation(premise, "undecided", report.reason, None, report)


@dataclass
class Outside:
    """The plainest instance on which the claim turned out not to be defined, in words."""

    first: str = ""
    cost: tuple[float, float] = (math.inf, math.inf)

    def note(self, what: str, error: object, instance: Any) -> None:
        """Keep it, if it is plainer than what was noted before."""
        if cost(instance) < self.cost:
            self.first, self.cost = f"{what} {error} on {shown(instance)}".strip(), cost(instance)


def broken(claim: Claim, premise: Premise, kind: type, outside: Outside) -> Claim:
    """The claim over `kind` with `premise` negated, confined to where it is defined."""
    others = tuple(_negated(p) if p is premise else _guarded(p, outside) for p in claim.premises)
    opposite = replace(claim, instance=kind, premises=others)
    defined = Premise(
        "both sides are defined", lambda x: _defined(replace(opposite, premises=()), x, outside)
    )
    return replace(opposite, premises=(*others, defined))


def _negated(premise: Premise) -> Premise:
    return Premise(f"not: {premise.name}", lambda x: truth_of(premise, x) is Truth.FALSE)


def _guarded(premise: Premise, outside: Outside) -> Premise:
    check = premise.check
    if check is None:
        return premise
    return replace(premise, check=_guard(check, f"the premise {premise.name!r} raises", outside))


def _guard(check: Callable[[Any], Any], what: str, outside: Outside) -> Callable[[Any], Any]:
    def guarded(x: Any) -> Any:
        try:
            return check(x)
        except (Exception, SystemExit) as error:  # whatever it is, the premise has no value here
            outside.note(what, f"{type(error).__name__}: {error}", x)
            return False

    return guarded


def _defined(claim: Claim, instance: Any, outside: Outside) -> bool:
    try:
        verdict = evaluate(claim, instance, precision=64, max_precision=64)
    except (Exception, SystemExit) as error:  # whatever it is, the sides have no value here
        outside.note("a side raises", f"{type(error).__name__}: {error}", instance)
        return False
    if verdict.sides is None:
        outside.note("", verdict.reason.removesuffix(" on this instance"), instance)
    return verdict.sides is not None
