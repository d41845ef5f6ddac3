"""Keep probabilities and grid steps, chosen together: closed forms in the energies, and one search.

With survivors rounded to multiples of the step ``h`` and coded at their entropy, a tensor of energies ``A_j`` takes
``H(h) sum k_j`` bits and drifts by ``sum A_j (1/k_j - 1) + sum E g_j^2 V_j(h) / k_j`` (specification 1.k).  At the price
``x`` of a bit, the least of both is at

    k_j = min(1, sqrt((A_j + E g_j^2 V_j) / (x H)))

and at the step, of `STEPS` times the standard deviation of the delta, that makes the sum least.  Keep probabilities
follow a keep map, with a floor, as in :mod:`assay.checkpoints.keep`; the search is over x.

Row and column classes are merged as far as that makes the delta smaller: what a class costs to name is side information,
and a wrong keep probability costs drift in the second order only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from assay.checkpoints.energies import STEPS, Energies, entropy
from assay.checkpoints.factors import CLASSES, Codes, factors_from
from assay.checkpoints.keep import FLOOR, KeepPlan, Planner
from assay.checkpoints.plan import GRID, KEEP_MAPS, KEEP_ONE
from assay.core.errors import BudgetError, InputError

MERGES = (0.0, 0.7, 1.4, 2.8, 5.6)
"""Widths of a class that are tried, in natural logarithms of A; 0 leaves the sixteen classes as they are."""

_LOW, _HIGH, _TOLERANCE = -160.0, 80.0, 1e-4
_FLOOR_ROUNDS = 30
_RECORD_BYTES, _BLOCK_BYTES, _CODES_BYTES = 110, 26, 26
"""What a tensor takes in the plan, deflated; what a block and the codes of a tensor take beside their symbols."""

Floats = np.ndarray


@dataclass(frozen=True, eq=False)
class _State:
    """Keep probabilities by classes [tensors, 16, 16], chosen steps [tensors] (places in `STEPS`), and peaks [tensors]."""

    keep: Floats
    steps: Floats
    peaks: Floats
    floor: float


class GridPlanner:
    """The grid plans that one pair's energies allow; as `Planner`, which plans for given bits.

    Args:
        energies: of the pair, each tensor with at least one entry.
        overhead: bytes of the delta beside the tensors planned here.
    """

    def __init__(self, energies: Energies, overhead: int = 0) -> None:
        if not energies.effect > 0:
            raise InputError(
                "the fine-tune does nothing to the outputs that were measured, so no drift can be planned"
            )
        self._effect, self._overhead = energies.effect, overhead
        self._names = list(energies.tensors)
        self._tensors = list(energies.tensors.values())
        self._counts = np.array([t.count for t in self._tensors], np.float64)
        self._energy = np.stack([t.energy for t in self._tensors])
        self._totals = self._energy.sum(axis=(1, 2))
        gradient = np.stack([t.gradient for t in self._tensors])
        sums = gradient.sum(axis=(1, 2), keepdims=True)
        self._gradient = np.divide(gradient, sums, out=np.zeros_like(gradient), where=sums > 0)
        self._noise = np.stack([t.grid_noise for t in self._tensors])
        self._rate = np.maximum(np.stack([t.grid_rate for t in self._tensors]), 1e-3)
        self._sizes = np.stack([t.class_sizes for t in self._tensors])
        self._blocks = np.array([t.blocks for t in self._tensors])
        mean = self._totals.sum() / self._counts.sum()
        if not mean > 0:
            raise InputError("no entry has any energy, so there is nothing to plan by; use --bits and --drop")
        self._mean = mean
        self._known_shapes: dict[float, tuple[Floats, Floats]] = {}
        self._known_codes: dict[float, float] = {}
        self._known_classes: dict[tuple[int, float], tuple[_Merged, _Merged]] = {}

    # Plans ------------------------------------------------------------------------------------------------

    def at_drop(self, keep_map: str, drop_prob: float) -> KeepPlan:
        """The plan that drops this share of all entries, in expectation, with the least product of size and drift.

        Raises:
            InputError: the share is not below 1.
        """
        if not 0 <= drop_prob < 1:
            raise InputError(
                f"a keep map cannot drop the share {drop_prob:g} of the entries: it must lie in [0, 1)"
            )
        wanted = (1 - drop_prob) * self._counts.sum() * (1 - 1e-9)
        plans = [
            self._plan(keep_map, merge, self._highest(keep_map, merge, lambda s, _: self._kept(s) >= wanted))
            for merge in self._merges(keep_map)
        ]
        return min(plans, key=lambda plan: plan.size * plan.drift**2)

    def at_drift(self, keep_map: str, max_drift: float) -> KeepPlan:
        """The smallest plan with at most this predicted drift (relative to the fine-tune's own effect).

        Raises:
            BudgetError: even the finest grid with every entry kept drifts more; the message says how much.
        """
        if not (math.isfinite(max_drift) and max_drift > 0):
            raise InputError(f"the drift {max_drift} must be a finite number above 0")
        budget = max_drift**2 * self._effect
        merges = self._merges(keep_map)
        least = self._drift(self._state(keep_map, merges[0], _LOW))
        if least > budget:
            raise BudgetError(
                f"a drift of {max_drift:g} is out of reach of a grid: with every entry kept on the finest it is predicted "
                f"to be {math.sqrt(least / self._effect):.3g}; use --lossless, or allow more"
            )
        plans = [
            self._plan(keep_map, merge, self._highest(keep_map, merge, lambda s, _: self._drift(s) <= budget))
            for merge in merges
        ]
        return min(plans, key=lambda plan: plan.size)

    def at_size(self, keep_map: str, max_size: int) -> KeepPlan:
        """The plan with the least predicted drift whose delta has, by estimate, at most this many bytes.

        Raises:
            BudgetError: the delta is larger with next to nothing kept; the message says how large.
        """
        merges = self._merges(keep_map)
        least = {merge: self._size(merge, self._state(keep_map, merge, _HIGH)) for merge in merges}
        reachable = [merge for merge in merges if least[merge] <= max_size]
        if not reachable:
            raise BudgetError(
                f"{max_size} bytes are out of reach with the keep map {keep_map!r}: what is stored exactly, the plan and "
                f"the certificate take {math.ceil(min(least.values()))} by themselves"
            )
        plans = [
            self._plan(
                keep_map,
                merge,
                # the lowest price at which the size is met, from above
                min(
                    _HIGH,
                    self._highest(keep_map, merge, lambda s, m: self._size(m, s) > max_size) + 2 * _TOLERANCE,
                ),
            )
            for merge in reachable
        ]
        return min(plans, key=lambda plan: plan.drift)

    # Pieces -----------------------------------------------------------------------------------------------

    def _highest(self, keep_map: str, merge: float, holds: Callable[[_State, float], bool]) -> float:
        """The highest price at which a condition holds that higher prices break."""
        return _largest(lambda price: holds(self._state(keep_map, merge, price), merge))

    def _merges(self, keep_map: str) -> tuple[float, ...]:
        if keep_map not in KEEP_MAPS:
            raise InputError(f"the keep map {keep_map!r} is none of {', '.join(KEEP_MAPS)}")
        return MERGES if keep_map == "factored" else (math.inf,)

    def _classes(self, number: int, merge: float) -> tuple[_Merged, _Merged]:
        """Row and column classes of a tensor, merged."""
        known = self._known_classes
        if (number, merge) not in known:
            known[number, merge] = self._merged_classes(number, merge)
        return known[number, merge]

    def _merged_classes(self, number: int, merge: float) -> tuple[_Merged, _Merged]:
        tensor = self._tensors[number]
        flat = math.isinf(merge) or 1 in (tensor.rows.size, tensor.columns.size) or not tensor.total > 0
        return (
            _merged(*tensor.row_classes, math.inf if flat else merge),
            _merged(*tensor.column_classes, math.inf if flat else merge),
        )

    def _shapes(self, merge: float) -> tuple[Floats, Floats]:
        """Square roots of R_i C_j over mean A by classes [tensors, 16, 16], and their values for the classes (0, 0)."""
        known = self._known_shapes
        if merge not in known:
            shapes, tops = [], []
            for number, tensor in enumerate(self._tensors):
                rows, columns = self._classes(number, merge)
                mean = tensor.total / tensor.count
                top = math.prod(math.sqrt(side.top / mean) for side in (rows, columns) if side.top)
                row_powers = np.sqrt(rows.ratio) ** (np.arange(CLASSES) // rows.size)
                column_powers = np.sqrt(columns.ratio) ** (np.arange(CLASSES) // columns.size)
                shapes.append(top * np.multiply.outer(row_powers, column_powers))
                tops.append(top)
            known[merge] = np.stack(shapes), np.array(tops)
        return known[merge]

    def _state(self, keep_map: str, merge: float, price: float) -> _State:
        """What is best at a price, the base-2 logarithm of energy a bit over the mean energy of an entry."""
        at = np.arange(len(self._counts))
        cost = self._mean * 2.0**price * self._counts[:, None] * self._rate
        energy = self._totals[:, None] + self._noise
        if keep_map == "uniform":
            keep, chosen = 1.0, np.zeros(len(at), np.int64)
            for _ in range(4):
                chosen = np.argmin(self._noise / keep + cost * keep, axis=1)
                keep = min(1.0, math.sqrt(energy[at, chosen].sum() / cost[at, chosen].sum()))
            peaks = np.full(len(at), keep)
        else:
            free = np.minimum(1.0, np.sqrt(energy / cost))
            free = np.maximum(free, 1e-12)
            chosen = np.argmin(energy / free + cost * free, axis=1)
            peaks = np.sqrt(energy[at, chosen] / cost[at, chosen])
        shapes, tops = self._shapes(merge)
        values = peaks[:, None, None] * shapes
        mean = self._average(np.minimum(values, 1.0))
        for _ in range(_FLOOR_ROUNDS):
            before, mean = mean, self._average(np.clip(values, min(1.0, FLOOR * mean), 1.0))
            if mean == before:
                break
        floor = min(1.0, max(FLOOR * mean, 2.0**-31))
        return _State(np.clip(values, floor, 1.0), chosen, peaks * tops, floor)

    def _average(self, values: Floats) -> float:
        return float((values * self._sizes).sum() / self._counts.sum())

    def _kept(self, state: _State) -> float:
        return float((state.keep * self._sizes).sum())

    def _drift(self, state: _State) -> float:
        """Predicted mean-square drift, in units of the energies."""
        noise = self._noise[np.arange(len(self._counts)), state.steps] * (self._gradient / state.keep).sum(
            axis=(1, 2)
        )
        return float((self._energy * (1 / state.keep - 1)).sum() + noise.sum())

    def _size(self, merge: float, state: _State) -> float:
        """Estimated bytes of the delta."""
        survivors = (state.keep * self._sizes).sum(axis=(1, 2))
        payload = (survivors * self._rate[np.arange(len(survivors)), state.steps]).sum() / 8
        fixed = (self._blocks * _BLOCK_BYTES + _RECORD_BYTES).sum() + self._codes_bytes(merge)
        return float(payload + fixed) + self._overhead

    def _codes_bytes(self, merge: float) -> float:
        known = self._known_codes
        if merge not in known:
            total = 0.0
            for number in range(len(self._tensors)):
                pair = self._classes(number, merge)
                bits = sum(entropy(np.bincount(side.codes)) * side.codes.size for side in pair)
                total += bits / 8 + (_CODES_BYTES if bits else 6)
            known[merge] = total
        return known[merge]

    def _plan(self, keep_map: str, merge: float, price: float) -> KeepPlan:
        """Round the keep probabilities to thresholds, and predict what these do."""
        state = self._state(keep_map, merge, price)
        keep, thresholds, steps = state.keep.copy(), {}, {}
        for number, name in enumerate(self._names):
            rows, columns = self._classes(number, merge)
            top = min(2.0**30, max(float(state.peaks[number]), state.floor))
            made = factors_from(
                rows.codes, columns.codes, math.sqrt(rows.ratio), math.sqrt(columns.ratio), top, state.floor
            )
            thresholds[name] = made
            steps[name] = STEPS[state.steps[number]] * self._tensors[number].deviation
            levels = np.arange(CLASSES)
            table = made.thresholds[(levels // rows.size)[:, None], (levels // columns.size)[None, :]]
            keep[number] = table / KEEP_ONE
        final = _State(keep, state.steps, state.peaks, state.floor)
        return KeepPlan(
            keep_map,
            GRID,
            thresholds,
            math.sqrt(self._drift(final) / self._effect),
            math.ceil(self._size(merge, final)),
            self._average(keep),
            steps,
        )


@dataclass(frozen=True, eq=False)
class _Merged:
    """Classes of `size` neighbours: their codes, what the first stands for, and the ratio between neighbours."""

    codes: Codes
    top: float
    ratio: float
    size: int


def _merged(codes: Codes, top: float, ratio: float, width: float) -> _Merged:
    """Merge classes until each spans about `width` in the logarithm; all of them where that is infinite."""
    if math.isinf(width) or ratio == 1.0:
        return _Merged(np.zeros_like(codes), 0.0, 1.0, CLASSES)
    size = max(1, min(CLASSES, round(width / -math.log(ratio))))
    if size == CLASSES:
        return _Merged(np.zeros_like(codes), 0.0, 1.0, CLASSES)
    return _Merged(codes // size, top * ratio ** ((size - 1) / 2), ratio**size, size)


def _largest(holds: Callable[[float], bool], low: float = _LOW, high: float = _HIGH) -> float:
    """The largest number, to `_TOLERANCE`, at which a condition holds that holds at `low`, and fails above."""
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def planner_for(energies: Energies, bits: int, overhead: int = 0) -> Planner | GridPlanner:
    """The planner of a grid, or of survivors of the given bits."""
    return GridPlanner(energies, overhead) if bits == GRID else Planner(energies, bits, overhead)


__all__ = ["MERGES", "GridPlanner", "planner_for"]
