"""Apply a delta to its base: the fine-tuned checkpoint, exactly or as certified."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.checkpoints import codec
from assay.checkpoints.delta import INDEX, Delta, block_rows, quick_digest
from assay.checkpoints.encode import read_base_rows
from assay.checkpoints.engine import Progress, ordered, silent
from assay.checkpoints.factors import Factors
from assay.checkpoints.header import TensorInfo
from assay.checkpoints.io import Source, open_checkpoint, refuse_no_model, refuse_quantised
from assay.checkpoints.journal import Journal
from assay.checkpoints.output import CheckpointWriter, FileLayout, check_output, require_space
from assay.checkpoints.plan import LOSSY
from assay.core.errors import InputError, RejectedError
from assay.numerics.philox import key_for

MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """What an apply did: where the model is, its bytes, its tensors, and what the user should read."""

    out: Path
    bytes_out: int
    tensors: int
    warnings: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ApplyTask:
    """Rows ``start..stop`` of one tensor, block number `block` of its payload."""

    base: Source
    delta: Delta
    record: Mapping[str, Any]
    start: int
    stop: int
    block: int


@dataclass(frozen=True, slots=True)
class AppliedRows:
    """Bits of the output's rows, the quick digest of the base's, and how many entries overflowed."""

    bits: np.ndarray
    check: bytes | None
    overflow: int


def apply(
    base: str | os.PathLike[str],
    delta: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    engine: str = "local",
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ApplyReport:
    """Write the checkpoint that `delta` turns `base` into.

    The output has the files, headers and tensor order of the fine-tuned checkpoint that was packed; with a
    lossless delta its safetensors files are the same bytes.

    Args:
        base: the checkpoint that the delta was made from.
        delta: a file written by `assay.checkpoints.pack`.
        out: a file or a folder, as the fine-tuned checkpoint was.
        workers, engine: where the work runs; the output does not depend on them.
        overwrite: allow replacing what assay did not write.
        dry_run: check everything that can be checked without reading the weights, and write nothing.
        progress: called with bytes done, bytes in total, and what is being done.

    Raises:
        InputError: the base is another checkpoint than the delta's, or a file cannot be used.
        RejectedError: the delta is damaged.
    """
    with open_checkpoint(base) as source:
        patch = Delta(delta)
        try:
            return _apply(source, patch, Path(out), workers, engine, overwrite, dry_run, progress or silent)
        finally:
            patch.close()


def _apply(
    base: Any,
    patch: Delta,
    out: Path,
    workers: int | None,
    engine: str,
    overwrite: bool,
    dry_run: bool,
    progress: Progress,
) -> ApplyReport:
    refuse_no_model(base)
    refuse_quantised(base)
    check_base_layout(base, patch)
    folder = bool(patch.plan.get("folder"))
    target = check_output(out, inputs=[base.path, patch.path], folder=folder, overwrite=overwrite)
    layouts = output_files(patch, target)
    index = _index(patch)
    writer = CheckpointWriter(target, layouts, folder=folder, index=index, keep=True)
    _check_tensors(writer.tensors, patch)
    require_space(target, writer.bytes_out)
    for _ in carried_files(base, patch) if folder else ():
        pass  # a file that is missing or another is found before the work
    if dry_run:
        return ApplyReport(target, writer.bytes_out, len(writer.tensors), dry_run=True)
    patch.check_payload()
    identity = {
        "verb": "apply",
        "delta": [patch.id, patch.plan_id],
        "base": patch.base,
        "at": str(base.path),
    }
    with Journal.open(target, identity, sync=writer.sync) as journal, writer, journal.flushed():
        done = [name for name in writer.tensors if name in journal.done and writer.mark_written(name)]
        todo = [name for name in writer.tensors if name not in done]
        total = sum(info.nbytes for info in writer.tensors.values())
        position = total - sum(writer.tensors[name].nbytes for name in todo)
        results = ordered(run, _tasks(base, patch, todo), workers=workers, engine=engine)
        for name in todo:
            progress(position, total, name)
            _write_tensor(base, patch, name, results, writer)
            if name not in journal.done:
                journal.record(name, True)
            position += writer.tensors[name].nbytes
        if folder:
            for name, data in carried_files(base, patch):
                writer.write_file(name, data)
        progress(total, total, "done")
    journal.discard()
    return ApplyReport(target, writer.bytes_out, len(writer.tensors))


def check_base_layout(base: Source, patch: Delta) -> None:
    """Refuse, from the headers alone, a base that cannot be the delta's.

    Raises:
        InputError: a tensor that the delta reads is missing, or has another shape or type.
    """
    for name, record in patch.records.items():
        if "check" not in record:
            continue
        info = base.tensors.get(name)
        shape = list(record["shape"])
        if "base_rows" in record:
            shape[0] = record["base_rows"]
        expected = (record.get("base_dtype", record["dtype"]), shape)
        if info is None:
            raise InputError(f"{base.path} is not the base of {patch.path}: it has no tensor {name!r}")
        if (info.dtype, list(info.shape)) != expected:
            raise InputError(
                f"{base.path} is not the base of {patch.path}: {name!r} is {info.dtype} {list(info.shape)} there and "
                f"{expected[0]} {expected[1]} in the delta"
            )


def output_files(patch: Delta, target: Path) -> list[FileLayout]:
    """The output's files with their headers, which the delta carries."""
    folder = bool(patch.plan.get("folder"))
    return [
        FileLayout(
            file["name"] if folder else target.name,
            patch.inflated(f"assay.header.{number}", min(file["bytes"], MAX_HEADER_BYTES)),
        )
        for number, file in enumerate(patch.plan["files"])
    ]


