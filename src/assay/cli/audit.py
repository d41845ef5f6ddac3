"""``assay audit``: look for an instance that refutes a claim."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.options import FILE, reporting
from assay.cli.output import Output
from assay.core.catalog import catalog, load_file
from assay.core.claim import Claim
from assay.core.errors import InputError, UnknownIdError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.audits import Ablation, AuditReport, Store

SURVIVED, REFUTED, UNDECIDED = 0, 1, 3
EXIT = {"survived": SURVIVED, "refuted": REFUTED, "gave up": UNDECIDED}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The claims to audit, all that are known beside them, and the files they came from."""

    claims: list[Claim]
    known: Mapping[str, Claim]
    files: Mapping[str, str]

    def command(self, claim: Claim, *options: str) -> str:
        """A command line that audits this claim with these options."""
        file = [self.files[claim.id]] if claim.id in self.files else []
        return shlex.join(["assay", "audit", *file, claim.id, *options])


@click.command("audit", short_help="Look for a counterexample to a claim.")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM|FILE.py...")
@click.option("--seconds", type=float, default=10, show_default=True, help="Budget for each claim.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the search.")
@click.option("--without", multiple=True, metavar="PREMISE", help="Drop a premise; may be repeated.")
@click.option(
    "--attack", "attacks", multiple=True, metavar="NAME", help="Use this attack only; may be repeated."
)
@click.option(
    "--ablate", is_flag=True, help="Drop each premise in turn, to see which of them carry the claim."
)
@click.option(
    "--sharpen",
    type=click.Choice(["value", "exponent"]),
    help="Find the best constant of the right-hand side, or of its logarithm.",
)
@click.option("--replay", metavar="JSON|FILE", help="Only look at this instance.")
@click.option("--draws", type=click.IntRange(min=0), default=0, help="Draws for a replay by sampling.")
@click.option("--picture", type=FILE, help="Draw slack against each field into this SVG, PNG or PDF.")
@click.option(
    "--certificate", type=FILE, help="Seal the counterexample, or the closest approach, in this file."
)
@click.option(
    "--store", "folder", type=FILE, help="Where counterexamples are kept; default: the user's cache."
)
@click.option("--no-store", is_flag=True, help="Neither read nor keep counterexamples.")
@click.option(
    "--as-expected", is_flag=True, help="Leave with 0 if every outcome is the announced one, else 1."
)
@reporting
@click.pass_context
def command(ctx: click.Context, out: Output, **options: Any) -> None:
    """Attack each CLAIM, those of a mission, or those in a plain Python FILE, for a budget of seconds.

    Exit codes: 0 survived, 1 refuted, 2 misuse, 3 gave up. A file is run: audit only what you would run.
    """
    chosen = choose(options["claims"])
    _check(options, chosen)
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(_cache() / "hypothesis"))
    if options["replay"] is not None:
        ctx.exit(_replayed(chosen, options, out))
    if options["ablate"] or options["sharpen"]:
        ctx.exit(_studied(chosen, options, out))
    ctx.exit(_audited(chosen, options, out))


def choose(names: Sequence[str]) -> Chosen:
    """The claims that the arguments name: ids, missions, or Python files.

    Raises:
        UnknownIdError: no claim or mission of that name.
        InputError: a file cannot be used.
    """
    local: dict[str, Claim] = {}
    files: dict[str, str] = {}
    ids = [n for n in names if not n.endswith(".py")]
    for file in (n for n in names if n.endswith(".py")):
        for claim in load_file(file).claims:
            local[claim.id] = claim
            files[claim.id] = file
    known = {**catalog(), **local}
    if not ids:
        return Chosen(list(local.values()), known, files)
    missions = catalog().missions
    picked: list[Claim] = []
    for name in ids:
        if name in missions:
            picked += missions[name].claims
        elif name in known:
            picked.append(known[name])
        else:
            raise UnknownIdError("claim", name, (*known, *missions))
    return Chosen(picked, known, files)


def _check(options: Mapping[str, Any], chosen: Chosen) -> None:
    one = [f"--{n.replace('_', '-')}" for n in ("replay", "picture", "certificate", "without") if options[n]]
    if one and len(chosen.claims) != 1:
        raise click.UsageError(f"{one[0]} is for one claim, and {len(chosen.claims)} are named")
    study = "--ablate" if options["ablate"] else "--sharpen" if options["sharpen"] else ""
    idle = ("without", "attacks", "replay", "draws", "picture", "certificate", "as_expected")
    for name in idle if study else ():
        if options[name]:
            flag = "--attack" if name == "attacks" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} has no part in {study}; leave one of them out")
    if options["picture"] is not None:
        from assay.cli.picture import check

        check(options["picture"])


