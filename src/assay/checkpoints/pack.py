"""Pack a fine-tuned checkpoint into a delta, and certify what was lost.

Both checkpoints are read once, block by block; memory holds a few blocks whatever their size.  The payload
grows in a journalled file beside the output, so an interrupted run resumes; the delta appears whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
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
from assay.checkpoints.encode import (
    DigestTask,
    EncodedRows,
    EncodeTask,
    difference,
    encode_tasks,
    read_base_rows,
    run,
)
from assay.checkpoints.engine import ordered
from assay.checkpoints.header import TensorInfo, build_header
from assay.checkpoints.io import compare_layouts, fingerprint, open_checkpoint, refuse_quantised
from assay.checkpoints.journal import Journal, PartialData
from assay.checkpoints.output import CheckpointWriter, FileLayout, check_output, require_space
from assay.checkpoints.plan import LOSSY, Settings, TensorPlan, plan_tensors
from assay.core.certificate import Certificate, Subject
from assay.core.errors import InputError
from assay.missions.dare.algorithm import tail_threshold
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
            assert plan.base is not None
            old, _ = read_base_rows(job.base, plan.base, plan.info, 0, stop)
            new = job.finetuned.read_rows(plan.name, 0, stop)
            changed += _square_sum(difference(old, new, plan.info.dtype))
            whole += _square_sum(difference(np.zeros_like(old), old, plan.info.dtype))
    ratio = math.sqrt(changed / whole) if whole else 0.0
    if ratio >= RETRAINED:
        raise InputError(
            f"{job.finetuned.path} is no fine-tune of {job.base.path}: their difference is {ratio:.2f} times as large as "
            f"the base itself; check the pair, or use --force"
        )


def _square_sum(values: np.ndarray) -> float:
    finite = np.where(np.isfinite(values), values, 0).astype(np.float64)
    return float(np.einsum("ij,ij->", finite, finite))


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


class _Sums:
    """Running sums over the blocks of one tensor."""

    def __init__(self, plan: TensorPlan) -> None:
        self.plan = plan
        self.blocks: list[int] = []
        self.checks: list[bytes] = []
        self.finetuned_checks: list[bytes] = []
        self.same = plan.base is not None and plan.base_rows == plan.info.rows
        self.kept = self.changed = self.entries = 0
        self.signal = self.energy = self.variance = self.realised = 0.0
        self.delta_fourth = self.step_fourth = self.delta_energy = self.base_energy = 0.0
        self.proxy_max = self.proxy_sum = self.proxy_square_sum = 0.0
        self.worst_row, self.worst_step_proxy = 0, 0.0
        self.guarantee: float | None = None
        self._row = 0

    def add(self, rows: EncodedRows) -> None:
        """Take a block in."""
        self.blocks.append(len(rows.payload))
        self.same = self.same and rows.same
        self.finetuned_checks.append(rows.finetuned_check)
        if rows.check is not None:
            self.checks.append(rows.check)
        if rows.guarantee is not None:
            self.guarantee = rows.guarantee
        stats = rows.stats
        if stats is None:
            return
        self._refuse_uncodable(stats)
        self.kept += stats.kept
        self.changed += stats.changed
        self.signal += rows.signal
        self.energy += float(stats.row_energy.sum())
        self.variance += float(stats.row_quantiser_variance.sum())
        self.realised += float(stats.row_realised.sum())
        self.delta_fourth += stats.delta_fourth
        self.step_fourth += stats.step_fourth
        self.delta_energy += stats.delta_energy
        self.base_energy += stats.base_energy
        if self.plan.rescale is not None:
            self._add_proxies(stats)
        self._row += len(stats.row_energy)

    def _add_proxies(self, stats: codec.BlockStats) -> None:
        assert self.plan.rescale is not None
        proxies = certificates.row_proxies(
            stats.row_energy, stats.row_quantiser_proxy, self.plan.drop_prob, self.plan.rescale
        )
        worst = int(proxies.argmax())
        if float(proxies[worst]) > self.proxy_max:
            self.proxy_max = float(proxies[worst])
            self.worst_row = self._row + worst
            self.worst_step_proxy = float(stats.row_quantiser_proxy[worst])
        self.proxy_sum += float(proxies.sum())
        self.proxy_square_sum += float(proxies @ proxies)

    def _refuse_uncodable(self, stats: codec.BlockStats) -> None:
        name, dtype = self.plan.name, self.plan.info.dtype
        keep = f"repair the tensor, or keep it exactly with --exclude {name!r}"
        for side, count, first in (
            ("base", stats.base_nonfinite, stats.first_base_nonfinite),
            ("fine-tuned checkpoint", stats.finetuned_nonfinite, stats.first_finetuned_nonfinite),
        ):
            if count:
                raise InputError(
                    f"tensor {name!r} of the {side} holds NaN or infinity in a block ({count} entries, the first at "
                    f"index {first}); {keep}"
                )
        if stats.uncodable:
            raise InputError(f"tensor {name!r} changes by more than a bfloat16 can hold at {stats.first_uncodable}; {keep}")
        if stats.overflow:
            raise InputError(
                f"tensor {name!r} would overflow {dtype} at index {stats.first_overflow} ({stats.overflow} entries in a "
                f"block): a survivor is divided by {self.plan.rescale:g}; lower --drop, raise --rescale, or use --exclude {name!r}"
            )

    def facts(self, calibrated: bool, full: bool) -> certificates.Facts:
        """The sums as the certificate's facts; with unit moments the signal is the energy."""
        signal = self.energy if not calibrated else self.signal if full else None
        return certificates.Facts(
            signal,
            self.energy,
            self.variance,
            self.realised,
            self.proxy_max,
            self.proxy_sum,
            self.proxy_square_sum,
            self.delta_fourth,
            self.step_fourth,
        )


