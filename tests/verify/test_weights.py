"""What the checker recomputes from checkpoints: against the producer, against numpy, and against forgers."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from assay.checkpoints import codec as producer
from assay.checkpoints.calibrate import Moments
from assay.checkpoints.factors import Factors
from assay.checkpoints.pack import pack
from assay.numerics.philox import key_for
from assay_verify import blocks, codec, factors, fast, philox, subjects, weights
from assay_verify.outcome import Misuse, Rejected, Report, Unsupported

NUMBERS = {
    "F32": np.float32,
    "F64": np.float64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
GOLDEN = Path(__file__).parents[2] / "attacks" / "golden"


def pair(dtype: str, rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((rows, columns)).astype(NUMBERS[dtype])
    move = 0.1 * rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < 0.7)
    return base, (base.astype(np.float64) + move).astype(NUMBERS[dtype])


# --- blocks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("bits", [16, 8, 4, 3, 2])
@pytest.mark.parametrize("threshold", [0, 429496730, 1 << 32])
@pytest.mark.parametrize("chosen", [False, True])
def test_blocks_decode_and_measure_as_they_were_coded(
    dtype: str, bits: int, threshold: int, chosen: bool
) -> None:
    """The producer's codec, the plain definition and the numpy path agree on survivors, codes and sums."""
    rows, columns, start = 5, 37, 11 * 37
    base, tuned = pair(dtype, rows, columns)
    keep = np.random.default_rng(3).random((rows, columns)) < 0.3 if chosen else None
    key, rescale = key_for(3, "w"), max(threshold, 1) / 2**32 if bits != 3 else 0.37
    raw = np.dtype(f"u{base.itemsize}")
    scheme = producer.Scheme(bits, threshold, rescale, key, 50, "entropy" if bits % 2 else "raw", chosen)
    block = producer.encode_block(base.view(raw), tuned.view(raw), dtype, start, scheme, None, keep)
    mine = codec.Scheme(bits, threshold, rescale, 50, key, chosen)
    stored = codec.decode_survivors(block.payload, mine, rows * columns)
    arguments = (base.tobytes(), tuned.tobytes(), dtype, columns, start, mine, stored)
    kept, sums = blocks.measure(*arguments)
    quick, same = fast.measure(*arguments)
    stats = block.stats
    assert kept == quick == stats.kept
    expected = zip(
        stats.row_energy,
        stats.row_quantiser_variance,
        stats.row_quantiser_proxy,
        stats.row_realised,
        strict=True,
    )
    for row, theirs in zip(sums, expected, strict=True):
        ours = (row.energy, row.variance, row.proxy, row.realised)
        assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-17)
    assert sum(r.fourth for r in sums) == pytest.approx(stats.delta_fourth, rel=1e-12)
    assert sum(r.step_fourth for r in sums) == pytest.approx(stats.step_fourth, rel=1e-12)
    for row, other in zip(sums, same, strict=True):
        assert row.spread is other.spread is row.sub_gaussian is other.sub_gaussian is None
        for name in blocks.Sums.__slots__[:-2]:
            assert getattr(row, name) == pytest.approx(getattr(other, name), rel=1e-14, abs=1e-300)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F64"])
@pytest.mark.parametrize("bits", [16, 4, 2])
def test_thresholds_by_row_and_column_decode_and_measure_as_they_were_coded(dtype: str, bits: int) -> None:
    rows, columns, start = 5, 37, 11 * 37
    base, tuned = pair(dtype, rows, columns)
    made = factored(16, columns)
    key, raw = key_for(3, "w"), np.dtype(f"u{base.itemsize}")
    scheme = producer.Scheme(bits, 0, 1.0, key, 50, factors=made)
    block = producer.encode_block(base.view(raw), tuned.view(raw), dtype, start, scheme)
    mine = codec.Scheme(bits, 0, 1.0, 50, key, False, factors.read(made.record(), 16, columns, "w"))
    stored = codec.decode_survivors(block.payload, mine, rows * columns)
    arguments = (base.tobytes(), tuned.tobytes(), dtype, columns, start, mine, stored)
    kept, sums = blocks.measure(*arguments)
    quick, same = fast.measure(*arguments)
    stats = block.stats
    assert 0 < kept == quick == stats.kept
    assert stats.row_variance is not None
    assert stats.row_proxy is not None
    expected = zip(stats.row_energy, stats.row_realised, stats.row_variance, stats.row_proxy, strict=True)
    for row, theirs in zip(sums, expected, strict=True):
        ours = (row.energy, row.realised, row.spread, row.sub_gaussian)
        assert ours == pytest.approx(theirs, rel=1e-11, abs=1e-17)
    for row, other in zip(sums, same, strict=True):
        for name in blocks.Sums.__slots__:
            assert getattr(row, name) == pytest.approx(getattr(other, name), rel=1e-14, abs=1e-300)


