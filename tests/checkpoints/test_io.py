"""Checkpoints as streams: what is read is exact, what is hostile is refused with one sentence."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.checkpoints import io
from assay.checkpoints.header import DTYPES, TensorInfo, build_header, parse_header
from assay.checkpoints.io import (
    compare_layouts,
    fingerprint,
    open_checkpoint,
    refuse_quantised,
    row_blocks,
    tensor_sha256,
)
from assay.core.errors import InputError


def file_bytes(header: bytes | dict[str, Any], data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: str, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def save(path: Path, **tensors: np.ndarray) -> Path:
    safetensors.numpy.save_file({name.replace("__", "."): t for name, t in tensors.items()}, path)
    return path


def sharded(folder: Path, shards: dict[str, dict[str, np.ndarray]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for file, tensors in shards.items():
        safetensors.numpy.save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def assert_one_sentence(error: InputError, *parts: str) -> None:
    text = str(error)
    assert "\n" not in text
    assert len(text) < 1200
    for part in parts:
        assert part in text, text


# --- reading -------------------------------------------------------------------------------------------


def test_every_dtype_reads_the_bits_the_stock_library_reads(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    header = build_header([(dtype, dtype, (3, 5)) for dtype in DTYPES])
    size = sum(15 * dtype.itemsize for dtype in DTYPES.values())
    content = file_bytes(header, rng.integers(0, 2, size, dtype=np.uint8).tobytes())
    path = tmp_path / "all.safetensors"
    path.write_bytes(content)
    stock = dict(safetensors.deserialize(content))
    with open_checkpoint(path) as checkpoint:
        assert set(stock) == set(checkpoint.tensors) == set(DTYPES)
        for name, info in checkpoint.tensors.items():
            expected = bytes(stock[name]["data"])
            row = 5 * info.itemsize
            rows = checkpoint.read_rows(name, 0, 3)
            assert (rows.shape, rows.dtype.kind, info.nbytes) == ((3, 5), "u", len(expected))
            assert rows.tobytes() == checkpoint.read_bytes(name) == expected
            assert checkpoint.read_rows(name, 1, 2).tobytes() == expected[row : 2 * row]


def test_agrees_with_the_stock_library_on_a_real_layout(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tensors = {
        "w": rng.standard_normal((7, 3, 2)).astype(np.float32),
        "b": rng.standard_normal(5).astype(ml_dtypes.bfloat16),
        "step": np.array(3, dtype=np.int64),
        "empty": np.zeros((0, 4), dtype=np.float16),
        "mask": np.array([True, False]),
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    with open_checkpoint(path) as ours, safetensors.safe_open(path, framework="np") as stock:
        assert set(ours.tensors) == set(stock.keys())
        assert ours.shards[0].metadata == stock.metadata()
        offsets = [info.begin for info in ours.tensors.values()]
        assert offsets == sorted(offsets)
        for name, info in ours.tensors.items():
            theirs = tensors[name]
            assert info.shape == theirs.shape
            read = ours.read_rows(name, 0, info.rows).view(DTYPES[info.dtype]).reshape(info.shape)
            np.testing.assert_array_equal(read, theirs)
        assert ours.tensors["step"].rows == ours.tensors["step"].columns == 1
        assert ours.tensors["b"].columns == 1
        header = ours.shards[0].header
    assert file_bytes(header) == path.read_bytes()[: 8 + len(header)]


def test_built_header_is_the_stock_one(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", a=np.zeros((2, 3), np.float32), b=np.ones(4, np.float32))
    shard = open_checkpoint(path).shards[0]
    assert build_header([("a", "F32", (2, 3)), ("b", "F32", (4,))]) == shard.header


def test_rows_outside_and_unknown_names_are_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path / "a.safetensors", a=np.zeros((2, 3), np.float32)))
    for start, stop in ((-1, 1), (0, 3), (2, 1)):
        with pytest.raises(InputError, match="do not lie inside tensor 'a'"):
            checkpoint.read_rows("a", start, stop)
    with pytest.raises(InputError, match="holds no tensor 'z'"):
        checkpoint.read_rows("z", 0, 1)


def test_digest_and_fingerprint_do_not_depend_on_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((), np.int32)
    one = open_checkpoint(save(tmp_path / "one.safetensors", a=a, b=b))
    folder = sharded(tmp_path / "two", {"y.safetensors": {"a": a}, "x.safetensors": {"b": b}})
    two = open_checkpoint(folder)
    monkeypatch.setattr(io, "DIGEST_BLOCK_BYTES", 16)
    marks = []
    for checkpoint in (one, two):
        digests = {n: tensor_sha256(i, checkpoint) for n, i in checkpoint.tensors.items()}
        assert digests["a"] == hashlib.sha256(a.tobytes()).hexdigest()
        marks.append(fingerprint(checkpoint.tensors, digests))
    lines = f"a\0F32\x004,3\0{digests['a']}\nb\0I32\0\0{digests['b']}\n"
    assert marks == [hashlib.sha256(lines.encode()).hexdigest()] * 2


@given(rows=st.integers(0, 40), columns=st.integers(0, 9), block=st.integers(1, 200))
def test_row_blocks_tile_the_tensor(rows: int, columns: int, block: int) -> None:
    info = TensorInfo("w", "F32", (rows, columns), 0, 0, rows * columns * 4)
    blocks = list(row_blocks(info, block))
    covered = [row for start, stop in blocks for row in range(start, stop)]
    assert covered == (list(range(rows)) if columns else [])
    assert all((stop - start) * columns * 4 <= max(block, columns * 4) for start, stop in blocks)


def test_memory_is_the_block_that_was_asked_for(tmp_path: Path) -> None:
    path = save(tmp_path / "big.safetensors", w=np.zeros((4096, 2048), np.float32))  # 32 MiB
    checkpoint = open_checkpoint(path)
    tracemalloc.start()
    tensor_sha256(checkpoint.tensors["w"], checkpoint)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * io.DIGEST_BLOCK_BYTES


def test_threads_and_pickles_read_the_same_and_few_files_stay_open(tmp_path: Path) -> None:
    count = 40
    shards = {f"s{i:02}.safetensors": {f"t{i}": np.full((8, 4), i, np.int32)} for i in range(count)}
    checkpoint = open_checkpoint(sharded(tmp_path / "m", shards))
    faults: list[str] = []

    def work(seed: int) -> None:
        for i in np.random.default_rng(seed).permutation(count):
            if not (checkpoint.read_rows(f"t{i}", 2, 5).view(np.int32) == i).all():
                faults.append(f"t{i}")

    before = len(os.listdir("/proc/self/fd"))
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(os.listdir("/proc/self/fd")) - before <= io.MAX_OPEN_FILES
    twin = pickle.loads(pickle.dumps(checkpoint))
    assert twin.tensors == checkpoint.tensors
    assert twin.read_bytes("t7") == checkpoint.read_bytes("t7")
    checkpoint.close()
    twin.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", a=np.zeros((2, 3), np.float32))
    checkpoint = open_checkpoint(path)
    save(path, a=np.zeros((3, 3), np.float32))
    with pytest.raises(InputError, match="changed after it was opened"):
        checkpoint.read_rows("a", 0, 1)
    checkpoint = open_checkpoint(path)
    checkpoint.read_rows("a", 0, 1)
    os.truncate(path, path.stat().st_size - 20)
    with pytest.raises(InputError, match="lost bytes of tensor 'a'"):
        checkpoint.read_rows("a", 0, 3)


# --- hostile files -------------------------------------------------------------------------------------

GOOD = entry("F32", [2], 0, 8)
DATA8 = b"12345678"
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "truncated"),
    "seven bytes": (b"\x01" * 7, "truncated"),
    "length only": (struct.pack("<Q", 10), "truncated inside its header: 10 bytes"),
    "header cut": (file_bytes({"a": GOOD}, DATA8)[:30], "truncated inside its header"),
    "huge length": (struct.pack("<Q", 2**63) + b"{}", "claims a header of"),
    "length over limit": (struct.pack("<Q", 100_000_001) + b"{}", "claims a header of 100000001"),
    "length over file": (struct.pack("<Q", 99_999_999) + b"{}", "99999997 bytes are missing"),
    "zero length": (struct.pack("<Q", 0), "does not begin with"),
    "data cut": (file_bytes({"a": GOOD}, DATA8[:5]), "truncated: 3 bytes of data are missing"),
    "trailing bytes": (file_bytes({"a": GOOD}, DATA8 + b"xx"), "2 bytes that belong to no tensor"),
    "not json": (file_bytes(b'{"a": nope}'), "not valid JSON"),
    "not utf-8": (file_bytes(b'{"\xff": 1}'), "not valid JSON"),
    "json list": (file_bytes(b"[1, 2]"), "does not begin with"),
    "leading space": (file_bytes(b' {"a":1}'), "does not begin with"),
    "nan": (file_bytes(b'{"a": NaN}'), "holds NaN"),
    "duplicate name": (
        file_bytes(b'{"a":' + json.dumps(GOOD).encode() + b',"a":' + json.dumps(GOOD).encode() + b"}", DATA8),
        "'a' appears twice",
    ),
    "duplicate field": (file_bytes(b'{"a":{"dtype":"F32","dtype":"F32"}}'), "'dtype' appears twice"),
    "overlap": (file_bytes({"a": GOOD, "b": entry("F32", [2], 4, 12)}, DATA8 * 2), "'b' overlaps tensor 'a'"),
    "same place": (file_bytes({"a": GOOD, "b": GOOD}, DATA8), "'b' overlaps tensor 'a'"),
    "hole": (file_bytes({"a": GOOD, "b": entry("F32", [2], 12, 20)}, DATA8 * 3), "'b' leaves a hole after"),
    "hole at start": (
        file_bytes({"a": entry("F32", [2], 8, 16)}, DATA8 * 2),
        "leaves a hole after the header",
    ),
    "negative offset": (file_bytes({"a": entry("F32", [2], -8, 0)}, DATA8), "not two non-negative"),
    "float offset": (file_bytes({"a": entry("F32", [2], 0, 8.0)}, DATA8), "not two non-negative"),
    "boolean offset": (file_bytes({"a": entry("U8", [1], False, True)}, b"1"), "not two non-negative"),
    "string offset": (file_bytes({"a": entry("F32", [2], "0", "8")}, DATA8), "not two non-negative"),
    "three offsets": (
        file_bytes({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, DATA8),
        "not two non-negative",
    ),
    "backwards offsets": (file_bytes({"a": entry("F32", [2], 8, 0)}, DATA8), "span -8"),
    "offset beyond file": (file_bytes({"a": entry("U8", [2**40], 0, 2**40)}, DATA8), "are missing"),
    "unknown dtype": (file_bytes({"a": entry("F99", [2], 0, 8)}, DATA8), "'F99' of tensor 'a' is unknown"),
    "dtype not a string": (file_bytes({"a": entry(["F32"], [2], 0, 8)}, DATA8), "is unknown"),  # type: ignore[arg-type]
    "packed dtype": (file_bytes({"a": entry("F4", [16], 0, 8)}, DATA8), "dequantise"),
    "extent mismatch": (file_bytes({"a": entry("F32", [3], 0, 8)}, DATA8), "takes 12 bytes"),
    "extent too long": (file_bytes({"a": entry("F32", [1], 0, 8)}, DATA8), "takes 4 bytes"),
    "negative size": (file_bytes({"a": entry("F32", [-2], 0, 8)}, DATA8), "shape that is not a list"),
    "float size": (file_bytes({"a": entry("F32", [2.0], 0, 8)}, DATA8), "shape that is not a list"),
    "shape not a list": (file_bytes({"a": entry("F32", {"0": 2}, 0, 8)}, DATA8), "shape that is not a list"),
    "huge size": (file_bytes({"a": entry("F32", [10**30], 0, 8)}, DATA8), "shape that is not a list"),
    "overflowing shape": (file_bytes({"a": entry("F32", [2**32, 2**32], 0, 0)}), "more than 2**48"),
    "hidden huge size": (file_bytes({"a": entry("F32", [0, 2**62], 0, 0)}), "more than 2**48"),
    "endless digits": (file_bytes(b'{"a":' + b"9" * 5000 + b"}"), "not valid JSON"),
    "rank": (file_bytes({"a": entry("U8", [1] * 65, 0, 1)}, b"1"), "at most 64"),
    "missing field": (file_bytes({"a": {"dtype": "F32", "shape": [2]}}, DATA8), "lacks dtype"),
    "entry not an object": (file_bytes({"a": [1]}), "lacks dtype"),
    "metadata not strings": (file_bytes({"__metadata__": {"a": 1}, "a": GOOD}, DATA8), "__metadata__"),
    "metadata a list": (file_bytes({"__metadata__": [], "a": GOOD}, DATA8), "__metadata__"),
    "nested": (file_bytes(b'{"a":' + b"[" * 90_000 + b"]" * 90_000 + b"}"), "mostly brackets"),
    "nested and padded": (
        file_bytes(b'{"a":' + b"[        " * 9000 + b"        ]" * 9000 + b"}"),
        "nested too deeply",
    ),
    "empty name": (file_bytes({"": GOOD}, DATA8), "has 0 characters"),
    "long name": (file_bytes({"a" * 4097: GOOD}, DATA8), "4097 characters"),
    "nul in name": (file_bytes({"a\0b": GOOD}, DATA8), "control characters"),
    "newline in name": (file_bytes({"a\nb": GOOD}, DATA8), "control characters"),
    "lone surrogate": (
        file_bytes(b'{"\\ud800":' + json.dumps(GOOD).encode() + b"}", DATA8),
        "control characters",
    ),
    "path in name": (file_bytes({"../../etc/passwd": GOOD}, DATA8), "shaped like a file path"),
    "absolute name": (file_bytes({"/etc/passwd": GOOD}, DATA8), "shaped like a file path"),
    "windows path": (file_bytes({"a\\..\\b": GOOD}, DATA8), "shaped like a file path"),
    "no tensor": (file_bytes({}), "holds no tensor"),
    "zip": (b"PK\x03\x04" + b"\0" * 60, "pickle under another name"),
    "pickle": (pickle.dumps({"w": [1.0] * 20}), "pickle under another name"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
    "web page": (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
    "gguf": (b"GGUF\x03\0\0\0" + b"\0" * 60, "GGUF format"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 60, "HDF5 format"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_file_is_one_sentence_naming_it(fault: str, tmp_path: Path) -> None:
    content, said = HOSTILE[fault]
    path = tmp_path / "evil.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    assert_one_sentence(caught.value, said, "evil.safetensors")


def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path) -> None:
    raw = json.dumps({"a": GOOD}).encode().ljust(0x0280)  # its length begins with the bytes 80 02
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_bytes(raw, DATA8))
    assert open_checkpoint(path).read_bytes("a") == DATA8


@pytest.mark.parametrize("name", ["pytorch_model.bin", "a.pt", "a.pth", "a.ckpt", "a.gguf", "a.h5", "a.onnx"])
def test_other_formats_are_refused_alone_and_in_a_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02anything")
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(InputError, match="save_pretrained") as caught:
            open_checkpoint(path)
        assert_one_sentence(caught.value, name)


def test_pipes_devices_and_missing_paths_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(InputError, match="not a regular file"):
        open_checkpoint(tmp_path / "pipe.safetensors")
    with pytest.raises(InputError, match="not a regular file"):
        open_checkpoint("/dev/zero")
    with pytest.raises(InputError, match="does not exist"):
        open_checkpoint(tmp_path / "absent")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(InputError, match="symbolic link to nothing"):
        open_checkpoint(tmp_path / "dangling")


BASE_FILE = file_bytes(
    {"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 2], 0, 16), "b": entry("BF16", [4], 16, 24)},
    bytes(range(24)),
)


@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(BASE_FILE) - 1), st.integers(0, 255)), min_size=1, max_size=6
    ),
    cut=st.integers(0, len(BASE_FILE)),
)
def test_mutated_files_are_read_or_refused(tmp_path: Path, edits: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(BASE_FILE)
    for position, value in edits:
        content[position] = value
    content = content[:cut] if cut % 3 == 0 else content
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    try:
        checkpoint = open_checkpoint(path)
    except InputError as error:
        assert_one_sentence(error, "m.safetensors")
        return
    # What we accept, the stock library accepts and reads alike.
    with safetensors.safe_open(path, framework="np") as stock:
        assert set(stock.keys()) == set(checkpoint.tensors)
    for name, info in checkpoint.tensors.items():
        assert checkpoint.read_bytes(name) == bytes(content[info.begin : info.end])
    checkpoint.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*DTYPES, "F4", "X"]) | JSON,
        "shape": st.lists(st.integers(-2, 2**64), max_size=4) | JSON,
        "data_offsets": st.lists(st.integers(-2, 2**64), max_size=3) | JSON,
    },
)


@settings(max_examples=200, deadline=2000)
@given(
    document=st.dictionaries(st.text(max_size=8) | st.just("__metadata__"), FIELDS | JSON, max_size=4) | JSON
)
def test_any_json_is_parsed_or_refused(document: Any) -> None:
    raw = json.dumps(document).encode()
    tracemalloc.start()
    try:
        parse_header(raw, file="f.safetensors")
    except InputError as error:
        assert_one_sentence(error, "f.safetensors")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 5_000_000


# --- folders -------------------------------------------------------------------------------------------

W = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_a_model_folder_carries_its_small_files(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", {"b.safetensors": {"y": W}, "a.safetensors": {"x": W + 1}})
    (folder / "config.json").write_text('{"hidden_size": 2, "text_config": {"tie_word_embeddings": true}}')
    (folder / "chat_template.jinja").write_text("{{ x }}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "training_args.bin").write_bytes(b"\x80\x02")
    (folder / "optimizer.pt").write_bytes(b"\x80\x02")
    (folder / ".gitattributes").write_text("x")
    save(folder / "consolidated.safetensors", z=W)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "checkpoint-5").mkdir()
    save(folder / "checkpoint-5" / "model.safetensors", z=W)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.is_folder
    assert checkpoint.tied
    assert [shard.file for shard in checkpoint.shards] == ["a.safetensors", "b.safetensors"]
    assert list(checkpoint.tensors) == ["x", "y"]
    assert set(checkpoint.carried) == {
        "1_Pooling/config.json",
        "chat_template.jinja",
        "config.json",
        "tokenizer.json",
        "training_args.bin",
    }
    assert set(checkpoint.ignored) == {
        ".gitattributes",
        "consolidated.safetensors",
        "optimizer.pt",
        "checkpoint-5",
    }
    assert checkpoint.read_carried("chat_template.jinja") == b"{{ x }}"
    with pytest.raises(InputError, match="carries no file"):
        checkpoint.read_carried("../secret")
    np.testing.assert_array_equal(checkpoint.read_rows("y", 1, 3).view(np.float32), W[1:])
    by_index = open_checkpoint(folder / "model.safetensors.index.json")
    assert by_index.tensors == checkpoint.tensors


def test_the_cache_of_symbolic_links_is_followed(tmp_path: Path) -> None:
    real = sharded(tmp_path / "blobs", {"a.safetensors": {"x": W}})
    (real / "config.json").write_text("{}")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in os.listdir(real):
        (snapshot / file).symlink_to(Path("..") / "blobs" / file)
    checkpoint = open_checkpoint(snapshot)
    assert checkpoint.read_bytes("x") == W.tobytes()
    assert set(checkpoint.carried) == {"config.json"}


def _with_index(folder: Path, weight_map: Any) -> Path:
    sharded(folder, {"a.safetensors": {"x": W}, "b.safetensors": {"y": W}})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        (
            {"x": "a.safetensors", "y": "gone.safetensors"},
            "names the shard 'gone.safetensors', which is not there",
        ),
        ({"x": "b.safetensors", "y": "b.safetensors"}, "'x' is in b.safetensors, which does not hold it"),
        ({"x": "b.safetensors", "y": "a.safetensors"}, "'x' is in b.safetensors, which does not hold it"),
        ({"x": "a.safetensors"}, None),
        ({"x": "a.safetensors", "y": "a.safetensors"}, "'y' is in a.safetensors, which does not hold it"),
        ({"x": "../a.safetensors"}, "not the plain name"),
        ({"x": "/tmp/a.safetensors"}, "not the plain name"),
        ({"x": "a.bin"}, "not the plain name"),
        ({"x": 7}, "not the plain name"),
        ({}, "has no weight_map"),
        ([], "has no weight_map"),
    ],
)
def test_index_faults(weight_map: Any, said: str | None, tmp_path: Path) -> None:
    folder = _with_index(tmp_path / "m", weight_map)
    if said is None:  # an unlisted shard is another model's business, and is reported
        assert open_checkpoint(folder).ignored == {"b.safetensors": "weights outside the chosen index"}
        return
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    assert_one_sentence(caught.value, said)


def test_tensors_the_index_does_not_list_or_that_are_held_twice_are_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", {"a.safetensors": {"x": W, "extra": W}})
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "a.safetensors"}}')
    with pytest.raises(InputError, match="holds tensor 'extra', which model"):
        open_checkpoint(folder)
    folder = sharded(tmp_path / "n", {"a.safetensors": {"x": W}, "b.safetensors": {"x": W, "y": W}})
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="both hold tensor 'x'"):
        open_checkpoint(folder)


def test_ambiguous_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no safetensors file"):
        open_checkpoint(tmp_path)
    save(tmp_path / "model-00001-of-00002.safetensors", x=W)
    save(tmp_path / "model-00002-of-00002.safetensors", y=W)
    with pytest.raises(InputError, match=r"no index; add the missing \*\.safetensors\.index\.json"):
        open_checkpoint(tmp_path)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save(adapter / "adapter_model.safetensors", x=W)
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="is a PEFT adapter"):
        open_checkpoint(adapter)


def test_a_broken_config_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", x=W)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json.*not valid JSON"):
        open_checkpoint(tmp_path)


# --- quantised bases and layouts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("l.weight", "l.weight_scale"),
        ("l.weight", "l.weight_scale_inv"),
        ("l.weight", "l.weight.absmax"),
        ("l.weight", "l.SCB"),
        ("l.qweight", "l.scales"),
        ("l.weight_packed", "l.other"),
        ("l.weight", "l.weight.quant_state.bitsandbytes__nf4"),
        ("e.down_proj_blocks", "e.down_proj_scales"),
    ],
)
def test_quantised_companions_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "q.safetensors"
    safetensors.numpy.save_file(dict.fromkeys(names, W), path)
    with pytest.raises(InputError, match=r"is quantised.*dequantise"):
        refuse_quantised(open_checkpoint(path))


def test_quantised_config_is_refused_and_plain_scales_are_not(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"logit_scale": W, "layer_scale": W, "v.weight": W}, path)
    refuse_quantised(open_checkpoint(path))
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "bitsandbytes"}}')
    with pytest.raises(InputError, match="'bitsandbytes'"):
        refuse_quantised(open_checkpoint(tmp_path))


def test_layouts_are_compared_from_headers(tmp_path: Path) -> None:
    base = save(tmp_path / "b.safetensors", emb=W, w=W, cast=W, head=W)
    ft = save(
        tmp_path / "f.safetensors",
        emb=np.zeros((5, 2), np.float32),
        w=W,
        cast=W.astype(ml_dtypes.bfloat16),
        score=W,
    )
    layout = compare_layouts(open_checkpoint(base), open_checkpoint(ft))
    assert layout.missing == ("head",)
    assert layout.shrunk == {}
    assert layout.hint is None
    assert compare_layouts(open_checkpoint(ft), open_checkpoint(base)).shrunk == {"emb": (5, 3)}


def test_layout_conflicts_name_both_sides(tmp_path: Path) -> None:
    for side, rows in (("base", 4), ("ft", 3)):
        (tmp_path / side).mkdir()
        save(tmp_path / side / "model.safetensors", up=np.zeros((2, rows), np.float32))
        config = {"intermediate_size": rows, "hidden_size": 2, "vocab_size": 9}
        (tmp_path / side / "config.json").write_text(json.dumps(config))
    base, ft = open_checkpoint(tmp_path / "base"), open_checkpoint(tmp_path / "ft")
    with pytest.raises(InputError) as caught:
        compare_layouts(base, ft)
    assert_one_sentence(
        caught.value, "'up'", "[2, 4]", "[2, 3]", str(base.path), str(ft.path), "_size 4 and 3"
    )
    flat = open_checkpoint(save(tmp_path / "s.safetensors", up=np.zeros(2, np.float32)))
    with pytest.raises(InputError, match="has shape"):
        compare_layouts(base, flat)
    ints = open_checkpoint(save(tmp_path / "i.safetensors", up=np.zeros((2, 4), np.int32)))
    with pytest.raises(InputError, match="only floating-point types may differ"):
        compare_layouts(base, ints)
    other = open_checkpoint(save(tmp_path / "o.safetensors", else_=W))
    with pytest.raises(InputError, match="share no tensor name"):
        compare_layouts(base, other)


def test_expert_layouts_that_differ_are_pointed_out(tmp_path: Path) -> None:
    one = save(tmp_path / "a.safetensors", norm=W, m__experts__0__up=W, m__experts__1__up=W)
    fused = save(tmp_path / "b.safetensors", norm=W, m__experts__up=np.stack([W, W]))
    hint = compare_layouts(open_checkpoint(one), open_checkpoint(fused)).hint
    assert hint is not None
    assert "one matrix per expert" in hint
    assert "fused" in hint
