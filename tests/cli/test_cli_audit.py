"""``assay audit`` and ``assay new``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

VARIANTS = Path(__file__).parents[1] / "quality" / "variants.py"
TWELVE = VARIANTS.with_name("twelve.py")
FALSE = ("audit", VARIANTS, "variants.printed_high_branch", "--seconds", "5")
TRUE = ("audit", VARIANTS, "variants.projection", "--seconds", "1")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_a_refutation_says_so_first_and_leaves_with_1(invoke):
    result = invoke(*FALSE)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "REFUTED  variants.printed_high_branch"
    text = " ".join(result.stdout.split())
    for part in (
        "grade genuine",
        "drop_prob 19/20",
        "left 1/20 = 0.05",
        "p > 1/2: holds (checked)",
        "replay assay audit",
    ):
        assert part in text


def test_a_survival_shows_how_close_and_how_hard(invoke):
    result = invoke(*TRUE)
    assert result.exit_code == 0
    for part in ("SURVIVED", "closest", "resolution", "effort", "accepted"):
        assert part in result.stdout


def test_the_replay_line_works_in_a_fresh_process(invoke, shell):
    line = json.loads(invoke(*FALSE, "--json").stdout)[0]["replay"]
    done = shell(*shlex.split(line)[1:])
    assert done.returncode == 1
    assert done.stdout.startswith("FALSE  variants.printed_high_branch (exact)")


SAMPLED = """
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated
from assay import Claim, Range, Source, Tail

@dataclass(frozen=True)
class Coin:
    prob: Annotated[Fraction, Range(0, 1)]

unfair = Claim("coins.unfair", "t", "s", Coin,
    Tail(delta=lambda x: x.prob / 2, event=lambda x, rng: rng.uniform(0, 1) < x.prob), Source("nobody", "nowhere"))
"""


def test_a_statistical_counterexample_is_replayed_draw_by_draw(invoke):
    Path("coins.py").write_text(SAMPLED)
    result = invoke("audit", "coins.py", "--seconds", "6", "--json")
    report = json.loads(result.stdout)[0]
    assert report["counterexample"]["grade"] == "statistical"
    again = invoke(*shlex.split(report["replay"])[1:])
    assert again.exit_code == 1
    assert "FALSE" in again.stdout


def test_what_was_found_is_replayed_first(invoke):
    invoke(*FALSE)
    assert "found by store" in invoke(*FALSE).stdout
    assert "found by corner" in invoke(*FALSE, "--no-store").stdout


def test_replay_of_an_instance_that_holds_or_says_nothing(invoke):
    claim = ("audit", VARIANTS, "variants.projection", "--replay")
    holds = invoke(*claim, '{"u":"1","v":"2","radius":"1"}')
    assert (holds.exit_code, holds.stdout.split()[0]) == (0, "TRUE")
    silent = invoke(*claim, '{"u":"2","v":"2","radius":"1"}')
    assert silent.exit_code == 3
    assert "premise broken: u in the ball" in silent.stdout


def test_a_certificate_is_accepted_by_the_independent_checker(invoke, shell, tmp_path):
    assert invoke(*FALSE, "--certificate", tmp_path / "ce.json").exit_code == 1
    assert shell("verify", tmp_path / "ce.json").returncode in (
        0,
        3,
    )  # 3: the replay does not know a file's claim
    from assay_verify.__main__ import main

    assert main([str(tmp_path / "ce.json")]) == 0


def test_ablation_and_sharpening(invoke):
    text = invoke("audit", VARIANTS, "variants.one_sided", "--ablate", "--seconds", "3").stdout
    assert text.count("needed:") == 2
    text = invoke(
        "audit", VARIANTS, "variants.quantiser_error", "--sharpen", "value", "--seconds", "3"
    ).stdout
    assert "tight     yes" in text


@pytest.mark.parametrize(
    "more", [["--without", "t >= 0"], ["--certificate", "x.json"], ["--attack", "corner"], ["--as-expected"]]
)
@pytest.mark.parametrize("study", [["--ablate"], ["--sharpen", "value"]])
def test_an_option_that_a_study_would_pass_over_is_refused(invoke, study, more):
    result = invoke("audit", VARIANTS, "variants.one_sided", *study, *more)
    assert result.exit_code == 2
    assert f"{more[0]} has no part in {study[0]}" in result.stderr


def test_the_witness_of_an_ablation_has_a_replay_line(invoke):
    result = invoke("audit", "dare.tail", "--ablate", "--seconds", "6", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)[0]["premises"]}
    line = rows["level > 0"]["replay"]
    again = invoke(*shlex.split(line)[1:])
    assert again.exit_code == 1
    assert again.stdout.startswith("FALSE  dare.tail")


def test_without_a_premise(invoke):
    result = invoke("audit", VARIANTS, "variants.projection", "--without", "u in the ball", "--json")
    report = json.loads(result.stdout)[0]
    assert (result.exit_code, report["outcome"]) == (1, "refuted")
    assert "--without 'u in the ball'" in report["replay"]


def test_all_claims_of_a_file_against_what_they_announce(invoke, tmp_path):
    assert invoke("new", "paper").exit_code == 0
    assert invoke("audit", "paper.py", "--seconds", "1", "--as-expected").exit_code == 0
    broken = Path("paper.py").read_text().replace("n * sum", "sum")
    Path("paper.py").write_text(broken)
    assert invoke("audit", "paper.py", "--seconds", "2", "--as-expected").exit_code == 1


def test_new_overwrites_nothing_and_wants_an_identifier(invoke):
    invoke("new", "paper")
    again = invoke("new", "paper")
    assert (again.exit_code, again.stderr) == (
        2,
        "assay: paper.py exists already; choose another name or -o\n",
    )
    assert "must be a Python identifier" in invoke("new", "my-paper").stderr


def test_a_picture(invoke, tmp_path):
    pytest.importorskip("matplotlib")
    invoke(*TRUE, "--picture", "slack.svg", "--attack", "corner")
    assert Path("slack.svg").read_text().startswith("<?xml")


def test_a_premise_that_nothing_meets_gives_up_with_3(invoke):
    Path("never.py").write_text(
        VARIANTS.read_text().split("# Tails of one")[0]
        + """
