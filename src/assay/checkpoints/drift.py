"""The drift of a packed model, measured on held-out samples, beside what was predicted of it.

With ``z`` the outputs (:mod:`assay.checkpoints.energies`), the drift is

    sqrt( sum |z(packed) - z(finetuned)|^2  /  sum |z(base) - z(finetuned)|^2 ),

sums over held-out samples; of log-probabilities, twice the divergence KL(finetuned || other) per position takes the
place of the square.  It belongs to one delta, not to all its seeds.  First order *holds* for a delta where the measured
drift is within a factor `FACTOR` of the predicted one, either way, and at most `LOST`; elsewhere the delta is too
large for it, and :func:`offer_pack` looks for a pack that measures well instead.

Memory: the model in float32, and once more each tensor that the base or the delta has in other values.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.checkpoints.apply import check_base_digest, check_base_layout, run, scheme_of, tensor_tasks
from assay.checkpoints.codec import Scheme
from assay.checkpoints.delta import Delta
from assay.checkpoints.energies import (
    SPANS,
    STEPS,
    Energies,
    FunctionReader,
    Outputs,
    Reader,
    TensorEnergy,
    in_both,
    load_energies,
    parameters_by_name,
    reader_for,
    require_torch,
)
from assay.checkpoints.engine import Progress
from assay.checkpoints.factors import CLASSES
from assay.checkpoints.header import DTYPES
from assay.checkpoints.io import Source, compare_layouts, open_checkpoint, refuse_quantised
from assay.checkpoints.language import choose_texts, load_model, token_limit, tokenize
from assay.checkpoints.pack import pack
from assay.checkpoints.plan import BITS, GRID, KEEP_ONE, LOSSY
from assay.core.errors import BudgetError, InputError

if TYPE_CHECKING:
    import torch

FACTOR = 2.0
"""First order holds for a delta whose measured drift is within this factor of the predicted one."""

LOST = 0.5
"""Above this measured drift much of the fine-tune is lost, and no prediction is let stand, right or wrong: a convention."""

RESAMPLES = 2000
"""Of the bootstrap."""

LADDER: tuple[Mapping[str, Any], ...] = (
    {"keep_map": "factored", "drop": 0.3, "bits": 4},
    {"keep_map": "factored", "drop": 0.1, "bits": 4},
    {"drop": 0.0, "bits": 4},
    {"drop": 0.0, "bits": 8},
    {"drop": 0.0, "bits": 16},
    {"lossless": True},
)
"""The packs that :func:`offer_pack` tries; factored ones need energies."""

HEADROOM = 0.9
"""With energies a grid is tried first, planned for so much of the drift allowed."""

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class DriftReport:
    """What a delta does to the outputs.

    Attributes:
        delta: the file.
        size: its bytes.
        kind: what the outputs are, one of `assay.checkpoints.energies.KINDS`.
        samples: held-out samples read.
        drift: measured, over the fine-tune's own effect.
        low, high: percentile bootstrap interval over the samples: approximate, no rigorous bound.
        confidence: of that interval; it misses with about one minus this probability.
        divergence: measured mean KL(finetuned || packed), nats (per position of a text); None where outputs are no
            distributions.
        predicted: by energies, first order; None without energies, or where they cannot predict.
        unpredicted: why there is no prediction; empty where there is one.
    """

    delta: Path
    size: int
    kind: str
    samples: int
    drift: float
    low: float
    high: float
    confidence: float
    divergence: float | None
    predicted: float | None
    unpredicted: str

    @property
    def first_order(self) -> bool | None:
        """Whether measurement and prediction agree to a factor `FACTOR` and no more than `LOST` is measured.

        None without a prediction.
        """
        if self.predicted is None:
            return None
        return self.drift <= LOST and self.predicted / FACTOR <= self.drift <= FACTOR * self.predicted


@dataclass(frozen=True, slots=True)
class Trial:
    """A pack that :func:`offer_pack` tried: the arguments of `assay.checkpoints.pack`, and its measurement."""

    settings: Mapping[str, Any]
    report: DriftReport


@dataclass(frozen=True, slots=True)
class Offer:
    """Packs tried, and the smallest of them whose measured drift is within the limit.

    `best` is never None for a model whose outputs are deterministic: the last rung is without loss.
    """

    max_drift: float
    tried: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        """The smallest pack within the limit."""
        good = [trial for trial in self.tried if trial.report.drift <= self.max_drift]
        return min(good, key=lambda trial: trial.report.size, default=None)


# Measuring --------------------------------------------------------------------------------------------------


class Gauge:
    """A pair of checkpoints with its network loaded, ready to measure deltas of it.

    :func:`open_gauge` makes one of Hugging Face folders, :func:`module_gauge` of any torch module.

    Args:
        base, finetuned: open checkpoints.
        model: holds the fine-tuned weights, and holds them again after each measurement.
        named: its parameters by their names in the files.
        reader: gives the outputs of an item.
        kind: of the outputs: ``causal-lm`` means log-probabilities, ``classification`` logits.
        items: held-out samples.
        confidence: of intervals, strictly between 0 and 1.
        seed: of the bootstrap.
        progress: called with samples done, samples in all, and what is being done.

    Raises:
        InputError: fewer than two samples; the confidence is out of range; an output is not finite; the fine-tune
            changes no output.
    """

    def __init__(
        self,
        base: Source,
        finetuned: Source,
        model: torch.nn.Module,
        named: Mapping[str, torch.nn.Parameter],
        reader: Reader,
        kind: str,
        items: Sequence[Any],
        *,
        confidence: float = 0.95,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        if len(items) < 2:
            raise InputError(
                f"drift needs at least 2 held-out samples for an interval, and there are {len(items)}: give more"
            )
        if not 0 < confidence < 1:
            raise InputError(f"the confidence {confidence:g} must lie strictly between 0 and 1")
        if seed < 0:
            raise InputError(f"seed is {seed}: it must be at least 0")
        self._base, self._finetuned, self._model, self._named = base, finetuned, model, named
        self._reader, self._kind, self._items = reader, kind, list(enumerate(items))
        self._confidence, self._seed, self._progress = confidence, seed, progress
        self._effects = self._gaps(self._base_weights(), f"the weights of {base.path}")[0]
        if not self._effects.sum() > 0:
            raise InputError(
                f"{finetuned.path} gives the same outputs as {base.path} on these texts: there is no drift to measure"
            )

    def measure(self, delta: AnyPath, energies: Energies | None = None) -> DriftReport:
        """The drift of one delta of the pair.

        Raises:
            InputError: the delta is of another base or fine-tune; the energies are of another pair; the packed weights
                or an output is not finite (the message names the layer).
            RejectedError: the delta is damaged.
        """
        if energies is not None and energies.base:
            energies.check(self._base, self._finetuned)
        patch = Delta(delta)
        try:
            check_base_layout(self._base, patch)
            patch.check_payload()
            packed = dict(self._packed_weights(patch))
            predicted, reason = None, "no energies were given"
            if energies is not None:
                predicted, reason = predict(patch, energies, self._named)
        finally:
            patch.close()
        gaps, divergences = self._gaps(packed, f"the packed weights of {delta}")
        low, high = _bootstrap(gaps, self._effects, self._confidence, self._seed)
        divergence = float(np.mean(divergences)) if divergences is not None else None
        drift = math.sqrt(float(gaps.sum()) / float(self._effects.sum()))
        size = Path(delta).stat().st_size
        return DriftReport(
            Path(delta), size, self._kind, len(self._items), drift, low, high, self._confidence, divergence,
            predicted, reason,
        )  # fmt: skip

    def _base_weights(self) -> dict[str, torch.Tensor]:
        """The base's weights, where it has them in other values."""
        found = {}
        for name, parameter in self._named.items():
            if in_both(name, self._base, self._finetuned):
                info = self._base.tensors[name]
                value = _float32(self._base.read_rows(name, 0, info.rows), info.dtype, info.shape)
                _require_finite(value, name, self._base.path)
                if not value.equal(parameter.data):
                    found[name] = value
        return found

    def _packed_weights(self, patch: Delta) -> Iterator[tuple[str, torch.Tensor]]:
        """What the delta makes of the base, where that is not the fine-tuned weights."""
        for name, parameter in self._named.items():
            record = patch.records.get(name)
            if record is None or record["shape"] != list(parameter.shape):
                raise InputError(
                    f"{patch.path} is no delta of {self._finetuned.path}: it has no tensor {name!r} of this shape"
                )
            done = [run(task) for task in tensor_tasks(self._base, patch, name)]
            checks = [rows.check for rows in done if rows.check is not None]
            check_base_digest(self._base, patch, name, checks)
            bits = np.concatenate([np.asarray(rows.bits).reshape(-1) for rows in done])
            value = _float32(bits, record["dtype"], parameter.shape)
            _require_finite(value, name, patch.path)
            if value.equal(parameter.data):
                continue
            if patch.source(name)["treatment"] not in LOSSY:
                raise InputError(
                    f"{patch.path} is the delta of another fine-tune than {self._finetuned.path}: {name!r}, which it "
                    "stores exactly, differs"
                )
            yield name, value

    def _gaps(self, weights: Mapping[str, torch.Tensor], whose: str) -> tuple[np.ndarray, np.ndarray | None]:
        """For each item the distance of the outputs with these weights, and their divergence."""
        import torch

        gaps, divergences = [], []
        with torch.no_grad():
            for item in self._items:
                if self._progress is not None:
                    self._progress(item[0], len(self._items), f"reading with {whose}")
                then = self._values(item, f"the weights of {self._finetuned.path}")
                with _swapped(self._named, weights):
                    now = self._values(item, whose)
                if self._kind == "causal-lm":
                    divergences.append(_divergence(then, now))
                    gaps.append(2 * divergences[-1])
                else:
                    gaps.append(float((now - then).square().sum()))
                    if self._kind == "classification":
                        divergences.append(_divergence(then.log_softmax(-1)[None], now.log_softmax(-1)[None]))
        return np.array(gaps), np.array(divergences) if divergences else None

    def _values(self, item: tuple[int, Any], whose: str) -> torch.Tensor:
        """The outputs of an item, float64."""
        values = self._reader.values(self._model, item).double()
        if not bool(values.isfinite().all()):
            layer = _first_bad_layer(self._model, lambda: self._reader.values(self._model, item))
            raise InputError(
                f"with {whose} the output of held-out sample {item[0] + 1} is not finite (first in layer {layer}): the "
                "weights are damaged or overflow"
            )
        return values


