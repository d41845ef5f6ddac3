"""Outputs are whole or absent, whatever happens; inputs and foreign files are never destroyed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from assay.checkpoints import output
from assay.checkpoints.header import build_header
from assay.checkpoints.io import MARKER, open_checkpoint
from assay.checkpoints.output import (
    AtomicFile,
    AtomicFolder,
    CheckpointWriter,
    FileLayout,
    FileLock,
    atomic_write_bytes,
    build_index,
    check_output,
    is_assay_output,
    partial_path,
    recover,
    require_space,
)
from assay.core.errors import InputError

W = np.arange(6, dtype=np.float32).reshape(3, 2)


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "src"},
        check=False,
        timeout=60,
    )


def leftovers(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if ".partial" in name or ".lock" in name or "-old" in name}


# --- files ---------------------------------------------------------------------------------------------


def test_a_file_appears_whole_and_nothing_is_left(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    atomic_write_bytes(out, b"one")
    with AtomicFile(out) as file:
        file.write(b"tw")
        file.write_at(2, np.frombuffer(b"o!", np.uint16))
        assert out.read_bytes() == b"one"
    assert out.read_bytes() == b"two!"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_block_leaves_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    atomic_write_bytes(out, b"old")
    with suppress(KeyboardInterrupt), AtomicFile(out) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert out.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"precious")
    (tmp_path / "a").symlink_to("blob")
    atomic_write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "blob").read_bytes() == b"precious"
    assert (tmp_path / "a").read_bytes() == b"new"
    (tmp_path / "b.partial").symlink_to("blob")
    with pytest.raises(InputError, match="is in the way"):
        atomic_write_bytes(tmp_path / "b", b"new")
    assert (tmp_path / "blob").read_bytes() == b"precious"


@pytest.mark.parametrize("kind", [AtomicFile, AtomicFolder])
@pytest.mark.parametrize("name", ["o.partial", "o.lock"])
@pytest.mark.parametrize("content", [b"somebody's own work", b""])
def test_a_strangers_file_in_the_way_is_left_alone(
    kind: type[AtomicFile | AtomicFolder], name: str, content: bytes, tmp_path: Path
) -> None:
    if name == "o.lock" and not content:
        pytest.skip("an empty lock is what a kill between two system calls leaves")
    (tmp_path / name).write_bytes(content)
    sentence = rf"{re.escape(name)} is in the way and was not written by assay; move it elsewhere"
    for keep in (False, True):
        with pytest.raises(InputError, match=sentence), kind(tmp_path / "o", keep=keep):
            pass
    assert (tmp_path / name).read_bytes() == content
    assert os.listdir(tmp_path) == [name]


def test_a_partial_kept_for_a_rerun_is_known_by_its_lock(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), AtomicFile(tmp_path / "o", keep=True) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert leftovers(tmp_path) == {"o.partial", "o.lock"}
    with AtomicFile(tmp_path / "o", keep=True) as file:
        file.write_at(4, b" and half")
    assert (tmp_path / "o").read_bytes() == b"half and half"
    assert leftovers(tmp_path) == set()


def test_two_runs_at_once_are_kept_apart(tmp_path: Path) -> None:
    for kind in (AtomicFile, AtomicFolder):
        out = tmp_path / kind.__name__
        with kind(out):
            with pytest.raises(InputError, match=r"another run is writing .*\.lock is locked"), kind(out):
                pass
            done = run_python(
                "import sys; from assay.checkpoints import output;\n"
                "with getattr(output, sys.argv[2])(sys.argv[1]): pass",
                out,
                kind.__name__,
            )
            assert "InputError: another run is writing" in done.stderr
        with kind(out):
            pass
    assert leftovers(tmp_path) == set()


def test_a_lock_file_removed_before_it_was_locked_is_not_mistaken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "o.lock"
    flock, calls = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not calls:  # the holder before us ends between our open and our lock
            path.unlink()
        calls.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(output.fcntl, "flock", late)
    lock = FileLock(path, output=tmp_path / "o")
    lock.acquire()
    assert len(calls) == 2
    assert os.path.samestat(os.fstat(lock.descriptor), path.stat())
    lock.release(remove=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", ["writing", "before rename", "after rename"])
def test_killed_file_is_old_or_new(moment: str, tmp_path: Path) -> None:
    out = tmp_path / "a.bin"
    atomic_write_bytes(out, b"old" * 1000)
    done = run_python(
        """
        import os, signal, sys
        from assay.checkpoints.output import AtomicFile
        moment, replace = sys.argv[2], os.replace
        def die(): os.kill(os.getpid(), signal.SIGKILL)
        def patched(*names):
            if moment == "before rename": die()
            replace(*names)
            die()
        os.replace = patched
        with AtomicFile(sys.argv[1]) as file:
            file.write(b"new" * 500)
            if moment == "writing": die()
            file.write(b"new" * 500)
        """,
        out,
        moment,
    )
    assert done.returncode == -signal.SIGKILL
    assert out.read_bytes() == (b"new" if moment == "after rename" else b"old") * 1000
    atomic_write_bytes(out, b"again")  # what the kill left is no obstacle
    assert os.listdir(tmp_path) == ["a.bin"]


# --- a full disk ---------------------------------------------------------------------------------------


def test_size_limit_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "a.safetensors"
    done = run_python(
        """
        import resource, sys
        from assay.checkpoints.header import build_header
        from assay.checkpoints.output import AtomicFile, CheckpointWriter, FileLayout
        from assay.core.errors import InputError
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        layout = [FileLayout("a.safetensors", build_header([("w", "U8", (1_000_000,))]))]
        def file():
            with AtomicFile(sys.argv[1]) as file:
                for _ in range(100): file.write(bytes(10_000))
        def writer():
            with CheckpointWriter(sys.argv[1], layout) as writer:
                for _ in range(100): writer.append("w", bytes(10_000))
        def folder():
            with CheckpointWriter(sys.argv[1], layout, folder=True) as writer:
                for _ in range(100): writer.append("w", bytes(10_000))
        for job in (file, writer, folder):
            try: job()
            except InputError as error: print(error)
        """,
        out,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert all("a size limit was reached; free space" in line and "a.safetensors" in line for line in lines)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
def test_no_space_at_any_call_leaves_the_old_file(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.bin"
    atomic_write_bytes(out, b"old")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output.os, call, full)
    with pytest.raises(InputError, match=r"a\.bin cannot be written: the disk is full"):
        atomic_write_bytes(out, b"new")
    assert out.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_space_is_required_beforehand(tmp_path: Path) -> None:
    require_space(tmp_path / "out", 1)
    with pytest.raises(InputError, match=r"needs 1,000,000,000,000,000 bytes but only [\d,]+ are free"):
        require_space(tmp_path / "out", 10**15)


# --- what may be written where -------------------------------------------------------------------------


def _model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    safetensors.numpy.save_file({"w": W}, folder / "model.safetensors")
    return folder


def test_inputs_are_never_the_output(tmp_path: Path) -> None:
    model = _model(tmp_path / "m")
    weights = model / "model.safetensors"
    (tmp_path / "alias").symlink_to("m")
    os.link(weights, tmp_path / "hard.safetensors")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "model.safetensors").symlink_to(weights)
    cases: list[tuple[Path, Path, bool, str]] = [
        (weights, weights, False, "is the input"),
        (model, model, True, "is the input"),
        (tmp_path / "alias", model, True, "is the input"),
        (tmp_path / "m" / ".." / "m", model, True, "is the input"),
        (tmp_path / "hard.safetensors", weights, False, "is the input"),
        (model / "new.safetensors", model, False, "lies inside the input"),
        (tmp_path / "alias" / "new.safetensors", model, False, "lies inside the input"),
        (weights, cache, False, "is the file behind"),
        (tmp_path / "hard.safetensors", model, False, "is the file behind"),
        (tmp_path, model, True, "contains the input"),
    ]
    for out, source, folder, said in cases:
        with pytest.raises(InputError, match=said):
            check_output(out, inputs=[source], folder=folder, overwrite=True)
    assert check_output(tmp_path / "new", inputs=[model, weights], folder=True) == tmp_path / "new"


def test_foreign_files_are_kept_unless_told_otherwise(tmp_path: Path) -> None:
    foreign = _model(tmp_path / "m")
    notes = tmp_path / "notes.json"
    notes.write_text('{"format": "mine"}')
    for out, folder in ((foreign, True), (foreign / "model.safetensors", False), (notes, False)):
        with pytest.raises(InputError, match="was not written by assay"):
            check_output(out, folder=folder)
        check_output(out, folder=folder, overwrite=True)
    for out, folder in ((foreign, False), (notes, True)):
        with pytest.raises(InputError, match="is to be a"):
            check_output(out, folder=folder, overwrite=True)
    with pytest.raises(InputError, match="does not exist; create it"):
        check_output(tmp_path / "no" / "out")


def test_our_own_outputs_may_be_replaced(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"w": W}, tmp_path / "d.safetensors", metadata={"format": "assay-delta"})
    safetensors.numpy.save_file({"w": W}, tmp_path / "topics.delta", metadata={"format": "assay-delta"})
    (tmp_path / "c.json").write_text('{"format": "assay-certificate"}')
    with AtomicFolder(tmp_path / "model"):
        pass
    for name in ("d.safetensors", "topics.delta", "c.json", "model"):
        assert is_assay_output(tmp_path / name)
        check_output(tmp_path / name, folder=name == "model")


# --- folders -------------------------------------------------------------------------------------------


def _write_folder(out: Path, text: str) -> None:
    with AtomicFolder(out) as folder:
        (folder.partial / "a").write_text(text)
        (folder.partial / "sub").mkdir()
        (folder.partial / "sub" / "b").write_text(text)


def _contents(out: Path) -> str:
    first, second = (out / "a").read_text(), (out / "sub" / "b").read_text()
    assert first == second
    return first


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_is_exchanged_whole(
    can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr(output, "_exchange", lambda first, second: False)
    out = tmp_path / "m"
    _write_folder(out, "one")
    (out / "stale").write_text("x")
    _write_folder(out, "two")
    assert _contents(out) == "two"
    assert sorted(os.listdir(out)) == ["a", MARKER, "sub"]
    with suppress(ZeroDivisionError), AtomicFolder(out) as folder:
        (folder.partial / "a").write_text("three")
        raise ZeroDivisionError
    assert _contents(out) == "two"
    assert os.listdir(tmp_path) == ["m"]


def _kill_at(step: int, way: str, job: Callable[[], None]) -> bool:
    """Run a job in a child that kills itself at the given system call; whether it got that far."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == signal.SIGKILL
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(module: Any, name: str) -> None:
        call = getattr(module, name)

        def watched(*arguments: Any, **more: Any) -> Any:
            count()
            result = call(*arguments, **more)
            count()
            return result

        setattr(module, name, watched)

    for name in ("rename", "fsync", "unlink", "rmdir", "mkdir"):
        watch(os, name)
    watch(Path, "write_bytes")
    watch(Path, "write_text")
    if way == "exchange":
        watch(output, "_exchange")
    else:
        output._exchange = lambda first, second: False
    try:
        job()
    finally:
        os._exit(0)


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_a_folder_killed_at_every_step_is_old_or_new(way: str, tmp_path: Path) -> None:
    seen = []
    for step in range(1, 200):
        out = tmp_path / f"m{step}"
        _write_folder(out, "one")
        if not _kill_at(step, way, lambda out=out: _write_folder(out, "two")):  # type: ignore[misc]
            break
        if way == "renames":
            recover(out)
        seen.append(_contents(out))
        _write_folder(out, "three")  # the next run cleans up and succeeds
        assert _contents(out) == "three"
        assert {name for name in os.listdir(tmp_path) if name.startswith(f"m{step}.")} == set()
    assert 20 < len(seen) < 198
    assert seen[0] == "one"
    assert seen[-1] == "two"
    assert seen == sorted(seen)  # "one" until a single moment, "two" from then on


