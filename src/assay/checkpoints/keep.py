"""How much of each tensor, row and column to keep: closed forms in the energies, and one search.

With energies ``A_j`` (:mod:`assay.checkpoints.energies`) the drift ``sum A_j (1/k_j - 1)`` at a given number of
survivors ``sum k_j`` is least for ``k_j = min(1, L sqrt(A_j))`` (specification 1.j), which the decoder cannot know entry
by entry.  A keep map replaces ``sqrt(A_j)`` by a shape that it can know:

=============  ===========================================================================================
``uniform``    1
``tensor``     sqrt(mean A) of the tensor
``factored``   sqrt(R_i C_j / mean A), with R and C the row and column means of A in sixteen classes each
=============  ===========================================================================================

The mean A of a tensor is increased by what its quantiser adds.  The shape is floored at `FLOOR` times its mean over
all entries, so no keep probability is less than that share of the mean one: an entry without energy on the
calibration texts may have some elsewhere.  The multiplier L is then found by bisection, for a share of entries to
drop, for a drift, or for a size.

Every drift here is predicted, first order: it holds as far as the network is linear across the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from assay.checkpoints.energies import SPANS, Energies
from assay.checkpoints.factors import CLASSES, Factors, factors_from
from assay.checkpoints.plan import BITS, KEEP_MAPS, KEEP_ONE, span_of
from assay.core.errors import BudgetError, InputError

FLOOR = 0.25
"""Least keep probability, as a share of the mean."""

_FLOOR_ROUNDS = 30
_SCALE_BYTES = 11 / 8
_BLOCK_BYTES = 32
_RECORD_BYTES = {"uniform": 60, "tensor": 70, "factored": 110}
"""What a tensor takes in the plan of a delta beside its codes, deflated."""
_CODE_BYTES = 0.5
_LEAST, _MOST = 2.0**-32, 2.0**32

_TYPICAL = 1
"""The span, of `SPANS`, at which a quantiser's noise enters the shape."""

Floats = np.ndarray
Thresholds = int | Factors


@dataclass(frozen=True, eq=False)
class KeepPlan:
    """Keep thresholds for every tensor, and what they are predicted to do.

    Attributes:
        keep_map: one of `KEEP_MAPS`.
        bits: of a survivor, or `GRID`.
        thresholds: by tensor, one for all entries (keep probability times 2**32) or by row and column.
        drift: predicted root mean square drift over the fine-tune's own effect, first order.
        size: bytes of the delta, estimated.
        mean_keep: expected share of the entries that survive.
        steps: by tensor, the spacing of its grid; empty unless bits is `GRID`.
    """

    keep_map: str
    bits: int
    thresholds: Mapping[str, Thresholds]
    drift: float
    size: int
    mean_keep: float
    steps: Mapping[str, float] = field(default_factory=dict)

    @property
    def quantiser(self) -> str:
        """The bits of a survivor in words, or ``grid``."""
        return str(self.bits) if self.bits else "grid"


