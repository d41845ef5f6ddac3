"""``assay apply``: a base and a delta give the fine-tuned model back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from assay.cli.figures import size
from assay.cli.options import FILE, reporting, writing
from assay.cli.output import Output
from assay.cli.startup import skip_blas


@click.command("apply", short_help="Unpack a delta onto its base.")
@click.argument("base", type=FILE)
@click.argument("delta", type=FILE)
@writing
@reporting
def command(base: Path, delta: Path, target: Path, dry_run: bool, out: Output, **settings: Any) -> None:
    """Add DELTA to BASE and write the model that it stands for.

    BASE must be the checkpoint that the delta was packed against, which is checked by digest.
    """
    skip_blas()
    from assay.checkpoints import apply

    with out.progress("apply") as progress:
        report = apply(base, delta, target, dry_run=dry_run, progress=progress, **settings)
    for warning in report.warnings:
        out.warn(warning)
    document = {
        "out": str(report.out),
        "bytes_out": report.bytes_out,
        "tensors": report.tensors,
        "warnings": list(report.warnings),
        "dry_run": dry_run,
    }

    def human() -> Iterator[str]:
        verb = "would write" if dry_run else "wrote"
        yield f"{verb} {report.out}: {report.tensors} tensors, {size(report.bytes_out)}"

    out.result(document, human)
