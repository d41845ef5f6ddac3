"""``assay list`` and ``assay show``."""

from __future__ import annotations

import json

import pytest

from assay.core.catalog import catalog

CLAIMS = list(catalog().values())


def test_list_names_every_claim_with_its_status(invoke):
    text = invoke("list").stdout
    for claim in CLAIMS:
        line = next(line for line in text.splitlines() if line.split()[:1] == [claim.id])
        assert claim.title in line
        assert {claim.form.name, claim.proof.status, claim.expect} <= set(line.split())


def test_list_of_one_mission_as_json(invoke):
    document = json.loads(invoke("list", "dare", "--json").stdout)
    assert [m["mission"] for m in document] == ["dare"]
    assert [c["id"] for c in document[0]["claims"]] == [c.id for c in CLAIMS if c.mission == "dare"]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_the_page_of_a_claim_says_all_that_the_claim_says(invoke, claim):
    text = " ".join(invoke("show", claim.id).stdout.split())
    for part in (
        claim.title,
        str(claim.source),
        *(f"{p.name} ({p.basis})" for p in claim.premises),
        *claim.uses,
    ):
        assert " ".join(part.split()) in text, part
    assert " ".join(claim.notes.split()) in text
    assert "refuted by" in text


def test_the_page_as_json_holds_statement_and_digest(invoke):
    claim = catalog()["dare.moments"]
    document = json.loads(invoke("show", claim.id, "--json").stdout)
    assert document["statement"] == claim.statement
    assert document["digest"] == claim.digest()


def test_the_known_erratum_is_shown_as_expected_to_be_refuted(invoke):
    assert "should find a counterexample" in invoke("show", "dare.printed_theorem_3_1").stdout


def test_show_of_a_mission_lists_its_claims(invoke):
    assert "dare.moments" in invoke("show", "dare").stdout


def test_a_misspelt_claim_gets_the_nearest_names(invoke):
    result = invoke("show", "dare.momnts")
    assert result.exit_code == 2
    assert "did you mean 'dare.moments'" in result.stderr
