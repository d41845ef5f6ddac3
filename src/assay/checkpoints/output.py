"""Outputs that are whole or absent: written beside their place, flushed, then renamed into it.

A file is written as ``OUT.partial`` and renamed.  A folder is written as ``OUT.partial/`` and exchanged with
the old one in a single step where the system can (``renameat2`` with ``RENAME_EXCHANGE``); elsewhere by two
renames, and :func:`recover` mends what a kill between the two leaves behind.  A kill at any moment therefore
leaves the old output or the new one, never half of one.

While it is written, ``OUT.lock`` keeps a second run away; its content says that it is ours, and so that an
``OUT.partial`` beside it is.  A file of these names that somebody else made is refused, never touched.  A
symbolic link at ``OUT`` is replaced, never followed.  Every folder written here contains the file :data:`~assay.checkpoints.io.MARKER`, which tells
assay's outputs from folders that must not be replaced.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self, TypeAlias

import numpy as np

from assay.checkpoints.header import LENGTH_BYTES, TensorInfo, parse_header, strict_json
from assay.checkpoints.io import MARKER, is_plain_file_name, read_shard
from assay.core.errors import AssayError, InputError

Data: TypeAlias = bytes | bytearray | memoryview | np.ndarray

_FINISHED = b'{"format":"assay-model","version":1}\n'
_UNFINISHED = b'{"format":"assay-model","unfinished":true,"version":1}\n'
_LOCK_MARK = b"assay-lock\n"
_MAX_SNIFFED_JSON_BYTES = 64 * 2**20
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


def partial_path(out: Path) -> Path:
    """Where an output lies until it is whole.

    >>> partial_path(Path("a/model.safetensors")).name
    'model.safetensors.partial'
    """
    return out.with_name(out.name + ".partial")


def lock_path(out: Path) -> Path:
    """The file that is locked while an output is written."""
    return out.with_name(out.name + ".lock")


def _old_path(out: Path) -> Path:
    return out.with_name(out.name + ".assay-old")


# --- before anything is written ------------------------------------------------------------------------


def check_output(
    out: str | os.PathLike[str],
    *,
    inputs: Iterable[str | os.PathLike[str]] = (),
    folder: bool = False,
    overwrite: bool = False,
) -> Path:
    """Refuse an output that would destroy an input or something that assay did not write.

    Args:
        out: where the output is to be.
        inputs: files and folders the run reads; links are resolved, and hard links are noticed.
        folder: whether the output is a folder.
        overwrite: allow replacing what assay did not write (an input is refused all the same).

    Returns:
        ``out`` as a path.

    Raises:
        InputError: which of these it is.
    """
    place = Path(out)
    if not place.parent.is_dir():
        raise InputError(
            f"{place} cannot be written: the folder {place.parent} does not exist; create it first"
        )
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise InputError(
            f"{place} cannot be written: the folder {place.parent} is read-only; choose another place"
        )
    real = Path(os.path.realpath(place))
    for given in map(Path, inputs):
        source = Path(os.path.realpath(given))
        if real == source or (place.exists() and source.exists() and place.samefile(source)):
            raise InputError(f"the output {place} is the input {given}; choose another output")
        if source.is_dir():
            if real.is_relative_to(source):
                raise InputError(f"the output {place} lies inside the input {given}; choose another place")
            for entry in source.iterdir():
                if real == Path(os.path.realpath(entry)) or _same_file(place, entry):
                    raise InputError(f"the output {place} is the file behind {entry}; choose another output")
        if source.is_relative_to(real):
            raise InputError(f"the output {place} contains the input {given}; choose another output")
    if not os.path.lexists(place):
        return place
    if place.is_dir() != folder:
        found, needed = ("folder", "file") if place.is_dir() else ("file", "folder")
        raise InputError(
            f"the output {place} is to be a {needed}, but a {found} is there; choose another name"
        )
    if not overwrite and not is_assay_output(place):
        raise InputError(
            f"{place} exists and was not written by assay; choose another output, or pass --overwrite"
        )
    return place


def _same_file(place: Path, entry: Path) -> bool:
    return place.exists() and entry.exists() and place.samefile(entry)


def is_assay_output(path: Path) -> bool:
    """Whether a file or folder says that assay wrote it: a marker, or a ``format`` beginning ``assay-``.

    An empty folder counts, since nothing is lost with it.
    """
    if path.is_dir():
        return (path / MARKER).is_file() or not any(path.iterdir())
    if not path.is_file():
        return False
    return any(said.startswith("assay-") for said in _formats(path))


def _formats(path: Path) -> Iterator[str]:
    """What a file says its format is: in a safetensors header, whatever the file's name, or as a JSON document."""
    with suppress(InputError):  # unreadable as one of ours, hence not one of ours
        shard, _ = read_shard(path, path.name, 0)
        yield shard.metadata.get("format", "")
    with suppress(InputError, OSError):
        if path.stat().st_size <= _MAX_SNIFFED_JSON_BYTES:
            document = strict_json(path.read_bytes(), file=str(path))
            if isinstance(document, dict):
                yield str(document.get("format", ""))


