"""The e-process is exact where it claims to be, and cannot be cheated by looking often."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.stats.betting import (
    Wealth,
    alternatives,
    bernoulli_e_value,
    bernoulli_e_value_below,
    log_growth,
    lower_limit,
    mean_e_value_below,
)

DELTA = Fraction(1, 20)
bounds = st.fractions(min_value=Fraction(1, 200), max_value=Fraction(199, 200), max_denominator=200)


def test_the_ladder_is_geometric_and_ends_at_certainty():
    ladder = alternatives(Fraction(1, 10**6))
    assert ladder[0] == Fraction(11, 10**7)
    assert all(b / a == Fraction(7, 5) for a, b in itertools.pairwise(ladder[1:-1]))
    assert ladder[-1] == 1
    assert all(a > Fraction(1, 10**6) for a in ladder)


def test_an_e_value_by_hand():
    """One failure against 1/2: the mean of a / (1/2) over the ladder."""
    ladder = alternatives(Fraction(1, 2))
    assert bernoulli_e_value(1, 1, Fraction(1, 2)) == sum(ladder) / len(ladder) * 2


@given(bounds, st.integers(0, 6))
@settings(max_examples=40, deadline=None)
def test_the_expectation_under_the_null_is_exactly_one(bound, draws):
    total = Fraction(0)
    for failures in range(draws + 1):
        weight = bound**failures * (1 - bound) ** (draws - failures)
        total += _choose(draws, failures) * weight * bernoulli_e_value(failures, draws, bound)
    assert total == 1


def _choose(n, k):
    result = 1
    for i in range(k):
        result = result * (n - i) // (i + 1)
    return result


@given(bounds, st.integers(0, 200), st.integers(0, 200))
@settings(max_examples=40, deadline=None)
def test_the_fast_e_value_is_a_lower_bound_and_a_close_one(bound, failures, others):
    exact = bernoulli_e_value(failures, failures + others, bound)
    below = bernoulli_e_value_below(failures, failures + others, bound)
    assert below <= exact
    assert exact - below <= exact / 2**200


@given(bounds, st.lists(st.booleans(), max_size=40))
@settings(max_examples=40, deadline=None)
def test_bernoulli_draws_are_bounded_draws(bound, draws):
    exact = bernoulli_e_value(sum(draws), len(draws), bound)
    assert mean_e_value_below([Fraction(d) for d in draws], bound) == pytest.approx(float(exact))
    wealth = Wealth.start(bound).after(np.array(draws, dtype=float))
    assert np.exp(wealth.log_e) == pytest.approx(float(exact), rel=1e-9)


@given(bounds, st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_evidence_is_continued_not_restarted(bound, values, cut):
    whole = Wealth.start(bound).after(np.array(values))
    parts = Wealth.start(bound).after(np.array(values[:cut])).after(np.array(values[cut:]))
    assert parts.draws == whole.draws
    assert parts.log_e == pytest.approx(whole.log_e, abs=1e-9)


@pytest.mark.parametrize("bound", [Fraction(0), Fraction(1), Fraction(-1, 2), Fraction(3, 2)])
def test_a_bound_outside_the_open_interval_is_refused(bound):
    with pytest.raises(InputError, match="nothing to bet on"):
        alternatives(bound)


@pytest.mark.parametrize(("failures", "draws"), [(-1, 3), (4, 3)])
def test_counts_must_be_counts(failures, draws):
    for function in (bernoulli_e_value, bernoulli_e_value_below):
        with pytest.raises(InputError, match="is no count"):
            function(failures, draws, DELTA)


@pytest.mark.parametrize("outside", [-1e-9, 1 + 1e-9, float("nan")])
def test_a_draw_outside_its_support_is_refused(outside):
    with pytest.raises(InputError, match="no e-process"):
        log_growth(np.array([0.5, outside]), DELTA)
    if outside == outside:
        with pytest.raises(InputError, match="no e-process"):
            mean_e_value_below([Fraction(outside)], DELTA)


def log_e_paths(failures: np.ndarray, bound: Fraction) -> np.ndarray:
    """Log e-value after every draw, of many Bernoulli audits at once: shape as `failures`."""
    k = np.cumsum(failures, axis=1, dtype=np.float64)
    n = np.arange(1, failures.shape[1] + 1)
    ladder = alternatives(bound)
    total = np.full(failures.shape, -np.inf)
    for a in ladder:
        up = float(np.log(float(a / bound)))
        down = float(np.log(float((1 - a) / (1 - bound)))) if a < 1 else -1e9
        np.logaddexp(total, k * up + (n - k) * down, out=total)
    return total - np.log(len(ladder))


def crossings(prob: float, audits: int, draws: int, level: float, seed: int) -> float:
    """Share of audits whose e-value ever reaches 1/level."""
    crossed = 0
    rng = np.random.default_rng(seed)
    for start in range(0, audits, 1000):
        failures = rng.random((min(1000, audits - start), draws)) < prob
        crossed += int((log_e_paths(failures, DELTA).max(axis=1) >= -np.log(level)).sum())
    return crossed / audits


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.2, 0.05, 0.01, 1e-6])
def test_size_at_the_null_over_20000_audits_that_look_after_every_draw(level):
    audits = 20_000
    share = crossings(0.05, audits, 1000, level, seed=11)
    assert share <= level + 3 * np.sqrt(level * (1 - level) / audits)


def test_size_at_the_null_in_small():
    assert crossings(0.05, 2000, 400, 0.05, seed=5) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


def test_the_size_test_can_fail():
    assert crossings(0.08, 1000, 1000, 0.05, seed=5) > 0.2


@pytest.mark.parametrize(("prob", "median"), [(0.07, 4640), (0.10, 960), (0.20, 140)])
def test_power_is_at_least_that_of_the_prototype(prob, median):
    """Median draws to refute P <= 1/20 at 1e-6, against the figures measured with a Beta-like grid."""
    rng = np.random.default_rng(3)
    paths = log_e_paths(rng.random((200, 4 * median)) < prob, DELTA)
    reached = paths >= np.log(1e6)
    first = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, np.inf)
    assert np.median(first) <= median


@pytest.mark.parametrize("prob", [0.0, 0.05])
def test_no_false_alarm(prob):
    assert crossings(prob, 20, 5000, 1e-6, seed=1) == 0


def test_a_bound_forty_times_too_small_falls_quickly():
    """17 failures in 1300 draws against 1/1000 suffice, which a uniform grid of alternatives missed."""
    assert bernoulli_e_value_below(17, 1300, Fraction(1, 1000)) >= 10**6


def test_lower_limit_covers():
    rng = np.random.default_rng(2)
    limits = [
        lower_limit((rng.random(300) < 0.3).astype(float), Fraction(1, 20), steps=20) for _ in range(60)
    ]
    assert np.mean([limit > 0.3 for limit in limits]) <= 0.05
    assert np.median(limits) > 0.2


def test_lower_limit_of_nothing_is_zero():
    assert lower_limit(np.array([]), Fraction(1, 20)) == 0.0
    assert lower_limit(np.zeros(10), Fraction(1, 20)) == 0.0
