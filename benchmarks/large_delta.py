"""A published fine-tune with a large delta, which first order must not certify: ``python -m benchmarks.large_delta``.

The pair is the character model textgenrnn and its fine-tune on headlines (relative norm of the delta about 0.4), in
``../shared/data/textgenrnn`` beside the repository.  The texts on which it was trained are not at hand: contexts are
drawn from the fine-tuned model itself, one set of texts to calibrate with and another to measure on.  Prints, for each
plan, drift predicted and measured, whether first order may speak, and the negative log-likelihood; then the offer.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from benchmarks.pairs import SHARED, CharacterModel, character_energies, written
from torch import Tensor

from assay.checkpoints import apply, pack
from assay.checkpoints.drift import Gauge, module_gauge, offer_pack
from assay.checkpoints.energies import Energies, load_energies

DATA = SHARED / "textgenrnn"
CALIBRATION, HELD_OUT, LENGTH = 4, 8, 50
"""Texts drawn from the model for either use, and characters of each."""

MAX_DRIFT = 0.05
"""Of the offer."""

PLANS = tuple(
    {"keep_map": m, "drop": d, "bits": 4} for m in ("uniform", "factored") for d in (0.1, 0.3, 0.5, 0.9)
)


def nll(file: Path, contexts: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood of the characters, nats."""
    with torch.inference_mode():
        table = CharacterModel(file)(contexts.flatten(0, 1))
    return -float(table.gather(1, labels.flatten()[:, None]).double().mean())


def main() -> int:
    """Print the table and the offer."""
    base, tuned = (DATA / f"{name}.safetensors" for name in ("base", "hacker_news"))
    if not (base.is_file() and tuned.is_file()):
        print(f"the published models are not in {DATA}: nothing to measure", file=sys.stderr)
        return 2
    model = CharacterModel(tuned).eval()
    seen, _ = written(model, CALIBRATION, LENGTH, seed=0)
    held, labels = (
        part.unflatten(0, (HELD_OUT, LENGTH)) for part in written(model, HELD_OUT, LENGTH, seed=1)
    )
    exact = nll(tuned, held, labels)
    with (
        tempfile.TemporaryDirectory() as scratch,
        module_gauge(
            model, lambda module, item: module(item), list(held), base, tuned, kind="causal-lm"
        ) as gauge,
    ):
        folder = Path(scratch)
        file = folder / "energies.safetensors"
        character_energies(model, base, tuned, seen, file)
        known = load_energies(file)
        print(
            f"nll: base {nll(base, held, labels):.3f}, fine-tuned {exact:.3f}; {held[..., 0].numel()} positions"
        )
        print(f"{'plan':44} {'bytes':>9} {'predicted':>9} {'measured':>9} {'KL':>7} {'nll':>7}  first order")
        for settings in PLANS:
            show(gauge, known, folder, (base, tuned), settings, (held, labels))
        offer = offer_pack(gauge, base, tuned, max_drift=MAX_DRIFT, energies=file, folder=folder)
        for trial in offer.tried:
            show(gauge, known, folder, (base, tuned), dict(trial.settings), (held, labels))
        assert offer.best is not None
        chosen = show(
            gauge, known, folder, (base, tuned), dict(offer.best.settings), (held, labels), "offered: "
        )
        print(
            f"the nll of the offered plan is {100 * (chosen / exact - 1):+.2f} % of the fine-tuned one's away"
        )
    return 0


def show(
    gauge: Gauge,
    known: Energies,
    folder: Path,
    pair: tuple[Path, Path],
    settings: dict[str, object],
    held: tuple[Tensor, Tensor],
    prefix: str = "",
) -> float:
    """Pack, measure, print a line; returns the nll of the packed model."""
    base, tuned = pair
    delta, unpacked = folder / "delta.safetensors", folder / "unpacked.safetensors"
    planned = None if settings.get("lossless") else folder / "energies.safetensors"
    pack(tuned, base, delta, energies=planned, certificate=False, force=True, overwrite=True, **settings)  # type: ignore[arg-type]
    apply(base, delta, unpacked, overwrite=True)
    report = gauge.measure(delta, known)
    score = nll(unpacked, *held)
    spoken = {True: "holds", False: "refused", None: report.unpredicted}[report.first_order]
    predicted = np.nan if report.predicted is None else report.predicted
    name = prefix + ", ".join(f"{key} {value}" for key, value in settings.items())
    print(
        f"{name:44} {report.size:9} {predicted:9.3g} {report.drift:9.3g} {report.divergence:7.3f} {score:7.3f}  {spoken}",
        flush=True,
    )
    return score


if __name__ == "__main__":
    sys.exit(main())
