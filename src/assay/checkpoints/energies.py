"""Network-level energies: what each entry of a fine-tune's delta does to the outputs of the network.

With ``z`` an output, ``g = dz/dtheta`` at the fine-tuned weights and ``d`` the delta, entry ``j`` has the energy
``A_j = E (g_j d_j)^2``, the mean over calibration samples and the sum over outputs.  A plan that keeps entry ``j``
with probability ``k_j``, unbiased, then has to first order the mean-square drift

    E sum (z(packed) - z(finetuned))^2  ~  sum_j A_j (1/k_j - 1) + sum_j E g_j^2 V_j / k_j,

``V_j`` the variance of the quantiser (claim ``dare.linear_network_drift``; exact for a network that is linear in its
weights).  :func:`collect_energies` measures a pair of Hugging Face folders, :func:`module_energies` any torch module.

Gradients are taken one sample and one output at a time; each parameter's is squared, added and freed as soon as it
is there.  Memory is one model in float32 and one accumulator of the size of what changed.

What is kept of ``A`` is what a plan needs: row and column means, and, for the sixteen classes of rows times the
sixteen of columns that they define (:func:`assay.checkpoints.factors.log_codes`), the sums of ``A`` and of ``g^2``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.checkpoints import codec
from assay.checkpoints.delta import block_rows, source_fingerprint
from assay.checkpoints.encode import difference, read_base_rows
from assay.checkpoints.engine import Progress, silent
from assay.checkpoints.factors import CLASSES, Codes, log_codes
from assay.checkpoints.header import DTYPES, TensorInfo
from assay.checkpoints.io import Source, compare_layouts, open_checkpoint, refuse_quantised
from assay.checkpoints.language import (
    choose_texts,
    digest_texts,
    load_model,
    stored_names,
    token_limit,
    tokenize,
)
from assay.checkpoints.measurements import read_measurements, write_measurements
from assay.checkpoints.plan import BITS
from assay.core.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import torch

FORMAT = "assay-energies"
VERSION = "2"
KINDS = ("classification", "causal-lm", "encoder", "module")
SPANS = (64, 1024, 16384)
"""Entries per quantiser scale for which the quantiser's noise and rate are measured."""

STEPS = tuple(2.0 ** (number / 2) for number in range(-12, 7))
"""Grid steps for which noise and rate are measured, over the delta's root mean square."""

MAX_LOGITS = 8
"""Up to so many logits each gets a gradient of its own; more are seen through random projections."""

_PARTS = ("rows", "columns", "classes", "survivors", "grid", "peak")
_METADATA = ("kind", "samples", "draws", "seed", "effect", "other", "base", "finetuned", "texts")
_TOLERANCE = 1e-3
_SAMPLED_BLOCKS, _SAMPLED_RUNS = 4, 8
"""Noise and rate of the quantisers are averages, for which a part of a large tensor is sample enough."""

Floats = np.ndarray
Outputs = Callable[["torch.nn.Module", Any], "torch.Tensor"]


