"""pack, inspect, verify, apply and merge, as a user types them, on small real checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from assay.core.certificate import Certificate


@pytest.fixture
def packed(invoke, pair, tmp_path) -> Path:
    base, tuned = pair
    result = invoke("pack", tuned, "--base", base, "-o", tmp_path / "d.safetensors", "--bits", 4)
    assert result.exit_code == 0, result.stderr
    return tmp_path / "d.safetensors"


def test_pack_reports_size_loss_and_how_to_check_it(invoke, pair, tmp_path):
    base, tuned = pair
    text = invoke("pack", tuned, "--base", base, "-o", tmp_path / "d.safetensors", "--bits", 4).stdout
    assert "times smaller" in text
    assert "bits per parameter" in text
    assert "further from the fine-tuned model, in mean square, than the base alone is" in text
    assert "expectation zero" in text
    assert "layer.weight" in text
    assert f"assay verify {tmp_path / 'd.safetensors'} --base {base} --finetuned {tuned}" in text
    for word in ("exact", "measured", "assumed", "not said"):
        assert f"\n  {word}" in text


def test_pack_as_json(invoke, pair, tmp_path):
    base, tuned = pair
    result = invoke(
        "pack", tuned, "--base", base, "-o", tmp_path / "d.safetensors", "--drop", "9/10", "--json"
    )
    document = json.loads(result.stdout)
    assert document["bytes_out"] == (tmp_path / "d.safetensors").stat().st_size
    assert document["bits_per_parameter"] == pytest.approx(8 * document["bytes_out"] / document["parameters"])
    assert document["certificate"]["kind"] == "pack"
    assert not document["dry_run"]


def test_dry_run_writes_nothing(invoke, pair, tmp_path):
    base, tuned = pair
    result = invoke("pack", tuned, "--base", base, "-o", tmp_path / "d", "--dry-run", "--json")
    assert json.loads(result.stdout)["dry_run"]
    assert list(tmp_path.iterdir()) == []


def test_dry_run_knows_the_size(invoke, pair, tmp_path):
    base, tuned = pair
    target = tmp_path / "d.safetensors"
    dry = json.loads(invoke("pack", tuned, "--base", base, "-o", target, "--dry-run", "--json").stdout)
    invoke("pack", tuned, "--base", base, "-o", target)
    assert dry["bytes_out"] == target.stat().st_size


def test_a_decimal_and_a_fraction_are_the_same_drop(invoke, pair, tmp_path):
    base, tuned = pair
    for name, drop in (("a", "0.9"), ("b", "9/10")):
        invoke("pack", tuned, "--base", base, "-o", tmp_path / name, "--drop", drop)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_round_trip(invoke, pair, packed, tmp_path):
    base, tuned = pair
    assert "delta" in invoke("inspect", packed).stdout
    assert json.loads(invoke("inspect", packed, "--json").stdout)["kind"] == "delta"
    accepted = invoke("verify", packed, "--base", base, "--finetuned", tuned)
    assert (accepted.exit_code, accepted.stdout.partition(":")[0]) == (0, "accepted"), accepted.stderr
    out = tmp_path / "out.safetensors"
    assert invoke("apply", base, packed, "-o", out).exit_code == 0
    want, got = load_file(tuned), load_file(out)
    assert want.keys() == got.keys()
    assert np.array_equal(want["norm.weight"], got["norm.weight"])
    assert np.array_equal(want["steps"], got["steps"])
    assert not np.array_equal(want["layer.weight"], got["layer.weight"])


def test_lossless_gives_the_same_bytes_back_and_says_that_nothing_is_lost(invoke, pair, tmp_path):
    base, tuned = pair
    packed = invoke("pack", tuned, "--base", base, "-o", tmp_path / "d", "--lossless")
    assert "Nothing is lost" in packed.stdout
    invoke("apply", base, tmp_path / "d", "-o", tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == tuned.read_bytes()


def test_a_biased_plan_is_called_biased(invoke, pair, tmp_path):
    base, tuned = pair
    result = invoke("pack", tuned, "--base", base, "-o", tmp_path / "d", "--rescale", "optimal")
    assert "The error is biased" in result.stdout


def test_certificate_and_picture_beside_the_delta(invoke, pair, tmp_path):
    pytest.importorskip("matplotlib")
    base, tuned = pair
    arguments = ("pack", tuned, "--base", base, "--overwrite")
    for name in ("one", "two"):
        more = (
            "-o",
            tmp_path / "d",
            "--certificate",
            tmp_path / "c.json",
            "--picture",
            tmp_path / f"{name}.svg",
        )
        assert invoke(*arguments, *more).exit_code == 0
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    picture = (tmp_path / "one.svg").read_text()
    for words in ("expected", "realised", "bound", "deleting"):
        assert words in picture
    assert invoke("verify", tmp_path / "c.json").exit_code == 0
    assert json.loads(invoke("inspect", tmp_path / "c.json", "--json").stdout)["kind"] == "certificate"
    assert invoke("inspect", tmp_path / "d", "--picture", tmp_path / "three.png").exit_code == 0
    assert (tmp_path / "three.png").read_bytes()[:4] == b"\x89PNG"


def test_no_certificate(invoke, pair, tmp_path):
    base, tuned = pair
    result = invoke("pack", tuned, "--base", base, "-o", tmp_path / "d", "--no-certificate")
    assert "no certificate was issued" in result.stdout
    assert invoke("verify", tmp_path / "d").exit_code != 0


def test_a_changed_delta_is_rejected_with_exit_code_1(invoke, packed):
    data = bytearray(packed.read_bytes())
    data[-9] ^= 1
    packed.write_bytes(data)
    result = invoke("verify", packed)
    assert result.exit_code == 1
    assert "rejected" in result.stderr
    assert json.loads(invoke("verify", packed, "--json").stdout)["result"] == "rejected"


def test_verify_says_which_subject_is_another(invoke, pair, packed):
    result = invoke("verify", packed, "--base", pair[1], "--finetuned", pair[1])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


def test_merge_of_two_deltas(invoke, pair, tmp_path):
    base, tuned = pair
    for seed in (0, 1):
        invoke("pack", tuned, "--base", base, "-o", tmp_path / str(seed), "--drop", "0.5", "--seed", seed)
    out = tmp_path / "merged.safetensors"
    result = invoke("merge", base, tmp_path / "0", tmp_path / "1", "--weights", "0.5,1/2", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert "from 2 deltas" in result.stdout
    assert load_file(out).keys() == load_file(tuned).keys()
    ties = invoke(
        "merge",
        base,
        tmp_path / "0",
        tmp_path / "1",
        "--method",
        "ties",
        "-o",
        tmp_path / "t.safetensors",
        "--json",
    )
    assert json.loads(ties.stdout)["tensors"] == 4


@pytest.mark.parametrize("verb", ["apply", "merge"])
def test_another_base_is_refused_before_anything_is_written(invoke, pair, packed, tmp_path, verb):
    tensors = load_file(pair[0])
    tensors["layer.weight"] = tensors["layer.weight"] + np.float32(1)
    save_file(tensors, tmp_path / "other.safetensors")
    result = invoke(verb, tmp_path / "other.safetensors", packed, "-o", tmp_path / "out.safetensors")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--drop", "1.5"], "outside [0, 1]"),
        (["--drop", "-1/2"], "outside [0, 1]"),
        (["--rescale", "0"], "must be a finite number > 0"),
        (["--gamma", "0"], "between 0 and 1"),
        (["--include", "nothing*"], "matches no tensor"),
        (["--exclude", "nothing*"], "matches no tensor"),
        (["--mask", "derandomised"], "--calibrate"),
        (["--moments", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--calibrate", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_a_bad_value_is_one_sentence(invoke, pair, tmp_path, options, words):
    base, tuned = pair
    result = invoke("pack", tuned, "--base", base, "-o", tmp_path / "d", *options)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("pack", "nowhere", "--base", "BASE", "-o", "OUT"),
        ("pack", "BASE", "--base", "nowhere", "-o", "OUT"),
        ("apply", "BASE", "nowhere", "-o", "OUT"),
        ("merge", "BASE", "nowhere", "-o", "OUT"),
        ("inspect", "nowhere"),
        ("verify", "nowhere"),
    ],
)
def test_a_missing_file_is_one_sentence(invoke, pair, tmp_path, arguments):
    places = {"BASE": pair[0], "OUT": tmp_path / "d", "nowhere": tmp_path / "nowhere"}
    result = invoke(*(places.get(a, a) for a in arguments))
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_installed_command_behaves_like_the_function(shell, pair, tmp_path):
    done = shell("apply", pair[0], tmp_path / "nowhere", "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("assay: ")
    assert done.stderr.count("\n") == 1


def test_a_file_of_another_kind_is_no_delta(invoke, pair, tmp_path):
    (tmp_path / "text").write_text("hello")
    assert invoke("apply", pair[0], tmp_path / "text", "-o", tmp_path / "out").exit_code == 2
    assert invoke("apply", pair[0], pair[1], "-o", tmp_path / "out").exit_code == 2
    assert invoke("inspect", tmp_path / "text").exit_code == 2


def test_an_output_of_another_program_is_not_replaced(invoke, pair, tmp_path):
    (tmp_path / "d").write_text("precious")
    result = invoke("pack", pair[1], "--base", pair[0], "-o", tmp_path / "d")
    assert result.exit_code == 2
    assert "overwrit" in result.stderr
    assert (tmp_path / "d").read_text() == "precious"


def test_an_input_is_never_the_output(invoke, pair, tmp_path):
    copy = shutil.copy(pair[1], tmp_path / "tuned.safetensors")
    assert invoke("pack", copy, "--base", pair[0], "-o", copy, "--overwrite").exit_code == 2
    assert Path(copy).read_bytes() == pair[1].read_bytes()


def test_inspect_of_a_checkpoint(invoke, pair):
    text = invoke("inspect", pair[0]).stdout
    assert "checkpoint" in text
    assert "layer.weight" in text


def test_names_from_a_file_do_not_steer_the_terminal(invoke, packed, tmp_path):
    document = json.loads(invoke("inspect", packed, "--json").stdout)["document"]["certificate"]
    for record in document["tensors"]:
        record["name"] += "\x1b[2J"
    body = {key: value for key, value in document.items() if key != "id"}
    Certificate.seal(body).save(tmp_path / "c.json")
    result = invoke("inspect", tmp_path / "c.json")
    assert result.exit_code == 0
    assert "layer.weight\N{REPLACEMENT CHARACTER}[2J" in result.stdout
    save_file({"a\x1b[2Jb": np.zeros((2, 2), np.float32)}, tmp_path / "odd.safetensors")
    refused = invoke("inspect", tmp_path / "odd.safetensors")
    assert refused.exit_code == 2
    assert "\x1b" not in result.stdout + result.stderr + refused.stdout + refused.stderr


@pytest.mark.parametrize("lost", ["totals", "tensors", "settings", "premises", "grade"])
def test_a_certificate_that_lacks_a_field_is_one_sentence(invoke, packed, tmp_path, lost):
    document = json.loads(invoke("inspect", packed, "--json").stdout)["document"]["certificate"]
    Certificate.seal({k: v for k, v in document.items() if k not in ("id", lost)}).save(tmp_path / "c.json")
    result = invoke("inspect", tmp_path / "c.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "lacks what its kind must have" in result.stderr


@pytest.fixture
def encoders(tmp_path) -> tuple[Path, Path]:
    """A tiny Hugging Face encoder and a fine-tune of it, both with their tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(30))]
    core = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    )
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="[UNK]", pad_token="[PAD]"
    )
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=20,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel(config)
    for name in ("base", "tuned"):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1e-3 * torch.randn_like(parameter))
    return tmp_path / "base", tmp_path / "tuned"


