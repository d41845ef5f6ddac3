"""Pack a fine-tuned checkpoint into a delta, and certify what was lost.

Both checkpoints are read once, block by block; memory holds a few blocks whatever their size.  The payload
grows in a journalled file beside the output, so an interrupted run resumes; the delta appears whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from assay.checkpoints import certificate as certificates
from assay.checkpoints import delta
from assay.checkpoints.collect import TensorSums, alias_key, alias_of, plan_record
from assay.checkpoints.encode import (
    DigestTask,
    EncodedRows,
    EncodeTask,
    RowDigest,
    difference,
    encode_tasks,
    read_base_rows,
    run,
)
from assay.checkpoints.engine import Progress, ordered, silent
from assay.checkpoints.header import TensorInfo, build_header
from assay.checkpoints.io import fingerprint, tensor_sha256
from assay.checkpoints.job import (
    Job,
    delta_ratio,
    identity_of,
    open_job,
    output_layout,
    refuse_retrained,
    same_bytes,
)
from assay.checkpoints.journal import Journal, PartialData
from assay.checkpoints.keep import KeepPlan
from assay.checkpoints.output import CheckpointWriter, FileLayout, check_output, disk_errors, require_space
from assay.checkpoints.plan import LOSSY, Settings, TensorPlan
from assay.core.certificate import Certificate
from assay.core.errors import InputError
from assay.missions.dare.algorithm.tails import ThresholdMethod, tail_threshold
from assay.numerics.philox import key_for

SPARSE = 0.5
"""Share of changed entries below which a delta is called sparse already: dropping it again decays it."""

_COPY_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class PackReport:
    """What a pack did.

    Attributes:
        out: the delta; on a dry run, where it would be.
        bytes_in: bytes of the fine-tuned checkpoint's tensors and carried files.
        bytes_out: bytes of the delta.
        parameters: elements of the fine-tuned checkpoint.
        certificate: what was lost; None when it was declined.
        delta_ratio: norm of the delta over norm of the base, sampled: from a few rows of each tensor that loses
            something, spread over it.
        warnings: sentences that the user should read.
        dry_run: nothing was written.
        keep: with energies, the keep thresholds and what they are predicted to do to the outputs, first order.
    """

    out: Path
    bytes_in: int
    bytes_out: int
    parameters: int
    certificate: Certificate | None
    delta_ratio: float
    warnings: tuple[str, ...] = ()
    dry_run: bool = False
    keep: KeepPlan | None = None

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
    energies: str | os.PathLike[str] | None = None,
    keep_map: str = "uniform",
    max_drift: float | None = None,
    max_size: int | None = None,
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
        energies: a file of network-level energies (`assay.checkpoints.energies`): the report then predicts the drift of
            the outputs, first order, and the next three may be used.
        keep_map, max_drift, max_size: see `Settings`; a drift or a size takes the place of `drop`.
        tails: bound computed for each tensor's largest output: ``ks``, ``chernoff`` or ``lattice``.
        certificate: True puts the certificate into the delta; a path also writes it there; False issues none,
            and saves hashing.
        workers, engine: where the work runs; the output does not depend on them.
        overwrite: allow replacing a file that assay did not write.
        force: pack a pair that is no fine-tune.
        dry_run: do everything but write.
        progress: called with bytes done, bytes in total, and what is being done.

    Raises:
        BudgetError: no plan reaches the drift or the size; the message says the least that one reaches.
        InputError: any of the inputs cannot be used; nothing is written and nothing is lost.
        MissingExtraError: calibration without the extra ``torch``, engine ``ray`` without the extra ``ray``.
    """
    settings = Settings(
        drop, rescale, mask, bits, coding, lossless, seed, tuple(include), tuple(exclude), gamma,
        keep_map, max_drift, max_size,
    )  # fmt: skip
    if tails not in ("ks", "chernoff", "lattice"):
        raise InputError(f"the tail bound {tails!r} is none of ks, chernoff, lattice")
    job = open_job(finetuned, base, settings, calibration, moments, energies)
    try:
        inputs = [finetuned, base, *(path for path in (calibration, moments, energies) if path is not None)]
        inputs += [shard.path for shard in job.shards]
        target = check_output(out, inputs=inputs, overwrite=overwrite)
        if not isinstance(certificate, bool):
            check_output(certificate, inputs=inputs, overwrite=overwrite)
            if os.path.realpath(certificate) == os.path.realpath(target):
                raise InputError(f"the certificate and the delta cannot both be {target}; name another file")
        ratio = delta_ratio(job)
        if not force:
            refuse_retrained(job, ratio)
        with _Sink.open(target, identity_of(job, tails, bool(certificate)), dry_run) as sink:
            return _pack(job, sink, target, ratio, tails, certificate, workers, engine, progress or silent)
    finally:
        job.close()