@dataclass(frozen=True, eq=False)
class TensorEnergy:
    """What plans need to know of one changed matrix [m, n]; a vector is [m, 1].

    Attributes:
        rows, columns: means of A over each row, float32 [m], and over each column, float32 [n].
        energy: sums of A over each pair of row class and column class, float64 [16, 16].
        gradient: the same of g^2.
        noise: sum of g^2 V for the quantisers of `BITS` (axis 0) with the spans of `SPANS` (axis 1), float64 [5, 3].
        rate: bits that a survivor takes after entropy coding, same axes.
        peak: the largest A of an entry.
        deviation: root mean square of the delta.
        grid_noise: sum of g^2 V for grids of the steps `STEPS`, in units of the deviation, float64 [19].
        grid_rate: bits that a survivor takes at its entropy, same axis.
    """

    rows: Floats
    columns: Floats
    energy: Floats
    gradient: Floats
    noise: Floats
    rate: Floats
    peak: float
    deviation: float
    grid_noise: Floats
    grid_rate: Floats

    @property
    def total(self) -> float:
        """Sum of A over the tensor: the drift at keep probability 1/2."""
        return float(self.energy.sum())

    @property
    def count(self) -> int:
        """Number of entries."""
        return self.rows.size * self.columns.size

    @cached_property
    def row_classes(self) -> tuple[Codes, float, float]:
        """:func:`log_codes` of the row means."""
        return log_codes(self.rows)

    @cached_property
    def column_classes(self) -> tuple[Codes, float, float]:
        """:func:`log_codes` of the column means."""
        return log_codes(self.columns)

    @property
    def class_sizes(self) -> Floats:
        """How many entries each pair of row class and column class has, float64 [16, 16]."""
        sides = (self.row_classes[0], self.column_classes[0])
        rows, columns = (np.bincount(codes, minlength=CLASSES) for codes in sides)
        return np.multiply.outer(rows, columns).astype(np.float64)

    @property
    def blocks(self) -> int:
        """Blocks that the tensor is coded in."""
        return -(-self.rows.size // codec.rows_per_block(self.columns.size))


@dataclass(frozen=True, eq=False)
class Energies:
    """Energies of all changed matrices and vectors of a pair, by the name of the tensor in the files.

    Attributes:
        tensors: those that plans may drop from.
        other: bytes that each remaining tensor of the fine-tuned checkpoint, and each of one dimension, takes if it is
            stored exactly; 0 if unchanged.
        effect: mean square of what the fine-tune does to the outputs, E sum (z(finetuned) - z(base))^2, with the base's
            weights where it has them; for a language model twice the divergence KL(finetuned || base) per token.
        kind: what the outputs are: ``classification`` (logits), ``causal-lm`` (log-probabilities of labels drawn from
            the model itself, per token), ``encoder`` (mean over the last hidden states), ``module`` (a function given).
        samples: how many samples were read.
        draws: gradients per sample.
        seed: of labels and projections.
        base, finetuned: quick fingerprints of the pair; empty for a bare module.
        texts: sha256 of the texts; empty for a bare module.
    """

    tensors: Mapping[str, TensorEnergy]
    other: Mapping[str, int]
    effect: float
    kind: str
    samples: int
    draws: int
    seed: int
    base: str = ""
    finetuned: str = ""
    texts: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))
        object.__setattr__(self, "other", MappingProxyType(dict(self.other)))

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def check(self, base: Source, finetuned: Source) -> None:
        """Refuse to speak of another pair than the one that was measured.

        Raises:
            InputError: a fingerprint differs.
        """
        for what, side, known in (("base", base, self.base), ("fine-tune", finetuned, self.finetuned)):
            if source_fingerprint(side) != known:
                raise InputError(
                    f"the energies are those of another {what} than {side.path}: run 'assay calibrate' on this pair"
                )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that :func:`load_energies` reads back bit for bit; equal energies, equal bytes."""
        parts: list[tuple[str, str, Floats]] = []
        for name in sorted(self.tensors):
            t = self.tensors[name]
            parts += [
                (f"{name}#rows", "F32", t.rows),
                (f"{name}#columns", "F32", t.columns),
                (f"{name}#classes", "F64", np.stack([t.energy, t.gradient])),
                (f"{name}#survivors", "F64", np.stack([t.noise, t.rate])),
                (f"{name}#grid", "F64", np.stack([t.grid_noise, t.grid_rate])),
                (f"{name}#peak", "F64", np.array([t.peak, t.deviation])),
            ]
        metadata = {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "samples": str(self.samples),
            "draws": str(self.draws),
            "seed": str(self.seed),
            "effect": float(self.effect).hex(),
            "other": json.dumps(dict(self.other), sort_keys=True),
            "base": self.base,
            "finetuned": self.finetuned,
            "texts": self.texts,
        }
        write_measurements(path, parts, metadata)


# Reading a file ---------------------------------------------------------------------------------------------


def load_energies(path: str | os.PathLike[str]) -> Energies:
    """Read a file written by :meth:`Energies.save`.

    Raises:
        InputError: it is no such file, of an unknown version, or holds what no energies can be.
    """
    file = Path(path)
    metadata, values = read_measurements(file, "energies", form=FORMAT, version=VERSION, required=_METADATA)
    if metadata["kind"] not in KINDS:
        raise InputError(f"{file} has the unknown kind {metadata['kind'][:40]!r}: calibrate again")
    names = [name.removesuffix("#rows") for name in values if name.endswith("#rows")]
    wanted = {f"{name}#{part}" for name in names for part in _PARTS}
    if not names or wanted != values.keys():
        stray = min(wanted ^ values.keys(), default="")
        raise InputError(f"{file} does not hold the parts of its tensors ({stray[:80]!r}): calibrate again")
    return Energies(
        {name: _tensor(name, values, file) for name in names},
        _sizes(metadata["other"], file),
        _number(metadata, "effect", file),
        metadata["kind"],
        _whole(metadata, "samples", file),
        _whole(metadata, "draws", file),
        _whole(metadata, "seed", file),
        metadata["base"],
        metadata["finetuned"],
        metadata["texts"],
    )


def _tensor(name: str, values: Mapping[str, Floats], file: Path) -> TensorEnergy:
    """One tensor's parts, once they pass for energies."""
    parts = rows, columns, classes, survivors, grid, peak = [values[f"{name}#{part}"] for part in _PARTS]
    shapes = (classes.shape, survivors.shape, grid.shape, peak.shape)
    types = [part.dtype for part in parts]
    if (
        rows.ndim != 1
        or columns.ndim != 1
        or not rows.size
        or not columns.size
        or shapes != ((2, CLASSES, CLASSES), (2, len(BITS), len(SPANS)), (2, len(STEPS)), (2,))
        or types != [np.float32] * 2 + [np.float64] * 4
    ):
        raise InputError(f"the parts of {name} in {file} have the wrong types or shapes: calibrate again")
    for part in parts:
        if not (np.isfinite(part).all() and (part >= 0).all()):
            raise InputError(
                f"the energies of {name} in {file} are not finite or negative, which no mean square is: calibrate again"
            )
    found = TensorEnergy(rows, columns, *classes, *survivors, *map(float, peak), *grid)
    count = found.count
    sums = [rows.mean(dtype=np.float64) * count, columns.mean(dtype=np.float64) * count]
    if any(
        abs(total - found.total) > _TOLERANCE * found.total for total in sums
    ) or found.peak > found.total * (1 + _TOLERANCE):
        raise InputError(
            f"the row, column and class sums of {name} in {file} contradict one another: calibrate again"
        )
    return found


