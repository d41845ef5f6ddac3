"""What every attack shares: one claim, a record of what was seen, and how close each instance came.

An attack proposes instances and reads back a *slack*; the target evaluates in floats where it can, asks the exact
arithmetic whenever floats say that the claim fails or cannot tell, and remembers the closest approach.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from assay.audits.repair import Repair
from assay.audits.tracing import miss
from assay.core.claim import Bound, Claim, Mean, Premise, Sides, Tail, Witness
from assay.core.errors import AssayError, InputError
from assay.core.instance import encode, floated
from assay.core.number import FLOAT_SLACK, Ball, Number, Strength, Truth, as_float, compare
from assay.core.verdict import Counterexample, Verdict, answer_of, enumerated_sides, evaluate

BROKEN = 4.0
"""A slack of at least this much means that a premise is broken; the excess says how far off it is."""

SEARCH_PRECISION = 1024
"""Bits at which the search gives up telling two enclosures apart; confirmation goes further."""

TIE_SHARE, HIT_SHARE = 0.25, 0.5
"""Shares of the time that may go into exact looks at ties and records, and at violations, seen in floats."""

MAX_REPAIRS = 6
"""Equalities of one instance that are repaired one after the other."""

TRACE = 2000
MAX_WALKS = 1000
MAX_SEEN = 300_000
MAX_DEAD_HITS = 50


class Stopped(BaseException):
    """The budget of this attack is spent, or a counterexample was found.

    A `BaseException`, like `KeyboardInterrupt`, so that an optimiser that catches `Exception` lets it through.
    """


@dataclass(frozen=True, slots=True)
class DeadHit:
    """A violation in floats that did not survive confirmation, and the stage that killed it."""

    instance: Any
    slack: float
    stage: str


@dataclass(frozen=True, slots=True)
class Approach:
    """How close an instance came to equality: the relative slack ``(rhs - lhs) / max(|lhs|, |rhs|)``."""

    instance: Any
    slack: float


def slack_of(sides: Sides) -> float:
    """Relative slack: negative where the relation fails, 0 at equality, ``-|lhs - rhs|`` scaled for ``==``.

    Sides that differ in sign, or of which one is 0, say nothing relative: their slack is 1 or more (-1 or less) and grows
    with their distance, up to 2, so that a search sees which way to go.

    >>> slack_of(Sides(Fraction(1), "<=", Fraction(4)))
    0.75
    >>> slack_of(Sides(0, "<=", 0)), slack_of(Sides(0, "<=", 3))
    (0.0, 1.75)
    """
    lhs: Any = _middle(sides.lhs)
    rhs: Any = _middle(sides.rhs)
    if isinstance(lhs, float) or isinstance(rhs, float):
        lhs, rhs = as_float(lhs), as_float(rhs)
        if math.isinf(lhs) or math.isinf(rhs):
            return 0.0 if lhs == rhs else (1.0 if rhs > lhs and sides.relation != "==" else -1.0)
    scale = max(abs(lhs), abs(rhs))
    if scale == 0:
        return 0.0
    if sides.relation == "==":
        return 0.0 - abs(float((rhs - lhs) / scale))
    if lhs * rhs > 0 or abs(lhs) == abs(rhs):
        return float((rhs - lhs) / scale)
    distance = as_float(rhs - lhs)
    far = abs(distance) / (1 + abs(distance)) if math.isfinite(distance) else 1.0
    return math.copysign(1 + far, distance)


def _middle(value: Number) -> Fraction | float:
    if isinstance(value, float):
        return value
    return Fraction(value) if isinstance(value, int | Fraction) else value.midpoint


def sides_function(claim: Claim) -> Callable[[Any], Sides] | None:
    """The function from an instance to what is compared; None where only sampling can tell."""
    form = claim.form
    if isinstance(form, Bound):
        return form.sides
    if isinstance(form, Witness):
        return lambda x: form.sides(x, form.produce(x))
    if isinstance(form, Mean) and form.exact is not None:
        expectation = form.exact
        return lambda x: Sides(expectation(x), form.relation, form.bound(x))
    if isinstance(form, Tail) and form.exact is not None:
        probability = form.exact
        return lambda x: Sides(probability(x), "<=", form.delta(x))
    return None


def walked(claim: Claim) -> Claim:
    """A claim that is sampled as one about the expectation over all paths of a draw, where those can be walked."""
    form = claim.form
    assert isinstance(form, Mean | Tail)
    known: dict[Any, Sides | None] = {}

    def sides(x: Any) -> Sides | None:
        if x not in known:
            if len(known) > MAX_WALKS:
                known.clear()
            known[x] = enumerated_sides(form, x)
        return known[x]

    finite = Premise("the draw has few paths", lambda x: sides(x) is not None)

    def walk(x: Any) -> Sides:
        found = sides(x)
        assert found is not None
        return found

    return replace(claim, form=Bound(walk), premises=(*claim.premises, finite))


class Target:
    """One claim under attack."""

    def __init__(self, claim: Claim, *, seed: int = 0, seconds: float = 10.0) -> None:
        sides = sides_function(claim)
        if sides is None:
            raise InputError(f"{claim.id} has no exact path: its audit samples instead")
        self.claim = claim
        self.sides = sides
        self.seconds = seconds
        self.until = math.inf
        self.evaluations = self.exact_evaluations = self.accepted = self.proposed = self.decided = 0
        self.undecided = ""
        self.closest: Approach | None = None
        self.counterexample: Counterexample | None = None
        self.exhausted = False
        self.dead_hits: list[DeadHit] = []
        self.trace: list[Approach] = []
        self._seen: dict[Any, float] = {}
        self._repair = Repair()
        self.considering: Any = None
        """The instance that is being looked at: what an evaluation that never comes back is stuck on."""
        self._rng = random.Random(seed)
        self._started, self._look_seconds, self._rationed = time.monotonic(), 0.0, False
        self._floats, self._float_failures, self._checked_twice = True, 0, False

    @property
    def acceptance(self) -> float:
        """Share of the proposed instances whose premises hold."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since this target was made."""
        return time.monotonic() - self._started

    def has_seen(self, instance: Any) -> bool:
        """Whether this instance was considered before."""
        return instance in self._seen

    def consider(self, instance: Any) -> float:
        """The relative slack on `instance`, or at least `BROKEN` where a premise fails.

        Raises:
            Stopped: the time is up, or this instance is a confirmed counterexample.
            InputError: the sides raise, return something that is no number, or differ when evaluated again.
        """
        self.check_time()
        self.proposed += 1
        known = self._seen.get(instance)
        if known is not None:
            self.accepted += known < BROKEN
            return known
        self._rationed = False
        self.considering = instance
        slack = self._evaluate(instance, MAX_REPAIRS)
        self.considering = None
        if len(self._seen) < MAX_SEEN and not self._rationed:
            self._seen[instance] = slack
        return slack

    def check_time(self) -> None:
        """End the attack that calls this once its time is up: `consider` does so by itself."""
        if time.monotonic() > self.until or self.counterexample is not None:
            raise Stopped

    def _evaluate(self, instance: Any, repairs: int) -> float:
        distance, equality = self._broken(instance)
        if distance > 0:
            moved = self._repair.repaired(equality, instance) if repairs and equality is not None else None
            if moved is None:
                return BROKEN + distance
            if moved in self._seen:
                self.accepted += self._seen[moved] < BROKEN
                return self._seen[moved]
            slack = self._evaluate(moved, repairs - 1)
            if len(self._seen) < MAX_SEEN and not self._rationed:
                self._seen[moved] = slack
            return slack
        self.accepted += 1
        self.evaluations += 1
        if not self._checked_twice:
            self._check_twice(instance)
        sides = self._float_sides(instance)
        if sides is None:
            return self._exact_slack(instance)
        slack = slack_of(sides)
        suspect = slack <= (0 if sides.relation == "<" else -FLOAT_SLACK)
        record = self.closest is None or slack < self.closest.slack
        if suspect or record or abs(slack) <= FLOAT_SLACK:
            slack = self._exact_look(instance, slack, suspect)
        self._note(instance, slack)
        return slack

    def _exact_look(self, instance: Any, slack: float, suspect: bool) -> float:
        """The slack in exact arithmetic, where floats see a violation, a tie or a record; rationed.

        Floats cancel near equality, and an optimiser that believed them would chase their noise.  What the ration
        leaves unlooked at is not remembered as seen.
        """
        share = HIT_SHARE if suspect else TIE_SHARE
        if self._look_seconds > share * self.elapsed + 0.05:
            self._rationed = True
            return max(slack, 0.0)
        begun = time.monotonic()
        verdict = self.confirm(instance, slack) if suspect else self._look(instance)
        self._look_seconds += time.monotonic() - begun
        if verdict.sides is None:
            return 1.0
        return self._record(instance, verdict)

    def _broken(self, instance: Any) -> tuple[float, Premise | None]:
        """How far off the first broken premise is, in (0, 1], and which one if it ended on an equality; else None.

        0 and None where all hold.
        """
        premises = [p for p in self.claim.premises if p.check is not None]
        for i, premise in enumerate(premises):
            result = self._guard(
                partial(answer_of, premise, instance), instance, f"the premise {premise.name!r} raises"
            )
            equality = False
            if isinstance(result, Sides):
                near, equality = min(1.0, abs(slack_of(result))), result.relation == "=="
                result, _ = compare(result.lhs, result.relation, result.rhs)
            elif Truth.of(result) is Truth.TRUE:
                near = 0.0
            else:
                near, equality = self._nearness(premise, instance)
            if Truth.of(result) is not Truth.TRUE:
                return (len(premises) - i - 1 + max(near, 1e-9)) / len(
                    premises
                ), premise if equality else None
            self._repair.learn(premise, instance)
        return 0.0, None

    def _nearness(self, premise: Premise, instance: Any) -> tuple[float, bool]:
        """How far a premise that only says False is from being true, in (0, 1], and whether an equality is missed."""
        assert premise.check is not None
        missed = miss(premise.check, instance)
        if missed is None:
            return 1.0, False
        distance = abs(as_float(missed.difference))
        return distance / (1 + distance) if math.isfinite(distance) else 1.0, missed.equality

    def _float_sides(self, instance: Any) -> Sides | None:
        """The sides in floats, or None where they cannot be had that way."""
        if not self._floats:
            return None
        try:
            sides = self.sides(floated(instance))
            numbers = as_float(sides.lhs), as_float(sides.rhs)
        except (Exception, SystemExit):  # floats are a short cut: whatever goes wrong, the exact path decides
            numbers = (math.nan, math.nan)
        if math.isnan(numbers[0]) or math.isnan(numbers[1]):
            self._float_failures += 1
            self._floats = self._float_failures < 20 or self._float_failures < self.evaluations * 0.9
            return None
        return Sides(numbers[0], sides.relation, numbers[1])

    def _exact_slack(self, instance: Any) -> float:
        verdict = self._look(instance)
        if verdict.sides is None:
            return 1.0
        slack = self._record(instance, verdict)
        self._note(instance, slack)
        return slack

    def _look(self, instance: Any) -> Verdict:
        """The exact verdict at the search's precision; a violation is kept."""
        verdict = self.verdict(instance, SEARCH_PRECISION)
        if verdict.truth is Truth.FALSE:
            self._keep(instance, verdict, slack_of(verdict.sides) if verdict.sides else -1.0)
        return verdict

    def verdict(self, instance: Any, max_precision: int | None = None) -> Verdict:
        """`evaluate`, with every fault of the claim's own functions told in one sentence."""
        self.exact_evaluations += 1
        more = {} if max_precision is None else {"max_precision": max_precision}
        verdict: Verdict = self._guard(
            lambda: evaluate(self.claim, instance, precision=64, **more), instance, "evaluating it raises"
        )
        if verdict.truth is Truth.UNKNOWN:
            self.undecided = f"{verdict.reason} ({shown(instance)})"
        else:
            self.decided += 1
        return verdict

    def _guard(self, call: Callable[[], Any], instance: Any, what: str) -> Any:
        try:
            return call()
        except AssayError as error:
            raise InputError(f"{self.claim.id}: {error} (on {shown(instance)})") from error
        except (Exception, SystemExit) as error:
            raise InputError(
                f"{self.claim.id}: {what} {type(error).__name__}: {error} on {shown(instance)}; state what "
                "excludes this instance as a premise"
            ) from error

    def confirm(self, instance: Any, slack: float) -> Verdict:
        """The exact verdict on a hit in floats; one that does not stand is kept with the stage that killed it."""
        verdict = self.verdict(instance)
        if verdict.truth is Truth.FALSE:
            self._keep(instance, verdict, slack)
            return verdict
        if not verdict.applies:
            stage = f"premises: {verdict.reason}"
        elif verdict.truth is Truth.TRUE:
            stage = "exact comparison: the claim holds here"
        elif isinstance(self.claim.form, Witness):
            stage = f"witness: {verdict.reason}"
        else:
            stage = f"precision: {verdict.reason}"
        self._bury(instance, slack, stage)
        return verdict

    def _bury(self, instance: Any, slack: float, stage: str) -> None:
        if len(self.dead_hits) < MAX_DEAD_HITS:
            self.dead_hits.append(DeadHit(instance, slack, stage))

    def _keep(self, instance: Any, verdict: Verdict, slack: float) -> None:
        """Stop the audit with this counterexample; a violation in floats proves nothing and is only noted."""
        if verdict.strength is Strength.FLOAT:
            self._bury(instance, slack, "arithmetic: the sides are floats")
            return
        self._check_twice(instance)
        self.counterexample = Counterexample(self.claim.id, instance, verdict)
        raise Stopped

    def _check_twice(self, instance: Any) -> None:
        """The sides must be a function of the instance."""
        first, second = (self.verdict(instance, SEARCH_PRECISION).sides for _ in range(2))
        if first is not None and second is not None:
            if (first.lhs, first.rhs) != (second.lhs, second.rhs):
                raise InputError(
                    f"{self.claim.id}: its sides are not deterministic (they differ when evaluated again on "
                    f"{shown(instance)}); take randomness from the instance or use Mean or Tail"
                )
            self._checked_twice = True

    def _record(self, instance: Any, verdict: Verdict) -> float:
        """Keep the closest approach, and return the slack; 0 against 0 says nothing and is left out.

        Enclosures that overlap are as good as equal: what their midpoints say is noise.
        """
        sides = verdict.sides
        assert sides is not None
        slack = slack_of(sides) if verdict.truth is not Truth.UNKNOWN else 0.0
        if _informative(sides) and (self.closest is None or slack < self.closest.slack):
            self.closest = Approach(instance, slack)
        return slack

    def _note(self, instance: Any, slack: float) -> None:
        """Keep a bounded sample of what was seen, and all of it while it fits."""
        if len(self.trace) < TRACE:
            self.trace.append(Approach(instance, slack))
        elif self._rng.random() < TRACE / self.evaluations:
            self.trace[self._rng.randrange(TRACE)] = Approach(instance, slack)


def _informative(sides: Sides) -> bool:
    """Whether the right-hand side is known to differ from 0."""
    rhs = sides.rhs
    if isinstance(rhs, Ball):
        return not rhs.low <= 0 <= rhs.high
    return rhs != 0


def shown(instance: Any, limit: int = 200) -> str:
    """An instance in one line for a message."""
    body = ", ".join(f"{name}={_plain(value)}" for name, value in encode(instance).items())
    text = f"{type(instance).__name__}({body})"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(_plain(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, dict):
        return "(" + ", ".join(f"{k}={_plain(v)}" for k, v in value.items()) + ")"
    return str(value)
