"""``assay plan``: what a command could reach, predicted before anything is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli import picture
from assay.cli.figures import size
from assay.cli.options import FILE, Shares, reporting
from assay.cli.output import Output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.checkpoints import KeepPlan


@click.command("plan", short_help="Predict bytes against drift before anything is packed.")
@click.argument("what", type=click.Choice(["pack"]), metavar="pack")
@click.argument("finetuned", type=FILE)
@click.option("--base", type=FILE, required=True, help="The checkpoint that FINETUNED was trained from.")
@click.option(
    "--energies",
    type=FILE,
    required=True,
    metavar="FILE",
    help="What 'assay calibrate' measured of this pair.",
)
@click.option(
    "--drop",
    "drops",
    type=Shares(),
    default="0.5,0.8,0.9,0.95,0.98,0.99",
    show_default=True,
    help="The shares of entries to drop, separated by commas.",
)
@click.option(
    "--bits",
    type=click.Choice(["grid", "16", "8", "4", "3", "2"]),
    multiple=True,
    help="Only these bits of a survivor; may be repeated.",
)
@click.option(
    "--keep-map",
    "keep_maps",
    type=click.Choice(["uniform", "tensor", "factored"]),
    multiple=True,
    help="Only these keep maps; may be repeated.",
)
@click.option(
    "--include", multiple=True, metavar="PATTERN", help="Only tensors of these names lose something."
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Tensors of these names are kept exactly.")
@click.option("--picture", "plot", type=FILE, metavar="FILE.svg", help="Draw the frontier (extra plot).")
@click.option("--all", "every", is_flag=True, help="List every plan, not only those that no other beats.")
@reporting
def command(
    what: str,
    finetuned: Path,
    base: Path,
    energies: Path,
    drops: Sequence[float],
    bits: Sequence[str],
    keep_maps: Sequence[str],
    include: Sequence[str],
    exclude: Sequence[str],
    plot: Path | None,
    every: bool,
    out: Output,
) -> None:
    """Print bytes against drift for packs of FINETUNED on BASE: predicted, first order; nothing is written.

    A plan is listed unless another is predicted to be smaller and to drift less.
    """
    if plot is not None:
        picture.check(plot)
    from assay.checkpoints import frontier

    choices: dict[str, Any] = {}
    if bits:
        choices["bits"] = [0 if number == "grid" else int(number) for number in bits]
    if keep_maps:
        choices["keep_maps"] = keep_maps
    plans = frontier(finetuned, base, energies, drops=drops, include=include, exclude=exclude, **choices)
    if plot is not None:
        picture.draw_frontier(plans, plot)
    listed = sorted(plans if every else undominated(plans), key=lambda plan: (plan.size, plan.drift))
    document = {
        "basis": "predicted, first order",
        "plans": [
            {
                "keep_map": plan.keep_map,
                "bits": plan.quantiser if plan.bits == 0 else plan.bits,
                "mean_keep": plan.mean_keep,
                "size": plan.size,
                "drift": plan.drift,
            }
            for plan in listed
        ],
    }
    out.result(document, lambda: _human(listed, len(plans)))


def undominated(plans: Sequence[KeepPlan]) -> list[KeepPlan]:
    """The plans than which no other is both smaller and drifts less."""
    best: list[KeepPlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.size, plan.drift)):
        if not best or plan.drift < best[-1].drift:
            best.append(plan)
    return best


def _human(plans: Sequence[KeepPlan], considered: int) -> Iterator[RenderableType]:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("drift", "size", "keep map", "bits", "dropped"):
        table.add_column(column, justify="left" if column == "keep map" else "right")
    for plan in plans:
        table.add_row(
            f"{plan.drift:.3g}", size(plan.size), plan.keep_map, plan.quantiser, f"{1 - plan.mean_keep:.3g}"
        )
    yield table
    yield ""
    yield (
        f"{len(plans)} of {considered} plans. Drift is predicted, first order: root mean square change of the outputs over "
        f"the fine-tune's own effect. Sizes are estimates of the whole file."
    )
