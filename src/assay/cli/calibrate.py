"""``assay calibrate``: what each entry of a fine-tune does to the outputs of the network, measured on texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli import options
from assay.cli.figures import size
from assay.cli.options import FILE, reporting
from assay.cli.output import Output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.checkpoints.energies import Energies


@click.command("calibrate", short_help="Measure a fine-tune's energies on texts, to plan packs by.")
@click.argument("finetuned", type=FILE)
@click.option("--base", type=FILE, required=True, help="The model folder that FINETUNED was trained from.")
@click.option(
    "--texts",
    type=FILE,
    required=True,
    metavar="FILE.txt",
    help="Texts as the model will read them, one a line, UTF-8.",
)
@click.option("-o", "--out", "target", type=FILE, required=True, help="Where the energies go.")
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=96,
    show_default=True,
    help="Use at most this many texts, the first ones.",
)
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Random projections, or label draws, of each text.",
)
@options.max_length
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of labels and projections."
)
@click.option(
    "--kind",
    type=click.Choice(["auto", "classification", "causal-lm", "encoder"]),
    default="auto",
    show_default=True,
    help="What the outputs are; auto follows the model's config.",
)
@reporting
def command(
    finetuned: Path,
    base: Path,
    texts: Path,
    target: Path,
    samples: int,
    draws: int,
    max_length: int,
    seed: int,
    kind: str,
    out: Output,
) -> None:
    """Measure what each weight of FINETUNED's delta does to the outputs, and save what plans need (extra torch).

    FINETUNED and BASE are Hugging Face model folders: a sequence classifier, a causal language model or an encoder.
    """
    from assay.checkpoints.energies import collect_energies
    from assay.checkpoints.language import read_texts

    lines = read_texts(texts)
    with out.progress("calibrate", unit="texts") as progress:
        energies = collect_energies(
            finetuned,
            base,
            lines,
            samples=samples,
            seed=seed,
            kind=kind,
            draws=draws,
            max_length=max_length,
            progress=progress,
        )
    energies.save(target)
    document = {
        "out": str(target),
        "kind": energies.kind,
        "samples": energies.samples,
        "draws": energies.draws,
        "seed": energies.seed,
        "tensors": len(energies.tensors),
        "entries": sum(t.count for t in energies.tensors.values()),
        "effect": energies.effect,
        "total": sum(t.total for t in energies.tensors.values()),
        "base": energies.base,
        "finetuned": energies.finetuned,
        "texts": energies.texts,
    }
    out.result(document, lambda: _human(energies, target, finetuned, base))


def _human(energies: Energies, target: Path, finetuned: Path, base: Path) -> Iterator[RenderableType]:
    entries = sum(t.count for t in energies.tensors.values())
    yield (
        f"wrote {target} ({size(target.stat().st_size)}): energies of {len(energies.tensors)} changed tensors "
        f"({entries:,} entries) from {energies.samples} texts, kind {energies.kind}"
    )
    yield f"see what they allow: assay plan pack {finetuned} --base {base} --energies {target}"
