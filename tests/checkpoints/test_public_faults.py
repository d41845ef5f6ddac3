"""Faults that users of other tools have reported in public, and what hostile users would try: one test each.

The numbers in the docstrings are those of the project's list of public faults; a name after them says where one
was reported.  What a test of another file triggers already is not repeated here.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from models import BF16, pair, read, tuned, weights, write, write_folder

from assay.checkpoints import apply, inspect, merge, pack
from assay.checkpoints import delta as format
from assay.checkpoints.calibrate import Moments
from assay.checkpoints.delta import Delta, block_rows
from assay.checkpoints.header import TensorInfo, build_header
from assay.checkpoints.journal import Journal
from assay.core.errors import AssayError, InputError, RejectedError

P = "base_model.model."
SOURCE = Path(__file__).parents[2] / "src"


def files(folder, base, finetuned):
    """Both sides as files, and where the delta and the output go."""
    return (
        write(folder / "f.safetensors", finetuned),
        write(folder / "b.safetensors", base),
        folder / "d.safetensors",
        folder / "o.safetensors",
    )


def round_trip(folder, base, finetuned, **options):
    """Pack and apply; the output's tensors and the report."""
    f, b, d, o = files(folder, base, finetuned)
    report = pack(f, b, d, **options)
    apply(b, d, o)
    return read(o), report


def verified(delta, base, finetuned):
    """What the independent checker, given both sides, ends with."""
    command = [sys.executable, "-m", "assay_verify", str(delta)]
    command += ["--subject", f"base={base}", "--subject", f"finetuned={finetuned}"]
    return subprocess.run(command, env={"PYTHONPATH": str(SOURCE)}, capture_output=True).returncode


def adapter(folder, base_tensors, adapter_tensors, base_config=None, shards=1, **config):
    """A base folder ``b`` and a PEFT adapter folder ``ad``."""
    write_folder(folder / "b", base_tensors, shards=shards, **(base_config or {}))
    (folder / "ad").mkdir()
    write(folder / "ad" / "adapter_model.safetensors", adapter_tensors)
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}
    (folder / "ad" / "adapter_config.json").write_text(json.dumps(settings))
    return folder / "ad", folder / "b"


def small(*shape, seed=0):
    return (0.02 * np.random.default_rng([seed, *shape]).standard_normal(shape)).astype(np.float32)


def forge(source, target, edit):
    """A copy of a delta with another plan, sealed anew as a careful forger would."""
    raw = source.read_bytes()
    data = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:data])
    metadata = header.pop("__metadata__")
    content = {n: raw[data + e["data_offsets"][0] : data + e["data_offsets"][1]] for n, e in header.items()}
    plan = json.loads(zlib.decompress(content["assay.plan"], -15))
    edit(plan, content)
    content["assay.plan"] = format.encode_plan(plan)
    metadata |= format.metadata(metadata["id"], content["assay.plan"], metadata["base"])
    new = build_header([(n, "U8", (len(d),)) for n, d in content.items()], metadata)
    target.write_bytes(len(new).to_bytes(8, "little") + new + b"".join(content.values()))
    return target


# --- vocabularies, ties, shapes (1-8) ----------------------------------------------------------------------


def test_a_grown_vocabulary_whose_head_is_tied_is_stored_once(tmp_path):
    """1, 4: mergekit 47, 139; mergekit 350."""
    base = weights(0, BF16)
    base["lm_head.weight"] = base["model.embed.weight"]
    new = tuned(base)
    new["model.embed.weight"] = np.concatenate([new["model.embed.weight"], np.ones((3, 40), BF16)])
    new["lm_head.weight"] = new["model.embed.weight"]
    got, _ = round_trip(tmp_path, base, new)
    assert Delta(tmp_path / "d.safetensors").records["lm_head.weight"]["treatment"] == "alias"
    assert got["lm_head.weight"].tobytes() == got["model.embed.weight"].tobytes()
    assert got["lm_head.weight"][48:].tobytes() == new["lm_head.weight"][48:].tobytes()
    assert verified(*(tmp_path / f"{name}.safetensors" for name in "dbf")) == 0


@pytest.mark.parametrize("options", [{"lossless": True}, {"drop": 0.5, "bits": 4}, {"drop": 0.5}])
def test_a_truncated_vocabulary_comes_back(tmp_path, options):
    """1: the fine-tune cut its padding tokens off."""
    base = weights(0, BF16) | {
        "bias": np.arange(48).astype(BF16),
        "same": weights(3, BF16)["model.embed.weight"],
    }
    new = tuned(base) | {"same": base["same"][:40]}
    for name in ("model.embed.weight", "bias"):
        new[name] = new[name][:40]
    got, report = round_trip(tmp_path, base, new, **options)
    assert got["same"].tobytes() == new["same"].tobytes()
    assert got["bias"].tobytes() == new["bias"].tobytes()
    assert got["model.embed.weight"].shape == (40, 40)
    if "lossless" in options:
        assert (tmp_path / "o.safetensors").read_bytes() == (tmp_path / "f.safetensors").read_bytes()
    else:
        expected = report.certificate.document["totals"]["realised"]
        error = sum(float(((got[n] - new[n]).astype(float) ** 2).sum()) for n in got if got[n].dtype == BF16)
        assert error == pytest.approx(float.fromhex(expected), rel=0.1)  # and the rounding of the weights
    assert any("the base's last 8 are left out" in w for w in report.warnings)
    assert verified(*(tmp_path / f"{name}.safetensors" for name in "dbf")) == 0
    with pytest.raises(InputError, match="have to drop the base's last ones"):
        merge(tmp_path / "b.safetensors", [tmp_path / "d.safetensors"], tmp_path / "m.safetensors")


def test_a_base_of_another_length_is_not_the_one_of_a_truncated_vocabulary(tmp_path):
    base = {"w": small(9, 8)}
    f, b, d, o = files(tmp_path, base, {"w": base["w"][:6] + np.float32(1e-3)})
    pack(f, b, d)
    write(tmp_path / "b.safetensors", {"w": base["w"][:7]})
    with pytest.raises(InputError, match="is not the base of"):
        apply(b, d, o)


