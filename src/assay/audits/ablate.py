"""Ablation: which premises carry a claim?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from assay.audits.engine import audit
from assay.audits.report import AuditReport
from assay.core.claim import Bound, Claim, Limit, Premise, Sides
from assay.core.errors import InputError
from assay.core.verdict import Counterexample, evaluate


@dataclass(frozen=True, slots=True)
class Ablation:
    """What happens to a claim when one premise is dropped.

    `role` is ``needed`` (here is an instance that breaks only this premise, and the claim with it), ``defines`` (without
    it the sides are not even defined somewhere; `reason` says where), ``not needed as far as seen`` (the audit of
    the rest survived instances that break it), ``never broken`` (no instance that was looked at breaks it: the
    type's own ranges imply it), ``fixed`` (constructed or assumed: there is nothing to drop) or ``undecided``.
    """

    premise: Premise
    role: str
    reason: str
    witness: Counterexample | None = None
    report: AuditReport | None = None


def ablate(claim: Claim, *, seconds: float = 10, seed: int = 0) -> tuple[Ablation, ...]:
    """Drop each premise in turn, and look for a counterexample; the budget is shared.

    >>> from assay.missions._template.claims import amgm
    >>> [(a.premise.name, a.role) for a in ablate(amgm, seconds=0.5)]
    [('all non-negative', 'never broken')]

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
    try:
        report = audit(claim, seconds=seconds, seed=seed, without=(premise.name,))
    except InputError as error:
        return Ablation(premise, "defines", str(error))
    if report.outcome == "refuted":
        return Ablation(premise, "needed", report.reason, report.counterexample, report)
    if report.outcome == "survived" and not _ever_broken(premise, report):
        reason = (
            f"none of {len(report.trace)} instances looked at breaks it: the ranges of "
            f"{claim.instance.__name__} see to it; widen them to learn more"
        )
        return Ablation(premise, "never broken", reason, None, report)
    if report.outcome == "survived":
        return Ablation(premise, "not needed as far as seen", report.reason, None, report)
    return Ablation(premise, "undecided", report.reason, None, report)


def _ever_broken(premise: Premise, report: AuditReport) -> bool:
    """Whether some instance that the audit without `premise` looked at breaks it."""
    probe = replace(report.claim, form=Bound(lambda _: Sides(0, "<=", 0)), premises=(premise,))
    return any(not evaluate(probe, a.instance, max_precision=256).applies for a in report.trace)
