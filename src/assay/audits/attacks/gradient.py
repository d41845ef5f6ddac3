"""The gradient attack: bounded quasi-Newton descent of the slack, with numerical derivatives.

It polishes the closest approaches that the other attacks left, and descends from random points of larger shapes.
"""

from __future__ import annotations

import heapq
import math
import random
from typing import Any

from assay.audits.attacks.evolve import Landscape
from assay.audits.space import Value, flatten, leaves, random_shape
from assay.audits.target import BROKEN, Target

BEST = 8
STEP = 1e-5


class Gradient:
    """L-BFGS-B from the best of the trace and from random points, in turn."""

    def __init__(self, target: Target, rng: random.Random) -> None:
        self._target, self._rng = target, rng
        self._kind = target.claim.instance
        self._unfinished: Descent | None = None

    def run(self) -> None:
        """Descend until the target stops it."""
        from scipy.optimize import minimize

        idle = 0
        while idle < 100:
            shape, values = self._start()
            parts = leaves(self._kind, shape)
            if not parts:
                idle += 1
                continue
            idle = 0
            landscape = Landscape(self._target, shape, parts, ["linear"] * len(parts))
            descent = Descent(landscape)
            self._unfinished = descent
            start = [leaf.position(v) for leaf, v in zip(parts, values, strict=True)]
            if landscape(start) >= BROKEN and self._rng.random() < 0.9:
                continue
            bounds = [(0.0, 1.0)] * len(parts)
            minimize(
                descent,
                start,
                method="L-BFGS-B",
                bounds=bounds,
                options={"eps": STEP, "maxfun": 40 * len(parts)},
            )
            self._unfinished = None

    def _start(self) -> tuple[tuple[object, ...], list[Value]]:
        """Where the last descent was interrupted, one of the best of the trace, or a random point."""
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None and unfinished.best is not None:
            parts = unfinished.landscape.parts
            values = [leaf.at(float(u)) for leaf, u in zip(parts, unfinished.best, strict=True)]
            return unfinished.landscape.shape, values
        if self._target.trace and self._rng.random() < 0.5:
            best = heapq.nsmallest(BEST, self._target.trace, key=lambda a: a.slack)
            return flatten(self._rng.choice(best).instance)
        shape = random_shape(self._kind, self._rng)
        return shape, [leaf.at(self._rng.random()) for leaf in leaves(self._kind, shape)]


class Descent:
    """One descent, which remembers the best point it saw, so that it can go on from there."""

    def __init__(self, landscape: Landscape) -> None:
        self.landscape = landscape
        self.best: Any = None
        self._least = math.inf

    def __call__(self, position: Any) -> float:
        value = unsaturated(self.landscape(position))
        if value < self._least:
            self.best, self._least = position.copy(), value
        return value


def unsaturated(slack: float) -> float:
    """A monotone function of the slack that does not level off where one side is much the larger.

    ``ln(larger/smaller)`` for sides of one sign; beyond, 40 and the logarithm of their distance.

    >>> round(unsaturated(0.75), 6), unsaturated(-0.5) < 0 < unsaturated(1.5) < unsaturated(1.75)
    (1.386294, True)
    """
    if slack < 1:
        return min(40.0, -math.log1p(-slack))
    return 40.0 - math.log(max(2 - slack, 1e-12)) if slack < 2 else 70.0 + slack
