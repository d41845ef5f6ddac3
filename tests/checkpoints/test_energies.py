"""Energies: exact for a linear network, brute force for a small classifier, and files that must be refused."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_calibrate import rewrite_weights, sentences, write_model

from assay.checkpoints import apply, pack
from assay.checkpoints.energies import (
    Energies,
    TensorEnergy,
    _Dense,
    _tensor_energy,
    collect_energies,
    load_energies,
    module_energies,
)
from assay.checkpoints.factors import Factors, log_codes
from assay.checkpoints.keep import Planner
from assay.core.errors import InputError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def linear_network(outputs: int = 3, width: int = 4, hidden: int = 1, seed: int = 0):
    """z = x^T W-ish: one matrix that the outputs are linear in, its base and samples."""
    draw = np.random.default_rng(seed)
    module = torch.nn.Linear(width, outputs, bias=False)
    tuned = draw.standard_normal((outputs, width)).astype(np.float32)
    delta = (0.1 * draw.standard_normal((outputs, width))).astype(np.float32)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(tuned))
    samples = [torch.from_numpy(x) for x in draw.standard_normal((5, width)).astype(np.float32)]
    return module, {"weight": tuned - delta}, samples


def of_module(module, base, samples) -> Energies:
    return module_energies(module, base, samples, lambda m, x: m(x))


def pair_of_models(folder: Path, kind: str, sigma: float = 1e-3) -> tuple[Path, Path]:
    """A base and a fine-tune of it whose matrices, but for the embeddings, moved a little."""
    base, tuned = write_model(folder / "base", kind), write_model(folder / "tuned", kind)
    draw = np.random.default_rng(4)

    def move(weights):
        return {
            name: (value + sigma * draw.standard_normal(value.shape)).astype(np.float32)
            if value.ndim >= 2 and "embed" not in name
            else value
            for name, value in weights.items()
        }

    rewrite_weights(tuned, move)
    return tuned, base


# Exactness --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_map", ["uniform", "factored"])
def test_the_prediction_of_a_linear_network_is_its_exact_variance(keep_map):
    """All masks of a 2 x 3 matrix, enumerated with their probabilities."""
    module, base, samples = linear_network(outputs=2, width=3)
    energies = of_module(module, base, samples)
    plan = Planner(energies, bits=16).at_drop(keep_map, 0.6)
    made = plan.thresholds["weight"]
    thresholds = np.full((2, 3), made)
    if isinstance(made, Factors):
        thresholds = made.thresholds[made.row_codes[:, None], made.column_codes[None, :]]
    keep = thresholds.reshape(-1).astype(np.float64) / 2**32
    delta = (module.weight.detach().numpy() - base["weight"]).astype(np.float64).reshape(-1)
    inputs = torch.stack(samples).double().numpy()
    drift = effect = 0.0
    for mask in itertools.product((0, 1), repeat=6):
        kept = np.array(mask)
        probability = float(np.prod(np.where(kept, keep, 1 - keep)))
        error = (delta * kept / keep - delta).reshape(2, 3)
        drift += probability * float(np.mean(np.sum((inputs @ error.T) ** 2, axis=1)))
    effect = float(np.mean(np.sum((inputs @ delta.reshape(2, 3).T) ** 2, axis=1)))
    assert energies.effect == pytest.approx(effect, rel=1e-5)
    noise = energies.tensors["weight"].noise[0, 0] / effect  # of bfloat16, next to nothing
    assert plan.drift**2 == pytest.approx(drift / effect, rel=1e-4, abs=3 * noise / keep.min())


def test_sums_are_those_of_the_full_matrix():
    draw = np.random.default_rng(2)
    gradients = draw.random((40, 30)).astype(np.float32) * np.exp(draw.standard_normal((40, 1))).astype(
        np.float32
    )
    delta = draw.standard_normal((40, 30))
    found = _tensor_energy(_Dense(delta), gradients)
    full = gradients * delta**2
    np.testing.assert_allclose(found.rows, full.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found.columns, full.mean(axis=0), rtol=1e-6)
    assert found.total == pytest.approx(full.sum(), rel=1e-9)
    assert found.peak == pytest.approx(full.max(), rel=1e-9)
    rows, columns = log_codes(found.rows)[0], log_codes(found.columns)[0]
    for r, c in itertools.product(range(16), repeat=2):
        part = full[rows == r][:, columns == c].sum()
        assert found.energy[r, c] == pytest.approx(part, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_noise_and_rate_of_the_quantiser_are_those_of_the_codec(bits):
    """Against the codec's own variance, and against the bytes that it needs."""
    from assay.checkpoints import codec
    from assay.checkpoints.plan import BITS

    delta = np.random.default_rng(1).standard_normal((64, 1024)).astype(np.float32)
    found = _tensor_energy(_Dense(delta.astype(np.float64)), np.ones((64, 1024), np.float32))
    scheme = codec.Scheme(bits, 2**32, 1.0, (1, 2), span=1024)
    block = codec.encode_block(np.zeros((64, 1024), np.uint32), delta.view(np.uint32), "F32", 0, scheme)
    noise, rate = found.noise[BITS.index(bits), 1], found.rate[BITS.index(bits), 1]
    assert noise == pytest.approx(block.stats.row_quantiser_variance.sum(), rel=0.01)
    assert rate == pytest.approx((len(block.payload) - 2 * 64 - 21) * 8 / delta.size, rel=0.05)


