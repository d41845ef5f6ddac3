"""The rules for kind ``claim-instance``: one theorem, one instance, two sides that were compared.

The sides come from named code that only re-running can recompute (grade ``replay``).  What is recomputed here
is everything between the sides and the verdict: the premises' logic, the comparison, its strength.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from assay_verify import exact
from assay_verify.canonical import array, choice, digest, integer, mapping, text
from assay_verify.outcome import Rejected, Report, Unsupported

__all__ = ["check"]

FORMS = ("bound", "witness", "mean", "tail")
TRUTHS = ("TRUE", "FALSE", "UNKNOWN")
STRENGTHS = ("FLOAT", "STATISTICAL", "ENCLOSED", "EXACT")

_CLAIM_ID = re.compile(r"[^\W\d]\w*\.[^\W\d]\w*\Z")


def check(document: Mapping[str, Any], report: Report) -> None:
    """Check the fields of the kind, and say in `report` what was and was not recomputed.

    Raises:
        Rejected: a field is malformed, or the truth or strength is not what its sides give.
        Unsupported: a form of claim that this checker does not know.
    """
    claim = mapping(document, "claim", "certificate")
    claim_id = text(claim, "id", "claim")
    if not _CLAIM_ID.match(claim_id):
        raise Rejected(f"claim.id = {claim_id[:40]!r} is not of the form mission.name")
    for key in ("title", "source"):
        text(claim, key, "claim")
    for key in ("statement_sha256", "code_sha256"):
        digest(claim, key, "claim")
    form = text(claim, "form", "claim")
    if form == "limit":
        raise Rejected("a limit is never certified: no finite instance says anything about it")
    if form not in FORMS:
        raise Unsupported(f"the form {form[:40]!r} of the claim is unknown to this checker")
    if document["grade"] != "replay":
        raise Rejected("a claim-instance has grade 'replay': its sides come from named code")

    _check_instance(mapping(document, "instance", "certificate"))
    facts = mapping(document, "facts", "certificate")
    for name in facts:
        exact.field(facts, name, "facts")
    integer(document, "precision", "certificate", 2)
    draws = integer(document, "draws", "certificate", 0)
    truth, strength = _check_conclusion(document, form, draws, report)
    report.statement = f"{claim_id} on one instance: {truth}, strength {strength}"


def _check_instance(value: Any) -> None:
    """Strings, booleans, and lists and objects of them: an instance has no other leaves."""
    if isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_instance(item)
    elif not isinstance(value, str | bool):
        raise Rejected("certificate.instance holds a value that is neither a string nor a truth value")


def _check_conclusion(document: Mapping[str, Any], form: str, draws: int, report: Report) -> tuple[str, str]:
    conclusion = mapping(document, "conclusion", "certificate")
    truth = choice(conclusion, "truth", "conclusion", TRUTHS)
    strength = choice(conclusion, "strength", "conclusion", STRENGTHS)
    text(conclusion, "reason", "conclusion")
    given = [key for key in ("lhs", "relation", "rhs") if key in conclusion]

    broken = [p["name"] for p in array(document, "premises", "certificate") if p["truth"] != "TRUE"]
    if broken and truth != "UNKNOWN":
        raise Rejected(
            f"the premise {broken[0][:60]!r} does not hold, so the truth must be UNKNOWN, not {truth}"
        )
    if not given:
        if truth != "UNKNOWN":
            raise Rejected(f"the truth is {truth}, but no sides were compared")
        if "alpha" in conclusion:
            raise Rejected("alpha is given, but no sides were compared")
        report.checked.append("no sides were compared, and the truth is UNKNOWN")
        return truth, strength
    if len(given) < 3:
        raise Rejected("the conclusion needs lhs, relation and rhs together")

    lhs, rhs = (exact.field(conclusion, key, "conclusion") for key in ("lhs", "rhs"))
    relation = choice(conclusion, "relation", "conclusion", exact.RELATIONS)
    found, firmness = exact.compare(lhs, relation, rhs)
    if strength == "STATISTICAL":
        _check_statistics(conclusion, form, draws, lhs, report)
        firmness = "STATISTICAL" if firmness == "ENCLOSED" else firmness
    elif "alpha" in conclusion:
        raise Rejected(f"alpha belongs to STATISTICAL, not to {strength}")
    _check_truth(truth, strength, found, firmness, form, broken, report)
    report.checked.append(f"lhs {relation} rhs compared again: {found}, {firmness}")
    report.unchecked.append("the two sides themselves: they come from the named code (grade replay)")
    return truth, strength


def _check_truth(
    truth: str, strength: str, found: str, firmness: str, form: str, broken: list[str], report: Report
) -> None:
    """`truth` and `strength` are stated; `found` and `firmness` are what the sides give."""
    if form == "witness" and truth == "FALSE" == found and strength == "EXACT":
        report.unchecked.append("that no witness exists: the dual proof comes from the named code")
        return
    if strength != firmness:
        raise Rejected(f"the strength is stated as {strength}, but the sides give {firmness}")
    withheld = truth == "UNKNOWN" and (
        bool(broken)
        or (form == "witness" and found == "FALSE")  # a failing witness refutes its producer only
        or (form == "tail" and strength == "STATISTICAL" and found == "TRUE")  # undecided draws
    )
    if truth != found and not withheld:
        raise Rejected(f"the truth is stated as {truth}, but the sides give {found}")
    if form == "witness" and truth == "FALSE":
        raise Rejected("a failing witness does not make the claim FALSE: that needs a dual proof, EXACT")


def _check_statistics(
    conclusion: Mapping[str, Any], form: str, draws: int, lhs: exact.Number, report: Report
) -> None:
    if "alpha" not in conclusion:
        raise Rejected("STATISTICAL needs alpha, the miss probability")
    alpha = exact.rational(conclusion["alpha"], "conclusion.alpha")
    if not 0 < alpha < 1:
        raise Rejected("conclusion.alpha must lie strictly between 0 and 1")
    if form not in ("mean", "tail"):
        raise Rejected(f"a {form} is never STATISTICAL: nothing is drawn")
    if draws == 0:
        raise Rejected("STATISTICAL needs draws")
    if form == "mean":
        report.unchecked.append("the confidence interval's width: the support of a draw is not in the file")
        return
    # Hoeffding for frequencies in [0, 1]: the half-width must be at least sqrt(ln(2/alpha)/(2 draws)).
    needed = exact.sqrt(exact.log(2 / alpha).low / (2 * draws)).low
    if not isinstance(lhs, exact.Interval) or (lhs.high - lhs.low) / 2 < needed * (1 - Fraction(1, 2**40)):
        raise Rejected(
            "the confidence interval is narrower than Hoeffding's inequality allows for these draws"
        )
    report.checked.append("the width of the confidence interval, by Hoeffding's inequality")
