"""The frontier benchmark: the formats it compares with, how it compares, and one whole run on a tiny pair."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.frontier import Point, Result
from benchmarks.peers import Matrix

from benchmarks import frontier, peers

pytestmark = pytest.mark.torch


@pytest.fixture
def matrix() -> Matrix:
    """A delta whose inputs are strongly correlated."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((400, 6)) @ rng.standard_normal((6, 40)) + 0.1 * rng.standard_normal(
        (400, 40)
    )
    return Matrix(rng.standard_normal((24, 40)), inputs.T @ inputs / 400, 3)


def lost(matrix: Matrix, delta: np.ndarray) -> float:
    """Mean square error of the outputs."""
    error = delta - matrix.delta
    return float(np.einsum("ij,jk,ik->", error, matrix.moment, error))


def test_entropy_of_known_codes():
    assert peers.entropy(np.array([0, 0, 0, 0])) == 0
    assert peers.entropy(np.array([-1, 0, 1, 5])) == 8
    assert peers.mask_entropy(0.0, 10) == 0
    assert peers.mask_entropy(0.25, 4) == pytest.approx(4 * (0.25 * 2 + 0.75 * math.log2(4 / 3)))


def test_dropped_counts_mask_and_survivors(matrix):
    packed = peers.dropped(matrix, 0.5)
    kept = packed.delta != 0
    assert packed.bits == pytest.approx(16 * kept.sum() + peers.mask_entropy(kept.mean(), kept.size))
    np.testing.assert_allclose(packed.delta[kept], 2 * matrix.delta[kept], rtol=2**-8)


def test_one_bit(matrix):
    packed = peers.one_bit(matrix, 1)
    assert set(np.unique(np.abs(packed.delta))) == {np.abs(matrix.delta).mean()}
    assert packed.bits <= matrix.delta.size + 16


@pytest.mark.parametrize("weighted", [False, True])
def test_low_rank_is_the_best_of_its_rank(matrix, weighted):
    packed = peers.low_rank(weighted, 16)(matrix, 4)
    assert packed.bits == 16 * 4 * (24 + 40)
    assert np.linalg.matrix_rank(packed.delta, tol=1e-8) == 4
    plain, best = (lost(matrix, peers.low_rank(w, 16)(matrix, 4).delta) for w in (False, True))
    assert best < plain
    errors = [np.linalg.norm(peers.low_rank(w, 16)(matrix, 4).delta - matrix.delta) for w in (False, True)]
    assert errors[0] < errors[1]


def test_factors_larger_than_the_matrix_are_not_used(matrix):
    packed = peers.low_rank(False, 8)(matrix, 64)
    assert packed.bits <= 8 * matrix.delta.size + 16 * 24
    np.testing.assert_allclose(packed.delta, matrix.delta, atol=0.03)


def test_four_bit_factors_take_a_quarter_and_lose_more(matrix):
    fine, coarse = (peers.low_rank(False, bits)(matrix, 4) for bits in (16, 4))
    assert coarse.bits < fine.bits / 3
    assert np.linalg.norm(coarse.delta - matrix.delta) > np.linalg.norm(fine.delta - matrix.delta)


def test_nearest_is_within_half_a_step(matrix):
    step = 0.5 * matrix.delta.std()
    packed = peers.nearest(matrix, 0.5)
    assert np.abs(packed.delta - matrix.delta).max() <= step / 2 * (1 + 1e-9)
    np.testing.assert_allclose(np.rint(packed.delta / step), packed.delta / step, atol=1e-9)


def test_feedback_loses_less_on_the_outputs(matrix):
    near, fed = peers.nearest(matrix, 1.0), peers.fed_back(matrix, 1.0)
    assert lost(matrix, fed.delta) < lost(matrix, near.delta) / 3
    step = matrix.delta.std()
    np.testing.assert_allclose(np.rint(fed.delta / step), fed.delta / step, atol=1e-9)


def test_feedback_without_correlations_is_rounding(matrix):
    alone = Matrix(matrix.delta, None, 0)
    np.testing.assert_allclose(peers.fed_back(alone, 1.0).delta, peers.nearest(alone, 1.0).delta, atol=1e-12)


@pytest.mark.parametrize("pack", [peers.two_of_four, peers.two_of_four_fed_back])
def test_two_of_four_keeps_two_of_four(matrix, pack):
    packed = pack(matrix, 1)
    assert ((packed.delta != 0).reshape(24, 10, 4).sum(axis=-1) <= 2).all()
    assert packed.bits <= matrix.delta.size * (math.log2(6) / 4 + 2) + 16 * 24


