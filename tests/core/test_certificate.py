"""Certificates: sealed, canonical, and refused once changed."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from assay import Certificate, Subject, certify
from assay.core.certificate import canonical, digest_of
from assay.core.errors import InputError
from assay.missions._template.algorithm import balance
from assay.missions._template.claims import amgm


def test_a_run_is_certified_and_comes_back(tmp_path):
    run = balance((Fraction(1), Fraction(2), Fraction(4)))
    (tmp_path / "data").write_bytes(b"abc")
    certificate = certify(amgm, run, subjects=[Subject.of_file(tmp_path / "data")])
    assert certificate.document["conclusion"]["lhs"] == "8"
    assert certificate.document["conclusion"]["rhs"] == "343/27"
    assert certificate.document["subjects"][0]["bytes"] == 3
    path = tmp_path / "c.json"
    certificate.save(path)
    assert Certificate.load(path).document == certificate.document
    assert list(tmp_path.glob(".*")) == []


def test_a_changed_field_is_noticed(tmp_path):
    document = dict(certify(amgm, balance((Fraction(1), Fraction(3)))).document)
    document["conclusion"] = document["conclusion"] | {"rhs": "5"}
    with pytest.raises(InputError, match="changed"):
        Certificate.from_bytes(canonical(document))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"a":1,"a":2}', '{"format":"assay-certificate","version":"1.0","x":1.5}', "[" * 100_000],
)
def test_files_that_are_no_certificates_are_one_sentence(text):
    with pytest.raises(InputError):
        Certificate.from_bytes(text.encode())


def test_an_unknown_major_version_is_refused():
    document = {"format": "assay-certificate", "version": "2.0"}
    document["id"] = digest_of(document)
    with pytest.raises(InputError, match=r"2\.0"):
        Certificate.from_bytes(canonical(document))


@pytest.mark.parametrize("value", [1.5, 2**60, b"x", {1: 2}, object()])
def test_what_json_cannot_say_exactly_is_not_sealed(value):
    with pytest.raises(InputError):
        Certificate.seal({"x": value})


def test_canonical_form_is_sorted_and_tight():
    document = certify(amgm, balance((Fraction(2),))).document
    text = canonical(document).decode()
    assert json.loads(text) == json.loads(json.dumps(document))
    assert ", " not in text.replace(document["conclusion"]["reason"], "").replace(
        document["claim"]["source"], ""
    )