@dataclass(slots=True)
class _Sink:
    """Where finished tensors go: a journalled file, or nowhere on a dry run."""

    journal: Journal | None
    done: dict[str, Any] = field(default_factory=dict)
    finished: Any = field(default_factory=hashlib.sha256)
    growing: Any = field(default_factory=hashlib.sha256)

    @classmethod
    def open(cls, target: Path, identity: Mapping[str, Any], dry_run: bool) -> _Sink:
        """Resume what a run of the same identity left behind."""
        if dry_run:
            return cls(None)
        journal = Journal.open(target, identity)
        return cls(journal, dict(journal.done))

    def __enter__(self) -> _Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.journal is not None:
            self.journal.__exit__(kind, error, trace)

    @property
    def end(self) -> int:
        """Bytes of payload so far."""
        return self.journal.data.end if self.journal is not None else 0

    def append(self, payload: bytes) -> None:
        """Add to the payload of the tensor at hand."""
        if self.journal is not None:
            self.journal.data.append(payload)
        else:
            self.growing.update(payload)

    def take_back(self, end: int) -> None:
        """Forget the payload of the tensor at hand, which began at `end`."""
        if self.journal is not None:
            self.journal.data.truncate(end)
        else:
            self.growing = self.finished.copy()

    def record(self, name: str, entry: dict[str, Any]) -> None:
        """Journal a finished tensor."""
        self.done[name] = entry
        if self.journal is not None:
            self.journal.record(name, entry)
        else:
            self.finished = self.growing.copy()

    def payload_id(self) -> str:
        """sha256 of the whole payload: on a dry run digested as it came, else read back from the disk."""
        return _digest(self.journal.data) if self.journal is not None else str(self.finished.hexdigest())