def test_a_small_classifier_against_brute_force(tmp_path):
    """Every gradient taken by itself, in float64, from a model that was loaded another way."""
    import transformers

    tuned, base = pair_of_models(tmp_path, "bert-topics")
    texts = sentences(6)
    energies = collect_energies(tuned, base, texts)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tuned).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned)
    old, new = (load_file(folder / "model.safetensors") for folder in (base, tuned))
    assert (energies.kind, energies.draws, energies.samples) == ("classification", 3, 6)
    changed = [n for n in new if new[n].ndim == 2 and not np.array_equal(new[n], old[n])]
    assert set(energies.tensors) == set(changed)
    named = dict(model.named_parameters())
    sums = {name: np.zeros(new[name].shape) for name in changed}
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        for label in range(3):
            grads = torch.autograd.grad(model(**inputs).logits[0, label], [named[n] for n in changed])
            for name, gradient in zip(changed, grads, strict=True):
                sums[name] += gradient.numpy() ** 2 / len(texts)
    for name in changed:
        full = sums[name] * (new[name].astype(np.float64) - old[name]) ** 2
        np.testing.assert_allclose(energies.tensors[name].rows, full.mean(axis=1), rtol=1e-3, atol=1e-12)
        np.testing.assert_allclose(energies.tensors[name].columns, full.mean(axis=0), rtol=1e-3, atol=1e-12)
    before = transformers.AutoModelForSequenceClassification.from_pretrained(base).double().eval()
    with torch.no_grad():
        moved = [
            float(((model(**i).logits - before(**i).logits) ** 2).sum())
            for i in (tokenizer(text, return_tensors="pt") for text in texts)
        ]
    assert energies.effect == pytest.approx(np.mean(moved), rel=1e-3)


def test_projections_and_labels_estimate_what_they_stand_for(tmp_path):
    """An encoder's projections give E |dz/dw|^2; the effect of a language model is twice its divergence."""
    tuned, base = pair_of_models(tmp_path / "b", "bert")
    texts = sentences(6)
    few, many = (collect_energies(tuned, base, texts, draws=n).tensors for n in (2, 40))
    total = [sum(t.total for t in tensors.values()) for tensors in (few, many)]
    assert total[0] == pytest.approx(total[1], rel=0.5)

    import transformers

    tuned, base = pair_of_models(tmp_path / "g", "gpt2", sigma=2e-2)
    energies = collect_energies(tuned, base, texts, draws=400)
    assert energies.kind == "causal-lm"
    new, old = (transformers.AutoModelForCausalLM.from_pretrained(f).double().eval() for f in (tuned, base))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned)
    divergence = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            p, q = (m(input_ids=inputs["input_ids"]).logits[0].log_softmax(-1) for m in (new, old))
        divergence.append(float((p.exp() * (p - q)).sum(-1).mean()))
    assert energies.effect == pytest.approx(2 * np.mean(divergence), rel=0.15)


def test_seeds_are_explicit_and_texts_draw_their_own(tmp_path):
    tuned, base = pair_of_models(tmp_path, "bert")
    texts = sentences(5)
    one, two, other = (collect_energies(tuned, base, texts, seed=s) for s in (1, 1, 2))
    one.save(tmp_path / "1")
    two.save(tmp_path / "2")
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    name = next(iter(one.tensors))
    assert not np.array_equal(one.tensors[name].rows, other.tensors[name].rows)


# Files ------------------------------------------------------------------------------------------------------


def plain(seed: int = 0) -> Energies:
    draw = np.random.default_rng(seed)
    delta, gradients = draw.standard_normal((6, 5)), draw.random((6, 5)).astype(np.float32)
    return Energies(
        {"a.w": _tensor_energy(_Dense(delta), gradients)}, {"b": 7}, 2.5, "encoder", 3, 2, 1, "x", "y", "z"
    )


