"""Missions are discovered; a theorist's own file is one too."""

from __future__ import annotations

import pytest

from assay import catalog
from assay.core.catalog import load_file
from assay.core.errors import InputError, UnknownIdError

PAPER = """
'''A paper of mine.'''
from dataclasses import dataclass
from fractions import Fraction
from assay import Bound, Claim, Sides, Source

@dataclass(frozen=True)
class X:
    x: Fraction

square = Claim("mine.square", "Squares are positive", "x^2 > 0", X,
               Bound(lambda i: Sides(0, "<", i.x ** 2)), Source("me", "p. 1"))
"""


def test_an_unknown_claim_gets_the_nearest_names():
    with pytest.raises(UnknownIdError, match=r"dare\.moments"):
        catalog()["dare.momnets"]


def test_claims_are_grouped_by_mission_and_the_template_is_left_out():
    assert set(catalog()) == {c.id for m in catalog().missions.values() for c in m.claims}
    assert "_template" not in catalog().missions


def test_a_file_of_claims_is_a_mission(tmp_path):
    file = tmp_path / "paper.py"
    file.write_text(PAPER)
    mission = load_file(file)
    assert (mission.id, mission.title) == ("mine", "A paper of mine")
    assert [c.id for c in mission.claims] == ["mine.square"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("import nothing_of_that_name", "does not import"),
        ("x = 1", "no claim"),
        (PAPER + "\ncopy = square\n", "two claims"),
        (
            PAPER + "\nfrom dataclasses import replace\nother = replace(square, id='yours.square')\n",
            "several missions",
        ),
    ],
)
def test_files_that_are_no_mission_are_one_sentence(tmp_path, text, word):
    file = tmp_path / "paper.py"
    file.write_text(text)
    with pytest.raises(InputError, match=word):
        load_file(file)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="no file"):
        load_file(tmp_path / "none.py")