def _divergence(then: torch.Tensor, now: torch.Tensor) -> float:
    """Mean KL(then || now) over rows of log-probabilities; rounding may not make it negative."""
    possible = then > -math.inf
    terms = (then.exp() * (then - now)).where(possible, 0.0)
    return max(0.0, float(terms.sum(dim=-1).mean()))


def _float32(bits: np.ndarray, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    import torch

    return torch.from_numpy(bits.reshape(-1).view(DTYPES[dtype]).astype(np.float32).reshape(tuple(shape)))


def _require_finite(value: torch.Tensor, name: str, path: Path) -> None:
    if not bool(value.isfinite().all()):
        raise InputError(f"layer {name} of {path} holds NaN or infinity: repair it before measuring")


@contextmanager
def _swapped(named: Mapping[str, torch.nn.Parameter], weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """The model with some of its weights exchanged; nothing is copied."""
    kept = {name: named[name].data for name in weights}
    try:
        for name, value in weights.items():
            named[name].data = value
        yield
    finally:
        for name, value in kept.items():
            named[name].data = value


def _first_bad_layer(model: torch.nn.Module, read: Callable[[], Any]) -> str:
    """The name of the first module whose output is not finite."""
    import torch

    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, torch.Tensor) and not bool(first.isfinite().all()):
                found.append(name)

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        read()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "the last"


def _bootstrap(gaps: np.ndarray, effects: np.ndarray, confidence: float, seed: int) -> tuple[float, float]:
    """Percentile interval of sqrt(sum gaps / sum effects) over resampled pairs."""
    draw = np.random.Generator(np.random.Philox(key=[seed % (1 << 64), 0]))
    chosen = draw.integers(0, len(gaps), (RESAMPLES, len(gaps)))
    tops, bottoms = gaps[chosen].sum(axis=1), effects[chosen].sum(axis=1)
    ratios = np.sqrt(tops[bottoms > 0] / bottoms[bottoms > 0])
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


# Predicting -------------------------------------------------------------------------------------------------


def predict(patch: Delta, energies: Energies, used: Mapping[str, Any]) -> tuple[float | None, str]:
    """The drift that energies predict for a delta as it is, first order; or None, and why.

    Args:
        patch: an open delta.
        energies: of its pair.
        used: names of the tensors that the model uses; no other changes its outputs.
    """
    if not energies.effect > 0:
        return None, "the fine-tune does nothing to the outputs that the energies were measured on"
    total = 0.0
    for name in patch.records:
        source = patch.source(name)
        if source["treatment"] not in LOSSY or name not in used or energies.other.get(name) == 0:
            continue
        if name not in energies:
            return None, f"{name} loses something and has no energies"
        scheme = scheme_of(patch, source)
        if source["treatment"] == "masked" or not (
            scheme.factors or scheme.rescale == scheme.threshold / KEEP_ONE
        ):
            return None, f"{name} was packed with a bias, of which energies do not speak"
        keep = _keep(energies.tensors[name], scheme)
        if keep is None:
            return None, f"{name} was planned by other energies"
        total += _tensor_drift(energies.tensors[name], keep, scheme)
    return math.sqrt(total / energies.effect), ""


def _keep(tensor: TensorEnergy, scheme: Scheme) -> np.ndarray | None:
    """Keep probabilities by class, float64 [16, 16]; None where the delta has classes that these do not refine."""
    factors = scheme.factors
    if factors is None:
        return np.full(tensor.energy.shape, max(scheme.threshold, 1) / KEEP_ONE)
    rows = _coarsened(tensor.row_classes[0], factors.row_codes)
    columns = _coarsened(tensor.column_classes[0], factors.column_codes)
    if rows is None or columns is None:
        return None
    keep: np.ndarray = factors.thresholds[rows[:, None], columns[None, :]] / KEEP_ONE
    return keep


def _coarsened(fine: np.ndarray, coarse: np.ndarray) -> np.ndarray | None:
    """The coarse code of each of the sixteen fine ones (0 where none occurs); None if one has several."""
    found = np.zeros(CLASSES, np.int64)
    found[fine] = coarse
    return found if np.array_equal(found[fine], coarse) else None


def _tensor_drift(tensor: TensorEnergy, keep: np.ndarray, scheme: Scheme) -> float:
    """sum A (1/k - 1) + sum g^2 V / k; the noise is interpolated in the logarithm of the span, or of the step."""
    if scheme.step is None:
        at, known, table = float(scheme.span), np.array(SPANS, float), tensor.noise[BITS.index(scheme.bits)]
    else:
        at, known, table = scheme.step / tensor.deviation, np.array(STEPS), tensor.grid_noise
    noise = float(np.interp(math.log(at), np.log(known), table))
    gradient = float(tensor.gradient.sum())
    share = float((tensor.gradient / keep).sum()) / gradient if gradient > 0 else 0.0
    return float((tensor.energy * (1 / keep - 1)).sum()) + noise * share


# Pairs ------------------------------------------------------------------------------------------------------


@contextmanager
def open_gauge(
    base: AnyPath,
    finetuned: AnyPath,
    texts: Sequence[str],
    *,
    kind: str = "auto",
    seed: int = 0,
    max_samples: int | None = None,
    max_length: int = 256,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> Iterator[Gauge]:
    """A :class:`Gauge` for two Hugging Face model folders; the arguments are those of :func:`measure_drift`."""
    chosen = choose_texts(texts, max_samples)
    if max_length < 1:
        raise InputError(f"max_length is {max_length}: it must be at least 1")
    require_torch()
    with open_checkpoint(base) as old, open_checkpoint(finetuned) as new:
        for side in (old, new):
            refuse_quantised(side)
        compare_layouts(old, new)
        model, tokenizer = load_model(Path(finetuned))
        items = tokenize(tokenizer, chosen, token_limit(max_length, tokenizer, model.config))
        reader = reader_for(kind, model, 1, seed)
        yield Gauge(
            old, new, model, parameters_by_name(model, new), reader, reader.kind, items,
            confidence=confidence, seed=seed, progress=progress,
        )  # fmt: skip


@contextmanager
def module_gauge(
    module: torch.nn.Module,
    outputs: Outputs,
    items: Sequence[Any],
    base: AnyPath,
    finetuned: AnyPath,
    *,
    kind: str = "module",
    seed: int = 0,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> Iterator[Gauge]:
    """A :class:`Gauge` for any torch module; the arguments are those of :func:`module_drift`."""
    require_torch()
    if kind not in ("module", "classification", "causal-lm"):
        raise InputError(f"the kind {kind!r} is none of module, classification, causal-lm")
    with open_checkpoint(base) as old, open_checkpoint(finetuned) as new:
        compare_layouts(old, new)
        named = {name: p for name, p in module.named_parameters() if name in new.tensors}
        for name, parameter in named.items():
            info = new.tensors[name]
            if info.shape != tuple(parameter.shape) or not _float32(
                new.read_rows(name, 0, info.rows), info.dtype, info.shape
            ).equal(parameter.data.float()):
                raise InputError(f"the module's parameter {name!r} does not hold the values of {new.path}")
        if not named:
            raise InputError(f"no parameter of the module has the name of a tensor of {new.path}")
        reader = FunctionReader(outputs)
        yield Gauge(
            old, new, module, named, reader, kind, items, confidence=confidence, seed=seed, progress=progress
        )


def measure_drift(
    base: AnyPath,
    finetuned: AnyPath,
    delta: AnyPath,
    texts: Sequence[str],
    *,
    energies: AnyPath | Energies | None = None,
    kind: str = "auto",
    seed: int = 0,
    max_samples: int | None = None,
    max_length: int = 256,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> DriftReport:
    """Measure on held-out texts what a delta does to the outputs of a Hugging Face model.

    Args:
        base, finetuned: the pair, as model folders.
        delta: a file written by `assay.checkpoints.pack`; nothing is unpacked to the disk.
        texts: held out: neither trained on nor calibrated with; at least two.
        energies: of the pair, for the predicted drift.
        kind: ``auto``, or what the outputs must be: ``classification``, ``causal-lm``, ``encoder``.
        seed: of the bootstrap.
        max_samples: use at most this many texts, the first ones.
        max_length: tokens kept of each text.
        confidence: of the interval.
        progress: called with texts done, texts in all, and what is being done.

    Raises:
        MissingExtraError: torch or transformers is not installed.
        InputError: a text is empty, there are too few texts or tokens; the model does not load offline; the delta or
            the energies are of another pair; an output is not finite (the message names the layer).
        RejectedError: the delta is damaged.
    """
    known = energies if energies is None or isinstance(energies, Energies) else load_energies(energies)
    with open_gauge(
        base, finetuned, texts, kind=kind, seed=seed, max_samples=max_samples, max_length=max_length,
        confidence=confidence, progress=progress,
    ) as gauge:  # fmt: skip
        return gauge.measure(delta, known)


def module_drift(
    module: torch.nn.Module,
    outputs: Outputs,
    items: Sequence[Any],
    base: AnyPath,
    finetuned: AnyPath,
    delta: AnyPath,
    *,
    energies: Energies | None = None,
    kind: str = "module",
    seed: int = 0,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> DriftReport:
    """The same for any torch module that holds the fine-tuned weights under the names of the files.

    Args:
        module: left as it was.
        outputs: ``outputs(module, item)``: a tensor [outputs], or, with `kind` ``causal-lm``, log-probabilities
            [positions, classes].
        items: held-out samples, at least two.
        base, finetuned, delta, energies, seed, confidence, progress: as in :func:`measure_drift`.
        kind: ``module``, ``classification`` (logits [classes]) or ``causal-lm``.

    Raises:
        InputError: the module does not hold the fine-tuned weights; else as in :func:`measure_drift`.
    """
    with module_gauge(
        module,
        outputs,
        items,
        base,
        finetuned,
        kind=kind,
        seed=seed,
        confidence=confidence,
        progress=progress,
    ) as gauge:
        return gauge.measure(delta, energies)


def offer_pack(
    gauge: Gauge,
    base: AnyPath,
    finetuned: AnyPath,
    *,
    max_drift: float = 0.1,
    energies: AnyPath | None = None,
    folder: AnyPath | None = None,
) -> Offer:
    """Pack the pair as `LADDER` says, measure each delta, and leave none behind.

    Args:
        gauge: of the pair.
        base, finetuned: the pair.
        max_drift: limit of the measured drift.
        energies: a file; without it the factored packs are not tried.
        folder: where there is room for a delta at a time; default: the system's temporary folder.

    Raises:
        InputError: the limit is not above 0, or the pair cannot be packed.
    """
    if not (math.isfinite(max_drift) and max_drift > 0):
        raise InputError(f"the drift {max_drift} must be a finite number above 0")
    known = None if energies is None else load_energies(energies)
    tried = []
    with tempfile.TemporaryDirectory(prefix=".assay-offer-", dir=folder) as scratch:
        out = Path(scratch) / "delta.safetensors"
        grid: Mapping[str, Any] = {"keep_map": "factored", "bits": GRID, "max_drift": HEADROOM * max_drift}
        for settings in (grid, *LADDER):
            if energies is None and "keep_map" in settings:
                continue
            planned = None if settings.get("lossless") else energies
            try:
                pack(
                    finetuned,
                    base,
                    out,
                    energies=planned,
                    certificate=False,
                    force=True,
                    overwrite=True,
                    **settings,
                )
            except BudgetError:  # no grid is fine enough; the other packs do not depend on it
                continue
            tried.append(Trial(settings, gauge.measure(out, known)))
    return Offer(max_drift, tuple(tried))


__all__ = [
    "DriftReport",
    "Gauge",
    "Offer",
    "Trial",
    "measure_drift",
    "module_drift",
    "module_gauge",
    "offer_pack",
    "open_gauge",
    "predict",
]
