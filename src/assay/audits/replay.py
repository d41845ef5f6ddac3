"""Looking at one instance again: what a replay line does."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from assay.audits.sampling import Evidence, Stream, refutes
from assay.audits.target import sides_function
from assay.core.claim import Claim
from assay.core.errors import InputError
from assay.core.instance import decode, encode
from assay.core.number import Ball, Strength, Truth, as_float
from assay.core.verdict import ALPHA, Counterexample, Verdict, evaluate


def replay(claim: Claim, instance: Any, *, draws: int = 0) -> Verdict:
    """What `instance` says about `claim`: as `evaluate`, and by betting where only `draws` draws can tell.

    A counterexample that an audit found by sampling is found again here, draw by draw: the seeds are the claim's.
    """
    verdict = evaluate(claim, instance, draws=draws)
    if sides_function(claim) is not None or not verdict.applies or draws <= 0:
        return verdict
    stream = Stream(claim, instance)
    evidence = Evidence.start(stream).after(stream, stream.values(0, draws))
    if not refutes(stream, evidence, ALPHA):
        return verdict
    assert verdict.sides is not None
    return Verdict(
        Truth.FALSE,
        Strength.STATISTICAL,
        f"the same {draws} draws refute it at level {float(ALPHA):g}",
        verdict.sides,
        verdict.premises,
        ALPHA,
        verdict.facts,
    )


def instance_from(claim: Claim, text: str) -> Any:
    """The instance that `text` gives: JSON itself, or a file that holds an instance, a store or a certificate.

    Raises:
        InputError: it is none of these, or no instance of this claim.
    """
    document = _document(text)
    if isinstance(document, dict) and document.get("format") == "assay-counterexamples":
        kept = document.get("instances")
        if not isinstance(kept, list) or not kept:
            raise InputError(f"{text} holds no counterexample")
        document = kept[0]
    elif isinstance(document, dict) and document.get("format") == "assay-certificate":
        document = document.get("instance")
    return decode(claim.instance, document)


def _document(text: str) -> Any:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise InputError(f"{text[:40]!r} is no JSON of an instance: {error}") from None
    try:
        return json.loads(Path(text).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {text}, and it is no JSON of an instance") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{text} holds no JSON: {error}") from None


def replay_arguments(found: Counterexample) -> list[str]:
    """The options with which ``assay audit`` looks at this counterexample again."""
    arguments = ["--replay", json.dumps(encode(found.instance), separators=(",", ":"))]
    draws = draws_of(found.verdict)
    return [*arguments, "--draws", str(draws)] if draws else arguments


def draws_of(verdict: Verdict | None) -> int:
    """The draws that a statistical verdict rests on; 0 for any other."""
    if verdict is None or verdict.strength is not Strength.STATISTICAL:
        return 0
    return int(as_float(verdict.facts.get("draws", 0)))


def gap(verdict: Verdict) -> Fraction | float | None:
    """``lhs - rhs``, from midpoints; None where nothing was compared."""
    if verdict.sides is None:
        return None
    ends = [s.midpoint if isinstance(s, Ball) else s for s in (verdict.sides.lhs, verdict.sides.rhs)]
    if any(isinstance(e, float) for e in ends):
        return float(ends[0]) - float(ends[1])
    return Fraction(ends[0]) - Fraction(ends[1])
