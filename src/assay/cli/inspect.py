"""``assay inspect``: what a delta, a checkpoint or a certificate holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli import certificates, picture
from assay.cli.figures import figure, number, share, size
from assay.cli.options import FILE, reporting
from assay.cli.output import Output, printable
from assay.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS = 20
"""Tensors listed where not all are asked for."""

FILES = 6
"""Names of files listed."""


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
        with _well_formed(file):
            picture.draw(certificate, plot)
    out.result(
        {"file": str(file), "kind": inspection.kind, "document": dict(document)},
        lambda: _human(file, inspection, every),
    )


def _human(file: Path, inspection: Any, every: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    document: Mapping[str, Any] = inspection.document
    yield Text(printable(f"{file}: {inspection.kind}"), style="bold")
    if inspection.kind == "certificate":
        with _well_formed(file):
            yield from list(_certificate(document, every))
        return
    yield _rows(row for key, value in document.items() if (row := _plain(key, value)) is not None)
    tensors = document.get("tensors", [])
    if tensors:
        yield ""
        yield _table(tensors if every else tensors[:ROWS])
        if not every and len(tensors) > ROWS:
            yield Text(f"the first {ROWS} of {len(tensors)} tensors; --all lists all", style="dim")
    if document.get("certificate"):
        yield ""
        with _well_formed(file):
            yield from list(_certificate(document["certificate"], every))


@contextmanager
def _well_formed(file: Path) -> Iterator[None]:
    """A certificate whose id is right may still lack any field: it can come from anybody."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the certificate in {file} lacks what its kind must have ({type(error).__name__}: {error}); "
            f"'assay verify {file}' says what is wrong with it"
        ) from error


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


def _plain(key: str, value: Any) -> tuple[str, str] | None:
    """A field of the document as a row; None for what is shown otherwise."""
    if isinstance(value, list) and key != "tensors":
        more = f" and {len(value) - FILES} more" if len(value) > FILES else ""
        return key, ", ".join(map(str, value[:FILES])) + more if value else "none"
    if key == "bytes":
        return key, f"{value:,} ({size(value)})"
    if isinstance(value, bool):
        return key, "yes" if value else "no"
    if isinstance(value, str | int):
        return key, f"{value:,}" if isinstance(value, int) else value
    return None


def _rows(pairs: Iterable[tuple[str, str]]) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in pairs:
        table.add_row(key, printable(value))
    return Padding.indent(table, 2)


def _table(tensors: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table

    lossy = any("threshold" in tensor for tensor in tensors)
    treated = any("treatment" in tensor for tensor in tensors)
    columns = ["name", *(["treatment"] if treated else []), "dtype", "shape", "bytes"]
    columns += ["kept", "bits", "divisor"] if lossy else []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(
            column, overflow="fold", justify="left" if column in ("name", "treatment") else "right"
        )
    for tensor in tensors:
        cells = _cells(tensor)
        table.add_row(*(printable(cells.get(column, "-")) for column in columns))
    return Padding.indent(table, 2)


def _cells(tensor: Mapping[str, Any]) -> dict[str, str]:
    cells = {key: str(tensor[key]) for key in ("name", "treatment", "dtype", "bits") if key in tensor}
    cells["shape"] = "x".join(map(str, tensor["shape"])) or "scalar"
    cells["bytes"] = f"{tensor['bytes']:,}"
    if "threshold" in tensor:
        cells["kept"] = share(int(tensor["threshold"]), 1 << 32)
        cells["divisor"] = figure(number(tensor["rescale"]))
    return cells