def _number(metadata: Mapping[str, str], key: str, file: Path) -> float:
    try:
        value = float.fromhex(metadata[key])
    except (ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise InputError(
            f"{file} gives {key!r} as {metadata[key][:40]!r}, which is no mean square: calibrate again"
        )
    return value


def _whole(metadata: Mapping[str, str], key: str, file: Path) -> int:
    text = metadata[key]
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InputError(f"{file} gives {key!r} as {text[:40]!r}, which is no count: calibrate again")
    return int(text)


def _sizes(text: str, file: Path) -> dict[str, int]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(n) is int and 0 <= n < 1 << 48 for n in found.values()):
        raise InputError(f"{file} does not list the bytes of its other tensors: calibrate again")
    return found


# Measuring --------------------------------------------------------------------------------------------------


def collect_energies(
    finetuned: str | os.PathLike[str],
    base: str | os.PathLike[str],
    texts: Sequence[str],
    *,
    samples: int | None = None,
    seed: int = 0,
    kind: str = "auto",
    draws: int = 2,
    max_length: int = 256,
    progress: Progress | None = None,
) -> Energies:
    """Energies of a fine-tuned Hugging Face model folder against its base.

    The model is loaded as for :func:`assay.checkpoints.calibrate.collect_moments`.  Outputs, by `kind`: for
    ``classification`` the logits, each with a gradient of its own up to `MAX_LOGITS` and through `draws` random +-1
    projections above; for ``causal-lm`` the log-probability of labels drawn from the model itself at every position
    (`draws` times; the mean square of its gradient is the diagonal of the Fisher matrix), per token; for ``encoder``
    `draws` random +-1 projections of the mean over the last hidden states.  ``auto`` follows ``architectures``.

    Args:
        finetuned, base: Hugging Face model folders; of `base` only the weights are needed.
        texts: calibration texts, in the distribution the model will be used on.
        samples: use at most this many texts, the first ones.
        seed: of labels and projections; text number i draws its own, whatever the others are.
        kind: ``auto`` or one of `KINDS`.
        draws: random projections, or label draws, per text.
        max_length: tokens kept of each text (fewer if the model cannot take so many).
        progress: called with texts done, texts in all (read twice), and what is being done.

    Raises:
        MissingExtraError: torch or transformers is not installed.
        InputError: the model does not load offline; the two folders do not match or nothing differs; a text is empty;
            there are too few tokens; an output or a gradient is not finite (the message names the layer).
    """
    chosen = choose_texts(texts, samples)
    if kind not in ("auto", *KINDS[:3]):
        raise InputError(f"the kind {kind!r} is none of auto, {', '.join(KINDS[:3])}")
    for name, value, least in (("draws", draws, 1), ("max_length", max_length, 1), ("seed", seed, 0)):
        if value < least:
            raise InputError(f"{name} is {value}: it must be at least {least}")
    require_torch()
    old, new = open_checkpoint(base), open_checkpoint(finetuned)
    with old, new:
        for side in (old, new):
            refuse_quantised(side)
        compare_layouts(old, new)
        model, tokenizer = load_model(Path(finetuned))
        encoded = tokenize(tokenizer, chosen, token_limit(max_length, tokenizer, model.config))
        reader = reader_for(kind, model, draws, seed)
        named = parameters_by_name(model, new)
        changed = {n: p for n, p in named.items() if p.ndim and _differs(n, old, new)}
        if not any(p.ndim >= 2 for p in changed.values()):
            raise InputError(f"no matrix of {new.path} that its model uses differs from {old.path}")
        tell = progress or silent
        total = 2 * len(encoded)
        items = list(enumerate(encoded))
        gradients, remembered = _squared_gradients(model, changed, items, reader, tell, total)
        _load_base(named, old, new)
        effect = 0.0
        for number, item in items:
            tell(len(encoded) + number, total, "reading with the base's weights")
            effect += reader.effect(model, (number, item), remembered[number]) / len(encoded)
        if not math.isfinite(effect):
            raise InputError(f"with the weights of {old.path} an output is not finite: the base is damaged")
        tell(total, total, "summing up")
        tensors = {
            name: _tensor_energy(_Pair(name, old, new), gradients.pop(name).numpy()) for name in changed
        }
        return Energies(
            tensors,
            {
                n: _exact_bytes(n, old, new)
                for n, i in new.tensors.items()
                if n not in tensors or len(i.shape) < 2
            },
            effect,
            reader.kind,
            len(encoded),
            reader.draws,
            seed,
            source_fingerprint(old),
            source_fingerprint(new),
            digest_texts(chosen),
        )