def factored(rows: int, columns: int) -> Factors:
    draw = np.random.default_rng(8)
    codes = (draw.integers(0, 16, n).astype(np.uint8) for n in (rows, columns))
    return Factors(*codes, (2**32 - 1, 3_900_000_000), (3_000_000_000, 4_000_000_000), 32, 30_000_000)


@pytest.mark.parametrize(
    "change",
    [
        {"row_codes": "0" * 15}, {"row_codes": "x" * 16}, {"column_codes": 5}, {"row_grid": [1]},
        {"row_grid": [1, 2**32 + 1]}, {"column_grid": [2**32, 1]}, {"shift": 64}, {"floor": 0}, {"floor": "1"},
    ],
)  # fmt: skip
def test_malformed_factors_are_rejected(change: dict[str, Any]) -> None:
    record = factored(16, 4).record()
    factors.read(record, 16, 4, "w")
    with pytest.raises(Rejected):
        factors.read(record | change, 16, 4, "w")


@pytest.mark.parametrize("module", [blocks, fast])
@pytest.mark.parametrize("change", ["codes", "scales", "kept"])
def test_other_survivors_are_rejected(module: Any, change: str) -> None:
    base, tuned = pair("F32", 4, 32)
    scheme = codec.Scheme(4, 1 << 31, 0.5, 50, key_for(1, "w"), False)
    theirs = producer.Scheme(4, 1 << 31, 0.5, key_for(1, "w"), 50)
    block = producer.encode_block(base.view(np.uint32), tuned.view(np.uint32), "F32", 0, theirs)
    stored = codec.decode_survivors(block.payload, scheme, 128)
    if change == "kept":
        stored = codec.Survivors(stored.kept - 1, None, stored.scales, stored.codes[:-1])
    else:
        getattr(stored, change)[-1] += 1
    with pytest.raises(Rejected):
        module.measure(base.tobytes(), tuned.tobytes(), "F32", 32, 0, scheme, stored)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_exact_blocks_come_back(width: int) -> None:
    rng = np.random.default_rng(width)
    base, tuned = (rng.integers(0, 2 ** (8 * width), 200, f"u{width}", endpoint=False) for _ in range(2))
    lossless = codec.decode_planes(producer.encode_lossless(base, tuned), codec.LOSSLESS, width, 200)
    for module in (blocks, fast):
        assert module.add_zigzag(base.tobytes(), lossless, width) == tuned.tobytes()
    assert codec.decode_planes(producer.encode_exact(tuned), codec.EXACT, width, 200) == tuned.tobytes()


def test_the_stream_of_words_is_the_producers() -> None:
    from assay.numerics.philox import words

    for start in (0, 3, 4 * 2**32 - 5):
        assert philox.words((1, 2), start, 11) == words((1, 2), start, 11).tolist()
        assert fast._words((1, 2), start, 11).tolist() == words((1, 2), start, 11).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_damaged_blocks_never_crash(seed: int) -> None:
    base, tuned = pair("F32", 4, 32)
    rng = random.Random(seed)
    chosen = seed % 2 == 0
    bits = rng.choice((16, 8, 4, 3, 2))
    keep = np.random.default_rng(seed).random((4, 32)) < 0.3 if chosen else None
    theirs = producer.Scheme(bits, 1 << 31, 0.5, key_for(1, "w"), 50, stored_mask=chosen)
    payload = bytearray(
        producer.encode_block(
            base.view(np.uint32), tuned.view(np.uint32), "F32", 0, theirs, None, keep
        ).payload
    )
    scheme = codec.Scheme(bits, 1 << 31, 0.5, 50, key_for(1, "w"), chosen)
    for _ in range(60):
        damaged = bytearray(payload)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        damaged = damaged[: rng.randrange(len(damaged) + 1)] if rng.random() < 0.2 else damaged
        try:
            stored = codec.decode_survivors(bytes(damaged), scheme, 128)
        except (Rejected, Unsupported):
            continue
        assert len(stored.codes) == stored.kept <= 128