def test_two_of_four_with_feedback_loses_less(matrix):
    plain, fed = (pack(matrix, 1).delta for pack in (peers.two_of_four, peers.two_of_four_fed_back))
    assert lost(matrix, fed) < lost(matrix, plain)


def test_two_of_four_takes_rows_of_any_length():
    wide = Matrix(np.arange(1.0, 12.0).reshape(1, 11), None, 0)
    assert (peers.two_of_four(wide, 1).delta != 0).tolist() == [[0, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1]]


# Comparing --------------------------------------------------------------------------------------------------


def point(method: str, bits: float, drift: float, ours: bool = False, score: float = 0.9) -> Point:
    return Point(method, f"{bits}", ours, bits, drift, score, None, drift if ours else None, None, 0.0)


def result(*points: Point) -> Result:
    return Result("pair", "accuracy", 100, 0.5, 0.9, 1.0, points)


def test_envelope_leaves_out_what_is_beaten():
    points = [point("a", 1, 0.3), point("a", 2, 0.4), point("a", 3, 0.1), point("a", 0.5, 0.9)]
    assert frontier.envelope(points) == [(0.5, 0.9), (1, 0.3), (3, 0.1)]


def test_ratios_at_equal_drift():
    curve = [(0.1, 0.4), (0.4, 0.1)]
    assert frontier.ratios([curve], [(2.0, 0.2)]) == pytest.approx([10])
    assert frontier.ratios([curve], [(2.0, 0.05)]) == [0.0]  # never reached
    assert frontier.ratios([curve], [(0.01, 0.2), (9.0, 0.2), (1.0, 1.5)]) == []  # out of range, or useless
    assert frontier.ratios([curve, [(0.05, 0.2)]], [(2.0, 0.2)]) == pytest.approx([40])


def test_no_interpolation_towards_a_drift_of_none():
    assert frontier.bits_at([(1.0, 0.1), (20.0, 0.0)], 0.05) == 20.0


def test_targets_hold_and_miss():
    ours = [point("ours, x", 0.1, 0.4, True), point("ours, x", 0.4, 0.1, True)]
    good = result(*ours, point("SVD, 16-bit factors", 1.0, 0.4), point("SVD, 4-bit factors", 0.5, 0.2))
    verdicts = [target.holds for target in frontier.targets(good)]
    assert verdicts == [True, True, True]
    bad = result(*ours, point("SVD, 16-bit factors", 0.9, 0.4), point("SVD, 4-bit factors", 0.15, 0.2))
    assert [target.holds for target in frontier.targets(bad)] == [False, False, False]


def test_least_bits_that_keep_the_score():
    points = [point("a", 0.1, 0.4, score=0.889), point("a", 0.2, 0.3, score=0.891), point("a", 0.4, 0.2)]
    assert frontier.kept_score(result(*points), ["a"]) == 0.2
    language = dataclasses.replace(result(*points), metric="nll", tuned_score=0.87)
    assert frontier.kept_score(language, ["a"]) is None


# A run ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_quick_run_measures_draws_and_is_taken_up(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    arguments = [
        str(tmp_path),
        "--quick",
        "--table",
        str(tmp_path / "t.md"),
        "--picture",
        str(tmp_path / "p.svg"),
    ]
    frontier.main(arguments)
    found = json.loads((tmp_path / "frontier.json").read_text())["tiny"]
    methods = {p["method"] for p in found["points"]}
    assert methods >= {peer.name for peer in peers.PEERS} | {
        "ours, uniform",
        "ours, tensor",
        "ours, factored",
    }
    assert found["tuned_score"] < found["base_score"]
    exact = [p for p in found["points"] if p["ours"] and p["setting"] == "bits 8, drop 0.0"]
    assert all(p["drift"] < 0.01 and 8 < p["bits"] < 10 for p in exact)
    assert len(exact) == 3
    lossless = next(p for p in found["points"] if p["method"] == "ours, lossless")
    assert lossless["drift"] == 0
    assert 16 < lossless["bits"] < 40
    assert "never more bytes than any" in (tmp_path / "t.md").read_text()
    assert (tmp_path / "p.svg").stat().st_size > 10_000
    capsys.readouterr()
    frontier.main(arguments)
    assert not [line for line in capsys.readouterr().err.splitlines() if line.startswith("  ")]
    assert json.loads((tmp_path / "frontier.json").read_text())["tiny"] == found