class Planner:
    """The plans that one pair's energies allow.

    Args:
        energies: of the pair, each tensor with at least one entry.
        bits: of a survivor.
        overhead: bytes of the delta beside the tensors planned here.

    >>> tensor = TensorEnergy(np.full(2, 2.0), np.full(3, 2.0), np.eye(16) * 0.75, np.eye(16), *np.zeros((2, 5, 3)), 3.0, 1.0, *np.zeros((2, 19)))
    >>> planner = Planner(Energies({"w": tensor}, {}, 12.0, "module", 1, 1, 0), bits=16)
    >>> planner.at_drop("uniform", 0.5).drift
    1.0
    """

    def __init__(self, energies: Energies, bits: int, overhead: int = 0) -> None:
        if bits not in BITS:
            raise InputError(
                f"survivors of {bits} bits are not offered; choose one of {', '.join(map(str, BITS))}"
            )
        if not energies.effect > 0:
            raise InputError(
                "the fine-tune does nothing to the outputs that were measured, so no drift can be planned"
            )
        self._energies, self._bits, self._overhead = energies, bits, overhead
        self._names = list(energies.tensors)
        tensors = [energies.tensors[name] for name in self._names]
        self._tensors = tensors
        self._counts = np.array([t.count for t in tensors], np.float64)
        self._sizes = np.stack([t.class_sizes for t in tensors])
        self._energy = np.stack([t.energy for t in tensors])
        gradient = np.stack([t.gradient for t in tensors])
        total = gradient.sum(axis=(1, 2), keepdims=True)
        self._gradient = np.divide(gradient, total, out=np.zeros_like(gradient), where=total > 0)
        row = BITS.index(bits)
        self._noise = np.stack([t.noise[row] for t in tensors])
        self._rate = np.stack([t.rate[row] for t in tensors])
        self._blocks = np.array([t.blocks for t in tensors])
        self._codes = np.array([t.rows.size + t.columns.size for t in tensors])

    # Plans ------------------------------------------------------------------------------------------------

    def at_drop(self, keep_map: str, drop_prob: float) -> KeepPlan:
        """The plan that drops this share of all entries, in expectation.

        Raises:
            InputError: the share is not below 1.
        """
        if not 0 <= drop_prob < 1:
            raise InputError(
                f"a keep map cannot drop the share {drop_prob:g} of the entries: it must lie in [0, 1)"
            )
        shape = self._shape(keep_map)
        if keep_map == "uniform":
            return self._plan(shape, 1 - drop_prob)
        wanted = (1 - drop_prob) * self._counts.sum()
        return self._plan(shape, _least(lambda m: self._kept(shape, m) >= wanted))

    def at_drift(self, keep_map: str, max_drift: float) -> KeepPlan:
        """The smallest plan with at most this predicted drift (relative to the fine-tune's own effect).

        Raises:
            BudgetError: even with every entry kept the quantiser drifts more; the message says how much.
        """
        if not (math.isfinite(max_drift) and max_drift > 0):
            raise InputError(f"the drift {max_drift} must be a finite number above 0")
        shape = self._shape(keep_map)
        budget = max_drift**2 * self._energies.effect
        least = self._drift(self._keep(shape, _MOST))
        if least > budget:
            raise BudgetError(
                f"a drift of {max_drift:g} is out of reach at {self._bits} bits: with every entry kept it is predicted "
                f"to be {math.sqrt(least / self._energies.effect):.3g}; use more --bits"
            )
        return self._plan(shape, _least(lambda m: self._drift(self._keep(shape, m)) <= budget))

    def at_size(self, keep_map: str, max_size: int) -> KeepPlan:
        """The plan with the least predicted drift whose delta has, by estimate, at most this many bytes.

        Raises:
            BudgetError: the delta is larger with next to nothing kept; the message says how large.
        """
        shape = self._shape(keep_map)
        least = self._size(keep_map, self._keep(shape, _LEAST))
        if least > max_size:
            raise BudgetError(
                f"{max_size} bytes are out of reach with the keep map {keep_map!r}: what is stored exactly, the plan and "
                f"the certificate take {math.ceil(least)} by themselves"
            )
        over = _least(lambda m: self._size(keep_map, self._keep(shape, m)) > max_size)
        return self._plan(shape, over / _STEP)

    # Pieces -----------------------------------------------------------------------------------------------

    def _shape(self, keep_map: str) -> _Shape:
        """What the keep probabilities are proportional to."""
        if keep_map not in KEEP_MAPS:
            raise InputError(f"the keep map {keep_map!r} is none of {', '.join(KEEP_MAPS)}")
        count = len(self._tensors)
        peaks = np.ones((count, 3))
        if keep_map == "tensor":
            energies = np.array([t.total for t in self._tensors]) + self._noise[:, _TYPICAL]
            peaks[:, 0] = np.sqrt(energies / self._counts)
        elif keep_map == "factored":
            peaks = np.array([self._peak(number) for number in range(count)])
        powers = np.arange(CLASSES)
        rows, columns = (peaks[:, n, None] ** powers for n in (1, 2))
        values = peaks[:, 0, None, None] * rows[:, :, None] * columns[:, None, :]
        mean = self._average(values)
        if not mean > 0:
            raise InputError(
                "no entry has any energy, so there is nothing to plan by; use --keep-map uniform"
            )
        for _ in range(
            _FLOOR_ROUNDS
        ):  # raising entries to the floor raises the mean: its share shrinks fourfold a round
            mean = self._average(np.maximum(values, FLOOR * mean))
        peaks[:, 0] /= mean
        return _Shape(keep_map, np.maximum(values / mean, FLOOR), peaks)

    def _peak(self, number: int) -> tuple[float, float, float]:
        """Shape of the classes (0, 0) of a tensor, and its ratios between neighbouring classes of rows and columns."""
        tensor = self._tensors[number]
        _, row_top, row_ratio = tensor.row_classes
        _, column_top, column_ratio = tensor.column_classes
        if not tensor.total > 0:
            return 0.0, 1.0, 1.0
        mean = tensor.total / tensor.count
        noisy = 1 + self._noise[number, _TYPICAL] / tensor.total
        return math.sqrt(row_top / mean * column_top * noisy), math.sqrt(row_ratio), math.sqrt(column_ratio)

    def _average(self, values: Floats) -> float:
        """Mean over all entries of what is given by classes."""
        return float((values * self._sizes).sum() / self._counts.sum())

    def _keep(self, shape: _Shape, multiplier: float) -> Floats:
        return np.minimum(1.0, multiplier * shape.values)

    def _kept(self, shape: _Shape, multiplier: float) -> float:
        return float((self._keep(shape, multiplier) * self._sizes).sum())

    def _at_spans(self, table: Floats, spans: Floats) -> Floats:
        """A row of `table` for each tensor, interpolated in the logarithm of its span."""
        position = np.interp(np.log(spans), np.log(SPANS), np.arange(len(SPANS)))
        low = np.minimum(position.astype(np.int64), len(SPANS) - 2)
        part, at = position - low, np.arange(len(table))
        return table[at, low] * (1 - part) + table[at, low + 1] * part

    def _mean_keeps(self, keep: Floats) -> Floats:
        return (keep * self._sizes).sum(axis=(1, 2)) / self._counts

    def _spans(self, keep: Floats) -> Floats:
        return np.array([span_of(round(k * KEEP_ONE)) for k in self._mean_keeps(keep)], np.float64)

    def _drift(self, keep: Floats) -> float:
        """Predicted mean-square drift, in units of the energies."""
        noise = self._at_spans(self._noise, self._spans(keep)) * (self._gradient / keep).sum(axis=(1, 2))
        return float((self._energy * (1 / keep - 1)).sum() + noise.sum())

    def _size(self, keep_map: str, keep: Floats) -> float:
        """Estimated bytes of the delta."""
        spans = self._spans(keep)
        survivors = (keep * self._sizes).sum(axis=(1, 2)) * self._at_spans(self._rate, spans) / 8
        scales = self._counts / spans * _SCALE_BYTES if self._bits < 16 else np.zeros(len(spans))
        codes = self._codes * _CODE_BYTES if keep_map == "factored" else np.zeros(len(spans))
        fixed = self._blocks * _BLOCK_BYTES + _RECORD_BYTES[keep_map]
        return float((survivors + scales + codes + fixed).sum()) + self._overhead

    def _plan(self, shape: _Shape, multiplier: float) -> KeepPlan:
        """Round the keep probabilities to thresholds, and predict what these do."""
        keep = self._keep(shape, multiplier)
        thresholds: dict[str, Thresholds] = {}
        for number, name in enumerate(self._names):
            made: Thresholds = max(1, round(float(keep[number, 0, 0]) * KEEP_ONE))
            if shape.keep_map == "factored":
                made = self._factors(number, shape.peaks[number], multiplier)
            thresholds[name] = made
            keep[number] = (made.thresholds if isinstance(made, Factors) else made) / KEEP_ONE
        return KeepPlan(
            shape.keep_map,
            self._bits,
            thresholds,
            math.sqrt(self._drift(keep) / self._energies.effect),
            math.ceil(self._size(shape.keep_map, keep)),
            self._average(keep),
        )

    def _factors(self, number: int, peaks: Floats, multiplier: float) -> Factors:
        tensor = self._tensors[number]
        top, rows, columns = (float(value) for value in peaks)
        floor = min(1.0, multiplier * FLOOR)
        top = min(_MOST / 4, max(multiplier * top, floor))
        return factors_from(tensor.row_classes[0], tensor.column_classes[0], rows, columns, top, floor)


@dataclass(frozen=True, eq=False)
class _Shape:
    """Keep probabilities up to a multiplier and the clip at 1.

    `values` are floored and have mean 1, float64 [tensors, 16, 16]; `peaks` gives the factors that they come
    from: [tensors, 3], value of the classes (0, 0), ratio between row classes, ratio between column classes.
    """

    keep_map: str
    values: Floats
    peaks: Floats


_STEP = 1 + 2.0**-20


def _least(holds: Callable[[float], bool]) -> float:
    """The least multiplier, to a relative `_STEP`, at which a monotone condition holds."""
    low, high = _LEAST, _MOST
    while high > low * _STEP:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


__all__ = ["FLOOR", "KeepPlan", "Planner"]
