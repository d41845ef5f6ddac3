"""A fine-tuned checkpoint as a delta that is dropped while it is read, never stored: what `merge` takes too.

This is DARE as published (Yu et al., 2024): of a tensor of two or more dimensions the entries that a seeded mask keeps
are divided by the keep probability; every other tensor contributes its exact difference.  Nothing is quantised.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import xxhash

from assay.checkpoints import codec
from assay.checkpoints.adapters import Adapter
from assay.checkpoints.encode import difference
from assay.checkpoints.header import DTYPES, TensorInfo, rounded
from assay.checkpoints.io import Checkpoint, ReadBuffer
from assay.checkpoints.job import delta_ratio, open_job, probe_rows, refuse_retrained
from assay.checkpoints.plan import KEEP_ONE, Settings, TensorPlan
from assay.core.errors import InputError
from assay.numerics.philox import key_for

_FINETUNED = ReadBuffer()

Sparse = tuple[np.ndarray, np.ndarray]
"""Ascending positions in a block, and the values there; it is 0 elsewhere."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """One fine-tuned checkpoint of a merge.

    Attributes:
        path: the checkpoint.
        source: it, open.
        plans: what is done with each of its tensors.
        threshold: keep probability times 2**32.
        seed: of the masks, together with `id`: two checkpoints that differ where `id` looks do not share a mask.
        id: digest of the layout and of a few rows of each tensor, which orders the checkpoints of a merge.
        stamp: sizes and times of change of its files and of the base's, by which a resumed run knows them.
    """

    path: Path
    source: Checkpoint | Adapter
    plans: Mapping[str, TensorPlan]
    threshold: int
    seed: int
    id: str
    stamp: str

    @classmethod
    def open(
        cls,
        finetuned: str | os.PathLike[str],
        base: str | os.PathLike[str],
        drop: float | Fraction,
        seed: int,
    ) -> Dropped:
        """Open a fine-tuned checkpoint that is to be dropped with probability `drop`.

        Raises:
            InputError: it is no fine-tune of `base`, or cannot be merged into it.
        """
        settings = Settings(drop, seed=seed)
        if not settings.threshold:
            raise InputError("a drop probability of 1 leaves nothing to merge; choose one below 1")
        job = open_job(finetuned, base, settings, None, None)
        try:
            refuse_retrained(job, delta_ratio(job))
            for plan in job.plans:
                old = job.base.tensors.get(plan.name)
                if old is not None and old.shape != plan.info.shape:
                    raise InputError(
                        f"{finetuned} has the shape {list(plan.info.shape)} in {plan.name!r} and the base "
                        f"{list(old.shape)}, which cannot be merged; give both the same shape"
                    )
            return cls(
                Path(finetuned),
                job.finetuned,
                {plan.name: plan for plan in job.plans},
                settings.threshold,
                seed,
                _sampled_digest(job.finetuned, job.plans),
                " ".join(f"{shard.path}:{shard.size}:{shard.modified_ns}" for shard in job.shards),
            )
        except BaseException:
            job.finetuned.close()
            raise
        finally:
            job.base.close()

    def close(self) -> None:
        """Close its files."""
        self.source.close()

    def rows(self, info: TensorInfo, start: int, stop: int, base: np.ndarray) -> Sparse | np.ndarray | None:
        """Its delta in rows ``start..stop``: survivors divided by their keep probability, or the whole difference.

        Args:
            info: the tensor in the base.
            base: the bits of those rows there.

        Raises:
            InputError: an entry of either side is not finite.
        """
        plan = self.plans.get(info.name)
        if plan is None:
            return None
        old = base
        if plan.info.dtype != info.dtype:
            old = rounded(base.view(DTYPES[info.dtype]), plan.info.dtype).view(plan.info.bits_dtype)
        new = self.source.read_rows(info.name, start, stop, _FINETUNED)
        if plan.treatment != "dropped":
            return whole_difference(old, new, plan.info.dtype, info.name, self.path)
        scheme = codec.Scheme(16, self.threshold, self.threshold / KEEP_ONE, self._key(info.name))
        index, value = codec.drop_block(old, new, plan.info.dtype, start * info.columns, scheme)
        if not np.isfinite(value).all():
            raise _not_finite(info.name, self.path)
        return index, value

    def integers(self, info: TensorInfo, start: int, stop: int, base: np.ndarray) -> np.ndarray:
        """Its rows of a tensor that has no arithmetic; the base's where it has none of the type."""
        plan = self.plans.get(info.name)
        if plan is None or plan.info.dtype != info.dtype or plan.info.shape != info.shape:
            return base
        return self.source.read_rows(info.name, start, stop)

    def _key(self, name: str) -> tuple[int, int]:
        return key_for(self.seed, f"{self.id}/{name}")


def _sampled_digest(source: Checkpoint | Adapter, plans: Sequence[TensorPlan]) -> str:
    digest = xxhash.xxh3_128()
    for plan in plans:
        digest.update(f"{plan.name}\0{plan.info.dtype}\0{plan.info.shape}\n".encode())
        for row in probe_rows(plan.info.rows, plan.info.columns):
            digest.update(source.read_rows(plan.name, row, row + 1).data)
    return digest.hexdigest()


def whole_difference(
    base: np.ndarray, finetuned: np.ndarray, dtype: str, name: str, path: Path
) -> np.ndarray:
    """finetuned - base of a tensor's rows, given as bits; 0 where the two are the same, whatever their value.

    Raises:
        InputError: it is not finite; the message names the tensor and the delta or checkpoint that it comes from.
    """
    delta = difference(base, finetuned, dtype)
    if not np.isfinite(delta).all():  # both may have the same infinity, as masks in buffers do
        delta[base == finetuned] = 0
        if not np.isfinite(delta).all():
            raise _not_finite(name, path)
    return delta


def _not_finite(name: str, path: Path) -> InputError:
    return InputError(
        f"{name!r} has a NaN or an infinity in {path} or in the base, which no merge can weigh; repair it, or leave "
        f"{path.name} out"
    )
