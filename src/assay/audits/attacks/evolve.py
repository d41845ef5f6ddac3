"""The evolve attack: derivative-free optimisation of the slack over one shape after another.

Differential evolution (scipy) up to `LOW_DIMENSION` numbers, CMA-ES (the library `cma`) above, where the budget is
worth its import.  Each restart draws a shape and how the ranges are warped, so that pockets near an end or near 0
are as easy to hit as any.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from assay.audits.space import Leaf, Shape, flatten, leaves, random_shape, shapes
from assay.audits.space import propose as build
from assay.audits.target import BROKEN, Target

LOW_DIMENSION = 10
WORTH_CMA = 5.0
"""Seconds of budget from which the library `cma`, which takes seconds to import, is worth importing."""

PATIENCE = 0.3
"""Share of the budget after which it is imported: easy prey has fallen by then."""

WARPS = ("linear", "linear", "ends", "zero")


class Evolve:
    """Restart after restart: small shapes in turn, then any."""

    def __init__(self, target: Target, rng: random.Random) -> None:
        self._target, self._rng = target, rng
        self._kind = target.claim.instance
        self._first = [s for s in shapes(self._kind) if len(leaves(self._kind, s)) <= LOW_DIMENSION]
        self._restarts = itertools.count()
        self._worth_cma = target.seconds >= WORTH_CMA and find_spec("cma") is not None

    def run(self) -> None:
        """Optimise until the target stops it."""
        while True:
            shape = self._next_shape(next(self._restarts))
            parts = leaves(self._kind, shape)
            if not parts:
                empty = build(self._kind, shape, ())
                if empty is not None:
                    self._target.consider(empty)
                if len(self._first) <= 1:
                    return
                continue
            landscape = Landscape(self._target, shape, parts, self._warps(parts))
            if len(parts) <= LOW_DIMENSION or not self._may_use_cma():
                self._differential_evolution(landscape)
            else:
                self._cma(landscape)

    def _may_use_cma(self) -> bool:
        late = self._target.elapsed > PATIENCE * self._target.seconds
        return "cma" in sys.modules or (self._worth_cma and late)

    def _next_shape(self, restart: int) -> Shape:
        """Small shapes in turn; every third restart the closest approach's, every fourth a random one."""
        if restart % 3 == 2 and self._target.closest is not None:
            return flatten(self._target.closest.instance)[0]
        if self._first and restart % 4 != 3:
            return self._first[restart % len(self._first)]
        return random_shape(self._kind, self._rng)

    def _warps(self, parts: Sequence[Leaf]) -> list[str]:
        by_field = {leaf.name: self._rng.choice(WARPS) for leaf in parts}
        return [by_field[leaf.name] for leaf in parts]

    def _differential_evolution(self, landscape: Landscape) -> None:
        from scipy.optimize import differential_evolution

        dimension = len(landscape.parts)
        differential_evolution(
            landscape,
            [(0.0, 1.0)] * dimension,
            popsize=max(5, 24 // dimension),
            maxiter=60,
            tol=1e-9,
            polish=False,
            init="random",
            rng=np.random.default_rng(self._rng.getrandbits(64)),
        )

    def _cma(self, landscape: Landscape) -> None:
        import cma

        dimension = len(landscape.parts)
        start = [self._rng.random() for _ in range(dimension)]
        closest = self._target.closest
        if (
            closest is not None
            and flatten(closest.instance)[0] == landscape.shape
            and self._rng.random() < 0.5
        ):
            start = landscape.positions(closest.instance)
        options = {
            "bounds": [0, 1],
            "verbose": -9,
            "seed": self._rng.getrandbits(31) + 1,
            "maxfevals": 200 * dimension,
        }
        state = cma.CMAEvolutionStrategy(start, self._rng.choice((0.05, 0.3)), options)
        while not state.stop():
            points = state.ask()
            state.tell(points, [landscape(point) for point in points])


class Landscape:
    """The slack as a function on the unit cube, for one shape."""

    def __init__(self, target: Target, shape: Shape, parts: Sequence[Leaf], warps: Sequence[str]) -> None:
        self.shape, self.parts = shape, parts
        self._target, self._warps = target, warps

    def __call__(self, position: Any) -> float:
        values = [
            leaf.at(min(max(float(u), 0.0), 1.0), warp)
            for leaf, u, warp in zip(self.parts, position, self._warps, strict=True)
        ]
        instance = build(self._target.claim.instance, self.shape, values)
        return BROKEN + 1 if instance is None else self._target.consider(instance)

    def positions(self, instance: Any) -> list[float]:
        """Where `instance` lies on the cube, under linear warps."""
        return [leaf.position(v) for leaf, v in zip(self.parts, flatten(instance)[1], strict=True)]