@dataclass(slots=True)
class _Sink:
    """Where finished tensors go: a journalled file, or nowhere on a dry run."""

    journal: Journal | None
    done: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, target: Path, identity: Mapping[str, Any], dry_run: bool) -> _Sink:
        """Resume what a run of the same identity left behind."""
        if dry_run:
            return cls(None)
        journal = Journal.open(target, identity)
        return cls(journal, dict(journal.done))

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.journal is not None:
            self.journal.close()

    @property
    def end(self) -> int:
        """Bytes of payload so far."""
        return self.journal.data.end if self.journal is not None else 0

    def append(self, payload: bytes) -> None:
        """Add to the payload."""
        if self.journal is not None:
            self.journal.data.append(payload)

    def take_back(self, end: int) -> None:
        """Forget the payload from `end` on."""
        if self.journal is not None:
            self.journal.data.truncate(end)

    def record(self, name: str, entry: dict[str, Any]) -> None:
        """Journal a finished tensor."""
        self.done[name] = entry
        if self.journal is not None:
            self.journal.record(name, entry)


def _pack(
    job: _Job,
    sink: _Sink,
    target: Path,
    tails: str,
    certificate: bool | str | os.PathLike[str],
    workers: int | None,
    engine: str,
    progress: Progress,
) -> PackReport:
    if sink.journal is not None:
        require_space(target, 2 * _largest_size(job) - sink.end)
    plans = _with_optimal_rescales(job, workers, engine, progress)
    certified = certificate is not False
    todo = [plan for plan in plans if plan.name not in sink.done]
    total = sum(plan.info.nbytes for plan in plans)
    position = total - sum(plan.info.nbytes for plan in todo)
    results = ordered(run, _tasks(job, todo, certified), workers=workers, engine=engine)
    aliases = {tuple(e["alias"]): name for name, e in reversed(sink.done.items()) if e["alias"]}
    for plan in todo:
        progress(position, total, plan.name)
        entry = _collect(job, plan, results, sink, certified, tails)
        original = aliases.setdefault(tuple(entry["alias"]), plan.name) if entry["alias"] else plan.name
        if original != plan.name:
            sink.take_back(entry.pop("begin"))
            entry = _alias_of(entry, original)
        entry.pop("begin", None)
        sink.record(plan.name, entry)
        position += plan.info.nbytes
    progress(total, total, "writing the delta")
    return _finish(job, plans, sink, target, certificate)


