"""The nouns carry other missions: twelve results and more, written with the public names alone, each audited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay import audit
from assay.core.catalog import load_file

FILE = Path(__file__).parent / "twelve.py"
CLAIMS = load_file(FILE).claims
BY_ID = {c.id: c for c in CLAIMS}
BUDGET = {"papers.clockrope_too_good": 15}
SURVIVORS = 1.5


def test_every_form_is_there():
    assert {c.form.name for c in CLAIMS} == {"bound", "witness", "mean", "tail", "limit"}
    assert len(CLAIMS) >= 12


def test_the_file_needs_the_public_names_only():
    imports = re.findall(r"^from (assay\S*) import", FILE.read_text(), re.MULTILINE)
    assert set(imports) <= {"assay", "assay.numerics.arb"}


@pytest.mark.parametrize("claim", CLAIMS, ids=[c.id for c in CLAIMS])
def test_the_audit_ends_as_announced(claim):
    budget = BUDGET.get(claim.id, 10 if claim.expect == "refuted" else SURVIVORS)
    report = audit(claim, seconds=budget, claims=BY_ID)
    assert report.as_expected, report.reason


def test_the_limit_is_audited_through_its_finite_form():
    report = audit(BY_ID["papers.sgd_limit"], seconds=1, claims=BY_ID)
    assert report.implied_by["papers.sgd_weighted_gradients"].outcome == "survived"


def test_exact_means_are_refuted_genuinely_and_sampled_ones_statistically():
    walked = audit(BY_ID["papers.hit_block_paper"], seconds=8)
    assert walked.counterexample.grade == "genuine"  # it is sampled, but the paths of a draw are few
    sampled = audit(BY_ID["papers.clockrope_too_good"], seconds=15)
    assert sampled.counterexample.grade == "statistical"


@pytest.mark.parametrize(
    ("name", "premise"),
    [
        ("papers.sgd_rate", "step at most mu / (L M_G)"),
        ("papers.pandora_positive", "less than all"),
    ],
)
def test_premises_that_carry_a_claim(name, premise):
    assert audit(BY_ID[name], seconds=5, without=[premise]).outcome == "refuted"
