"""What an audit found, as data: a page, a table or JSON is made from it elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from assay.audits.target import Approach, DeadHit
from assay.core.claim import Claim
from assay.core.instance import encode
from assay.core.number import as_float, encode_number
from assay.core.verdict import Counterexample, Verdict

OUTCOMES = ("refuted", "survived", "gave up")


@dataclass(frozen=True, slots=True)
class Effort:
    """What was spent: proposals, accepted ones among them, evaluations (exact ones among them), draws, seconds."""

    proposed: int = 0
    accepted: int = 0
    evaluations: int = 0
    exact_evaluations: int = 0
    draws: int = 0
    seconds: float = 0.0
    attacks: Mapping[str, AttackEffort] = field(default_factory=dict)

    @property
    def acceptance(self) -> float:
        """Share of the proposals whose premises hold."""
        return self.accepted / self.proposed if self.proposed else 0.0


@dataclass(frozen=True, slots=True)
class AttackEffort:
    """One attack's share, and what became of it: ``ran``, ``done`` (nothing left to try) or why it was skipped."""

    evaluations: int
    seconds: float
    status: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """The smallest damage to the right-hand side that this audit notices, and the instance that notices it.

    `damage` d means that the claim with its right-hand side reduced by the share d is refuted by `instance`;
    None if no damage on the ladder is noticed.
    """

    damage: Fraction | None
    instance: Any = None

    def __str__(self) -> str:
        if self.damage is None:
            return "not even the loss of 99 % of the right-hand side would have been noticed"
        return f"a right-hand side smaller by the share {self.damage} would have been noticed"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The outcome of an audit, and everything a reader needs to weigh it.

    `outcome` is ``refuted``, ``survived`` or ``gave up`` (no instance was accepted, or nothing can be evaluated;
    `reason` says why).  `closest` is the closest approach to equality, `verdict` the exact verdict on it.  `dead_hits`
    are violations in floats that died in confirmation.  `implied_by` holds, for a limit, the audits of the claims
    that imply it.
    """

    claim: Claim
    outcome: str
    reason: str
    seed: int
    without: tuple[str, ...] = ()
    counterexample: Counterexample | None = None
    found_by: str = ""
    seconds_to_hit: float | None = None
    closest: Approach | None = None
    verdict: Verdict | None = None
    exhaustive: bool = False
    resolution: Resolution | None = None
    effort: Effort = Effort()
    dead_hits: tuple[DeadHit, ...] = ()
    trace: tuple[Approach, ...] = ()
    implied_by: Mapping[str, AuditReport] = field(default_factory=dict)

    @property
    def acceptance(self) -> float:
        """Share of the proposed instances whose premises hold."""
        return self.effort.acceptance

    @property
    def as_expected(self) -> bool:
        """Whether the outcome is the one that the claim announces; for a limit, whether its finite claims' are."""
        if self.implied_by:
            return all(report.as_expected for report in self.implied_by.values())
        announced = {"survives": "survived", "refuted": "refuted", "undecidable": "gave up"}
        return self.outcome == announced[self.claim.expect]

    def to_dict(self) -> dict[str, Any]:
        """The whole report as JSON without floats among the evidence (timings are plain decimals)."""
        return {
            "claim": self.claim.id,
            "outcome": self.outcome,
            "expected": self.claim.expect,
            "reason": self.reason,
            "seed": self.seed,
            "without": list(self.without),
            "counterexample": self.counterexample and counterexample_document(self.counterexample),
            "found_by": self.found_by,
            "seconds_to_hit": self.seconds_to_hit,
            "closest": self.closest and _approach(self.closest),
            "verdict": self.verdict and verdict_document(self.verdict),
            "exhaustive": self.exhaustive,
            "resolution": self.resolution
            and {
                "damage": None if self.resolution.damage is None else str(self.resolution.damage),
                "instance": self.resolution.instance and encode(self.resolution.instance),
            },
            "acceptance": self.acceptance,
            "effort": {
                "proposed": self.effort.proposed,
                "accepted": self.effort.accepted,
                "evaluations": self.effort.evaluations,
                "exact_evaluations": self.effort.exact_evaluations,
                "draws": self.effort.draws,
                "seconds": round(self.effort.seconds, 3),
                "attacks": {
                    name: {"evaluations": a.evaluations, "seconds": round(a.seconds, 3), "status": a.status}
                    for name, a in self.effort.attacks.items()
                },
            },
            "numerical": [{**_approach(hit), "stage": hit.stage} for hit in self.dead_hits],
            "implied_by": {name: report.to_dict() for name, report in self.implied_by.items()},
        }


def counterexample_document(found: Counterexample) -> dict[str, Any]:
    """A counterexample as JSON."""
    return {
        "claim": found.claim_id,
        "grade": found.grade,
        "instance": encode(found.instance),
        "verdict": verdict_document(found.verdict),
    }


def _approach(approach: Approach | DeadHit) -> dict[str, Any]:
    return {"instance": encode(approach.instance), "slack": approach.slack}


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON, both sides exact and in six digits."""
    result: dict[str, Any] = {
        "truth": verdict.truth.value,
        "strength": verdict.strength.value,
        "reason": verdict.reason,
        "premises": [{"name": p.name, "basis": p.basis, "truth": p.truth.value} for p in verdict.premises],
    }
    if verdict.sides is not None:
        sides = verdict.sides
        result |= {
            "lhs": encode_number(sides.lhs),
            "relation": sides.relation,
            "rhs": encode_number(sides.rhs),
            "lhs_decimal": f"{as_float(sides.lhs):.6g}",
            "rhs_decimal": f"{as_float(sides.rhs):.6g}",
        }
    if verdict.alpha is not None:
        result["alpha"] = str(verdict.alpha)
    return result
