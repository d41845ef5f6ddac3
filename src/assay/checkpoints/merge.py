"""Merge several deltas of one base: a weighted sum, or TIES (trim, elect a sign, average what agrees).

A delta is a packed one, or a fine-tuned checkpoint that is dropped while it is read (`assay.checkpoints.dropped`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from assay.checkpoints import codec
from assay.checkpoints.apply import check_base_digest, check_base_layout, scheme_of, write_carried_base
from assay.checkpoints.delta import Delta, block_rows, is_delta
from assay.checkpoints.dropped import Dropped, Sparse, whole_difference
from assay.checkpoints.encode import read_base_rows
from assay.checkpoints.engine import Progress, ordered, silent
from assay.checkpoints.header import DTYPES, TensorInfo, rounded
from assay.checkpoints.io import Source, open_checkpoint, refuse_no_model, refuse_quantised
from assay.checkpoints.journal import Journal
from assay.checkpoints.output import CheckpointWriter, FileLayout, check_output, require_space
from assay.core.errors import InputError, RejectedError, UnknownIdError

METHODS = ("linear", "ties")

Patch = Delta | Dropped


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did.

    Attributes:
        out, bytes_out, tensors: the model written.
        expected: variance of the merged output error, sum of weight^2 times each delta's certified variance,
            and its bias bound, before the sum is rounded to the model's type; None for TIES, and where a delta
            carries no certificate, has chosen masks, or was certified for other inputs than the rest.
        warnings: sentences that the user should read.
        dry_run: nothing was written.
    """

    out: Path
    bytes_out: int
    tensors: int
    expected: Mapping[str, float] | None = None
    warnings: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Rows ``start..stop`` of one tensor of the base, block `block` of each delta's payload."""

    base: Source
    info: TensorInfo
    deltas: tuple[Patch, ...]
    weights: tuple[float, ...]
    method: str
    density: float
    start: int
    stop: int
    block: int


@dataclass(frozen=True, slots=True)
class MergedRows:
    """Bits of the merged rows, the quick digest of the base's, and how many entries overflowed."""

    bits: np.ndarray
    check: bytes
    overflow: int


