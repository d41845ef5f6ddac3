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


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Certificates of all finite claims and forgeries of them, and the checker's exit code for each.

    The checker runs once, isolated: its own folder is all that it can import beside the standard library.
    """
    if not (ROOT / "src/assay_verify/__main__.py").exists():
        pytest.skip("the checker is not in this checkout")
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "alone").mkdir()
    (folder / "alone/assay_verify").symlink_to(ROOT / "src/assay_verify")
    files = []
    for claim in FINITE:
        (x, *_), _ = accepted(claim, 1)
        true, forged = folder / f"{claim.id}.json", folder / f"{claim.id}.forged.json"
        certify(claim, x).save(true)
        forged.write_bytes(true.read_bytes().replace(b'"truth":"', b'"truth":"X', 1))
        files += [true, forged]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from assay_verify.__main__ import main\n"
        "for file in sys.argv[2:]: print('exit code', main([file]), file)"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, folder / "alone", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = [line.split(" ", 3) for line in run.stdout.splitlines() if line.startswith("exit code ")]
    return {Path(file): int(code) for _, _, code, file in lines}


@pytest.mark.parametrize("claim", **by_id(FINITE))
def test_certificates_come_back_and_are_accepted_without_assay(claim, checked):
    codes = {path.name: code for path, code in checked.items()}
    path = next(path for path in checked if path.name == f"{claim.id}.json")
    assert Certificate.load(path).document["claim"]["id"] == claim.id
    assert codes[f"{claim.id}.json"] == 0
    assert codes[f"{claim.id}.forged.json"] == 1


@pytest.mark.parametrize("mission", MISSIONS, ids=lambda m: m.id)
def test_every_public_function_is_documented(mission):
    package = f"{missions.__name__}.{mission.id}"
    for room in ("model", "algorithm"):
        module = importlib.import_module(f"{package}.{room}")
        assert module.__doc__
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__:
                assert value.__doc__, f"{package}.{room}.{name} says nothing"
