"""What the blocks of one tensor add up to: its facts, and its record in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from assay.checkpoints import certificate as certificates
from assay.checkpoints import codec, delta
from assay.checkpoints.encode import EncodedRows
from assay.checkpoints.plan import LOSSY, TensorPlan
from assay.core.errors import InputError


class TensorSums:
    """Running sums over the blocks of one tensor."""

    def __init__(self, plan: TensorPlan) -> None:
        self.plan = plan
        self.blocks: list[int] = []
        self.checks: list[bytes] = []
        self.finetuned_checks: list[bytes] = []
        self.same = plan.base is not None and plan.base.rows == plan.info.rows
        self.kept = self.changed = self.entries = 0
        self.signal = self.energy = self.variance = self.realised = 0.0
        self.delta_fourth = self.step_fourth = 0.0
        self.proxy_max = self.proxy_sum = self.proxy_square_sum = 0.0
        self.factored_variance = 0.0
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
        if stats.row_variance is not None and stats.row_proxy is not None:
            self.factored_variance += float(stats.row_variance.sum())
            self._add_proxies(stats.row_proxy, stats)
        elif self.plan.rescale is not None:
            proxies = certificates.row_proxies(
                stats.row_energy, stats.row_quantiser_proxy, self.plan.drop_prob, self.plan.rescale
            )
            self._add_proxies(proxies, stats)
        self._row += len(stats.row_energy)

    def _add_proxies(self, proxies: np.ndarray, stats: codec.BlockStats) -> None:
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
            raise InputError(
                f"tensor {name!r} changes by more than a bfloat16 can hold at {stats.first_uncodable}; {keep}"
            )
        if stats.overflow:
            divisor = "its keep probability" if self.plan.factors else f"{self.plan.rescale:g}"
            raise InputError(
                f"tensor {name!r} would overflow {dtype} at index {stats.first_overflow} ({stats.overflow} entries in a "
                f"block): a survivor is divided by {divisor}; lower --drop, raise --rescale, or use --exclude {name!r}"
            )

    def facts(self, calibrated: bool, full: bool) -> certificates.Facts | certificates.FactoredFacts:
        """The sums as the certificate's facts; with unit moments the signal is the energy."""
        signal = self.energy if not calibrated else self.signal if full else None
        if self.plan.factors is not None:
            return certificates.FactoredFacts(
                signal,
                self.energy,
                self.factored_variance,
                self.realised,
                self.proxy_max,
                self.proxy_sum,
                self.proxy_square_sum,
            )
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


def plan_record(plan: TensorPlan, treatment: str, sums: TensorSums) -> dict[str, Any]:
    """The tensor's record in the plan (docs/reference/delta-format.md)."""
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
        if plan.base.rows != plan.info.rows:
            record["base_rows"] = plan.base.rows
    if treatment == "factored":
        assert plan.factors is not None
        quantiser = {"bits": plan.bits, "span": plan.span} if plan.step is None else {"step": plan.step.hex()}
        record |= quantiser | plan.factors.record()
    elif treatment in LOSSY:
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


def alias_key(plan: TensorPlan, sums: TensorSums) -> list[str]:
    """What two tied tensors have in common; empty for tensors that cannot be tied.

    The treatment is part of it: a tensor that is kept exactly must not repeat one that loses something.
    """
    if plan.base is None or plan.base.dtype != plan.info.dtype or len(plan.info.shape) < 2:
        return []
    content = (delta.quick_digest(side) for side in (sums.finetuned_checks, sums.checks))
    return [plan.treatment, plan.info.dtype, str(plan.info.shape), str(plan.base.rows), *content]


def alias_of(entry: dict[str, Any], original: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a tensor that repeats another: it has no payload and loses nothing of its own.

    Args:
        entry: the tensor's own entry.
        original: the plan's record of the other; where that is an alias itself, both repeat the same.
    """
    own, shared = ("name", "dtype", "shape", "check"), ("base_rows",)
    plan = {k: entry["plan"][k] for k in own if k in entry["plan"]}
    plan |= {k: original[k] for k in shared if k in original}
    record = entry["certificate"]
    if record is not None:
        record = {k: record[k] for k in ("name", "dtype", "shape", "finetuned", "base") if k in record}
        record["treatment"] = "alias"
    tied = {
        "plan": plan | {"treatment": "alias", "of": original.get("of", original["name"])},
        "certificate": record,
    }
    return entry | tied | {"changed": [0, 0]}