def module_energies(
    module: torch.nn.Module,
    base: Mapping[str, Floats],
    samples: Sequence[Any],
    outputs: Outputs,
    *,
    progress: Progress | None = None,
) -> Energies:
    """Energies of any torch module that holds the fine-tuned weights, against the base's by parameter name.

    Args:
        module: left as it was, but for ``requires_grad`` and the ``grad`` of its parameters.
        base: the base's parameters; of those that differ, but for single numbers, the energies are taken.
        samples: what `outputs` reads, one at a time.
        outputs: ``outputs(module, sample)``, a tensor [outputs], differentiable in the parameters.
        progress: called with samples done, samples in all (read twice), and what is being done.

    Raises:
        InputError: no samples; a shape differs; nothing differs; an output or gradient is not finite.
    """
    require_torch()
    import torch

    if not samples:
        raise InputError("there are no calibration samples: give at least one")
    named = dict(module.named_parameters())
    pairs = {}
    for name, old in base.items():
        if name not in named or tuple(old.shape) != tuple(named[name].shape):
            raise InputError(f"the module has no parameter {name!r} of shape {list(old.shape)}")
        delta = named[name].detach().float().numpy() - np.asarray(old, np.float32)
        if delta.ndim and delta.any():
            pairs[name] = delta
    if not any(delta.ndim >= 2 for delta in pairs.values()):
        raise InputError("no matrix of the module differs from the base")
    tell, total = progress or silent, 2 * len(samples)
    reader = FunctionReader(outputs)
    items = list(enumerate(samples))
    changed = {name: named[name] for name in pairs}
    gradients, remembered = _squared_gradients(module, changed, items, reader, tell, total)
    effect = 0.0
    kept = {name: named[name].detach().clone() for name in base}
    with torch.no_grad():
        try:
            for name, old in base.items():
                named[name].copy_(torch.as_tensor(np.array(old)))
            for number, item in items:
                tell(len(items) + number, total, "reading with the base's weights")
                effect += reader.effect(module, (number, item), remembered[number]) / len(items)
        finally:
            for name, value in kept.items():
                named[name].copy_(value)
    tensors = {name: _tensor_energy(_Dense(delta), gradients[name].numpy()) for name, delta in pairs.items()}
    return Energies(tensors, {}, effect, "module", len(items), reader.draws, 0)