def _largest_size(job: _Job) -> int:
    """An upper bound on the delta's size, from the plans alone."""
    size = 1 << 16
    for plan in job.plans:
        if plan.treatment not in LOSSY:
            size += plan.info.nbytes + 64
            continue
        kept = plan.info.count * plan.threshold / (1 << 32)
        per_entry = kept * plan.bits / 8 + (2 * plan.info.count / plan.span if plan.bits < 16 else 0)
        size += int(1.05 * per_entry + (plan.info.count / 8 if plan.treatment == "masked" else 0)) + 4096
    return size + sum(job.finetuned.carried.values())


def _with_optimal_rescales(
    job: _Job, workers: int | None, engine: str, progress: Progress
) -> tuple[TensorPlan, ...]:
    """Fill in q* = (1-p) + (pB + V)/A, which a first pass over the tensors measures (claim ``dare.optimal_rescale``)."""
    unknown = [plan for plan in job.plans if plan.rescale is None]
    if not unknown:
        return job.plans
    measured = [dataclasses.replace(plan, treatment="dropped", threshold=0) for plan in unknown]
    results = ordered(run, _tasks(job, measured, False), workers=workers, engine=engine)
    known: dict[str, TensorPlan] = {}
    for number, (plan, measuring) in enumerate(zip(unknown, measured, strict=True)):
        progress(number, len(unknown), f"measuring {plan.name}")
        sums = _Sums(measuring)
        for rows in _blocks(job, measuring, results):
            sums.add(rows)
        facts = sums.facts(job.calibrated(plan), job.moment(plan) is not None)
        best = certificates.expected(facts, plan.drop_prob, 1.0).optimal_rescale
        known[plan.name] = dataclasses.replace(plan, rescale=float(best) if best else 1.0)
    return tuple(known.get(plan.name, plan) for plan in job.plans)


def _tasks(job: _Job, plans: Iterable[TensorPlan], certified: bool) -> Iterator[EncodeTask | DigestTask]:
    for plan in plans:
        if certified:
            yield DigestTask(job.finetuned, plan.name)
            if plan.name in job.base.tensors:
                yield DigestTask(job.base, plan.name)
        yield from encode_tasks(_whole(job, plan))


def _whole(job: _Job, plan: TensorPlan) -> EncodeTask:
    return EncodeTask(
        job.base,
        job.finetuned,
        plan,
        key_for(job.settings.seed, plan.name),
        "raw" if job.settings.coding == "raw" else "entropy",
        0,
        plan.info.rows,
        job.weight(plan),
        job.moment(plan),
    )


def _blocks(job: _Job, plan: TensorPlan, results: Iterator[Any]) -> Iterator[EncodedRows]:
    for _ in encode_tasks(_whole(job, plan)):
        yield from next(results)


def _collect(
    job: _Job, plan: TensorPlan, results: Iterator[Any], sink: _Sink, certified: bool, tails: str
) -> dict[str, Any]:
    """Take in one tensor's results: its payload into the sink, its plan and certificate records returned."""
    digests = {}
    if certified:
        digests["finetuned"] = next(results)
        if plan.name in job.base.tensors:
            digests["base"] = next(results)
    sums, begin = _Sums(plan), sink.end
    for rows in _blocks(job, plan, results):
        sink.append(rows.payload)
        sums.add(rows)
    treatment = "unchanged" if sums.same and plan.base is not None else plan.treatment
    if treatment == "unchanged":
        sink.take_back(begin)
        sums.blocks.clear()
    more = _largest_output(job, plan, sums, tails) if certified and treatment == "dropped" else []
    facts = sums.facts(job.calibrated(plan), job.moment(plan) is not None)
    record = certificates.tensor_record(
        plan,
        treatment,
        digests,
        kept=sums.kept,
        facts=facts,
        calibrated=job.calibrated(plan),
        gamma=job.settings.gamma,
        more_tails=more,
        guarantee=sums.guarantee,
    )
    lossy = treatment in LOSSY
    return {
        "begin": begin,
        "plan": _plan_record(plan, treatment, sums),
        "certificate": record if certified else None,
        "energies": [sums.delta_energy, sums.base_energy] if lossy else [0.0, 0.0],
        "changed": [sums.changed, plan.info.count] if lossy else [0, 0],
        "alias": _alias_key(plan, sums),
    }


