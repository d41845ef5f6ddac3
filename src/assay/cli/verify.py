"""``assay verify``: a stranger's check of a certificate or of a delta."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.options import FILE, reporting
from assay.cli.output import Output
from assay.core.errors import RejectedError, UndecidedError

if TYPE_CHECKING:
    from rich.console import RenderableType

ACCEPTED, REJECTED, MISUSE, UNDECIDED = 0, 1, 2, 3


@click.command("verify", short_help="Check a certificate or a delta.")
@click.argument("file", type=FILE)
@click.option("--base", type=FILE, help="The base that the certificate speaks of.")
@click.option("--finetuned", type=FILE, help="The fine-tuned model that it speaks of.")
@click.option("--delta", type=FILE, help="The delta that it speaks of, where FILE is the certificate alone.")
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="[NAME=]PATH",
    help="Any other subject of the certificate.",
)
@reporting
@click.pass_context
def command(
    ctx: click.Context, file: Path, subjects: tuple[str, ...], out: Output, **sides: Path | None
) -> None:
    """Check the certificate FILE, or the one inside the delta FILE.

    The independent checker `assay_verify` recomputes what it can: with the subjects, their digests and the
    facts. The certificate of a claim on an instance is also replayed: both sides are computed again by the
    named code. Exit codes: 0 accepted, 1 rejected, 2 misuse, 3 unsupported or undecided.
    """
    named = [f"{name}={path}" for name, path in sides.items() if path is not None]
    report = _independent(file, [*named, *subjects])
    if report["exit_code"] == ACCEPTED and report["kind"] == "claim-instance":
        _replay(file, report)
    if report["exit_code"] == ACCEPTED:
        out.result(report, lambda: _human(report))
    else:
        if out.as_json:
            out.result(report, lambda: _human(report))
        verdict = "" if report["exit_code"] == MISUSE else f"{report['result']}: {file}: "
        out.note(f"assay: {verdict}{report['reason']}")
    ctx.exit(report["exit_code"])


def _independent(file: Path, subjects: list[str]) -> dict[str, Any]:
    """The report of `assay_verify`, which shares no code with assay."""
    from assay_verify.__main__ import main

    arguments = [
        "--json",
        *(part for subject in subjects for part in ("--subject", subject)),
        "--",
        str(file),
    ]
    with contextlib.redirect_stdout(io.StringIO()) as captured:
        main(arguments)
    report: dict[str, Any] = json.loads(captured.getvalue())
    return report


def _replay(file: Path, report: dict[str, Any]) -> None:
    from assay.core.certificate import Certificate
    from assay.core.replay import replay

    try:
        replay(Certificate.load(file))
    except RejectedError as error:
        report |= {"result": "rejected", "exit_code": REJECTED, "reason": str(error)}
    except UndecidedError as error:
        report |= {"result": "unsupported", "exit_code": UNDECIDED, "reason": str(error)}
    else:
        report["checked"].append("replayed: premises, both sides and facts are what the named code computes")


def _human(report: dict[str, Any]) -> Iterator[RenderableType]:
    yield f"accepted: {report['file']}"
    yield f"  {report['statement']}"
    yield f"  id {report['id']}"
    for title, items in (
        ("checked", report["checked"]),
        ("NOT checked", report["unchecked"]),
        ("CONDITIONAL on what is only assumed", report["assumed"]),
    ):
        if items:
            yield f"{title}:"
            yield "\n".join(f"  - {item}" for item in items)
