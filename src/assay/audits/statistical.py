"""Audits by sampling: choose promising instances on screening draws, then bet on fresh ones.

The j-th chosen instance is refuted at level ``alpha / (j (j + 1))``; those add up to alpha, so that the whole
audit is wrong with probability at most alpha, however often one looks and however long it runs.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from assay.audits.attacks.corner import Corner
from assay.audits.attacks.evolve import Evolve
from assay.audits.report import AttackEffort, AuditReport, Effort
from assay.audits.sampling import Evidence, Stream, refutes, screening_score
from assay.audits.shrink import plainer
from assay.audits.space import has_strategy
from assay.audits.store import Store
from assay.audits.target import BROKEN, Approach, Stopped, shown
from assay.core.claim import Bound, Claim, Mean, Sides
from assay.core.errors import AssayError, InputError
from assay.core.number import Ball, Strength, Truth
from assay.core.verdict import ALPHA, Counterexample, PremiseResult, Verdict, evaluate
from assay.stats.betting import lower_limit

SCREEN_SHARE = 0.4
SCREEN_LIMIT = 400
STAGES = ((16, 96), (128, 24), (1024, 6))
"""Screening draws per instance, and how many instances go on to the next stage; the last ones are bet on."""

SHRINK_SHARE = 0.25
PATIENCE = 2

BLOCK = 128
MAX_BLOCK = 2048


class Screen:
    """What the attacks see instead of a `Target`: a noisy score from a few screening draws."""

    seconds = 0.0
    """Too noisy and too dear for the heavy optimiser."""

    def __init__(self, claim: Claim, until: float) -> None:
        self.claim, self.until = claim, until
        self.closest: Approach | None = None
        self.exhausted = False
        self.proposed = self.accepted = self.draws = 0
        self.scores: dict[Any, float] = {}

    elapsed = 0.0

    def has_seen(self, instance: Any) -> bool:
        """Whether this instance was screened before."""
        return instance in self.scores

    def choose(self) -> list[Any]:
        """The most promising instances, after more draws on fewer and fewer of them; best first."""
        scores = dict(self.scores)
        start = STAGES[0][0]
        for (_, keep), (stop, _) in itertools.pairwise(STAGES):
            best = heapq.nlargest(keep, scores, key=scores.__getitem__)
            scores = {}
            for instance in best:
                scores[instance] = screening_score(Stream(self.claim, instance), start, stop)
                self.draws += stop - start
                if time.monotonic() > self.until:
                    break
            start = stop
        return heapq.nlargest(STAGES[-1][1], scores, key=scores.__getitem__)

    def consider(self, instance: Any) -> float:
        """Minus the score of an instance whose premises hold; at least `BROKEN` otherwise."""
        if time.monotonic() > self.until or self.accepted >= SCREEN_LIMIT:
            raise Stopped
        self.proposed += 1
        if instance in self.scores:
            return -self.scores[instance]
        if not _premises_hold(self.claim, instance):
            return BROKEN + 1
        self.accepted += 1
        draws = STAGES[0][0]
        score = screening_score(Stream(self.claim, instance), 0, draws)
        self.draws += draws
        self.scores[instance] = score
        if self.closest is None or -score < self.closest.slack:
            self.closest = Approach(instance, -score)
        return min(-score, BROKEN - 1)


def _premises_hold(claim: Claim, instance: Any) -> bool:
    return all(p.truth is Truth.TRUE for p in _premises(claim, instance))


def _premises(claim: Claim, instance: Any) -> tuple[PremiseResult, ...]:
    """Its premises alone: nothing is drawn."""
    try:
        return evaluate(replace(claim, form=Bound(lambda _: Sides(0, "<=", 0))), instance).premises
    except AssayError as error:
        raise InputError(f"{claim.id}: {error} (on {shown(instance)})") from error
    except Exception as error:
        raise InputError(
            f"{claim.id}: a premise raises {type(error).__name__}: {error} on {shown(instance)}"
        ) from error


@dataclass(slots=True)
class Candidate:
    """A chosen instance, its level and its evidence."""

    stream: Stream
    alpha: Fraction
    evidence: Evidence


def audit_by_sampling(
    claim: Claim,
    *,
    seconds: float,
    seed: int,
    without: tuple[str, ...] = (),
    store: Store | None = None,
    alpha: Fraction = ALPHA,
) -> AuditReport:
    """`assay.audit` for a `Mean` or `Tail` that only sampling can tell.

    With a store, the evidence of earlier runs of the same code is continued, not restarted.
    """
    started = time.monotonic()
    deadline = started + seconds
    screen = _screened(claim, seed, started + SCREEN_SHARE / 2 * seconds)
    screen.until = started + SCREEN_SHARE * seconds
    promising = screen.choose()
    screening = AttackEffort(screen.accepted, time.monotonic() - started, "ran")
    kept = {} if store is None else store.load_evidence(claim)
    chosen = list(dict.fromkeys([*kept, *promising]))
    candidates = [_candidate(claim, instance, rank, kept, alpha) for rank, instance in enumerate(chosen, 1)]
    refuted = _bet(candidates, deadline)
    if refuted is not None:
        refuted = _shrunk(claim, refuted, len(candidates), time.monotonic() + SHRINK_SHARE * seconds, alpha)
    if store is not None:
        store.save_evidence(claim, {c.stream.instance: c.evidence for c in candidates})
        if refuted is not None:
            store.save(claim, refuted.stream.instance)
    effort = Effort(
        screen.proposed,
        screen.accepted,
        screen.accepted,
        0,
        sum(c.evidence.draws for c in candidates) + screen.draws,
        time.monotonic() - started,
        {"screen": screening, "bet": AttackEffort(len(candidates), time.monotonic() - started, "ran")},
    )
    best = max(candidates, key=lambda c: c.evidence.log_e, default=None)
    report: dict[str, Any] = {"claim": claim, "seed": seed, "without": without, "effort": effort}
    if refuted is not None:
        found = Counterexample(claim.id, refuted.stream.instance, _refutation(claim, refuted, alpha))
        return AuditReport(
            outcome="refuted", reason=found.verdict.reason, counterexample=found, found_by="bet", **report
        )
    if best is None:
        reason = f"none of {screen.proposed} proposed instances meets the premises"
        return AuditReport(outcome="gave up", reason=reason, **report)
    reason = (
        f"{effort.draws} draws on {len(candidates)} instances; the best e-value is e^{best.evidence.log_e:.2f}, "
        f"and {float(1 / best.alpha):.3g} is needed"
    )
    closest = Approach(best.stream.instance, float(best.stream.upper) - best.evidence.mean)
    return AuditReport(outcome="survived", reason=reason, closest=closest, **report)


def _screened(claim: Claim, seed: int, until: float) -> Screen:
    screen = Screen(claim, until)
    if not has_strategy(claim.instance):
        rng = random.Random(f"{seed} propose")
        try:
            while True:
                screen.consider(claim.instance.propose(rng))  # type: ignore[attr-defined]
        except Stopped:
            return screen
    half = screen.until - (screen.until - time.monotonic()) / 2
    for attack, end in ((Corner, half), (Evolve, until)):
        screen.until = end
        try:
            attack(screen, random.Random(f"{seed} {attack.__name__}")).run()  # type: ignore[arg-type]
        except Stopped:
            continue
    return screen


def _candidate(
    claim: Claim, instance: Any, rank: int, kept: Mapping[Any, Evidence], alpha: Fraction
) -> Candidate:
    stream = Stream(claim, instance)
    return Candidate(stream, alpha / (rank * (rank + 1)), kept.get(instance) or Evidence.start(stream))


def _bet(candidates: list[Candidate], deadline: float) -> Candidate | None:
    """Draw in turns, in growing blocks, until one is refuted or the time is up."""
    block = BLOCK
    while candidates and time.monotonic() < deadline:
        for c in candidates:
            c.evidence = c.evidence.after(
                c.stream, c.stream.values(c.evidence.draws, c.evidence.draws + block)
            )
            if refutes(c.stream, c.evidence, c.alpha):
                return c
            if time.monotonic() > deadline:
                break
        block = min(2 * block, MAX_BLOCK)
    return None


def _shrunk(claim: Claim, found: Candidate, rank: int, deadline: float, alpha: Fraction) -> Candidate:
    """The plainest instance that the same level still refutes: each that is tried gets the next share of it.

    One is given up after `PATIENCE` times the draws that refuted the one before.
    """
    if not has_strategy(claim.instance):
        return found
    improved = True
    while improved:
        improved = False
        for instance in plainer(found.stream.instance):
            if time.monotonic() > deadline:
                return found
            if not _premises_hold(claim, instance):
                continue
            rank += 1
            candidate = _candidate(claim, instance, rank, {}, alpha)
            limit = PATIENCE * found.evidence.draws
            if _refuted(candidate, limit, deadline):
                found, improved = candidate, True
                break
    return found


def _refuted(c: Candidate, limit: int, deadline: float) -> bool:
    """Whether so many draws refute it; an instance that promises nothing after the first block is let go."""
    block = BLOCK
    while c.evidence.draws < limit and time.monotonic() < deadline:
        values = c.stream.values(c.evidence.draws, c.evidence.draws + block)
        c.evidence = c.evidence.after(c.stream, values)
        if refutes(c.stream, c.evidence, c.alpha):
            return True
        if c.evidence.log_e < 0 and c.evidence.draws >= 2 * BLOCK:
            return False
        block = min(2 * block, MAX_BLOCK)
    return False


def _refutation(claim: Claim, c: Candidate, alpha: Fraction) -> Verdict:
    """The verdict: a one-sided enclosure of the expectation, at level alpha, beyond the bound."""
    stream, evidence = c.stream, c.evidence
    values = stream.values(0, evidence.draws)
    above = evidence.mean > float(stream.upper)
    limit = lower_limit(values if above else 1 - values, c.alpha / 2)
    low, high = (Fraction(limit), Fraction(1)) if above else (Fraction(0), 1 - Fraction(limit))
    interval = Ball(stream.low + stream.width * low, stream.low + stream.width * high)
    bound = stream.low + stream.width * (stream.upper if above else stream.lower)
    relation = claim.form.relation if isinstance(claim.form, Mean) else "<="
    name = "mean" if isinstance(claim.form, Mean) else "share of failures"
    measured = float(stream.low) + float(stream.width) * evidence.mean
    log_e = evidence.log_e
    shown_e = f"e-value e^{log_e:.1f}" if math.isfinite(log_e) else "which no draw could do"
    reason = (
        f"{evidence.draws} draws with {name} {measured:.6g} refute it at level {float(alpha):g} ({shown_e})"
    )
    facts = {"draws": evidence.draws, "mean": measured}
    return Verdict(
        Truth.FALSE,
        Strength.STATISTICAL,
        reason,
        Sides(interval, relation, bound),
        _premises(claim, stream.instance),
        alpha,
        facts,
    )