def test_the_rows_of_a_tensor_decide_and_not_the_vocabulary_in_the_config(tmp_path):
    """2: mergekit 342."""
    base = weights(0)
    write_folder(tmp_path / "b", base, vocab_size=7)
    write_folder(tmp_path / "f", tuned(base), vocab_size=99)
    pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors", lossless=True)
    apply(tmp_path / "b", tmp_path / "d.safetensors", tmp_path / "o")
    assert (tmp_path / "o/model.safetensors").read_bytes() == (tmp_path / "f/model.safetensors").read_bytes()


def test_another_shape_names_tensor_both_files_shapes_and_what_the_configs_say(tmp_path):
    """3: mergekit 211."""
    write_folder(tmp_path / "b", {"mlp.weight": small(8, 24)}, intermediate_size=24)
    write_folder(tmp_path / "f", {"mlp.weight": small(8, 28)}, intermediate_size=28)
    with pytest.raises(InputError, match=r"mlp\.weight.*\[8, 24\].*\[8, 28\].*intermediate_size 24 and 28"):
        pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors")


def test_a_head_that_only_the_finetuned_side_stores_comes_back(tmp_path):
    """4: mergekit 615: the base is tied and has no lm_head."""
    base = weights(0, BF16)
    new = tuned(base)
    new["lm_head.weight"] = new["model.embed.weight"]
    got, _ = round_trip(tmp_path, base, new, lossless=True)
    assert got["lm_head.weight"].tobytes() == new["lm_head.weight"].tobytes()


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("rows", [48, 51, 40])
def test_a_head_that_only_the_finetuned_side_stores_is_an_alias(tmp_path, first, rows):
    """4: one stored copy, whichever comes first in the file, and whatever became of the vocabulary."""
    base = weights(0, BF16)
    new = tuned(base)
    embed = np.resize(new.pop("model.embed.weight"), (rows, 40))
    pair = {"model.embed.weight": embed, "lm_head.weight": embed}
    new = dict(sorted(pair.items())) | new if first else pair | new
    assert next(iter(new)) == ("lm_head.weight" if first else "model.embed.weight")
    got, _ = round_trip(tmp_path, base, new, drop=0.5, bits=4)
    record = Delta(tmp_path / "d.safetensors").records["lm_head.weight"]
    assert (record["treatment"], record["of"], "blocks" in record) == ("alias", "model.embed.weight", False)
    assert got["lm_head.weight"].tobytes() == got["model.embed.weight"].tobytes()
    assert list(got) == list(new)
    assert verified(*(tmp_path / f"{name}.safetensors" for name in "dbf")) == 0
    pack(tmp_path / "f.safetensors", tmp_path / "b.safetensors", tmp_path / "e.safetensors", drop=0.5, bits=4,
         workers=2, certificate=False)  # fmt: skip
    apply(tmp_path / "b.safetensors", tmp_path / "e.safetensors", tmp_path / "p.safetensors")
    assert (tmp_path / "p.safetensors").read_bytes() == (tmp_path / "o.safetensors").read_bytes()


def test_a_tensor_that_the_base_lacks_and_that_repeats_nothing_is_stored(tmp_path):
    base = weights(0, BF16)
    new = tuned(base)
    new["lm_head.weight"] = new["model.embed.weight"].copy()
    new["lm_head.weight"][-1, -1] += 1
    got, _ = round_trip(tmp_path, base, new, drop=0.5)
    assert Delta(tmp_path / "d.safetensors").records["lm_head.weight"]["treatment"] == "exact"
    assert got["lm_head.weight"].tobytes() == new["lm_head.weight"].tobytes()


def test_a_head_that_is_excluded_does_not_repeat_an_embedding_that_loses(tmp_path):
    base = weights(0, BF16)
    new = tuned(base)
    new["lm_head.weight"] = new["model.embed.weight"]
    got, _ = round_trip(tmp_path, base, new, drop=0.5, exclude=["lm_head.*"])
    assert got["lm_head.weight"].tobytes() == new["lm_head.weight"].tobytes()


def test_a_tensor_kept_exactly_never_repeats_one_that_lost_something(tmp_path):
    """4, 7: the head is tied to the embedding, and only the head is excluded."""
    base = weights(0, BF16)
    base["lm_head.weight"] = base["model.embed.weight"]
    new = tuned(base)
    new["lm_head.weight"] = new["model.embed.weight"]
    got, _ = round_trip(tmp_path, base, new, exclude=["lm_head.*"])
    assert got["lm_head.weight"].tobytes() == new["lm_head.weight"].tobytes()
    assert got["model.embed.weight"].tobytes() != new["model.embed.weight"].tobytes()


def test_a_head_trained_apart_from_a_tied_embedding_is_reported(tmp_path):
    """6: unsloth PR 9331, peft PR 2972: both modules are saved, and they differ."""
    base = {"model.embed_tokens.weight": small(50, 16), "lm_head.weight": small(50, 16)}
    saved = {f"{P}{name.removesuffix('.weight')}.modules_to_save.weight": 1.1 * t for name, t in base.items()}
    saved |= {P + "lm_head.modules_to_save.weight": small(50, 16, seed=2)}
    ad, b = adapter(
        tmp_path, base, saved, {"tie_word_embeddings": True}, modules_to_save=["embed_tokens", "lm_head"]
    )
    report = pack(ad, b, tmp_path / "d.safetensors", force=True)
    assert any("differ; both are kept" in w for w in report.warnings)
    assert any("which peft leaves alone" in w for w in report.warnings)  # a note of the adapter


