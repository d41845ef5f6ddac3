"""A journal beside a partial output, so that the same command resumes where it was killed.

``OUT.journal`` holds one JSON object per line.  The first names the run: its *identity*, that is the digests
of its inputs, its settings and its version.  Each further line is one finished piece of work.  Every line
carries a check over itself and all lines before it, so a torn, edited or missing line ends what is believed;
the rest is done again.  A file of these names that does not begin so was made by somebody else: it is refused, and
left alone.  ``OUT.data.partial`` holds bytes that finished work produced; a line states how long
that file was, and what lies beyond the last believed line is cut off.

Work is journalled only after the disk has its data, so what the journal says survives a power failure too.
Waiting for the disk is dear, so finished work is journalled in groups, `GROUP_SECONDS` apart: a killed run repeats at
most that much.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from assay.checkpoints.output import FileLock, disk_errors, refuse_foreign
from assay.core.errors import AssayError, InputError

JOURNAL_VERSION = 1
GROUP_SECONDS = 1.0
"""Finished work waits this long for more before the disk is made to hold it."""

_CHECK_DIGITS = 32
_MARK = b'{"assay-journal":'


class PartialData:
    """An append-only file of results; made and truncated by :class:`Journal`.

    Attributes:
        path: where it lies.
        end: its length in bytes, which is the offset of the next append.
    """

    def __init__(self, path: Path, *, output: Path) -> None:
        self.path = path
        self._output = output
        self._mutex = threading.Lock()
        with disk_errors(output):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o666)
            self.end = os.fstat(self._descriptor).st_size

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes and return the offset of the first; thread-safe.

        After an error the file ends where it ended before.

        Raises:
            InputError: the disk refuses them.
        """
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        with self._mutex:
            begin = self.end
            try:
                with disk_errors(self._output):
                    while view:
                        count = os.pwrite(self._descriptor, view, self.end)
                        view, self.end = view[count:], self.end + count
            except InputError:
                self.truncate(begin)
                raise
        return begin

    def read(self, offset: int, count: int) -> bytes:
        """The bytes ``offset:offset + count``.

        Raises:
            InputError: the file ends before.
        """
        pieces = bytearray()
        while len(pieces) < count:
            piece = os.pread(self._descriptor, count - len(pieces), offset + len(pieces))
            if not piece:
                raise InputError(f"{self.path} ends before byte {offset + count}; delete it and start again")
            pieces += piece
        return bytes(pieces)

    def truncate(self, end: int) -> None:
        """Cut the file to ``end`` bytes."""
        with disk_errors(self._output):
            os.ftruncate(self._descriptor, end)
        self.end = end

    def sync(self) -> None:
        """Wait until the disk holds what was appended."""
        with disk_errors(self._output):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file; does nothing the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Journal:
    """What of a run is already done; opened by :meth:`open`, held by one process at a time.

    Attributes:
        path: the journal's file, ``OUT.journal``.
        data: the results stored so far, ``OUT.data.partial``.

    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> with Journal.open(out, {"seed": 7}) as journal:
    ...     begin = journal.data.append(b"bits")
    ...     journal.record("layer.0", {"begin": begin})
    >>> with Journal.open(out, {"seed": 7}) as journal:
    ...     dict(journal.done), journal.data.end
    ({'layer.0': {'begin': 0}}, 4)
    >>> with Journal.open(out, {"seed": 8}) as journal:
    ...     dict(journal.done), journal.data.end
    ({}, 0)
    """

    def __init__(
        self,
        lock: FileLock,
        output: Path,
        identity: Mapping[str, Any],
        data: PartialData,
        sync: Callable[[Sequence[str]], None] | None,
    ) -> None:
        self.path = lock.path
        self.data = data
        self._sync = sync
        self._waiting: list[dict[str, Any]] = []
        self._since = time.monotonic()
        self._lock = lock
        self._output = output
        self._mutex = threading.Lock()
        self._done: dict[str, Any] = {}
        self._check, self._size, data_end = self._believe(identity)
        data.truncate(data_end)  # before the journal, which says that this file is ours
        with disk_errors(output):
            os.ftruncate(lock.descriptor, self._size)
        if self._size == 0:
            self._write_lines([{"assay-journal": JOURNAL_VERSION, "identity": dict(identity)}])

    @classmethod
    def open(
        cls,
        out: str | os.PathLike[str],
        identity: Mapping[str, Any],
        *,
        sync: Callable[[Sequence[str]], None] | None = None,
    ) -> Self:
        """Open or begin the journal of an output.

        Args:
            out: the output that the run will write.
            identity: all that determines the output, as JSON; a journal of another identity is discarded.
            sync: makes the disk hold what the work of these keys wrote elsewhere than in `data`.

        Raises:
            InputError: another run holds the journal, it cannot be written, or it or its data is not ours.
        """
        output = Path(out)
        lock = FileLock(
            output.with_name(output.name + ".journal"), output=output, mark=_MARK, write_mark=False
        )
        lock.acquire()
        data: PartialData | None = None
        try:
            data = PartialData(output.with_name(output.name + ".data.partial"), output=output)
            if data.end and not lock.left_behind:
                raise refuse_foreign(data.path)
            return cls(lock, output, identity, data, sync)
        except BaseException:
            if data is not None:
                data.close()
            lock.release(remove=False)
            raise

    @property
    def done(self) -> Mapping[str, Any]:
        """What was recorded, by key: in this run and in those it resumes."""
        return MappingProxyType(self._done)

    def record(self, key: str, payload: Any) -> None:
        """Record a finished piece of work; thread-safe; the disk has it within `GROUP_SECONDS`, or on `close`.

        Args:
            key: its name, recorded once.
            payload: what a resumed run needs to know of it, as JSON.

        Raises:
            ValueError: the key is already recorded.
            InputError: the disk refuses it; the journal is then as it was.
        """
        with self._mutex:
            if key in self._done:
                raise ValueError(f"{key!r} is already in the journal")
            self._waiting.append({"data_end": self.data.end, "key": key, "payload": payload})
            self._done[key] = payload
            if time.monotonic() - self._since >= GROUP_SECONDS:
                self._flush()

    @contextmanager
    def flushed(self) -> Iterator[None]:
        """Journal what waits at the end of the block, while what `sync` needs is still open; on errors too."""
        try:
            yield
        finally:
            with self._mutex:
                self._flush()

    def _flush(self) -> None:
        """Make the disk hold the data of what waits, then journal it."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            try:
                self.data.sync()
                if self._sync is not None:
                    self._sync([entry["key"] for entry in waiting])
                self._write_lines(waiting)
            except BaseException:
                for entry in waiting:
                    del self._done[entry["key"]]
                raise
        self._since = time.monotonic()

    def _write_lines(self, contents: Sequence[Mapping[str, Any]]) -> None:
        check, lines = self._check, b""
        for content in contents:
            check = _check_of(check, content)
            lines += (_canonical({**content, "check": check}) + "\n").encode()
        descriptor = self._lock.descriptor
        try:
            with disk_errors(self._output):
                written = 0
                while written < len(lines):
                    written += os.pwrite(descriptor, lines[written:], self._size + written)
                os.fdatasync(descriptor)
        except InputError:
            os.ftruncate(descriptor, self._size)
            raise
        self._check, self._size = check, self._size + len(lines)

    def _believe(self, identity: Mapping[str, Any]) -> tuple[str, int, int]:
        """Read the lines that hold; return the last check, their length, and the length of their data."""
        with disk_errors(self._output):
            content = self.path.read_bytes()
        check, size, data_end = "", 0, 0
        for line in content.splitlines(keepends=True):
            entry = _parse_line(line, check)
            if entry is None:
                break
            if size == 0:
                if entry.get("assay-journal") != JOURNAL_VERSION or (
                    _canonical(entry.get("identity")) != _canonical(dict(identity))
                ):
                    break
            elif not data_end <= entry.get("data_end", -1) <= self.data.end:
                break  # its data did not survive
            else:
                self._done[entry["key"]] = entry["payload"]
                data_end = entry["data_end"]
            check, size = entry["check"], size + len(line)
        return check, size, data_end

    def discard(self) -> None:
        """Delete journal and data and give up the lock: call it once the output is in place."""
        self.data.path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        self._release()

    def close(self) -> None:
        """Give up the lock and keep the files, for a run that will resume; does nothing the second time."""
        try:
            with self._mutex:
                self._flush()
        finally:
            self._release()

    def _release(self) -> None:
        self._waiting = []
        self.data.close()
        self._lock.release(remove=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, AssayError):
            self.discard()  # the run would fail again, or the disk is full and needs the room
        else:
            self.close()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check_of(previous: str, content: Mapping[str, Any]) -> str:
    return hashlib.sha256((previous + _canonical(content)).encode()).hexdigest()[:_CHECK_DIGITS]


def _parse_line(line: bytes, previous: str) -> dict[str, Any] | None:
    """The entry on a line, or None when it is torn, edited or out of its place."""
    if not line.endswith(b"\n"):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    content = {field: value for field, value in entry.items() if field != "check"}
    return entry if entry.get("check") == _check_of(previous, content) else None