@dataclass(frozen=True)
class Point:
    x: Open

never = Claim("never.met", "t", "s", Point, Bound(lambda x: Sides(0, "<=", 1)), DARE,
              (Premise("impossible", lambda x: x.x > 2),))
"""
    )
    result = invoke("audit", "never.py", "--seconds", "0.5")
    assert result.exit_code == 3
    assert "GAVE UP" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["audit", "no.py"], "there is no file no.py"),
        (["audit", VARIANTS, "variants.projektion"], "did you mean 'variants.projection'"),
        (["audit", VARIANTS, "variants.projection", "--seconds", "0"], "looks at nothing"),
        (["audit", VARIANTS, "variants.projection", "--attack", "corners"], "did you mean 'corner'"),
        (["audit", VARIANTS, "variants.projection", "--without", "x"], "has no premise 'x'"),
        (["audit", VARIANTS, "--picture", "a.svg"], "is for one claim"),
        (["audit", VARIANTS, "variants.projection", "--picture", "a.gif"], "must end in one of"),
        (
            ["audit", VARIANTS, "variants.projection", "--replay", "nowhere.json"],
            "there is no file nowhere.json",
        ),
        (["audit", VARIANTS, "variants.projection", "--replay", "{}"], "lacks the field"),
        (["audit", VARIANTS, "variants.projection", "--replay", "{"], "is no JSON of an instance"),
    ],
)
def test_misuse_is_one_sentence(invoke, arguments, sentence):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert sentence in result.stderr


def test_a_file_that_does_not_import(invoke):
    Path("broken.py").write_text("import nothing_of_that_name\n")
    result = invoke("audit", "broken.py")
    assert result.exit_code == 2
    assert "broken.py does not import: ModuleNotFoundError" in result.stderr


def test_list_and_show_of_a_file(invoke):
    assert "variants.projection" in invoke("list", VARIANTS).stdout
    assert "variants.projection" in invoke("show", VARIANTS).stdout
    page = invoke("show", VARIANTS, "variants.projection").stdout
    assert "u in the ball (checked)" in page
    wrong = invoke("show", VARIANTS, "variants.projektion")
    assert (wrong.exit_code, "did you mean 'variants.projection'" in wrong.stderr) == (2, True)
    assert invoke("show", VARIANTS, "variants.projection", "variants.moments").exit_code == 2
