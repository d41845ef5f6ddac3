"""Keep maps: closed forms against an optimiser's laws, budgets that are met, and packs that follow them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import pair, read, weights, write, write_folder
from models import tuned as move

from assay.checkpoints import apply, pack
from assay.checkpoints.delta import Delta, source_fingerprint
from assay.checkpoints.energies import Energies, _exact_bytes, _Pair, _tensor_energy
from assay.checkpoints.factors import Factors
from assay.checkpoints.io import open_checkpoint
from assay.checkpoints.keep import FLOOR, Planner
from assay.checkpoints.plan import KEEP_MAPS
from assay.core.errors import BudgetError, InputError
from assay.missions.dare.algorithm.allocation import allocate
from assay_verify.__main__ import main as checker


def energies_of(base, finetuned, seed: int = 0, spread: float = 2.0) -> Energies:
    """Energies with made-up gradients: rows and columns of very different weight."""
    draw = np.random.default_rng(seed)
    with open_checkpoint(base) as old, open_checkpoint(finetuned) as new:
        tensors = {}
        for name, info in new.tensors.items():
            if info.is_float and len(info.shape) >= 2 and name in old.tensors:
                rows, columns = (np.exp(spread * draw.standard_normal(n)) for n in (info.rows, info.columns))
                gradients = np.outer(rows, columns) * draw.chisquare(1, (info.rows, info.columns))
                tensors[name] = _tensor_energy(_Pair(name, old, new), gradients.astype(np.float32))
        other = {name: _exact_bytes(name, old, new) for name in new.tensors if name not in tensors}
        effect = 40 * sum(t.total for t in tensors.values())
        prints = source_fingerprint(old), source_fingerprint(new)
    return Energies(tensors, other, effect, "encoder", 8, 2, 0, *prints, "texts")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    base, finetuned = pair(folder, rows=600, columns=300)
    energies = energies_of(base, finetuned)
    energies.save(folder / "e.safetensors")
    return base, finetuned, folder / "e.safetensors", energies


def keeps(plan, energies: Energies) -> list[np.ndarray]:
    """Dense keep probabilities of every tensor."""
    result = []
    for name, made in plan.thresholds.items():
        t = energies.tensors[name]
        dense = np.full((t.rows.size, t.columns.size), made) if isinstance(made, int) else None
        if isinstance(made, Factors):
            dense = made.thresholds[made.row_codes[:, None], made.column_codes[None, :]]
        result.append(dense / 2**32)
    return result


# Plans ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_map", KEEP_MAPS)
@given(drop=st.floats(0, 0.999))
@settings(max_examples=12, deadline=None)
def test_the_share_asked_for_is_dropped_and_nothing_is_hopeless(measured, keep_map, drop):
    energies = measured[3]
    plan = Planner(energies, 16).at_drop(keep_map, drop)
    kept = np.concatenate([k.reshape(-1) for k in keeps(plan, energies)])
    assert kept.mean() == pytest.approx(1 - drop, rel=2e-4)
    assert plan.mean_keep == pytest.approx(kept.mean(), rel=1e-9)
    assert kept.min() >= FLOOR * (1 - drop) * (1 - 1e-4)
    assert kept.max() <= 1


def test_a_finer_map_drifts_less(measured):
    planner = Planner(measured[3], 4)
    for drop in (0.5, 0.9, 0.98):
        uniform, tensor, factored = (planner.at_drop(m, drop).drift for m in KEEP_MAPS)
        assert factored < 0.9 * tensor
        assert tensor < uniform


def test_maps_by_tensor_are_the_closed_form_of_the_mission(measured):
    """Where neither floor nor clip binds: `allocate` at the error the plan has."""
    energies = measured[3]
    even = {n: t for n, t in energies.tensors.items() if t.count > 1000}
    planner = Planner(Energies(even, {}, energies.effect, "encoder", 8, 2, 0), 16)
    plan = planner.at_drop("tensor", 0.8)
    found = np.array([t / 2**32 for t in plan.thresholds.values()])
    totals, sizes = (np.array([getattr(t, key) for t in even.values()]) for key in ("total", "count"))
    error = float((totals * (1 / found - 1)).sum())
    np.testing.assert_allclose(allocate(totals, sizes, error).keep_prob, found, rtol=1e-3)


def test_equal_energies_make_every_map_uniform():
    base = {"w": np.zeros((30, 20), np.float32)}
    tensor = _tensor_energy(_Ones(), np.ones((30, 20), np.float32))
    planner = Planner(Energies({"w": tensor}, {}, 1.0, "module", 1, 1, 0), 16)
    for keep_map in KEEP_MAPS:
        made = planner.at_drop(keep_map, 0.7).thresholds["w"]
        found = made.thresholds[0, 0] if isinstance(made, Factors) else made
        assert float(found) / 2**32 == pytest.approx(0.3, rel=1e-5)
    assert base["w"].size == tensor.count


class _Ones:
    def blocks(self):
        yield 0, 30, np.ones((30, 20))


@pytest.mark.parametrize("keep_map", KEEP_MAPS)
@pytest.mark.parametrize("bits", [16, 4, 3])
def test_budgets_are_met_and_spent(measured, keep_map, bits):
    planner = Planner(measured[3], bits, overhead=1000)
    for drift in (0.2, 0.4, 1.0):
        plan = planner.at_drift(keep_map, drift)
        assert 0.999 * drift <= plan.drift <= drift * (1 + 1e-6)
    for size in (20_000, 60_000, 120_000):
        plan = planner.at_size(keep_map, size)
        assert 0.98 * size <= plan.size <= size * 1.001 or plan.mean_keep == 1


def test_what_is_out_of_reach_says_how_far(measured):
    planner = Planner(measured[3], 2, overhead=5000)
    with pytest.raises(
        BudgetError, match=r"out of reach at 2 bits: .* predicted to be 0\.\d+; use more --bits"
    ):
        planner.at_drift("factored", 1e-4)
    with pytest.raises(BudgetError, match=r"100 bytes are out of reach .* take [5-9]\d{3} by themselves"):
        planner.at_size("factored", 100)
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError):
            planner.at_drift("tensor", wrong)
    for call in (lambda: planner.at_drop("tensor", 1), lambda: planner.at_drop("rows", 0.5)):
        with pytest.raises(InputError):
            call()
    with pytest.raises(InputError, match="does nothing"):
        Planner(Energies(measured[3].tensors, {}, 0.0, "encoder", 8, 2, 0), 4)


# Packs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_map", KEEP_MAPS)
@pytest.mark.parametrize("bits", [16, 3])
def test_a_pack_by_energies_comes_back_and_is_accepted(measured, tmp_path, keep_map, bits, capsys):
    base, finetuned, file, _ = measured
    first = None
    for workers in (1, 3):
        out = tmp_path / f"{workers}.safetensors"
        report = pack(
            finetuned, base, out, bits=bits, energies=file, keep_map=keep_map, max_drift=0.3, workers=workers
        )
        assert first in (None, out.read_bytes())
        first = out.read_bytes()
        apply(base, out, tmp_path / f"o{workers}.safetensors", workers=workers)
    assert (tmp_path / "o1.safetensors").read_bytes() == (tmp_path / "o3.safetensors").read_bytes()
    assert report.keep is not None
    assert report.keep.drift <= 0.3 * (1 + 1e-6)
    assert report.bytes_out == pytest.approx(report.keep.size, rel=0.06)
    subjects = [f"base={base}", f"finetuned={finetuned}"]
    arguments = [x for s in subjects for x in ("--subject", s)]
    assert checker([str(out), *arguments]) == 0
    assert checker([str(out)]) == 0
    capsys.readouterr()
    new, got = read(finetuned), read(tmp_path / "o1.safetensors")
    for record in report.certificate.document["tensors"]:
        name = record["name"]
        if record["treatment"] in ("dropped", "factored"):
            error = float(((got[name].astype(np.float64) - new[name]) ** 2).sum())
            assert error == pytest.approx(float.fromhex(record["facts"]["realised"]), rel=1e-3)
            expected = float.fromhex(record["expected"]["variance"])
            if got[name].size > 10_000:
                assert error == pytest.approx(expected, rel=0.25)
        else:
            assert got[name].tobytes() == new[name].tobytes()


def test_sizes_asked_for_are_met(measured, tmp_path):
    base, finetuned, file, _ = measured
    for size in (60_000, 120_000):
        report = pack(
            finetuned, base, tmp_path / "d.safetensors", bits=4, energies=file, keep_map="factored", max_size=size,
            overwrite=True,
        )  # fmt: skip
        assert 0.85 * size <= report.bytes_out <= size


def test_a_forged_factor_is_noticed(measured, tmp_path, capsys):
    base, finetuned, file, _ = measured
    path = tmp_path / "d.safetensors"
    pack(finetuned, base, path, energies=file, keep_map="factored", bits=4)
    patch = Delta(path)
    record = next(r for r in patch.plan["tensors"] if r["treatment"] == "factored")
    from assay.checkpoints.delta import encode_plan
    from assay.checkpoints.header import build_header

    record["floor"] += 1
    names = list(patch._file.tensors)
    data = {n: patch._file.read_bytes(n) for n in names} | {"assay.plan": encode_plan(patch.plan)}
    header = build_header([(n, "U8", (len(data[n]),)) for n in names], patch._file.shards[0].metadata)
    forged = tmp_path / "f.safetensors"
    forged.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(data[n] for n in names))
    assert checker([str(forged)]) == 1
    assert "factors" in capsys.readouterr().out


def test_a_uniform_pack_with_energies_is_the_same_file_and_says_the_drift(measured, tmp_path):
    base, finetuned, file, energies = measured
    one = pack(finetuned, base, tmp_path / "1.safetensors", bits=4)
    two = pack(finetuned, base, tmp_path / "2.safetensors", bits=4, energies=file)
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()
    assert one.keep is None
    assert two.keep.drift == Planner(energies, 4).at_drop("uniform", 0.9).drift


def test_tensors_without_energies_are_exact_and_named(tmp_path):
    base, finetuned = pair(tmp_path)
    energies = energies_of(base, finetuned)
    rest = {n: t for n, t in energies.tensors.items() if "conv" not in n}
    fewer = Energies(rest, {}, 1.0, "encoder", 8, 2, 0, energies.base, energies.finetuned, "")
    fewer.save(tmp_path / "e")
    report = pack(finetuned, base, tmp_path / "d.safetensors", energies=tmp_path / "e", keep_map="factored")
    assert any("1 tensors have no energies" in w and "conv" in w for w in report.warnings)
    treatments = {r["name"]: r["treatment"] for r in report.certificate.document["tensors"]}
    assert treatments["model.layers.1.conv.weight"] == "lossless"
    assert treatments["model.layers.0.proj.weight"] == "factored"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"keep_map": "factored"}, "assay calibrate"),
        ({"max_drift": 0.1}, "assay calibrate"),
        ({"keep_map": "rows"}, "none of uniform"),
        ({"max_drift": 0.1, "max_size": 100}, "not both"),
        ({"max_drift": -1.0}, "finite number above 0"),
        ({"max_size": 0}, "above 0"),
        ({"keep_map": "tensor", "mask": "derandomised"}, "--mask random"),
        ({"keep_map": "tensor", "rescale": "optimal"}, "--rescale dare"),
        ({"keep_map": "tensor", "lossless": True}, "--lossless"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(tmp_path, kwargs, message):
    base, finetuned = pair(tmp_path)
    with pytest.raises(InputError, match=message):
        pack(finetuned, base, tmp_path / "d.safetensors", **kwargs)
    assert not (tmp_path / "d.safetensors").exists()


def test_a_folder_goes_round(tmp_path):
    base = weights(0)
    write_folder(tmp_path / "b", base, shards=2)
    write_folder(tmp_path / "f", move(base), shards=2)
    energies_of(tmp_path / "b", tmp_path / "f").save(tmp_path / "e")
    pack(
        tmp_path / "f",
        tmp_path / "b",
        tmp_path / "d.safetensors",
        energies=tmp_path / "e",
        keep_map="factored",
        drop=0,
    )
    apply(tmp_path / "b", tmp_path / "d.safetensors", tmp_path / "o")
    got, new = read(tmp_path / "o"), move(base)
    np.testing.assert_allclose(got["model.embed.weight"], new["model.embed.weight"], rtol=0, atol=2e-4)


def test_energies_of_another_pair_are_refused(measured, tmp_path):
    base, finetuned, file, _ = measured
    other = read(finetuned)
    other["model.embed.weight"][3, 4] += np.float32(1e-3)
    write(tmp_path / "other.safetensors", other)
    with pytest.raises(InputError, match="another fine-tune"):
        pack(tmp_path / "other.safetensors", base, tmp_path / "d.safetensors", energies=file)
