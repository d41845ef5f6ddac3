"""calibrate, plan and packs by energies, as a user types them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from assay.checkpoints.delta import source_fingerprint
from assay.checkpoints.energies import Energies, _exact_bytes, _Pair, _tensor_energy
from assay.checkpoints.io import open_checkpoint


@pytest.fixture
def energies(pair, tmp_path):
    """Made-up gradients for the pair: no torch is needed to plan."""
    base, tuned = pair
    draw = np.random.default_rng(0)
    with open_checkpoint(base) as old, open_checkpoint(tuned) as new:
        matrices = [n for n, info in new.tensors.items() if info.is_float and len(info.shape) == 2]
        tensors = {
            n: _tensor_energy(_Pair(n, old, new), draw.chisquare(1, new.tensors[n].shape).astype(np.float32))
            for n in matrices
        }
        other = {n: _exact_bytes(n, old, new) for n in new.tensors if n not in tensors}
        effect = 100 * sum(t.total for t in tensors.values())
        prints = source_fingerprint(old), source_fingerprint(new)
    Energies(tensors, other, effect, "encoder", 8, 2, 0, *prints, "t").save(tmp_path / "e.safetensors")
    return tmp_path / "e.safetensors"


def test_plan_prints_the_frontier_and_draws_it(invoke, pair, energies, tmp_path):
    base, tuned = pair
    pytest.importorskip("matplotlib")
    plot = tmp_path / "f.svg"
    arguments = ("plan", "pack", tuned, "--base", base, "--energies", energies)
    result = invoke(*arguments, "--picture", plot)
    assert result.exit_code == 0, result.stderr
    assert "predicted, first order" in result.stdout
    first = plot.read_bytes()
    assert b"factored, 4 bits" in first
    invoke(*arguments, "--picture", plot)
    assert plot.read_bytes() == first
    document = json.loads(invoke(*arguments, "--json", "--all", "--bits", 4, "--drop", "0.5,0.9").stdout)
    assert document["basis"] == "predicted, first order"
    assert {(p["keep_map"], p["bits"]) for p in document["plans"]} == {
        (m, 4) for m in ("uniform", "tensor", "factored")
    }
    assert len(document["plans"]) == 6
    listed = json.loads(invoke(*arguments, "--json").stdout)["plans"]
    assert [p["size"] for p in listed] == sorted(p["size"] for p in listed)
    assert [p["drift"] for p in listed] == sorted((p["drift"] for p in listed), reverse=True)


def test_a_pack_within_a_drift_says_that_it_is_predicted(invoke, pair, energies, tmp_path):
    base, tuned = pair
    target = tmp_path / "d.safetensors"
    arguments = (
        "pack",
        tuned,
        "--base",
        base,
        "-o",
        target,
        "--energies",
        energies,
        "--keep-map",
        "factored",
    )
    result = invoke(*arguments, "--max-drift", 0.2)
    assert result.exit_code == 0, result.stderr
    assert "predicted, first order: the outputs drift by 0.2" in result.stdout
    assert "not measured" in result.stdout
    assert invoke("verify", target, "--base", base, "--finetuned", tuned).exit_code == 0
    document = json.loads(invoke(*arguments, "--drop", 0.8, "--json", "--overwrite").stdout)
    assert document["predicted"]["basis"] == "predicted, first order"
    assert document["predicted"]["mean_keep"] == pytest.approx(0.2, rel=1e-3)
    assert invoke("show", target).exit_code in (0, 2)
    page = invoke("inspect", target)
    assert page.exit_code == 0
    assert "has expectation zero" in page.stdout
    assert "masks were chosen" not in page.stdout
    assert invoke("apply", base, target, "-o", tmp_path / "o.safetensors").exit_code == 0
    assert invoke("merge", base, target, "-o", tmp_path / "m.safetensors").exit_code == 0
    got, merged = (load_file(tmp_path / f"{n}.safetensors") for n in "om")
    for name, value in got.items():
        if value.ndim == 2:
            np.testing.assert_allclose(merged[name], value, atol=1e-6)


def test_budgets_out_of_reach_leave_with_1_and_misuse_with_2(invoke, pair, energies, tmp_path):
    base, tuned = pair
    arguments = ("pack", tuned, "--base", base, "-o", tmp_path / "d.safetensors")
    for options, code, message in (
        (("--energies", energies, "--max-size", 10), 1, "out of reach"),
        (("--energies", energies, "--max-drift", 1e-7, "--bits", 2), 1, "use more --bits"),
        (("--max-drift", 0.1), 2, "assay calibrate"),
        (("--keep-map", "tensor"), 2, "assay calibrate"),
        (("--energies", energies, "--max-drift", 0.1, "--drop", 0.9), 2, "exclude one another"),
        (("--energies", energies, "--max-size", "big"), 2, "no size"),
        (("--energies", base), 2, "not an energies file"),
    ):
        result = invoke(*arguments, *options)
        assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
        assert not (tmp_path / "d.safetensors").exists()


def test_energies_of_another_pair_are_refused(invoke, pair, energies, tmp_path):
    base, tuned = pair
    weights = {n: v.copy() for n, v in load_file(tuned).items()}
    next(iter(weights.values())).reshape(-1)[0] += 1
    save_file(weights, tmp_path / "other.safetensors", {"format": "pt"})
    result = invoke("plan", "pack", tmp_path / "other.safetensors", "--base", base, "--energies", energies)
    assert result.exit_code == 2
    assert "another fine-tune" in result.stderr


@pytest.mark.torch
def test_calibrate_refuses_bad_texts(invoke, pair, tmp_path):
    pytest.importorskip("transformers")
    base, tuned = pair
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "good.txt").write_text("some words to read\n" * 20)
    for texts, message in (
        ("none.txt", "no calibration text"),
        ("empty.txt", "is empty"),
        ("latin.txt", "not UTF-8"),
    ):
        result = invoke("calibrate", tuned, "--base", base, "--texts", tmp_path / texts, "-o", tmp_path / "e")
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    result = invoke(
        "calibrate", tuned, "--base", base, "--texts", tmp_path / "good.txt", "-o", tmp_path / "e"
    )
    assert (result.exit_code, "config.json" in result.stderr) == (2, True), result.stderr


@pytest.mark.torch
def test_drift_speaks_only_where_the_measurement_agrees(invoke, tmp_path, monkeypatch):
    """One delta, with its own energies, and with energies that promise a hundred times less."""
    pytest.importorskip("torch")
    import dataclasses
    import sys
    from pathlib import Path

    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[1] / "checkpoints"), *sys.path])
    from test_calibrate import sentences
    from test_energies import pair_of_models

    from assay.checkpoints import pack
    from assay.checkpoints.energies import collect_energies

    tuned, base = pair_of_models(tmp_path, "bert-topics")
    right = collect_energies(tuned, base, sentences(24, seed=1))
    right.save(tmp_path / "right")
    dataclasses.replace(right, effect=right.effect * 1e4).save(tmp_path / "wrong")
    pack(tuned, base, tmp_path / "d.st", drop=0.02, bits=8)
    (tmp_path / "held.txt").write_text("\n".join(sentences(12)))
    arguments = ("drift", base, tuned, tmp_path / "d.st", "--text", tmp_path / "held.txt")
    good = invoke(*arguments, "--energies", tmp_path / "right")
    assert good.exit_code == 0, good.stdout
    assert good.stdout.startswith("first order holds: measured ")
    bad = invoke(*arguments, "--energies", tmp_path / "wrong", "--max-drift", "0.01")
    assert bad.exit_code == 1, bad.stderr
    assert bad.stdout.startswith("first order does not hold: measured ")
    assert "pack with --drop 0 --bits " in bad.stdout
    document = json.loads(invoke(*arguments, "--json", "--max-drift", 1e-9, "--no-offer").stdout)
    assert (document["first_order"], document["predicted"], document["offer"]) == (None, None, None)
    assert 0 < document["interval"][0] < document["drift"] < document["interval"][1]
    assert invoke(*arguments, "--max-drift", 1e-9, "--no-offer").exit_code == 1
    (tmp_path / "held.txt").write_text("\n\n")
    empty = invoke(*arguments)
    assert empty.exit_code == 2
    assert "is empty" in empty.stderr
