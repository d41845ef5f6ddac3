"""No small change of a valid certificate is accepted, and no input makes the checker crash."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay_verify import certificate, subjects
from assay_verify.__main__ import main
from assay_verify.canonical import canonical
from assay_verify.outcome import Rejected, Unsupported

GOLDEN = sorted((Path(__file__).parents[2] / "attacks" / "golden").glob("*.json"))
ORIGINALS = [path.read_bytes() for path in GOLDEN]


def accepted(data: bytes) -> bool:
    try:
        certificate.check(data.removesuffix(b"\n"))
    except (Rejected, Unsupported):
        return False
    return True


@pytest.mark.parametrize("original", ORIGINALS, ids=[p.stem for p in GOLDEN])
def test_no_single_byte_change_is_accepted(original: bytes) -> None:
    assert accepted(original)
    rng = random.Random(0)
    for position in range(len(original)):
        byte = original[position]
        for other in {byte ^ 1, byte ^ 0x20, rng.randrange(256)} - {byte}:
            assert not accepted(original[:position] + bytes([other]) + original[position + 1 :])


@pytest.mark.parametrize("original", ORIGINALS, ids=[p.stem for p in GOLDEN])
def test_no_cut_or_insertion_is_accepted(original: bytes) -> None:
    for position in range(len(original) - 1):
        assert not accepted(original[:position])
        assert not accepted(original[:position] + b"0" + original[position:])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


NUMERALS = ["0", "-1", "1/3", "inf", "-inf", "nan", "0x1.0p+1023", "0x0.1p-1022", "0x0.0p+0", ["1", "2"]]
JUNK = st.one_of(
    st.sampled_from(
        [None, True, 0, -1, 2**53 - 1, "", [], {}, [[]], "\0", "\U0010ffff", "x" * 200, {"name": "x"}]
    ),
    st.sampled_from(NUMERALS),
    st.text(max_size=8),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.recursive(st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=6),
)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_resealed_junk_never_crashes(data: st.DataObject) -> None:
    """A value replaced or removed anywhere, the id made right: a clean answer, whatever it is."""
    document = json.loads(data.draw(st.sampled_from(ORIGINALS)))
    path = data.draw(st.sampled_from([p for p in places(document) if p]))
    owner = document
    for key in path[:-1]:
        owner = owner[key]
    if data.draw(st.booleans()):
        owner[path[-1]] = data.draw(JUNK)
    else:
        del owner[path[-1]]
    try:
        body = {k: v for k, v in document.items() if k != "id"}
        document = {**body, "id": hashlib.sha256(canonical(body)).hexdigest()}
        certificate.check(canonical(document))
    except (Rejected, Unsupported):
        pass


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(max_size=200),
    insert=st.booleans(),
    at=st.integers(0, 600),
    which=st.sampled_from(ORIGINALS),
)
def test_bytes_never_crash_the_command(
    data: bytes, insert: bool, at: int, which: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_bytes(which[:at] + data + which[at:] if insert else data)
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([str(path)]) in (0, 1, 3)  # 2 would be misuse, or a defect of the checker


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_resealed_plans_never_crash(
    data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value of the plan or of the certificate inside replaced or removed, everything else made right."""
    monkeypatch.syspath_prepend(str(GOLDEN[0].parents[1]))
    from forging import Delta

    delta = Delta((GOLDEN[0].parent / "delta.safetensors").read_bytes())
    document = data.draw(st.sampled_from([delta.plan, delta.certificate]))
    path = data.draw(st.sampled_from([p for p in places(document) if p]))
    owner = document
    for key in path[:-1]:
        owner = owner[key]
    if data.draw(st.booleans()):
        owner[path[-1]] = data.draw(JUNK)
    else:
        del owner[path[-1]]
    file = tmp_path / "delta.safetensors"
    try:
        file.write_bytes(delta.build())
    except UnicodeEncodeError:
        return
    sides = [f"{side}={GOLDEN[0].parent / side}.safetensors" for side in ("base", "finetuned")]
    with contextlib.suppress(Rejected, Unsupported):
        subjects.check(file, sides)