def require_torch() -> None:
    """Fail early, with the name of the extra, where torch or transformers is missing."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("torch", "calibration") from error


# What the outputs are ---------------------------------------------------------------------------------------


class FunctionReader:
    """A function of module and sample, with the squared distance of its values as the effect."""

    kind = "module"

    def __init__(self, function: Outputs) -> None:
        self._function = function
        self.draws = 0

    def values(self, model: torch.nn.Module, item: tuple[int, Any]) -> torch.Tensor:
        """The outputs themselves."""
        return self._function(model, item[1])

    def outputs(self, model: torch.nn.Module, item: tuple[int, Any]) -> tuple[torch.Tensor, Any]:
        """What is differentiated, a tensor [outputs]; and what to remember of it for `effect`."""
        value = self._function(model, item[1])
        if value.ndim != 1:
            raise InputError(
                f"the outputs of a sample have shape {list(value.shape)}: return a tensor [outputs]"
            )
        self.draws = max(self.draws, len(value))
        return value, value.detach().double().numpy()

    def effect(self, model: torch.nn.Module, item: tuple[int, Any], remembered: Any) -> float:
        """Squared distance between the outputs now and those remembered."""
        import torch

        with torch.no_grad():
            now = self._function(model, item[1]).double().numpy()
        return float(np.sum((now - remembered) ** 2))


class _Vector:
    """Logits, or the mean over the last hidden states, whole or through random +-1 projections."""

    def __init__(self, kind: str, draws: int, seed: int) -> None:
        self.kind, self.draws, self._seed = kind, draws, seed

    def values(self, model: torch.nn.Module, item: tuple[int, Any]) -> torch.Tensor:
        """The whole vector."""
        return self._vector(model, item[1])

    def outputs(self, model: torch.nn.Module, item: tuple[int, Any]) -> tuple[torch.Tensor, Any]:
        """The vector or its projections, scaled so that squares add up to the vector's."""
        import torch

        vector = self._vector(model, item[1])
        remembered = vector.detach().double().numpy()
        if self.kind == "classification" and len(vector) <= MAX_LOGITS:
            self.draws = len(vector)
            return vector, remembered
        signs = _random(self._seed, item[0]).integers(0, 2, (self.draws, len(vector))) * 2.0 - 1.0
        return torch.from_numpy(signs / math.sqrt(self.draws)).to(vector.dtype) @ vector, remembered

    def effect(self, model: torch.nn.Module, item: tuple[int, Any], remembered: Any) -> float:
        """Squared distance between the vector now and the one remembered."""
        import torch

        with torch.no_grad():
            now = self._vector(model, item[1]).double().numpy()
        return float(np.sum((now - remembered) ** 2))

    def _vector(self, model: torch.nn.Module, item: Mapping[str, list[int]]) -> torch.Tensor:
        result = model(**_tensors(item))
        vector = (
            result.logits[0] if self.kind == "classification" else result.last_hidden_state[0].mean(dim=0)
        )
        return vector


class _Labels:
    """Log-probabilities of labels drawn from the model itself, one at every position, per token."""

    kind = "causal-lm"

    def __init__(self, draws: int, seed: int) -> None:
        self.draws, self._seed = draws, seed

    def values(self, model: torch.nn.Module, item: tuple[int, Any]) -> torch.Tensor:
        """Log-probabilities [positions, vocabulary]."""
        return self._table(model, item[1])

    def outputs(self, model: torch.nn.Module, item: tuple[int, Any]) -> tuple[torch.Tensor, Any]:
        """For each draw the sum of the labels' log-probabilities, scaled to the mean square per token and draw."""
        import torch

        table = self._table(model, item[1])
        probabilities = table.detach().double().exp().numpy()
        uniform = _random(self._seed, item[0]).random((self.draws, len(table)))
        labels = np.empty((self.draws, len(table)), np.int64)
        for position, row in enumerate(np.cumsum(probabilities, axis=1)):
            labels[:, position] = np.searchsorted(row, uniform[:, position] * row[-1], side="right")
        labels = np.minimum(labels, table.shape[1] - 1)
        chosen = table[torch.arange(len(table)), torch.from_numpy(labels)]
        return chosen.sum(dim=1) / math.sqrt(labels.size), (labels, chosen.detach().double().numpy())

    def effect(self, model: torch.nn.Module, item: tuple[int, Any], remembered: Any) -> float:
        """2 KL(remembered || now) per token, by the unbiased and non-negative estimate r - 1 - ln r, r = now / then."""
        import torch

        labels, before = remembered
        with torch.no_grad():
            table = self._table(model, item[1]).double()
        now = table[torch.arange(len(table)), torch.from_numpy(labels)].numpy()
        ratio = now - before
        return 2 * float(np.mean(np.expm1(ratio) - ratio))

    def _table(self, model: torch.nn.Module, item: Mapping[str, list[int]]) -> torch.Tensor:
        return model(**_tensors(item)).logits[0].log_softmax(dim=-1)


