"""A PEFT LoRA adapter seen as the fine-tuned checkpoint it stands for, merged row by row while it is read.

A target's weight is ``W + s * (B @ A)``, with ``s = alpha / r``, or ``alpha / sqrt(r)`` with ``use_rslora``
(Kalajdzievski, arXiv:2312.03732); alpha and r may differ by module (``alpha_pattern``, ``rank_pattern``).
All arithmetic is in float32 (float64 for an F64 base), in one fixed order without fused operations,
and rounded once, to nearest even, to the base's type.  So the same bits come out whatever the
row blocks, the number of threads and the linear-algebra library.

Source: Hu et al., LoRA (arXiv:2106.09685), section 4.1, and the adapter files of huggingface/peft.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numba
import numpy as np

from assay.checkpoints.header import DTYPES, TensorInfo, rounded
from assay.checkpoints.io import (
    MARKER,
    Checkpoint,
    ReadBuffer,
    Shard,
    Source,
    check_rows,
    find_tensor,
    open_checkpoint,
    read_json_object,
)
from assay.core.errors import InputError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MODEL_CONFIG = "config.json"

_PREFIX = "base_model.model."
_FACTORS = re.compile(r"(?P<module>.+)\.lora_(?P<which>embedding_A|embedding_B|A|B)(\.default)?(\.weight)?")
_WHOLE = re.compile(r"(\.modules_to_save(\.default)?|\.base_layer)(?=\.)")

#: settings that change the weights in a way a sum of products does not express, and what they are
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "use_qalora": "QA-LoRA",
    "use_bdlora": "block-diagonal LoRA",
    "lora_bias": "a LoRA bias",
    "layer_replication": "layer replication",
    "target_parameters": "LoRA on bare parameters",
    "trainable_token_indices": "trainable token rows",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow routing",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
}
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
#: initialisations that replace the base by a residual, so that the saved factors do not add to the base
_RESIDUAL_INITIALISATIONS = ("pissa", "olora", "corda", "loftq", "lora_ga")


def is_adapter(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an adapter folder, or the weights file in one.

    >>> is_adapter("no/such/folder")
    False
    """
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    return (folder / CONFIG_FILE).is_file() and (place.is_dir() or place.name.startswith("adapter_model."))


@dataclass(frozen=True, slots=True)
class LowRankUpdate:
    """The update of one weight: names of its factors in the adapter file, and how they combine.

    Attributes:
        left: the factor ``B`` of shape ``[out, r]``.
        right: the factor ``A`` of shape ``[r, in]``.
        scale: what multiplies ``B @ A``.
        transposed: the base stores ``[in, out]``: ``fan_in_fan_out``, and every embedding.
    """

    left: str
    right: str
    scale: float
    transposed: bool


