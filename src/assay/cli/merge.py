"""``assay merge``: several deltas on one base give one model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from assay.cli.figures import figure, size
from assay.cli.options import FILE, Exact, Weights, reporting, writing
from assay.cli.output import Output
from assay.cli.startup import skip_blas


@click.command("merge", short_help="Merge several deltas on one base.")
@click.argument("base", type=FILE)
@click.argument("deltas", type=FILE, nargs=-1, required=True, metavar="DELTA...")
@click.option("--weights", type=Weights(), help="One factor per delta, as 0.5,0.5; default: 1/n each.")
@click.option(
    "--method",
    type=click.Choice(["linear", "ties"]),
    default="linear",
    show_default=True,
    help="linear: the weighted sum. ties: trim, elect a sign, average those that agree.",
)
@click.option(
    "--density",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="The share of entries that ties keeps of each delta before it elects signs; 1 trims nothing.",
)
@click.option(
    "--drop",
    type=Exact(),
    help="Take fine-tuned checkpoints too, and drop this share of each as it is read, as 0.9 or 9/10.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the masks that --drop draws."
)
@writing
@reporting
def command(
    base: Path, deltas: tuple[Path, ...], target: Path, dry_run: bool, out: Output, **settings: Any
) -> None:
    """Add the weighted sum of several DELTAs to BASE and write the merged model.

    All deltas must have been packed against BASE, which is checked by digest. With --drop, a DELTA may also be a
    fine-tuned checkpoint of BASE, which is dropped and rescaled (DARE) as it is read.
    """
    skip_blas()
    from assay.checkpoints import merge

    with out.progress("merge") as progress:
        report = merge(base, list(deltas), target, dry_run=dry_run, progress=progress, **settings)
    for warning in report.warnings:
        out.warn(warning)
    document = {
        "out": str(report.out),
        "bytes_out": report.bytes_out,
        "tensors": report.tensors,
        "expected": None if report.expected is None else dict(report.expected),
        "warnings": list(report.warnings),
        "dry_run": dry_run,
    }

    def human() -> Iterator[str]:
        verb = "would write" if dry_run else "wrote"
        yield f"{verb} {report.out}: {report.tensors} tensors, {size(report.bytes_out)}, from {len(deltas)} deltas"
        if report.expected is not None:
            yield (
                f"expected layer output error, all tensors together: variance {figure(report.expected['variance'])}, "
                f"bias at most {figure(report.expected['bias_at_most'])} (for deltas packed with different seeds)"
            )

    out.result(document, human)
