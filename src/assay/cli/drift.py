"""``assay drift``: what a delta does to the outputs, measured on held-out texts, and whether its plan may speak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli import options
from assay.cli.figures import size
from assay.cli.options import FILE, reporting
from assay.cli.output import Output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.checkpoints.drift import DriftReport, Offer, Trial

DEFAULT_LIMIT = 0.1
FAILED = 1


@click.command("drift", short_help="Measure on held-out texts what a delta does to the outputs.")
@click.argument("base", type=FILE)
@click.argument("finetuned", type=FILE)
@click.argument("delta", type=FILE)
@click.option(
    "--text",
    type=FILE,
    required=True,
    metavar="FILE.txt",
    help="Held-out texts, one a line, UTF-8: neither trained on nor calibrated with.",
)
@click.option(
    "--energies",
    type=FILE,
    metavar="FILE",
    help="What 'assay calibrate' measured of this pair: predict the drift too, and compare.",
)
@click.option(
    "--max-drift",
    type=click.FloatRange(min=0, min_open=True),
    metavar="D",
    help=f"Fail if the measured drift is larger; also the limit of the pack that is offered, by default {DEFAULT_LIMIT}.",
)
@click.option(
    "--offer/--no-offer",
    default=True,
    show_default=True,
    help="On failure try a few packs, one at a time, in a temporary folder beside DELTA, and name the smallest that is good.",
)
@click.option(
    "--samples", type=click.IntRange(min=1), help="Use at most this many texts, the first ones; default: all."
)
@options.max_length
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Of the bootstrap interval over the texts.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the bootstrap.")
@reporting
@click.pass_context
def command(
    ctx: click.Context,
    base: Path,
    finetuned: Path,
    delta: Path,
    text: Path,
    energies: Path | None,
    max_drift: float | None,
    offer: bool,
    samples: int | None,
    max_length: int,
    confidence: float,
    seed: int,
    out: Output,
) -> None:
    """Measure what DELTA, packed from FINETUNED on BASE, does to the outputs on held-out texts (extra torch).

    With --energies the measurement is compared with the prediction: first order holds only within a factor of two
    and up to a drift of 0.5, and exit code 1 says that it does not. The models are Hugging Face model folders; nothing is unpacked to the disk.
    """
    from assay.checkpoints.drift import offer_pack, open_gauge
    from assay.checkpoints.energies import load_energies
    from assay.checkpoints.language import read_texts

    lines = read_texts(text)
    known = load_energies(energies) if energies is not None else None
    offered = None
    with (
        out.progress("drift", unit="texts") as progress,
        open_gauge(
            base,
            finetuned,
            lines,
            seed=seed,
            max_samples=samples,
            max_length=max_length,
            confidence=confidence,
            progress=progress,
        ) as gauge,
    ):
        report = gauge.measure(delta, known)
        too_far = max_drift is not None and report.drift > max_drift
        failed = report.first_order is False or too_far
        if failed and offer:
            limit = max_drift if max_drift is not None else DEFAULT_LIMIT
            offered = offer_pack(
                gauge, base, finetuned, max_drift=limit, energies=energies, folder=delta.absolute().parent
            )
    document = _document(report) | {
        "max_drift": max_drift,
        "offer": None if offered is None else _offer_document(offered),
    }
    out.result(document, lambda: _human(report, max_drift, offered))
    if failed:
        ctx.exit(FAILED)


def _document(report: DriftReport) -> dict[str, Any]:
    return {
        "delta": str(report.delta),
        "size": report.size,
        "kind": report.kind,
        "samples": report.samples,
        "drift": report.drift,
        "interval": [report.low, report.high],
        "confidence": report.confidence,
        "basis": "measured; interval by bootstrap over texts, approximate",
        "divergence": report.divergence,
        "predicted": report.predicted,
        "unpredicted": report.unpredicted,
        "first_order": report.first_order,
    }


def _offer_document(offer: Offer) -> dict[str, Any]:
    def trial(one: Trial) -> dict[str, Any]:
        return {
            "settings": dict(one.settings),
            "size": one.report.size,
            "drift": one.report.drift,
            "predicted": one.report.predicted,
            "first_order": one.report.first_order,
        }

    return {
        "max_drift": offer.max_drift,
        "best": None if offer.best is None else trial(offer.best),
        "tried": [trial(one) for one in offer.tried],
    }


def _human(report: DriftReport, limit: float | None, offer: Offer | None) -> Iterator[RenderableType]:
    yield _verdict(report)
    if limit is not None:
        relation = "more" if report.drift > limit else "no more"
        yield f"that is {relation} than the {limit:g} allowed"
    yield (
        f"measured on {report.samples} held-out texts: drift {report.drift:.3g}, {100 * report.confidence:g} % by bootstrap "
        f"over the texts [{report.low:.3g}, {report.high:.3g}] (approximate, no rigorous bound); {size(report.size)}"
    )
    if report.divergence is not None:
        yield f"mean divergence of the packed model from the fine-tuned one: {report.divergence:.3g} nats"
    if offer is None:
        return
    yield ""
    yield from _offered(offer)


def _verdict(report: DriftReport) -> str:
    from assay.checkpoints.drift import LOST

    if report.predicted is None:
        return (
            f"the outputs drift by {report.drift:.3g} of what the fine-tune does to them; nothing was predicted: "
            f"{report.unpredicted}"
        )
    ratio = f"measured {report.drift:.3g}, predicted {report.predicted:.3g}"
    if report.first_order:
        return f"first order holds: {ratio}, within a factor of 2"
    if report.drift > LOST:
        return f"first order does not hold: {ratio}; beyond {LOST:g} much of the fine-tune is lost, whatever was predicted"
    return (
        f"first order does not hold: {ratio}, off by more than a factor of 2; the delta is too large for it, or the "
        "energies say too little of these texts, so rely on the measurement alone"
    )


def _offered(offer: Offer) -> Iterator[RenderableType]:
    from rich.table import Table

    best = offer.best
    if best is None:
        yield f"none of the packs tried drifts by at most {offer.max_drift:g}"
    else:
        yield (
            f"pack with {_options(best)}: {size(best.report.size)}, measured drift {best.report.drift:.3g}, the smallest "
            f"of those tried within {offer.max_drift:g}"
        )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("tried", "size", "drift", "predicted"):
        table.add_column(column, justify="left" if column == "tried" else "right")
    for one in offer.tried:
        predicted = "" if one.report.predicted is None else f"{one.report.predicted:.3g}"
        table.add_row(_options(one), size(one.report.size), f"{one.report.drift:.3g}", predicted)
    yield table


def _options(trial: Trial) -> str:
    """The settings as options of ``assay pack``."""
    words = []
    for name, value in trial.settings.items():
        flag = "--" + name.replace("_", "-")
        if (name, value) == ("bits", 0):
            value = "grid"
        words.append(
            flag if value is True else f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}"
        )
    return " ".join(words)