def test_memory_that_tensors_share_is_written_once_and_read_by_the_stock_library(tmp_path):
    """7, 8: safetensors 98, 304, 469: no error, and contiguous whatever the source was."""
    base = weights(0)
    base["copy.weight"] = base["model.layers.0.proj.weight"]
    new = tuned(base)
    new["copy.weight"] = new["model.layers.0.proj.weight"]
    base["turned"], new["turned"] = small(6, 5).T, small(6, 5, seed=1).T
    round_trip(tmp_path, base, new)
    from safetensors.numpy import load_file

    got = load_file(tmp_path / "o.safetensors")
    assert (got["copy.weight"] == got["model.layers.0.proj.weight"]).all()
    records = Delta(tmp_path / "d.safetensors").records
    assert records["model.layers.0.proj.weight"]["of"] == "copy.weight"


# --- damaged and hostile files (9-15, 41) ------------------------------------------------------------------


@pytest.mark.parametrize("side", ["b", "f"])
def test_a_shard_that_is_missing_is_named_before_any_work(tmp_path, side):
    """9: sglang PR 32279."""
    base = weights(0)
    write_folder(tmp_path / "b", base, shards=3)
    write_folder(tmp_path / "f", tuned(base), shards=3)
    (tmp_path / side / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match="model-00002-of-00003"):
        pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "f"]


@pytest.mark.parametrize("lost", [1, 1000])
def test_a_truncated_file_is_named_with_what_is_missing(tmp_path, lost):
    """13: mergekit 192."""
    base, finetuned = pair(tmp_path)
    finetuned.write_bytes(finetuned.read_bytes()[:-lost])
    with pytest.raises(InputError, match=rf"tuned\.safetensors is truncated: {lost} bytes"):
        pack(finetuned, base, tmp_path / "d.safetensors")


def test_every_bit_of_the_plan_counts(tmp_path):
    """13: a flipped bit of raw DEFLATE may still be JSON, with another divisor in it."""
    base, finetuned = pair(tmp_path)
    path = tmp_path / "d.safetensors"
    pack(finetuned, base, path, bits=4)
    whole = path.read_bytes()
    data = 8 + int.from_bytes(whole[:8], "little")
    begin, end = json.loads(whole[8:data])["assay.plan"]["data_offsets"]
    for place in range(data + begin, data + end, 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(RejectedError, match="plan"):
            Delta(path)


def test_a_delta_writes_nothing_outside_its_output(tmp_path):
    """41: names in a delta come from a stranger."""
    base = weights(0)
    write_folder(tmp_path / "b", base, shards=2)
    write_folder(tmp_path / "f", tuned(base), shards=2)
    pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors")
    for number, evil in enumerate(("../evil", str(tmp_path / "evil"), "a\0b", "", "..", "c:x")):
        for at in ("index", "files", "carried"):

            def edit(plan, _, at=at, evil=evil):
                (plan["index"] if at == "index" else plan[at][0])["name"] = evil

            forged = forge(tmp_path / "d.safetensors", tmp_path / f"{at}{number}.safetensors", edit)
            with pytest.raises(InputError):
                apply(tmp_path / "b", forged, tmp_path / "o")
            forged.unlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "d.safetensors", "f"]


MALFORMED = {
    "files": (None, [], ["x"], [{}], [{"name": "m", "bytes": -1}], [{"name": 3, "bytes": 1}]),
    "index": ("x", {}, {"name": "i", "bytes": -1}),
    "carried": (None, ["x"], [{}], [{"name": "c", "bytes": -1}]),
    "folder": (False,),
    "tensors": (None, [3], [{}]),
    "seed": (None, "-1", "x", 7.5),
}
RECORD = {
    "name": (3, ["x"]),
    "dtype": ("F4", 3, None),
    "shape": (None, [True], [-1], [2**60], [2, 2]),
    "treatment": ("magic", "absent", "exact", "alias", "lossless", "masked"),
    "check": (None, 3),
    "base_rows": (-1, 10**6, "x"),
    "base_dtype": ("F4", 3),
    "threshold": (None, 2**40, -1, "x"),
    "rescale": (None, 1, "nan", "x", "-0x1p0", "0x0p0"),
    "bits": (None, 5, "x"),
    "span": (None, 0, 2**40),
    "blocks": (None, [], [True], [-1], ["x"]),
}


@pytest.mark.parametrize("key", [*MALFORMED, *RECORD])
def test_a_malformed_plan_is_one_sentence(tmp_path, key):
    """41, and the issue's hostile headers: never a traceback, and no half output."""
    base = weights(0)
    write_folder(tmp_path / "b", base, shards=2)
    write_folder(tmp_path / "f", tuned(base), shards=2)
    pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors", bits=4)
    for value in (MALFORMED | RECORD)[key]:

        def edit(plan, _, value=value):
            place = plan
            if key in RECORD:
                place = next(r for r in plan["tensors"] if r["treatment"] == "dropped")
            if value is None:
                place.pop(key, None)
            else:
                place[key] = value

        try:
            forged = forge(tmp_path / "d.safetensors", tmp_path / "x.safetensors", edit)
        except AssayError:  # no canonical JSON
            continue
        with pytest.raises(AssayError):
            apply(tmp_path / "b", forged, tmp_path / "o")
        with suppress(AssayError):
            inspect(forged)
        with suppress(AssayError):
            merge(tmp_path / "b", [forged], tmp_path / "m")
        assert not (tmp_path / "o").exists()


def test_a_merge_refuses_a_certificate_without_totals(tmp_path):
    """41: the certificate inside comes from a stranger too."""
    base, finetuned = pair(tmp_path)
    pack(finetuned, base, tmp_path / "d.safetensors")

    def edit(plan, content):
        from assay.core.certificate import canonical, digest_of

        document = json.loads(zlib.decompress(content["assay.certificate"], -15))
        document["totals"]["variance"] = None
        document["id"] = digest_of(document)
        content["assay.certificate"] = format.deflate(canonical(document))

    forged = forge(tmp_path / "d.safetensors", tmp_path / "x.safetensors", edit)
    with pytest.raises(RejectedError, match="certificate"):
        merge(base, [forged], tmp_path / "m.safetensors")