def test_a_foreign_partial_is_not_deleted(tmp_path: Path) -> None:
    partial = partial_path(tmp_path / "m")
    partial.mkdir()
    (partial / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="is in the way and was not written by assay"):
        _write_folder(tmp_path / "m", "x")
    assert (partial / "thesis.tex").read_text() == "years of work"


# --- checkpoints ---------------------------------------------------------------------------------------


def _source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    tensors = {f"t{i}": rng.standard_normal((16, i + 1)).astype(np.float32) for i in range(6)}
    path = tmp_path / "source.safetensors"
    safetensors.numpy.save_file(
        {**tensors, "none": np.zeros((0, 3), np.float32)}, path, metadata={"format": "pt"}
    )
    return path


def _copy(source: Path, out: Path, **options: Any) -> None:
    checkpoint = open_checkpoint(source)
    layout = [FileLayout(shard.file, shard.header) for shard in checkpoint.shards]
    with CheckpointWriter(out, layout, **options) as writer:
        jobs = [
            (name, start)
            for name, info in checkpoint.tensors.items()
            for start in range(info.rows - 1, -1, -1)
        ]
        np.random.default_rng(1).shuffle(jobs)

        def work(part: list[tuple[str, int]]) -> None:
            for name, start in part:
                info = checkpoint.tensors[name]
                rows = checkpoint.read_rows(name, start, start + 1)
                writer.write_at(name, start * info.columns * info.itemsize, rows)

        threads = [threading.Thread(target=work, args=(jobs[k::3],)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_a_checkpoint_is_reproduced_byte_for_byte_by_threads_in_any_order(tmp_path: Path) -> None:
    source = _source(tmp_path)
    out = tmp_path / "copy.safetensors"
    _copy(source, out)
    assert out.read_bytes() == source.read_bytes()
    assert leftovers(tmp_path) == set()


def test_a_sharded_folder_is_written_and_read_back(tmp_path: Path) -> None:
    layouts = [
        FileLayout(
            "model-00001-of-00002.safetensors", build_header([("a", "F32", (3, 2)), ("s", "I64", ())])
        ),
        FileLayout(
            "model-00002-of-00002.safetensors", build_header([("b", "F32", (3, 2))], {"format": "pt"})
        ),
    ]
    index = ("model.safetensors.index.json", build_index(layouts))
    out = tmp_path / "m"
    with CheckpointWriter(out, layouts, folder=True, index=index) as writer:
        for row in W:
            writer.append("a", row)
        writer.append("s", np.array(5))
        writer.write_at("b", 0, W * 2)
        writer.write_file("config.json", b"{}")
        writer.write_file("1_Pooling/config.json", b"{}")
        size = writer.bytes_out
    checkpoint = open_checkpoint(out)
    np.testing.assert_array_equal(checkpoint.read_rows("a", 0, 3).view(np.float32), W)
    np.testing.assert_array_equal(checkpoint.read_rows("b", 0, 3).view(np.float32), W * 2)
    assert checkpoint.read_bytes("s") == np.array(5).tobytes()
    assert set(checkpoint.carried) == {"config.json", "1_Pooling/config.json"}
    assert size == sum(shard.size for shard in checkpoint.shards)
    assert json.loads(index[1])["metadata"]["total_size"] == 56
    for shard in checkpoint.shards:
        safetensors.numpy.load_file(shard.path)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a\\x", ""])
def test_carried_names_stay_inside(name: str, tmp_path: Path) -> None:
    layout = [FileLayout("model.safetensors", build_header([]))]
    with (
        pytest.raises(InputError, match="leaves the output folder"),
        CheckpointWriter(tmp_path / "m", layout, folder=True) as writer,
    ):
        writer.write_file(name, b"x")
    assert os.listdir(tmp_path) == []


def test_carried_files_replace_nothing_of_the_model(tmp_path: Path) -> None:
    layout = [FileLayout("model.safetensors", build_header([]))]
    for name in ("model.safetensors", "./model.safetensors", MARKER):
        with (
            pytest.raises(InputError, match="would replace a file"),
            CheckpointWriter(tmp_path / "m", layout, folder=True) as writer,
        ):
            writer.write_file(name, b"x")
    for file in ("../a.safetensors", "", "a/b.safetensors"):
        with pytest.raises(InputError, match="cannot name a file"):
            CheckpointWriter(tmp_path / "m", [FileLayout(file, build_header([]))], folder=True)
    twice = [FileLayout(file, build_header([("w", "U8", ())])) for file in ("a", "b")]
    with pytest.raises(InputError, match="two files of the output would hold tensor 'w'"):
        CheckpointWriter(tmp_path / "m", twice, folder=True)


@pytest.mark.parametrize(
    "fill",
    [
        lambda writer: writer.write_at("w", 0, bytes(5)),
        lambda writer: writer.write_at("w", 1, bytes(5)),
        lambda writer: (writer.write_at("w", 0, bytes(4)), writer.write_at("w", 2, bytes(2))),
        lambda writer: writer.write_at("w", 3, bytes(4)),
        lambda writer: writer.write_at("w", -1, bytes(4)),
    ],
)
def test_an_incomplete_checkpoint_does_not_appear(
    fill: Callable[[CheckpointWriter], Any], tmp_path: Path
) -> None:
    layout = [FileLayout("w.safetensors", build_header([("w", "U8", (6,))]))]
    with (
        pytest.raises(ValueError, match=r"was not written exactly once|do not lie inside"),
        CheckpointWriter(tmp_path / "w.safetensors", layout) as writer,
    ):
        fill(writer)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("folder", [False, True])
def test_a_kept_partial_is_resumed_only_where_it_is_the_same(folder: bool, tmp_path: Path) -> None:
    out = tmp_path / ("m" if folder else "m.safetensors")
    layout = [FileLayout("m.safetensors", build_header([("a", "U8", (4,)), ("b", "U8", (4,))]))]
    options = {"folder": folder, "keep": True}
    with suppress(KeyboardInterrupt), CheckpointWriter(out, layout, **options) as writer:
        assert not writer.mark_written("a")
        writer.write_at("a", 0, b"aaaa")
        writer.sync(["a"])
        raise KeyboardInterrupt
    assert not out.exists()
    with CheckpointWriter(out, layout, **options) as writer:
        assert writer.mark_written("a")
        writer.write_at("b", 0, b"bbbb")
    checkpoint = open_checkpoint(out)
    assert checkpoint.read_bytes("a") + checkpoint.read_bytes("b") == b"aaaabbbb"
    # The finished output is not mistaken for a partial one, nor is a partial of another layout.
    with suppress(KeyboardInterrupt), CheckpointWriter(out, layout, **options) as writer:
        assert not writer.mark_written("a")
        raise KeyboardInterrupt
    other = [FileLayout("m.safetensors", build_header([("a", "U8", (4,)), ("b", "I8", (4,))]))]
    with suppress(KeyboardInterrupt), CheckpointWriter(out, other, **options) as writer:
        assert not writer.mark_written("a")
        raise KeyboardInterrupt


def test_an_old_output_left_under_the_partial_name_is_not_resumed(tmp_path: Path) -> None:
    layout = [FileLayout("m.safetensors", build_header([("a", "U8", (4,))]))]
    for name in ("m", "m.partial"):  # as after a kill between the exchange and the deletion
        with CheckpointWriter(tmp_path / name, layout, folder=True) as writer:
            writer.write_at("a", 0, name[:4].ljust(4).encode())
    with CheckpointWriter(tmp_path / "m", layout, folder=True, keep=True) as writer:
        assert not writer.mark_written("a")
        writer.write_at("a", 0, b"new!")
    assert open_checkpoint(tmp_path / "m").read_bytes("a") == b"new!"
