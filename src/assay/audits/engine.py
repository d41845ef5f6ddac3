"""The audit: attacks take turns on one target until one refutes the claim or the budget is spent."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from assay.audits.attacks import ATTACKS, Attack, missing_library
from assay.audits.limit import cut_short
from assay.audits.mutate import damaged
from assay.audits.report import AttackEffort, AuditReport, Effort, Resolution
from assay.audits.shrink import as_counterexample, shrink
from assay.audits.space import has_strategy
from assay.audits.statistical import audit_by_sampling
from assay.audits.store import Store
from assay.audits.target import Stopped, Target, shown, sides_function, walked
from assay.audits.widen import dropped
from assay.core.catalog import catalog
from assay.core.claim import Claim, Limit
from assay.core.errors import InputError, UnknownIdError
from assay.core.verdict import Counterexample, evaluate

FIRST_SLICE = 0.1
"""Seconds of an attack's first turn; each round doubles it, so that an easy prey falls at once."""

CLOSER = 3
"""An attack that came closer to a violation in its last turn gets so many times the others' next turn."""

WALK_SHARE = 0.25
"""Share of an audit by sampling that is spent where every path of a draw can be walked."""

SHRINK_SHARE = 0.25
MAX_SHRINK = 3.0
RESOLUTION_SHARE = 0.15

LADDER = tuple(
    Fraction(n, d)
    for n, d in (
        (1, 10**9),
        (1, 10**6),
        (1, 10**4),
        (1, 1000),
        (1, 100),
        (1, 20),
        (1, 10),
        (1, 4),
        (1, 3),
        (1, 2),
        (2, 3),
        (3, 4),
        (9, 10),
        (99, 100),
    )
)
"""Shares by which the right-hand side is reduced to measure an audit's resolution."""


def audit(
    claim: Claim,
    *,
    seconds: float = 10,
    seed: int = 0,
    without: Sequence[str] = (),
    attacks: Sequence[str] | None = None,
    store: Store | None = None,
    claims: Mapping[str, Claim] | None = None,
) -> AuditReport:
    """Attack `claim` for `seconds`.

    The attacks of `ATTACKS` take turns; a violation counts only once exact arithmetic confirms it, and is then
    shrunk.  A `Mean` or `Tail` without an exact path is sampled, and refuted at level alpha by betting.  A `Limit`
    is never evaluated: the claims that imply it are audited instead, and share the budget.

    Args:
        claim: what to attack.
        seconds: the budget, on one core; shrinking is included.
        seed: of the search; statistical draws have their own seeds, from the claim's digest.
        without: names of premises to drop; fields whose ranges imply them are widened.
        attacks: names of the attacks to use, all by default.
        store: counterexamples found before, tried first; a new one is added.
        claims: where to look up what implies a limit; the catalogue by default.

    Raises:
        InputError: no budget, an instance type that cannot be proposed, or sides that raise, are NaN or are not
            deterministic.
        UnknownIdError: no attack of that name.

    >>> from assay.missions._template.claims import amgm
    >>> audit(amgm, seconds=0.5, attacks=["corner"]).outcome
    'survived'
    """
    if not seconds > 0:
        raise InputError(f"an audit of {seconds} seconds looks at nothing; give it a positive budget")
    if not isinstance(claim, Claim):
        raise InputError(f"audit takes a Claim, not a {type(claim).__name__}")
    chosen = list(ATTACKS) if attacks is None else list(attacks)
    for name in chosen:
        if name not in ATTACKS:
            raise UnknownIdError("attack", name, ATTACKS)
    if not chosen:
        raise InputError(f"an audit needs at least one attack of {', '.join(ATTACKS)}")
    if isinstance(claim.form, Limit):
        return _audit_limit(claim, seconds, seed, claims)
    claim = dropped(claim, without)
    if sides_function(claim) is None:
        has_strategy(claim.instance)
        return _audit_sampler(claim, seconds, seed, tuple(without), chosen, store)
    return _Audit(claim, seconds, seed, tuple(without), chosen, store).run()


