"""One task of a pack: a block of rows differenced, masked, quantised and coded; or a tensor's digest.

Tasks are plain values and the functions here are pure, so they run in any thread or process, in any order.  One thing
is shared, by threads alone: the `RowDigest` of a tensor, which sees each row while it is in memory.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import xxhash

from assay.checkpoints import codec
from assay.checkpoints.delta import block_rows
from assay.checkpoints.header import DTYPES, TensorInfo, rounded
from assay.checkpoints.io import ReadBuffer, Source, tensor_sha256
from assay.checkpoints.plan import LOSSY, TensorPlan
from assay.missions.dare.algorithm.masks import derandomise
from assay.numerics.philox import Key

Bits = np.ndarray

_BASE, _FINETUNED = ReadBuffer(), ReadBuffer()


class RowDigest:
    """sha256 of a tensor whose rows several threads read: each waits until the rows before its own are in.

    Tasks must be begun in the order of their rows.

    >>> digest = RowDigest()
    >>> digest.update(0, 2, np.arange(4)), digest.update(2, 3, np.arange(2))
    (None, None)
    >>> digest.hexdigest() == hashlib.sha256(np.array([0, 1, 2, 3, 0, 1]).data).hexdigest()
    True
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._next = 0
        self._abandoned = False
        self._turn = threading.Condition()

    def update(self, start: int, stop: int, rows: np.ndarray) -> None:
        """Take in rows ``start..stop``, as they lie in the file, once those before `start` are in.

        Raises:
            RuntimeError: an earlier row will never come.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._abandoned or self._next == start)
            if self._abandoned:
                raise RuntimeError("an earlier block of this tensor failed")
            self._digest.update(rows.ravel().data)
            self._next = stop
            self._turn.notify_all()

    def abandon(self) -> None:
        """Let those who wait give up."""
        with self._turn:
            self._abandoned = True
            self._turn.notify_all()

    def hexdigest(self) -> str:
        """The digest of the rows so far, in hex."""
        return self._digest.hexdigest()


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Rows ``start..stop`` of one tensor; `weight` and `moment` are its inputs' second moments, if measured.

    `digests` are to see the rows of the sides ``base`` and ``finetuned``.
    """

    base: Source
    finetuned: Source
    plan: TensorPlan
    key: Key
    coding: codec.Coding
    start: int
    stop: int
    weight: np.ndarray | None = None
    moment: np.ndarray | None = None
    digests: Mapping[str, RowDigest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DigestTask:
    """sha256 of one tensor of one side, where no `RowDigest` can see its rows."""

    source: Source
    name: str


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """What became of a block.

    Attributes:
        payload: its coded bytes.
        stats: sums over it; None for exact and lossless blocks.
        finetuned_check: xxh3-128 of the fine-tuned bytes.
        check: xxh3-128 of the base's bytes; None where the base was not read.
        same: whether the fine-tuned rows equal the base's bit for bit.
        signal: mean square of the delta's output under the full second moment, where that was given.
        guarantee: on the first block of a chosen mask, the bound on its layer error (before quantisation).
    """

    payload: bytes
    stats: codec.BlockStats | None
    finetuned_check: bytes
    check: bytes | None
    same: bool
    signal: float = 0.0
    guarantee: float | None = None


def encode_tasks(whole: EncodeTask) -> Iterator[EncodeTask]:
    """The blocks of a task for a whole tensor, in order; a mask is chosen over all rows at once, an alias has none."""
    info = whole.plan.info
    if whole.plan.of is not None:
        return
    if whole.plan.treatment == "masked":
        yield whole
        return
    for start, stop in block_rows(info.rows, info.columns, whole.plan.base_rows):
        yield replace(whole, start=start, stop=stop)


def run(task: EncodeTask | DigestTask) -> list[EncodedRows] | str:
    """Carry a task out, in a worker."""
    if isinstance(task, DigestTask):
        return tensor_sha256(task.source.tensors[task.name], task.source)
    try:
        return _encode_masked(task) if task.plan.treatment == "masked" else [_encode_rows(task, None)]
    except BaseException:
        for digest in task.digests.values():
            digest.abandon()
        raise


def read_base_rows(
    base: Source,
    old: TensorInfo,
    new: TensorInfo,
    start: int,
    stop: int,
    buffer: ReadBuffer | None = None,
    digest: RowDigest | None = None,
) -> tuple[Bits, bytes]:
    """The base's rows as bits of the output's type, and the quick digest of what was read.

    Values of another type are rounded to nearest even.  `digest` sees what was read.
    """
    bits = base.read_rows(old.name, start, stop, buffer)
    if digest is not None:
        digest.update(start, stop, bits)
    check = xxhash.xxh3_128_digest(bits.data)
    if old.dtype != new.dtype:
        bits = rounded(bits.view(DTYPES[old.dtype]), new.dtype).view(new.bits_dtype)
    return bits, check


def difference(base: Bits, finetuned: Bits, dtype: str) -> np.ndarray:
    """The delta that the codec speaks of: float32, or float64 for F64 tensors."""
    kind = np.float64 if dtype == "F64" else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        return finetuned.view(DTYPES[dtype]).astype(kind) - base.view(DTYPES[dtype]).astype(kind)


def _encode_rows(task: EncodeTask, keep: np.ndarray | None) -> EncodedRows:
    plan, info = task.plan, task.plan.info
    finetuned = task.finetuned.read_rows(plan.name, task.start, task.stop, _FINETUNED)
    if "finetuned" in task.digests:
        task.digests["finetuned"].update(task.start, task.stop, finetuned)
    digest = xxhash.xxh3_128_digest(finetuned.data)
    if plan.base is None or task.start >= plan.base_rows:
        return EncodedRows(codec.encode_exact(finetuned, task.coding), None, digest, None, False)
    base, check = read_base_rows(
        task.base, plan.base, info, task.start, task.stop, _BASE, task.digests.get("base")
    )
    same = (check == digest or plan.base.dtype != info.dtype) and bool(np.array_equal(base, finetuned))
    if plan.treatment not in LOSSY:
        return EncodedRows(codec.encode_lossless(base, finetuned, task.coding), None, digest, check, same)
    rescale = 1.0 if plan.rescale is None else plan.rescale
    bits = plan.bits if plan.step is None else 16
    scheme = codec.Scheme(
        bits,
        plan.threshold,
        rescale,
        task.key,
        plan.span,
        task.coding,
        keep is not None,
        plan.factors,
        plan.step,
    )
    block = codec.encode_block(
        base, finetuned, info.dtype, task.start * info.columns, scheme, task.weight, keep
    )
    signal = 0.0
    if task.moment is not None:
        delta = difference(base, finetuned, info.dtype).astype(np.float64)
        signal = float(np.einsum("ij,ij->", delta @ task.moment, delta))
    return EncodedRows(block.payload, block.stats, digest, check, same, signal)


def _encode_masked(task: EncodeTask) -> list[EncodedRows]:
    """Choose the mask of all rows that have a base, then code the blocks with it."""
    plan, info = task.plan, task.plan.info
    assert plan.base is not None
    assert task.moment is not None
    base, _ = read_base_rows(task.base, plan.base, info, 0, plan.base_rows)
    delta = difference(base, task.finetuned.read_rows(plan.name, 0, plan.base_rows), info.dtype)
    mask = derandomise(delta, task.moment, float(plan.drop_prob), rescale=plan.rescale)
    rows = []
    for start, stop in block_rows(info.rows, info.columns, plan.base_rows):
        keep = mask.keep[start:stop] if start < plan.base_rows else None
        rows.append(_encode_rows(replace(task, start=start, stop=stop), keep))
    rows[0] = replace(rows[0], guarantee=float(mask.guarantee))
    return rows
