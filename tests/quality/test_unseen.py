"""Claims that the audit was not built on: false ones fall within ten seconds, true ones do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay import audit
from assay.core.catalog import load_file

CLAIMS = load_file(Path(__file__).parent / "unseen.py").claims
TRUE = [c for c in CLAIMS if c.expect == "survives"]

MISSED = {
    "unseen.scaffold_half_convexity": "20 reals under three premises on a 3 x 3 matrix: some 10 accepted a second",
    "unseen.hadamard_too_sharp": "a thin cone of semidefinite matrices, away from a valley that leads to 0: one run of four",
    "unseen.taxicab": "one of some hundred solutions among 13 million whole numbers: found in one run of two",
}
"""False, and not found within ten seconds by every run."""

SLOW = {
    "unseen.bowl_is_positive",
    "unseen.valley_is_positive",
    "unseen.log_under_power",
    "unseen.profile_epanechnikov",
    "unseen.kept_count_half",
}
"""False, and found in seconds: 20 or 30 reals, twelve decades, slow sides."""

FALSE = [c for c in CLAIMS if c.expect == "refuted" and c.id not in MISSED]


def names(claims):
    return [c.id.removeprefix("unseen.") for c in claims]


def falls(claim, seed=0):
    report = audit(claim, seconds=10, seed=seed)
    assert report.outcome == "refuted", report.reason
    assert report.counterexample.grade == "genuine"


QUICK = [c for c in FALSE if c.id not in SLOW]


@pytest.mark.parametrize("claim", QUICK, ids=names(QUICK))
def test_a_false_claim_falls(claim):
    falls(claim)


@pytest.mark.slow
@pytest.mark.parametrize("claim", FALSE, ids=names(FALSE))
def test_a_false_claim_falls_whatever_the_seed(claim):
    falls(claim, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("claim", TRUE, ids=names(TRUE))
def test_a_true_claim_survives(claim):
    assert audit(claim, seconds=10, seed=1).outcome == "survived"


QUICK_TRUE = [c for c in TRUE if c.premises]


@pytest.mark.parametrize("claim", QUICK_TRUE, ids=names(QUICK_TRUE))
def test_a_true_claim_under_premises_survives(claim):
    report = audit(claim, seconds=1)
    assert report.outcome == "survived"
    assert report.effort.accepted > 10
