"""Arithmetic and geometric means.

Copy this folder, rename it, and fill the three files: the shared test table takes the mission up by itself.
"""

from __future__ import annotations

from math import prod

from assay.core.claim import Bound, Claim, Premise, Sides, Source
from assay.missions._template.model import Numbers, arithmetic_mean

SOURCE = Source("Cauchy, Cours d'analyse (1821)", "Note II, theorem 17")


def _sides(x: Numbers) -> Sides:
    return Sides(prod(x.values), "<=", arithmetic_mean(x.values) ** len(x.values))


amgm = Claim(
    id="_template.amgm",
    title="The geometric mean is at most the arithmetic mean",
    statement=r"\prod_{i=1}^n x_i \le \Bigl(\frac1n \sum_{i=1}^n x_i\Bigr)^n \quad (x_i \ge 0)",
    instance=Numbers,
    form=Bound(_sides),
    source=SOURCE,
    premises=(Premise("all non-negative", lambda x: all(v >= 0 for v in x.values)),),
)
