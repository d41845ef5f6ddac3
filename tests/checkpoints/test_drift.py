"""Measured drift: exact for a linear network, the definition for a small classifier, and what must be refused."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from models import read
from safetensors.numpy import load_file, save_file
from test_calibrate import rewrite_weights, sentences
from test_energies import pair_of_models

from assay.checkpoints import apply, pack
from assay.checkpoints.drift import measure_drift, module_drift, offer_pack, open_gauge
from assay.checkpoints.energies import collect_energies, module_energies
from assay.core.errors import InputError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    """A classifier pair with its energies and a delta planned by them."""
    return prepared(tmp_path_factory.mktemp("topics"), "bert-topics")


def prepared(folder, kind):
    tuned, base = pair_of_models(folder, kind)
    energies = folder / "energies.safetensors"
    collect_energies(tuned, base, sentences(24, seed=1)).save(energies)
    delta = folder / "delta.safetensors"
    report = pack(tuned, base, delta, energies=energies, keep_map="factored", drop=0.5, bits=4)
    return base, tuned, delta, energies, report


def test_the_prediction_of_a_delta_is_that_of_its_plan(topics):
    base, tuned, delta, energies, report = topics
    found = measure_drift(base, tuned, delta, sentences(20), energies=energies)
    assert report.keep is not None
    assert found.predicted == pytest.approx(report.keep.drift, rel=1e-9)


@pytest.mark.parametrize("drift", [0.03, 0.3])
def test_the_prediction_of_a_grid_is_that_of_its_plan(topics, tmp_path, drift):
    base, tuned, _, energies, _ = topics
    delta = tmp_path / "grid.st"
    report = pack(tuned, base, delta, energies=energies, keep_map="factored", bits=0, max_drift=drift)
    found = measure_drift(base, tuned, delta, sentences(20), energies=energies)
    assert report.keep is not None
    assert found.predicted == pytest.approx(report.keep.drift, rel=0.02)
    assert found.first_order is True


def test_drift_is_that_of_the_unpacked_model(topics, tmp_path):
    """The same figures from three models loaded by the stock library."""
    import transformers

    base, tuned, delta, _, _ = topics
    texts = sentences(12)
    apply(base, delta, tmp_path / "packed")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned)

    def logits(folder):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        with torch.no_grad():
            parts = [
                model(**tokenizer(t, truncation=True, max_length=20, return_tensors="pt")) for t in texts
            ]
        return torch.cat([part.logits for part in parts]).double()

    before, after, packed = logits(base), logits(tuned), logits(tmp_path / "packed")
    found = measure_drift(base, tuned, delta, texts)
    wanted = math.sqrt(((packed - after) ** 2).sum() / ((before - after) ** 2).sum())
    assert found.drift == pytest.approx(wanted, rel=1e-3)
    then, now = after.log_softmax(1), packed.log_softmax(1)
    assert found.divergence == pytest.approx(float((then.exp() * (then - now)).sum(1).mean()), rel=1e-3)
    assert found.low <= found.drift <= found.high
    assert found.low < found.high
    assert found.first_order is None
    assert found == measure_drift(base, tuned, delta, texts)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_lossless_delta_has_no_drift_and_holds(tmp_path, kind):
    base, tuned, _, energies, _ = prepared(tmp_path, kind)
    delta = tmp_path / "exact.safetensors"
    pack(tuned, base, delta, lossless=True)
    found = measure_drift(base, tuned, delta, sentences(8), energies=energies)
    assert (found.drift, found.low, found.high, found.predicted, found.first_order) == (0, 0, 0, 0, True)
    assert found.divergence == (0 if kind == "llama" else None)


def test_a_language_model_drifts_by_twice_its_divergence(tmp_path):
    base, tuned, delta, energies, _ = prepared(tmp_path, "llama")
    everything_lost = tmp_path / "none.safetensors"
    pack(tuned, base, everything_lost, drop=1, certificate=False)
    found = measure_drift(base, tuned, everything_lost, sentences(8))
    assert found.kind == "causal-lm"
    assert found.drift == pytest.approx(1, rel=1e-2)  # norms and embeddings did not move: packed is the base
    assert measure_drift(base, tuned, delta, sentences(8), energies=energies).divergence > 0


def test_first_order_holds_only_within_a_factor_of_two(topics):
    base, tuned, delta, energies, _ = topics
    found = measure_drift(base, tuned, delta, sentences(40), energies=energies)
    assert found.first_order is True
    for factor, holds in ((0.49, False), (0.51, True), (1.99, True), (2.01, False)):
        assert replace(found, drift=factor * 0.2, predicted=0.2).first_order is holds
    assert replace(found, drift=0.51, predicted=0.51).first_order is False  # right, and the fine-tune lost


def test_an_offer_names_the_smallest_pack_within_the_limit_and_leaves_nothing(topics, tmp_path):
    base, tuned, _, energies, _ = topics
    room = tmp_path / "room"
    room.mkdir()
    with open_gauge(base, tuned, sentences(12)) as gauge:
        offer = offer_pack(gauge, base, tuned, max_drift=0.2, energies=energies, folder=room)
        strict = offer_pack(gauge, base, tuned, max_drift=1e-9, folder=room)
    good = [t.report.size for t in offer.tried if t.report.drift <= 0.2]
    assert len(offer.tried) == 7
    assert offer.best is not None
    assert offer.best.report.size == min(good)
    assert strict.best is not None
    assert strict.best.settings == {"lossless": True}
    assert len(strict.tried) == 4
    assert not list(room.iterdir())


def test_a_module_is_measured_as_its_outputs_say(tmp_path):
    """z = W x: drift by hand from the unpacked weights; the module comes back as it was."""
    draw = np.random.default_rng(0)
    old = draw.standard_normal((6, 8)).astype(np.float32)
    new = old + 0.1 * draw.standard_normal((6, 8)).astype(np.float32)
    base, tuned = tmp_path / "base.safetensors", tmp_path / "tuned.safetensors"
    save_file({"weight": old}, base)
    save_file({"weight": new}, tuned)
    module = torch.nn.Linear(8, 6, bias=False)
    module.weight.data = torch.from_numpy(new.copy())
    items = list(torch.from_numpy(draw.standard_normal((7, 8)).astype(np.float32)))
    pack(tuned, base, tmp_path / "d", drop=0.5)
    apply(base, tmp_path / "d", tmp_path / "packed.safetensors")
    packed = read(tmp_path / "packed.safetensors")["weight"]
    x = torch.stack(items).numpy().astype(np.float64)
    wanted = np.sqrt(np.sum((x @ (packed - new).T) ** 2) / np.sum((x @ (old - new).T) ** 2))
    energies = module_energies(module, {"weight": old}, items, lambda m, s: m(s))
    found = module_drift(module, lambda m, s: m(s), items, base, tuned, tmp_path / "d", energies=energies)
    assert found.drift == pytest.approx(wanted, rel=1e-4)
    delta = (new - old).astype(np.float64)
    half = np.sum(x**2 @ (delta**2).T) / np.sum((x @ delta.T) ** 2)  # 1/k - 1 is 1 for every entry
    assert found.predicted == pytest.approx(math.sqrt(half), rel=1e-3)
    np.testing.assert_array_equal(module.weight.detach().numpy(), new)
    module.weight.data += 1
    with pytest.raises(InputError, match="does not hold the values"):
        module_drift(module, lambda m, s: m(s), items, base, tuned, tmp_path / "d")


# Bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "no calibration texts"),
        ([" "], "is empty"),
        (sentences(1), "at least"),
    ],
)
def test_too_few_texts_are_refused(topics, texts, message):
    base, tuned, delta, _, _ = topics
    with pytest.raises(InputError, match=message):
        measure_drift(base, tuned, delta, texts)


def test_one_long_text_is_too_few(tmp_path):
    base, tuned, delta, _, _ = prepared(tmp_path, "llama")
    with pytest.raises(InputError, match="at least 2 held-out samples"):
        measure_drift(base, tuned, delta, [" ".join(sentences(40))])


def test_a_text_without_tokens_is_refused(topics, tmp_path):
    """A tokenizer that drops a character, and a text of nothing else."""
    base, tuned, delta, _, _ = topics
    copy = shutil.copytree(tuned, tmp_path / "tuned")
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"String": "~"}, "content": ""}
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match="text 10 has no tokens"):
        measure_drift(base, copy, delta, [*sentences(9), "~~~"])


def test_a_model_that_does_not_load_is_refused(topics, tmp_path):
    base, tuned, delta, _, _ = topics
    broken = shutil.copytree(tuned, tmp_path / "broken")
    (broken / "config.json").write_text(json.dumps({"model_type": "no such model"}))
    with pytest.raises(InputError, match="does not load offline"):
        measure_drift(base, broken, delta, sentences(9))


def moved(folder, target, amount):
    copy = shutil.copytree(folder, target)
    rewrite_weights(copy, lambda w: {n: v + np.float32(amount) if v.ndim == 2 else v for n, v in w.items()})
    return copy


def test_a_delta_or_energies_of_another_pair_are_refused(topics, tmp_path):
    base, tuned, delta, energies, _ = topics
    other_base = moved(base, tmp_path / "base", 1e-3)
    with pytest.raises(InputError, match="is not the base of"):
        measure_drift(other_base, tuned, delta, sentences(9))
    exact = tmp_path / "exact.safetensors"
    pack(tuned, base, exact, lossless=True)
    other = moved(tuned, tmp_path / "tuned", 1e-3)
    with pytest.raises(InputError, match="another fine-tune"):
        measure_drift(base, other, exact, sentences(9))
    with pytest.raises(InputError, match="another fine-tune than"):
        measure_drift(base, other, delta, sentences(9), energies=energies)


def test_a_weight_or_output_that_is_not_finite_is_named(topics, tmp_path):
    base, tuned, delta, _, _ = topics
    name = next(n for n in load_file(tuned / "model.safetensors") if n.endswith("intermediate.dense.weight"))
    for folder, value, message in (
        (base, np.nan, "holds NaN"),
        (tuned, 3e38, "first in layer .*intermediate"),
    ):
        copy = shutil.copytree(folder, tmp_path / folder.name)
        rewrite_weights(copy, lambda w, v=value: w | {name: np.full_like(w[name], v)})
        pair = (copy, tuned) if folder is base else (base, copy)
        with pytest.raises(InputError, match=message):
            measure_drift(*pair, delta, sentences(9))
