"""Pack a fine-tuned checkpoint into a delta, and certify what was lost.

Both checkpoints are read once, block by block; memory holds a few blocks whatever their size.  The payload
grows in a journalled file beside the output, so an interrupted run resumes; the delta appears whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from assay.checkpoints import certificate as certificates
from assay.checkpoints import codec, delta
from assay.checkpoints.adapters import is_adapter, open_adapter
from assay.checkpoints.calibrate import Moments, collect_moments, load_moments
from assay.checkpoints.encode import DigestTask, EncodedRows, EncodeTask, encode_tasks, run
from assay.checkpoints.engine import ordered
from assay.checkpoints.header import TensorInfo, build_header
from assay.checkpoints.io import Source, compare_layouts, fingerprint, open_checkpoint, refuse_quantised
from assay.checkpoints.journal import Journal, PartialData
from assay.checkpoints.output import CheckpointWriter, FileLayout, check_output, require_space
from assay.checkpoints.plan import LOSSY, Settings, TensorPlan, plan_tensors
from assay.core.certificate import Certificate, Subject
from assay.core.errors import InputError
from assay.numerics.philox import key_for

Progress = Callable[[int, int, str], None]

RETRAINED = 0.8
"""Delta norm over base norm from which a pair is taken for two trainings rather than a fine-tune."""

SPARSE = 0.5
"""Share of changed entries below which a delta is called sparse already: dropping it again decays it."""

_PROBE_ROWS = 64
_COPY_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class PackReport:
    """What a pack did.

    Attributes:
        out: the delta; on a dry run, where it would be.
        bytes_in: bytes of the fine-tuned checkpoint, carried files included.
        bytes_out: bytes of the delta.
        parameters: elements of the fine-tuned checkpoint.
        certificate: what was lost; None when it was declined.
        delta_ratio: norm of the delta over norm of the base, over the tensors that lose something.
        warnings: sentences that the user should read.
        dry_run: nothing was written.
    """

    out: Path
    bytes_in: int
    bytes_out: int
    parameters: int
    certificate: Certificate | None
    delta_ratio: float
    warnings: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def bits_per_parameter(self) -> float:
        """All bytes of the delta over all parameters."""
        return 8 * self.bytes_out / max(1, self.parameters)


def pack(
    finetuned: str | os.PathLike[str],
    base: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    drop: float | Fraction = 0.9,
    rescale: str | float = "dare",
    mask: str = "random",
    bits: int = 16,
    seed: int = 0,
    calibration: str | os.PathLike[str] | None = None,
    moments: str | os.PathLike[str] | None = None,
    coding: str = "entropy",
    lossless: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    gamma: float | Fraction = Fraction(1, 100),
    tails: str = "chernoff",
    certificate: bool | str | os.PathLike[str] = True,
    workers: int | None = None,
    engine: str = "local",
    overwrite: bool = False,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PackReport:
    """Write the delta that turns `base` into (nearly) `finetuned`.

    Args:
        finetuned, base: a safetensors file, a sharded folder or a Hugging Face model folder; `finetuned` may
            also be a PEFT LoRA adapter of `base`.
        out: the delta file to write.
        drop, rescale, mask, bits, seed, coding, lossless, include, exclude, gamma: see `Settings`.
        calibration: a text file; the fine-tuned model runs over it to measure its layers' inputs (extra torch).
        moments: such measurements, ready-made; without either, inputs of unit second moment.
        tails: bound computed for each tensor's largest output: ``ks``, ``chernoff`` or ``lattice``.
        certificate: also write the certificate to this path; False issues none, and saves hashing.
        workers, engine: where the work runs; the output does not depend on them.
        overwrite: allow replacing a file that assay did not write.
        force: pack a pair that is no fine-tune.
        dry_run: do everything but write.
        progress: called with bytes done, bytes in total, and what is being done.

    Raises:
        InputError: any of the inputs cannot be used; nothing is written and nothing is lost.
        MissingExtraError: calibration without the extra ``torch``, engine ``ray`` without the extra ``ray``.
    """
    settings = Settings(
        drop, rescale, mask, bits, coding, lossless, seed, tuple(include), tuple(exclude), Fraction(gamma)
    )
    if tails not in ("ks", "chernoff", "lattice"):
        raise InputError(f"the tail bound {tails!r} is none of ks, chernoff, lattice")
    job = _open(finetuned, base, settings, calibration, moments)
    try:
        target = check_output(out, inputs=[finetuned, base], overwrite=overwrite)
        if not force:
            _refuse_retrained(job)
        with _Sink.open(target, _identity(job, tails, bool(certificate)), dry_run) as sink:
            return _pack(job, sink, target, tails, certificate, workers, engine, progress or _silent)
    finally:
        job.finetuned.close()
        job.base.close()


def _silent(done: int, total: int, what: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class _Job:
    """Both sides, the plans and the moments."""

    base: Any
    finetuned: Any
    settings: Settings
    plans: tuple[TensorPlan, ...]
    absent: tuple[TensorInfo, ...]
    moments: Moments | None
    moments_name: str

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


def _open(
    finetuned: str | os.PathLike[str],
    base: str | os.PathLike[str],
    settings: Settings,
    calibration: str | os.PathLike[str] | None,
    moments: str | os.PathLike[str] | None,
) -> _Job:
    base_source = open_checkpoint(base)
    refuse_quantised(base_source)
    tuned: Any = open_adapter(finetuned, base_source) if is_adapter(finetuned) else open_checkpoint(finetuned)
    refuse_quantised(tuned)
    layout = compare_layouts(base_source, tuned)
    for name in tuned.tensors:
        if name.startswith(delta.PREFIX):
            raise InputError(f"{tuned.path} has a tensor called {name!r}; rename it: 'assay.*' is taken in a delta")
    plans = plan_tensors(base_source, tuned, layout, settings)
    measured, name = _moments(finetuned, calibration, moments)
    if measured is not None:
        measured.check(tuned.tensors)
    job = _Job(
        base_source, tuned, settings, plans, tuple(base_source.tensors[n] for n in layout.missing), measured, name
    )
    for plan in plans:
        needs = "a chosen mask" if plan.treatment == "masked" else "the optimal rescale" if plan.rescale is None else ""
        if plan.treatment == "masked" and job.moment(plan) is None:
            raise InputError(
                f"{needs} needs the second moments of {plan.name!r}'s inputs; give --calibrate FILE.txt or --moments, "
                f"or leave the tensor out with --exclude"
            )
        biased = plan.treatment in LOSSY and plan.rescale != plan.threshold / (1 << 32)
        if biased and job.calibrated(plan) and job.moment(plan) is None:
            raise InputError(
                f"a rescale other than 'dare' needs the full second moment of {plan.name!r}'s inputs, and only the "
                f"diagonal was kept; calibrate with a larger diagonal_above, or use --rescale dare"
            )
    return job


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
    digest = hashlib.sha256()
    for name in sorted(measured.values):
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(measured.values[name]).tobytes())
    return measured, "sha256:" + digest.hexdigest()


def _refuse_retrained(job: _Job) -> None:
    """A look at a few rows of each tensor: two trainings differ by as much as the model is large."""
    changed = whole = 0.0
    for plan in job.plans:
        if plan.treatment in LOSSY:
            stop = min(plan.base_rows, max(1, min(_PROBE_ROWS, (1 << 20) // max(1, plan.info.columns))))
            energy, size = codec.energies(
                job.base.read_rows(plan.name, 0, stop), plan.base, job.finetuned.read_rows(plan.name, 0, stop), plan.info
            )
            changed, whole = changed + energy, whole + size
    ratio = math.sqrt(changed / whole) if whole else 0.0
    if ratio >= RETRAINED:
        raise InputError(
            f"{job.finetuned.path} is no fine-tune of {job.base.path}: their difference is {ratio:.2f} times as large as "
            f"the base itself; check the pair, or use --force"
        )


def _identity(job: _Job, tails: str, certified: bool) -> dict[str, Any]:
    """All that determines the output, cheap to compute: a journal of another identity is started over."""

    def source(side: Any) -> list[Any]:
        return [[s.file, s.size, s.modified_ns, hashlib.sha256(s.header).hexdigest()] for s in side.shards]

    settings = {f.name: str(getattr(job.settings, f.name)) for f in dataclasses.fields(job.settings)}
    return {
        "verb": "pack",
        "version": delta.VERSION,
        "base": [str(job.base.path), source(job.base)],
        "finetuned": [str(job.finetuned.path), source(job.finetuned)],
        "settings": settings,
        "moments": job.moments_name,
        "tails": tails,
        "certified": certified,
    }


class _Sink:
    """Where finished tensors go: a journalled file, or nowhere on a dry run."""

    def __init__(self, journal: Journal | None) -> None:
        self.journal = journal
        self.done: dict[str, Any] = dict(journal.done) if journal else {}

    @classmethod
    def open(cls, target: Path, identity: Mapping[str, Any], dry_run: bool) -> _Sink:
        return cls(None if dry_run else Journal.open(target, identity))

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.journal is not None:
            self.journal.close()

    def append(self, payload: bytes) -> None:
        if self.journal is not None:
            self.journal.data.append(payload)

    def rewind(self, end: int) -> None:
        if self.journal is not None:
            self.journal.data.truncate(end)

    @property
    def end(self) -> int:
        return self.journal.data.end if self.journal is not None else 0

    def record(self, name: str, entry: dict[str, Any]) -> None:
        self.done[name] = entry
        if self.journal is not None:
            self.journal.record(name, entry)

    @property
    def data(self) -> PartialData | None:
        return self.journal.data if self.journal is not None else None
