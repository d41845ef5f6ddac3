"""Derandomised masks: deterministic masks whose error is provably at most a random mask's expectation.

Row i of a layer has error F(e) = e^T M e with e_j = w_j (dropped) or w_j (1 - 1/q) (kept), M = E x x^T.

* **D1** visits the columns in one order for all rows and takes the branch of smaller conditional
  expectation of F + penalty * kept under independent masks.  F + penalty * kept never exceeds its
  expectation; the penalty is tuned to the asked count and a last few flips make the count exact.
* **D2** conditions on exactly K keeps per row: the count is exact and F <= E_K F.
* **D3** swaps a kept and a dropped entry while that lowers F: count and guarantees persist.

D1 and D2 cost O(m n^2), done as blocked matrix products with a compiled step inside a block; D3 costs
O(n^2) per swap and is for small layers.  Specification 1.i.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from assay.core.errors import InputError
from assay.missions.dare import _checks
from assay.missions.dare.model import Floats

Bools = NDArray[np.bool_]
Method = Literal["d1", "d2", "d2+d3"]

_BLOCK = 128
_PILOT_ROWS = 256
_FULL_PASSES = 8


@dataclass(frozen=True, eq=False)
class Mask:
    """A chosen mask and what is known of it.

    Attributes:
        keep: True where an entry is kept [m, n].
        kept: how many are.
        layer_error: E||Ex||^2 = tr(E M E^T) of this mask.
        guarantee: a proved upper bound on ``layer_error`` (up to rounding).
        expected_random: E||Ex||^2 of a random mask at the same drop probability and rescale.
        rescale: q, what survivors are to be divided by.
        method: ``d1``, ``d2`` or ``d2+d3``.
        penalty: D1's price of a kept entry, 0 for the others.
    """

    keep: Bools
    kept: int
    layer_error: float
    guarantee: float
    expected_random: float
    rescale: float
    method: str
    penalty: float


def fixed_size_expectation(weights: Any, second_moment: Any, kept: int, rescale: Any) -> Any:
    """E_K F: mean of F(e) = e^T M e over uniform masks with exactly K keeps of n.

    With pi = K/n, A = w^T M w, T = sum w_j^2 M_jj:

        E_K F = (1-pi/q)^2 A + pi(1-pi)/q^2 * n/(n-1) * (T - A/n)      (n = 1: last term 0).

    Args:
        weights: w [n].
        second_moment: M [n][n].
        kept: K in 0..n.
        rescale: q > 0.

    Returns:
        A Fraction for rational arguments, a float otherwise.

    >>> fixed_size_expectation([1, 2], [[2, 1], [1, 2]], 1, Fraction(1, 2))
    Fraction(6, 1)
    """
    count = len(weights)
    if kept != int(kept) or not 0 <= kept <= count:
        raise InputError(f"kept is {kept}; it counts entries, so it lies in 0..{count}")
    _checks.rescale_or_keep(rescale, None)
    if count == 0:
        return 0
    if all(_checks.is_exact(row) for row in second_moment) and _checks.is_exact(weights, rescale):
        w = _checks.fractions(weights)
        q: Any = _checks.fractions([rescale])[0]
        m = [_checks.fractions(row) for row in second_moment]
        a: Any = sum(w[i] * m[i][j] * w[j] for i in range(count) for j in range(count))
        t: Any = sum(w[j] ** 2 * m[j][j] for j in range(count))
        pi: Any = Fraction(int(kept), count)
    else:
        v = _checks.array(weights, "weights", 1)
        moment = _checks.full_second_moment(second_moment, count)
        a, t, q, pi = float(v @ moment @ v), float(v**2 @ moment.diagonal()), float(rescale), kept / count
    beta = 1 - pi / q
    spread = pi * (1 - pi) / q**2 * count * (t - a / count) / (count - 1) if count > 1 else 0
    return beta**2 * a + spread


def layer_error(delta: ArrayLike, second_moment: ArrayLike, keep: ArrayLike, rescale: float) -> float:
    """tr(E M E^T) of a mask: E = delta - delta o keep/rescale."""
    weights, moment = _weights_and_moment(delta, second_moment)
    return _total_error(_realised(weights, np.asarray(keep, dtype=bool), float(rescale)), moment)


def derandomise(
    delta: ArrayLike,
    second_moment: ArrayLike,
    drop_prob: float,
    *,
    rescale: float | None = None,
    method: Method = "d1",
    kept: int | None = None,
    penalty: float | None = None,
) -> Mask:
    """A deterministic mask of the layer with a guaranteed error.

    Args:
        delta: dW [m, n].
        second_moment: M = E x x^T [n, n].
        drop_prob: p in (0, 1).
        rescale: q; ``None`` is 1 - p.
        method: ``d1`` (default; exact total count), ``d2`` (exact count in every row), ``d2+d3``.
        kept: total number of kept entries for ``d1``; ``None`` is round((1-p) m n).
        penalty: fix D1's price of a kept entry instead of a count; 0 gives error at most
            ``expected_random`` and whatever count comes out.

    Returns:
        The mask, its realised error and the bound on it.  With D1 at a count of K' before the last flips,
        which change the error by D, the bound is expected_random + penalty ((1-p) m n - K') + D.

    Raises:
        InputError: shapes that do not fit, p not in (0, 1), a count outside 0..mn, or ``kept`` and
            ``penalty`` where they do not apply.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((64, 4)) @ rng.standard_normal((4, 32))
    >>> mask = derandomise(rng.standard_normal((8, 32)), x.T @ x / 64, 0.75)
    >>> mask.kept, mask.layer_error <= mask.guarantee <= 1.01 * mask.expected_random
    (64, True)
    """
    _checks.choice(method, "method", get_args(Method))
    weights, moment = _weights_and_moment(delta, second_moment)
    p = float(_checks.probability(drop_prob, "drop_prob"))
    if not 0.0 < p < 1.0:
        raise InputError(
            f"drop_prob is {drop_prob}; a mask is chosen for a probability strictly between 0 and 1"
        )
    q = float(_checks.rescale_or_keep(rescale, p))
    if weights.size == 0:
        return Mask(np.zeros(weights.shape, dtype=bool), 0, 0.0, 0.0, 0.0, q, method, 0.0)
    if method != "d1" and (kept is not None or penalty is not None):
        raise InputError(
            f"kept and penalty belong to method 'd1'; '{method}' keeps round((1-p) n) in every row"
        )
    if kept is not None and penalty is not None:
        raise InputError("give kept or penalty, not both: one determines the other")
    energy = float(np.sum((weights @ moment) * weights))
    spread = float((weights**2 @ moment.diagonal()).sum())
    random = (1.0 - (1.0 - p) / q) ** 2 * energy + p * (1.0 - p) / q**2 * spread
    # Largest weighted columns first: a heuristic only, the guarantee holds in every order.
    order = np.argsort(-(weights**2).sum(axis=0) * moment.diagonal(), kind="stable")
    ordered, shuffled = (
        np.ascontiguousarray(weights[:, order]),
        np.ascontiguousarray(moment[np.ix_(order, order)]),
    )
    if method == "d1":
        layer = _Layer(ordered, shuffled, p, q)
        if penalty is None:
            target = round((1.0 - p) * weights.size) if kept is None else int(kept)
            if not 0 <= target <= weights.size:
                raise InputError(f"kept is {kept}; it counts entries, so it lies in 0..{weights.size}")
            price, chosen = layer.tuned(target)
            bound = random + price * ((1.0 - p) * weights.size - int(chosen.sum()))
            chosen, change = layer.settled(chosen, target)
            bound += change
        else:
            price = float(penalty)
            chosen = layer.decide(price)
            bound = random + price * ((1.0 - p) * weights.size - int(chosen.sum()))
    else:
        price = 0.0
        count = round((1.0 - p) * weights.shape[1])
        chosen, bound = _fixed_size(ordered, shuffled, count, q)
        if method == "d2+d3":
            _swap_descent(ordered, shuffled, chosen, q)
    error = _total_error(_realised(ordered, chosen, q), shuffled)
    keep = np.empty_like(chosen)
    keep[:, order] = chosen
    return Mask(keep, int(keep.sum()), error, bound, random, q, method, price)


# --- D1 ----------------------------------------------------------------------------------------------


class _Layer:
    """D1 on one layer whose columns are already in order of decision."""

    def __init__(self, weights: Floats, moment: Floats, drop_prob: float, rescale: float) -> None:
        self.weights, self.moment, self.rescale = weights, moment, rescale
        self.undecided = 1.0 - (1.0 - drop_prob) / rescale
        # The gradient E M at the start, where every entry is undecided.
        self.start = weights @ moment * self.undecided
        # The size of one entry's cost, where the search for a penalty starts; any number for a zero layer.
        self.scale = float((weights**2 @ moment.diagonal()).mean()) / weights.shape[1] / rescale**2 or 1.0

    def decide(self, penalty: float, rows: slice = slice(None)) -> Bools:
        """One pass over all columns: True where keeping has the smaller conditional expectation."""
        weights, gradient = self.weights[rows], self.start[rows].copy()
        keep = np.empty(weights.shape, dtype=bool)
        n = weights.shape[1]
        for begin in range(0, n, _BLOCK):
            end = min(begin + _BLOCK, n)
            block = slice(begin, end)
            change = np.empty((weights.shape[0], end - begin))
            _decide_block(
                np.ascontiguousarray(weights[:, block]),
                np.ascontiguousarray(gradient[:, block]),
                np.ascontiguousarray(self.moment[block, block]),
                self.undecided,
                1.0 - 1.0 / self.rescale,
                penalty,
                keep[:, block],
                change,
            )
            if end < n:
                gradient[:, end:] += change @ self.moment[block, end:]
        return keep

    def tuned(self, target: int) -> tuple[float, Bools]:
        """A penalty whose pass keeps about ``target`` entries (within m where the count allows)."""
        m = self.weights.shape[0]
        stride = max(1, m // _PILOT_ROWS)
        pilot = slice(0, None, stride)
        pilot_rows = len(range(m)[pilot])
        passes: dict[float, Bools] = {}

        def pilot_count(penalty: float) -> int:
            return int(self.decide(penalty, pilot).sum())

        def full_count(penalty: float) -> int:
            # Only the closest pass is kept: a mask of a large layer is large.
            keep = self.decide(penalty)
            best = next(iter(passes.values()), None)
            if best is None or abs(int(keep.sum()) - target) < abs(int(best.sum()) - target):
                passes.clear()
                passes[penalty] = keep
            return int(keep.sum())

        # The pilot starts from scratch by halving; the full passes start close and interpolate.
        aim = round(target * pilot_rows / m)
        guess = _solve_count(pilot_count, aim, (-self.scale, self.scale), max(1, pilot_rows // 8), 40)
        width = 0.01 * abs(guess) + 1e-4 * self.scale
        _solve_count(full_count, target, (guess - width, guess + width), m, _FULL_PASSES)
        return next(iter(passes.items()))

    def settled(self, keep: Bools, target: int) -> tuple[Bools, float]:
        """Flip the cheapest entries, spread over the rows, until ``target`` are kept.

        Returns:
            The mask with exactly ``target`` keeps, and the change of the error.
        """
        excess = int(keep.sum()) - target
        if excess == 0:
            return keep, 0.0
        before = _total_error(_realised(self.weights, keep, self.rescale), self.moment)
        keep = keep.copy()
        rows = np.arange(keep.shape[0])[:, None]
        while excess != 0:
            to_drop = excess > 0
            gradient = _realised(self.weights, keep, self.rescale) @ self.moment
            step = self.weights * ((1.0 if to_drop else -1.0) / self.rescale)
            cost = np.where(keep == to_drop, 2.0 * step * gradient + step**2 * self.moment.diagonal(), np.inf)
            # Costs are exact for one flip a row; a small excess takes no more.
            each = max(1, abs(excess) // keep.shape[0])
            columns = np.argpartition(cost, each - 1, axis=1)[:, :each]
            costs = cost[rows, columns].ravel()
            cheapest = np.argsort(costs, kind="stable")[: min(abs(excess), int(np.isfinite(costs).sum()))]
            keep[cheapest // each, columns.ravel()[cheapest]] = not to_drop
            excess += -cheapest.size if to_drop else cheapest.size
        return keep, _total_error(_realised(self.weights, keep, self.rescale), self.moment) - before


def _solve_count(
    count: Callable[[float], int], target: int, bracket: tuple[float, float], tolerance: int, evaluations: int
) -> float:
    """A penalty whose count is within ``tolerance`` of ``target``; counts fall as penalties rise.

    Widens the bracket until it holds the target, then halves it with interpolation in between.
    Conditional-expectation counts are monotone only nearly, so the closest penalty seen is returned.
    """
    seen: dict[float, int] = {}
    budget = evaluations

    def gap(penalty: float) -> int:
        nonlocal budget
        budget -= 1
        seen[penalty] = count(penalty) - target
        return seen[penalty]

    def good() -> bool:
        return min(map(abs, seen.values())) <= tolerance or budget <= 0

    low, high = bracket
    width = high - low
    below = gap(low)
    while below < 0 and not good():
        high, (low, width) = low, (low - 4.0 * width, 4.0 * width)
        below = gap(low)
    above = seen[high] if high in seen else 0 if good() else gap(high)
    while above > 0 and not good():
        low, below = high, above
        high, width = high + 4.0 * width, 4.0 * width
        above = gap(high)
    interpolate = True
    while not good():
        share = below / (below - above) if interpolate and below > above else 0.5
        middle = low + min(max(share, 0.05), 0.95) * (high - low)
        if middle in seen:
            break
        value = gap(middle)
        if value > 0:
            low, below = middle, value
        else:
            high, above = middle, value
        interpolate = not interpolate
    return min(seen, key=lambda penalty: (abs(seen[penalty]), penalty))


@njit(cache=True, nogil=True)
def _decide_block(weights, gradient, moment, undecided, kept_factor, penalty, keep, change):
    """D1 inside a block of columns; writes ``keep`` and the change of E, updates ``gradient``."""
    rows, columns = weights.shape
    for i in range(rows):
        for j in range(columns):
            w, d = weights[i, j], moment[j, j]
            mean = undecided * w
            base = gradient[i, j] - mean * d
            kept = kept_factor * w
            drop_cost = 2.0 * w * base + w * w * d
            keep_cost = 2.0 * kept * base + kept * kept * d + penalty
            chosen = keep_cost < drop_cost
            keep[i, j] = chosen
            step = (kept if chosen else w) - mean
            change[i, j] = step
            for k in range(j + 1, columns):
                gradient[i, k] += step * moment[j, k]


# --- D2 and D3 ---------------------------------------------------------------------------------------


def _fixed_size(weights: Floats, moment: Floats, count: int, rescale: float) -> tuple[Bools, float]:
    """D2 on every row: exactly ``count`` keeps each; returns the mask and sum of E_K F."""
    m, n = weights.shape
    undecided = weights @ moment  # M w_U per row
    decided = np.zeros_like(weights)  # M e_D per row
    diagonal = moment.diagonal()
    # Per row: C = e_D M e_D, c = e_D M w_U, A = w_U M w_U, T = sum_U w^2 M_jj, keeps left.
    state = np.zeros((m, 5))
    state[:, 2] = np.sum(undecided * weights, axis=1)
    state[:, 3] = weights**2 @ diagonal
    state[:, 4] = count
    pi = count / n
    spread = pi * (1.0 - pi) / rescale**2 * (n * state[:, 3] - state[:, 2]) / (n - 1) if n > 1 else 0.0
    bound = float(np.sum((1.0 - pi / rescale) ** 2 * state[:, 2] + spread))
    keep = np.empty((m, n), dtype=bool)
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        block = slice(begin, end)
        errors = np.empty((m, end - begin))
        _fixed_size_block(
            np.ascontiguousarray(weights[:, block]),
            np.ascontiguousarray(undecided[:, block]),
            np.ascontiguousarray(decided[:, block]),
            np.ascontiguousarray(moment[block, block]),
            rescale,
            n - begin,
            state,
            keep[:, block],
            errors,
        )
        if end < n:
            undecided[:, end:] -= weights[:, block] @ moment[block, end:]
            decided[:, end:] += errors @ moment[block, end:]
    return keep, bound


@njit(cache=True, nogil=True)
def _fixed_size_value(decided, cross, energy, trace, left, remaining, rescale):
    """Conditional expectation of F with ``left`` keeps among ``remaining`` undecided entries."""
    if remaining == 0:
        return decided
    pi = left / remaining
    beta = 1.0 - pi / rescale
    value = decided + 2.0 * beta * cross + beta * beta * energy
    if remaining > 1:
        value += pi * (1.0 - pi) / rescale**2 * (remaining * trace - energy) / (remaining - 1)
    return value


@njit(cache=True, nogil=True)
def _fixed_size_block(weights, undecided, decided, moment, rescale, remaining, state, keep, errors):
    """D2 inside a block of columns, of which ``remaining`` (this one included) are undecided at its start."""
    rows, columns = weights.shape
    for i in range(rows):
        c, cross, energy, trace, left = state[i]
        for j in range(columns):
            w, d, rest = weights[i, j], moment[j, j], remaining - j
            energy_after = energy - 2.0 * w * undecided[i, j] + w * w * d
            trace_after = trace - w * w * d
            kept = w * (1.0 - 1.0 / rescale)
            c_drop = c + 2.0 * w * decided[i, j] + w * w * d
            c_keep = c + 2.0 * kept * decided[i, j] + kept * kept * d
            cross_drop = cross - w * decided[i, j] + w * (undecided[i, j] - w * d)
            cross_keep = cross - w * decided[i, j] + kept * (undecided[i, j] - w * d)
            drop = _fixed_size_value(c_drop, cross_drop, energy_after, trace_after, left, rest - 1, rescale)
            stay = _fixed_size_value(
                c_keep, cross_keep, energy_after, trace_after, left - 1, rest - 1, rescale
            )
            chosen = left > 0 and (left == rest or stay < drop)
            keep[i, j] = chosen
            error = kept if chosen else w
            errors[i, j] = error
            energy, trace = energy_after, trace_after
            if chosen:
                c, cross, left = c_keep, cross_keep, left - 1
            else:
                c, cross = c_drop, cross_drop
            for k in range(j + 1, columns):
                undecided[i, k] -= w * moment[j, k]
                decided[i, k] += error * moment[j, k]
        state[i, 0], state[i, 1], state[i, 2], state[i, 3], state[i, 4] = c, cross, energy, trace, left


@njit(cache=True, nogil=True)
def _swap_descent(weights, moment, keep, rescale):
    """D3 on every row, in place: the best swap again and again while it lowers F by 1e-12 of itself."""
    rows, n = weights.shape
    for i in range(rows):
        error = weights[i] * (1.0 - keep[i] / rescale)
        gradient = moment @ error
        total = error @ gradient
        for _ in range(n * n):
            best, best_in, best_out = -1e-12 * total, -1, -1
            for a in range(n):
                if not keep[i, a]:
                    continue
                gain_a = weights[i, a] / rescale
                cost_a = 2.0 * gain_a * gradient[a] + gain_a * gain_a * moment[a, a]
                for b in range(n):
                    if keep[i, b]:
                        continue
                    gain_b = -weights[i, b] / rescale
                    cost = cost_a + 2.0 * gain_b * gradient[b] + gain_b * gain_b * moment[b, b]
                    cost += 2.0 * gain_a * gain_b * moment[a, b]
                    if cost < best:
                        best, best_out, best_in = cost, a, b
            if best_in < 0:
                break
            keep[i, best_out], keep[i, best_in] = False, True
            gradient += moment[best_out] * (weights[i, best_out] / rescale)
            gradient -= moment[best_in] * (weights[i, best_in] / rescale)
            total += best


# --- pieces ------------------------------------------------------------------------------------------


def _weights_and_moment(delta: ArrayLike, second_moment: ArrayLike) -> tuple[Floats, Floats]:
    weights = _checks.array(delta, "delta", 2)
    return weights, _checks.full_second_moment(second_moment, weights.shape[1])


def _realised(weights: Floats, keep: Bools, rescale: float) -> Floats:
    return np.where(keep, weights * (1.0 - 1.0 / rescale), weights)


def _total_error(error: Floats, moment: Floats) -> float:
    return math.fsum(np.sum((error @ moment) * error, axis=1))