def _audit_sampler(
    claim: Claim, seconds: float, seed: int, without: tuple[str, ...], chosen: list[str], store: Store | None
) -> AuditReport:
    """Exactly where the sampler's randomness is finite and small; the rest of the time, and elsewhere, by betting."""
    started = time.monotonic()
    exact = _Audit(walked(claim), WALK_SHARE * seconds, seed, without, chosen, None).run()
    if exact.counterexample is not None:
        found = exact.counterexample.instance
        if store is not None:
            store.save(claim, found)
        return replace(
            exact, claim=claim, counterexample=Counterexample(claim.id, found, evaluate(claim, found))
        )
    left = seconds - (time.monotonic() - started)
    try:
        with cut_short(2 * left):
            report = audit_by_sampling(claim, seconds=left, seed=seed, without=without, store=store)
    except Stopped:
        raise InputError(f"{claim.id}: a draw had not come back when the time was up") from None
    if exact.effort.accepted and report.outcome != "refuted":
        reason = f"{report.reason}; {exact.effort.accepted} smaller instances were decided exactly, and hold"
        return replace(report, reason=reason)
    return report


def _audit_limit(claim: Claim, seconds: float, seed: int, claims: Mapping[str, Claim] | None) -> AuditReport:
    assert isinstance(claim.form, Limit)
    known = catalog() if claims is None else claims
    names = claim.form.implied_by
    reports = {n: audit(known[n], seconds=seconds / len(names), seed=seed) for n in names if n in known}
    missing = [n for n in names if n not in known]
    reason = f"a limit is never evaluated; it rests on {', '.join(names) or 'nothing that is finite'}"
    if missing:
        reason += f" ({', '.join(missing)} not in the catalogue)"
    spent = sum(r.effort.seconds for r in reports.values())
    return AuditReport(claim, "gave up", reason, seed, effort=Effort(seconds=spent), implied_by=reports)