def require_space(path: str | os.PathLike[str], needed: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Args:
        path: the output, or any path on the same disk whose folder exists.
        needed: bytes that will be written.

    Raises:
        InputError: fewer than ``needed`` bytes are free; both figures are given.
    """
    free = shutil.disk_usage(Path(path).absolute().parent).free
    if free < needed:
        raise InputError(
            f"{path} needs {needed:,} bytes but only {free:,} are free there; free some or choose another"
        )


# --- errors, locks, flushing ---------------------------------------------------------------------------


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the system says about writing ``path`` into one sentence.

    Raises:
        InputError: in place of any OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            reason, way_out = (
                "the disk is full or a size limit was reached",
                "free space or choose another disk",
            )
        else:
            reason, way_out = error.strerror or str(error), "check the path and its permissions"
        raise InputError(f"{path} cannot be written: {reason}; {way_out}") from error


def refuse_foreign(path: Path) -> InputError:
    """What to raise for a file that is in the way and was not written by assay."""
    return InputError(f"{path} is in the way and was not written by assay; move it elsewhere")


class FileLock:
    """An exclusive lock on a file, for one process at a time; freed by the system when the process dies.

    Args:
        path: the file to lock; made if absent.
        output: what messages say is being written.
        mark: how the file begins, so that it can be told to be ours.
        write_mark: write that beginning; else whoever holds the lock does.

    Attributes:
        descriptor: of the open file; -1 when the lock is not held.
        left_behind: whether the file was there before, with its mark: an earlier run ended without tidying up.
    """

    def __init__(
        self, path: Path, *, output: Path, mark: bytes = _LOCK_MARK, write_mark: bool = True
    ) -> None:
        self.path = path
        self.descriptor = -1
        self.left_behind = False
        self._output = output
        self._mark = mark
        self._write_mark = write_mark

    def acquire(self) -> None:
        """Take the lock or refuse at once.

        Raises:
            InputError: another run holds it, the file system has no locks, or the file is not ours.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            with disk_errors(self.path):
                descriptor = os.open(self.path, flags, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise InputError(
                    f"another run is writing {self._output} ({self.path.name} is locked); wait for it or "
                    "choose another output"
                ) from None
            except OSError as error:
                os.close(descriptor)
                raise InputError(
                    f"{self.path} cannot be locked ({error.strerror}); choose an output on a local disk"
                ) from error
            # The holder before us may have removed the file between our open and our lock.
            if self._is_at_path(descriptor):
                try:
                    self._recognise(descriptor)
                except BaseException:
                    os.close(descriptor)
                    raise
                self.descriptor = descriptor
                return
            os.close(descriptor)

    def _recognise(self, descriptor: int) -> None:
        """Look for the mark, or for the beginning of one that was torn, or for an empty file; write it if asked."""
        with disk_errors(self.path):
            head = os.pread(descriptor, len(self._mark), 0)
        self.left_behind = head == self._mark
        if not self._mark.startswith(head):
            raise refuse_foreign(self.path)
        if self._write_mark and not self.left_behind:
            try:
                with disk_errors(self._output):
                    _write_all(descriptor, self._mark, 0)
                    os.fsync(descriptor)
            except InputError:
                self.path.unlink()
                raise

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path, follow_symlinks=False))
        except FileNotFoundError:
            return False

    def release(self, *, remove: bool) -> None:
        """Give the lock back, and delete its file if asked; does nothing when it is not held."""
        if self.descriptor >= 0:
            if remove:
                self.path.unlink(missing_ok=True)
            os.close(self.descriptor)
            self.descriptor = -1


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _octets(data: Data) -> memoryview:
    view = np.ascontiguousarray(data).data if isinstance(data, np.ndarray) else memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _write_all(descriptor: int, data: Data, offset: int) -> None:
    view = _octets(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


# --- one file ------------------------------------------------------------------------------------------


class AtomicFile:
    """A file that appears at ``out`` whole when the ``with`` block ends well, and not at all otherwise.

    ``write_at`` may be called from several threads.

    Args:
        out: its final place.
        keep: keep ``OUT.partial`` when the block is interrupted (not when an `AssayError` ends it: that run
            would fail again, or needs the room), and begin with what it holds: for runs that a journal
            lets resume.

    Raises:
        InputError: it cannot be written (one sentence, also for a full disk), another run is writing it, or
            ``OUT.partial`` is not ours.
    """

    def __init__(self, out: str | os.PathLike[str], *, keep: bool = False) -> None:
        self.out = Path(out)
        self.partial = partial_path(self.out)
        self._keep = keep
        self._lock = FileLock(lock_path(self.out), output=self.out)
        self.descriptor = -1
        self._position = 0

    def __enter__(self) -> Self:
        self._lock.acquire()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            if not self._lock.left_behind and os.path.lexists(self.partial):
                raise refuse_foreign(self.partial)
            with disk_errors(self.out):
                self.descriptor = os.open(self.partial, flags | (0 if self._keep else os.O_TRUNC), 0o666)
        except BaseException:
            self._lock.release(remove=not self._lock.left_behind)
            raise
        return self

    def write(self, data: Data) -> None:
        """Append after the last ``write``; for one thread."""
        self.write_at(self._position, data)
        self._position += len(_octets(data))

    def write_at(self, offset: int, data: Data) -> None:
        """Write at an absolute offset; thread-safe."""
        with disk_errors(self.out):
            _write_all(self.descriptor, data, offset)

    def sync(self) -> None:
        """Wait until the disk holds what was written."""
        with disk_errors(self.out):
            os.fsync(self.descriptor)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        committed, refused = False, isinstance(error, AssayError)
        try:
            if kind is None:
                self.sync()
                with disk_errors(self.out):
                    os.replace(self.partial, self.out)
                    committed = True
                    _flush_folder(self.out.parent)
        except AssayError:
            refused = True
            raise
        finally:
            os.close(self.descriptor)
            self.descriptor = -1
            kept = self._keep and not committed and not refused
            if not committed and not kept:
                self.partial.unlink(missing_ok=True)
            self._lock.release(remove=not kept)


def atomic_write_bytes(out: str | os.PathLike[str], data: bytes) -> None:
    """Replace or create ``out`` with ``data`` in one step.

    Raises:
        InputError: as :class:`AtomicFile`.
    """
    with AtomicFile(out) as file:
        file.write(data)


# --- a folder ------------------------------------------------------------------------------------------


class AtomicFolder:
    """A folder that appears at ``out`` whole when the ``with`` block ends well, and not at all otherwise.

    The block writes into :attr:`partial`.  What was at ``out`` before is exchanged for it and then deleted,
    so call :func:`check_output` first.

    Args:
        out: its final place.
        keep: as in :class:`AtomicFile`.

    Raises:
        InputError: it cannot be written, another run is writing it, or ``OUT.partial`` is not ours.
    """

    def __init__(self, out: str | os.PathLike[str], *, keep: bool = False) -> None:
        self.out = Path(out)
        self.partial = partial_path(self.out)
        self._keep = keep
        self._lock = FileLock(lock_path(self.out), output=self.out)

    def __enter__(self) -> Self:
        self._lock.acquire()
        try:
            with disk_errors(self.out):
                recover(self.out)
                if os.path.lexists(self.partial):
                    self._refuse_foreign_partial()
                    # A finished folder under this name is an old output that a kill left after the exchange.
                    marker = self.partial / MARKER
                    if not (self._keep and marker.is_file() and marker.read_bytes() == _UNFINISHED):
                        _remove(self.partial)
                self.partial.mkdir(exist_ok=True)
                (self.partial / MARKER).write_bytes(_UNFINISHED)
        except BaseException:
            self._lock.release(remove=True)
            raise
        return self

    def _refuse_foreign_partial(self) -> None:
        partial = self.partial
        if partial.is_symlink() or not partial.is_dir() or not is_assay_output(partial):
            raise refuse_foreign(partial)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        committed, refused = False, isinstance(error, AssayError)
        try:
            if kind is None:
                with disk_errors(self.out):
                    (self.partial / MARKER).write_bytes(_FINISHED)
                    _flush_tree(self.partial)
                    _put_in_place(self.partial, self.out)
                    committed = True
        except AssayError:
            refused = True
            raise
        finally:
            if not committed and (refused or not self._keep):
                shutil.rmtree(self.partial, ignore_errors=True)
            self._lock.release(remove=True)


def recover(out: Path) -> None:
    """Mend what a kill between the two renames of the fallback left: the old folder goes back in place.

    Does nothing when there is nothing to mend.
    """
    old = _old_path(out)
    if os.path.lexists(old):
        if os.path.lexists(out):
            _remove(old)
        else:
            os.rename(old, out)


def _flush_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder):
        for file in files:
            descriptor = os.open(Path(parent) / file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        _flush_folder(Path(parent))


def _put_in_place(partial: Path, out: Path) -> None:
    if not os.path.lexists(out):
        os.rename(partial, out)
    elif _exchange(partial, out):
        # The name .partial now holds the old output: mark it as ours to delete, should a kill leave it there.
        if partial.is_dir() and not partial.is_symlink():
            (partial / MARKER).write_bytes(_FINISHED)
        _flush_folder(out.parent)
        _remove(partial)
    else:
        old = _old_path(out)
        os.rename(out, old)
        os.rename(partial, out)
        _flush_folder(out.parent)
        _remove(old)
    _flush_folder(out.parent)


def _remove(path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        path.unlink()
        return
    for entry in path.iterdir():
        if entry.name != MARKER:  # last, so that what a kill leaves can still be told to be ours
            _remove(entry)
    shutil.rmtree(path)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step; False when the system or the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(second))


# --- a checkpoint --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileLayout:
    """One safetensors file to write: its name in the folder and the JSON bytes of its header."""

    file: str
    header: bytes


def build_index(files: Sequence[FileLayout]) -> bytes:
    """The ``model.safetensors.index.json`` of a sharded checkpoint.

    >>> from assay.checkpoints.header import build_header
    >>> index = build_index([FileLayout("a.safetensors", build_header([("w", "F32", (2,))]))])
    >>> json.loads(index)
    {'metadata': {'total_size': 8}, 'weight_map': {'w': 'a.safetensors'}}
    """
    weight_map: dict[str, str] = {}
    total = 0
    for layout in files:
        header = parse_header(layout.header, file=layout.file)
        total += header.data_bytes
        weight_map |= {info.name: layout.file for info in header.tensors}
    document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(document, indent=2) + "\n").encode()


