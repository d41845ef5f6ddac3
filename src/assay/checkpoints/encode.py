"""One task of a pack: a block of rows differenced, masked, quantised and coded; or a tensor's digest.

Tasks are plain values and the functions here are pure, so they run in any thread or process, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import xxhash

from assay.checkpoints import codec
from assay.checkpoints.delta import block_rows
from assay.checkpoints.header import DTYPES
from assay.checkpoints.io import Source, tensor_sha256
from assay.checkpoints.plan import TensorPlan
from assay.core.errors import InputError
from assay.missions.dare.algorithm import derandomise
from assay.numerics.philox import Key

Bits = np.ndarray


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Rows ``start..stop`` of one tensor."""

    base: Source
    finetuned: Source
    plan: TensorPlan
    key: Key
    coding: str
    start: int
    stop: int
    weight: np.ndarray | None = None
    moment: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class DigestTask:
    """sha256 of one tensor of one side."""

    source: Source
    name: str


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """What became of a block.

    Attributes:
        payload: its coded bytes.
        stats: sums over it; None for exact and lossless blocks.
        check: xxh3-128 of the base's bytes; None where the base was not read.
        same: whether the fine-tuned rows equal the base's bit for bit.
        signal: mean square of the delta's output under the full second moment, where that was given.
    """

    payload: bytes
    stats: codec.BlockStats | None
    check: bytes | None
    same: bool
    signal: float = 0.0


def encode_tasks(
    base: Source, finetuned: Source, plan: TensorPlan, key: Key, coding: str, weight: np.ndarray | None, moment: np.ndarray | None
) -> Iterator[EncodeTask]:
    """The tasks of one tensor: its blocks in order, or all of them at once where the mask is chosen."""
    info = plan.info
    if plan.treatment == "masked":
        yield EncodeTask(base, finetuned, plan, key, coding, 0, info.rows, weight, moment)
        return
    for start, stop in block_rows(info.rows, info.columns, plan.base_rows):
        yield EncodeTask(base, finetuned, plan, key, coding, start, stop, weight, moment)


def run(task: EncodeTask | DigestTask) -> list[EncodedRows] | str:
    """Carry a task out, in a worker."""
    if isinstance(task, DigestTask):
        return tensor_sha256(task.source.tensors[task.name], task.source)
    if task.plan.treatment == "masked":
        return _encode_masked(task)
    return [_encode_rows(task, task.start, task.stop, None)]


def read_base_rows(base: Source, plan: TensorPlan, start: int, stop: int) -> tuple[Bits, bytes]:
    """The base's rows as bits of the output's type, and the quick digest of what was read."""
    assert plan.base is not None
    bits = base.read_rows(plan.name, start, stop)
    check = xxhash.xxh3_128_digest(bits.data)
    if plan.base.dtype != plan.info.dtype:
        with np.errstate(over="ignore", invalid="ignore"):
            values = bits.view(DTYPES[plan.base.dtype]).astype(DTYPES[plan.info.dtype])
        bits = values.view(plan.info.bits_dtype)
    return bits, check


def _encode_rows(task: EncodeTask, start: int, stop: int, keep: np.ndarray | None) -> EncodedRows:
    plan, info = task.plan, task.plan.info
    finetuned = task.finetuned.read_rows(plan.name, start, stop)
    if start >= plan.base_rows:
        return EncodedRows(codec.encode_exact(finetuned, task.coding), None, None, False)
    base, check = read_base_rows(task.base, plan, start, stop)
    if np.array_equal(base, finetuned):
        same_treatment = plan.treatment not in ("dropped", "masked")
        payload = codec.encode_lossless(base, finetuned, task.coding) if same_treatment else b""
        if same_treatment:
            return EncodedRows(payload, None, check, True)
    if plan.treatment == "lossless":
        return EncodedRows(codec.encode_lossless(base, finetuned, task.coding), None, check, False)
    assert plan.rescale is not None
    scheme = codec.Scheme(plan.bits, plan.threshold, plan.rescale, task.key, plan.span, task.coding, keep is not None)
    block = codec.encode_block(base, finetuned, info.dtype, start * info.columns, scheme, task.weight, keep)
    return EncodedRows(block.payload, block.stats, check, False)


def _encode_masked(task: EncodeTask) -> list[EncodedRows]:
    return []


Progress = Callable[[int, int, str], None]
__all__ = ["DigestTask", "EncodeTask", "EncodedRows", "InputError", "derandomise", "encode_tasks", "read_base_rows", "run"]
