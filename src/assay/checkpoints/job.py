"""Both sides of a pack, opened and checked: what will be read, and what is planned for it."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.checkpoints import delta
from assay.checkpoints.adapters import Adapter, is_adapter, open_adapter
from assay.checkpoints.calibrate import Moments, collect_moments, load_moments
from assay.checkpoints.encode import difference, read_base_rows
from assay.checkpoints.energies import Energies, load_energies
from assay.checkpoints.factors import Factors
from assay.checkpoints.gridplan import GridPlanner, planner_for
from assay.checkpoints.header import DTYPES, TensorInfo, build_header
from assay.checkpoints.io import (
    HIDDEN,
    MARKS,
    Layout,
    Shard,
    Source,
    compare_layouts,
    open_checkpoint,
    refuse_no_model,
    refuse_quantised,
    row_blocks,
)
from assay.checkpoints.keep import KeepPlan, Planner
from assay.checkpoints.language import read_texts
from assay.checkpoints.plan import (
    BITS,
    GRID,
    KEEP_MAPS,
    KEEP_ONE,
    LOSSY,
    Settings,
    TensorPlan,
    plan_tensors,
    span_of,
)
from assay.core.certificate import Subject
from assay.core.errors import InputError

RETRAINED = 0.8
"""Delta norm over base norm from which a pair is taken for two trainings rather than a fine-tune."""

_PROBE_ROWS, _PROBE_ELEMENTS = 16, 1 << 20
_COMPARED_BYTES = 1 << 22
_CONTAINER_BYTES, _HEADER_BYTES, _CERTIFIED_BYTES = 1024, 185, 350
"""Estimates: of a delta, of one more tensor in it, and of what a certificate says of one that loses something."""


@dataclass(frozen=True, slots=True)
class Job:
    """Both sides, the plans, the moments, and what the user should know of the sides.

    With energies, also what they predict, and the tensors that have none.
    """

    base: Any
    finetuned: Any
    settings: Settings
    plans: tuple[TensorPlan, ...]
    absent: tuple[TensorInfo, ...]
    moments: Moments | None
    moments_name: str
    notes: tuple[str, ...] = ()
    keep: KeepPlan | None = None
    energies_name: str = "none"
    without_energies: tuple[str, ...] = ()

    def close(self) -> None:
        """Close both sides; an adapter's files are closed with it."""
        self.finetuned.close()
        self.base.close()

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Every weights file that is read, whatever it was opened by."""
        own = self.finetuned.own_shards if isinstance(self.finetuned, Adapter) else ()
        return (*self.base.shards, *self.finetuned.shards, *own)

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
    energies: str | os.PathLike[str] | None = None,
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
    plans = plan_tensors(base_source, tuned, settings)
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
    job = dataclasses.replace(job, plans=_tied(job, plans))
    _refuse_nonfinite(job)
    if settings.planned and energies is None:
        raise InputError(
            "keep maps other than 'uniform', a drift and a size are planned by energies: make them with 'assay calibrate', "
            "and give --energies FILE"
        )
    if energies is not None:
        job = _by_energies(job, energies)
    for plan in job.plans:
        _require_moments(job, plan)
    return job


def _tied(job: Job, plans: Sequence[TensorPlan]) -> tuple[TensorPlan, ...]:
    """The plans, with a tensor that the base ties and so lacks as an alias, after the tensor that it repeats.

    One that must be kept exactly does not repeat one that may lose something.
    """
    result = list(plans)
    for plan in plans:
        if plan.base is not None or len(plan.info.shape) < 2 or not plan.info.count:
            continue
        for other in plans:
            alike = other.base is not None and other.base.dtype == other.info.dtype == plan.info.dtype
            if not alike or other.info.shape != plan.info.shape:
                continue
            if other.treatment in LOSSY and not job.settings.may_lose(plan.info):
                continue
            if same_bytes(job, plan.name, other.name):
                result.remove(plan)
                repeated = dataclasses.replace(plan, treatment="alias", of=other.name)
                result.insert(result.index(other) + 1, repeated)
                break
    return tuple(result)


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
    for name, (rows, fewer) in layout.shrunk.items():
        yield f"{name!r} has {fewer} rows where the base has {rows}: the base's last {rows - fewer} are left out"
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
    measured = collect_moments(finetuned, read_texts(calibration))
    with tempfile.TemporaryDirectory() as folder:  # the digest is that of the file `--moments` would read
        measured.save(Path(folder) / "moments.safetensors")
        return measured, "sha256:" + Subject.of_file(Path(folder) / "moments.safetensors").sha256


def delta_ratio(job: Job) -> float:
    """Norm of the delta over norm of the base, in a few rows of each tensor that loses something, spread over it."""
    changed = whole = 0.0
    for plan in job.plans:
        if plan.treatment in LOSSY:
            assert plan.base is not None
            for row in probe_rows(plan.base_rows, plan.info.columns):
                old, _ = read_base_rows(job.base, plan.base, plan.info, row, row + 1)
                new = job.finetuned.read_rows(plan.name, row, row + 1)
                changed += _square_sum(difference(old, new, plan.info.dtype))
                whole += _square_sum(difference(np.zeros_like(old), old, plan.info.dtype))
    return math.sqrt(changed / whole) if whole else 0.0


def probe_rows(rows: int, columns: int) -> list[int]:
    """Up to 16 rows of a tensor, the middles of as many equal parts of it; fewer if they have more than 2^20 elements.

    >>> probe_rows(3, 5), probe_rows(320, 5)[:3], probe_rows(9, 1 << 20)
    ([0, 1, 2], [10, 30, 50], [4])
    """
    count = min(rows, max(1, min(_PROBE_ROWS, _PROBE_ELEMENTS // max(1, columns))))
    return [(2 * part + 1) * rows // (2 * count) for part in range(count)]


def _by_energies(job: Job, path: str | os.PathLike[str]) -> Job:
    """The job with the keep thresholds that energies give, or, for a uniform drop, with their prediction alone."""
    energies = load_energies(path)
    energies.check(job.base, job.finetuned)
    settings = job.settings
    job = dataclasses.replace(job, energies_name="sha256:" + Subject.of_file(path).sha256)
    lossy = {plan.name: plan for plan in job.plans if plan.treatment in LOSSY}
    if not settings.planned and (
        settings.mask != "random" or settings.rescale != "dare" or not settings.threshold
    ):
        return job
    known = lossy.keys() & energies.tensors.keys()
    if not known and not settings.planned:
        return job
    planner = _planner(job, energies, settings.bits)
    if settings.max_drift is not None:
        keep = planner.at_drift(settings.keep_map, settings.max_drift)
    elif settings.max_size is not None:
        keep = planner.at_size(settings.keep_map, settings.max_size)
    else:
        keep = planner.at_drop(settings.keep_map, 1 - settings.threshold / KEEP_ONE)
    if not settings.planned:
        return dataclasses.replace(job, keep=keep)
    plans = tuple(_planned(plan, keep) if plan.name in lossy else plan for plan in job.plans)
    unchanged = {name for name, size in energies.other.items() if size == 0}
    missing = tuple(name for name in lossy if name not in known and name not in unchanged)
    return dataclasses.replace(job, plans=plans, keep=keep, without_energies=missing)


def _planner(job: Job, energies: Energies, bits: int) -> Planner | GridPlanner:
    """Plans for the tensors that may lose something and have energies; the others count as overhead."""
    lossy = {plan.name for plan in job.plans if plan.treatment in LOSSY}
    known = {name: tensor for name, tensor in energies.tensors.items() if name in lossy}
    if not known:
        raise InputError(
            "none of the tensors that may lose something has energies: calibrate this pair again"
        )
    return planner_for(dataclasses.replace(energies, tensors=known), bits, _exact_bytes(job, energies, known))


def frontier(
    finetuned: str | os.PathLike[str],
    base: str | os.PathLike[str],
    energies: str | os.PathLike[str],
    *,
    drops: Sequence[float] = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99),
    bits: Sequence[int] = (GRID, *BITS),
    keep_maps: Sequence[str] = KEEP_MAPS,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> tuple[KeepPlan, ...]:
    """Bytes against drift for each keep map, number of bits and share dropped, predicted to first order.

    Nothing is packed: sizes are estimates, and drifts hold as far as the network is linear across the error.

    Args:
        finetuned, base: the pair.
        energies: a file that `assay.checkpoints.energies` measured of it.
        drops: shares of all entries to drop, each in [0, 1).
        bits: of a survivor, each one of 16, 8, 4, 3, 2, or 0 for a grid.
        keep_maps: of ``uniform``, ``tensor``, ``factored``.
        include, exclude: as in `Settings`.

    Raises:
        InputError: the energies are not those of the pair, or a value is out of its range.
    """
    settings = Settings(include=tuple(include), exclude=tuple(exclude))
    job = open_job(finetuned, base, settings, None, None)
    try:
        on_grid = plan_tensors(job.base, job.finetuned, dataclasses.replace(settings, bits=GRID))
        jobs = {GRID: dataclasses.replace(job, plans=_tied(job, on_grid))}
        measured = load_energies(energies)
        measured.check(job.base, job.finetuned)
        return tuple(
            planner.at_drop(keep_map, drop)
            for planner in (_planner(jobs.get(number, job), measured, number) for number in bits)
            for keep_map in keep_maps
            for drop in drops
        )
    finally:
        job.close()


def _exact_bytes(job: Job, energies: Energies, planned: Mapping[str, Any]) -> int:
    """Estimate of what a delta holds beside the payloads of the planned tensors."""
    content, _ = output_layout(job)
    size = _CONTAINER_BYTES + sum(len(data) for _, data in content)
    for plan in job.plans:
        size += _HEADER_BYTES + len(plan.name)
        if plan.name in planned:
            size += _CERTIFIED_BYTES
        elif plan.of is None:
            size += energies.other.get(plan.name, plan.info.nbytes)
    return size


def _planned(plan: TensorPlan, keep: KeepPlan) -> TensorPlan:
    """A lossy plan with its own thresholds; without loss where there are none."""
    made = keep.thresholds.get(plan.name)
    if made is None:
        return dataclasses.replace(plan, treatment="lossless", threshold=KEEP_ONE, rescale=1.0)
    factors = made if isinstance(made, Factors) else None
    threshold = max(1, round(factors.mean_keep * KEEP_ONE)) if factors else int(made)  # type: ignore[arg-type]
    return dataclasses.replace(
        plan,
        treatment="factored" if factors else "dropped",
        threshold=threshold,
        rescale=threshold / KEEP_ONE,
        span=span_of(threshold),
        factors=factors,
        step=keep.steps.get(plan.name),
    )


def same_bytes(job: Job, name: str, other: str) -> bool:
    """Whether two tensors of one shape and type are the same, bit for bit, on each side that has both.

    Digests that agree say so only if nobody forged them, and quick ones can be forged.
    """
    for side in (job.finetuned, job.base):
        if name in side.tensors and other in side.tensors:
            for start, stop in row_blocks(side.tensors[name], _COMPARED_BYTES):
                if not np.array_equal(side.read_rows(name, start, stop), side.read_rows(other, start, stop)):
                    return False
    return True


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
        "energies": job.energies_name,
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
