"""``assay show``: one claim's page, or one mission's, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from assay.cli.maths import to_unicode
from assay.cli.options import reporting
from assay.cli.output import Output
from assay.core.catalog import Catalog, catalog, load_file
from assay.core.claim import Claim, Limit, Mission
from assay.core.errors import UnknownIdError

if TYPE_CHECKING:
    from rich.console import RenderableType

REFUTED_BY = {
    "bound": "One instance whose premises hold and on which the inequality fails, in exact or enclosed arithmetic.",
    "witness": "A dual proof that no witness exists. A witness that fails its check refutes the producer only.",
    "mean": "One instance whose exact expectation breaks the relation; where none can be computed, "
    "a test at level 10^-6 on draws of a declared range.",
    "tail": "One instance whose exact failure probability exceeds the stated one; where none can be computed, "
    "a test at level 10^-6 on draws.",
    "limit": "No finite data. Refuting one of the finite claims that imply it refutes that step, not the limit.",
}
"""By form: what finite data could refute a claim."""

FORMAL = {
    "proved": "a formal proof exists",
    "open": "stated formally, proof open",
    "none": "not stated formally",
}

EXPECTED = {
    "survives": "its audit should find no counterexample",
    "refuted": "its audit should find a counterexample",
    "undecidable": "no audit can decide it",
}


@click.command("show", short_help="Show a claim's page.")
@click.argument("names", nargs=-1, required=True, metavar="[FILE.py] CLAIM")
@reporting
def command(names: tuple[str, ...], out: Output) -> None:
    """Show the page of CLAIM (or of a mission): statement, premises, source, status.

    CLAIM may stand in a plain Python FILE, which is run; without CLAIM, the claims of the file are listed.
    """
    known, claim = _known(names)
    if claim in known.missions:
        mission = known.missions[claim]
        out.result(_mission_document(mission), lambda: _mission_page(mission))
        return
    if claim not in known:
        raise UnknownIdError("claim", claim, (*known, *known.missions))
    chosen = known[claim]
    used_by = _used_by(chosen, known)
    out.result(_document(chosen, used_by), lambda: _page(chosen, used_by))


def _known(names: tuple[str, ...]) -> tuple[Catalog, str]:
    """Where to look, and for what.

    Raises:
        click.UsageError: more than one claim is named.
    """
    files = [n for n in names if n.endswith(".py")]
    ids = [n for n in names if not n.endswith(".py")]
    if len(files) > 1 or len(ids) > 1:
        raise click.UsageError("show takes one claim, and at most one file before it")
    if not files:
        return catalog(), ids[0]
    mission = load_file(files[0])
    return Catalog({**catalog().missions, mission.id: mission}), ids[0] if ids else mission.id


def _used_by(claim: Claim, known: Catalog) -> list[str]:
    return [other.id for other in known.values() if claim.id in other.uses]


def _document(claim: Claim, used_by: list[str]) -> dict[str, Any]:
    return {
        "id": claim.id,
        "title": claim.title,
        "statement": claim.statement,
        "form": claim.form.name,
        "implied_by": list(claim.form.implied_by) if isinstance(claim.form, Limit) else [],
        "instance": claim.instance.__name__,
        "premises": [{"name": p.name, "basis": p.basis} for p in claim.premises],
        "source": {
            "paper": claim.source.paper,
            "locator": claim.source.locator,
            "version": claim.source.version,
        },
        "formal": {
            "status": claim.proof.status,
            "name": claim.proof.name,
            "environment": claim.proof.environment,
        },
        "expect": claim.expect,
        "refuted_by": REFUTED_BY[claim.form.name],
        "notes": claim.notes,
        "uses": list(claim.uses),
        "used_by": used_by,
        "digest": claim.digest(),
    }


def _page(claim: Claim, used_by: list[str]) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    yield Text(claim.title, style="bold")
    yield Text(f"{claim.id} ({claim.form.name})", style="dim")
    yield Padding(Text(to_unicode(claim.statement), style="cyan"), (1, 4))
    rows = [
        ("about", f"a {claim.instance.__name__}: {_first_line(claim.instance.__doc__)}"),
        ("premises", "\n".join(f"{p.name} ({p.basis})" for p in claim.premises) or "none"),
        ("source", str(claim.source)),
        (
            "formal",
            ", ".join(
                t for t in (FORMAL[claim.proof.status], claim.proof.name, claim.proof.environment) if t
            ),
        ),
        ("expected", EXPECTED[claim.expect]),
        ("refuted by", REFUTED_BY[claim.form.name]),
    ]
    if isinstance(claim.form, Limit):
        rows.append(("implied by", ", ".join(claim.form.implied_by) or "no finite claim"))
    optional = (("uses", ", ".join(claim.uses)), ("used by", ", ".join(used_by)), ("notes", claim.notes))
    yield _rows([*rows, *((name, text) for name, text in optional if text)])


def _mission_document(mission: Mission) -> dict[str, Any]:
    return {
        "mission": mission.id,
        "title": mission.title,
        "summary": mission.summary,
        "claims": [{"id": c.id, "title": c.title} for c in mission.claims],
    }


def _mission_page(mission: Mission) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(mission.title, style="bold")
    yield Text(mission.id, style="dim")
    if mission.summary:
        yield "\n" + mission.summary + "\n"
    yield _rows([(claim.id, claim.title) for claim in mission.claims])


def _rows(rows: list[tuple[str, str]]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, text)
    return table


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]