def _pack(
    job: Job,
    sink: _Sink,
    target: Path,
    ratio: float,
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
    digests = {plan.name: _digests(job, plan, engine) for plan in todo} if certified else {}
    results = ordered(run, _tasks(job, todo, digests), workers=workers, engine=engine)
    aliases = {tuple(e["alias"]): name for name, e in reversed(sink.done.items()) if e["alias"]}
    for plan in todo:
        progress(position, total, plan.name)
        entry = _collect(job, plan, results, sink, digests.get(plan.name), tails)
        original = aliases.setdefault(tuple(entry["alias"]), plan.name) if entry["alias"] else plan.of
        if original not in (None, plan.name) and (plan.of or same_bytes(job, plan.name, original)):
            sink.take_back(entry.pop("begin"))
            entry = alias_of(entry, sink.done[original]["plan"])
        entry.pop("begin", None)
        sink.record(plan.name, entry)
        position += plan.info.nbytes
    progress(total, total, "writing the delta")
    return _finish(job, plans, sink, target, ratio, certificate)


def _largest_size(job: Job) -> int:
    """An upper bound on the delta's size, from the plans alone."""
    size = 1 << 16
    for plan in job.plans:
        if plan.treatment not in LOSSY:
            size += 64 + (plan.info.nbytes if plan.of is None else 0)
            continue
        kept = plan.info.count * plan.threshold / (1 << 32)
        per_entry = kept * (plan.bits or 16) / 8 + (2 * plan.info.count / plan.span if plan.bits < 16 else 0)
        added = (plan.info.rows - plan.base_rows) * plan.info.columns * plan.info.itemsize
        size += (
            int(1.05 * per_entry + (plan.info.count / 8 if plan.treatment == "masked" else 0)) + added + 4096
        )
    return size + sum(job.finetuned.carried.values())


def _with_optimal_rescales(
    job: Job, workers: int | None, engine: str, progress: Progress
) -> tuple[TensorPlan, ...]:
    """Fill in q* = (1-p) + (pB + V)/A, which a first pass over the tensors measures (claim ``dare.optimal_rescale``)."""
    unknown = [plan for plan in job.plans if plan.rescale is None]
    if not unknown:
        return job.plans
    measured = [dataclasses.replace(plan, treatment="dropped", threshold=0) for plan in unknown]
    results = ordered(run, _tasks(job, measured, {}), workers=workers, engine=engine)
    known: dict[str, TensorPlan] = {}
    for number, (plan, measuring) in enumerate(zip(unknown, measured, strict=True)):
        progress(number, len(unknown), f"measuring {plan.name}")
        sums = TensorSums(measuring)
        for rows in _blocks(job, measuring, results):
            sums.add(rows)
        facts = sums.facts(job.calibrated(plan), job.moment(plan) is not None)
        assert isinstance(facts, certificates.Facts)
        best = certificates.expected(facts, plan.drop_prob, 1.0).optimal_rescale
        known[plan.name] = dataclasses.replace(plan, rescale=float(best) if best else 1.0)
    return tuple(known.get(plan.name, plan) for plan in job.plans)


Digests = Mapping[str, RowDigest | None]
"""By side; None where a task of its own computes the digest."""


def _tasks(
    job: Job, plans: Iterable[TensorPlan], digests: Mapping[str, Digests]
) -> Iterator[EncodeTask | DigestTask]:
    """The tasks of `plans`, tensor by tensor: first the digests that need one, then the blocks."""
    for plan in plans:
        sides = digests.get(plan.name, {})
        yield from (DigestTask(getattr(job, side), plan.name) for side in sides if sides[side] is None)
        seen = {side: digest for side, digest in sides.items() if digest is not None}
        yield from encode_tasks(dataclasses.replace(_whole(job, plan), digests=seen))


def _digests(job: Job, plan: TensorPlan, engine: str) -> Digests:
    """What digests a tensor: a side whose rows this process's threads all read is digested on the way."""
    here = engine == "local" and plan.of is None
    sides: dict[str, RowDigest | None] = {"finetuned": RowDigest() if here else None}
    if plan.name in job.base.tensors:
        whole = here and plan.base is not None and plan.base_rows == plan.base.rows
        sides["base"] = RowDigest() if whole else None
    return sides


def _whole(job: Job, plan: TensorPlan) -> EncodeTask:
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


def _blocks(job: Job, plan: TensorPlan, results: Iterator[Any]) -> Iterator[EncodedRows]:
    for _ in encode_tasks(_whole(job, plan)):
        yield from next(results)


def _collect(
    job: Job, plan: TensorPlan, results: Iterator[Any], sink: _Sink, digests: Digests | None, tails: str
) -> dict[str, Any]:
    """Take in one tensor's results: its payload into the sink, its plan and certificate records returned.

    There is a certificate record if there are `digests`.
    """
    known = {side: next(results) for side, digest in (digests or {}).items() if digest is None}
    sums, begin = TensorSums(plan), sink.end
    for rows in _blocks(job, plan, results):
        sink.append(rows.payload)
        sums.add(rows)
    treatment = "unchanged" if sums.same and plan.base is not None else plan.treatment
    if treatment == "unchanged":
        sink.take_back(begin)
        sums.blocks.clear()
    certified = digests is not None
    known = {
        side: known[side] if digest is None else digest.hexdigest()
        for side, digest in (digests or {}).items()
    }
    more = _largest_output(job, plan, sums, tails) if certified and treatment == "dropped" else []
    facts = sums.facts(job.calibrated(plan), job.moment(plan) is not None)
    record = certificates.tensor_record(
        plan,
        treatment,
        known,
        kept=sums.kept,
        facts=facts,
        calibrated=job.calibrated(plan),
        gamma=Fraction(job.settings.gamma),
        more_tails=more,
        guarantee=sums.guarantee,
    )
    lossy = treatment in LOSSY
    return {
        "begin": begin,
        "plan": plan_record(plan, treatment, sums),
        "certificate": record if certified else None,
        "changed": [sums.changed, plan.info.count] if lossy else [0, 0],
        "alias": alias_key(plan, sums),
    }


def _largest_output(job: Job, plan: TensorPlan, sums: TensorSums, tails: str) -> list[dict[str, Any]]:
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
    method: ThresholdMethod = "lattice" if tails == "lattice" else "chernoff-split"
    bound = tail_threshold(
        coefficients,
        float(plan.drop_prob),
        float(job.settings.gamma),
        method,
        rescale=plan.rescale,
        noise=sums.worst_step_proxy / plan.rescale**2,
    )
    name = "lattice" if tails == "lattice" else "chernoff"
    return [
        {
            "what": "largest-output",
            "row": row,
            "method": name,
            "threshold": (bound.threshold * (1 + 2.0**-40)).hex(),
        }
    ]


def _finish(
    job: Job,
    plans: Sequence[TensorPlan],
    sink: _Sink,
    target: Path,
    ratio: float,
    certificate: bool | str | os.PathLike[str],
) -> PackReport:
    entries = [sink.done[plan.name] for plan in plans]
    content, folder_plan = output_layout(job)
    tensors = [e["plan"] for e in entries] + [_absent(info) for info in job.absent]
    plan = {"seed": str(job.settings.seed), "tensors": tensors, **folder_plan}
    payload = [(e["plan"]["name"], sum(e["plan"].get("blocks", []))) for e in entries]
    payload_id = sink.payload_id()
    sealed = None
    if certificate is not False:
        digests = [{"base": tensor_sha256(info, job.base)} for info in job.absent]
        absent = [_absent(info) | digest for info, digest in zip(job.absent, digests, strict=True)]
        records = [e["certificate"] for e in entries] + absent
        sealed = certificates.pack_certificate(
            records,
            _subjects(job, records, payload_id, sum(size for _, size in payload)),
            seed=job.settings.seed,
            gamma=Fraction(job.settings.gamma),
            moments=job.moments_name,
        )
    head = [(delta.PLAN, delta.encode_plan(plan))]
    if sealed is not None:
        head.append((delta.CERTIFICATE, delta.deflate(sealed.to_bytes())))
    head += content
    checks = {t["name"]: t["check"] for t in tensors if "check" in t}
    header = build_header(
        [(name, "U8", (len(data),)) for name, data in head]
        + [(name, "U8", (size,)) for name, size in payload if size],
        delta.metadata(payload_id, head[0][1], delta.quick_fingerprint(checks)),
    )
    size = 8 + len(header) + sum(len(data) for _, data in head) + sum(size for _, size in payload)
    if sink.journal is not None:
        require_space(target, size)
        with CheckpointWriter(target, [FileLayout(target.name, header)]) as writer:
            for name, data in head:
                writer.append(name, data)
            _copy(sink.journal.data, payload, writer)
        if sealed is not None and not isinstance(certificate, bool):
            with disk_errors(Path(certificate)):
                sealed.save(Path(certificate))
        sink.journal.discard()
    return PackReport(
        target,
        sum(plan.info.nbytes for plan in plans) + sum(job.finetuned.carried.values()),
        size,
        sum(plan.info.count for plan in plans),
        sealed,
        ratio,
        tuple(_warnings(job, entries, size)),
        sink.journal is None,
        job.keep,
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


def _subjects(
    job: Job, records: Sequence[Mapping[str, Any]], payload_id: str, payload: int
) -> list[dict[str, Any]]:
    subjects = []
    for side, source in (("base", job.base), ("finetuned", job.finetuned)):
        known = {r["name"]: r[side] for r in records if side in r}
        tensors = {name: source.tensors[name] for name in known}
        size = sum(info.nbytes for info in tensors.values())
        subjects.append({"name": side, "sha256": fingerprint(tensors, known), "bytes": size})
    return [*subjects, {"name": "payload", "sha256": payload_id, "bytes": payload}]


def _warnings(job: Job, entries: Sequence[Mapping[str, Any]], size: int) -> Iterator[str]:
    yield from job.notes
    if job.settings.max_size is not None and size > job.settings.max_size:
        yield f"the delta has {size} bytes, more than the {job.settings.max_size} asked for: sizes are estimated; ask for less"
    if job.without_energies:
        yield (
            f"{len(job.without_energies)} tensors have no energies and are kept exactly, {job.without_energies[0]!r} among "
            f"them: the model that was calibrated does not use them, or the base has another shape"
        )
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
    uncalibrated = [
        p.name
        for p in job.plans
        if job.moments is not None and p.treatment in LOSSY and not job.calibrated(p)
    ]
    if uncalibrated:
        yield f"{len(uncalibrated)} tensors have no measured inputs and are reported for unit ones, {uncalibrated[0]!r} among them"
