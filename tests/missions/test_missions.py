"""The shared table: what every mission must satisfy.  A new mission is taken up by being a folder."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from assay import Limit, Strength, Truth, certify, evaluate, missions
from assay.core import instance as instances
from assay.core.catalog import mission_of
from assay.core.certificate import Certificate

ROOT = Path(__file__).parents[2]


def discovered():
    for module in pkgutil.iter_modules(missions.__path__):
        name = f"{missions.__name__}.{module.name}.claims"
        if module.ispkg and importlib.util.find_spec(name):
            yield mission_of(importlib.import_module(name), module.name)


MISSIONS = list(discovered())
CLAIMS = [c for m in MISSIONS for c in m.claims]
FINITE = [c for c in CLAIMS if not isinstance(c.form, Limit)]


def by_id(claims):
    return {"argvalues": claims, "ids": [c.id for c in claims]}


def value_of(field, rng):
    """One value of a field, half the time at a corner of its range."""
    if field.kind is bool:
        return rng.random() < 0.5
    if field.kind is str:
        return rng.choice(["", "a"])
    if field.kind not in (int, Fraction):
        return draw(field.kind, rng)
    bounds = field.range or instances.Range(-4, 4)
    while True:
        if field.kind is int:
            value = Fraction(rng.randint(int(bounds.low), int(min(bounds.high, bounds.low + 8))))
        elif rng.random() < 0.3:
            value = Fraction(rng.choice([bounds.low, bounds.high, 0, 1]))
        else:
            value = bounds.low + (bounds.high - bounds.low) * Fraction(rng.randint(0, 24), 24)
        if value in bounds:
            return int(value) if field.kind is int else value


def draw(kind, rng):
    """A random instance within the declared ranges."""
    values = {}
    for field in instances.fields(kind):
        if field.length is None:
            values[field.name] = value_of(field, rng)
        else:
            size = rng.randint(field.length.low, max(field.length.low, min(field.length.high, 4)))
            values[field.name] = tuple(value_of(field, rng) for _ in range(size))
    return kind(**values)


def accepted(claim, count, tries=400):
    """`count` instances whose premises hold, and the acceptance rate."""
    rng, found, tried = random.Random(claim.id), [], 0
    while len(found) < count and tried < tries:
        tried += 1
        x = draw(claim.instance, rng)
        if evaluate(claim, x, precision=64).applies:
            found.append(x)
    return found, len(found) / tried


@pytest.mark.parametrize("claim", **by_id(CLAIMS))
def test_statement_and_source_are_given(claim):
    assert claim.title
    assert claim.statement
    assert claim.source.paper
    assert claim.source.locator


@pytest.mark.parametrize("claim", **by_id(FINITE))
def test_instances_survive_their_encoding(claim):
    rng = random.Random(claim.id)
    for _ in range(20):
        x = draw(claim.instance, rng)
        assert instances.decode(claim.instance, instances.encode(x)) == x


@pytest.mark.parametrize("claim", **by_id(FINITE))
def test_premises_can_be_met(claim):
    _, rate = accepted(claim, 20, tries=200)
    assert rate >= 0.1, f"{rate:.0%} of the drawn instances meet the premises"


@pytest.mark.parametrize("claim", **by_id([c for c in FINITE if c.expect == "survives"]))
def test_verdicts_are_rigorous_and_never_false_where_the_claim_is_true(claim):
    found, _ = accepted(claim, 12)
    for x in found:
        verdict = evaluate(claim, x)
        assert verdict.truth is not Truth.FALSE, f"{x}: {verdict.reason} {verdict.sides}"
        assert verdict.strength is not Strength.FLOAT


@pytest.mark.parametrize("claim", **by_id(FINITE))
def test_certificates_come_back_and_are_accepted_without_assay(claim, tmp_path):
    (x, *_), _ = accepted(claim, 1)
    path = tmp_path / "certificate.json"
    certify(claim, x).save(path)
    assert Certificate.load(path).document["claim"]["id"] == claim.id
    if not (ROOT / "src/assay_verify/__main__.py").exists():
        pytest.skip("the checker is not in this checkout")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/assay_verify").symlink_to(ROOT / "src/assay_verify")
    code = "import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('assay_verify', run_name='__main__')"
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, tmp_path / "alone", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    forged = path.read_bytes().replace(b'"truth":"', b'"truth":"X', 1)
    path.write_bytes(forged)
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, tmp_path / "alone", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr


@pytest.mark.parametrize("mission", MISSIONS, ids=lambda m: m.id)
def test_every_public_function_is_documented(mission):
    package = f"{missions.__name__}.{mission.id}"
    for room in ("model", "algorithm"):
        module = importlib.import_module(f"{package}.{room}")
        assert module.__doc__
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__:
                assert value.__doc__, f"{package}.{room}.{name} says nothing"