class CheckpointWriter:
    """Writes a checkpoint whose layout is known beforehand, tensor data in any order and from any thread.

    The headers are written as given, byte for byte, so a checkpoint can be reproduced exactly.  At the end of
    the ``with`` block every byte of every tensor must have been written exactly once, and the output appears.

    Args:
        out: a safetensors file, or a folder when ``folder`` is true.
        files: the files and their headers; exactly one for a file.
        folder: write a folder.
        index: name and bytes of the index file, or None for none.
        keep: keep the partial output when the run fails, and begin with it where its headers are the same;
            :meth:`mark_written` then says which tensors need not be written again.

    Raises:
        InputError: a header is invalid, a name repeats, or the output cannot be written.

    >>> from assay.checkpoints.header import build_header
    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp()) / "w.safetensors"
    >>> with CheckpointWriter(out, [FileLayout(out.name, build_header([("w", "U8", (2, 2))]))]) as writer:
    ...     writer.write_at("w", 2, b"cd")
    ...     writer.write_at("w", 0, b"ab")
    >>> out.read_bytes()[-4:]
    b'abcd'
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        files: Sequence[FileLayout],
        *,
        folder: bool = False,
        index: tuple[str, bytes] | None = None,
        keep: bool = False,
    ) -> None:
        if not folder and len(files) != 1:
            raise ValueError("a file has one layout; pass folder=True for several")
        self.out = Path(out)
        self.tensors: Mapping[str, TensorInfo] = _lay_out(files, folder)
        self._files = tuple(files)
        self._index = index
        self._target: AtomicFile | AtomicFolder = (AtomicFolder if folder else AtomicFile)(out, keep=keep)
        self._taken = {MARKER, *(layout.file for layout in files)}
        if index is not None:
            _require_plain(index[0], self._taken)
            self._taken.add(index[0])
        self._written: dict[str, list[tuple[int, int]]] = {name: [] for name in self.tensors}
        self._cursors: dict[str, int] = dict.fromkeys(self.tensors, 0)
        self._kept: set[int] = set()
        self._mutex = threading.Lock()

    @property
    def bytes_out(self) -> int:
        """Bytes of all safetensors files together."""
        return sum(LENGTH_BYTES + len(layout.header) for layout in self._files) + sum(
            info.nbytes for info in self.tensors.values()
        )

    def __enter__(self) -> Self:
        self._target.__enter__()
        try:
            for number, layout in enumerate(self._files):
                self._prepare(number, layout)
            if self._index is not None:
                self._write_small(self._index[0], self._index[1])
        except BaseException as error:
            self._target.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _prepare(self, number: int, layout: FileLayout) -> None:
        start = len(layout.header).to_bytes(LENGTH_BYTES, "little") + layout.header
        size = len(start) + sum(info.nbytes for info in self.tensors.values() if info.shard == number)
        with self._descriptor(number) as descriptor, disk_errors(self.out):
            if os.fstat(descriptor).st_size == size and os.pread(descriptor, len(start), 0) == start:
                self._kept.add(number)
                return
            os.ftruncate(descriptor, 0)  # a partial of another layout is of no use
            os.ftruncate(descriptor, size)
            _write_all(descriptor, start, 0)

    @contextmanager
    def _descriptor(self, number: int) -> Iterator[int]:
        if isinstance(self._target, AtomicFile):
            yield self._target.descriptor
            return
        path = self._target.partial / self._files[number].file
        with disk_errors(self.out):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def write_at(self, name: str, offset: int, data: Data) -> None:
        """Write bytes of one tensor, ``offset`` bytes into it; thread-safe.

        Raises:
            ValueError: they do not lie inside the tensor.
            InputError: the disk refuses them.
        """
        info = self.tensors[name]
        size = len(_octets(data))
        if offset < 0 or offset + size > info.nbytes:
            raise ValueError(
                f"bytes {offset}:{offset + size} do not lie inside {name!r} of {info.nbytes} bytes"
            )
        if size == 0:
            return
        with self._descriptor(info.shard) as descriptor, disk_errors(self.out):
            _write_all(descriptor, data, info.begin + offset)
        with self._mutex:
            self._written[name].append((offset, offset + size))

    def append(self, name: str, data: Data) -> None:
        """Write the next bytes of one tensor; different tensors may be appended to by different threads."""
        offset = self._cursors[name]
        self._cursors[name] = offset + len(_octets(data))
        self.write_at(name, offset, data)

    def mark_written(self, name: str) -> bool:
        """Count a tensor as written because a journal says that an earlier run wrote it.

        Returns:
            False, and nothing is counted, when this run did not begin with that run's file: write it again.
        """
        info = self.tensors[name]
        if info.shard not in self._kept:
            return False
        with self._mutex:
            self._written[name] = [(0, info.nbytes)]
        return True

    def sync(self, names: Iterable[str]) -> None:
        """Wait until the disk holds what was written of these tensors; call it before journalling that."""
        for shard in sorted({self.tensors[name].shard for name in names}):
            with self._descriptor(shard) as descriptor, disk_errors(self.out):
                os.fdatasync(descriptor)

    def write_file(self, name: str, data: bytes) -> None:
        """Write a carried file into the folder.

        Args:
            name: its relative name with forward slashes.

        Raises:
            InputError: the name leaves the folder or is already taken.
        """
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name or "\0" in name:
            raise InputError(
                f"the carried file name {name[:80]!r} leaves the output folder; do not trust its source"
            )
        if str(path) in self._taken:
            raise InputError(f"the carried file {name!r} would replace a file of the model; rename it")
        self._taken.add(str(path))
        self._write_small(name, data)

    def _write_small(self, name: str, data: bytes) -> None:
        if not isinstance(self._target, AtomicFolder):
            raise ValueError("only a folder holds carried files and an index")
        path = self._target.partial / name
        with disk_errors(self.out):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def _require_complete(self) -> None:
        for name, pieces in self._written.items():
            position = 0
            for begin, end in sorted(pieces):
                if begin != position:
                    break
                position = end
            if position != self.tensors[name].nbytes:
                raise ValueError(f"tensor {name!r} was not written exactly once (byte {position} is next)")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                self._require_complete()
            except ValueError as incomplete:
                self._target.__exit__(ValueError, incomplete, incomplete.__traceback__)
                raise
        self._target.__exit__(kind, error, trace)


def _require_plain(name: str, taken: Container[str]) -> None:
    """Refuse a file name that leaves its folder or is given twice: names come from files."""
    if not is_plain_file_name(name) or name in taken:
        raise InputError(f"{name[:80]!r} cannot name a file of the output; give plain, different names")


def _lay_out(files: Sequence[FileLayout], folder: bool) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    names: set[str] = set()
    for number, layout in enumerate(files):
        if folder:
            _require_plain(layout.file, names)
        names.add(layout.file)
        for info in parse_header(layout.header, file=layout.file, shard=number).tensors:
            if info.name in tensors:
                raise InputError(f"two files of the output would hold tensor {info.name!r}; give it to one")
            tensors[info.name] = info
    return tensors
