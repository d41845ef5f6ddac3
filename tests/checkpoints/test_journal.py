"""A killed run resumes from its journal and ends with the same bytes; no unchecked line is believed."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.checkpoints import journal as journal_module
from assay.checkpoints.header import build_header
from assay.checkpoints.journal import Journal
from assay.checkpoints.output import CheckpointWriter, FileLayout
from assay.core.errors import InputError

IDENTITY = {"base": "ab" * 32, "settings": {"drop_prob": "9/10", "seed": 7}, "version": "0.1.0"}

MARK = b'{"assay-journal":'


def _fill(out: Path, keys: str, identity: dict[str, Any] = IDENTITY) -> None:
    with Journal.open(out, identity) as journal:
        for key in keys:
            begin = journal.data.append(key.encode() * 10)
            journal.record(key, {"begin": begin, "count": 10})


def test_resumes_with_what_was_recorded(tmp_path: Path) -> None:
    out = tmp_path / "o"
    _fill(out, "ab")
    with Journal.open(out, dict(reversed(IDENTITY.items()))) as journal:
        assert list(journal.done) == ["a", "b"]
        assert journal.data.read(journal.done["b"]["begin"], 10) == b"b" * 10
        with pytest.raises(ValueError, match="already"):
            journal.record("a", None)
        journal.data.append(b"never recorded")
    with Journal.open(out, IDENTITY) as journal:
        assert journal.data.end == 20
        with pytest.raises(InputError, match="ends before byte 21"):
            journal.data.read(11, 10)
        journal.discard()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("change", [{"version": "0.1.1"}, {"settings": {"seed": 8}}, {"more": 1}])
def test_another_identity_starts_over(change: dict[str, Any], tmp_path: Path) -> None:
    _fill(tmp_path / "o", "ab")
    with Journal.open(tmp_path / "o", {**IDENTITY, **change}) as journal:
        assert not journal.done
        assert journal.data.end == 0
        journal.record("c", None)
    with Journal.open(tmp_path / "o", {**IDENTITY, **change}) as journal:
        assert list(journal.done) == ["c"]


def test_a_strangers_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "o.journal"
    path.write_text("Dear diary,\n")
    with pytest.raises(InputError, match=r"o\.journal is in the way and was not written by assay; move it"):
        Journal.open(tmp_path / "o", IDENTITY)
    assert path.read_text() == "Dear diary,\n"
    assert not (tmp_path / "o.data.partial").exists()


def test_strange_data_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "o.data.partial"
    path.write_text("somebody's own work")
    for beginning in (None, b"", MARK[:9]):
        if beginning is not None:
            (tmp_path / "o.journal").write_bytes(beginning)
        with pytest.raises(InputError, match=r"o\.data\.partial is in the way and was not written by assay"):
            Journal.open(tmp_path / "o", IDENTITY)
        assert path.read_text() == "somebody's own work"
    path.unlink()
    _fill(tmp_path / "o", "a")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 700), position=st.integers(0, 699), value=st.integers(0, 255), edit=st.booleans())
def test_torn_and_edited_journals_keep_a_true_prefix(
    tmp_path: Path, cut: int, position: int, value: int, edit: bool
) -> None:
    out = tmp_path / "o"
    for name in os.listdir(tmp_path):
        (tmp_path / name).unlink()
    _fill(out, "abc")
    path = tmp_path / "o.journal"
    content = bytearray(path.read_bytes())
    untouched = len(content)
    if edit:
        untouched = min(position, len(content) - 1)
        changed = content[untouched] != value
        content[untouched] = value
    else:
        untouched = min(cut, len(content))
        changed = untouched < len(content)
        del content[cut:]
    complete = content[:untouched].count(b"\n") if changed else 4
    path.write_bytes(content)
    if not content.startswith(MARK):  # no longer recognisable, and so left alone
        with pytest.raises(InputError, match="is in the way and was not written by assay"):
            Journal.open(out, IDENTITY)
        assert path.read_bytes() == content
        assert (tmp_path / "o.data.partial").stat().st_size == 30
        return
    with Journal.open(out, IDENTITY) as journal:
        assert list(journal.done) == list("abc")[: max(complete - 1, 0)]
        assert journal.data.end == 10 * len(journal.done)
        assert path.read_bytes().count(b"\n") == len(journal.done) + 1  # nothing disbelieved is left behind
        for key, payload in journal.done.items():
            assert journal.data.read(payload["begin"], 10) == key.encode() * 10
        journal.record("d", None)
    with Journal.open(out, IDENTITY) as journal:
        assert list(journal.done)[-1] == "d"


def test_lines_that_were_moved_or_removed_are_not_believed(tmp_path: Path) -> None:
    _fill(tmp_path / "o", "abc")
    path = tmp_path / "o.journal"
    head, a, b, c = path.read_bytes().splitlines(keepends=True)
    for lines, believed in (((head, b, c), ""), ((head, a, c), "a"), ((head, a, a, b), "a")):
        path.write_bytes(b"".join(lines))
        with Journal.open(tmp_path / "o", IDENTITY) as journal:
            assert "".join(journal.done) == believed
        for name in os.listdir(tmp_path):
            (tmp_path / name).unlink()
        _fill(tmp_path / "o", "abc")


def test_records_whose_data_did_not_survive_are_done_again(tmp_path: Path) -> None:
    _fill(tmp_path / "o", "abc")
    os.truncate(tmp_path / "o.data.partial", 25)
    with Journal.open(tmp_path / "o", IDENTITY) as journal:
        assert list(journal.done) == ["a", "b"]
        assert journal.data.end == 20


def test_two_runs_at_once_are_kept_apart(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "o", IDENTITY) as journal:
        journal.record("a", None)
        with pytest.raises(InputError, match=r"another run is writing .*o \(o\.journal is locked\); wait"):
            Journal.open(tmp_path / "o", {})
        assert list(journal.done) == ["a"]
    _fill(tmp_path / "o", "b")


def test_threads_record_together(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "o", IDENTITY) as journal:

        def work(worker: int) -> None:
            for i in range(10):
                key = f"{worker}.{i}"
                journal.record(key, {"begin": journal.data.append(key.encode())})

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with Journal.open(tmp_path / "o", IDENTITY) as journal:
        assert len(journal.done) == 40
        for key, payload in journal.done.items():
            assert journal.data.read(payload["begin"], len(key)) == key.encode()


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "GROUP_SECONDS", 0)
    out = tmp_path / "o"
    real = os.pwrite
    with Journal.open(out, IDENTITY) as journal:
        journal.record("a", {"begin": journal.data.append(b"good")})

        def full(descriptor: int, data: bytes, offset: int) -> int:
            if len(data) > 3:
                return real(descriptor, data[:3], offset)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(journal_module.os, "pwrite", full)
        with pytest.raises(InputError, match="o cannot be written: the disk is full"):
            journal.data.append(b"too much")
        assert journal.data.end == 4
        with pytest.raises(InputError, match="the disk is full"):
            journal.record("b", None)
        monkeypatch.undo()
        assert list(journal.done) == ["a"]
        journal.record("b", None)
    with Journal.open(out, IDENTITY) as journal:
        assert list(journal.done) == ["a", "b"]


def test_work_is_journalled_in_groups_after_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "o"
    synced: list[list[str]] = []
    clock = 0.0
    monkeypatch.setattr(journal_module.time, "monotonic", lambda: clock)
    with Journal.open(out, IDENTITY, sync=lambda keys: synced.append(list(keys))) as journal:
        empty = journal.path.stat().st_size
        journal.record("a", 1)
        clock = 0.5
        journal.record("b", 2)
        assert dict(journal.done) == {"a": 1, "b": 2}
        assert (synced, journal.path.stat().st_size) == ([], empty)
        clock = 1.0
        journal.record("c", 3)
        assert synced == [["a", "b", "c"]]
        with journal.flushed():
            journal.record("d", 4)
        assert synced[1:] == [["d"]]
    assert len(synced) == 2
    with Journal.open(out, IDENTITY) as journal:
        assert dict(journal.done) == {"a": 1, "b": 2, "c": 3, "d": 4}


def _run(out: Path, die_at: int) -> list[str] | None:
    """Write six tensors in a child killed in its ``die_at``-th write; what it wrote, None when killed."""
    names = [f"t{i}" for i in range(6)]
    layout = [FileLayout("m.safetensors", build_header([(name, "U8", (1000,)) for name in names]))]
    receive, send = os.pipe()
    child = os.fork()
    if child:
        os.close(send)
        with os.fdopen(receive) as pipe:
            said = pipe.read()
        killed = os.waitpid(child, 0)[1] == signal.SIGKILL
        return None if killed else said.split()
    try:
        calls, pwrite = 0, os.pwrite

        def dying(descriptor: int, data: bytes, offset: int) -> int:
            nonlocal calls
            calls += 1
            if calls == die_at:
                pwrite(descriptor, data[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return pwrite(descriptor, data, offset)

        os.pwrite = dying
        journal_module.GROUP_SECONDS = 0
        writer = CheckpointWriter(out, layout, keep=True)
        with Journal.open(out, {"seed": 1}, sync=writer.sync) as journal:
            with writer:
                for i, name in enumerate(names):
                    if name in journal.done and writer.mark_written(name):
                        continue
                    writer.append(name, bytes([i]) * 1000)
                    if name not in journal.done:
                        journal.record(name, None)
                    os.write(send, f"{name} ".encode())
            journal.discard()
    finally:
        os._exit(0)


def test_a_run_killed_in_any_write_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    assert _run(whole, 0) == ["t0", "t1", "t2", "t3", "t4", "t5"]
    for die_at in range(
        1, 16
    ):  # the journal's first line, the lock's mark, the header, then two writes a tensor
        out = tmp_path / f"killed{die_at}.safetensors"
        assert _run(out, die_at) is None
        assert not out.exists()
        redone = _run(out, 0)
        assert redone is not None
        assert len(redone) == 6 - max(0, (die_at - 4) // 2)
        assert out.read_bytes() == whole.read_bytes()
    assert {name.split(".")[-1] for name in os.listdir(tmp_path)} == {"safetensors"}
