"""``assay list``: the missions and claims that are installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from assay.cli.options import reporting
from assay.cli.output import Output
from assay.core.catalog import catalog, load_file
from assay.core.claim import Claim, Mission
from assay.core.errors import UnknownIdError

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command("list", short_help="List missions and claims.")
@click.argument("mission", required=False, metavar="[MISSION|FILE.py]")
@reporting
def command(mission: str | None, out: Output) -> None:
    """List the missions and their claims, or those of one MISSION or of a plain Python FILE.

    For each claim: its form, whether a formal proof is known, and what its audit is expected to find.
    """
    missions = catalog().missions
    if mission is not None and mission.endswith(".py"):
        chosen = [load_file(mission)]
    elif mission is not None and mission not in missions:
        raise UnknownIdError("mission", mission, missions)
    else:
        chosen = [missions[mission]] if mission else list(missions.values())
    out.result([_document(m) for m in chosen], lambda: _human(chosen))


def _document(mission: Mission) -> dict[str, Any]:
    return {"mission": mission.id, "title": mission.title, "claims": [_row(c) for c in mission.claims]}


def _row(claim: Claim) -> dict[str, Any]:
    return {
        "id": claim.id,
        "title": claim.title,
        "form": claim.form.name,
        "formal": claim.proof.status,
        "expect": claim.expect,
    }


def _human(missions: list[Mission]) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    for mission in missions:
        yield Text(f"{mission.id}: {mission.title}", style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("claim", "form", "formal proof", "expected", "title"):
            table.add_column(heading, overflow="fold")
        for claim in mission.claims:
            style = "red" if claim.expect == "refuted" else ""
            table.add_row(
                claim.id, claim.form.name, claim.proof.status, claim.expect, claim.title, style=style
            )
        yield table
        yield ""
    if not missions:
        yield "no mission is installed"