Reader = FunctionReader | _Vector | _Labels


def reader_for(kind: str, model: Any, draws: int, seed: int) -> Reader:
    """What the outputs of a Hugging Face model are: `kind`, or what its class says.

    Raises:
        InputError: `kind` is not what the class says.
    """
    name = type(model).__name__
    natural = "encoder"
    if name.endswith("ForSequenceClassification"):
        natural = "classification"
    elif name.endswith(("ForCausalLM", "LMHeadModel")):
        natural = "causal-lm"
    if kind not in ("auto", natural):
        raise InputError(f"a {name} is measured as {natural!r}, not as {kind!r}: leave --kind out")
    return _Labels(draws, seed) if natural == "causal-lm" else _Vector(natural, draws, seed)


def _random(seed: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed % (1 << 64), number]))


def _tensors(item: Mapping[str, list[int]]) -> dict[str, torch.Tensor]:
    import torch

    return {key: torch.tensor([value]) for key, value in item.items()}


# Gradients --------------------------------------------------------------------------------------------------


def _squared_gradients(
    model: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    items: Sequence[tuple[int, Any]],
    reader: Reader,
    progress: Progress,
    total: int,
) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Mean over samples of the sum over outputs of each parameter's squared gradient; and what the reader remembers."""
    import torch

    sums = {
        name: torch.zeros_like(p, requires_grad=False, dtype=torch.float32) for name, p in parameters.items()
    }
    remembered = []
    needed = [(p, p.requires_grad) for p in model.parameters()]
    with ExitStack() as stack:
        for parameter, before in needed:
            stack.callback(parameter.requires_grad_, before)
            parameter.requires_grad_(False)
        for name, parameter in parameters.items():
            parameter.requires_grad_(True)
            parameter.grad = None
            handle = parameter.register_post_accumulate_grad_hook(_adder(name, sums[name]))
            stack.callback(handle.remove)
        for item in items:
            progress(item[0], total, "taking gradients")
            outputs, memory = reader.outputs(model, item)
            if not bool(torch.isfinite(outputs).all()):
                raise InputError(
                    f"the output of calibration text {item[0] + 1} is not finite: the model is damaged"
                )
            if not outputs.requires_grad:
                raise InputError(
                    "the outputs do not depend on any matrix that changed: there is nothing to measure"
                )
            remembered.append(memory)
            for number, output in enumerate(outputs):
                output.backward(retain_graph=number + 1 < len(outputs))
    return {name: value / len(items) for name, value in sums.items()}, remembered