def test_a_pickle_is_refused_and_not_run(tmp_path):
    """41: transformers PR 46342."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "run"),)

    for name in ("model.bin", "model.safetensors"):
        (tmp_path / name).write_bytes(pickle.dumps(Trap()))
        with pytest.raises(InputError, match="pickle"):
            pack(tmp_path / name, tmp_path / name, tmp_path / "d.safetensors")
    assert not (tmp_path / "run").exists()


# --- interruption and space (14, 15, 16, 38) ---------------------------------------------------------------


class Stop(Exception):
    """What a user's progress callback may raise."""


def stop_at(tensor):
    def progress(done, total, what):
        if what == tensor:
            raise Stop

    return progress


def second_moments(path, names, size):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((64, size))
    Moments(
        dict.fromkeys(names, rows.T @ rows / 64),
        dict.fromkeys(names, 64),
        dict.fromkeys(names, 1),
        "",
        "",
        "",
    ).save(path)
    return path


@pytest.mark.parametrize("mask", ["random", "derandomised"])
def test_an_interrupted_pack_resumes_to_the_same_bytes(tmp_path, mask):
    """14, 38: mergekit 137; llm-compressor 1410; and a callback that raises harms nothing."""
    base = {f"layer.{n}.weight": small(24, 16, seed=n) for n in range(4)}
    f, b, d, _ = files(tmp_path, base, tuned(base))
    moments = second_moments(tmp_path / "m.safetensors", base, 16)
    options = {"mask": mask, "drop": 0.5, "moments": moments}
    with pytest.raises(Stop):
        pack(f, b, d, progress=stop_at("layer.2.weight"), **options)
    assert not d.exists()
    assert (tmp_path / "d.safetensors.journal").exists()
    seen = []
    pack(f, b, d, progress=lambda done, total, what: seen.append(what), **options)
    assert "layer.0.weight" not in seen
    assert "layer.2.weight" in seen
    pack(f, b, tmp_path / "e.safetensors", **options)
    assert d.read_bytes() == (tmp_path / "e.safetensors").read_bytes()
    assert verified(d, b, f) == 0


@pytest.mark.parametrize("side", ["f", "b"])
def test_a_pack_does_not_resume_from_inputs_that_changed(tmp_path, side):
    """14, 38: tensors of the old input must not meet tensors of the new one."""
    base = {f"layer.{n}.weight": small(24, 16, seed=n) for n in range(4)}
    f, b, d, _ = files(tmp_path, base, tuned(base))
    with pytest.raises(Stop):
        pack(f, b, d, progress=stop_at("layer.2.weight"))
    changed = {
        name: tensor * np.float32(1.01) for name, tensor in read(tmp_path / f"{side}.safetensors").items()
    }
    os.utime(write(tmp_path / f"{side}.safetensors", changed), ns=(1, 10**18))
    pack(f, b, d)
    pack(f, b, tmp_path / "e.safetensors")
    assert d.read_bytes() == (tmp_path / "e.safetensors").read_bytes()


@pytest.mark.parametrize("what", ["weights", "alpha"])
def test_a_pack_of_an_adapter_does_not_resume_from_another_adapter(tmp_path, what):
    """14, 25, 38: the base is the same, and the adapter was trained on."""
    base = {f"layer.{n}.weight": small(24, 16, seed=n) for n in range(3)}

    def factors(scale):
        return {
            f"{P}layer.{n}.lora_{which}.weight": scale * small(*shape, seed=n)
            for n in range(3)
            for which, shape in (("A", (2, 16)), ("B", (24, 2)))
        }

    ad, b = adapter(tmp_path, base, factors(1))
    with pytest.raises(Stop):
        pack(ad, b, tmp_path / "d.safetensors", progress=stop_at("layer.1.weight"))
    if what == "weights":
        os.utime(write(ad / "adapter_model.safetensors", factors(2)), ns=(1, 10**18))
    else:
        (ad / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 9}')
    pack(ad, b, tmp_path / "d.safetensors")
    pack(ad, b, tmp_path / "e.safetensors")
    assert (tmp_path / "d.safetensors").read_bytes() == (tmp_path / "e.safetensors").read_bytes()


def test_an_apply_does_not_resume_with_another_plan(tmp_path):
    """14: 16-bit payloads do not depend on the divisor, so two deltas can have the same payload."""
    f, b, d, o = files(tmp_path, base := weights(0), tuned(base))
    pack(f, b, d, drop=0.5)
    pack(f, b, tmp_path / "e.safetensors", drop=0.5, rescale=0.9)
    assert Delta(d).id == Delta(tmp_path / "e.safetensors").id
    with pytest.raises(Stop):
        apply(b, d, o, progress=stop_at("scale"))
    apply(b, tmp_path / "e.safetensors", o)
    apply(b, tmp_path / "e.safetensors", tmp_path / "p.safetensors")
    assert o.read_bytes() == (tmp_path / "p.safetensors").read_bytes()


def test_a_journal_of_another_version_is_started_over(tmp_path):
    """14."""
    base, finetuned = pair(tmp_path)
    out = tmp_path / "d.safetensors"
    with Journal.open(out, {"verb": "pack", "version": "0.9"}) as journal:
        journal.data.append(b"of an older format")
        journal.record("model.embed.weight", {"plan": "of an older format"})
    pack(finetuned, base, out)
    pack(finetuned, base, tmp_path / "e.safetensors")
    assert out.read_bytes() == (tmp_path / "e.safetensors").read_bytes()


@pytest.mark.parametrize("verb", ["pack", "apply", "merge"])
def test_a_second_run_of_the_same_output_is_refused(tmp_path, verb):
    """14: two runs must not write into one partial file."""
    base, finetuned = pair(tmp_path)
    d, o = tmp_path / "d.safetensors", tmp_path / "o.safetensors"
    pack(finetuned, base, d)
    calls = {
        "pack": lambda: pack(finetuned, base, o),
        "apply": lambda: apply(base, d, o),
        "merge": lambda: merge(base, [d], o),
    }
    with Journal.open(o, {"held": True}), pytest.raises(InputError, match="another run is writing"):
        calls[verb]()
    calls[verb]()