def test_a_file_gives_the_energies_back(tmp_path):
    energies = plain()
    energies.save(tmp_path / "e.safetensors")
    again = load_energies(tmp_path / "e.safetensors")
    again.save(tmp_path / "f.safetensors")
    assert (tmp_path / "e.safetensors").read_bytes() == (tmp_path / "f.safetensors").read_bytes()
    assert (again.effect, again.kind, dict(again.other)) == (2.5, "encoder", {"b": 7})
    np.testing.assert_array_equal(again.tensors["a.w"].rows, energies.tensors["a.w"].rows)


def spoil(values, metadata, what):
    change = {
        "format": lambda: metadata.update(format="assay-moments"),
        "version": lambda: metadata.update(version="1"),
        "effect": lambda: metadata.update(effect="nan"),
        "effect word": lambda: metadata.update(effect="much"),
        "no effect": lambda: metadata.pop("effect"),
        "samples": lambda: metadata.update(samples="-1"),
        "seed": lambda: metadata.update(seed="1e3"),
        "kind": lambda: metadata.update(kind="vision"),
        "other": lambda: metadata.update(other="[1]"),
        "other deep": lambda: metadata.update(other="[" * 100_000),
        "other negative": lambda: metadata.update(other=json.dumps({"b": -1})),
        "part gone": lambda: values.pop("a.w#peak"),
        "stray part": lambda: values.update({"c#peak": np.zeros(1)}),
        "nothing": lambda: values.clear() or values.update({"x": np.zeros(1)}),
        "nan": lambda: values["a.w#rows"].__setitem__(0, np.nan),
        "negative": lambda: values["a.w#columns"].__setitem__(0, -1),
        "type": lambda: values.update({"a.w#rows": values["a.w#rows"].astype(np.float64)}),
        "shape": lambda: values.update({"a.w#classes": np.zeros((2, 16, 15))}),
        "flat": lambda: values.update({"a.w#rows": np.ones((6, 1), np.float32)}),
        "empty": lambda: values.update({"a.w#rows": np.ones(0, np.float32)}),
        "sums": lambda: values.update({"a.w#rows": values["a.w#rows"] * np.float32(1.1)}),
        "peak": lambda: values.update({"a.w#peak": np.array([1e9, 1.0])}),
    }
    change[what]()


@pytest.mark.parametrize(
    "what",
    ["format", "version", "effect", "effect word", "no effect", "samples", "seed", "kind", "other", "other deep",
     "other negative", "part gone", "stray part", "nothing", "nan", "negative", "type", "shape", "flat", "empty",
     "sums", "peak"],
)  # fmt: skip
def test_hostile_files_are_refused(tmp_path, what):
    from safetensors import safe_open

    file = tmp_path / "e.safetensors"
    plain().save(file)
    with safe_open(file, "numpy") as stored:
        metadata = dict(stored.metadata())
    values = {name: value.copy() for name, value in load_file(file).items()}
    spoil(values, metadata, what)
    save_file(values, file, metadata)
    with pytest.raises(InputError):
        load_energies(file)


def test_what_is_no_file_of_energies_is_refused(tmp_path):
    (tmp_path / "noise").write_bytes(b"no header")
    for name in ("noise", "absent"):
        with pytest.raises(InputError, match="cannot be read"):
            load_energies(tmp_path / name)


# Bad input --------------------------------------------------------------------------------------------------