def _index(patch: Delta) -> tuple[str, bytes] | None:
    index = patch.plan["index"]
    if index is None:
        return None
    return index["name"], patch.inflated(INDEX, min(index["bytes"], MAX_HEADER_BYTES))


def _check_tensors(tensors: Mapping[str, TensorInfo], patch: Delta) -> None:
    kept = {name: record for name, record in patch.records.items() if record["treatment"] != "absent"}
    if kept.keys() != tensors.keys():
        stranger = sorted(kept.keys() ^ tensors.keys())[0]
        raise InputError(f"{patch.path} is damaged: its plan and its headers disagree about {stranger!r}")
    for name, record in kept.items():
        if (tensors[name].dtype, list(tensors[name].shape)) != (record["dtype"], record["shape"]):
            raise InputError(f"{patch.path} is damaged: its plan and its headers disagree about {name!r}")


def _tasks(base: Source, patch: Delta, names: list[str]) -> Iterator[ApplyTask]:
    for name in names:
        yield from tensor_tasks(base, patch, name)


def tensor_tasks(base: Source, patch: Delta, name: str) -> Iterator[ApplyTask]:
    """The tasks that give one tensor of the output."""
    source = patch.source(name)
    shape = source["shape"]
    rows, columns = (shape[0] if shape else 1), int(np.prod(shape[1:], dtype=np.int64))
    blocks = list(block_rows(rows, columns, source.get("base_rows")))
    if source["treatment"] != "unchanged" and len(blocks) != patch.blocks(source["name"]):
        raise InputError(
            f"{patch.path} is damaged: {name!r} has {patch.blocks(source['name'])} blocks, not {len(blocks)}"
        )
    for number, (start, stop) in enumerate(blocks):
        yield ApplyTask(base, patch, source, start, stop, number)