@pytest.mark.torch
def test_calibration_text_and_chosen_masks(invoke, encoders, tmp_path):
    base, tuned = encoders
    text = tmp_path / "corpus.txt"
    text.write_text(
        "\n".join(" ".join(f"w{(i * j) % 30}" for j in range(9)) for i in range(1, 12)), encoding="utf-8"
    )
    common = ("pack", tuned, "--base", base, "--calibrate", text)
    random = invoke(*common, "-o", tmp_path / "random")
    assert random.exit_code == 0, random.stderr
    assert "measured second moments sha256:" in random.stdout
    refused = invoke(*common, "--mask", "derandomised", "-o", tmp_path / "d")
    assert refused.exit_code == 2  # embeddings have no linear layer's inputs
    assert "--exclude" in refused.stderr
    only = ("--include", "encoder.*.dense.weight")
    chosen = invoke(*common, "--mask", "derandomised", *only, "-o", tmp_path / "chosen", "--json")
    assert chosen.exit_code == 0, chosen.stderr
    certificate = json.loads(chosen.stdout)["certificate"]
    masked = [record for record in certificate["tensors"] if record["treatment"] == "masked"]
    assert len(masked) == 3
    assert all(not record["tails"] for record in masked)
    page = invoke("inspect", tmp_path / "chosen").stdout
    assert "3 masks were chosen, not drawn" in page
    assert "has expectation zero" not in page