@pytest.mark.parametrize("verb", ["pack", "apply", "merge"])
def test_too_little_space_is_said_before_the_work_with_both_figures(tmp_path, monkeypatch, verb):
    """15: unsloth 533, 732."""
    base, finetuned = pair(tmp_path)
    pack(finetuned, base, tmp_path / "d.safetensors")
    before = sorted(tmp_path.iterdir())
    usage = type("Usage", (), {"free": 10})()
    monkeypatch.setattr("assay.checkpoints.output.shutil.disk_usage", lambda path: usage)
    calls = {
        "pack": lambda: pack(finetuned, base, tmp_path / "e.safetensors"),
        "apply": lambda: apply(base, tmp_path / "d.safetensors", tmp_path / "o.safetensors"),
        "merge": lambda: merge(base, [tmp_path / "d.safetensors"], tmp_path / "o.safetensors"),
    }
    with pytest.raises(InputError, match=r"needs [\d,]+ bytes but only 10 are free"):
        calls[verb]()
    assert sorted(tmp_path.iterdir()) == before


def test_memory_is_a_few_blocks_whatever_the_checkpoint(tmp_path, monkeypatch):
    """16, 40: mergekit 549; BitDelta 3: no tensor is read whole."""
    base = {"w.weight": np.zeros((4000, 1024), np.float32)}
    f, b, d, o = files(tmp_path, base, {"w.weight": np.full((4000, 1024), 1e-3, np.float32)})
    from assay.checkpoints.io import Checkpoint

    largest = 0
    read_rows = Checkpoint.read_rows

    def spy(self, name, start, stop, buffer=None):
        nonlocal largest
        rows = read_rows(self, name, start, stop, buffer)
        largest = max(largest, rows.nbytes)
        return rows

    monkeypatch.setattr(Checkpoint, "read_rows", spy)
    pack(f, b, d, force=True, workers=2)
    apply(b, d, o, workers=2)
    assert largest <= 8 << 20 < base["w.weight"].nbytes


def test_a_tensor_of_more_elements_than_an_int32_counts(tmp_path):
    """16, 40: geometry and the mask's numbering; nothing of that size is allocated."""
    info = TensorInfo("w", "BF16", (300_000, 16_384), 0, 0, 300_000 * 16_384 * 2)
    blocks = list(block_rows(info.rows, info.columns))
    assert info.count > 2**32
    assert blocks[-1] == (299_968, 300_000)
    assert all(b[1] == a[0] for a, b in zip(blocks[1:], blocks, strict=False))
    from assay.checkpoints import codec
    from assay.numerics.philox import words

    start, key = blocks[-1][0] * info.columns, (5, 6)
    scheme = codec.Scheme(16, 2**31, 0.5, key)
    base, new = np.zeros((32, 16), np.uint16), np.full((32, 16), 0x3F80, np.uint16)
    block = codec.encode_block(base, new, "BF16", start, scheme)
    index, _ = codec.decode_block(block.payload, start, 512, scheme)
    assert index.tolist() == np.flatnonzero(words(key, start, 512) < 2**31).tolist()


# --- numbers (17-24, 27) -----------------------------------------------------------------------------------


def test_dropping_everything_gives_the_base_and_no_nan(tmp_path):
    """17: peft PR 3486."""
    base = {"w.weight": small(32, 16)}
    got, report = round_trip(tmp_path, base, tuned(base), drop=1)
    assert got["w.weight"].tobytes() == base["w.weight"].tobytes()
    (record,) = report.certificate.document["tensors"]
    assert "nan" not in json.dumps(record)


@pytest.mark.parametrize(
    "options",
    [
        {"drop": "0.9"},
        {"drop": float("nan")},
        {"drop": -1e-9},
        {"rescale": 0},
        {"rescale": -1.0},
        {"rescale": float("inf")},
        {"gamma": float("nan")},
        {"gamma": 0},
        {"seed": 1.5},
        {"seed": -1},
        {"bits": 5},
        {"workers": 0},
        {"engine": "dask"},
        {"tails": "normal"},
        {"include": ["nothing*"]},
    ],
)
def test_a_setting_outside_its_range_is_one_sentence(tmp_path, options):
    """17, 24: p outside [0, 1] and its like."""
    base, finetuned = pair(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError) as caught:
        pack(finetuned, base, tmp_path / "d.safetensors", **options)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_an_overflow_of_the_output_type_is_found_while_packing(tmp_path):
    """18: mergekit PR 704: fp8 has the narrowest range."""
    base = {"w.weight": np.full((64, 64), 400, ml_dtypes.float8_e4m3fn)}
    new = {"w.weight": np.full((64, 64), 448, ml_dtypes.float8_e4m3fn)}
    f, b, d, _ = files(tmp_path, base, new)
    with pytest.raises(InputError, match=r"w\.weight.*overflow F8_E4M3.*--drop"):
        pack(f, b, d, drop=0.9)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.safetensors", "f.safetensors"]


@pytest.mark.parametrize("name", ["model.layers.0.norm.weight", "scale", "new.head.weight"])
def test_nan_in_what_is_copied_exactly_is_refused_unless_asked_for(tmp_path, name):
    """19: unsloth 3690."""
    base, new = weights(0), tuned(weights(0))
    if name.startswith("new"):
        new[name] = small(3, 4)
    new[name] = np.array(new[name])
    new[name].reshape(-1)[-1] = np.nan
    f, b, d, _ = files(tmp_path, base, new)
    with pytest.raises(InputError, match=rf"{re.escape(name)}.*NaN.*index {new[name].size - 1}.*--exclude"):
        pack(f, b, d)
    for options in ({"exclude": [name]}, {"lossless": True}):
        pack(f, b, d, **options)
        apply(b, d, tmp_path / "o.safetensors", overwrite=True)
        assert np.isnan(read(tmp_path / "o.safetensors")[name]).any()


