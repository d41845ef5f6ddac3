"""What an audit must find: the errors that were in print, mechanical slips, and no fault in what is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay import Claim, Limit, Witness, audit, catalog
from assay.audits.mutate import mutants
from assay.audits.target import sides_function
from assay.core.catalog import load_file
from assay.missions._template.claims import amgm

HERE = Path(__file__).parent
VARIANTS = load_file(HERE / "variants.py").claims
PAPERS = load_file(HERE / "twelve.py").claims
FALSE = [c for c in VARIANTS if c.expect == "refuted"]
TRUE = [c for c in VARIANTS if c.expect == "survives"]


def names(claims):
    return [c.id for c in claims]


@pytest.mark.parametrize("claim", FALSE, ids=names(FALSE))
def test_a_false_variant_falls_with_a_genuine_counterexample(claim):
    report = audit(claim, seconds=10)
    assert report.outcome == "refuted"
    assert report.counterexample.grade == "genuine"
    assert report.effort.seconds < 10


@pytest.mark.parametrize("claim", TRUE, ids=names(TRUE))
def test_a_true_variant_survives(claim):
    assert audit(claim, seconds=1.5).outcome == "survived"


@pytest.mark.slow
@pytest.mark.parametrize("claim", TRUE, ids=names(TRUE))
def test_a_true_variant_survives_longer(claim):
    assert audit(claim, seconds=30, seed=1).outcome == "survived"


EQUIVALENT = {
    "_template.amgm": {"without 'all non-negative'"},
    "variants.threshold": {
        "rhs x 9/10",
        "strict",
        "rhs at coefficients without its last",
        "rhs at 1 - drop_prob",
    },
    "variants.kearns_saul": {"rhs at 1 - drop_prob"},
    "variants.one_sided": {"rhs at 1 - drop_prob"},
    "variants.quantiser_error": {"without '|w| <= M'", "rhs at levels - 1"},
    "variants.gronwall": {"strict", "rhs at steps - 1"},
    "papers.depth_cost_gap": {"without 'the guess is faster'"},
    "papers.exp4_regret": {"rhs x 1/2", "rhs x 9/10", "rhs squared"},
    "papers.pandora_duality": {
        "rhs x 1/2",
        "rhs x 9/10",
        "rhs squared",
        "without 'more than the cheapest box'",
    },
    "papers.fedavg_lemma": {"rhs x 1/2", "rhs x 9/10", "lhs doubled", "rhs at count - 1"},
}
"""Mutants that are true: loose bounds with a little less slack, symmetric arguments, a premise that is not needed;
and a producer's failures, which refute no existence."""


def table() -> list[tuple[Claim, str, Claim]]:
    rows = []
    for claim in (amgm, *TRUE, *(c for c in PAPERS if c.expect == "survives")):
        if sides_function(claim) is None:
            continue
        identity = audit(claim, seconds=0.2, attacks=["corner"]).verdict
        relation = identity.sides.relation if identity is not None and identity.sides else "<="
        for name, mutant in mutants(claim):
            same = relation == "==" and name in ("sides swapped", "strict", "equal")
            if not same and name not in EQUIVALENT.get(claim.id, ()):
                rows.append((claim, name, mutant))
    return rows


@pytest.mark.slow
def test_every_mechanical_slip_falls_within_ten_seconds():
    rows = table()
    assert len(rows) >= 60
    survivors = []
    for claim, name, mutant in rows:
        report = audit(mutant, seconds=10)
        if report.outcome != "refuted" or report.counterexample.grade != "genuine":
            survivors.append((claim.id, name, report.outcome))
    assert survivors == []


@pytest.mark.parametrize("name", ["rhs x 1/2", "rhs x 9/10", "lhs doubled", "strict", "rhs squared"])
@pytest.mark.parametrize("claim", [amgm, *(c for c in TRUE if c.id.endswith(("kearns_saul", "projection")))])
def test_slips_in_tight_bounds_fall(claim, name):
    assert audit(dict(mutants(claim))[name], seconds=5).outcome == "refuted"


SEED_CLAIMS = list(catalog().values())


UNMOVED = {"dare.phi_positive"}
"""Claims of the form 0 < f(x), which no factor on the right-hand side can break."""

SECONDS_EACH = 8
"""Budget of an audit in CI; the report of each says what it spent."""


@pytest.mark.slow
@pytest.mark.parametrize("claim", SEED_CLAIMS, ids=names(SEED_CLAIMS))
def test_every_claim_of_the_catalogue_ends_as_it_announces(claim):
    """... and every true bound states the smallest damage that this audit would have noticed."""
    report = audit(claim, seconds=SECONDS_EACH)
    assert report.as_expected
    if claim.expect != "survives" or isinstance(claim.form, Limit | Witness) or sides_function(claim) is None:
        return
    assert claim.id in UNMOVED or report.resolution.damage is not None
