"""A merged adapter equals base + scale * B @ A by hand; what cannot be merged is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from assay.checkpoints.adapters import is_adapter, open_adapter
from assay.checkpoints.header import DTYPES, to_odd_float32
from assay.checkpoints.io import Source, compare_layouts, open_checkpoint
from assay.core.errors import InputError

BF16 = ml_dtypes.bfloat16
P = "base_model.model."
RNG = np.random.default_rng(0)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def make(
    tmp_path: Path,
    base: Mapping[str, np.ndarray],
    adapter: Mapping[str, np.ndarray],
    base_config: Mapping[str, Any] | None = None,
    **config: Any,
) -> tuple[Source, Path]:
    for name, tensors, file in (
        ("base", base, "model.safetensors"),
        ("ad", adapter, "adapter_model.safetensors"),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        safetensors.numpy.save_file(
            {k: np.ascontiguousarray(v) for k, v in tensors.items()}, tmp_path / name / file
        )
    if base_config is not None:
        (tmp_path / "base" / "config.json").write_text(json.dumps(base_config))
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, **config}
    (tmp_path / "ad" / "adapter_config.json").write_text(json.dumps(settings))
    return open_checkpoint(tmp_path / "base"), tmp_path / "ad"


def values(source: Source, name: str) -> np.ndarray:
    info = source.tensors[name]
    return source.read_rows(name, 0, info.rows).view(DTYPES[info.dtype]).reshape(info.shape)


def merged_by_hand(w: np.ndarray, scale: float, b: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The specified arithmetic, one float32 operation after another."""
    product = np.zeros(w.shape, np.float32)
    for k in range(b.shape[1]):
        product += b[:, k : k + 1].astype(np.float32) * a[k : k + 1].astype(np.float32)
    return (w.astype(np.float32) + np.float32(scale) * product).astype(w.dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("factor_dtype", [np.float32, BF16])
def test_merge_is_the_specified_arithmetic_bit_for_bit(dtype: Any, factor_dtype: Any, tmp_path: Path) -> None:
    w, other = normal(6, 5).astype(dtype), normal(4).astype(dtype)
    b, a = normal(6, 2).astype(factor_dtype), normal(2, 5).astype(factor_dtype)
    base, path = make(
        tmp_path,
        {"model.q.weight": w, "model.norm": other},
        {P + "model.q.lora_A.weight": a, P + "model.q.lora_B.weight": b},
    )
    merged = open_adapter(path, base)
    expected = merged_by_hand(w, 3 / 2, b, a)
    np.testing.assert_array_equal(values(merged, "model.q.weight"), expected)
    exact = w.astype(np.float64) + 1.5 * (b.astype(np.float64) @ a.astype(np.float64))
    np.testing.assert_allclose(expected.astype(np.float64), exact, rtol=2**-7, atol=1e-6)
    assert merged.read_bytes("model.norm") == other.tobytes()
    assert merged.shards == base.shards
    for start in range(6):  # any row blocks, the same bits
        rows = merged.read_rows("model.q.weight", start, start + 1)
        assert rows.tobytes() == expected[start : start + 1].tobytes()
    twin = pickle.loads(pickle.dumps(merged))
    assert twin.read_bytes("model.q.weight") == expected.tobytes()
    layout = compare_layouts(base, merged)
    assert merged.tensors.keys() == base.tensors.keys()
    assert (layout.missing, layout.shrunk) == ((), {})


def test_a_float64_base_is_merged_in_float64(tmp_path: Path) -> None:
    w, b, a = normal(4, 3).astype(np.float64), normal(4, 2), normal(2, 3)
    base, path = make(tmp_path, {"q.weight": w}, {P + "q.lora_A.weight": a, P + "q.lora_B.weight": b})
    exact = w + 1.5 * (b.astype(np.float64) @ a.astype(np.float64))
    np.testing.assert_allclose(values(open_adapter(path, base), "q.weight"), exact, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize(
    ("module", "config", "rank", "scale"),
    [
        ("model.layers.0.q", {}, 2, 3 / 2),
        ("model.layers.0.q", {"use_rslora": True}, 2, 3 / 2**0.5),
        ("model.layers.0.q", {"rank_pattern": {"q": 5}}, 5, 3 / 5),
        ("model.layers.0.q", {"rank_pattern": {"layers.0.q": 4}, "alpha_pattern": {"q": 7}}, 4, 7 / 4),
        ("model.layers.0.q", {"rank_pattern": {"0.q": 4}, "use_rslora": True}, 4, 3 / 2),
        ("model.layers.0.q", {"rank_pattern": {"k": 4, "ers.0.q": 5, "^model.layers.0.q": 3}}, 3, 1),
        ("model.layers.10.q", {"rank_pattern": {"0.q": 4}}, 2, 3 / 2),
        ("model.layers.10.q", {"alpha_pattern": {r"layers\.(9|10)\..*": 8}}, 2, 4),
        ("model.layers.1.q", {"rank_pattern": None, "alpha_pattern": {}}, 2, 3 / 2),
    ],
)
def test_scale_and_rank_follow_the_patterns(
    module: str, config: dict[str, Any], rank: int, scale: float, tmp_path: Path
) -> None:
    w, b, a = normal(4, 3), normal(4, rank), normal(rank, 3)
    adapter = {f"{P}{module}.lora_A.weight": a, f"{P}{module}.lora_B.weight": b}
    base, path = make(tmp_path, {f"{module}.weight": w}, adapter, **config)
    merged = open_adapter(path, base)
    assert merged.updates[f"{module}.weight"].scale == pytest.approx(scale, rel=1e-15)
    np.testing.assert_array_equal(values(merged, f"{module}.weight"), merged_by_hand(w, scale, b, a))


def test_mixed_ranks_in_one_adapter(tmp_path: Path) -> None:
    w = {f"l.{i}.q.weight": normal(4, 3) for i in range(3)}
    factors = {i: (normal(4, i + 1), normal(i + 1, 3)) for i in range(3)}
    adapter = {}
    for i, (b, a) in factors.items():
        adapter |= {f"{P}l.{i}.q.lora_A.weight": a, f"{P}l.{i}.q.lora_B.weight": b}
    base, path = make(tmp_path, w, adapter, rank_pattern={"l.0.q": 1, "l.2.q": 3})
    merged = open_adapter(path, base)
    for i, (b, a) in factors.items():
        expected = merged_by_hand(w[f"l.{i}.q.weight"], 3 / (i + 1), b, a)
        np.testing.assert_array_equal(values(merged, f"l.{i}.q.weight"), expected)


def test_transposed_layouts(tmp_path: Path) -> None:
    w, b, a = normal(3, 4), normal(4, 2), normal(2, 3)  # stored [in, out]
    base, path = make(
        tmp_path,
        {"h.0.c_attn.weight": w},
        {P + "transformer.h.0.c_attn.lora_A.weight": a, P + "transformer.h.0.c_attn.lora_B.weight": b},
        fan_in_fan_out=True,
    )
    expected = merged_by_hand(w, 1.5, a.T, b.T)
    merged = open_adapter(path, base)
    np.testing.assert_array_equal(values(merged, "h.0.c_attn.weight"), expected)
    assert merged.read_rows("h.0.c_attn.weight", 1, 3).tobytes() == expected[1:].tobytes()


def test_embeddings_add_to_the_rows_stored_with_them(tmp_path: Path) -> None:
    w, resized = normal(5, 4).astype(BF16), normal(7, 4).astype(BF16)
    a, b = normal(2, 7), normal(4, 2)
    base, path = make(
        tmp_path,
        {"model.embed_tokens.weight": w, "model.q.weight": normal(4, 4)},
        {
            P + "model.embed_tokens.lora_embedding_A": a,
            P + "model.embed_tokens.lora_embedding_B": b,
            P + "model.embed_tokens.base_layer.weight": resized,
        },
    )
    merged = open_adapter(path, base)
    np.testing.assert_array_equal(
        values(merged, "model.embed_tokens.weight"), merged_by_hand(resized, 1.5, a.T, b.T)
    )
    name = "model.embed_tokens.weight"
    assert (base.tensors[name].rows, merged.tensors[name].rows) == (5, 7)
    assert merged.shards == ()


def test_whole_tensors_replace_or_join_the_base(tmp_path: Path) -> None:
    head, bias, score = normal(5, 4), normal(4), normal(2, 4)
    base, path = make(
        tmp_path,
        {"lm_head.weight": normal(5, 4).astype(BF16), "q.bias": normal(4), "q.weight": normal(4, 4)},
        {
            P + "lm_head.modules_to_save.default.weight": head,
            P + "q.base_layer.bias": bias,
            P + "score.weight": score,
            P + "q.lora_A.weight": normal(2, 4),
            P + "q.lora_B.weight": normal(4, 2),
        },
        modules_to_save=["lm_head", "score"],
    )
    merged = open_adapter(path, base)
    np.testing.assert_array_equal(values(merged, "lm_head.weight"), head.astype(BF16))
    np.testing.assert_array_equal(values(merged, "q.bias"), bias)
    np.testing.assert_array_equal(values(merged, "score.weight"), score)
    assert list(merged.tensors)[-1] == "score.weight"
    assert merged.tensors.keys() - base.tensors.keys() == {"score.weight"}


@pytest.mark.parametrize(
    ("stored", "target"),
    [
        (P + "model.layers.0.q", "model.layers.0.q"),
        (P + "layers.0.q", "model.layers.0.q"),
        (P + "model.layers.0.q", "layers.0.q"),
        ("model.layers.0.q", "model.layers.0.q"),
        (P + "model.layers.0.q", "model.language_model.model.layers.0.q"),
    ],
)
def test_prefixes_are_mapped(stored: str, target: str, tmp_path: Path) -> None:
    adapter = {}
    base_tensors = {}
    for layer in ("0", "1"):
        adapter[stored.replace("0", layer) + ".lora_A.weight"] = normal(2, 3)
        adapter[stored.replace("0", layer) + ".lora_B.default.weight"] = normal(4, 2)
        base_tensors[target.replace("0", layer) + ".weight"] = normal(4, 3)
    base, path = make(tmp_path, base_tensors, adapter)
    assert set(open_adapter(path, base).updates) == set(base_tensors)


def test_files_beside_the_adapter_win_and_are_carried(tmp_path: Path) -> None:
    base, path = make(
        tmp_path,
        {"q.weight": normal(4, 3)},
        {P + "q.lora_A.weight": normal(2, 3), P + "q.lora_B.weight": normal(4, 2)},
        base_config={"hidden_size": 3},
    )
    (tmp_path / "base" / "tokenizer.json").write_text("base")
    (path / "tokenizer.json").write_text("tuned")
    (path / "chat_template.jinja").write_text("{{ x }}")
    base = open_checkpoint(tmp_path / "base")
    for given_path in (path, path / "adapter_model.safetensors"):
        assert is_adapter(given_path)
        merged = open_adapter(given_path, base)
        assert set(merged.carried) == {"config.json", "tokenizer.json", "chat_template.jinja"}
        assert merged.read_carried("tokenizer.json") == b"tuned"
        assert merged.read_carried("config.json") == b'{"hidden_size": 3}'
        assert merged.config == {"hidden_size": 3}
    assert not is_adapter(tmp_path / "base")


GOOD = {P + "q.lora_A.weight": normal(2, 3), P + "q.lora_B.weight": normal(4, 2)}
REFUSED: dict[str, tuple[dict[str, np.ndarray], dict[str, Any], str]] = {
    "dora": (GOOD, {"use_dora": True}, "uses DoRA"),
    "dora by its tensor": (GOOD | {P + "q.lora_magnitude_vector": normal(4)}, {}, "no plain LoRA factor"),
    "a bias of B": (GOOD | {P + "q.lora_B.bias": normal(4)}, {}, "no plain LoRA factor"),
    "trainable tokens": (
        GOOD | {P + "e.token_adapter.trainable_tokens_delta": normal(4)},
        {},
        "no plain LoRA",
    ),
    "another method": (GOOD, {"peft_type": "IA3"}, "'IA3' adapter; only LORA"),
    "no method": (GOOD, {"peft_type": None}, "only LORA"),
    "pissa": (GOOD, {"init_lora_weights": "pissa_niter_4"}, "replaces the base by a residual"),
    "replicated layers": (GOOD, {"layer_replication": [[0, 2]]}, "uses layer replication"),
    "bare parameters": (GOOD, {"target_parameters": ["w"]}, "uses LoRA on bare parameters"),
    "convolution": (
        {P + "q.lora_A.weight": normal(2, 3, 1, 1), P + "q.lora_B.weight": normal(4, 2, 1, 1)},
        {},
        "is not a matrix",
    ),
    "one factor": ({P + "q.lora_A.weight": normal(2, 3)}, {}, "only one factor of 'q'"),
    "rank against config": (GOOD, {"r": 4}, "says rank 4"),
    "rank against factors": (GOOD | {P + "q.lora_B.weight": normal(4, 3)}, {}, "says rank 2"),
    "rank not positive": (GOOD, {"r": 0}, "not a positive integer"),
    "rank not whole": (GOOD, {"r": 2.0}, "not a positive integer"),
    "alpha not a number": (GOOD, {"lora_alpha": "big"}, "not a finite number"),
    "alpha infinite": (GOOD, {"alpha_pattern": {"q": True}}, "not a finite number"),
    "endless pattern": (GOOD, {"rank_pattern": {"(a+)+$": 2}}, "repeats too much"),
    "many repeats": (GOOD, {"rank_pattern": {".*.*.*x": 2}}, "repeats too much"),
    "broken pattern": (GOOD, {"rank_pattern": {"(": 2}}, "invalid pattern"),
    "pattern no object": (GOOD, {"alpha_pattern": [1]}, "not an object"),
    "shape": (
        {P + "q.lora_A.weight": normal(2, 4), P + "q.lora_B.weight": normal(4, 2)},
        {},
        r"shape [4, 4] for 'q', but the base has [4, 3]",
    ),
    "wrong orientation": (GOOD, {"fan_in_fan_out": True}, "shape [3, 4] for 'q'"),
    "no such module": (
        {P + "z.lora_A.weight": normal(2, 3), P + "z.lora_B.weight": normal(4, 2)},
        {},
        "adapts 'z.weight', which",
    ),
    "integer factors": (
        {k: v.astype(np.int32) for k, v in GOOD.items()},
        {},
        "not floating point",
    ),
    "stored twice": (
        GOOD | {P + "h.weight": normal(1), P + "h.modules_to_save.weight": normal(1)},
        {},
        "stores both",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_be_merged_is_one_sentence(fault: str, tmp_path: Path) -> None:
    adapter, config, said = REFUSED[fault]
    base, path = make(tmp_path, {"q.weight": normal(4, 3)}, adapter, **config)
    with pytest.raises(InputError) as caught:
        open_adapter(path, base)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_are_missing_or_pickled(tmp_path: Path) -> None:
    base, path = make(tmp_path, {"q.weight": normal(4, 3)}, GOOD)
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    with pytest.raises(InputError, match="is a pickle"):
        open_adapter(path, base)
    (path / "adapter_model.bin").unlink()
    with pytest.raises(InputError, match=r"adapter_model\.safetensors does not exist"):
        open_adapter(path, base)
    (path / "adapter_config.json").unlink()
    with pytest.raises(InputError, match="is no PEFT adapter"):
        open_adapter(path, base)


def test_a_name_that_fits_two_tensors_is_refused(tmp_path: Path) -> None:
    base, path = make(tmp_path, {"a.q.weight": normal(4, 3), "b.q.weight": normal(4, 3)}, GOOD)
    with pytest.raises(InputError, match="could be any of 2 tensors"):
        open_adapter(path, base)


def test_tied_models(tmp_path: Path) -> None:
    tied = {"tie_word_embeddings": True}
    embed = {"model.embed_tokens.weight": normal(4, 3)}
    base, path = make(
        tmp_path, embed, {P + "lm_head.weight": normal(4, 3)}, tied, modules_to_save=["lm_head"]
    )
    with pytest.raises(InputError, match="apart from the embedding"):
        open_adapter(path, base)
    trained = {P + "model.embed_tokens.weight": normal(4, 3)}
    base, path = make(tmp_path, embed, trained, tied, modules_to_save=["embed_tokens"])
    (note,) = open_adapter(path, base).notes
    assert "tied to the output layer" in note
    base, path = make(
        tmp_path, embed, trained, tied, modules_to_save=["embed_tokens"], ensure_weight_tying=True
    )
    assert open_adapter(path, base).notes == ()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, BF16, ml_dtypes.float8_e4m3fn])
def test_overflow_is_refused_and_nan_is_kept(dtype: Any, tmp_path: Path) -> None:
    w = np.array([[1.0, np.nan]]).astype(dtype)
    factors = {
        P + "q.lora_A.weight": np.ones((2, 2), np.float32),
        P + "q.lora_B.weight": np.ones((1, 2), np.float32),
    }
    _, path = make(tmp_path, {"q.weight": np.ones((1, 2), np.float32)}, factors)
    weights = {"F16": np.float16, "F32": np.float32, "BF16": BF16, "F8_E4M3": ml_dtypes.float8_e4m3fn}
    name = next(key for key, kind in weights.items() if kind is dtype)
    header = json.dumps(
        {"q.weight": {"dtype": name, "shape": [1, 2], "data_offsets": [0, w.nbytes]}}
    ).encode()
    file = tmp_path / "base" / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + w.tobytes())
    merged = values(open_adapter(path, open_checkpoint(file)), "q.weight").astype(np.float32)
    assert merged[0, 0] == 4
    assert np.isnan(merged[0, 1])
    for bad in (2e19, np.nan):
        safetensors.numpy.save_file(
            {key: value * np.float32(bad) for key, value in factors.items()},
            path / "adapter_model.safetensors",
        )
        with pytest.raises(InputError, match=r"1 merged values of 'q\.weight' are not finite"):
            open_adapter(path, open_checkpoint(file)).read_rows("q.weight", 0, 1)


@given(st.floats(width=64, allow_nan=False), st.integers(-3, 3))
def test_float64_is_rounded_once(value: float, nudge: int) -> None:
    with np.errstate(over="ignore"):
        tie = float(np.float32(value).astype(BF16)) * (1 + 2**-8)  # half-way between two bfloat16 numbers
        for x in (value, tie * (1 + nudge * 2**-50)):
            if not np.isfinite(x) or abs(x) < 1e-37 or abs(x) > 1e38:
                continue
            rounded = float(to_odd_float32(np.array([x])).astype(BF16)[0])
            ulp = 2.0 ** (np.frexp(x)[1] - 8)
            down = np.floor(x / ulp)
            below, above = x / ulp - down, down + 1 - x / ulp
            even = down if down % 2 == 0 else down + 1
            expected = down if below < above else down + 1 if above < below else even
            assert rounded == expected * ulp
