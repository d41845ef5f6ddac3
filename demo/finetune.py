"""Fine-tune the sentence encoder on newswire topics, on a CPU, and measure what came of it.

The base is the encoder's folder as published.  The fine-tuned model is a folder of the same layout: every
tensor of the base under its own name, plus the topic head ``classifier.weight`` [topics, width] and
``classifier.bias`` [topics].  The embeddings stay as they were, and so does the pooler, which takes no part.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from demo.artefacts import Corpus

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@dataclass(frozen=True)
class Recipe:
    """How to train: linear warm-up over a tenth of the steps, linear decay to zero, the last step kept."""

    steps: int = 140
    batch_size: int = 32
    max_length: int = 48
    encoder_rate: float = 1e-4
    head_rate: float = 5e-3
    seed: int = 0
    threads: int = 2


class Classifier(nn.Module):
    """An encoder, the mean over its tokens, and a linear head."""

    def __init__(self, folder: Path, topics: int, max_length: int) -> None:
        super().__init__()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.encoder = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
        self.head = nn.Linear(self.encoder.config.hidden_size, topics)
        self.max_length = max_length
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Mean of the token states of each text, shape [texts, width]."""
        batch = self.tokenizer(
            list(texts), truncation=True, max_length=self.max_length, padding=True, return_tensors="pt"
        )
        mask = batch["attention_mask"].unsqueeze(-1)
        states = self.encoder(**batch).last_hidden_state
        return (states * mask).sum(dim=1) / mask.sum(dim=1)

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Topic logits, shape [texts, topics]."""
        return self.head(self.embed(texts))


def batches(corpus: Corpus, recipe: Recipe) -> Iterator[tuple[list[str], Tensor]]:
    """The training batches in their order: shuffled passes over the corpus, one seed for all."""
    draw = random.Random(recipe.seed)
    order: list[int] = []
    for _ in range(recipe.steps):
        while len(order) < recipe.batch_size:
            order += draw.sample(range(len(corpus.texts)), len(corpus.texts))
        now, order = order[: recipe.batch_size], order[recipe.batch_size :]
        yield [corpus.texts[i] for i in now], torch.tensor([corpus.labels[i] for i in now])


def finetune(base: Path, train: Corpus, out: Path, recipe: Recipe) -> None:
    """Train encoder and head together on ``train`` and write the fine-tuned folder ``out``.

    AdamW on everything but the embeddings, cross-entropy.  ``out`` appears only when complete.
    """
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    model = Classifier(base, len(train.topics), recipe.max_length)
    model.encoder.embeddings.requires_grad_(False)
    optimiser = torch.optim.AdamW(
        [
            {"params": [w for w in model.encoder.parameters() if w.requires_grad], "lr": recipe.encoder_rate},
            {"params": model.head.parameters(), "lr": recipe.head_rate},
        ]
    )
    warm = max(1, recipe.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm, (recipe.steps - step) / (recipe.steps - warm + 1))
    )
    model.train()
    for step, (texts, labels) in enumerate(batches(train, recipe), start=1):
        loss = nn.functional.cross_entropy(model(texts), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 20 == 0 or step == recipe.steps:
            print(f"  step {step:3d} of {recipe.steps}  loss {loss.item():.3f}", file=sys.stderr)
    _save(model, base, out)


def probe(base: Path, train: Corpus, recipe: Recipe, penalty: float = 1e-4) -> nn.Linear:
    """A logistic regression on the frozen encoder, fitted to the same texts the fine-tune sees.

    Minimises mean cross-entropy plus ``penalty`` times the squared weights with L-BFGS: the fair "before".
    """
    torch.set_num_threads(recipe.threads)
    model = Classifier(base, len(train.topics), recipe.max_length).eval()
    pairs = list(batches(train, recipe))
    features = _embed_all(model, [text for texts, _ in pairs for text in texts])
    labels = torch.cat([label for _, label in pairs])
    optimiser = torch.optim.LBFGS(model.head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimiser.zero_grad()
        value = nn.functional.cross_entropy(model.head(features), labels)
        value = value + penalty * model.head.weight.square().sum()
        value.backward()
        return value

    optimiser.step(objective)
    return model.head


def accuracy(folder: Path, corpus: Corpus, recipe: Recipe, head: nn.Linear | None = None) -> float:
    """Share of ``corpus`` that the model in ``folder`` gets right, with its own head unless one is given."""
    torch.set_num_threads(recipe.threads)
    model = Classifier(folder, len(corpus.topics), recipe.max_length).eval()
    if head is None:
        stored = load_file(folder / "model.safetensors")
        model.head.load_state_dict(
            {name: stored[f"classifier.{name}"].float() for name in ("weight", "bias")}
        )
    else:
        model.head = head
    with torch.inference_mode():
        predicted = model.head(_embed_all(model, corpus.texts)).argmax(dim=1)
    return (predicted == torch.tensor(corpus.labels)).double().mean().item()


def _embed_all(model: Classifier, texts: Sequence[str], batch_size: int = 32) -> Tensor:
    """Embed texts of similar length together, so that little is padding; rows in the order given."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    features = torch.empty(len(texts), model.encoder.config.hidden_size)
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            features[rows] = model.embed([texts[i] for i in rows])
    return features


def _save(model: Classifier, base: Path, out: Path) -> None:
    """Write the tensors of the base file, as trained, and the head, beside copies of the other files."""
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(base, partial)
    tensors = load_file(base / "model.safetensors")
    trained = model.encoder.state_dict()
    tensors.update({name: trained[name] for name in tensors if name in trained})
    tensors.update({f"classifier.{name}": value for name, value in model.head.state_dict().items()})
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
