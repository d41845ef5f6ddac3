"""The grid: unbiased codes, exact moments, plans that meet their budgets, and packs that two decoders accept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import pair
from test_keep import energies_of, keeps

from assay.checkpoints import apply, pack
from assay.checkpoints.apply import scheme_of
from assay.checkpoints.codec import Scheme, decode_block, encode_block
from assay.checkpoints.delta import Delta
from assay.checkpoints.factors import Factors
from assay.checkpoints.gridplan import GridPlanner
from assay.checkpoints.keep import FLOOR, Planner
from assay.checkpoints.plan import GRID, KEEP_MAPS
from assay.core.errors import BudgetError, InputError
from assay_verify.__main__ import main as checker

ROWS, COLUMNS = 40, 30


def thresholded(keep: float) -> Factors:
    """Every entry of one keep probability."""
    zeros = [np.zeros(n, np.uint8) for n in (ROWS, COLUMNS)]
    return Factors(*zeros, (1, 2**32), (1, 2**32), 0, round(keep * 2**32))


def bits_of(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).view(np.uint32)


def test_codes_are_unbiased_and_the_variance_is_the_stated_one():
    delta = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    total, squares, seeds = np.zeros(delta.size), 0.0, 400
    for seed in range(seeds):
        scheme = Scheme(16, 0, 1.0, (seed, 9), factors=thresholded(0.4), step=0.7)
        block = encode_block(bits_of(np.zeros_like(delta)), bits_of(delta), "F32", 0, scheme)
        index, value = decode_block(block.payload, 0, delta.size, scheme)
        total[index] += value
        squares += float(block.stats.row_realised.sum())
    spread = float(block.stats.row_variance.sum())
    assert squares / seeds == pytest.approx(spread, rel=0.02)
    error = total / seeds - delta.reshape(-1)
    assert float(error @ error) == pytest.approx(spread / seeds, rel=0.2)


@given(scale=st.floats(1e-6, 1e6), step=st.floats(0.01, 8), keep=st.floats(0.01, 1))
@settings(max_examples=25, deadline=None)
def test_a_block_comes_back_on_the_grid(scale, step, keep):
    delta = (np.random.default_rng(1).standard_normal((ROWS, COLUMNS)) * scale).astype(np.float32)
    made = thresholded(keep)
    scheme = Scheme(16, 0, 1.0, (3, 4), factors=made, step=step * scale)
    block = encode_block(bits_of(np.zeros_like(delta)), bits_of(delta), "F32", 0, scheme)
    index, value = decode_block(block.payload, 0, delta.size, scheme)
    exact = made.floor / 2**32
    codes = value.astype(np.float64) * exact / (step * scale)
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-2)
    assert np.all(np.abs(codes * step * scale - delta.reshape(-1)[index]) <= step * scale * 1.001)
    assert block.stats.kept == index.size


def test_what_the_step_is_too_small_for_is_counted():
    delta = np.ones((ROWS, COLUMNS), np.float32)
    scheme = Scheme(16, 0, 1.0, (3, 4), factors=thresholded(0.5), step=1e-8)
    stats = encode_block(bits_of(np.zeros_like(delta)), bits_of(delta), "F32", 0, scheme).stats
    assert stats.uncodable == delta.size
    for step in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="a step is a finite number"):
            Scheme(16, 0, 1.0, (3, 4), factors=thresholded(0.5), step=step)


@given(data=st.binary(max_size=80))
@settings(max_examples=100, deadline=None)
def test_hostile_payloads_are_one_sentence(data):
    scheme = Scheme(16, 0, 1.0, (3, 4), factors=thresholded(0.5), step=0.1)
    block = encode_block(
        bits_of(np.zeros((ROWS, COLUMNS))), bits_of(np.ones((ROWS, COLUMNS))), "F32", 0, scheme
    )
    for payload in (data, block.payload[: min(len(data), len(block.payload) - 1)]):
        with pytest.raises(InputError):
            decode_block(payload, 0, ROWS * COLUMNS, scheme)


# Plans ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    base, finetuned = pair(folder, rows=600, columns=300)
    energies = energies_of(base, finetuned)
    energies.save(folder / "e.safetensors")
    return base, finetuned, folder / "e.safetensors", energies


@pytest.mark.parametrize("keep_map", KEEP_MAPS)
def test_budgets_are_met_and_spent(measured, keep_map):
    planner = GridPlanner(measured[3], overhead=1000)
    for drift in (0.05, 0.2, 0.6):
        plan = planner.at_drift(keep_map, drift)
        assert 0.85 * drift <= plan.drift <= drift * (1 + 1e-4)
        assert set(plan.steps) == set(measured[3].tensors)
    for size in (20_000, 60_000):
        assert 0.97 * size <= planner.at_size(keep_map, size).size <= size + 1
    for drop in (0.5, 0.9, 0.97):
        plan = planner.at_drop(keep_map, drop)
        kept = np.concatenate([k.reshape(-1) for k in keeps(plan, measured[3])])
        assert kept.mean() == pytest.approx(1 - drop, rel=2e-2)
        assert kept.min() >= FLOOR * kept.mean() * 0.99


def test_a_grid_takes_no_more_bytes_than_the_best_number_of_bits(measured):
    for drift in (0.1, 0.3, 0.6):
        best = GridPlanner(measured[3], 1000).at_drift("factored", drift)
        for bits in (2, 3, 4, 8, 16):
            try:
                other = Planner(measured[3], bits, 1000).at_drift("factored", drift)
            except BudgetError:
                continue
            assert best.size < 1.05 * other.size  # a few bits with a scale for each span may win by a little


def test_out_of_reach_says_how_far(measured):
    planner = GridPlanner(measured[3], overhead=5000)
    with pytest.raises(BudgetError, match=r"out of reach of a grid: .* predicted to be [0-9.e-]+;"):
        planner.at_drift("factored", 1e-7)
    with pytest.raises(BudgetError, match=r"100 bytes are out of reach .* take [5-9]\d{3} by themselves"):
        planner.at_size("factored", 100)
    for call in (lambda: planner.at_drop("tensor", 1), lambda: planner.at_drop("rows", 0.5)):
        with pytest.raises(InputError):
            call()


@pytest.mark.parametrize("keep_map", KEEP_MAPS)
def test_a_grid_pack_comes_back_and_is_accepted(measured, tmp_path, keep_map, capsys):
    base, finetuned, file, _ = measured
    first = None
    for workers in (1, 3):
        out = tmp_path / f"{workers}.safetensors"
        report = pack(
            finetuned, base, out, bits=GRID, energies=file, keep_map=keep_map, max_drift=0.3, workers=workers
        )
        assert first in (None, out.read_bytes())
        first = out.read_bytes()
    apply(base, out, tmp_path / "o.safetensors")
    assert report.keep.drift <= 0.3 * (1 + 1e-4)
    assert report.bytes_out == pytest.approx(report.keep.size, rel=0.08)
    subjects = [x for s in (f"base={base}", f"finetuned={finetuned}") for x in ("--subject", s)]
    assert checker([str(out), *subjects]) == 0
    capsys.readouterr()
    with_steps = [r for r in Delta(out).plan["tensors"] if "step" in r]
    assert with_steps
    assert all("bits" not in r for r in with_steps)


def test_a_record_with_a_step_and_bits_is_refused(measured, tmp_path):
    base, finetuned, file, _ = measured
    out = tmp_path / "d.safetensors"
    pack(finetuned, base, out, bits=GRID, energies=file, keep_map="factored", max_drift=0.3)
    delta = Delta(out)
    record = next(r for r in delta.plan["tensors"] if "step" in r)
    assert scheme_of(delta, record).step == float.fromhex(record["step"])
    for more in ({"bits": 4}, {"span": 64}):
        with pytest.raises(InputError, match="both a step and bits"):
            scheme_of(delta, record | more)