def merge(
    base: str | os.PathLike[str],
    deltas: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    weights: Sequence[float] | None = None,
    method: str = "linear",
    density: float = 1.0,
    drop: float | Fraction | None = None,
    seed: int = 0,
    workers: int | None = None,
    engine: str = "local",
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> MergeReport:
    """Write ``base + sum of weight times delta`` (``linear``), or its TIES counterpart.

    The output has the base's layout: its tensors, its types, its files.  Tensors that a delta added are left
    out, and another number of rows is refused, since the deltas may disagree about it.  Deltas are summed in the
    order of their digests, so the output does not depend on the order of the arguments.

    Args:
        base: the checkpoint that all deltas were made from.
        deltas: files written by `assay.checkpoints.pack`; with `drop`, fine-tuned checkpoints too.
        out: a file or a folder, as the base is.
        weights: one number per delta; default 1/len(deltas).
        method: ``linear``; or ``ties`` (Yadav et al., "TIES-Merging", 2023): per block of rows, keep the share
            `density` of each delta that is largest in magnitude, take the sign with the larger total at each
            entry, and average the entries that have it.
        density: of ``ties``, in (0, 1]; 1 trims nothing.
        drop, seed: a fine-tuned checkpoint is dropped with this probability while it is read, and its survivors are
            divided by 1 - `drop` (`assay.checkpoints.dropped`).
        workers, engine, overwrite, dry_run, progress: as in `assay.checkpoints.apply`.

    Raises:
        InputError: fewer deltas than one, another base, shapes that disagree, weights that are no numbers.
        RejectedError: a delta is damaged.
    """
    if method not in METHODS:
        raise UnknownIdError("merge method", method, METHODS)
    if not deltas:
        raise InputError("there is nothing to merge; name at least one delta after the base")
    given = tuple(1 / len(deltas) for _ in deltas) if weights is None else tuple(float(w) for w in weights)
    if len(given) != len(deltas) or not all(math.isfinite(w) for w in given):
        raise InputError(f"{len(deltas)} deltas need as many finite weights, not {list(given)}")
    if not 0 < density <= 1:
        raise InputError(f"the density {density} is outside (0, 1]; it is the share of a delta that is kept")
    with open_checkpoint(base) as source:
        opened = [(_open(path, base, drop, seed), w) for path, w in zip(deltas, given, strict=True)]
        opened.sort(key=lambda pair: (*_identity(pair[0]), pair[1]))
        patches, ordered_weights = (tuple(column) for column in zip(*opened, strict=True))
        try:
            return _merge(
                source, patches, ordered_weights, method, density, Path(out),
                workers, engine, overwrite, dry_run, progress or silent,
            )  # fmt: skip
        finally:
            for patch in patches:
                patch.close()


def _open(
    path: str | os.PathLike[str], base: str | os.PathLike[str], drop: float | Fraction | None, seed: int
) -> Patch:
    if is_delta(path):
        return Delta(path)
    if drop is None:
        raise InputError(
            f"{path} is no assay delta; make one with 'assay pack', or, if it is a fine-tuned checkpoint, say with "
            "--drop how much of it to drop"
        )
    return Dropped.open(path, base, drop, seed)


def _identity(patch: Patch) -> tuple[str, str]:
    """What tells patches apart, the same whatever they are called."""
    if isinstance(patch, Delta):
        return patch.id, patch.plan_id
    return patch.id, f"{patch.seed} {patch.threshold}"


def _merge(
    base: Any,
    patches: tuple[Patch, ...],
    weights: tuple[float, ...],
    method: str,
    density: float,
    out: Path,
    workers: int | None,
    engine: str,
    overwrite: bool,
    dry_run: bool,
    progress: Progress,
) -> MergeReport:
    refuse_no_model(base)
    refuse_quantised(base)
    packed = [patch for patch in patches if isinstance(patch, Delta)]
    for patch in packed:
        check_base_layout(base, patch)
        _refuse_conflicts(base, patch)
    inputs = [base.path, *(patch.path for patch in patches)]
    target = check_output(out, inputs=inputs, folder=base.is_folder, overwrite=overwrite)
    layouts = [FileLayout(s.file if base.is_folder else target.name, s.header) for s in base.shards]
    writer = CheckpointWriter(target, layouts, folder=base.is_folder, index=base.index, keep=True)
    require_space(target, writer.bytes_out)
    report = MergeReport(
        target,
        writer.bytes_out,
        len(writer.tensors),
        _expected(patches, weights) if method == "linear" else None,
        tuple(_warnings(base, patches)),
        dry_run,
    )
    if dry_run:
        return report
    for patch in packed:
        patch.check_payload()
    identity = {
        "verb": "merge",
        "base": [str(base.path), *sorted({patch.base for patch in packed})],
        "deltas": [_identity(patch) for patch in patches],
        "checkpoints": [patch.stamp for patch in patches if isinstance(patch, Dropped)],
        "settings": [method, float(density).hex(), *(w.hex() for w in weights)],
    }
    with Journal.open(target, identity, sync=writer.sync) as journal, writer, journal.flushed():
        done = [name for name in writer.tensors if name in journal.done and writer.mark_written(name)]
        todo = [name for name in writer.tensors if name not in done]
        total = sum(info.nbytes for info in writer.tensors.values())
        position = total - sum(writer.tensors[name].nbytes for name in todo)
        tasks = (task for name in todo for task in _tasks(base, patches, weights, method, density, name))
        results = ordered(run, tasks, workers=workers, engine=engine)
        for name in todo:
            progress(position, total, name)
            _write_tensor(base, patches, name, results, writer)
            if name not in journal.done:
                journal.record(name, True)
            position += writer.tensors[name].nbytes
        if base.is_folder:
            write_carried_base(base, writer)
        progress(total, total, "done")
    journal.discard()
    return report


def _refuse_conflicts(base: Source, patch: Delta) -> None:
    for name, record in patch.records.items():
        if "base_rows" in record:
            rows, base_rows = record["shape"][0], record["base_rows"]
            drop = "the added ones" if rows > base_rows else "the base's last ones"
            raise InputError(
                f"{patch.path} has {rows} rows in {name!r} and the base {base_rows}: merging would have to drop {drop}; "
                f"apply that delta by itself"
            )
        if record["treatment"] == "exact" and name in base.tensors and math.prod(record["shape"]) > 1:
            raise InputError(
                f"{patch.path} replaces {name!r} whole, which cannot be averaged; apply that delta by itself"
            )


def _expected(patches: Sequence[Patch], weights: Sequence[float]) -> dict[str, float] | None:
    """Independent masks: variances add with squared weights, biases at most in norm.

    None where that says nothing: a delta without a certificate, a mask that was chosen and so has no variance, or
    errors that were weighed by different inputs.
    """
    variance = bias = 0.0
    moments = set()
    for patch, weight in zip(patches, weights, strict=True):
        if isinstance(patch, Dropped):
            return None
        certificate = patch.certificate
        if certificate is None or any(r["treatment"] == "masked" for r in patch.records.values()):
            return None
        try:
            totals = certificate.document["totals"]
            moments.add(certificate.document["settings"]["moments"])
            variance += weight**2 * float.fromhex(totals["variance"])
            bias += abs(weight) * math.sqrt(float.fromhex(totals["bias_square"]))
        except (KeyError, TypeError, ValueError):
            raise RejectedError(
                f"the certificate in {patch.path} lacks what a pack's must have; 'assay verify {patch.path}' says more"
            ) from None
    return {"variance": variance, "bias_at_most": bias} if len(moments) == 1 else None


def _warnings(base: Source, patches: Sequence[Patch]) -> Iterator[str]:
    seeds = [patch.plan.get("seed") for patch in patches if isinstance(patch, Delta)]
    if len(set(seeds)) < len(seeds):
        yield (
            "two deltas were packed with the same seed, so they keep the same entries and their errors are not "
            "independent; pack each with its own --seed"
        )
    alike = [patch.id for patch in patches if isinstance(patch, Dropped)]
    if len(set(alike)) < len(alike):
        yield (
            "two checkpoints are the same in every row that was sampled, so they share their masks and their errors are "
            "not independent; pack each with its own --seed"
        )
    names = (n for p in patches for n in (p.records if isinstance(p, Delta) else p.plans))
    added = sorted({n for n in names if n not in base.tensors})
    if added:
        yield f"{len(added)} tensors are not in the base and are left out, {added[0]!r} among them"


def _tasks(
    base: Source,
    patches: tuple[Patch, ...],
    weights: tuple[float, ...],
    method: str,
    density: float,
    name: str,
) -> Iterator[MergeTask]:
    info = base.tensors[name]
    for number, (start, stop) in enumerate(block_rows(info.rows, info.columns)):
        yield MergeTask(base, info, patches, weights, method, density, start, stop, number)


def run(task: MergeTask) -> MergedRows:
    """Merge one block, in a worker."""
    info = task.info
    bits, check = read_base_rows(task.base, info, info, task.start, task.stop)
    if not info.is_float:
        return MergedRows(_integers(task, bits), check, 0)
    index, value = _weighted_sum(task, bits) if task.method == "linear" else _sparse(_ties(task, bits))
    value = value.astype(np.float64 if info.dtype == "F64" else np.float32)
    applied, overflow = codec.apply_block(bits, info.dtype, index, value, in_place=True)
    return MergedRows(applied, check, overflow)


def _sparse(values: np.ndarray) -> Sparse:
    index = np.flatnonzero(values)
    return index, values[index]


def _integers(task: MergeTask, bits: np.ndarray) -> np.ndarray:
    """Integers are not averaged: the base's stay, unless every delta says the same."""
    changed = [_exact_rows(task, patch, bits) for patch in task.deltas]
    first = changed[0]
    return first if all(np.array_equal(first, other) for other in changed[1:]) else bits


def _exact_rows(task: MergeTask, patch: Patch, bits: np.ndarray) -> np.ndarray:
    if isinstance(patch, Dropped):
        return patch.integers(task.info, task.start, task.stop, bits)
    if task.info.name not in patch.records:
        return bits
    source = patch.source(task.info.name)
    if source["treatment"] == "exact":
        payload = patch.block(source["name"], task.block)
        return codec.decode_exact(payload, bits.dtype, bits.size).reshape(bits.shape)
    if source["treatment"] != "lossless":
        return bits
    return codec.decode_lossless(patch.block(source["name"], task.block), bits)


def _weighted_sum(task: MergeTask, bits: np.ndarray) -> Sparse:
    """float64 sum in the order of the deltas."""
    index, total = np.empty(0, np.int32), np.empty(0)
    for patch, weight in zip(task.deltas, task.weights, strict=True):
        delta = _decoded(task, patch, bits)
        if delta is not None:
            more, value = delta if isinstance(delta, tuple) else _sparse(delta.reshape(-1))
            index, total = codec.add_sparse(index, total, more, weight * value.astype(np.float64))
    return index, total


def _ties(task: MergeTask, bits: np.ndarray) -> np.ndarray:
    stack = np.zeros((len(task.deltas), bits.size), np.float64)
    for row, patch, weight in zip(stack, task.deltas, task.weights, strict=True):
        delta = _decoded(task, patch, bits)
        if isinstance(delta, tuple):
            index, value = delta
            row[index] = weight * value.astype(np.float64)
        elif delta is not None:
            row[:] = weight * delta.reshape(-1).astype(np.float64)
        _trim(row, task.density)
    elected = np.sign(stack.sum(axis=0))
    agrees = (np.sign(stack) == elected) & (stack != 0)
    counts = np.maximum(agrees.sum(axis=0), 1)
    merged = np.where(agrees, stack, 0).sum(axis=0) * (len(task.deltas) / counts)
    return merged


def _trim(row: np.ndarray, density: float) -> None:
    """Zero all but the largest magnitudes, ties broken by position."""
    kept = round(density * row.size)
    if kept < row.size:
        order = np.argsort(-np.abs(row), kind="stable")
        row[order[kept:]] = 0


def _decoded(task: MergeTask, patch: Patch, bits: np.ndarray) -> np.ndarray | Sparse | None:
    """One delta's block: survivors as positions and values, a dense difference, or None for no change."""
    if isinstance(patch, Dropped):
        return patch.rows(task.info, task.start, task.stop, bits)
    if task.info.name not in patch.records:
        return None
    source = patch.source(task.info.name)
    if source["treatment"] in ("unchanged", "absent"):
        return None
    payload = patch.block(source["name"], task.block)
    # exact is a scalar here: all else that the base has is coded against it
    if source["treatment"] in ("exact", "lossless"):
        rows = bits
        if source["dtype"] != task.info.dtype:
            rows = rounded(bits.view(DTYPES[task.info.dtype]), source["dtype"])
            rows = rows.view(f"<u{rows.itemsize}")
        if source["treatment"] == "lossless":
            new = codec.decode_lossless(payload, rows)
        else:
            new = codec.decode_exact(payload, rows.dtype, rows.size).reshape(rows.shape)
        return whole_difference(rows, new, source["dtype"], task.info.name, patch.path)
    return codec.decode_block(payload, task.start * task.info.columns, bits.size, scheme_of(patch, source))


def _write_tensor(
    base: Source, patches: Sequence[Patch], name: str, results: Iterator[MergedRows], writer: CheckpointWriter
) -> None:
    info, checks, overflow = base.tensors[name], [], 0
    for _ in block_rows(info.rows, info.columns):
        rows = next(results)
        writer.append(name, np.ascontiguousarray(rows.bits))
        checks.append(rows.check)
        overflow += rows.overflow
    for patch in patches:
        if isinstance(patch, Delta) and name in patch.records:
            check_base_digest(base, patch, name, checks)
    if overflow:
        raise InputError(
            f"{overflow} entries of {name!r} overflow {info.dtype} in the merge; use smaller --weights"
        )
