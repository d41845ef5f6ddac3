"""``assay inspect``: what a delta, a checkpoint or a certificate holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli import certificates, picture
from assay.cli.options import FILE, reporting
from assay.cli.output import Output, printable
from assay.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS = 20
"""Tensors listed where not all are asked for."""


@click.command("inspect", short_help="Say what a file is and holds.")
@click.argument("file", type=FILE)
@click.option("--all", "every", is_flag=True, help="List every tensor.")
@click.option("--picture", "plot", type=FILE, metavar="FILE.svg", help="Draw the certificate (extra plot).")
@reporting
def command(file: Path, every: bool, plot: Path | None, out: Output) -> None:
    """Say what FILE is and holds: its plan, its sizes, its tensors, its certificate.

    FILE is a delta, a certificate or a checkpoint. Nothing is checked but the form: see verify.
    """
    from assay.checkpoints import inspect

    if plot is not None:
        picture.check(plot)
    inspection = inspect(file)
    document = inspection.document
    certificate = document if inspection.kind == "certificate" else document.get("certificate")
    if plot is not None:
        if not certificate or certificate.get("kind") != "pack":
            raise InputError(f"{file} holds no certificate of a pack, so there is nothing to draw")
        picture.draw(certificate, plot)
    out.result(
        {"file": str(file), "kind": inspection.kind, **document}, lambda: _human(file, inspection, every)
    )


def _human(file: Path, inspection: Any, every: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    document: Mapping[str, Any] = inspection.document
    yield Text(printable(f"{file}: {inspection.kind}"), style="bold")
    if inspection.kind == "certificate":
        yield from _certificate(document, every)
        return
    yield _rows((key, value) for key, value in document.items() if _is_plain(value))
    tensors = document.get("tensors", [])
    if tensors:
        yield ""
        yield _table(tensors if every else tensors[:ROWS])
        if not every and len(tensors) > ROWS:
            yield Text(f"the first {ROWS} of {len(tensors)} tensors; --all lists all", style="dim")
    if document.get("certificate"):
        yield ""
        yield from _certificate(document["certificate"], every)


def _certificate(document: Mapping[str, Any], every: bool) -> Iterator[RenderableType]:
    if document.get("kind") == "pack":
        yield from certificates.parts(document, every)
        return
    claim, conclusion = document["claim"], document["conclusion"]
    rows = [("claim", f"{claim['id']}: {claim['title']}"), ("source", claim["source"])]
    rows += [("premise", f"{p['name']} ({p['basis']}): {p['truth']}") for p in document["premises"]]
    rows.append(("verdict", f"{conclusion['truth']} ({conclusion['strength']}): {conclusion['reason']}"))
    if "relation" in conclusion:
        rows.append(("sides", f"{conclusion['lhs']} {conclusion['relation']} {conclusion['rhs']}"))
    yield _rows([*rows, ("id", document["id"])])


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _rows(pairs: Any) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in pairs:
        table.add_row(key.replace("_", " "), printable(f"{value:,}" if type(value) is int else str(value)))
    return table


def _table(tensors: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One row a tensor; the columns are the fields that any of them has."""
    from rich.table import Table

    columns = list(dict.fromkeys(key for tensor in tensors for key in tensor))
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    for column in columns:
        table.add_column(
            column.replace("_", " "), overflow="fold", justify="left" if column == "name" else "right"
        )
    for tensor in tensors:
        table.add_row(*(_cell(tensor.get(column)) for column in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "x".join(map(str, value)) or "scalar"
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(f"{value:,}" if type(value) is int else str(value))
