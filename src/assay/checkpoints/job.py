"""Both sides of a pack, opened and checked: what will be read, and what is planned for it."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.checkpoints import delta
from assay.checkpoints.adapters import Adapter, is_adapter, open_adapter
from assay.checkpoints.calibrate import Moments, collect_moments, load_moments
from assay.checkpoints.encode import difference, read_base_rows
from assay.checkpoints.header import DTYPES, TensorInfo, build_header
from assay.checkpoints.io import (
    HIDDEN,
    MARKS,
    Layout,
    Source,
    compare_layouts,
    open_checkpoint,
    refuse_no_model,
    refuse_quantised,
    row_blocks,
)
from assay.checkpoints.plan import KEEP_ONE, LOSSY, Settings, TensorPlan, plan_tensors
from assay.core.certificate import Subject
from assay.core.errors import InputError

RETRAINED = 0.8
"""Delta norm over base norm from which a pair is taken for two trainings rather than a fine-tune."""

_PROBE_ROWS = 16


@dataclass(frozen=True, slots=True)
class Job:
    """Both sides, the plans, the moments, and what the user should know of the sides."""

    base: Any
    finetuned: Any
    settings: Settings
    plans: tuple[TensorPlan, ...]
    absent: tuple[TensorInfo, ...]
    moments: Moments | None
    moments_name: str
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Close both sides; an adapter's files are closed with it."""
        self.finetuned.close()
        self.base.close()

    def weight(self, plan: TensorPlan) -> np.ndarray | None:
        """The second moments of the tensor's inputs, per column; None for unit ones."""
        return self.moments.diagonal(plan.name) if self.calibrated(plan) and self.moments else None

    def moment(self, plan: TensorPlan) -> np.ndarray | None:
        """Their full matrix, where it was kept."""
        if self.moments is None or not self.calibrated(plan):
            return None
        value = self.moments.values[plan.name]
        return value if value.ndim == 2 else None

    def calibrated(self, plan: TensorPlan) -> bool:
        """Whether the tensor's inputs meet its columns and were measured."""
        return (
            self.moments is not None
            and plan.treatment in LOSSY
            and plan.name in self.moments
            and self.moments.axes[plan.name] == 1
        )


def open_job(
    finetuned: str | os.PathLike[str],
    base: str | os.PathLike[str],
    settings: Settings,
    calibration: str | os.PathLike[str] | None,
    moments: str | os.PathLike[str] | None,
) -> Job:
    """Open both sides, check that one can be packed on the other, and plan every tensor.

    Args:
        finetuned, base, calibration, moments: as in `assay.checkpoints.pack`.
        settings: what was asked.

    Raises:
        InputError: a side, the pair of them, the settings or the moments cannot be used.
        MissingExtraError: calibration without the extra ``torch``.
    """
    base_source = open_checkpoint(base)
    refuse_no_model(base_source)
    refuse_quantised(base_source)
    tuned: Any = open_adapter(finetuned, base_source) if is_adapter(finetuned) else open_checkpoint(finetuned)
    refuse_no_model(tuned)
    refuse_quantised(tuned)
    layout = compare_layouts(base_source, tuned)
    for side in (tuned, base_source):
        for name in side.tensors:
            if name.startswith(delta.PREFIX):
                raise InputError(
                    f"{side.path} has a tensor called {name!r}; rename it: 'assay.*' is taken in a delta"
                )
    plans = plan_tensors(base_source, tuned, layout, settings)
    measured, name = _moments(finetuned, calibration, moments)
    if measured is not None:
        measured.check(tuned.tensors)
    job = Job(
        base_source,
        tuned,
        settings,
        plans,
        tuple(base_source.tensors[n] for n in layout.missing),
        measured,
        name,
        tuple(_notes(tuned, layout)),
    )
    _refuse_nonfinite(job)
    for plan in plans:
        _require_moments(job, plan)
    return job


def _require_moments(job: Job, plan: TensorPlan) -> None:
    """A chosen mask and a biased rescale depend on how a tensor's inputs go together."""
    if plan.treatment == "masked" and job.moment(plan) is None:
        raise InputError(
            f"a chosen mask needs the second moments of {plan.name!r}'s inputs; give --calibrate FILE.txt or "
            f"--moments, or leave the tensor out with --exclude"
        )
    biased = plan.treatment in LOSSY and plan.rescale != plan.threshold / KEEP_ONE
    if biased and job.calibrated(plan) and job.moment(plan) is None:
        raise InputError(
            f"a rescale other than 'dare' needs the full second moment of {plan.name!r}'s inputs, and only the "
            f"diagonal was kept; calibrate with a larger diagonal_above, or use --rescale dare"
        )


def _notes(finetuned: Any, layout: Layout) -> Iterator[str]:
    """What the two sides are that the user may not know."""
    if layout.hint is not None:
        yield layout.hint
    if isinstance(finetuned, Adapter):
        yield from finetuned.notes
        return
    left = {file: why for file, why in finetuned.ignored.items() if why not in (HIDDEN, MARKS)}
    if left:
        file, why = next(iter(left.items()))
        number = "a file" if len(left) == 1 else f"{len(left)} files"
        yield f"{number} of {finetuned.path} will be missing from the output, {file!r} among them ({why})"


