"""Pack and apply as a whole: what comes back, what is certified, what is refused."""

from __future__ import annotations

import importlib
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from models import BF16, pair, read, tuned, weights, write, write_folder
from safetensors import safe_open
from test_keep import energies_of

from assay.checkpoints import apply, inspect, pack
from assay.checkpoints.delta import Delta
from assay.checkpoints.plan import GRID
from assay.core.certificate import Certificate
from assay.core.errors import AssayError, InputError, RejectedError

DTYPES = [np.float16, BF16, np.float32, np.float64]


def number(text):
    return float.fromhex(text)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_lossless_delta_gives_the_file_back_byte_for_byte(tmp_path, dtype):
    base, finetuned = pair(tmp_path, dtype)
    report = pack(finetuned, base, tmp_path / "d.safetensors", lossless=True)
    apply(base, tmp_path / "d.safetensors", tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == finetuned.read_bytes()
    assert report.certificate is not None
    assert report.certificate.document["totals"]["mean_square"] == (0.0).hex()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [16, 8, 4, 3, 2])
def test_what_is_applied_is_what_was_certified(tmp_path, dtype, bits):
    base, finetuned = pair(tmp_path, dtype)
    report = pack(finetuned, base, tmp_path / "d.safetensors", drop=0.75, bits=bits, seed=3)
    apply(base, tmp_path / "d.safetensors", tmp_path / "out.safetensors")
    old, new, got = read(base), read(finetuned), read(tmp_path / "out.safetensors")
    assert list(got) == list(new)
    for record in report.certificate.document["tensors"]:
        name = record["name"]
        if record["treatment"] != "dropped":
            assert got[name].tobytes() == new[name].tobytes(), name
            continue
        kind = np.float64 if dtype is np.float64 else np.float32
        delta = new[name].astype(kind) - old[name].astype(kind)
        energy = float((delta.astype(np.float64) ** 2).sum())
        p = 1 - Fraction(record["threshold"], 2**32)
        assert number(record["facts"]["energy"]) == pytest.approx(energy, rel=1e-12)
        expected = p * Fraction(energy) / (1 - p)
        assert number(record["expected"]["variance"]) >= float(expected) * (1 - 1e-9)
        error = new[name].astype(np.float64) - got[name].astype(np.float64)
        rounding = 4 * float(np.abs(new[name].astype(np.float64)).max()) * float(np.finfo(kind).eps)
        if dtype in (np.float16, BF16):
            rounding = 0.1 * math.sqrt(energy)
        realised = number(record["facts"]["realised"])
        assert math.sqrt(float((error**2).sum())) == pytest.approx(math.sqrt(realised), abs=rounding)


def test_the_expectation_is_the_mean_over_seeds(tmp_path):
    """400 seeds: the mean realised error is within 5 standard errors of the certified mean square."""
    base, finetuned = pair(tmp_path, np.float32)
    realised, expected = [], 0.0
    for seed in range(400):
        report = pack(finetuned, base, tmp_path / "d.safetensors", drop=0.8, bits=4, seed=seed, dry_run=True)
        totals = report.certificate.document["totals"]
        realised.append(number(totals["realised"]))
        expected = number(totals["mean_square"])
    error = np.std(realised) / math.sqrt(len(realised))
    assert abs(np.mean(realised) - expected) < 5 * error


def test_tail_bounds_hold_over_seeds_and_are_not_vacuous(tmp_path):
    base, finetuned = pair(tmp_path, np.float32)
    above = 0
    for seed in range(200):
        report = pack(
            finetuned, base, tmp_path / "d.safetensors", drop=0.9, bits=4, seed=seed, gamma=0.05, dry_run=True
        )
        record = next(r for r in report.certificate.document["tensors"] if r["name"] == "model.embed.weight")
        bound = next(t for t in record["tails"] if t["what"] == "realised")
        above += number(record["facts"]["realised"]) > number(bound["threshold"])
        assert number(bound["threshold"]) < 1.6 * number(record["expected"]["mean_square"])
    assert above <= 200 * 0.05 + 3 * math.sqrt(200 * 0.05)


