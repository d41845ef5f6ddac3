"""Floating-point types of the checker: against the types that the producer computes with, and in whole packs."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.checkpoints.header import DTYPES, FLOAT_DTYPES, build_header, rounded
from assay.checkpoints.pack import pack
from assay_verify import fast, floats, subjects, weights
from assay_verify.outcome import Unsupported

FLOATS = sorted(FLOAT_DTYPES)
CORNERS = [
    0.0, -0.0, np.inf, -np.inf, 5e-324, 1e-40, 2.0**-149, 2.0**-150, 2.0**-133, 2.0**-134, 2.0**-25, 2.0**-24 * 1.5,
    448.0, 464.0, 465.0, 240.0, 248.0, 57344.0, 61440.0, 65504.0, 65519.99, 65520.0, 3.3953138e38, 3.4028235677973366e38,
    1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-24, 1 + 2.0**-24 + 2.0**-50,
]  # fmt: skip


def values_of(dtype: str) -> np.ndarray:
    """Every number of a narrow type; of a wide one corners, and numbers on and next to the midpoints of the others."""
    kind = DTYPES[dtype]
    if kind.itemsize <= 2:
        values = np.arange(256**kind.itemsize, dtype=f"u{kind.itemsize}").view(kind)
    else:
        rng = np.random.default_rng(0)
        size = 2.0 ** rng.integers(-30, 20, 6000) * (1 + rng.integers(0, 64, 6000) / 64)
        exact = np.concatenate([size, -size, CORNERS, np.negative(CORNERS)])
        with np.errstate(over="ignore"):
            middle = exact.astype(kind)
            values = np.concatenate(
                [middle, np.nextafter(middle, kind.type(np.inf)), np.nextafter(middle, kind.type(0))]
            )
    with np.errstate(invalid="ignore"):
        return values[~np.isnan(values.astype(np.float64))]


@pytest.mark.parametrize("new", FLOATS)
@pytest.mark.parametrize("old", FLOATS)
def test_rounding_is_the_producers(old: str, new: str) -> None:
    values = values_of(old)
    expected = rounded(values, new).tobytes()
    assert floats.recode(values.tobytes(), old, new) == expected
    assert fast.recode(values.tobytes(), old, new) == expected


@settings(max_examples=300, deadline=None)
@given(x=st.floats(allow_nan=False), new=st.sampled_from(FLOATS))
def test_rounding_any_double_is_the_producers(x: float, new: str) -> None:
    data = struct.pack("<d", x)
    expected = rounded(np.array([x]), new).tobytes()
    assert floats.recode(data, "F64", new) == fast.recode(data, "F64", new) == expected


@pytest.mark.parametrize("module", [floats, fast])
def test_what_has_no_rule_is_unsupported(module) -> None:
    with pytest.raises(Unsupported, match="a NaN of type 'F32'"):
        module.recode(struct.pack("<f", np.nan), "F32", "BF16")
    for old, new in (("I32", "F32"), ("F32", "F4"), ("BOOL", "BF16")):
        with pytest.raises(Unsupported, match="no rule that rounds"):
            module.recode(bytes(4), old, new)


def save(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    names = {kind: name for name, kind in DTYPES.items()}
    header = build_header([(n, names[t.dtype], t.shape) for n, t in tensors.items()])
    path.write_bytes(
        len(header).to_bytes(8, "little") + header + b"".join(t.tobytes() for t in tensors.values())
    )


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("new", FLOATS)
@pytest.mark.parametrize("old", FLOATS)
def test_packs_of_every_pair_of_types_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, quick: bool
) -> None:
    if not quick:
        monkeypatch.setattr(weights, "engine", weights.blocks)
    rng = np.random.default_rng(0)
    base = rng.standard_normal((6, 20)).astype(np.float32)
    tuned = base + (0.2 * rng.standard_normal((6, 20))).astype(np.float32)
    same = rounded(base[:2], old)
    save(tmp_path / "base", {"w": rounded(base, old), "norm": rounded(base[0], old), "same": same})
    save(
        tmp_path / "tuned",
        {"w": rounded(tuned, new), "norm": rounded(tuned[0], new), "same": rounded(same, new)},
    )
    pack(tmp_path / "tuned", tmp_path / "base", tmp_path / "delta", drop=0.5, bits=4, tails="ks", workers=1)
    report = subjects.check(tmp_path / "delta", [f"base={tmp_path}/base", f"finetuned={tmp_path}/tuned"])
    assert any("realised errors, decoded" in line for line in report.checked)
    assert not any("the facts" in line for line in report.unchecked)