def _adder(name: str, total: torch.Tensor) -> Callable[[torch.Tensor], None]:
    """Add a parameter's squared gradient to its sum, and free it."""

    def add(parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        gradient = gradient.float()
        if not bool(gradient.sum().isfinite()) and not bool(gradient.isfinite().all()):
            raise InputError(
                f"the gradient of layer {name} is not finite: the model overflows on these texts or is damaged"
            )
        total.addcmul_(gradient, gradient)

    return add


# The pair of files ------------------------------------------------------------------------------------------


def parameters_by_name(model: Any, new: Source) -> dict[str, torch.nn.Parameter]:
    """The model's parameters by their names in the files, in file order."""
    stored = stored_names(model, new.tensors)
    by_name = {stored[id(p)]: p for p in model.parameters() if id(p) in stored}
    return {name: by_name[name] for name in new.tensors if name in by_name}


def in_both(name: str, old: Source, new: Source) -> bool:
    """Whether both checkpoints have a float tensor of this name, in the same shape."""
    before, after = old.tensors.get(name), new.tensors[name]
    return before is not None and before.shape == after.shape and after.is_float and before.is_float


def _differs(name: str, old: Source, new: Source) -> bool:
    """Whether the base has the tensor, in the same shape and with other values."""
    if not in_both(name, old, new):
        return False
    info = new.tensors[name]
    for start, stop in block_rows(info.rows, info.columns):
        before, _ = read_base_rows(old, old.tensors[name], info, start, stop)
        if not np.array_equal(before, new.read_rows(name, start, stop)):
            return True
    return False


def _load_base(named: Mapping[str, torch.nn.Parameter], old: Source, new: Source) -> None:
    """Put the base's weights into the model, where the base has them."""
    import torch

    with torch.no_grad():
        for name, parameter in named.items():
            if in_both(name, old, new):
                info = old.tensors[name]
                values = old.read_rows(name, 0, info.rows).view(DTYPES[info.dtype]).astype(np.float32)
                parameter.copy_(torch.from_numpy(values.reshape(info.shape)))


def _exact_bytes(name: str, old: Source, new: Source) -> int:
    """Bytes of a tensor stored without loss."""
    info = new.tensors[name]
    before = old.tensors.get(name)
    base_rows = min(before.rows, info.rows) if before is not None and info.shape and info.count else 0
    size, same = 0, before is not None and before.shape == info.shape
    for start, stop in block_rows(info.rows, info.columns, base_rows):
        bits = new.read_rows(name, start, stop)
        if before is None or start >= base_rows:
            size += len(codec.encode_exact(bits))
            continue
        prior, _ = read_base_rows(old, before, info, start, stop)
        same = same and bool(np.array_equal(prior, bits))
        size += len(codec.encode_lossless(prior, bits))
    return 0 if same else size


@dataclass(frozen=True, slots=True)
class _Pair:
    """The delta of a tensor of two checkpoints, read by rows."""

    name: str
    old: Source
    new: Source

    def blocks(self) -> Iterator[tuple[int, int, Floats]]:
        """First row, last row and delta (float64 [rows, columns]) of each block."""
        info = self.new.tensors[self.name]
        for start, stop in block_rows(info.rows, info.columns):
            yield start, stop, self._rows(info, start, stop)

    def _rows(self, info: TensorInfo, start: int, stop: int) -> Floats:
        before, _ = read_base_rows(self.old, self.old.tensors[self.name], info, start, stop)
        delta = difference(before, self.new.read_rows(self.name, start, stop), info.dtype).astype(np.float64)
        if not np.isfinite(delta).all():
            raise InputError(f"tensor {self.name!r} holds NaN or infinity: repair it before calibrating")
        return delta


@dataclass(frozen=True, slots=True)
class _Dense:
    """A delta in memory."""

    delta: Floats

    def blocks(self) -> Iterator[tuple[int, int, Floats]]:
        """The whole, as one block."""
        yield 0, len(self.delta), self.delta.reshape(len(self.delta), -1).astype(np.float64)


# Summing up -------------------------------------------------------------------------------------------------


def _tensor_energy(source: _Pair | _Dense, gradients: Floats) -> TensorEnergy:
    """Reduce ``g^2 d^2`` to what plans need; `gradients` holds g^2, float32, of the tensor's shape."""
    squares = gradients.reshape(len(gradients), -1)
    rows, columns, peak = np.zeros(len(squares)), np.zeros(squares.shape[1]), 0.0
    for start, stop, delta in source.blocks():
        energy = squares[start:stop] * delta**2
        rows[start:stop] = energy.mean(axis=1)
        columns += energy.sum(axis=0)
        peak = max(peak, float(energy.max()))
    row_means, column_means = rows.astype(np.float32), (columns / len(squares)).astype(np.float32)
    row_codes, column_codes = log_codes(row_means)[0], log_codes(column_means)[0]
    sums = np.zeros((2, CLASSES, CLASSES))
    survivors: list[tuple[float, Floats, Floats]] = []
    grids: list[tuple[Floats, Floats]] = []
    squares_of_delta = sum(float(np.square(delta).sum()) for _, _, delta in source.blocks())
    deviation = math.sqrt(squares_of_delta / squares.size)
    for start, stop, delta in source.blocks():
        part = squares[start:stop].astype(np.float64)
        for number, values in enumerate((part * delta**2, part)):
            sums[number] += _class_sums(values, row_codes[start:stop], column_codes)
        if len(survivors) < _SAMPLED_BLOCKS:
            flat = [_sampled(values.reshape(-1)) for values in (delta, part)]
            survivors.append((float(flat[1].sum()), *_survivors(*flat)))
            grids.append(_grids(flat[0], flat[1], deviation))
    seen = sum(weight for weight, _, _ in survivors)
    scale = float(sums[1].sum()) / seen if seen else 0.0
    noise = sum((n for _, n, _ in survivors), np.zeros((len(BITS), len(SPANS)))) * scale
    rate = np.mean([r for _, _, r in survivors], axis=0)
    grid_noise = sum((n for n, _ in grids), np.zeros(len(STEPS))) * scale
    grid_rate = np.mean([r for _, r in grids], axis=0)
    return TensorEnergy(
        row_means, column_means, sums[0], sums[1], noise, rate, peak, deviation, grid_noise, grid_rate
    )


def _sampled(values: Floats) -> Floats:
    """Evenly spaced runs of a block, each as long as the longest span."""
    runs, length = _SAMPLED_RUNS, SPANS[-1]
    if values.size <= runs * length:
        return values
    starts = np.linspace(0, values.size - length, runs).astype(np.int64)
    return np.concatenate([values[start : start + length] for start in starts])


def _class_sums(values: Floats, row_codes: Codes, column_codes: Codes) -> Floats:
    """Sums over each pair of row class and column class, float64 [16, 16]."""
    by_row = np.zeros((CLASSES, values.shape[1]))
    np.add.at(by_row, row_codes, values)
    result = np.zeros((CLASSES, CLASSES))
    np.add.at(result.T, column_codes, by_row.T)
    return result


def _survivors(delta: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """Sum of g^2 V, and bits of a survivor, for each number of bits and each span."""
    noise, rate = np.zeros((len(BITS), len(SPANS))), np.zeros((len(BITS), len(SPANS)))
    size = np.abs(delta)
    for column, span in enumerate(SPANS):
        edges = np.arange(0, size.size, span)
        tops = np.maximum.reduceat(size, edges)
        top = np.repeat(tops, np.diff(np.append(edges, size.size)))
        for row, bits in enumerate(BITS):
            if bits == 16:
                exponents = np.frexp(size)[1]
                step = np.ldexp(1.0, exponents - 8)
                theta = size / step % 1.0
                rate[row, column] = 9 + entropy(np.bincount((exponents - exponents.min()) // 2))
            else:
                levels = (1 << (bits - 1)) - 1
                step = top / levels
                a = np.divide(size, step, out=np.zeros_like(size), where=step > 0)
                low = np.floor(a)
                theta = a - low
                counts = np.bincount(low.astype(np.int64), 1 - theta, levels + 2)
                counts += np.bincount(low.astype(np.int64) + 1, theta, levels + 2)
                moved = 1 - counts[0] / size.size  # a code that is not 0 takes one bit more for its sign
                rate[row, column] = min(bits, entropy(counts) + moved)
            noise[row, column] = float((squares * theta * (1 - theta) * step * step).sum())
    return noise, rate


def _grids(delta: Floats, squares: Floats, deviation: float) -> tuple[Floats, Floats]:
    """Sum of g^2 V, and bits of a survivor at its entropy, for each of `STEPS`."""
    noise, rate = np.zeros(len(STEPS)), np.zeros(len(STEPS))
    for place, multiple in enumerate(STEPS if deviation else ()):
        a = np.abs(delta) / (multiple * deviation)
        low = np.floor(a)
        theta = a - low
        noise[place] = float((squares * theta * (1 - theta)).sum()) * (multiple * deviation) ** 2
        levels, joined = np.unique(np.concatenate([low, low + 1]), return_inverse=True)
        counts = np.bincount(joined, np.concatenate([1 - theta, theta]))
        zeros = counts[0] if levels[0] == 0 else 0.0
        rate[place] = entropy(counts) + 1 - zeros / delta.size
    return noise, rate


def entropy(counts: Floats) -> float:
    """Bits per symbol."""
    share = counts[counts > 0] / counts.sum()
    return -float(share @ np.log2(share))


__all__ = [
    "KINDS",
    "STEPS",
    "Energies",
    "TensorEnergy",
    "collect_energies",
    "entropy",
    "load_energies",
    "module_energies",
]