@pytest.mark.parametrize("drop", [0, 1, Fraction(1, 3), 0.999])
def test_extreme_drop_probabilities(tmp_path, drop):
    base, finetuned = pair(tmp_path, np.float32)
    pack(finetuned, base, tmp_path / "d.safetensors", drop=drop, bits=16)
    apply(base, tmp_path / "d.safetensors", tmp_path / "out.safetensors")
    old, new, got = read(base), read(finetuned), read(tmp_path / "out.safetensors")
    name = "model.layers.0.proj.weight"
    if drop == 1:
        assert got[name].tobytes() == old[name].tobytes()
    if drop == 0:
        np.testing.assert_allclose(got[name], new[name], atol=2e-3 * 2**-6)
    assert all(np.isfinite(t).all() for t in got.values())


@pytest.mark.parametrize("bad", [-0.1, 1.5, float("nan"), float("inf")])
def test_drop_outside_its_range_is_refused(tmp_path, bad):
    base, finetuned = pair(tmp_path)
    with pytest.raises(InputError, match="drop probability"):
        pack(finetuned, base, tmp_path / "d.safetensors", drop=bad)
    assert not (tmp_path / "d.safetensors").exists()


def test_a_random_mask_costs_no_bits_and_sizes_are_as_promised(tmp_path):
    base, finetuned = pair(tmp_path, BF16, rows=2048, columns=512)
    count = 2048 * 512 + 512 * 512 + 8 * 6 * 9
    for bits, drop, group in ((16, 0.9, 0), (4, 0.9, 0.25), (4, 0.5, 0.25)):
        report = pack(
            finetuned, base, tmp_path / "d.safetensors", drop=drop, bits=bits, coding="raw", certificate=False
        )
        with safe_open(str(tmp_path / "d.safetensors"), "numpy") as stock:
            payload = sum(stock.get_tensor(n).nbytes for n in stock.keys() if not n.startswith("assay."))  # noqa: SIM118
        assert 8 * payload / count == pytest.approx((bits + group) * (1 - drop), rel=0.05)
        coded = pack(finetuned, base, tmp_path / "d.safetensors", drop=drop, bits=bits, certificate=False)
        assert coded.bytes_out < report.bytes_out


def test_the_same_bytes_for_any_number_of_workers(tmp_path):
    base, finetuned = pair(tmp_path, BF16, rows=3000, columns=512)
    outputs = set()
    for workers in (1, 2, 4):
        pack(finetuned, base, tmp_path / f"{workers}.safetensors", drop=0.9, bits=4, workers=workers)
        apply(
            base,
            tmp_path / f"{workers}.safetensors",
            tmp_path / f"{workers}.out.safetensors",
            workers=workers,
        )
        outputs.add(
            (tmp_path / f"{workers}.safetensors").read_bytes()
            + (tmp_path / f"{workers}.out.safetensors").read_bytes()
        )
    assert len(outputs) == 1


@pytest.mark.ray
def test_ray_writes_the_same_bytes(tmp_path):
    pytest.importorskip("ray")
    base, finetuned = pair(tmp_path, BF16, rows=3000, columns=512)
    energies_of(base, finetuned).save(tmp_path / "energies")
    grid = {"bits": GRID, "energies": tmp_path / "energies", "keep_map": "factored", "max_drift": 0.3}
    for engine in ("local", "ray"):
        pack(finetuned, base, tmp_path / f"{engine}.safetensors", bits=4, workers=2, engine=engine)
        pack(finetuned, base, tmp_path / f"{engine}.grid.safetensors", workers=2, engine=engine, **grid)
        apply(
            base,
            tmp_path / f"{engine}.safetensors",
            tmp_path / f"{engine}.out.safetensors",
            workers=2,
            engine=engine,
        )
    for kind in ("safetensors", "grid.safetensors", "out.safetensors"):
        assert (tmp_path / f"local.{kind}").read_bytes() == (tmp_path / f"ray.{kind}").read_bytes()