def run(task: ApplyTask) -> AppliedRows:
    """Compute one block of the output, in a worker."""
    record, treatment = task.record, task.record["treatment"]
    name, shape = record["name"], record["shape"]
    columns = int(np.prod(shape[1:], dtype=np.int64))
    info = TensorInfo(name, record["dtype"], tuple(shape), 0, 0, 0)
    payload = b"" if treatment == "unchanged" else task.delta.block(name, task.block)
    count = (task.stop - task.start) * columns
    if treatment == "exact" or task.start >= record.get("base_rows", task.stop):
        return AppliedRows(codec.decode_exact(payload, info.bits_dtype, count), None, 0)
    bits, check = read_base_rows(task.base, task.base.tensors[name], info, task.start, task.stop)
    if treatment == "unchanged":
        return AppliedRows(bits, check, 0)
    if treatment == "lossless":
        return AppliedRows(codec.decode_lossless(payload, bits), check, 0)
    index, value = codec.decode_block(payload, task.start * columns, count, scheme_of(task.delta, record))
    applied, overflow = codec.apply_block(bits, record["dtype"], index, value, in_place=True)
    return AppliedRows(applied, check, overflow)


def scheme_of(patch: Delta, record: Mapping[str, Any]) -> codec.Scheme:
    """How the survivors of a lossy tensor were drawn and coded.

    Raises:
        InputError: the plan's record is malformed.
    """
    factors = None
    if record["treatment"] == "factored":
        shape = record["shape"]
        columns = int(np.prod(shape[1:], dtype=np.int64))
        factors = Factors.from_record(record, shape[0] if shape else 1, columns)
    if "step" in record and record.keys() & {"bits", "span"}:
        raise InputError(f"{patch.path}: the plan gives {record['name']!r} both a step and bits or a span")
    try:
        return codec.Scheme(
            bits=16 if "step" in record else int(record["bits"]),
            threshold=0 if factors else int(record["threshold"]),
            rescale=1.0 if factors else float.fromhex(record["rescale"]),
            key=key_for(int(patch.plan["seed"]), record["name"]),
            span=1 if "step" in record else int(record["span"]),
            stored_mask=record["treatment"] == "masked",
            factors=factors,
            step=float.fromhex(record["step"]) if "step" in record else None,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError(f"{patch.path}: the plan's record of {record['name']!r} is malformed") from None


def _write_tensor(
    base: Source, patch: Delta, name: str, results: Iterator[AppliedRows], writer: CheckpointWriter
) -> None:
    checks, overflow = [], 0
    for _ in tensor_tasks(base, patch, name):
        rows = next(results)
        writer.append(name, np.ascontiguousarray(rows.bits))
        overflow += rows.overflow
        if rows.check is not None:
            checks.append(rows.check)
    record = patch.records[name]
    check_base_digest(base, patch, name, checks)
    if overflow and record["treatment"] in LOSSY:
        raise InputError(
            f"{overflow} entries of {name!r} overflow {record['dtype']} when the delta is added; the base or the delta is wrong"
        )


def check_base_digest(base: Source, patch: Delta, name: str, checks: list[bytes]) -> None:
    """Refuse a base whose bytes are not those that the delta was made from."""
    record = patch.records[name]
    expected = record.get("check")
    if expected is not None and quick_digest(checks) != expected:
        raise InputError(
            f"{base.path} is not the base of {patch.path}: the bytes of {name!r} differ; find the base with the "
            f"fingerprint {patch.base}"
        )


def carried_files(base: Source, patch: Delta) -> Iterator[tuple[str, bytes]]:
    """Every non-weight file of the fine-tuned folder, from the delta or from a base that has the same.

    Raises:
        InputError: the base lacks one.
        RejectedError: one is not what was packed.
    """
    for number, line in enumerate(patch.plan["carried"]):
        name = line["name"]
        if line.get("from") == "base":
            if name not in base.carried:
                raise InputError(
                    f"{base.path} lacks {name!r}, which the delta takes from the base; use the whole base folder"
                )
            data = base.read_carried(name)
        else:
            data = patch.inflated(f"assay.carried.{number}", line["bytes"])
        if hashlib.sha256(data).hexdigest() != line.get("sha256"):
            raise RejectedError(
                f"the carried file {name!r} does not have the digest it was packed with; find the right base"
            )
        yield name, data


def write_carried_base(base: Source, writer: CheckpointWriter) -> None:
    """Write the base's own non-weight files."""
    for name in base.carried:
        writer.write_file(name, base.read_carried(name))
