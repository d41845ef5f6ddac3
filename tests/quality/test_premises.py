"""The table of premises in the reference: every witness in it is one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from assay import Limit, Truth, catalog, evaluate
from assay.audits import ablate
from assay.audits.tracing import truth_of
from assay.audits.widen import dropped
from assay.core.instance import decode

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "premises.md"
CLAIMS = catalog().missions["dare"].claims
ROW = re.compile(r"^\| (?P<premise>.*?) \| (?P<role>[a-z ]+) \| (?P<shown>.*) \|$")


def table():
    """(claim, premise, role, what is shown) of every row."""
    rows, claim = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## `"):
            claim = line[4:-1]
        row = ROW.match(line.replace("\\|", "\0"))
        if claim and row is not None and row["role"] != "role":
            rows.append((claim, *(row[k].replace("\0", "|") for k in ("premise", "role", "shown"))))
    return rows


ROWS = table()
NEEDED = [row for row in ROWS if row[2] == "needed"]


def test_every_premise_of_every_claim_has_its_row():
    wanted = [(c.id, p.name) for c in CLAIMS if not isinstance(c.form, Limit) for p in c.premises]
    assert sorted((c, p) for c, p, *_ in ROWS) == sorted(wanted)
    assert len(NEEDED) > 30


@pytest.mark.parametrize(("claim_id", "name", "_", "shown"), NEEDED, ids=[f"{c}: {p}" for c, p, *_ in NEEDED])
def test_a_witness_breaks_its_premise_only_and_the_claim_with_it(claim_id, name, _, shown):
    claim = catalog()[claim_id]
    free = dropped(claim, [name])
    witness = decode(free.instance, json.loads(shown.strip("`")))
    assert evaluate(free, witness).truth is Truth.FALSE
    (premise,) = (p for p in claim.premises if p.name == name)
    assert truth_of(premise, witness) is Truth.FALSE


@pytest.mark.slow
@pytest.mark.parametrize("claim_id", sorted({row[0] for row in NEEDED}))
def test_the_ablation_finds_the_witnesses_again(claim_id):
    claim = catalog()[claim_id]
    checked = sum(p.check is not None for p in claim.premises)
    found = {a.premise.name for a in ablate(claim, seconds=6 * checked, seed=1) if a.role == "needed"}
    assert {name for c, name, *_ in NEEDED if c == claim_id} <= found
