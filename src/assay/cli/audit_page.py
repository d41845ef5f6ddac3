"""Audits in words: the outcome first, then what a reader can check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from assay.audits import Ablation, AuditReport, Sharpening
from assay.audits.replay import gap
from assay.audits.report import counterexample_document
from assay.core.claim import Claim
from assay.core.instance import encode
from assay.core.number import Ball, Number, Truth, as_float
from assay.core.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLE = {"refuted": "bold red", "survived": "bold green", "gave up": "bold yellow"}
MARK = {Truth.TRUE: "holds", Truth.FALSE: "BROKEN", Truth.UNKNOWN: "undecided"}
LONGEST = 60


def page(report: AuditReport, replay: str) -> Iterator[RenderableType]:
    """The report of one audit."""
    from rich.text import Text

    announced = "" if report.as_expected else f" (announced: {report.claim.expect})"
    yield Text(f"{report.outcome.upper()}  {report.claim.id}{announced}", style=STYLE[report.outcome])
    yield report.claim.title
    rows = [("because", report.reason)]
    if report.without:
        rows.append(("without", "; ".join(report.without)))
    found = report.counterexample
    if found is not None:
        rows += [("grade", found.grade), *_instance(found.instance), *_verdict(found.verdict)]
    elif report.closest is not None:
        rows += [
            ("closest", _closeness(report.closest.slack)),
            *_instance(report.closest.instance),
        ]
        rows += [] if report.verdict is None else _verdict(report.verdict)
    if report.resolution is not None:
        rows.append(("resolution", str(report.resolution)))
    rows += _effort(report)
    rows += [("numerical", f"{hit.stage} at slack {hit.slack:.3g}") for hit in report.dead_hits[:1]]
    if replay:
        rows.append(("replay", replay))
    yield _table(rows)
    for implied in report.implied_by.values():
        yield from page(implied, "")
    yield ""


def _closeness(slack: float) -> str:
    if slack >= 1:
        return "one side is 0, or they differ in sign: no relative slack"
    return f"relative slack {slack:.6g}"


def _effort(report: AuditReport) -> list[tuple[str, str]]:
    effort = report.effort
    if not effort.proposed:
        return []
    text = f"{effort.evaluations} evaluations ({effort.exact_evaluations} exact)"
    if effort.draws:
        text = f"{effort.draws} draws on {effort.accepted} instances"
    rows = [
        ("effort", f"{text} in {effort.seconds:.2f} s"),
        ("accepted", f"{100 * effort.acceptance:.3g} % of {effort.proposed} proposals"),
    ]
    attacks = "; ".join(
        f"{name} {a.evaluations} in {a.seconds:.2f} s" + (f" ({a.status})" if a.status != "ran" else "")
        for name, a in effort.attacks.items()
    )
    return [*rows, ("attacks", attacks)]


def _instance(instance: Any) -> list[tuple[str, str]]:
    return [(f"  {name}", _plain(value)) for name, value in encode(instance).items()]


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(_plain(v) for v in value) + ")"
    if isinstance(value, dict):
        return "(" + ", ".join(f"{k}: {_plain(v)}" for k, v in value.items()) + ")"
    return str(value)


def _verdict(verdict: Verdict) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if verdict.sides is not None:
        rows += [("left", exactly(verdict.sides.lhs)), ("right", exactly(verdict.sides.rhs))]
        difference = gap(verdict)
        assert difference is not None
        rows.append(("left - right", f"{as_float(difference):.6g}"))
    rows += [("premise", f"{p.name}: {MARK[p.truth]} ({p.basis})") for p in verdict.premises]
    return rows


def exactly(value: Number) -> str:
    """A number exactly, where that is short, and in six digits.

    >>> exactly(Fraction(1, 3)), exactly(Ball(Fraction(1), Fraction(2)))
    ('1/3 = 0.333333', 'between 1 and 2')
    """
    if isinstance(value, Ball):
        if value.radius > abs(value.midpoint) / 1000:
            return f"between {as_float(value.low):.6g} and {as_float(value.high):.6g}"
        return f"{as_float(value.midpoint):.6g} +- {as_float(value.radius):.2g}"
    if isinstance(value, float):
        return f"{value:.6g} (a float)"
    text = str(Fraction(value))
    if len(text) > LONGEST:
        return f"{as_float(value):.6g} (exact, {len(text)} characters)"
    return text if Fraction(value).denominator == 1 else f"{text} = {as_float(value):.6g}"


def verdict_rows(claim: Claim, instance: Any, verdict: Verdict) -> Iterator[RenderableType]:
    """What a replay saw."""
    from rich.text import Text

    style = {Truth.TRUE: "bold green", Truth.FALSE: "bold red", Truth.UNKNOWN: "bold yellow"}[verdict.truth]
    yield Text(f"{verdict.truth.value}  {claim.id} ({verdict.strength.value.lower()})", style=style)
    yield _table([("because", verdict.reason), *_instance(instance), *_verdict(verdict)])


def ablation_document(
    claim: Claim, ablations: Sequence[Ablation], replays: Mapping[str, str]
) -> dict[str, Any]:
    """Which premises carry a claim, as JSON; `replays` are the command lines that show the witnesses again."""
    return {
        "claim": claim.id,
        "premises": [
            {
                "name": a.premise.name,
                "role": a.role,
                "reason": a.reason,
                "witness": a.witness and counterexample_document(a.witness),
                "replay": replays.get(a.premise.name),
                "effort": a.report and a.report.to_dict()["effort"],
            }
            for a in ablations
        ],
    }


def ablation_page(
    claim: Claim, ablations: Sequence[Ablation], replays: Mapping[str, str]
) -> Iterator[RenderableType]:
    """Which premises carry a claim."""
    from rich.text import Text

    yield Text(f"premises of {claim.id}", style="bold")
    rows = []
    for a in ablations:
        witness = (
            "" if a.witness is None else ", ".join(f"{k} = {v}" for k, v in _instance(a.witness.instance))
        )
        rows.append((a.premise.name, f"{a.role}: {' '.join(witness.split()) or a.reason}"))
        rows += [("  replay", replays[a.premise.name])] if a.premise.name in replays else []
    yield _table(rows) if rows else "it has none"
    yield ""


def sharpening_document(found: Sharpening) -> dict[str, Any]:
    """The best constant of a claim, as JSON."""
    return {
        "claim": found.claim.id,
        "scale": found.scale,
        "refuted_at": None if found.refuted_at is None else str(found.refuted_at),
        "survived_at": None if found.survived_at is None else str(found.survived_at),
        "tight": found.tight,
        "extremal": found.extremal and encode(found.extremal),
        "evaluations": found.evaluations,
    }


def sharpening_page(found: Sharpening) -> Iterator[RenderableType]:
    """The best constant of a claim."""
    from rich.text import Text

    what = "right-hand side" if found.scale == "value" else "logarithm of the right-hand side"
    yield Text(f"best constant of {found.claim.id}", style="bold")
    rows = []
    if found.refuted_at is None:
        rows.append(("refuted", "at no factor that was tried"))
    else:
        rows.append(("refuted", f"with the {what} times {as_float(found.refuted_at):.9g}"))
    if found.survived_at is None:
        rows.append(("survived", "at no factor that was tried"))
    else:
        rows.append(("survived", f"with the {what} times {as_float(found.survived_at):.9g}"))
    rows.append(("tight", "yes, to a millionth" if found.tight else "not as far as seen"))
    rows += [("at", ""), *_instance(found.extremal)] if found.extremal is not None else []
    yield _table([*rows, ("effort", f"{found.evaluations} evaluations")])
    yield ""


def _table(rows: Sequence[tuple[str, str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    return table
