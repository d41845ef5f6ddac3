"""Second moments of what each weight tensor is fed, measured on calibration texts.

The output error of a layer ``W x`` under a weight error ``E`` has mean square ``tr(E M E^T)``, where ``M`` is
the second moment of its inputs: the mean of ``x x^T``, no average subtracted.  :func:`collect_moments` runs a
Hugging Face model over texts and keeps ``M`` for every linear layer, or its diagonal where the layer is wide
(all it takes when the entries of ``E`` are independent with mean zero).  For an embedding table ``x`` is
one-hot, so ``M`` is the diagonal of token frequencies.

Texts of equal token length run together and no batch is padded: padding cannot leak into a moment, models
without a padding token work, and the batch size changes nothing but rounding.  Memory is the model in float32
plus ``8 n^2`` bytes for every linear layer of ``n <= diagonal_above`` inputs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.checkpoints.header import TensorInfo
from assay.checkpoints.io import open_checkpoint
from assay.checkpoints.language import (
    batches,
    checkpoint_fingerprint,
    choose_texts,
    digest_texts,
    load_model,
    stored_names,
    token_limit,
    tokenize,
)
from assay.checkpoints.measurements import read_measurements, write_measurements
from assay.core.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import torch

FORMAT = "assay-moments"
VERSION = "1"
_TOLERANCE = 1e-5
_BLOCK_ROWS = 512
_METADATA = ("rows", "axes", "model", "config", "texts")


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments by tensor name, as the tensors are called in the checkpoint's files.

    Attributes:
        values: ``M``, float64 and read-only: a symmetric matrix [n, n], or its diagonal [n].
        rows: how many input vectors (tokens) each was averaged over.
        axes: which axis of the weight tensor, of length n, the inputs meet: 1 for a linear layer [out, in],
            0 for an embedding table [vocabulary, width] and for GPT-2's transposed ``Conv1D`` [in, out].
        model: fingerprint of the checkpoint (:func:`assay.checkpoints.io.fingerprint`).
        config: sha256 of its ``config.json``.
        texts: sha256 of the texts used, each encoded as UTF-8 behind its length.

    >>> moments = Moments({"w": np.array([[2.0, 1.0], [1.0, 3.0]])}, {"w": 40}, {"w": 1}, "", "", "")
    >>> moments.diagonal("w")
    array([2., 3.])
    """

    values: Mapping[str, np.ndarray]
    rows: Mapping[str, int]
    axes: Mapping[str, int]
    model: str
    config: str
    texts: str

    def __post_init__(self) -> None:
        for value in self.values.values():
            value.setflags(write=False)
        for field in ("values", "rows", "axes"):
            object.__setattr__(self, field, MappingProxyType(dict(getattr(self, field))))

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def diagonal(self, name: str) -> np.ndarray:
        """Mean square of each input of tensor ``name``, float64 [n]."""
        value = self._value(name)
        return np.diagonal(value) if value.ndim == 2 else value

    def matrix(self, name: str) -> np.ndarray:
        """Full second moment of the inputs of tensor ``name``, float64 [n, n].

        Raises :class:`InputError` for a linear layer of which only the diagonal was kept.
        """
        value = self._value(name)
        if value.ndim == 1:
            raise InputError(
                f"only the diagonal of the second moment of {name} was kept: "
                f"calibrate again with diagonal_above >= {len(value)}"
            )
        return value

    def check(self, tensors: Mapping[str, TensorInfo]) -> None:
        """Raise :class:`InputError` unless these moments can belong to a checkpoint with these tensors."""
        known = [name for name in self.values if name in tensors]
        if not known:
            raise InputError(
                f"none of the {len(self.values)} tensors with moments is in the checkpoint: "
                "calibrate the same model"
            )
        for name in known:
            shape, size, axis = tensors[name].shape, len(self.values[name]), self.axes[name]
            if len(shape) != 2 or shape[axis] != size:
                raise InputError(
                    f"the moment of {name} is for {size} inputs on axis {axis} but the tensor has shape "
                    f"{list(shape)}: calibrate the same model"
                )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file that :func:`load_moments` reads back bit for bit.

        Equal moments give equal bytes.
        """
        metadata = {
            "format": FORMAT,
            "version": VERSION,
            "rows": json.dumps(dict(self.rows), sort_keys=True),
            "axes": json.dumps(dict(self.axes), sort_keys=True),
            "model": self.model,
            "config": self.config,
            "texts": self.texts,
        }
        arrays = [(name, "F64", self.values[name]) for name in sorted(self.values)]
        write_measurements(path, arrays, metadata)

    def _value(self, name: str) -> np.ndarray:
        try:
            return self.values[name]
        except KeyError:
            raise InputError(f"there is no calibrated moment for tensor {name}") from None


def load_moments(path: str | os.PathLike[str]) -> Moments:
    """Read a file written by :meth:`Moments.save`; float32 values are widened.

    Raises :class:`InputError` when it is no such file, of an unknown version, or holds what no second moment
    can be: a value that is not finite, a negative diagonal, an asymmetric matrix, an entry above its
    Cauchy-Schwarz bound ``|M_ij| <= sqrt(M_ii M_jj)``.
    """
    file = Path(path)
    metadata, values = read_measurements(file, "moments", form=FORMAT, version=VERSION, required=_METADATA)
    rows = _integers(metadata, "rows", values, range(1, 2**63), file)
    axes = _integers(metadata, "axes", values, range(2), file)
    moments = {name: _checked(value, name, file) for name, value in values.items()}
    return Moments(moments, rows, axes, metadata["model"], metadata["config"], metadata["texts"])


def _integers(
    metadata: Mapping[str, str], key: str, names: Iterable[str], allowed: range, file: Path
) -> dict[str, int]:
    """One integer in ``allowed`` for each tensor, from a JSON object in the metadata."""
    try:
        found = json.loads(metadata[key])
    except ValueError as error:
        raise InputError(f"{file} has {key!r} metadata that is not JSON: calibrate again") from error
    if not isinstance(found, dict) or set(found) != set(names):
        raise InputError(f"{file} does not give {key!r} for exactly the tensors it holds: calibrate again")
    for name, value in found.items():
        if type(value) is not int or value not in allowed:
            raise InputError(f"{file} gives {key!r} {value!r} for {name}, which cannot be: calibrate again")
    return found


def _checked(value: np.ndarray, name: str, file: Path) -> np.ndarray:
    """The moment in float64, once it passes for one."""
    if value.dtype not in (np.float32, np.float64):
        raise InputError(f"{file} holds {name} as {value.dtype}: a moment is float32 or float64")
    if value.ndim not in (1, 2) or value.size == 0 or len(set(value.shape)) != 1:
        raise InputError(
            f"{file} holds {name} with shape {list(value.shape)}: a moment is [n, n] or [n], n > 0"
        )
    moment = value.astype(np.float64)
    if not np.isfinite(moment).all():
        raise InputError(f"the moment of {name} in {file} is not finite: calibrate again")
    diagonal = moment if moment.ndim == 1 else np.diagonal(moment)
    if (diagonal < 0).any():
        raise InputError(f"the moment of {name} in {file} has a negative mean square: calibrate again")
    if moment.ndim == 2:
        scale = np.sqrt(diagonal)
        bound = np.outer(scale, scale) * (1 + _TOLERANCE)
        if (np.abs(moment) > bound).any() or (np.abs(moment - moment.T) > _TOLERANCE * bound).any():
            raise InputError(f"the matrix of {name} in {file} is not a second moment: calibrate again")
    return moment


def collect_moments(
    model_dir: str | os.PathLike[str],
    texts: Sequence[str],
    *,
    batch_size: int = 8,
    max_length: int = 256,
    max_samples: int | None = None,
    diagonal_above: int = 8192,
    progress: Callable[[int, int], None] | None = None,
) -> Moments:
    """Measure the second moment of each linear layer's input while the model reads ``texts``.

    The model is loaded offline, from safetensors, in float32 and in evaluation mode; code that comes with a
    model is never run.  Its class follows ``architectures`` in ``config.json``: sequence classification,
    causal language model, otherwise the bare encoder or decoder.  Sums are kept in float64.

    A tensor has no moment when the texts do not reach its layer, when it is used other than through a
    ``Linear``, ``Conv1D`` or ``Embedding`` module, or when it belongs to a head the bare model leaves out.  A
    weight that an embedding shares with a linear layer gets the moment of the linear layer.

    Args:
        model_dir: a Hugging Face model folder with weights and tokenizer.
        texts: calibration texts, in the distribution the model will be used on.
        batch_size: at most this many texts of equal length at a time; affects speed only.
        max_length: tokens kept of each text (fewer if the model cannot take so many).
        max_samples: use at most this many texts, the first ones.
        diagonal_above: keep the diagonal only of layers with more inputs than this.
        progress: called with (texts done, texts in all) after each batch.

    Raises:
        MissingExtraError: torch or transformers is not installed.
        InputError: the model does not load offline or lacks weights; a text is empty; there are too few
            tokens; an activation is not finite (the message names the layer).
    """
    chosen = choose_texts(texts, max_samples)
    for name, value in (("batch_size", batch_size), ("max_length", max_length)):
        if value < 1:
            raise InputError(f"{name} is {value}: it must be at least 1")
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("torch", "calibration") from error

    folder = Path(model_dir)
    checkpoint = open_checkpoint(folder)
    model, tokenizer = load_model(folder)
    encoded = tokenize(tokenizer, chosen, token_limit(max_length, tokenizer, model.config))
    recorder = _Recorder(model, checkpoint.tensors, diagonal_above)
    done = 0
    with recorder, torch.no_grad():  # inference mode counts no changes in place
        for batch in batches(encoded, batch_size):
            recorder.batch = len(batch)
            model(**{key: torch.tensor([item[key] for item in batch]) for key in batch[0]})
            done += len(batch)
            if progress is not None:
                progress(done, len(encoded))
    if not recorder.rows:
        raise InputError(f"no linear layer of {folder} saw an input: there is nothing to calibrate")
    names = sorted(recorder.rows)
    return Moments(
        {name: recorder.moment(name) for name in names},
        {name: recorder.rows[name] for name in names},
        {name: recorder.axes[name] for name in names},
        model=checkpoint_fingerprint(checkpoint),
        config=hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
        texts=digest_texts(chosen),
    )


class _Recorder:
    """Hooks on a model that sum ``x x^T`` over every input row, by the names the weights have in their files.

    Rows wait in copies until there are enough for a fast product.  Layers fed the same tensor one after the
    other share one copy and one product.  ``batch`` is the number of texts in the coming forward pass.
    """

    def __init__(
        self, model: torch.nn.Module, tensors: Mapping[str, TensorInfo], diagonal_above: int
    ) -> None:
        from torch import nn
        from transformers.pytorch_utils import Conv1D

        self.batch = 0
        self.rows: dict[str, int] = defaultdict(int)
        self.axes: dict[str, int] = {}
        self._sums: dict[str, np.ndarray] = {}
        self._waiting: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._diagonal_above = diagonal_above
        self._stack = ExitStack()
        self._seen: tuple[torch.Tensor, int, torch.Tensor] | None = None
        self._product: tuple[list[torch.Tensor], np.ndarray] | None = None
        self._linear: dict[nn.Module, str] = {}
        self._embedding: dict[nn.Module, str] = {}
        stored = stored_names(model, tensors)
        for module in model.modules():
            name = stored.get(id(getattr(module, "weight", None)))
            if isinstance(module, nn.Linear | Conv1D) and name is not None:
                self._linear[module] = name
                self.axes[name] = 0 if isinstance(module, Conv1D) else 1
        for module in model.modules():
            name = stored.get(id(getattr(module, "weight", None)))
            if type(module) is nn.Embedding and name is not None and name not in self.axes:
                self._embedding[module] = name
        self.axes.update(dict.fromkeys(self._embedding.values(), 0))

    def __enter__(self) -> _Recorder:
        for modules, hook in ((self._linear, self._see_rows), (self._embedding, self._see_indices)):
            for module in modules:
                handle = module.register_forward_pre_hook(hook, with_kwargs=True)
                self._stack.callback(handle.remove)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def moment(self, name: str) -> np.ndarray:
        """The mean of ``x x^T``, or its diagonal, over the rows seen so far."""
        if self._waiting[name]:
            self._flush(name)
        return self._sums[name] / self.rows[name]

    def _see_rows(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = self._linear[module]
        copy = self._copy(name, _first(args, kwargs))
        waiting = self._waiting[name]
        waiting.append(copy)
        self.rows[name] += len(copy)
        if sum(map(len, waiting)) >= _BLOCK_ROWS:
            self._flush(name)

    def _copy(self, name: str, inputs: torch.Tensor) -> torch.Tensor:
        """The input rows, safe from later changes in place; one copy for layers fed the same tensor."""
        seen = self._seen
        if seen is None or seen[0] is not inputs or seen[1] != inputs._version:
            copy = inputs.detach().reshape(-1, inputs.shape[-1]).clone()
            if not bool(copy.isfinite().all()):
                raise InputError(
                    f"the input of layer {name} is not finite: "
                    "the model overflows on these texts or is damaged"
                )
            self._seen = seen = (inputs, inputs._version, copy)
        return seen[2]

    def _flush(self, name: str) -> None:
        """Add the product of the rows that wait to the sum of tensor ``name``."""
        import torch

        blocks = self._waiting.pop(name)
        last = self._product
        if (
            last is None
            or len(last[0]) != len(blocks)
            or any(a is not b for a, b in zip(last[0], blocks, strict=True))
        ):
            rows = torch.cat(blocks).double().numpy()
            wide = rows.shape[1] > self._diagonal_above
            self._product = last = (blocks, np.square(rows).sum(axis=0) if wide else rows.T @ rows)
        self._add(name, last[1])

    def _see_indices(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name, indices = self._embedding[module], _first(args, kwargs)
        counts = np.bincount(indices.flatten().numpy(), minlength=module.weight.shape[0]).astype(np.float64)  # type: ignore
        repeats = self.batch if len(indices) == 1 else 1  # positions come once for the whole batch
        self.rows[name] += indices.numel() * repeats
        self._add(name, counts * repeats)

    def _add(self, name: str, addend: np.ndarray) -> None:
        if name in self._sums:
            self._sums[name] += addend
        else:
            self._sums[name] = addend.copy()


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return args[0] if args else next(iter(kwargs.values()))