def test_seeds_differ_and_repeat(tmp_path):
    base, finetuned = pair(tmp_path)
    files = []
    for seed in (1, 1, 2):
        pack(finetuned, base, tmp_path / "d.safetensors", seed=seed)
        files.append((tmp_path / "d.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_folders_carry_every_other_file_and_keep_their_shards(tmp_path):
    base = weights(0, BF16)
    write_folder(tmp_path / "base", base, shards=2)
    write_folder(tmp_path / "tuned", tuned(base), shards=3, note="new")
    (tmp_path / "tuned" / "chat_template.jinja").write_text("{{ other }}")
    pack(tmp_path / "tuned", tmp_path / "base", tmp_path / "d.safetensors", lossless=True)
    apply(tmp_path / "base", tmp_path / "d.safetensors", tmp_path / "out")
    for file in (tmp_path / "tuned").iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name
    plan = Delta(tmp_path / "d.safetensors").plan
    assert {c["name"]: c["from"] for c in plan["carried"]}["tokenizer.json"] == "base"


def test_new_rows_new_tensors_and_removed_tensors(tmp_path):
    base = weights(0, BF16)
    new = tuned(base)
    rng = np.random.default_rng(5)
    new["model.embed.weight"] = np.concatenate(
        [new["model.embed.weight"], rng.standard_normal((3, 40)).astype(BF16)]
    )
    new["head.weight"] = rng.standard_normal((4, 40)).astype(np.float32)
    del new["model.layers.1.conv.weight"]
    write(tmp_path / "b.safetensors", base)
    write(tmp_path / "f.safetensors", new)
    report = pack(
        tmp_path / "f.safetensors", tmp_path / "b.safetensors", tmp_path / "d.safetensors", drop=0.9
    )
    apply(tmp_path / "b.safetensors", tmp_path / "d.safetensors", tmp_path / "o.safetensors")
    got = read(tmp_path / "o.safetensors")
    assert set(got) == set(new)
    assert got["model.embed.weight"][48:].tobytes() == new["model.embed.weight"][48:].tobytes()
    assert got["head.weight"].tobytes() == new["head.weight"].tobytes()
    treatments = {r["name"]: r["treatment"] for r in report.certificate.document["tensors"]}
    assert treatments["head.weight"] == "exact"
    assert treatments["model.layers.1.conv.weight"] == "absent"


def test_unchanged_integer_and_scalar_tensors_are_exact(tmp_path):
    base = weights(0, np.float32)
    new = tuned(base)
    new["model.embed.weight"] = base["model.embed.weight"].copy()
    write(tmp_path / "b.safetensors", base)
    write(tmp_path / "f.safetensors", new)
    report = pack(tmp_path / "f.safetensors", tmp_path / "b.safetensors", tmp_path / "d.safetensors", drop=1)
    apply(tmp_path / "b.safetensors", tmp_path / "d.safetensors", tmp_path / "o.safetensors")
    got = read(tmp_path / "o.safetensors")
    for name in ("model.embed.weight", "counter", "scale", "model.layers.0.norm.weight"):
        assert got[name].tobytes() == new[name].tobytes()
    treatments = {r["name"]: r["treatment"] for r in report.certificate.document["tensors"]}
    assert treatments["model.embed.weight"] == "unchanged"


def test_a_zero_that_changed_its_sign_is_a_change(tmp_path):
    base = {"w": np.zeros((4, 4), np.float32), "n": np.zeros(4, np.float32)}
    new = {"w": np.zeros((4, 4), np.float32), "n": -np.zeros(4, np.float32)}
    write(tmp_path / "b.safetensors", base)
    write(tmp_path / "f.safetensors", new)
    pack(tmp_path / "f.safetensors", tmp_path / "b.safetensors", tmp_path / "d.safetensors")
    apply(tmp_path / "b.safetensors", tmp_path / "d.safetensors", tmp_path / "o.safetensors")
    assert np.signbit(read(tmp_path / "o.safetensors")["n"]).all()


def test_tied_weights_are_stored_once(tmp_path):
    base = weights(0, BF16, rows=400)
    base["lm_head.weight"] = base["model.embed.weight"]
    new = tuned(base)
    new["lm_head.weight"] = new["model.embed.weight"]
    write_folder(tmp_path / "b", base, tie_word_embeddings=True)
    write_folder(tmp_path / "f", new, tie_word_embeddings=True)
    for certificate in (True, False):
        pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors", drop=0.5, certificate=certificate)
        records = Delta(tmp_path / "d.safetensors").records
        assert records["lm_head.weight"]["of"] == "model.embed.weight"
        assert "blocks" not in records["lm_head.weight"]
        apply(tmp_path / "b", tmp_path / "d.safetensors", tmp_path / "o", overwrite=True)
        got = read(tmp_path / "o")
        assert got["lm_head.weight"].tobytes() == got["model.embed.weight"].tobytes()


def test_tensors_whose_quick_digests_were_made_to_agree_are_not_tied(tmp_path, monkeypatch):
    base = weights(0)
    base["lm_head.weight"] = base["model.embed.weight"].copy()
    new = tuned(base)
    write(tmp_path / "b.safetensors", base)
    write(tmp_path / "f.safetensors", new)
    module = importlib.import_module("assay.checkpoints.pack")
    monkeypatch.setattr(module, "alias_key", lambda plan, sums: [str(plan.info.shape)])
    pack(tmp_path / "f.safetensors", tmp_path / "b.safetensors", tmp_path / "d.safetensors", lossless=True,
         certificate=False)  # fmt: skip
    apply(tmp_path / "b.safetensors", tmp_path / "d.safetensors", tmp_path / "o.safetensors")
    assert (tmp_path / "o.safetensors").read_bytes() == (tmp_path / "f.safetensors").read_bytes()


def test_tied_weights_that_differ_are_both_kept_and_reported(tmp_path):
    base = weights(0, BF16)
    base["lm_head.weight"] = base["model.embed.weight"]
    base["embed_tokens.weight"] = base.pop("model.embed.weight")
    new = tuned(base)
    write_folder(tmp_path / "b", base, tie_word_embeddings=True)
    write_folder(tmp_path / "f", new, tie_word_embeddings=True)
    report = pack(tmp_path / "f", tmp_path / "b", tmp_path / "d.safetensors", lossless=True)
    assert any("lm_head" in w for w in report.warnings)
    apply(tmp_path / "b", tmp_path / "d.safetensors", tmp_path / "o")
    assert read(tmp_path / "o")["lm_head.weight"].tobytes() == new["lm_head.weight"].tobytes()


def test_types_that_differ_are_rounded_once_from_the_base(tmp_path):
    base = weights(0, np.float32)
    new = {n: (t.astype(BF16) if t.dtype == np.float32 else t) for n, t in tuned(base).items()}
    write(tmp_path / "b.safetensors", base)
    write(tmp_path / "f.safetensors", new)
    for lossless in (True, False):
        pack(
            tmp_path / "f.safetensors",
            tmp_path / "b.safetensors",
            tmp_path / "d.safetensors",
            lossless=lossless,
        )
        apply(
            tmp_path / "b.safetensors", tmp_path / "d.safetensors", tmp_path / "o.safetensors", overwrite=True
        )
        got = read(tmp_path / "o.safetensors")
        assert {n: t.dtype for n, t in got.items()} == {n: t.dtype for n, t in new.items()}
        if lossless:
            assert all(got[n].tobytes() == new[n].tobytes() for n in new)


@pytest.mark.parametrize("side", ["base", "tuned"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_refused_by_name_and_place(tmp_path, side, value):
    base = weights(0, np.float32)
    new = tuned(base)
    (base if side == "base" else new)["model.layers.0.proj.weight"][2, 3] = value
    write(tmp_path / "base.safetensors", base)
    write(tmp_path / "tuned.safetensors", new)
    with pytest.raises(InputError, match=r"proj\.weight.*index 83"):
        pack(tmp_path / "tuned.safetensors", tmp_path / "base.safetensors", tmp_path / "d.safetensors")
    assert not (tmp_path / "d.safetensors").exists()
    pack(
        tmp_path / "tuned.safetensors",
        tmp_path / "base.safetensors",
        tmp_path / "d.safetensors",
        exclude=["*proj*"],
    )


def test_overflow_after_rescaling_is_refused_before_anything_is_written(tmp_path):
    base = {"w": np.full((64, 64), 6e4, np.float16)}
    write(tmp_path / "b.safetensors", base)
    write(tmp_path / "f.safetensors", {"w": base["w"] + np.float16(1024)})
    with pytest.raises(InputError, match="overflow F16"):
        pack(tmp_path / "f.safetensors", tmp_path / "b.safetensors", tmp_path / "d.safetensors", drop=0.9)


def test_a_retrained_pair_is_no_finetune(tmp_path):
    write(tmp_path / "b.safetensors", weights(0))
    write(tmp_path / "f.safetensors", weights(7))
    with pytest.raises(InputError, match="no fine-tune"):
        pack(tmp_path / "f.safetensors", tmp_path / "b.safetensors", tmp_path / "d.safetensors")
    pack(tmp_path / "f.safetensors", tmp_path / "b.safetensors", tmp_path / "d.safetensors", force=True)


def test_a_pair_is_judged_by_rows_spread_over_its_tensors(tmp_path):
    name = "model.embed.weight"
    base, new = {name: weights(0, rows=400)[name]}, {name: weights(7, rows=400)[name]}
    new[name][:100] = base[name][:100]  # the beginning looks like a fine-tune
    write(tmp_path / "b.safetensors", base)
    write(tmp_path / "f.safetensors", new)
    with pytest.raises(InputError, match="no fine-tune"):
        pack(tmp_path / "f.safetensors", tmp_path / "b.safetensors", tmp_path / "d.safetensors")


def test_another_base_is_refused_and_nothing_is_written(tmp_path):
    base, finetuned = pair(tmp_path)
    pack(finetuned, base, tmp_path / "d.safetensors")
    other = read(base)
    other["model.layers.1.conv.weight"][7, 5, 2, 2] += 1
    write(tmp_path / "other.safetensors", other)
    with pytest.raises(InputError, match=r"not the base.*conv"):
        apply(tmp_path / "other.safetensors", tmp_path / "d.safetensors", tmp_path / "o.safetensors")
    assert not (tmp_path / "o.safetensors").exists()


def test_a_changed_payload_is_refused(tmp_path):
    base, finetuned = pair(tmp_path)
    pack(finetuned, base, tmp_path / "d.safetensors")
    data = bytearray((tmp_path / "d.safetensors").read_bytes())
    data[-20] ^= 1
    (tmp_path / "d.safetensors").write_bytes(bytes(data))
    with pytest.raises(RejectedError, match="damaged"):
        apply(base, tmp_path / "d.safetensors", tmp_path / "o.safetensors")


def test_every_damaged_byte_of_a_delta_is_noticed_or_harmless(tmp_path):
    base, finetuned = pair(tmp_path)
    path = tmp_path / "d.safetensors"
    pack(finetuned, base, path, drop=0.9, bits=4)
    whole = path.read_bytes()
    apply(base, path, tmp_path / "good.safetensors")
    good = (tmp_path / "good.safetensors").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(whole)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        path.write_bytes(bytes(data))
        try:
            apply(base, path, tmp_path / "o.safetensors", overwrite=True)
        except AssayError:
            continue
        assert (tmp_path / "o.safetensors").read_bytes()[-1000:] == good[-1000:]


def test_output_that_is_an_input_is_refused(tmp_path):
    base, finetuned = pair(tmp_path)
    before = base.read_bytes()
    for target in (base, finetuned):
        with pytest.raises(InputError):
            pack(finetuned, base, target, overwrite=True)
    (tmp_path / "link").symlink_to(base)
    with pytest.raises(InputError):
        pack(finetuned, base, tmp_path / "link", overwrite=True)
    assert base.read_bytes() == before


def test_optimal_rescale_is_never_worse_and_says_what_it_costs(tmp_path):
    base, finetuned = pair(tmp_path)
    reports = [
        pack(finetuned, base, tmp_path / "d.safetensors", drop=0.9, bits=4, rescale=rescale, dry_run=True)
        for rescale in ("dare", "optimal", 0.5)
    ]
    dare, optimal, half = (r.certificate.document["totals"] for r in reports)
    assert number(optimal["mean_square"]) == pytest.approx(number(dare["optimal_mean_square"]), rel=1e-9)
    assert number(optimal["mean_square"]) < number(half["mean_square"]) < number(dare["mean_square"])
    assert number(dare["bias_square"]) == 0 < number(optimal["bias_square"])
    assert number(dare["mean_square"]) == pytest.approx(9 * number(dare["delete"]), rel=0.1)


def test_patterns_choose_what_loses_something(tmp_path):
    base, finetuned = pair(tmp_path)
    report = pack(
        finetuned, base, tmp_path / "d.safetensors", include=["*norm*"], exclude=["nothing*", "*conv*"][1:]
    )
    lossy = [r["name"] for r in report.certificate.document["tensors"] if r["treatment"] == "dropped"]
    assert lossy == ["model.layers.0.norm.weight"]
    with pytest.raises(InputError, match="matches no tensor"):
        pack(finetuned, base, tmp_path / "d.safetensors", exclude=["*embeding*"])


def test_a_sparse_delta_is_warned_about(tmp_path):
    base = weights(0)
    new = {n: t.copy() for n, t in base.items()}
    new["model.embed.weight"][::4] += 1e-3
    write(tmp_path / "b.safetensors", base)
    write(tmp_path / "f.safetensors", new)
    report = pack(tmp_path / "f.safetensors", tmp_path / "b.safetensors", tmp_path / "d.safetensors")
    assert any("sparse" in w for w in report.warnings)


def test_a_dry_run_writes_nothing_and_knows_the_size(tmp_path):
    base, finetuned = pair(tmp_path)
    before = sorted(tmp_path.iterdir())
    dry = pack(finetuned, base, tmp_path / "d.safetensors", drop=0.9, bits=4, dry_run=True)
    assert sorted(tmp_path.iterdir()) == before
    real = pack(finetuned, base, tmp_path / "d.safetensors", drop=0.9, bits=4)
    assert dry.certificate.id == real.certificate.id
    assert dry.bytes_out == real.bytes_out == (tmp_path / "d.safetensors").stat().st_size
    size = apply(base, tmp_path / "d.safetensors", tmp_path / "o.safetensors", dry_run=True).bytes_out
    apply(base, tmp_path / "d.safetensors", tmp_path / "o.safetensors")
    assert size == (tmp_path / "o.safetensors").stat().st_size


def test_the_certificate_is_inside_and_beside(tmp_path):
    base, finetuned = pair(tmp_path)
    report = pack(finetuned, base, tmp_path / "d.safetensors", certificate=tmp_path / "c.json")
    beside = Certificate.load(tmp_path / "c.json")
    inside = Delta(tmp_path / "d.safetensors").certificate
    assert beside.document == inside.document == json.loads(report.certificate.to_bytes())
    assert inspect(tmp_path / "d.safetensors").certificate.id == beside.id
    assert inspect(tmp_path / "c.json").kind == "certificate"
    assert inspect(base).kind == "checkpoint"


def test_the_stock_library_opens_a_delta(tmp_path):
    base, finetuned = pair(tmp_path)
    pack(finetuned, base, tmp_path / "d.safetensors")
    with safe_open(str(tmp_path / "d.safetensors"), "numpy") as stock:
        assert stock.metadata()["format"] == "assay-delta"
        assert "model.embed.weight" in stock.keys()  # noqa: SIM118


def test_a_missing_file_is_one_sentence(tmp_path):
    base, finetuned = pair(tmp_path)
    with pytest.raises(InputError, match=r"none\.safetensors"):
        pack(finetuned, Path(tmp_path / "none.safetensors"), tmp_path / "d.safetensors")
    with pytest.raises(InputError, match="folder"):
        pack(finetuned, base, tmp_path / "no" / "d.safetensors")


def test_shape_conflicts_name_both_sides(tmp_path):
    base, _ = pair(tmp_path)
    other = tuned(weights(0))
    other["model.layers.0.proj.weight"] = other["model.layers.0.proj.weight"][:, :20].copy()
    write(tmp_path / "f.safetensors", other)
    with pytest.raises(InputError, match=r"proj\.weight"):
        pack(tmp_path / "f.safetensors", base, tmp_path / "d.safetensors")
