"""Calibration: second moments against a direct float64 computation, and everything it must refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save_file

from assay.checkpoints import calibrate
from assay.checkpoints.calibrate import Moments, collect_moments, load_moments
from assay.checkpoints.header import TensorInfo
from assay.core.errors import InputError

WORDS = [f"w{i}" for i in range(40)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=draw.integers(2, 14))) for _ in range(count)]


def write_tokenizer(folder: Path, *, specials: bool) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if specials:
        core.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    extra = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"} if specials else {}
    transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", **extra).save_pretrained(
        folder
    )


def write_model(folder: Path, kind: str) -> Path:
    """A tiny random model of the given kind, with its tokenizer, as ``save_pretrained`` leaves it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    size = len(SPECIAL) + len(WORDS)
    if kind in ("bert", "bert-topics"):
        config = transformers.BertConfig(
            vocab_size=size,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=20,
            num_labels=3,
        )
        topics = kind == "bert-topics"
        model = (transformers.BertForSequenceClassification if topics else transformers.BertModel)(config)
    elif kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=size,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=24,
            max_position_embeddings=32,
            tie_word_embeddings=True,
        )
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(vocab_size=size, n_embd=16, n_layer=2, n_head=2, n_positions=32)
        model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    write_tokenizer(folder, specials=kind.startswith("bert"))
    return folder


def rewrite_weights(folder: Path, change) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})