# --- whole packs --------------------------------------------------------------------------------------------


def checked(folder: Path, base: Mapping[str, Any], tuned: Mapping[str, Any], **settings: Any) -> Report:
    """Pack, and check the delta with both sides."""
    sides = {"base": base, "finetuned": tuned}
    for name, tensors in sides.items():
        save_file(dict(tensors), folder / f"{name}.safetensors")
    delta = folder / "delta.safetensors"
    pack(
        *(folder / f"{n}.safetensors" for n in ("finetuned", "base")),
        delta,
        tails="ks",
        workers=1,
        **settings,
    )
    return subjects.check(delta, [f"{name}={folder / name}.safetensors" for name in sides])


def assert_all_recomputed(report: Report) -> None:
    assert any("realised errors, decoded" in line for line in report.checked)
    assert not any("the facts" in line for line in report.unchecked)


@pytest.mark.parametrize("dtype", ["F32", "F64", "F16", "BF16"])
@pytest.mark.parametrize(("bits", "drop"), [(16, 0.0), (16, 0.9), (4, 0.5), (2, 0.9), (8, 1.0)])
def test_packs_are_accepted(tmp_path: Path, dtype: str, bits: int, drop: float) -> None:
    base, tuned = pair(dtype, 6, 50)
    same, norm = base[:2].copy(), base[3].copy()
    report = checked(
        tmp_path,
        {"w": base, "same": same, "norm": norm, "ids": np.arange(4)},
        {"w": tuned, "same": same, "norm": tuned[3].copy(), "ids": np.arange(1, 5), "new": tuned[:1].copy()},
        drop=drop,
        bits=bits,
    )
    assert_all_recomputed(report)


@pytest.mark.parametrize(
    "settings",
    [{"rescale": "optimal"}, {"rescale": 0.7}, {"lossless": True}, {"gamma": 1e-9}, {"seed": 2**70}],
)
def test_packs_with_other_settings_are_accepted(tmp_path: Path, settings: dict[str, Any]) -> None:
    base, tuned = pair("F32", 6, 50)
    assert_all_recomputed(
        checked(tmp_path, {"w": base}, {"w": tuned}, **{"drop": 0.6, "bits": 4, **settings})
    )


def test_a_pack_of_several_blocks(tmp_path: Path) -> None:
    base, tuned = pair("BF16", 5, 1 << 19)
    assert_all_recomputed(checked(tmp_path, {"w": base}, {"w": tuned}, drop=0.9, bits=4))


def test_a_grown_vocabulary_is_accepted(tmp_path: Path) -> None:
    base, tuned = pair("F32", 6, 50)
    assert_all_recomputed(checked(tmp_path, {"w": base[:4].copy()}, {"w": tuned}, drop=0.5, bits=4))


def test_a_base_of_another_type_is_accepted(tmp_path: Path) -> None:
    base, _ = pair("F32", 6, 50)
    _, tuned = pair("BF16", 6, 50)
    assert_all_recomputed(checked(tmp_path, {"w": base}, {"w": tuned}, drop=0.5, bits=4))


def test_a_tensor_that_the_fine_tuned_side_lacks(tmp_path: Path) -> None:
    base, tuned = pair("F32", 6, 50)
    assert_all_recomputed(checked(tmp_path, {"w": base, "gone": base.copy()}, {"w": tuned}, drop=0.5, bits=4))


def test_an_unchanged_tensor_of_another_type(tmp_path: Path) -> None:
    base, tuned = pair("F32", 6, 50)
    rounded = base[:2].astype(ml_dtypes.bfloat16)
    report = checked(
        tmp_path, {"w": base, "u": base[:2].copy()}, {"w": tuned, "u": rounded}, drop=0.5, bits=4
    )
    assert_all_recomputed(report)