def test_infinity_in_the_base_is_no_reason_where_the_finetune_repaired_it(tmp_path):
    """19: the stored difference of bits needs no arithmetic."""
    base, new = weights(0), tuned(weights(0))
    base["model.layers.0.norm.weight"][0] = np.inf
    got, _ = round_trip(tmp_path, base, new)
    assert (got["model.layers.0.norm.weight"] == new["model.layers.0.norm.weight"]).all()


def test_the_mask_depends_on_seed_name_and_place_alone(tmp_path):
    """20, 21: mergekit 26; pytorch 153102: other tensors, shards and their order do not matter."""
    base = weights(0)
    new = tuned(base)
    write_folder(tmp_path / "b", base, shards=3)
    write_folder(tmp_path / "f", new, shards=2)
    pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors", seed=4)
    alone = "model.layers.0.proj.weight"
    (tmp_path / "one").mkdir()
    f, b, d, _ = files(tmp_path / "one", {alone: base[alone]}, {alone: new[alone]})
    pack(f, b, d, seed=4)
    assert Delta(d).block(alone, 0) == Delta(tmp_path / "d.safetensors").block(alone, 0)


def test_dropping_a_dropped_model_again_is_warned_about(tmp_path):
    """22: mergekit 258."""
    f, b, d, o = files(tmp_path, base := weights(0), tuned(base))
    first = pack(f, b, d, drop=0.9)
    apply(b, d, o)
    again = pack(o, b, tmp_path / "e.safetensors", drop=0.9, force=True)
    assert not first.warnings
    assert any("sparse already" in w for w in again.warnings)


def test_drop_is_what_is_dropped_and_the_certificate_counts_the_rest(tmp_path):
    """24: mergekit 130."""
    base = {"w.weight": small(200, 200)}
    _, report = round_trip(tmp_path, base, tuned(base), drop=0.9)
    (record,) = report.certificate.document["tensors"]
    assert record["kept"] == pytest.approx(4000, abs=300)
    assert float.fromhex(record["rescale"]) == pytest.approx(0.1, rel=1e-9)