def _plan_record(plan: TensorPlan, treatment: str, sums: _Sums) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": plan.name,
        "dtype": plan.info.dtype,
        "shape": list(plan.info.shape),
        "treatment": treatment,
    }
    if plan.base is not None:
        record["check"] = delta.quick_digest(sums.checks)
        if plan.base.dtype != plan.info.dtype:
            record["base_dtype"] = plan.base.dtype
        if plan.base_rows != plan.info.rows:
            record["base_rows"] = plan.base_rows
    if treatment in LOSSY:
        assert plan.rescale is not None
        record |= {
            "threshold": plan.threshold,
            "rescale": float(plan.rescale).hex(),
            "bits": plan.bits,
            "span": plan.span,
        }
    if sums.blocks:
        record["blocks"] = sums.blocks
    return record


def _alias_key(plan: TensorPlan, sums: _Sums) -> list[str]:
    """What two tied tensors have in common; empty for tensors that cannot be tied."""
    if plan.base is None or plan.base.dtype != plan.info.dtype or len(plan.info.shape) < 2:
        return []
    content = (delta.quick_digest(side) for side in (sums.finetuned_checks, sums.checks))
    return [plan.info.dtype, str(plan.info.shape), *content]


def _alias_of(entry: dict[str, Any], original: str) -> dict[str, Any]:
    plan = {k: entry["plan"][k] for k in ("name", "dtype", "shape", "check") if k in entry["plan"]}
    record = entry["certificate"]
    if record is not None:
        record = {k: record[k] for k in ("name", "dtype", "shape", "finetuned", "base") if k in record}
        record["treatment"] = "alias"
    tied = {"plan": plan | {"treatment": "alias", "of": original}, "certificate": record}
    return entry | tied | {"energies": [0.0, 0.0], "changed": [0, 0]}


def _largest_output(job: _Job, plan: TensorPlan, sums: _Sums, tails: str) -> list[dict[str, Any]]:
    """A sharper bound for the output with the largest proxy, from that row's own coefficients."""
    if tails == "ks" or not sums.proxy_max or not 0 < plan.drop_prob < 1 or plan.base is None:
        return []
    assert plan.rescale is not None
    row = sums.worst_row
    old, _ = read_base_rows(job.base, plan.base, plan.info, row, row + 1)
    new = job.finetuned.read_rows(plan.name, row, row + 1)
    coefficients = difference(old, new, plan.info.dtype)[0].astype(np.float64)
    weight = job.weight(plan)
    if weight is not None:
        coefficients *= np.sqrt(weight)
    method = "lattice" if tails == "lattice" else "chernoff-split"
    bound = tail_threshold(
        coefficients,
        float(plan.drop_prob),
        float(job.settings.gamma),
        method,
        rescale=plan.rescale,
        noise_proxy=sums.worst_step_proxy / plan.rescale**2,
    )
    name = "lattice" if tails == "lattice" else "chernoff"
    return [{"what": "largest-output", "row": row, "method": name, "threshold": (bound.threshold * (1 + 2.0**-40)).hex()}]


def _finish(
    job: _Job,
    plans: Sequence[TensorPlan],
    sink: _Sink,
    target: Path,
    certificate: bool | str | os.PathLike[str],
) -> PackReport:
    entries = [sink.done[plan.name] for plan in plans]
    content, folder_plan = _output_layout(job)
    tensors = [e["plan"] for e in entries] + [_absent(info) for info in job.absent]
    plan = {"seed": str(job.settings.seed), "tensors": tensors, **folder_plan}
    payload = [(e["plan"]["name"], sum(e["plan"].get("blocks", []))) for e in entries]
    payload_id = _digest(sink.journal.data) if sink.journal is not None else "0" * 64
    sealed = None
    if certificate is not False:
        records = [e["certificate"] for e in entries] + [_absent(info) for info in job.absent]
        sealed = certificates.pack_certificate(
            records,
            _subjects(job, records, payload_id, sum(size for _, size in payload)),
            seed=job.settings.seed,
            gamma=job.settings.gamma,
            moments=job.moments_name,
        )
    head = [(delta.PLAN, delta.encode_plan(plan))]
    if sealed is not None:
        head.append((delta.CERTIFICATE, delta.deflate(sealed.to_bytes())))
    head += content
    checks = {t["name"]: t["check"] for t in tensors if "check" in t}
    header = build_header(
        [(name, "U8", (len(data),)) for name, data in head] + [(name, "U8", (size,)) for name, size in payload if size],
        delta.metadata(payload_id, delta.quick_fingerprint(checks)),
    )
    size = 8 + len(header) + sum(len(data) for _, data in head) + sum(size for _, size in payload)
    if sink.journal is not None:
        require_space(target, size)
        with CheckpointWriter(target, [FileLayout(target.name, header)]) as writer:
            for name, data in head:
                writer.append(name, data)
            _copy(sink.journal.data, payload, writer)
        if sealed is not None and certificate is not True:
            sealed.save(Path(certificate))
        sink.journal.discard()
    changed, whole = (sum(e["energies"][side] for e in entries) for side in (0, 1))
    return PackReport(
        target,
        sum(plan.info.nbytes for plan in plans) + sum(job.finetuned.carried.values()),
        size,
        sum(plan.info.count for plan in plans),
        sealed,
        math.sqrt(changed / whole) if whole else 0.0,
        tuple(_warnings(job, entries)),
        sink.journal is None,
    )