def moments(folder: Path, values: np.ndarray) -> Path:
    path = folder / "moments.safetensors"
    Moments({"w": values}, {"w": 200}, {"w": 1}, "model", "config", "texts").save(path)
    return path


def inputs() -> np.ndarray:
    x = np.random.default_rng(5).standard_normal((200, 50))
    return x.T @ x / 200


@pytest.mark.parametrize("settings", [{}, {"mask": "derandomised"}, {"rescale": "optimal"}])
def test_calibrated_packs_are_accepted(tmp_path: Path, settings: dict[str, Any]) -> None:
    base, tuned = pair("F32", 6, 50)
    given = moments(tmp_path, inputs())
    report = checked(tmp_path, {"w": base}, {"w": tuned}, drop=0.5, bits=4, moments=given, **settings)
    assert any("calibrated" in line for line in report.unchecked)
    assert any("guarantees" in line for line in report.unchecked) == ("mask" in settings)


def test_packs_of_diagonal_moments_are_accepted(tmp_path: Path) -> None:
    base, tuned = pair("F32", 6, 50)
    given = moments(tmp_path, np.diag(inputs()).copy())
    checked(tmp_path, {"w": base}, {"w": tuned}, drop=0.5, bits=4, moments=given)


def test_the_plain_path_accepts_what_numpy_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "engine", blocks)
    base, tuned = pair("BF16", 6, 50)
    assert_all_recomputed(checked(tmp_path, {"w": base}, {"w": tuned}, drop=0.5, bits=3))


def test_sharded_sides(tmp_path: Path) -> None:
    """The fine-tuned side as a folder of two files and their index."""
    base, tuned = pair("F32", 6, 50)
    other, moved = pair("F32", 6, 50, seed=1)
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": tuned}, folder / "one.safetensors")
    save_file({"b": moved}, folder / "two.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a": base, "b": other}, tmp_path / "base.safetensors")
    delta = tmp_path / "delta.safetensors"
    pack(folder, tmp_path / "base.safetensors", delta, drop=0.5, bits=4, tails="ks", workers=1)
    assert_all_recomputed(subjects.check(delta, [f"base={tmp_path}/base.safetensors", f"finetuned={folder}"]))
    index["weight_map"]["b"] = "../two.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Rejected, match="outside its folder"):
        subjects.check(delta, [f"finetuned={folder}"])


# --- the golden delta ---------------------------------------------------------------------------------------


def test_a_changed_byte_of_the_delta_changes_no_statement(tmp_path: Path) -> None:
    """Bytes that the certificate does not bind (quick digests, padding) may change; what it says may not."""
    original = (GOLDEN / "delta.safetensors").read_bytes()
    sides = [f"{side}={GOLDEN / side}.safetensors" for side in ("base", "finetuned")]
    true = subjects.check(GOLDEN / "delta.safetensors", sides)
    rng, path, unbound = random.Random(0), tmp_path / "delta.safetensors", 0
    positions = rng.sample(range(len(original)), 700)
    for position in positions:
        damaged = bytearray(original)
        damaged[position] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            report = subjects.check(path, sides)
        except (Rejected, Unsupported, Misuse):
            continue
        unbound += 1
        assert (report.id, report.statement) == (true.id, true.statement)
    assert unbound < 0.1 * len(positions)


@pytest.mark.parametrize("side", ["base", "finetuned"])
def test_a_changed_bit_of_a_checkpoint_is_rejected(tmp_path: Path, side: str) -> None:
    data = bytearray((GOLDEN / f"{side}.safetensors").read_bytes())
    data[-5] ^= 1
    (tmp_path / "side.safetensors").write_bytes(data)
    with pytest.raises(Rejected, match="digest certified"):
        subjects.check(GOLDEN / "delta.safetensors", [f"{side}={tmp_path}/side.safetensors"])


@pytest.mark.parametrize("given", ["base", "other=x", "delta=x", "base=a"])
def test_subjects_that_mean_nothing_are_misuse(given: str) -> None:
    with pytest.raises(Misuse):
        subjects.check(GOLDEN / "delta.safetensors", [given])
