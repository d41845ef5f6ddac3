"""A tight bound is recognised as tight, at the instance where theory says it is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from assay.audits import ablate, sharpen
from assay.core.catalog import load_file

CLAIMS = {c.id: c for c in load_file(Path(__file__).parent / "variants.py").claims}


def test_kearns_saul_is_tight_where_theory_says():
    found = sharpen(CLAIMS["variants.kearns_saul"], seconds=10)
    assert found.tight
    p, t = float(found.extremal.drop_prob), float(found.extremal.t)
    assert t == pytest.approx(2 * math.log((1 - p) / p), rel=1e-2, abs=1e-2)


def test_the_premises_of_the_one_sided_refinement_are_needed():
    roles = {a.premise.name: a.role for a in ablate(CLAIMS["variants.one_sided"], seconds=4)}
    assert roles == {"p > 1/2": "needed", "t >= 0": "needed"}


def test_the_premise_of_the_projection_lemma_is_needed():
    (only,) = ablate(CLAIMS["variants.projection"], seconds=4)
    assert only.role == "needed"
    assert only.witness.grade == "genuine"
