"""Merging deltas: sums, TIES, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from models import BF16, pair, read, tuned, weights, write, write_folder

from assay.checkpoints import apply, merge, pack
from assay.checkpoints.journal import Journal
from assay.core.errors import InputError, UnknownIdError


def deltas(folder, dtype=np.float32, count=2, **options):
    base = weights(0, dtype)
    write(folder / "base.safetensors", base)
    made = []
    for number in range(count):
        write(folder / f"f{number}.safetensors", tuned(base, seed=number + 1))
        out = folder / f"d{number}.safetensors"
        pack(folder / f"f{number}.safetensors", folder / "base.safetensors", out, seed=number, **options)
        made.append(out)
    return folder / "base.safetensors", made


def test_a_weighted_sum_of_lossless_deltas_is_the_weighted_sum(tmp_path):
    base, made = deltas(tmp_path, lossless=True)
    merge(base, made, tmp_path / "m.safetensors", weights=[0.5, 0.25])
    old, got = read(base), read(tmp_path / "m.safetensors")
    new = [read(tmp_path / f"f{n}.safetensors") for n in range(2)]
    for name in old:
        if old[name].dtype.kind == "f" and old[name].ndim:
            expected = old[name] + 0.5 * (new[0][name] - old[name]) + 0.25 * (new[1][name] - old[name])
            np.testing.assert_allclose(got[name], expected, rtol=3e-7, atol=1e-8)
    assert (got["counter"] == new[0]["counter"]).all()


@pytest.mark.parametrize("method", ["linear", "ties"])
def test_the_order_of_the_deltas_has_no_meaning(tmp_path, method):
    base, made = deltas(tmp_path, BF16, count=3, drop=0.5)
    merge(base, made, tmp_path / "a.safetensors", weights=[0.5, 0.3, 0.2], method=method, workers=1)
    merge(base, made[::-1], tmp_path / "b.safetensors", weights=[0.2, 0.3, 0.5], method=method, workers=3)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_one_delta_of_weight_one_is_apply(tmp_path):
    base, (delta,) = deltas(tmp_path, BF16, count=1, drop=0.9, bits=4)
    merge(base, [delta], tmp_path / "m.safetensors", weights=[1])
    apply(base, delta, tmp_path / "a.safetensors")
    assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


def test_ties_elects_the_sign_with_the_larger_total(tmp_path):
    base = {"w": np.zeros((1, 4), np.float32)}
    write(tmp_path / "base.safetensors", base)
    made = []
    for number, values in enumerate(([3.0, 1, -1, 2], [-1.0, 1, -4, 0], [-1.0, 1, 2, 0])):
        write(tmp_path / f"f{number}.safetensors", {"w": np.array([values], np.float32)})
        made.append(tmp_path / f"d{number}.safetensors")
        pack(
            tmp_path / f"f{number}.safetensors",
            tmp_path / "base.safetensors",
            made[-1],
            lossless=True,
            seed=number,
        )
    merge(tmp_path / "base.safetensors", made, tmp_path / "m.safetensors", method="ties", weights=[1, 1, 1])
    np.testing.assert_allclose(read(tmp_path / "m.safetensors")["w"], [[9, 3, -7.5, 6]])


def test_variances_add_with_squared_weights(tmp_path):
    base, made = deltas(tmp_path, drop=0.9)
    report = merge(base, made, tmp_path / "m.safetensors", weights=[0.5, 0.5])
    whole = merge(base, made[:1], tmp_path / "n.safetensors", weights=[1])
    assert report.expected["variance"] == pytest.approx(0.5 * whole.expected["variance"], rel=0.1)
    assert report.expected["bias_at_most"] == 0


def test_equal_seeds_are_warned_about(tmp_path):
    base, made = deltas(tmp_path, count=1)
    pack(tmp_path / "f0.safetensors", base, tmp_path / "again.safetensors", seed=0, drop=0.8)
    report = merge(base, [*made, tmp_path / "again.safetensors"], tmp_path / "m.safetensors", dry_run=True)
    assert any("seed" in w for w in report.warnings)
    assert not (tmp_path / "m.safetensors").exists()


def test_added_rows_are_refused_and_added_tensors_left_out(tmp_path):
    base = weights(0)
    write(tmp_path / "base.safetensors", base)
    new = tuned(base)
    new["extra.weight"] = np.ones((2, 2), np.float32)
    write(tmp_path / "f.safetensors", new)
    pack(tmp_path / "f.safetensors", tmp_path / "base.safetensors", tmp_path / "d.safetensors")
    report = merge(tmp_path / "base.safetensors", [tmp_path / "d.safetensors"], tmp_path / "m.safetensors")
    assert any("extra.weight" in w for w in report.warnings)
    new["model.embed.weight"] = np.concatenate([new["model.embed.weight"], np.ones((2, 40), np.float32)])
    write(tmp_path / "g.safetensors", new)
    pack(tmp_path / "g.safetensors", tmp_path / "base.safetensors", tmp_path / "e.safetensors")
    with pytest.raises(InputError, match=r"50 rows.*embed.*48"):
        merge(tmp_path / "base.safetensors", [tmp_path / "e.safetensors"], tmp_path / "n.safetensors")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"weights": [1]}, InputError),
        ({"weights": [1, float("nan")]}, InputError),
        ({"method": "tie"}, UnknownIdError),
        ({"method": "ties", "density": 0}, InputError),
    ],
)
def test_impossible_merges_are_one_sentence(tmp_path, options, error):
    base, made = deltas(tmp_path)
    with pytest.raises(error):
        merge(base, made, tmp_path / "m.safetensors", **options)
    with pytest.raises(InputError, match="nothing to merge"):
        merge(base, [], tmp_path / "m.safetensors")


def test_folders_keep_the_base_layout(tmp_path):
    base = weights(0, BF16)
    write_folder(tmp_path / "base", base, shards=2)
    write_folder(tmp_path / "tuned", tuned(base) | {"counter": base["counter"]})
    pack(tmp_path / "tuned", tmp_path / "base", tmp_path / "d.safetensors")
    merge(tmp_path / "base", [tmp_path / "d.safetensors"], tmp_path / "m", weights=[0])
    for file in (tmp_path / "base").iterdir():
        assert (tmp_path / "m" / file.name).read_bytes() == file.read_bytes()


def test_a_delta_of_another_base_is_refused(tmp_path):
    base, made = deltas(tmp_path)
    other = read(base)
    other["scale"] = np.array(0.25, np.float32)
    other["model.embed.weight"] = other["model.embed.weight"] + np.float32(1)
    write(tmp_path / "other.safetensors", other)
    with pytest.raises(InputError, match="not the base"):
        merge(tmp_path / "other.safetensors", made, tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


def test_the_same_sum_as_adding_by_hand_in_bfloat16(tmp_path):
    base, finetuned = pair(tmp_path, BF16)
    pack(finetuned, base, tmp_path / "d.safetensors", lossless=True)
    merge(base, [tmp_path / "d.safetensors"], tmp_path / "m.safetensors", weights=[1])
    old, new, got = read(base), read(finetuned), read(tmp_path / "m.safetensors")
    for name in ("model.embed.weight", "model.layers.0.norm.weight"):
        delta = new[name].astype(np.float32) - old[name].astype(np.float32)
        assert got[name].tobytes() == (old[name].astype(np.float32) + delta).astype(BF16).tobytes()


# Fine-tuned checkpoints, dropped as they are read --------------------------------------------------------


def checkpoints(folder, dtype=np.float32, count=2):
    base = weights(0, dtype)
    write(folder / "base.safetensors", base)
    for number in range(count):
        write(folder / f"f{number}.safetensors", tuned(base, seed=number + 1))
    return folder / "base.safetensors", [folder / f"f{number}.safetensors" for number in range(count)]


def test_a_fine_tune_is_dropped_and_rescaled_as_it_is_read(tmp_path):
    base, (tune,) = checkpoints(tmp_path, count=1)
    merge(base, [tune], tmp_path / "m.safetensors", weights=[1], drop=0.75)
    old, new, got = (read(tmp_path / f"{name}.safetensors") for name in ("base", "f0", "m"))
    kept = count = 0
    for name in old:
        if old[name].dtype.kind != "f" or old[name].ndim < 2:
            np.testing.assert_allclose(got[name], new[name], rtol=3e-7, atol=1e-8)
            continue
        delta = new[name] - old[name]
        survives = got[name] != old[name]
        kept, count = kept + survives.sum(), count + survives.size
        np.testing.assert_allclose(
            got[name][survives], (old[name] + 4 * delta)[survives], rtol=1e-5, atol=1e-6
        )
    assert 0.2 < kept / count < 0.3


def test_the_mean_over_seeds_is_the_fine_tune(tmp_path):
    base, (tune,) = checkpoints(tmp_path, count=1)
    total = 0.0
    for seed in range(60):
        merge(base, [tune], tmp_path / "m.safetensors", weights=[1], drop=0.5, seed=seed, overwrite=True)
        total = total + read(tmp_path / "m.safetensors")[_matrix(base)]
    old, new = read(base)[_matrix(base)], read(tune)[_matrix(base)]
    error = total / 60 - new
    scale = np.abs(new - old).mean() / np.sqrt(60)
    assert np.sqrt((error**2).mean()) < 2 * scale
    assert abs(error.mean()) < 5 * scale / np.sqrt(error.size)


def _matrix(path):
    return next(name for name, value in read(path).items() if value.ndim == 2 and value.dtype.kind == "f")


@pytest.mark.parametrize("method", ["linear", "ties"])
def test_fine_tunes_and_deltas_merge_in_any_order(tmp_path, method):
    base, tunes = checkpoints(tmp_path, BF16, count=3)
    pack(tunes[2], base, tmp_path / "d.safetensors", drop=0.5)
    given = [tunes[0], tunes[1], tmp_path / "d.safetensors"]
    for out, order, workers in (("a", [0, 1, 2], 1), ("b", [2, 1, 0], 3)):
        merge(
            base, [given[i] for i in order], tmp_path / f"{out}.safetensors", method=method, drop=0.5,
            weights=[[0.5, 0.3, 0.2][i] for i in order], workers=workers,
        )  # fmt: skip
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_two_fine_tunes_never_share_a_mask(tmp_path):
    base, tunes = checkpoints(tmp_path, count=2)
    name, kept = _matrix(base), []
    for number, tune in enumerate(tunes):
        merge(base, [tune], tmp_path / f"m{number}.safetensors", weights=[1], drop=0.5, seed=3)
        kept.append(read(tmp_path / f"m{number}.safetensors")[name] != read(base)[name])
    assert 0.3 < (kept[0] == kept[1]).mean() < 0.7


def test_what_cannot_be_dropped_is_refused_in_a_sentence(tmp_path):
    base, (tune,) = checkpoints(tmp_path, count=1)
    out = tmp_path / "m.safetensors"
    with pytest.raises(InputError, match="with --drop how much"):
        merge(base, [tune], out)
    with pytest.raises(InputError, match="leaves nothing to merge"):
        merge(base, [tune], out, drop=1)
    other = read(tune)
    name = _matrix(base)
    spoiled = {**other, name: other[name].copy()}
    spoiled[name][0, 0] = np.nan
    write(tune, spoiled)
    with pytest.raises(InputError, match="NaN"):
        merge(base, [tune], out, drop=0.0)
    write(tune, {**other, name: np.concatenate([other[name], other[name]])})
    with pytest.raises(InputError, match=name):
        merge(base, [tune], out, drop=0.5)
    write(tune, {key: value + 5 if value.dtype.kind == "f" else value for key, value in other.items()})
    with pytest.raises(InputError, match="fine-tune"):
        merge(base, [tune], out, drop=0.5)
    assert not out.exists()


@pytest.mark.parametrize("method", ["linear", "ties"])
def test_nan_in_a_lossless_delta_is_told_with_tensor_and_delta(tmp_path, method):
    base, made = deltas(tmp_path, lossless=True)
    spoiled = read(tmp_path / "f1.safetensors")
    spoiled["model.layers.1.conv.weight"][3, 0, 0, 0] = np.nan
    write(tmp_path / "f1.safetensors", spoiled)
    pack(tmp_path / "f1.safetensors", base, made[1], seed=1, lossless=True)
    sentence = (
        r"'model\.layers\.1\.conv\.weight' has a NaN or an infinity in .*d1\.safetensors or in the base"
    )
    with pytest.raises(InputError, match=sentence):
        merge(base, made, tmp_path / "m.safetensors", method=method)
    assert not (tmp_path / "m.safetensors").exists()


def test_an_infinity_that_nobody_changed_stays(tmp_path):
    base = {"mask": np.array([[0, -np.inf], [1, 2]], np.float32)}
    write(tmp_path / "base.safetensors", base)
    for number in range(2):
        new = {"mask": base["mask"] + np.array([[0, 0], [number, 1]], np.float32)}
        write(tmp_path / "f.safetensors", new)
        pack(
            tmp_path / "f.safetensors",
            tmp_path / "base.safetensors",
            tmp_path / f"d{number}",
            lossless=True,
            force=True,
        )
    merge(tmp_path / "base.safetensors", [tmp_path / "d0", tmp_path / "d1"], tmp_path / "m.safetensors")
    np.testing.assert_array_equal(read(tmp_path / "m.safetensors")["mask"], [[0, -np.inf], [1.5, 3]])


def test_fine_tunes_that_end_alike_have_masks_of_their_own(tmp_path):
    rng = np.random.default_rng(0)
    frozen = rng.standard_normal((200, 200)).astype(np.float32)
    old = {"a.weight": rng.standard_normal((40, 30)).astype(np.float32), "z.weight": frozen}
    write(tmp_path / "base.safetensors", old)
    kept = []
    for number in range(2):
        tune, out = tmp_path / f"f{number}.safetensors", tmp_path / f"m{number}.safetensors"
        delta = 0.01 * rng.standard_normal((40, 30)).astype(np.float32)
        write(tune, old | {"a.weight": old["a.weight"] + delta})
        merge(tmp_path / "base.safetensors", [tune], out, weights=[1], drop=0.5)
        kept.append(read(out)["a.weight"] != old["a.weight"])
    assert 0.3 < (kept[0] == kept[1]).mean() < 0.7


def test_two_adapters_have_masks_of_their_own(tmp_path):
    rng = np.random.default_rng(0)
    base = write_folder(tmp_path / "base", {"proj.weight": rng.standard_normal((40, 30)).astype(np.float32)})
    adapters = []
    for number in range(2):
        factors = {
            f"base_model.model.proj.lora_{side}.weight": 0.05 * rng.standard_normal(shape).astype(np.float32)
            for side, shape in (("A", (2, 30)), ("B", (40, 2)))
        }
        folder = tmp_path / f"adapter{number}"
        folder.mkdir()
        write(folder / "adapter_model.safetensors", factors)
        settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        adapters.append(folder)
    kept = []
    for number, adapter in enumerate(adapters):
        merge(base, [adapter], tmp_path / f"m{number}", weights=[1], drop=0.5)
        merged = read(next((tmp_path / f"m{number}").glob("*.safetensors")))
        kept.append(merged["proj.weight"] != read(next(base.glob("*.safetensors")))["proj.weight"])
    assert 0.3 < (kept[0] == kept[1]).mean() < 0.7


def test_checkpoints_that_look_alike_are_warned_of(tmp_path):
    base, (tune,) = checkpoints(tmp_path, count=1)
    twice = merge(base, [tune, tune], tmp_path / "m.safetensors", drop=0.5)
    assert any("share their masks" in warning for warning in twice.warnings)
    once = merge(base, [tune], tmp_path / "n.safetensors", drop=0.5)
    assert not any("share their masks" in warning for warning in once.warnings)


def test_another_drop_does_not_resume(tmp_path):
    """The first tensor of the file loses nothing, whatever is dropped."""
    old = {"a.bias": np.ones(30, np.float32), "b.weight": np.ones((40, 30), np.float32)}
    base, tune = tmp_path / "base.safetensors", tmp_path / "tune.safetensors"
    write(base, old)
    write(tune, {name: value + np.float32(0.125) for name, value in old.items()})
    found = []
    for drop in (0.5, 0.75):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Journal, "open", lambda out, identity, **_: found.append(identity) or _stop())
            with pytest.raises(KeyboardInterrupt):
                merge(base, [tune], tmp_path / "m.safetensors", drop=drop)
    assert found[0] != found[1]


def _stop():
    raise KeyboardInterrupt