def _refuse_nonfinite(job: Job) -> None:
    """NaN or infinity in what would be copied exactly though nobody asked for it: norms, biases, new tensors.

    The tensors that lose something are looked at while they are encoded.
    """
    for plan in job.plans:
        info = plan.info
        copied = plan.treatment == "exact" or len(info.shape) < 2
        if job.settings.lossless or not info.is_float or not copied or job.settings.excludes(info.name):
            continue
        for start, stop in row_blocks(info, 1 << 22):
            bits = job.finetuned.read_rows(info.name, start, stop)
            bad = ~np.isfinite(bits.view(DTYPES[info.dtype])).reshape(-1)
            if bad.any():
                first = start * info.columns + int(bad.argmax())
                raise InputError(
                    f"tensor {info.name!r} of {job.finetuned.path} holds NaN or infinity (the first at index {first}); "
                    f"repair the tensor, or keep it exactly with --exclude {info.name!r}"
                )


def _moments(
    finetuned: str | os.PathLike[str],
    calibration: str | os.PathLike[str] | None,
    moments: str | os.PathLike[str] | None,
) -> tuple[Moments | None, str]:
    if calibration is not None and moments is not None:
        raise InputError("give a calibration text or ready-made moments, not both")
    if moments is not None:
        return load_moments(moments), "sha256:" + Subject.of_file(moments).sha256
    if calibration is None:
        return None, "unit"
    path = Path(calibration)
    if not path.is_file():
        raise InputError(f"there is no calibration text {path}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"the calibration text {path} is not UTF-8; convert it first") from None
    measured = collect_moments(finetuned, [line for line in lines if line.strip()])
    with tempfile.TemporaryDirectory() as folder:  # the digest is that of the file `--moments` would read
        measured.save(Path(folder) / "moments.safetensors")
        return measured, "sha256:" + Subject.of_file(Path(folder) / "moments.safetensors").sha256


def delta_ratio(job: Job) -> float:
    """Norm of the delta over norm of the base, in a few rows of each tensor that loses something."""
    changed = whole = 0.0
    for plan in job.plans:
        if plan.treatment in LOSSY:
            stop = min(plan.base_rows, max(1, min(_PROBE_ROWS, (1 << 20) // max(1, plan.info.columns))))
            assert plan.base is not None
            old, _ = read_base_rows(job.base, plan.base, plan.info, 0, stop)
            new = job.finetuned.read_rows(plan.name, 0, stop)
            changed += _square_sum(difference(old, new, plan.info.dtype))
            whole += _square_sum(difference(np.zeros_like(old), old, plan.info.dtype))
    return math.sqrt(changed / whole) if whole else 0.0


def refuse_retrained(job: Job, ratio: float) -> None:
    """Two trainings differ by as much as the model is large.

    Raises:
        InputError: the pair looks like that.
    """
    if ratio >= RETRAINED:
        raise InputError(
            f"{job.finetuned.path} is no fine-tune of {job.base.path}: their difference is {ratio:.2f} times as large as "
            f"the base itself; check the pair, or use --force"
        )


def _square_sum(values: np.ndarray) -> float:
    finite = np.where(np.isfinite(values), values, 0).astype(np.float64)
    return float(np.einsum("ij,ij->", finite, finite))


def identity_of(job: Job, tails: str, certified: bool) -> dict[str, Any]:
    """All that determines the output, cheap to compute: a journal of another identity is started over."""

    def source(side: Any) -> list[Any]:
        own = side.own_shards if isinstance(side, Adapter) else ()
        return [
            [s.file, s.size, s.modified_ns, hashlib.sha256(s.header).hexdigest()]
            for s in (*side.shards, *own)
        ]

    settings = {f.name: str(getattr(job.settings, f.name)) for f in dataclasses.fields(job.settings)}
    return {
        "verb": "pack",
        "version": delta.VERSION,
        "base": [str(job.base.path), source(job.base)],
        "finetuned": [str(job.finetuned.path), source(job.finetuned)],
        "updates": str(sorted(job.finetuned.updates.items())) if isinstance(job.finetuned, Adapter) else "",
        "settings": settings,
        "moments": job.moments_name,
        "tails": tails,
        "certified": certified,
    }


def output_layout(job: Job) -> tuple[list[tuple[str, bytes]], dict[str, Any]]:
    """Headers, index and carried files of the output, as tensors of the delta and as lines of its plan."""
    source = job.finetuned
    model = job.base if isinstance(source, Adapter) else source
    headers = [(shard.file, shard.header) for shard in source.shards] or [_one_file(source)]
    index = model.index if source.shards else None
    content = [(f"assay.header.{n}", delta.deflate(header)) for n, (_, header) in enumerate(headers)]
    carried: list[dict[str, Any]] = []
    if index is not None:
        content.append((delta.INDEX, delta.deflate(index[1])))
    for name in source.carried if model.is_folder else ():
        data = source.read_carried(name)
        from_base = name in job.base.carried and job.base.read_carried(name) == data
        if not from_base:
            content.append((f"assay.carried.{len(carried)}", delta.deflate(data)))
        line = {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        carried.append(line | {"from": "base" if from_base else "delta"})
    return content, {
        "files": [{"name": name, "bytes": len(header)} for name, header in headers],
        "folder": model.is_folder,
        "index": None if index is None else {"name": index[0], "bytes": len(index[1])},
        "carried": carried,
    }


def _one_file(source: Source) -> tuple[str, bytes]:
    """A layout for a merged adapter that added tensors: everything in one file."""
    entries = [(info.name, info.dtype, info.shape) for info in source.tensors.values()]
    return "model.safetensors", build_header(entries, {"format": "pt"})