class _Audit:
    """One audit of a claim whose sides can be computed."""

    def __init__(
        self,
        claim: Claim,
        seconds: float,
        seed: int,
        without: tuple[str, ...],
        names: list[str],
        store: Store | None,
    ) -> None:
        self.claim, self.seed, self.without, self.store = claim, seed, without, store
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        self.shrink_seconds = min(MAX_SHRINK, SHRINK_SHARE * seconds)
        self.target = Target(claim, seed=seed, seconds=seconds)
        self.states: dict[str, Attack] = {}
        self.status: dict[str, str] = {}
        self.spent = dict.fromkeys(names, 0.0)
        self.counts = dict.fromkeys(names, 0)
        self.found_by = ""
        self.closer: set[str] = set()
        structured = has_strategy(claim.instance)
        for name in names:
            library = missing_library(name)
            if library is not None:
                self.status[name] = f"skipped: needs {library}, which the extra 'audit' brings"
            elif not structured and name != "property":
                self.status[name] = "skipped: the instance type proposes its own values"
            else:
                self.states[name] = ATTACKS[name](self.target, random.Random(f"{seed} {name}"))
                self.status[name] = "ran"

    def run(self) -> AuditReport:
        """Take turns, then say what was found."""
        with cut_short(self.deadline - time.monotonic(), lambda: self.target.considering is not None):
            self._replay()
            self._search()
        return self._report()

    def _search(self) -> None:
        width = FIRST_SLICE
        while self.states and self.target.counterexample is None and time.monotonic() < self.deadline:
            for name in list(self.states):
                if self.target.counterexample is None and not self.target.exhausted:
                    self._turn(name, width)
            width *= 2
            if self.target.exhausted:
                break

    def _replay(self) -> None:
        if self.store is None:
            return
        self.target.until = self.deadline
        try:
            for instance in self.store.load(self.claim):
                self.target.consider(instance)
        except Stopped:
            self.found_by = "store" if self.target.counterexample is not None else ""

    def _turn(self, name: str, width: float) -> None:
        begun, before, closest = time.monotonic(), self.target.evaluations, self.target.closest
        self.target.until = min(begun + width * (CLOSER if name in self.closer else 1), self.deadline)
        try:
            self.states[name].run()
            self.status[name] = "done"
            del self.states[name]
        except Stopped:
            if self.target.counterexample is not None:
                self.found_by = name
        self.closer.discard(name)
        if self.target.closest is not closest:
            self.closer.add(name)
        self.spent[name] += time.monotonic() - begun
        self.counts[name] += self.target.evaluations - before

    def _report(self) -> AuditReport:
        target = self.target
        found, to_hit = target.counterexample, None
        resolution = verdict = None
        if found is not None:
            to_hit = time.monotonic() - self.started
            with suppress(Stopped), cut_short(self.shrink_seconds):
                found = shrink(self.claim, found, seconds=self.shrink_seconds)
            if self.store is not None:
                self.store.save(self.claim, found.instance)
        elif target.decided:
            share = max(1.0, RESOLUTION_SHARE * target.seconds)
            with suppress(Stopped), cut_short(share):
                verdict = None if target.closest is None else target.verdict(target.closest.instance)
                resolution = _resolution(target, seconds=share)
        outcome, reason = self._outcome()
        return AuditReport(
            claim=self.claim,
            outcome=outcome,
            reason=reason,
            seed=self.seed,
            without=self.without,
            counterexample=found,
            found_by=self.found_by,
            seconds_to_hit=to_hit,
            closest=target.closest,
            verdict=verdict,
            exhaustive=target.exhausted and found is None,
            resolution=resolution,
            effort=self._effort(),
            dead_hits=tuple(target.dead_hits),
            trace=tuple(target.trace),
        )

    def _outcome(self) -> tuple[str, str]:
        target = self.target
        if target.counterexample is not None:
            return "refuted", f"{target.counterexample.verdict.reason}, found by {self.found_by}"
        if target.accepted == 0:
            if target.considering is not None:
                return (
                    "gave up",
                    f"a premise had not come back when the time was up, on {shown(target.considering)}",
                )
            if target.proposed == 0:
                return "gave up", "the chosen attacks proposed no instance"
            return "gave up", f"none of {target.proposed} proposed instances meets the premises"
        stuck = ""
        if target.considering is not None:
            stuck = f"an evaluation had not come back when the time was up, on {shown(target.considering)}"
        if target.decided == 0:
            why = stuck or target.undecided
            return "gave up", f"none of {target.evaluations} instances looked at could be decided: {why}"
        floats = [hit for hit in target.dead_hits if hit.stage.startswith("arithmetic")]
        if floats:
            return "gave up", "the sides are floats, and floats show a violation that nothing can confirm"
        failures = [hit for hit in target.dead_hits if hit.stage.startswith("witness")]
        if failures:
            return "gave up", f"the producer's witness fails on {shown(failures[0].instance)}"
        if target.exhausted:
            return "survived", f"all {target.accepted} instances that there are satisfy it"
        return "survived", "; ".join(
            filter(None, [f"{target.evaluations} evaluations found no violation", stuck])
        )

    def _effort(self) -> Effort:
        target = self.target
        attacks = {
            name: AttackEffort(self.counts[name], self.spent[name], self.status[name]) for name in self.status
        }
        return Effort(
            target.proposed,
            target.accepted,
            target.evaluations,
            target.exact_evaluations,
            0,
            time.monotonic() - self.started,
            attacks,
        )


def _resolution(target: Target, *, seconds: float) -> Resolution | None:
    """Mutate the constant by more and more, and ask the closest approaches whether they notice.

    None where the time ran out before the question was settled.
    """
    deadline = time.monotonic() + seconds
    best = [a.instance for a in heapq.nsmallest(6, target.trace, key=lambda a: a.slack)]
    if target.closest is not None:
        best.insert(0, target.closest.instance)
    for damage in LADDER:
        mutant = damaged(target.claim, 1 - damage)
        for instance in dict.fromkeys(best):
            if time.monotonic() > deadline:
                return None
            if _noticed(mutant, instance):
                return Resolution(damage, instance)
    return Resolution(None)


def _noticed(mutant: Claim, instance: object) -> bool:
    return any(as_counterexample(mutant, instance, grade) for grade in ("genuine", "conditional"))