def hidden_states(folder: Path, texts: list[str]):
    """Every layer's input, float64, of all texts in one padded batch, and which of its tokens are real."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or "[PAD]"
    loader = transformers.AutoModelForCausalLM
    if "Bert" in json.loads((folder / "config.json").read_text())["architectures"][0]:
        loader = transformers.AutoModel
    model = loader.from_pretrained(folder).double().eval()
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(**batch, output_hidden_states=True).hidden_states
    real = batch["attention_mask"].numpy().astype(bool)
    return [state.numpy()[real] for state in states], batch["input_ids"].numpy()[real], real


def second_moment(rows: np.ndarray) -> np.ndarray:
    return rows.T @ rows / len(rows)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["bert", "bert-topics"])
def test_bert_agrees_with_a_padded_float64_run(tmp_path, kind):
    folder, texts = write_model(tmp_path, kind), sentences(12)
    moments = collect_moments(folder, texts)
    states, tokens, real = hidden_states(folder, texts)
    prefix = "bert." if kind == "bert-topics" else ""
    for layer in range(2):
        for part in ("query", "key", "value"):
            name = f"{prefix}encoder.layer.{layer}.attention.self.{part}.weight"
            np.testing.assert_allclose(moments.matrix(name), second_moment(states[layer]), rtol=0, atol=1e-6)
            assert moments.rows[name] == real.sum()
    pooler = moments.matrix(f"{prefix}pooler.dense.weight")
    first = np.cumsum([0, *real.sum(axis=1)[:-1]])
    np.testing.assert_allclose(pooler, second_moment(states[2][first]), rtol=0, atol=1e-6)
    assert moments.rows[f"{prefix}pooler.dense.weight"] == len(texts)
    words = moments.diagonal(f"{prefix}embeddings.word_embeddings.weight")
    np.testing.assert_array_equal(words, np.bincount(tokens, minlength=len(words)) / len(tokens))
    positions = moments.diagonal(f"{prefix}embeddings.position_embeddings.weight")
    np.testing.assert_array_equal(positions[: real.shape[1]], real.sum(axis=0) / real.sum())
    assert set(moments.values) <= set(load_file(folder / "model.safetensors"))
    assert ("classifier.weight" in moments) == (kind == "bert-topics")


@pytest.mark.torch
def test_tied_causal_model_keeps_the_moment_of_its_head(tmp_path):
    folder, texts = write_model(tmp_path, "llama"), sentences(9)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    moments = collect_moments(folder, texts)
    states, _, real = hidden_states(folder, texts)
    assert moments.axes["model.embed_tokens.weight"] == 1
    assert moments.rows["model.embed_tokens.weight"] == real.sum()
    np.testing.assert_allclose(
        moments.matrix("model.embed_tokens.weight"), second_moment(states[-1]), rtol=0, atol=1e-5
    )
    assert len(moments.values) == 2 * 7 + 1


@pytest.mark.torch
def test_transposed_layers_meet_their_inputs_on_axis_zero(tmp_path):
    folder = write_model(tmp_path, "gpt2")
    moments = collect_moments(folder, sentences(9))
    shapes = {name: value.shape for name, value in load_file(folder / "model.safetensors").items()}
    wide = "transformer.h.0.mlp.c_proj.weight"
    assert shapes[wide] == (64, 16)
    assert moments.axes[wide] == 0
    assert moments.matrix(wide).shape == (64, 64)
    for name, value in moments.values.items():
        assert len(value) == shapes[name][moments.axes[name]]


@pytest.mark.torch
def test_batch_size_and_blocks_change_only_rounding(tmp_path, monkeypatch):
    folder, texts = write_model(tmp_path, "bert"), sentences(20)
    with monkeypatch.context() as patch:
        patch.setattr(calibrate, "_BLOCK_ROWS", 20)
        one = collect_moments(folder, texts, batch_size=1)
    many = collect_moments(folder, texts[::-1], batch_size=7)
    assert one.rows == many.rows
    for name in one.values:
        difference = np.linalg.norm(one.values[name] - many.values[name])
        assert difference <= 1e-6 * np.linalg.norm(one.values[name])


@pytest.mark.torch
def test_a_tensor_changed_in_place_between_two_layers_is_seen_twice():
    torch = pytest.importorskip("torch")

    class Reuser(torch.nn.Module):
        base_model_prefix = "model"

        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(3, 2) for _ in "abc")

        def forward(self, x):
            out = self.a(x) + self.b(x)
            return out + self.c(x.mul_(2))

    tensors = {f"{layer}.weight": TensorInfo(f"{layer}.weight", "F32", (2, 3), 0, 0, 0) for layer in "abc"}
    inputs = torch.arange(12.0).reshape(4, 3)
    expected = second_moment(inputs.numpy())
    model = Reuser()
    with calibrate._Recorder(model, tensors, diagonal_above=8) as recorder, torch.no_grad():
        model(inputs)
    for layer, factor in (("a", 1), ("b", 1), ("c", 4)):
        np.testing.assert_allclose(recorder.moment(f"{layer}.weight"), factor * expected)


@pytest.mark.torch
def test_moments_are_symmetric_and_positive_semidefinite(tmp_path):
    moments = collect_moments(write_model(tmp_path, "bert"), [" ".join(WORDS[:17])] * 2)
    for name in moments.values:
        if moments.values[name].ndim == 2:
            matrix = moments.matrix(name)
            np.testing.assert_array_equal(matrix, matrix.T)
            assert np.linalg.eigvalsh(matrix).min() >= -1e-12 * np.trace(matrix)


@pytest.mark.torch
def test_wide_layers_keep_the_diagonal_of_the_same_matrix(tmp_path):
    folder, texts = write_model(tmp_path, "bert"), sentences(8)
    full, thin = collect_moments(folder, texts), collect_moments(folder, texts, diagonal_above=16)
    wide = "encoder.layer.0.output.dense.weight"
    np.testing.assert_allclose(thin.diagonal(wide), full.diagonal(wide), rtol=1e-12)
    assert thin.matrix("encoder.layer.0.attention.self.query.weight").shape == (16, 16)
    with pytest.raises(InputError, match="diagonal_above >= 24"):
        thin.matrix(wide)


@pytest.mark.torch
def test_prefix_of_the_files_is_found(tmp_path):
    folder, texts = write_model(tmp_path, "bert"), sentences(8)
    bare = collect_moments(folder, texts)
    rewrite_weights(folder, lambda weights: {f"bert.{name}": value for name, value in weights.items()})
    prefixed = collect_moments(folder, texts)
    assert set(prefixed.values) == {f"bert.{name}" for name in bare.values}
    np.testing.assert_array_equal(
        prefixed.values["bert.pooler.dense.weight"], bare.values["pooler.dense.weight"]
    )


@pytest.mark.torch
def test_only_the_first_texts_count_and_progress_is_told(tmp_path):
    folder, texts, seen = write_model(tmp_path, "bert"), sentences(10), []
    some = collect_moments(
        folder, texts, max_samples=6, progress=lambda done, total: seen.append((done, total))
    )
    same = collect_moments(folder, texts[:6])
    assert seen[-1] == (6, 6)
    assert some.texts == same.texts != collect_moments(folder, texts).texts
    assert all(np.array_equal(some.values[name], same.values[name]) for name in same.values)


@pytest.mark.torch
def test_long_texts_are_cut_to_what_the_model_takes(tmp_path):
    folder = write_model(tmp_path, "bert")
    moments = collect_moments(folder, [" ".join(WORDS)] * 2)
    assert moments.rows["encoder.layer.0.output.dense.weight"] == 2 * 20


@pytest.mark.torch
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "no calibration texts"),
        ("w1 w2", "not one string"),
        (["w1 w2", "  \n"], "text 2 is empty"),
        (["w1", None], "text 2 is a NoneType"),
        (["w1 w2 w3"], "have 3 tokens: give at least 32"),
    ],
)
def test_texts_that_say_nothing_are_refused(tmp_path, texts, message):
    with pytest.raises(InputError, match=message):
        collect_moments(write_model(tmp_path, "bert"), texts)


@pytest.mark.torch
@pytest.mark.parametrize("option", ["batch_size", "max_length", "max_samples"])
def test_options_below_one_are_refused(tmp_path, option):
    with pytest.raises(InputError, match=f"{option} is 0"):
        collect_moments(tmp_path, sentences(4), **{option: 0})


@pytest.mark.torch
def test_overflowing_activations_name_the_layer(tmp_path):
    folder = write_model(tmp_path, "bert")

    def poison(weights):
        weights["encoder.layer.0.intermediate.dense.bias"][3] = np.inf
        return weights

    rewrite_weights(folder, poison)
    with pytest.raises(
        InputError, match=r"input of layer encoder\.layer\.0\.output\.dense\.weight is not finite"
    ):
        collect_moments(folder, sentences(8))


@pytest.mark.torch
def test_missing_weights_are_not_replaced_by_random_ones(tmp_path):
    folder = write_model(tmp_path, "bert")
    name = "encoder.layer.1.output.dense.weight"
    rewrite_weights(folder, lambda weights: {key: value for key, value in weights.items() if key != name})
    with pytest.raises(InputError, match=rf"no weights for {name}"):
        collect_moments(folder, sentences(8))


@pytest.mark.torch
def test_a_model_that_does_not_load_offline_is_one_sentence(tmp_path):
    folder = write_model(tmp_path, "bert")
    (folder / "config.json").write_text('{"model_type": "nothing-known"}')
    with pytest.raises(InputError, match="does not load offline") as caught:
        collect_moments(folder, sentences(8))
    assert "\n" not in str(caught.value)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"has no config\.json"):
        collect_moments(folder, sentences(8))


# --- files ---------------------------------------------------------------------------------------------


def example() -> Moments:
    rows = np.random.default_rng(3).standard_normal((50, 4))
    values = {"a.weight": second_moment(rows), "b.weight": np.array([0.25, 0.75, 0.0])}
    return Moments(
        values, {"a.weight": 50, "b.weight": 8}, {"a.weight": 1, "b.weight": 0}, "m" * 64, "c", "t"
    )


def test_saved_moments_come_back_bit_for_bit(tmp_path):
    moments = example()
    moments.save(tmp_path / "moments.safetensors")
    back = load_moments(tmp_path / "moments.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["moments.safetensors"]
    assert (back.rows, back.axes) == (moments.rows, moments.axes)
    assert (back.model, back.config, back.texts) == (moments.model, moments.config, moments.texts)
    for name in moments.values:
        np.testing.assert_array_equal(back.values[name], moments.values[name])
    moments.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "moments.safetensors").read_bytes()


@given(
    arrays.arrays(
        np.float64, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.floats(-1e3, 1e3, width=32)
    )
)
def test_every_second_moment_passes_the_checks_of_the_reader(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("moments") / "m.safetensors"
    Moments({"w": second_moment(rows)}, {"w": len(rows)}, {"w": 1}, "", "", "").save(file)
    np.testing.assert_array_equal(load_moments(file).matrix("w"), second_moment(rows))


def forge(file: Path, values=None, **metadata) -> Path:
    example().save(file)
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as stored:
        old = stored.metadata()
    merged = {key: value for key, value in {**old, **metadata}.items() if value is not None}
    save_file({**load_file(file), **(values or {})}, file, merged)
    return file


@pytest.mark.parametrize(
    ("values", "metadata", "message"),
    [
        ({}, {"format": "assay-delta"}, "not a moments file"),
        ({}, {"format": None}, "not a moments file"),
        ({}, {"version": "2"}, "version '2', this assay reads '1'"),
        ({}, {"texts": None}, "no 'texts'"),
        ({}, {"rows": "{"}, "not JSON"),
        ({}, {"rows": '{"a.weight": 50}'}, "for exactly the tensors"),
        ({}, {"rows": '{"a.weight": 0, "b.weight": 8}'}, "'rows' 0 for a.weight"),
        ({}, {"rows": '{"a.weight": true, "b.weight": 8}'}, "'rows' True for a.weight"),
        ({}, {"axes": '{"a.weight": 2, "b.weight": 0}'}, "'axes' 2 for a.weight"),
        ({"a.weight": np.eye(4, dtype=np.float16)}, {}, "float16"),
        ({"a.weight": np.ones((3, 4))}, {}, r"shape \[3, 4\]"),
        ({"a.weight": np.ones(())}, {}, r"shape \[\]"),
        ({"a.weight": np.ones((0, 0))}, {}, r"shape \[0, 0\]"),
        ({"b.weight": np.array([0.1, np.nan, 0.2])}, {}, "b.weight in .* is not finite"),
        ({"b.weight": np.array([0.1, -1e-300, 0.2])}, {}, "negative mean square"),
        ({"a.weight": np.eye(4) + np.eye(4, k=1) * 0.5}, {}, "not a second moment"),
        ({"a.weight": 1.1 - np.eye(4) * 0.1}, {}, "not a second moment"),
    ],
)
def test_hostile_files_are_refused_with_the_reason(tmp_path, values, metadata, message):
    file = forge(tmp_path / "m.safetensors", values, **metadata)
    with pytest.raises(InputError, match=message):
        load_moments(file)


@pytest.mark.parametrize("content", [None, b"", b"\x00" * 40, b"\xff" * 64])
def test_what_is_no_safetensors_file_is_refused(tmp_path, content):
    file = tmp_path / "m.safetensors"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as a moments file"):
        load_moments(file)


def test_moments_of_another_model_are_refused():
    moments = example()

    def tensors(**shapes: tuple[int, ...]) -> dict[str, TensorInfo]:
        return {name: TensorInfo(name, "F32", shape, 0, 0, 0) for name, shape in shapes.items()}

    moments.check({"a.weight": TensorInfo("a.weight", "F32", (9, 4), 0, 0, 0)})
    with pytest.raises(InputError, match="none of the 2 tensors"):
        moments.check(tensors(other=(9, 4)))
    for shape in ((4, 9), (4,), (2, 2, 4)):
        with pytest.raises(InputError, match=r"moment of a\.weight is for 4 inputs on axis 1"):
            moments.check({"a.weight": TensorInfo("a.weight", "F32", shape, 0, 0, 0)})


def test_moments_cannot_be_changed():
    moments = example()
    with pytest.raises(ValueError, match="read-only"):
        moments.diagonal("a.weight")[0] = 1.0
    with pytest.raises(TypeError):
        moments.rows["a.weight"] = 1  # type: ignore[index]
    with pytest.raises(InputError, match="no calibrated moment for tensor c"):
        moments.diagonal("c")