def _absent(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "dtype": info.dtype, "shape": list(info.shape), "treatment": "absent"}


def _digest(data: PartialData) -> str:
    digest = hashlib.sha256()
    for start in range(0, data.end, _COPY_BYTES):
        digest.update(data.read(start, min(_COPY_BYTES, data.end - start)))
    return digest.hexdigest()


def _copy(data: PartialData, payload: Sequence[tuple[str, int]], writer: CheckpointWriter) -> None:
    position = 0
    for name, size in payload:
        for start in range(position, position + size, _COPY_BYTES):
            writer.append(name, data.read(start, min(_COPY_BYTES, position + size - start)))
        position += size


def _output_layout(job: _Job) -> tuple[list[tuple[str, bytes]], dict[str, Any]]:
    """Headers, index and carried files of the output, as tensors of the delta and as lines of its plan."""
    source = job.finetuned
    content = [(f"assay.header.{n}", delta.deflate(shard.header)) for n, shard in enumerate(source.shards)]
    plan: dict[str, Any] = {
        "files": [{"name": shard.file, "bytes": len(shard.header)} for shard in source.shards],
        "folder": source.is_folder,
        "index": None,
        "carried": [],
    }
    if source.index is not None:
        name, data = source.index
        plan["index"] = {"name": name, "bytes": len(data)}
        content.append((delta.INDEX, delta.deflate(data)))
    for number, name in enumerate(source.carried):
        data = source.read_carried(name)
        from_base = name in job.base.carried and job.base.read_carried(name) == data
        line = {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        plan["carried"].append(line | {"from": "base" if from_base else "delta"})
        if not from_base:
            content.append((f"assay.carried.{number}", delta.deflate(data)))
    return content, plan


def _subjects(job: _Job, records: Sequence[Mapping[str, Any]], payload_id: str, payload: int) -> list[dict[str, Any]]:
    subjects = []
    for side, source in (("base", job.base), ("finetuned", job.finetuned)):
        known = {r["name"]: r[side] for r in records if side in r}
        tensors = {name: source.tensors[name] for name in known}
        size = sum(info.nbytes for info in tensors.values())
        subjects.append({"name": side, "sha256": fingerprint(tensors, known), "bytes": size})
    return [*subjects, {"name": "payload", "sha256": payload_id, "bytes": payload}]


def _warnings(job: _Job, entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    changed, count = (sum(e["changed"][i] for e in entries) for i in (0, 1))
    if count and changed < SPARSE * count and not job.settings.lossless:
        yield (
            f"only {changed / count:.0%} of the entries changed: the delta is sparse already, and dropping it again "
            f"drops zeros and changes alike"
        )
    tied = [e["plan"]["name"] for e in entries if e["plan"]["treatment"] == "alias"]
    if job.finetuned.tied and not tied:
        heads = [p.name for p in job.plans if p.name.endswith(("lm_head.weight", "embed_tokens.weight"))]
        if len(heads) > 1:
            yield f"config.json ties the output layer to the embedding, but {' and '.join(heads)} differ; both are kept"
    uncalibrated = [p.name for p in job.plans if job.moments is not None and p.treatment in LOSSY and not job.calibrated(p)]
    if uncalibrated:
        yield f"{len(uncalibrated)} tensors have no measured inputs and are reported for unit ones, {uncalibrated[0]!r} among them"
