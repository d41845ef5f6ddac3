"""Small claims for the tests of the audit's rooms."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from assay import Bound, Claim, Length, Limit, Mean, Premise, Range, Sides, Source, Tail, Witness
from assay.numerics.arb import exp

SOURCE = Source("nobody", "nowhere")


@dataclass(frozen=True)
class Point:
    x: Annotated[Fraction, Range(-4, 4)]


@dataclass(frozen=True)
class Pair:
    x: Annotated[Fraction, Range(-4, 4)]
    y: Annotated[Fraction, Range(-4, 4)]


@dataclass(frozen=True)
class Matrix:
    rows: Annotated[tuple[Row, ...], Length(1, 3)]
    vector: Annotated[tuple[Fraction, ...], Length(1, 3), Range(-2, 2)]


@dataclass(frozen=True)
class Row:
    entries: Annotated[tuple[Fraction, ...], Length(1, 3), Range(-2, 2)]


@dataclass(frozen=True)
class Shares:
    """Two shares that its type refuses where they exceed the whole."""

    x: Annotated[Fraction, Range(0, 1)]
    y: Annotated[Fraction, Range(0, 1)]

    def __post_init__(self):
        if self.x + self.y > 1:
            raise ValueError("more than the whole")


@dataclass(frozen=True)
class Nothing:
    pass


@dataclass(frozen=True)
class Dice:
    sides: Annotated[int, Range(2, 12)]
    loaded: bool


@dataclass(frozen=True)
class Coin:
    prob: Annotated[Fraction, Range(0, 1)]


@dataclass(frozen=True)
class Named:
    name: str


@dataclass(frozen=True)
class Proposed:
    name: str
    x: Annotated[Fraction, Range(0, 4)]

    @classmethod
    def propose(cls, rng):
        return cls(rng.choice(["a", "bb", "ccc"]), Fraction(rng.randint(0, 4)))


def bound(sides, instance=Point, *premises, expect="survives", name="claim"):
    return Claim(f"toy.{name}", "t", "s", instance, Bound(sides), SOURCE, premises, expect=expect)


TRUE = bound(lambda z: Sides(2 * z.x * z.y, "<=", z.x**2 + z.y**2), Pair, name="true")
FALSE = bound(lambda z: Sides(3 * z.x * z.y, "<=", z.x**2 + z.y**2), Pair, expect="refuted", name="false")
CURVED = bound(lambda z: Sides(1 + z.x, "<=", exp(z.x)), name="curved")
POSITIVE = Premise("x is positive", lambda z: z.x > 0)
CUBE = bound(lambda z: Sides(0, "<", z.x**3), Point, POSITIVE, name="cube")
DICE = bound(lambda z: Sides(z.sides, "<=", 12), Dice, name="dice")
NEVER = bound(lambda z: Sides(0, "<=", 1), Point, Premise("impossible", lambda z: z.x > 10), name="never")
FLOATS = bound(lambda z: Sides(math.sin(float(z.x)) + 0.1, "<=", math.sin(float(z.x))), name="floats")
RAISES = bound(lambda z: Sides(math.factorial(z.x), "<=", 1), name="raises")
NAN = bound(lambda z: Sides(float("nan"), "<=", 1), name="nan")
ROOT = Claim(
    "toy.root",
    "A square root",
    "s",
    Point,
    Witness(lambda z: z.x / 2, lambda z, w: Sides(w * w, "==", z.x)),
    SOURCE,
)
FAIR = Claim(
    "toy.fair",
    "Mean of a coin",
    "s",
    Coin,
    Mean(
        bound=lambda z: z.prob,
        relation="==",
        draw=lambda z, rng: rng.random() < z.prob,
        support=lambda z: (0, 1),
    ),
    SOURCE,
)
UNFAIR = Claim(
    "toy.unfair",
    "Tail of a coin",
    "s",
    Coin,
    Tail(delta=lambda z: z.prob / 2, event=lambda z, rng: rng.uniform(0, 1) < z.prob),
    SOURCE,
    expect="refuted",
)
LIMIT = Claim(
    "toy.limit", "t", "s", Pair, Limit("as", ("toy.true", "toy.absent")), SOURCE, expect="undecidable"
)

_calls = itertools.count()
RANDOM = bound(lambda z: Sides(next(_calls), "<=", 10**9), name="random")