def test_bad_texts_and_settings_are_one_sentence(tmp_path):
    tuned, base = pair_of_models(tmp_path, "bert-topics")
    for texts, kwargs, message in (
        ([], {}, "no calibration texts"),
        (["w1"], {}, "at least 32"),
        (["w1 w2", " "], {}, "is empty"),
        (sentences(9), {"kind": "causal-lm"}, "measured as 'classification'"),
        (sentences(9), {"kind": "speech"}, "none of auto"),
        (sentences(9), {"draws": 0}, "draws is 0"),
        (sentences(9), {"samples": 0}, "max_samples is 0"),
    ):
        with pytest.raises(InputError, match=message):
            collect_energies(tuned, base, texts, **kwargs)
    with pytest.raises(InputError, match="differs"):
        collect_energies(base, base, sentences(9))
    (tuned / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json"):
        collect_energies(tuned, base, sentences(9))


def test_a_gradient_that_is_not_finite_names_its_layer():
    module, base, samples = linear_network()
    with pytest.raises(InputError, match="gradient of layer weight"):
        module_energies(module, base, samples, lambda m, x: (m(x) * 0).sqrt() + m(x).detach())
    with pytest.raises(InputError, match="output of calibration text 1"):
        module_energies(module, base, samples, lambda m, x: m(x) / 0)
    assert module.weight.grad is None


def test_other_pairs_are_refused_by_digest(tmp_path):
    tuned, base = pair_of_models(tmp_path, "bert-topics")
    collect_energies(tuned, base, sentences(6)).save(tmp_path / "e.safetensors")
    other = write_model(tmp_path / "other", "bert-topics")
    rewrite_weights(other, lambda w: {n: v + np.float32(1e-4) for n, v in w.items()})
    for one, two, message in ((other, base, "another fine-tune"), (tuned, other, "another base")):
        with pytest.raises(InputError, match=message):
            pack(one, two, tmp_path / "d.safetensors", energies=tmp_path / "e.safetensors")


# A pair from end to end -------------------------------------------------------------------------------------


def drifts(tuned: Path, packed: Path, base: Path, read) -> float:
    """Root mean square drift of the packed model over the fine-tune's own effect."""
    values = [read(folder) for folder in (tuned, packed, base)]
    return float(np.sqrt(np.sum((values[1] - values[0]) ** 2) / np.sum((values[0] - values[2]) ** 2)))


def test_predicted_drift_is_measured_on_a_small_classifier(tmp_path):
    import transformers

    tuned, base = pair_of_models(tmp_path, "bert-topics")
    texts = sentences(24)
    collect_energies(tuned, base, texts).save(tmp_path / "e.safetensors")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned)

    def read(folder):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        with torch.no_grad():
            return np.stack([model(**tokenizer(t, return_tensors="pt")).logits[0].numpy() for t in texts])

    for keep_map in ("uniform", "tensor", "factored"):
        measured = []
        for seed in range(8):
            report = pack(
                tuned, base, tmp_path / "d.safetensors", drop=0.8, bits=4, energies=tmp_path / "e.safetensors",
                keep_map=keep_map, seed=seed, overwrite=True, certificate=False,
            )  # fmt: skip
            apply(base, tmp_path / "d.safetensors", tmp_path / "out", overwrite=True)
            measured.append(drifts(tuned, tmp_path / "out", base, read) ** 2)
        assert report.keep is not None
        assert np.sqrt(np.mean(measured)) == pytest.approx(report.keep.drift, rel=0.4)


DEMO = os.environ.get("ASSAY_DEMO_RUN", "")


@pytest.mark.skipif(not DEMO, reason="set ASSAY_DEMO_RUN to the folder of a finished demo")
@pytest.mark.slow
@pytest.mark.parametrize("keep_map", ["uniform", "factored"])
def test_predicted_drift_of_the_encoder_is_measured(tmp_path, keep_map):
    """Drop .9 and .99 of the real pair: held-out drift within a quarter of what was predicted."""
    import transformers

    run = Path(DEMO)
    rows = (run / "data" / "reuters-r8-train.tab").read_text().split("\n")[3:]
    texts = [row.split("\t")[1] for row in rows if "\t" in row]
    order = np.random.default_rng(0).permutation(len(texts))
    chosen, held = ([texts[i] for i in part] for part in (order[:64], order[64:160]))
    collect_energies(run / "finetuned", run / "base", chosen, max_length=48).save(tmp_path / "e")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "base")

    def read(folder):
        model = transformers.AutoModel.from_pretrained(folder).eval()
        values = []
        with torch.no_grad():
            for text in held:
                inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=48)
                values.append(model(**inputs).last_hidden_state[0].mean(dim=0).numpy())
        return np.stack(values).astype(np.float64)

    tuned, base = read(run / "finetuned"), read(run / "base")
    for drop in (0.9, 0.99):
        measured = []
        for seed in range(3):
            report = pack(
                run / "finetuned", run / "base", tmp_path / "d.safetensors", drop=drop, bits=4, seed=seed,
                energies=tmp_path / "e", keep_map=keep_map, certificate=False, overwrite=True,
            )  # fmt: skip
            apply(run / "base", tmp_path / "d.safetensors", tmp_path / "out", overwrite=True)
            packed = read(tmp_path / "out")
            measured.append(float(np.sum((packed - tuned) ** 2) / np.sum((tuned - base) ** 2)))
        print(keep_map, drop, report.keep.drift, np.sqrt(np.mean(measured)))
        assert np.sqrt(np.mean(measured)) == pytest.approx(report.keep.drift, rel=0.25)


def test_tensor_energy_is_the_public_shape():
    assert isinstance(plain().tensors["a.w"], TensorEnergy)
