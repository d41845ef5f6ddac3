"""A published fine-tune with a large delta, which first order must not certify: ``python benchmarks/large_delta.py``.

The pair is the character model textgenrnn and its fine-tune on headlines (relative norm of the delta about 0.4), in
``../shared/data/textgenrnn`` beside the repository.  The texts on which it was trained are not at hand: contexts are
drawn from the fine-tuned model itself, one set of texts to calibrate with and another to measure on.  Prints, for each
plan, drift predicted and measured, whether first order may speak, and the negative log-likelihood; then the offer.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from assay.checkpoints import apply, pack
from assay.checkpoints.delta import source_fingerprint
from assay.checkpoints.drift import Gauge, module_gauge, offer_pack
from assay.checkpoints.energies import Energies, module_energies
from assay.checkpoints.io import open_checkpoint

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "textgenrnn"
START, CONTEXT, UNITS = 464, 40, 128
CALIBRATION, HELD_OUT, LENGTH = 4, 8, 50
"""Texts drawn from the model for either use, and characters of each."""

MAX_DRIFT = 0.05
"""Of the offer."""

PLANS = tuple(
    {"keep_map": m, "drop": d, "bits": 4} for m in ("uniform", "factored") for d in (0.1, 0.3, 0.5, 0.9)
)


class CharacterModel(nn.Module):
    """Two LSTM layers, averaged with the embedding by attention over the context; parameters as in the files."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        for name, value in load_file(file).items():
            self.register_parameter(name.replace(".", "/"), nn.Parameter(value))

    def forward(self, contexts: Tensor) -> Tensor:
        """Log-probabilities [contexts, 465] of the character after each context [contexts, 40]."""
        states = [self.get_parameter("embedding/embeddings:0")[contexts]]
        for layer in ("rnn_1", "rnn_2"):
            states.append(self._lstm(layer, states[-1]))
        joined = torch.cat(states, dim=-1)
        weights = (joined @ self.get_parameter("attention/attention_W:0")).softmax(dim=1)
        logits = (weights * joined).sum(dim=1) @ self.get_parameter("output/kernel:0")
        return (logits + self.get_parameter("output/bias:0")).log_softmax(dim=-1)

    def _lstm(self, layer: str, inputs: Tensor) -> Tensor:
        fed = inputs @ self.get_parameter(f"{layer}/kernel:0") + self.get_parameter(f"{layer}/bias:0")
        recurrent = self.get_parameter(f"{layer}/recurrent_kernel:0")
        state = cell = fed.new_zeros(len(fed), UNITS)
        states = []
        for step in range(fed.shape[1]):
            i, f, c, o = (fed[:, step] + state @ recurrent).chunk(4, dim=-1)
            cell = f.sigmoid() * cell + i.sigmoid() * c.tanh()
            state = o.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


def written(model: CharacterModel, texts: int, seed: int) -> tuple[Tensor, Tensor]:
    """Texts drawn from the model: contexts [texts, characters, 40] and the characters that follow."""
    draw = torch.Generator().manual_seed(seed)
    context = torch.zeros(texts, CONTEXT, dtype=torch.long)
    context[:, -1] = START
    contexts, labels = [], []
    with torch.inference_mode():
        for _ in range(LENGTH):
            label = torch.multinomial(model(context).exp(), 1, generator=draw)
            contexts.append(context)
            labels.append(label[:, 0])
            context = torch.cat([context[:, 1:], label], dim=1)
    return torch.stack(contexts, dim=1).clone(), torch.stack(labels, dim=1).clone()


def energies(model: CharacterModel, base: Path, tuned: Path, contexts: Tensor) -> Energies:
    """Fisher energies with two drawn labels per context; the effect is twice the divergence from the base."""
    flat = contexts.flatten(0, 1)
    with torch.inference_mode():
        then, before = model(flat).double(), CharacterModel(base)(flat).double()
    labels = torch.multinomial(then.exp(), 2, replacement=True, generator=torch.Generator().manual_seed(1))
    found = module_energies(
        model,
        {name: value.numpy() for name, value in load_file(base).items()},
        list(zip(flat[:, None], labels.clone(), strict=True)),
        lambda module, sample: module(sample[0])[0, sample[1]] / 2**0.5,
    )
    effect = float(2 * (then.exp() * (then - before)).sum(dim=1).mean())
    with open_checkpoint(base) as old, open_checkpoint(tuned) as new:
        others = {name: info.nbytes for name, info in new.tensors.items() if name not in found.tensors}
        return dataclasses.replace(
            found,
            effect=effect,
            other=others,
            base=source_fingerprint(old),
            finetuned=source_fingerprint(new),
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
    seen, _ = written(model, CALIBRATION, seed=0)
    held, labels = written(model, HELD_OUT, seed=1)
    exact = nll(tuned, held, labels)
    with (
        tempfile.TemporaryDirectory() as scratch,
        module_gauge(
            model, lambda module, item: module(item), list(held), base, tuned, kind="causal-lm"
        ) as gauge,
    ):
        folder = Path(scratch)
        file = folder / "energies.safetensors"
        known = energies(model, base, tuned, seen)
        known.save(file)
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
