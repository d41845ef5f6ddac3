"""Exact laws of samplers whose randomness is finite: every path of a draw is walked, and weighed.

A sampler asks its `random.Random` for choices among finitely many, or whether a uniform is below a number; both
branch into finitely many cases of known probability.  What asks for more, a Gaussian say, is not finite.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from assay.core.number import Ball

MAX_PATHS = 4096
"""A draw with more paths than this is left to sampling."""

MAX_QUESTIONS = 256
"""A draw that asks more often on one path may never end."""


class NotFinite(Exception):
    """The draw asks for randomness that is not finite, or for too much of it."""


class Branch(random.Random):
    """A generator that answers as `prefix` prescribes, with the first case where nothing is prescribed.

    `trail` holds, per question, the case taken and the probabilities of all cases.
    """

    def __init__(self, prefix: Sequence[int]) -> None:
        super().__init__(0)
        self._prefix = prefix
        self.trail: list[tuple[int, Sequence[Fraction]]] = []
        self.probability = Fraction(1)

    def pick(self, shares: Sequence[Fraction]) -> int:
        """One of these cases, of which none may have the share 0."""
        place = len(self.trail)
        if place == MAX_QUESTIONS:
            raise NotFinite
        taken = self._prefix[place] if place < len(self._prefix) else 0
        self.trail.append((taken, shares))
        self.probability *= shares[taken]
        return taken

    def _randbelow(self, n: int) -> int:
        """What `choice`, `randrange`, `shuffle` and `sample` ask."""
        if n > MAX_PATHS:
            raise NotFinite
        return self.pick([Fraction(1, n)] * n)

    def choices(
        self, population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1
    ) -> list[Any]:
        """As `random.Random.choices`, with the weights taken exactly."""
        if cum_weights is not None:
            weights = [b - a for a, b in zip([0, *cum_weights], cum_weights, strict=False)]
        exact = [Fraction(w) for w in (weights if weights is not None else [1] * len(population))]
        possible = [i for i, w in enumerate(exact) if w != 0]
        shares = [exact[i] / sum(exact) for i in possible]
        return [population[possible[self.pick(shares)]] for _ in range(k)]

    def random(self) -> Any:
        """A uniform of which no more is known than it is compared for."""
        return Uniform(self)

    def getrandbits(self, k: int) -> int:
        """A branch per value."""
        return self._randbelow(1 << k)

    def gauss(self, *_: Any, **__: Any) -> float:
        """Not finite."""
        raise NotFinite

    normalvariate = expovariate = gammavariate = betavariate = lognormvariate = uniform = triangular = gauss
    vonmisesvariate = paretovariate = weibullvariate = gauss


class Uniform:
    """A uniform on [0, 1), known to lie in an interval that every comparison narrows."""

    def __init__(self, branch: Branch) -> None:
        self._branch, self._low, self._high = branch, Fraction(0), Fraction(1)

    def _below(self, other: Any) -> bool:
        if not isinstance(other, int | float | Fraction):
            raise NotFinite
        cut = Fraction(other)
        if cut <= self._low or cut >= self._high:
            return cut >= self._high
        share = (cut - self._low) / (self._high - self._low)
        below = self._branch.pick([share, 1 - share]) == 0
        self._low, self._high = (self._low, cut) if below else (cut, self._high)
        return below

    def __lt__(self, other: Any) -> bool:
        return self._below(other)

    __le__ = __lt__

    def __gt__(self, other: Any) -> bool:
        return not self._below(other)

    __ge__ = __gt__


def law_of(draw: Callable[[Any, random.Random], Any], instance: Any) -> list[tuple[Any, Fraction]] | None:
    """Every value that `draw` may return on `instance`, with its probability; None where that is not finite.

    >>> walk = lambda n, rng: abs(sum(rng.choice((-1, 1)) for _ in range(n)))
    >>> sum(value * prob for value, prob in law_of(walk, 4))
    Fraction(3, 2)
    >>> law_of(lambda p, rng: int(rng.random() < p), Fraction(1, 3))
    [(1, Fraction(1, 3)), (0, Fraction(2, 3))]
    >>> law_of(lambda s, rng: rng.gauss(0, s), 1) is None
    True
    """
    law: list[tuple[Any, Fraction]] = []
    prefix: list[int] = []
    while True:
        branch = Branch(prefix)
        try:
            value = draw(instance, branch)
        except (NotFinite, TypeError):  # a uniform in an arithmetic expression is a TypeError
            return None
        trail = branch.trail
        hopeless = not law and math.prod(len(shares) for _, shares in trail) > 16 * MAX_PATHS
        law.append((value, branch.probability))
        if hopeless or len(law) > MAX_PATHS or not isinstance(value, int | Fraction | Ball | None):
            return None
        while trail and trail[-1][0] + 1 == len(trail[-1][1]):
            trail.pop()
        if not trail:
            return law
        prefix = [taken for taken, _ in trail]
        prefix[-1] += 1


def expectation_of(law: list[tuple[Any, Fraction]]) -> Any:
    """The sum of values times probabilities."""
    return sum((value * prob for value, prob in law), start=Fraction(0))


def failure_of(law: list[tuple[Any, Fraction]]) -> Fraction | Ball:
    """The probability of True; None counts as either."""
    sure = sum((prob for failed, prob in law if failed is True), start=Fraction(0))
    open_ = sum((prob for failed, prob in law if failed is None), start=Fraction(0))
    return Ball(sure, sure + open_) if open_ else sure