def test_one_rounding_from_float64_to_every_narrower_type(tmp_path):
    """27: peft 1388: a base of another type is rounded once."""
    for number, (kind, mantissa) in enumerate(
        ((BF16, 7), (np.float16, 10), (ml_dtypes.float8_e4m3fn, 3), (ml_dtypes.float8_e5m2, 2))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        ulp = 2.0**-mantissa
        base = {"w.weight": np.array([[1 + ulp / 2 + 2**-40, 1 + 3 * ulp / 2 - 2**-40]])}
        once = {"w.weight": np.array([[1 + ulp, 1 + ulp]], kind)}
        _, report = round_trip(folder, base, once, lossless=True)
        assert [r["treatment"] for r in report.certificate.document["tensors"]] == ["unchanged"]


# --- adapters (25) -----------------------------------------------------------------------------------------


def test_an_adapter_comes_back_as_the_merged_model_and_not_as_an_adapter(tmp_path):
    """25, 32, 1: scale alpha/r; its tokenizer goes along, its own description does not; the vocabulary grew."""
    base = {
        "model.embed_tokens.weight": small(50, 16),
        "model.q.weight": small(16, 16),
        "lm_head.weight": small(50, 16),
    }
    a, bb = small(2, 16, seed=1), small(16, 2, seed=2)
    saved = {
        P + "model.q.lora_A.weight": a,
        P + "model.q.lora_B.weight": bb,
        P + "model.embed_tokens.modules_to_save.weight": small(52, 16),
        P + "score.weight": small(3, 16),
    }
    ad, b = adapter(tmp_path, base, saved, {"vocab_size": 50}, shards=2)
    (ad / "tokenizer.json").write_text('{"added": 2}')
    (ad / "adapter_model.safetensors.index.json").write_text("{}")
    report = pack(ad, b, tmp_path / "d.safetensors", lossless=True)
    assert any("vocab_size in config.json becomes 52" in w for w in report.warnings)
    apply(b, tmp_path / "d.safetensors", tmp_path / "o")
    names = {p.name for p in (tmp_path / "o").iterdir()}
    assert names == {
        "assay.json",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert json.loads((tmp_path / "o/config.json").read_text())["vocab_size"] == 52
    assert (tmp_path / "o/tokenizer.json").read_text() == '{"added": 2}'
    got = read(tmp_path / "o")
    assert got["model.embed_tokens.weight"].shape == (52, 16)
    assert got["score.weight"].tobytes() == saved[P + "score.weight"].tobytes()
    np.testing.assert_allclose(
        got["model.q.weight"], base["model.q.weight"] + 2 * bb @ a, rtol=1e-5, atol=1e-8
    )


# --- other formats, types, layouts (28-33) -----------------------------------------------------------------


@pytest.mark.parametrize("side", ["b", "f"])
def test_a_quantised_side_is_refused_wherever_its_scales_lie(tmp_path, side):
    """28: llm-compressor 2907; mergekit 457: the scale is in another shard."""
    base = {"w.weight": small(8, 8), "v.weight": small(8, 8)}
    write_folder(tmp_path / ("f" if side == "b" else "b"), base)
    fp8 = {
        "w.weight": base["w.weight"].astype(ml_dtypes.float8_e4m3fn),
        "w.weight_scale": np.ones(1, np.float32),
    }
    write_folder(tmp_path / side, fp8, shards=2)
    with pytest.raises(InputError, match=r"quantised.*dequantise"):
        pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors")


def test_plain_fp8_is_packed_and_types_without_arithmetic_are_exact(tmp_path):
    """28: fp8 without scales is a float type; its FNUZ kinds are kept exactly."""
    kinds = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    base = {k: (50 * small(16, 16)).astype(getattr(ml_dtypes, k)) for k in kinds}
    new = {k: (t.astype(np.float32) * 1.3).astype(t.dtype) for k, t in base.items()}
    got, report = round_trip(tmp_path, base, new, drop=0.5)
    treatments = {r["name"]: r["treatment"] for r in report.certificate.document["tensors"]}
    assert [treatments[k] for k in kinds] == ["dropped", "dropped", "lossless", "lossless"]
    for kind in kinds[2:]:
        assert got[kind].tobytes() == new[kind].tobytes()


def test_experts_in_another_layout_are_said_to_be(tmp_path):
    """29: mergekit 582."""
    base = {"norm.weight": small(4)} | {f"m.experts.{n}.up.weight": small(4, 6, seed=n) for n in range(2)}
    new = {"norm.weight": base["norm.weight"], "m.experts.gate_up_proj": small(2, 4, 6)}
    f, b, d, _ = files(tmp_path, base, new)
    report = pack(f, b, d)
    assert any("experts" in w for w in report.warnings)


def test_fused_experts_need_no_table_of_architectures(tmp_path):
    """29: mergekit 626."""
    base = {"layers.0.mlp.experts.gate_up_proj": small(4, 6, 8), "any name at all": small(5, 5)}
    _, report = round_trip(tmp_path, base, tuned(base))
    assert {r["treatment"] for r in report.certificate.document["tensors"]} == {"dropped"}


def test_each_tensor_keeps_the_finetuned_type(tmp_path):
    """31: mergekit 604."""
    base = {"a": small(8, 8), "b": small(8, 8).astype(BF16), "c": small(8, 8).astype(np.float16)}
    new = {"a": base["a"].astype(BF16), "b": base["b"].astype(np.float32), "c": base["c"].astype(np.float64)}
    for lossless in (True, False):
        (tmp_path / str(lossless)).mkdir()
        got, _ = round_trip(tmp_path / str(lossless), base, {k: (1.1 * t).astype(t.dtype) for k, t in new.items()},
                            lossless=lossless)  # fmt: skip
        assert {k: t.dtype for k, t in got.items()} == {k: t.dtype for k, t in new.items()}


def test_what_is_not_carried_is_said(tmp_path):
    """32: mergekit 185: weights in another format and names that not every system allows."""
    base = weights(0)
    write_folder(tmp_path / "b", base)
    write_folder(tmp_path / "f", tuned(base))
    (tmp_path / "f" / "pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "f" / "a:b.txt").write_bytes(b"x")
    (tmp_path / "f" / "1_Pooling").mkdir()
    (tmp_path / "f" / "1_Pooling" / "config.json").write_text("{}")
    report = pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors")
    assert any("2 files" in w and "a:b.txt" in w for w in report.warnings)
    apply(tmp_path / "b", tmp_path / "d.safetensors", tmp_path / "o")
    assert (tmp_path / "o/1_Pooling/config.json").read_text() == "{}"
    one = "model.safetensors"
    assert verified(tmp_path / "d.safetensors", tmp_path / "b" / one, tmp_path / "f" / one) == 0


@pytest.mark.parametrize("how", ["missing", "another"])
def test_a_base_with_other_small_files_is_refused_before_the_work(tmp_path, how):
    """32: what the delta takes from the base must be there."""
    base = weights(0)
    write_folder(tmp_path / "b", base)
    write_folder(tmp_path / "f", tuned(base))
    pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors")
    if how == "missing":
        (tmp_path / "b" / "tokenizer.json").unlink()
    else:
        (tmp_path / "b" / "tokenizer.json").write_text("{}")
    with pytest.raises(AssayError, match=r"tokenizer\.json"):
        apply(tmp_path / "b", tmp_path / "d.safetensors", tmp_path / "o", dry_run=True)


def test_links_of_the_cache_are_followed_and_never_written_to(tmp_path):
    """33: huggingface_hub 1388."""
    base, finetuned = pair(tmp_path)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(base)
    before = base.read_bytes()
    pack(finetuned, tmp_path / "snapshot", tmp_path / "d.safetensors")
    for out in (tmp_path / "snapshot" / "model.safetensors", base):
        with pytest.raises(InputError, match="choose another output"):
            pack(finetuned, tmp_path / "snapshot", out, overwrite=True)
    assert base.read_bytes() == before


# --- outputs and inputs that are mixed up ------------------------------------------------------------------


def test_a_certificate_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    """15 and the issue's bad input: nothing lost, nothing half done."""
    base, finetuned = pair(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    out = tmp_path / "d.safetensors"
    for place in (out, base, finetuned, tmp_path, tmp_path / "no" / "c.json", tmp_path / "notes.txt"):
        with pytest.raises(InputError):
            pack(finetuned, base, out, certificate=place)
        assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_the_moments_are_an_input_and_never_the_output(tmp_path):
    """33: assay wrote them, so only this stands between them and the delta."""
    base = {"w.weight": small(24, 16)}
    f, b, _, _ = files(tmp_path, base, tuned(base))
    moments = second_moments(tmp_path / "m.safetensors", base, 16)
    with pytest.raises(InputError, match="input"):
        pack(f, b, moments, moments=moments)


def test_a_shard_of_an_input_given_by_its_index_is_never_the_output(tmp_path):
    """33."""
    base = weights(0)
    write_folder(tmp_path / "b", base, shards=2)
    f = write(tmp_path / "f.safetensors", tuned(base))
    index = tmp_path / "b" / "model.safetensors.index.json"
    with pytest.raises(InputError, match="input"):
        pack(f, index, tmp_path / "b" / "model-00001-of-00002.safetensors", overwrite=True)


@pytest.mark.parametrize("verb", ["pack", "apply", "merge"])
def test_an_output_inside_an_input_is_refused(tmp_path, verb):
    """33."""
    base = weights(0)
    write_folder(tmp_path / "b", base)
    write_folder(tmp_path / "f", tuned(base))
    d = tmp_path / "d.safetensors"
    pack(tmp_path / "f", tmp_path / "b", d)
    calls = {
        "pack": lambda: pack(tmp_path / "f", tmp_path / "b", tmp_path / "b" / "d.safetensors"),
        "apply": lambda: apply(tmp_path / "b", d, tmp_path / "b" / "o"),
        "merge": lambda: merge(tmp_path / "b", [d], tmp_path / "b" / "o"),
    }
    with pytest.raises(InputError, match="inside the input"):
        calls[verb]()


def test_a_read_only_folder_is_refused_before_the_work(tmp_path, monkeypatch):
    """15: (the superuser may write anywhere, so the question is put and not the answer)."""
    base, finetuned = pair(tmp_path)
    monkeypatch.setattr("assay.checkpoints.output.os.access", lambda path, mode: False)
    with pytest.raises(InputError, match="read-only"):
        pack(finetuned, base, tmp_path / "d.safetensors")


def test_a_folder_of_another_program_is_not_replaced(tmp_path):
    """33."""
    base = weights(0)
    write_folder(tmp_path / "b", base)
    write_folder(tmp_path / "f", tuned(base))
    pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors")
    write_folder(tmp_path / "o", base)
    with pytest.raises(InputError, match="not written by assay"):
        apply(tmp_path / "b", tmp_path / "d.safetensors", tmp_path / "o")


def test_a_delta_is_no_model_and_a_model_no_delta(tmp_path):
    """24: the two are easily mixed up on the command line."""
    base, finetuned = pair(tmp_path)
    d, o = tmp_path / "d.safetensors", tmp_path / "o.safetensors"
    pack(finetuned, base, d)
    for call in (
        lambda: pack(finetuned, d, o),
        lambda: pack(d, base, o),
        lambda: apply(d, d, o),
        lambda: merge(d, [d], o),
    ):
        with pytest.raises(InputError, match="is an assay-delta file, not a model"):
            call()
    for call in (lambda: apply(base, finetuned, o), lambda: merge(base, [finetuned], o)):
        with pytest.raises(InputError, match="is no assay delta"):
            call()


@pytest.mark.parametrize("side", ["b", "f"])
def test_a_tensor_with_a_name_of_ours_is_refused_on_either_side(tmp_path, side):
    """41: a base-only tensor would make a delta that cannot be opened."""
    base, new = weights(0), tuned(weights(0))
    (base if side == "b" else new)["assay.plan"] = small(2, 2)
    f, b, d, _ = files(tmp_path, base, new)
    with pytest.raises(InputError, match=r"assay\.plan"):
        pack(f, b, d)


def test_names_in_any_script(tmp_path):
    """29: names are data."""
    base = {"层.вес.😀é": small(8, 8), "a b": small(3, 3), "x" * 4096: small(2, 2)}
    got, _ = round_trip(tmp_path, base, tuned(base), drop=0)
    assert set(got) == set(base)
    assert verified(*(tmp_path / f"{name}.safetensors" for name in "dbf")) == 0


# --- merges ------------------------------------------------------------------------------------------------


def test_a_merge_takes_tensors_that_are_stored_exactly(tmp_path):
    """1, 31: empty tensors, scalars of integers and of another type, and tied integers."""
    table = np.arange(6).reshape(2, 3)
    base = {
        "w.weight": small(8, 8),
        "none": np.zeros((0, 5), np.float32),
        "steps": np.array(3),
        "a": table,
        "b": table,
    }
    base["scale"] = np.array(0.5, np.float32)
    new = base | {"w.weight": base["w.weight"] * 2, "steps": np.array(4), "a": table + 1, "b": table + 1}
    new["scale"] = np.array(0.75, BF16)
    f, b, d, o = files(tmp_path, base, new)
    pack(f, b, d, lossless=True, force=True)
    merge(b, [d], o, weights=[1])
    got = read(o)
    for name in base:
        assert (got[name] == new[name].astype(base[name].dtype)).all(), name


def test_a_negative_weight_takes_a_delta_away(tmp_path):
    """24: task arithmetic."""
    f, b, d, o = files(tmp_path, base := weights(0), new := tuned(base))
    pack(f, b, d, lossless=True)
    merge(b, [d], o, weights=[-1])
    old, got = base["model.embed.weight"], read(o)["model.embed.weight"]
    np.testing.assert_allclose(got, 2 * old - new["model.embed.weight"], rtol=1e-6, atol=1e-8)


def test_a_merge_expects_nothing_of_chosen_masks_or_of_inputs_that_differ(tmp_path):
    """Certified variances add only where they are variances, of errors weighed alike."""
    base = {"w.weight": small(24, 16)}
    f, b, d, o = files(tmp_path, base, tuned(base))
    moments = second_moments(tmp_path / "m.safetensors", base, 16)
    e, g = tmp_path / "e.safetensors", tmp_path / "g.safetensors"
    pack(f, b, d, drop=0.5)
    pack(f, b, e, drop=0.5, moments=moments, seed=1)
    pack(f, b, g, drop=0.5, moments=moments, mask="derandomised", seed=2)
    assert merge(b, [d], o, dry_run=True).expected is not None
    assert merge(b, [d, e], o, dry_run=True).expected is None
    assert merge(b, [g], o, dry_run=True).expected is None


def test_a_mask_is_a_seed_and_leaves_nothing_in_the_model(tmp_path):
    """39: pytorch 34257: no buffers, no keys of masks in the output, no bits in the delta."""
    base = {"w.weight": small(64, 64)}
    got, _ = round_trip(tmp_path, base, tuned(base), drop=0.5, coding="raw")
    assert set(got) == {"w.weight"}
    (block,) = Delta(tmp_path / "d.safetensors").records["w.weight"]["blocks"]
    kept = int(np.count_nonzero(got["w.weight"] != base["w.weight"]))
    assert block == pytest.approx(2 * kept, abs=40)
