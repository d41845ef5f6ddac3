"""Certificates of claims: checked by the independent checker, then replayed by the named code."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from assay import Claim, catalog, certify
from assay.core import instance as instances
from assay.core.certificate import Certificate
from assay.core.errors import InputError, RejectedError, UndecidedError
from assay.core.replay import replay
from assay.missions._template.claims import amgm
from assay.missions._template.model import Numbers


@pytest.fixture
def claim(monkeypatch):
    """The toy claim, put into the catalogue."""
    monkeypatch.setitem(catalog()._claims, amgm.id, amgm)
    return amgm


def sealed(toy: Claim, /, **changes: Any) -> Certificate:
    document = {
        k: v for k, v in certify(toy, Numbers((Fraction(1), Fraction(3)))).document.items() if k != "id"
    }
    return Certificate.seal({**document, **changes})


def test_an_honest_certificate_is_accepted_and_replayed(claim, invoke, tmp_path):
    sealed(claim).save(tmp_path / "c.json")
    result = invoke("verify", tmp_path / "c.json")
    assert result.exit_code == 0, result.stderr
    assert "replayed" in result.stdout


def test_sides_that_the_code_does_not_find_are_rejected(claim, invoke, tmp_path):
    honest = sealed(claim).document["conclusion"]
    sealed(claim, conclusion={**honest, "lhs": "1/2"}).save(tmp_path / "c.json")
    result = invoke("verify", tmp_path / "c.json")
    assert result.exit_code == 1
    assert "finds another conclusion" in result.stderr
    assert json.loads(invoke("verify", tmp_path / "c.json", "--json").stdout)["exit_code"] == 1


def test_another_version_of_the_code_that_finds_the_same_is_accepted(claim):
    record = {**sealed(claim).document["claim"], "code_sha256": "0" * 64}
    assert replay(sealed(claim, claim=record)).truth.value == "TRUE"


def test_another_version_of_the_code_that_finds_another_thing_is_undecided(claim):
    record = {**sealed(claim).document["claim"], "code_sha256": "0" * 64}
    conclusion = {**sealed(claim).document["conclusion"], "lhs": "1/2"}
    with pytest.raises(UndecidedError, match="another version"):
        replay(sealed(claim, claim=record, conclusion=conclusion))


def test_a_claim_that_is_not_installed_is_undecided(claim, invoke, tmp_path):
    record = {**sealed(claim).document["claim"], "id": "elsewhere.claim"}
    sealed(claim, claim=record).save(tmp_path / "c.json")
    result = invoke("verify", tmp_path / "c.json")
    assert result.exit_code == 3
    assert "elsewhere.claim is not installed" in result.stderr


def test_an_instance_that_is_none_is_rejected(claim):
    with pytest.raises(RejectedError, match="instance is none of"):
        replay(sealed(claim, instance={"values": ["-99"]}))


def test_a_pack_certificate_has_nothing_to_replay(claim):
    with pytest.raises(InputError, match="nothing to replay"):
        replay(sealed(claim, kind="pack"))


def test_decoding_is_the_inverse_of_what_the_certificate_holds(claim):
    document = sealed(claim).document
    assert instances.encode(instances.decode(Numbers, document["instance"])) == document["instance"]