class Adapter:
    """A base checkpoint with an adapter merged into it, as a :class:`~assay.checkpoints.io.Source`.

    Attributes:
        path: the adapter's file or folder.
        base: the checkpoint below.
        tensors: those of the merged model; new ones come last.
        shards: the base's when the layout is the same, else empty.
        carried: the base's files, overridden by those beside the adapter.
        updates: the low-rank updates by tensor name.
        replaced: for tensors stored whole (``modules_to_save``, biases): tensor name -> name in the adapter.
        notes: sentences for the user on what merging changes.
    """

    def __init__(
        self,
        path: Path,
        base: Source,
        weights: Checkpoint,
        folder: Path,
        updates: Mapping[str, LowRankUpdate],
        replaced: Mapping[str, str],
        notes: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.base = base
        self.updates: Mapping[str, LowRankUpdate] = dict(updates)
        self.replaced: Mapping[str, str] = dict(replaced)
        self.notes = tuple(notes)
        self._weights = weights
        self._folder = folder
        tensors = dict(base.tensors)
        for name, stored in replaced.items():
            tensors[name] = _merged_info(name, base.tensors.get(name), weights.tensors[stored])
        self._tensors = tensors
        self._own_files = _sizes_beside(folder)
        self._config, grown = _config_of_grown(base, tensors)
        self.notes += grown

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor of the merged model by name."""
        return MappingProxyType(self._tensors)

    @property
    def shards(self) -> Sequence[Shard]:
        """The base's files when the merged model has exactly their layout, else nothing."""
        return self.base.shards if self._tensors == self.base.tensors else ()

    @property
    def own_shards(self) -> Sequence[Shard]:
        """The adapter's own weights file."""
        return self._weights.shards

    @property
    def carried(self) -> Mapping[str, int]:
        """Sizes of the files that are not weights."""
        sizes = {**self.base.carried, **self._own_files}
        if self._config is not None:
            sizes[MODEL_CONFIG] = len(self._config)
        return MappingProxyType(sizes)

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The base's config.json, with the merged model's vocabulary size."""
        return self.base.config if self._config is None else json.loads(self._config)

    @property
    def tied(self) -> bool:
        """As the base says."""
        return self.base.tied

    def read_rows(self, name: str, start: int, stop: int, buffer: ReadBuffer | None = None) -> np.ndarray:
        """Raw bits of merged rows ``start <= row < stop``, shaped ``[stop - start, columns]``.

        Raises:
            InputError: as :meth:`Checkpoint.read_rows`, or a finite weight merges to one that is not finite.
        """
        info = find_tensor(self, name)
        check_rows(info, start, stop)
        stored = info
        if name in self.replaced:
            stored = self._weights.tensors[self.replaced[name]]
            rows = self._weights.read_rows(stored.name, start, stop)
        else:
            rows = self.base.read_rows(name, start, stop)
        update = self.updates.get(name)
        if update is None and stored.dtype == info.dtype:
            return rows
        working = np.float64 if "F64" in (info.dtype, stored.dtype) else np.float32
        below = rows.view(DTYPES[stored.dtype])
        merged = below.astype(working)
        if update is not None:
            left, right = self._factors(update, start, stop, working)
            _add_product(merged, left, right, working(update.scale))
        result = rounded(merged, info.dtype)
        finite = np.isfinite(result)
        lost = 0 if finite.all() else int(np.count_nonzero(np.isfinite(below) & ~finite))
        if lost:
            raise InputError(
                f"{self.path}: {lost} merged values of {name!r} are not finite though the base's are; it "
                f"holds NaN or {info.dtype} is too narrow for it"
            )
        return result.view(info.bits_dtype)

    def _factors(self, update: LowRankUpdate, start: int, stop: int, working: type) -> tuple[Any, Any]:
        """The factors of rows start:stop as ``[rows, r]`` and ``[r, columns]`` arrays."""
        if update.transposed:
            left = self._matrix(update.right)[:, start:stop].T
            right = self._matrix(update.left).T
        else:
            left = self._matrix(update.left, start, stop)
            right = self._matrix(update.right)
        return np.ascontiguousarray(left, dtype=working), np.ascontiguousarray(right, dtype=working)

    def _matrix(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        info = self._weights.tensors[name]
        rows = self._weights.read_rows(name, start, info.rows if stop is None else stop)
        return rows.view(DTYPES[info.dtype])

    def read_bytes(self, name: str) -> bytes:
        """All bytes of one merged tensor; meant for small ones."""
        return self.read_rows(name, 0, find_tensor(self, name).rows).tobytes()

    def read_carried(self, name: str) -> bytes:
        """All bytes of one carried file."""
        if name == MODEL_CONFIG and self._config is not None:
            return self._config
        if name in self._own_files:
            return (self._folder / name).read_bytes()
        return self.base.read_carried(name)

    def close(self) -> None:
        """Close the adapter's own file; the base belongs to whoever opened it."""
        self._weights.close()

    def __repr__(self) -> str:
        return (
            f"<Adapter {str(self.path)!r}: {len(self.updates)} updates, {len(self.replaced)} whole tensors>"
        )


@numba.njit(cache=True, nogil=True, fastmath=False)
def _add_product(merged, left, right, scale):
    """``merged += scale * (left @ right)`` in place, summing over the rank in order, fusing nothing.

    Shapes ``[rows, columns]``, ``[rows, r]``, ``[r, columns]``, all of the type of ``scale``.
    """
    rows, columns = merged.shape
    product = np.empty(columns, merged.dtype)
    for i in range(rows):
        product[:] = 0
        for k in range(left.shape[1]):
            factor = left[i, k]
            for j in range(columns):
                product[j] += factor * right[k, j]
        for j in range(columns):
            merged[i, j] += scale * product[j]


def _merged_info(name: str, old: TensorInfo | None, stored: TensorInfo) -> TensorInfo:
    if old is None:
        return replace(stored, name=name)
    dtype = old.dtype if old.is_float and stored.is_float else stored.dtype
    if (dtype, stored.shape) == (old.dtype, old.shape):
        return old
    return replace(stored, name=name, dtype=dtype)


def _sizes_beside(folder: Path) -> dict[str, int]:
    """Tokenizer and template files saved with the adapter; its own description is not the model's."""
    skipped = (CONFIG_FILE, MODEL_CONFIG, MARKER, "trainer_state.json")
    return {
        entry.name: entry.stat().st_size
        for entry in sorted(folder.iterdir())
        if entry.is_file()
        and entry.name not in skipped
        and entry.suffix in (".json", ".txt", ".jinja", ".model")
        and not entry.name.startswith(".")
        and not entry.name.endswith(".index.json")
    }


def _config_of_grown(base: Source, tensors: Mapping[str, TensorInfo]) -> tuple[bytes | None, tuple[str, ...]]:
    """config.json for an embedding that the adapter resized, and what to say of it; None where it stays.

    transformers refuses weights whose embedding has other rows than ``vocab_size`` says.
    """
    if base.config is None or MODEL_CONFIG not in base.carried:
        return None, ()
    config = dict(base.config)
    nested = config.get("text_config")
    parts = [config]
    if isinstance(nested, dict):
        config["text_config"] = dict(nested)
        parts.append(config["text_config"])
    notes = []
    for name, old in base.tensors.items():
        new = tensors[name]
        if name.endswith(_EMBEDDINGS) and new.rows != old.rows:
            for part in parts:
                if part.get("vocab_size") == old.rows:
                    part["vocab_size"] = new.rows
                    notes.append(
                        f"vocab_size in config.json becomes {new.rows} instead of {old.rows}, the rows of {name!r}"
                    )
    return (json.dumps(config, indent=2).encode() + b"\n", tuple(notes)) if notes else (None, ())


# --- opening -------------------------------------------------------------------------------------------


def open_adapter(path: str | os.PathLike[str], base: Source) -> Adapter:
    """Open a LoRA adapter as the model that it makes of ``base``.

    Args:
        path: a folder with adapter_config.json and adapter_model.safetensors, or that weights file.
        base: the checkpoint that the adapter was trained on.

    Raises:
        InputError: the adapter is of another kind (DoRA, convolutions, PiSSA, ...), is incomplete, or does
            not fit the base; the sentence names the module.
    """
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(f"{folder} has no {CONFIG_FILE}, so it is no PEFT adapter; give an adapter folder")
    file = place if place.is_file() else folder / WEIGHTS_FILE
    if not file.exists() and (folder / "adapter_model.bin").exists():
        file = folder / "adapter_model.bin"  # refused by name as a pickle, with the way to convert
    weights = open_checkpoint(file)
    settings = _Settings(read_json_object(folder / CONFIG_FILE), folder / CONFIG_FILE)
    factors, whole = _classify(weights)
    rename = _choose_renaming([f"{module}.weight" for module in factors], weights.path, base)
    replaced: dict[str, str] = {}
    for name, stored in whole.items():
        target = next((option for option in (rename(name), name) if option in base.tensors), name)
        if base.tied and target not in base.tensors and target.endswith("lm_head.weight"):
            raise InputError(
                f"{weights.path} trains {target!r} apart from the embedding that {base.path} ties it to; "
                "untie the base first (tie_word_embeddings false) and save it with both tensors"
            )
        replaced[target] = stored
    updates = {}
    for module, names in factors.items():
        target = rename(f"{module}.weight")
        # peft stores an adapted embedding whole beside its factors, maybe resized: they add to that then
        below = weights.tensors[replaced[target]] if target in replaced else base.tensors[target]
        updates[target] = _make_update(module, names, below, weights, settings)
    notes = []
    if base.tied and not settings.ties_weights:
        notes = [
            f"{name} is tied to the output layer, which peft leaves alone; the merged model uses the trained "
            "weights for both"
            for name in base.tensors
            if name.endswith(_EMBEDDINGS) and (name in updates or settings.saves_whole(name))
        ]
    return Adapter(place, base, weights, folder, updates, replaced, notes)


class _Settings:
    """adapter_config.json, with everything refused that this module does not merge."""

    def __init__(self, config: Mapping[str, Any], path: Path) -> None:
        self.path = path
        kind = config.get("peft_type")
        if kind != "LORA":
            raise InputError(f"{path} describes a {str(kind)[:40]!r} adapter; only LORA can be merged here")
        for key, title in _UNSUPPORTED.items():
            if config.get(key):
                raise InputError(
                    f"{path} uses {title} ({key}), which is not supported; merge it with peft's "
                    "merge_and_unload() and give the merged model"
                )
        start = config.get("init_lora_weights")
        if isinstance(start, str) and start.startswith(_RESIDUAL_INITIALISATIONS):
            raise InputError(
                f"{path} was initialised by {start[:40]!r}, which replaces the base by a residual; convert "
                "it to a plain LoRA (path_initial_model_for_weight_conversion) or merge it with peft"
            )
        self.rslora = bool(config.get("use_rslora"))
        self.fan_in_fan_out = bool(config.get("fan_in_fan_out"))
        self.ties_weights = bool(config.get("ensure_weight_tying"))
        self._whole = [str(name) for name in config.get("modules_to_save") or ()]
        self._rank = _positive(config.get("r", 8), "r", path)
        self._alpha = _number(config.get("lora_alpha", 8), "lora_alpha", path)
        ranks = _patterns(config.get("rank_pattern"), "rank_pattern", path)
        alphas = _patterns(config.get("alpha_pattern"), "alpha_pattern", path)
        self._ranks = [(regex, _positive(value, "rank_pattern", path)) for regex, value in ranks]
        self._alphas = [(regex, _number(value, "alpha_pattern", path)) for regex, value in alphas]

    def rank(self, module: str) -> int:
        return _first_match(self._ranks, module, self._rank)

    def saves_whole(self, name: str) -> bool:
        return any(f".{name}".endswith(f".{module}.weight") for module in self._whole)

    def scale(self, module: str) -> float:
        rank = self.rank(module)
        return _first_match(self._alphas, module, self._alpha) / (math.sqrt(rank) if self.rslora else rank)


def _number(value: Any, key: str, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(
            f"{path} gives {str(value)[:40]!r} for {key}, which is not a finite number; correct it"
        )
    return float(value)


def _positive(value: Any, key: str, path: Path) -> int:
    if type(value) is not int or value < 1:
        raise InputError(
            f"{path} gives {str(value)[:40]!r} for {key}, which is not a positive integer; correct it"
        )
    return value


def _patterns(value: Any, key: str, path: Path) -> list[tuple[re.Pattern[str], Any]]:
    """Compile the keys of a pattern table, which peft matches as regular expressions against a name's end.

    A quantified group or many unbounded repeats could take for ever to match, so they are refused.
    """
    if not isinstance(value or {}, dict):
        raise InputError(f"{path} gives a {key} that is not an object; correct it")
    patterns = []
    for text, setting in (value or {}).items():
        if len(text) > 1024 or re.search(r"\)[*+{]", text) or len(re.findall(r"[*+]|,\}", text)) > 2:
            raise InputError(
                f"{path} has the pattern {text[:80]!r} in {key}, which repeats too much; simplify it"
            )
        try:
            patterns.append((re.compile(f"(?:{text})"), setting))
        except (re.error, RecursionError, OverflowError):
            raise InputError(f"{path} has the invalid pattern {text[:80]!r} in {key}; correct it") from None
    return patterns


def _first_match(patterns: Iterable[tuple[re.Pattern[str], Any]], module: str, default: Any) -> Any:
    starts = [0, *(dot + 1 for dot, letter in enumerate(module) if letter == ".")]
    for regex, value in patterns:
        if any(regex.fullmatch(module, start) for start in starts):
            return value
    return default


def _classify(weights: Checkpoint) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Split the adapter's tensors into factors by module, and tensors stored whole by target name."""
    factors: dict[str, dict[str, str]] = {}
    whole: dict[str, str] = {}
    for stored in weights.tensors:
        name = stored.removeprefix(_PREFIX)
        if match := _FACTORS.fullmatch(name):
            which = factors.setdefault(match["module"].removesuffix(".base_layer"), {})
            which[match["which"]] = stored
        elif "lora_" in name or "token_adapter" in name or len(name) > 1024:
            raise InputError(
                f"{weights.path} holds {stored[:200]!r}, which is no plain LoRA factor (DoRA, a bias or "
                "another method); merge it with peft's merge_and_unload() and give the merged model"
            )
        else:
            target = _WHOLE.sub("", name)
            if target in whole:
                raise InputError(f"{weights.path} stores both {whole[target]!r} and {stored!r}; remove one")
            whole[target] = stored
    return factors, whole


def _choose_renaming(targets: Sequence[str], path: Path, base: Source) -> Callable[[str], str]:
    """The one prefix to add or to drop under which every target is a tensor of the base."""
    known = base.tensors
    options: list[tuple[str, str]] = [("", "")]
    if targets:
        first = targets[0]
        options += [("", name.removesuffix(first)) for name in known if name.endswith("." + first)]
        options += [(first.removesuffix(name), "") for name in known if first.endswith("." + name)]

    def renamed(target: str, drop: str, add: str) -> str:
        return add + target.removeprefix(drop)

    fitting = [o for o in options if all(renamed(target, *o) in known for target in targets)]
    if not fitting:
        best = max(options, key=lambda o: sum(renamed(target, *o) in known for target in targets))
        absent = next(target for target in targets if renamed(target, *best) not in known)
        tied = "; its output layer is tied to the embedding" if base.tied and "lm_head" in absent else ""
        raise InputError(
            f"{path} adapts {absent!r}, which {base.path} does not hold{tied}; give the base that the "
            "adapter was trained on"
        )
    if len(fitting) > 1 and fitting[0] != ("", ""):
        raise InputError(
            f"{path} adapts {targets[0]!r}, which could be any of {len(fitting)} tensors of {base.path}; "
            "give the base that the adapter was trained on"
        )
    drop, add = fitting[0]
    return lambda target: renamed(target, drop, add)


def _make_update(
    module: str, names: Mapping[str, str], target: TensorInfo, weights: Checkpoint, settings: _Settings
) -> LowRankUpdate:
    embedding = "embedding_A" in names
    try:
        right = weights.tensors[names["embedding_A" if embedding else "A"]]
        left = weights.tensors[names["embedding_B" if embedding else "B"]]
    except KeyError:
        raise InputError(f"{weights.path} holds only one factor of {module!r}; download it again") from None
    if len(target.shape) != 2 or len(left.shape) != 2 or len(right.shape) != 2:
        raise InputError(
            f"{weights.path} adapts {module!r}, which is not a matrix (shape {list(target.shape)}); merge "
            "convolutions with peft's merge_and_unload()"
        )
    if not (target.is_float and left.is_float and right.is_float):
        raise InputError(
            f"{weights.path}: the base or a factor of {module!r} is not floating point; dequantise it"
        )
    rank = settings.rank(module)
    if left.shape[1] != rank or right.shape[0] != rank:
        raise InputError(
            f"{weights.path} has factors {list(left.shape)} and {list(right.shape)} for {module!r} where "
            f"{settings.path.name} says rank {rank}; give the config saved with these weights"
        )
    transposed = embedding or settings.fan_in_fan_out
    made = (right.shape[1], left.shape[0]) if transposed else (left.shape[0], right.shape[1])
    if made != target.shape:
        raise InputError(
            f"{weights.path} makes an update of shape {list(made)} for {module!r}, but the base has "
            f"{list(target.shape)}; give the base that the adapter was trained on"
        )
    return LowRankUpdate(left.name, right.name, settings.scale(module), transposed)
