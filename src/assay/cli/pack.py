"""``assay pack``: a fine-tuned model and its base give a delta and a certificate."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli import certificates, picture
from assay.cli.figures import size
from assay.cli.options import FILE, Bytes, Exact, Rescale, reporting, writing
from assay.cli.output import Output
from assay.cli.startup import skip_blas

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.checkpoints import PackReport
    from assay.checkpoints.keep import KeepPlan


@click.command("pack", short_help="Pack a fine-tuned model as a delta, with a certificate.")
@click.argument("finetuned", type=FILE)
@click.option("--base", type=FILE, required=True, help="The checkpoint that FINETUNED was trained from.")
@click.option(
    "--drop",
    type=Exact(),
    default="0.9",
    show_default=True,
    help="The share of entries to drop, as 0.9 or 9/10.",
)
@click.option(
    "--bits",
    type=click.Choice(["grid", "16", "8", "4", "3", "2"]),
    help="Bits of a survivor, by an unbiased quantiser below 16; grid: steps planned by energies, codes at their entropy; "
    "the default is grid within a drift or a size, else 16.",
)
@click.option(
    "--rescale",
    type=Rescale(),
    default="dare",
    show_default=True,
    help="What survivors are divided by: dare is 1 - drop (unbiased); optimal has the least mean square (biased).",
)
@click.option(
    "--mask",
    type=click.Choice(["random", "derandomised"]),
    default="random",
    show_default=True,
    help="Drawn from the seed at no cost in bytes, or chosen for least layer error and stored.",
)
@click.option(
    "--lossless", is_flag=True, help="Store the exact difference: apply gives FINETUNED back bit for bit."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the mask and the quantiser."
)
@click.option(
    "--include", multiple=True, metavar="PATTERN", help="Only tensors of these names lose something."
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Tensors of these names are kept exactly.")
@click.option(
    "--calibrate",
    "calibration",
    type=FILE,
    metavar="FILE.txt",
    help="Run FINETUNED over this text and use its layers' input moments (extra torch).",
)
@click.option("--moments", type=FILE, metavar="FILE", help="Such moments, ready-made, in a safetensors file.")
@click.option(
    "--energies",
    type=FILE,
    metavar="FILE",
    help="What 'assay calibrate' measured of this pair: predict the drift of the outputs, and plan by it.",
)
@click.option(
    "--keep-map",
    type=click.Choice(["uniform", "tensor", "factored"]),
    help="One keep probability, one for each tensor, or one for each row and column; the last two need --energies; "
    "the default is factored on a grid, else uniform.",
)
@click.option(
    "--max-drift",
    type=click.FloatRange(min=0, min_open=True),
    metavar="D",
    help="Instead of --drop: the smallest delta predicted to move the outputs by at most this share of what the fine-tune does.",
)
@click.option(
    "--max-size",
    type=Bytes(),
    metavar="SIZE",
    help="Instead of --drop: the least predicted drift in about this many bytes, as 300kB.",
)
@click.option(
    "--coding",
    type=click.Choice(["entropy", "raw"]),
    default="entropy",
    show_default=True,
    help="entropy: code survivors where that is smaller. raw: never.",
)
@click.option(
    "--gamma",
    type=Exact(),
    default="1/100",
    show_default=True,
    help="The share of seeds that may break a bound.",
)
@click.option(
    "--tails",
    type=click.Choice(["ks", "chernoff", "lattice"]),
    default="chernoff",
    show_default=True,
    help="How the bound of each tensor's largest output is computed: quickest first, tightest last.",
)
@click.option(
    "--certificate", "beside", type=FILE, metavar="FILE.json", help="Also write the certificate here."
)
@click.option("--no-certificate", is_flag=True, help="Issue none, which saves hashing both models.")
@click.option("--picture", "plot", type=FILE, metavar="FILE.svg", help="Draw the certificate (extra plot).")
@click.option("--all", "every", is_flag=True, help="Report every tensor, not the worst ones alone.")
@click.option("--force", is_flag=True, help="Pack a pair that does not look like a fine-tune.")
@writing
@reporting
def command(
    finetuned: Path,
    base: Path,
    target: Path,
    drop: Fraction,
    bits: str | None,
    gamma: Fraction,
    beside: Path | None,
    no_certificate: bool,
    plot: Path | None,
    every: bool,
    out: Output,
    **settings: Any,
) -> None:
    """Pack FINETUNED as a delta on BASE, with a certificate of what is lost.

    FINETUNED and BASE are safetensors files, sharded folders or Hugging Face model folders; FINETUNED may also be
    a LoRA adapter.
    """
    budget = settings["max_drift"] is not None or settings["max_size"] is not None
    source = click.get_current_context().get_parameter_source("drop")
    if budget and source is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError(
            "--drop, --max-drift and --max-size exclude one another: each decides how much is dropped"
        )
    if no_certificate and (beside or plot):
        raise click.UsageError("--no-certificate leaves nothing for --certificate or --picture to write")
    if plot is not None:
        picture.check(plot)
    skip_blas()
    from assay.checkpoints import pack

    quantiser = (0 if budget else 16) if bits is None else 0 if bits == "grid" else int(bits)
    if settings["keep_map"] is None:
        settings["keep_map"] = "factored" if quantiser == 0 else "uniform"
    with out.progress("pack") as progress:
        report = pack(
            finetuned,
            base,
            target,
            drop=drop,
            bits=quantiser,
            gamma=gamma,
            certificate=False if no_certificate else beside or True,
            progress=progress,
            **settings,
        )
    for warning in report.warnings:
        out.warn(warning)
    if plot is not None and report.certificate is not None and not report.dry_run:
        if certificates.losses(report.certificate.document):
            picture.draw(report.certificate.document, plot)
        else:
            out.warn(f"nothing is lost, so there is no picture to draw into {plot}")
    out.result(_document(report), lambda: _human(report, finetuned, base, every))


def _document(report: PackReport) -> dict[str, Any]:
    return {
        "out": str(report.out),
        "dry_run": report.dry_run,
        "bytes_in": report.bytes_in,
        "bytes_out": report.bytes_out,
        "parameters": report.parameters,
        "bits_per_parameter": report.bits_per_parameter,
        "delta_ratio": report.delta_ratio,
        "warnings": list(report.warnings),
        "predicted": None if report.keep is None else prediction(report.keep),
        "certificate": None if report.certificate is None else dict(report.certificate.document),
    }


def prediction(keep: KeepPlan) -> dict[str, Any]:
    """A plan by energies as JSON."""
    return {
        "keep_map": keep.keep_map,
        "bits": keep.quantiser if keep.bits == 0 else keep.bits,
        "mean_keep": keep.mean_keep,
        "drift": keep.drift,
        "size": keep.size,
        "basis": "predicted, first order",
    }


def _human(report: PackReport, finetuned: Path, base: Path, every: bool) -> Iterator[RenderableType]:
    verb = "would write" if report.dry_run else "wrote"
    yield (
        f"{verb} {report.out}: {size(report.bytes_in)} -> {size(report.bytes_out)}, "
        f"{report.bytes_in / max(1, report.bytes_out):.3g} times smaller, "
        f"{report.bits_per_parameter:.3g} bits per parameter"
    )
    if report.delta_ratio:
        yield f"the delta's norm is about {report.delta_ratio:.3g} times the base's (sampled)"
    if (keep := report.keep) is not None:
        yield (
            f"predicted, first order: the outputs drift by {keep.drift:.3g} of what the fine-tune does to them "
            f"(keep map {keep.keep_map}, {keep.mean_keep:.3g} of the entries kept on average); not measured"
        )
    if report.certificate is None:
        yield "no certificate was issued"
        return
    yield ""
    yield from certificates.parts(report.certificate.document, every)
    if not report.dry_run:
        yield ""
        yield f"check it: assay verify {report.out} --base {base} --finetuned {finetuned}"