def _store(options: Mapping[str, Any]) -> Store | None:
    from assay.audits import Store

    if options["no_store"] or options["without"]:
        return None
    return Store(options["folder"] or _cache() / "counterexamples")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assay"


def _audited(chosen: Chosen, options: Mapping[str, Any], out: Output) -> int:
    from assay.audits import audit

    store = _store(options)
    reports: list[AuditReport] = []
    for i, claim in enumerate(chosen.claims, 1):
        if len(chosen.claims) > 1:
            out.note(f"audit {i} of {len(chosen.claims)}: {claim.id}")
        reports.append(
            audit(
                claim,
                seconds=options["seconds"],
                seed=options["seed"],
                without=options["without"],
                attacks=options["attacks"] or None,
                store=store,
                claims=chosen.known,
            )
        )
    _side_outputs(reports[0], options, out)
    out.result([_document(r, chosen) for r in reports], lambda: _human(reports, chosen))
    if options["as_expected"]:
        return SURVIVED if all(r.as_expected for r in reports) else REFUTED
    codes = [EXIT[r.outcome] for r in reports]
    return REFUTED if REFUTED in codes else max(codes)


def _side_outputs(report: AuditReport, options: Mapping[str, Any], out: Output) -> None:
    if options["picture"] is not None:
        from assay.cli.slack_picture import draw

        draw(report, options["picture"])
        out.note(f"drew {options['picture']}")
    if options["certificate"] is not None:
        from assay.audits.replay import draws_of
        from assay.core.certificate import certify

        verdict = report.verdict
        if report.counterexample is not None:
            instance, verdict = report.counterexample.instance, report.counterexample.verdict
        elif report.closest is not None:
            instance = report.closest.instance
        else:
            raise InputError(f"{report.claim.id}: there is no instance to seal, since {report.reason}")
        draws = draws_of(verdict)
        certify(report.claim, instance, draws=draws).save(options["certificate"])
        out.note(f"sealed {options['certificate']}")


def _document(report: AuditReport, chosen: Chosen) -> dict[str, Any]:
    from assay.audits.replay import replay_arguments

    document = report.to_dict()
    if report.counterexample is not None:
        without = [part for name in report.without for part in ("--without", name)]
        document["replay"] = chosen.command(report.claim, *without, *replay_arguments(report.counterexample))
    return document


def _human(reports: Sequence[AuditReport], chosen: Chosen) -> Iterator[RenderableType]:
    from assay.cli.audit_page import page

    for report in reports:
        yield from page(report, _document(report, chosen).get("replay", ""))


def _replayed(chosen: Chosen, options: Mapping[str, Any], out: Output) -> int:
    from assay.audits.replay import instance_from, replay
    from assay.audits.report import verdict_document
    from assay.audits.widen import dropped
    from assay.cli.audit_page import verdict_rows
    from assay.core.number import Truth

    claim = dropped(chosen.claims[0], options["without"])
    instance = instance_from(claim, options["replay"])
    verdict = replay(claim, instance, draws=options["draws"])
    document = {"claim": claim.id, "verdict": verdict_document(verdict)}
    out.result(document, lambda: verdict_rows(claim, instance, verdict))
    return {Truth.TRUE: SURVIVED, Truth.FALSE: REFUTED, Truth.UNKNOWN: UNDECIDED}[verdict.truth]


def _studied(chosen: Chosen, options: Mapping[str, Any], out: Output) -> int:
    from assay.audits import ablate, sharpen
    from assay.cli.audit_page import ablation_document, ablation_page, sharpening_document, sharpening_page

    documents: list[dict[str, Any]] = []
    pages: list[Iterator[RenderableType]] = []
    for claim in chosen.claims:
        if options["ablate"]:
            ablations = ablate(claim, seconds=options["seconds"], seed=options["seed"])
            replays = {a.premise.name: _ablation_replay(chosen, claim, a) for a in ablations if a.witness}
            documents.append(ablation_document(claim, ablations, replays))
            pages.append(ablation_page(claim, ablations, replays))
        if options["sharpen"]:
            found = sharpen(claim, seconds=options["seconds"], seed=options["seed"], scale=options["sharpen"])
            documents.append(sharpening_document(found))
            pages.append(sharpening_page(found))
    out.result(documents, lambda: (part for page in pages for part in page))
    return SURVIVED


def _ablation_replay(chosen: Chosen, claim: Claim, ablation: Ablation) -> str:
    from assay.audits.replay import replay_arguments

    assert ablation.witness is not None
    return chosen.command(claim, "--without", ablation.premise.name, *replay_arguments(ablation.witness))
