"""The case that shows why the audit needs several attacks: a violation at a corner, and one in an irrational pocket.

``x^4 y^2 + x^2 y^4 + 1 >= (3 + 1/1000) x^2 y^2`` on [-100, 100]^2 is false near (+-1, +-1) only; rescaled, near
(+-pi/3, +-sqrt(7)/2).  Property-based search is blind to the second, optimisation of the slack is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import pytest

from assay import Bound, Claim, Range, Sides, Source, audit


@dataclass(frozen=True)
class Plane:
    x: Annotated[Fraction, Range(-100, 100)]
    y: Annotated[Fraction, Range(-100, 100)]


def motzkin(name: str, x_scale: Fraction, y_scale: Fraction) -> Claim:
    def sides(z: Plane) -> Sides:
        x, y = z.x / x_scale, z.y / y_scale
        return Sides((3 + Fraction(1, 1000)) * x**2 * y**2, "<=", x**4 * y**2 + x**2 * y**4 + 1)

    return Claim(
        f"motzkin.{name}",
        name,
        "M",
        Plane,
        Bound(sides),
        Source("Motzkin (1967)", "p. 217"),
        expect="refuted",
    )


CORNER = motzkin("corner", Fraction(1), Fraction(1))
POCKET = motzkin("pocket", Fraction(1047197551197, 10**12), Fraction(1322875655532, 10**12))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("claim", [CORNER, POCKET], ids=lambda c: c.title)
def test_found_ten_times_of_ten(claim, seed):
    report = audit(claim, seconds=10, seed=seed)
    assert report.outcome == "refuted"
    assert report.counterexample.grade == "genuine"
    assert report.seconds_to_hit < 8


def test_the_corner_is_shrunk_to_one():
    assert audit(CORNER, seconds=5).counterexample.instance == Plane(Fraction(1), Fraction(1))


def test_the_pocket_is_shrunk_to_small_rationals():
    found = audit(POCKET, seconds=10).counterexample.instance
    assert max(found.x.denominator, found.y.denominator) <= 64


@pytest.mark.slow
def test_property_based_search_alone_does_not_find_the_pocket():
    assert audit(POCKET, seconds=8, attacks=["property"]).outcome == "survived"


@pytest.mark.parametrize("attack", ["evolve", "gradient"])
def test_optimisation_alone_finds_the_pocket(attack):
    assert audit(POCKET, seconds=10, attacks=[attack]).found_by == attack
