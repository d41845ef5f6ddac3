"""Checkpoints as streams: safetensors files, sharded folders and Hugging Face model folders, read-only.

Opening reads headers only and validates all of them, so every fault of layout is known before any work.
Data is read with ``preadv`` straight into the returned array: nothing is mapped, nothing is cached, the
memory in use is the block that was asked for.  A :class:`Checkpoint` may be shared by threads and sent to
other processes; it reopens its files where it wakes up.

Symbolic links are followed, since the Hugging Face cache is made of them; nothing is ever written here.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from assay.checkpoints.header import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    TensorInfo,
    parse_header,
    strict_json,
)
from assay.core.errors import InputError

#: the file that marks a model folder written by assay
MARKER = "assay.json"
#: why a file is not carried along, where nobody would miss it
HIDDEN, MARKS = "hidden", "marks an output of assay"
MAX_OPEN_FILES = 16
MAX_CARRIED_BYTES = 256 * 2**20
MAX_JSON_BYTES = MAX_HEADER_BYTES
DIGEST_BLOCK_BYTES = 2**20

_INDEX_SUFFIX = ".safetensors.index.json"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_OTHER_FORMATS = {
    ".gguf": "GGUF",
    ".ggml": "GGML",
    ".h5": "HDF5",
    ".hdf5": "HDF5",
    ".keras": "Keras",
    ".msgpack": "Flax msgpack",
    ".onnx": "ONNX",
    ".ot": "rust-bert",
    ".npz": "NumPy",
    ".tflite": "TensorFlow Lite",
}
_CONVERT = (
    "convert it on a machine you trust with transformers: "
    "AutoModel.from_pretrained(FOLDER).save_pretrained(OUT, safe_serialization=True)"
)


class Source(Protocol):
    """What can stand on either side of a delta: a :class:`Checkpoint`, or an adapter merged on the fly."""

    @property
    def path(self) -> Path:
        """The file or folder it was opened from."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in file order."""

    @property
    def shards(self) -> Sequence[Shard]:
        """The files of a layout that may be reproduced byte for byte; empty when there is none."""

    @property
    def carried(self) -> Mapping[str, int]:
        """Size in bytes of every file that is not weights, by its name relative to the folder."""

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The decoded config.json, if there is one."""

    @property
    def tied(self) -> bool:
        """Whether config.json says that the output layer shares the embedding's weights."""

    def read_rows(self, name: str, start: int, stop: int, buffer: ReadBuffer | None = None) -> np.ndarray:
        """Raw bits of rows ``start <= row < stop``: unsigned integers shaped ``[stop - start, columns]``.

        They may lie in ``buffer``, and then only until its next use.
        """

    def read_bytes(self, name: str) -> bytes:
        """All bytes of one tensor."""

    def read_carried(self, name: str) -> bytes:
        """All bytes of one carried file."""


class ReadBuffer(threading.local):
    """Memory to read into again and again, one piece per thread: the kernel clears fresh memory page by page,
    which costs more than reading a block into it."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> np.ndarray:
        """An array in this memory; it replaces the one before."""
        size = shape[0] * shape[1] * dtype.itemsize
        if size > self._bytes.size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file.

    Attributes:
        file: its name inside the checkpoint.
        path: where it lies.
        size: its length in bytes.
        header: the JSON bytes of its header exactly as stored, without the eight bytes of length.
        names: the names of its tensors in data order.
        metadata: its ``__metadata__``.
        modified_ns: its modification time; a file that changes after it was opened is refused.
    """

    file: str
    path: Path
    size: int
    header: bytes
    names: tuple[str, ...]
    metadata: Mapping[str, str]
    modified_ns: int


class Checkpoint:
    """A validated checkpoint, open for reading; made by :func:`open_checkpoint`.

    Attributes:
        path: the file or folder.
        is_folder: whether it is a folder.
        shards: its files, in the order of their names.
        tensors: read-only mapping from name to :class:`TensorInfo`, sorted by shard, then by offset.
        carried: size of each file that is not weights (tokenizer, chat template, config, ...).
        ignored: why each remaining file or subfolder is neither read nor carried.
        index: name and bytes of the index file of a sharded folder, else None.
        config: the decoded config.json of a folder, else None.
    """

    def __init__(
        self,
        path: Path,
        *,
        is_folder: bool,
        shards: Sequence[Shard],
        tensors: Sequence[TensorInfo],
        carried: Mapping[str, int],
        ignored: Mapping[str, str],
        index: tuple[str, bytes] | None,
        config: Mapping[str, Any] | None,
    ) -> None:
        self.path = path
        self.is_folder = is_folder
        self.shards: tuple[Shard, ...] = tuple(shards)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType({info.name: info for info in tensors})
        self.carried: Mapping[str, int] = MappingProxyType(dict(carried))
        self.ignored: Mapping[str, str] = MappingProxyType(dict(ignored))
        self.index = index
        self.config = config
        self._files = _OpenFiles(self.shards)

    @property
    def tied(self) -> bool:
        """Whether config.json states ``tie_word_embeddings``; False when it is silent."""
        config = self.config or {}
        text = config.get("text_config")
        return any(
            part.get("tie_word_embeddings") is True for part in (config, text) if isinstance(part, Mapping)
        )

    def read_rows(self, name: str, start: int, stop: int, buffer: ReadBuffer | None = None) -> np.ndarray:
        """Raw bits of rows ``start <= row < stop``, shaped ``[stop - start, columns]``.

        The type is the unsigned little-endian integer as wide as an element; ``.view`` it as the numpy type
        in :data:`assay.checkpoints.header.DTYPES` to do arithmetic.  They lie in ``buffer``, if it is given.

        Raises:
            InputError: no such tensor, rows outside it, or the file changed since it was opened.
        """
        info = find_tensor(self, name)
        check_rows(info, start, stop)
        shape = stop - start, info.columns
        block = np.empty(shape, info.bits_dtype) if buffer is None else buffer.array(shape, info.bits_dtype)
        if block.size:
            offset = info.begin + start * info.columns * info.itemsize
            self._read_into(info, block.data.cast("B"), offset)
        return block

    def read_bytes(self, name: str) -> bytes:
        """All bytes of one tensor; meant for small ones.

        Raises:
            InputError: as :meth:`read_rows`.
        """
        info = find_tensor(self, name)
        buffer = bytearray(info.nbytes)
        self._read_into(info, memoryview(buffer), info.begin)
        return bytes(buffer)

    def read_carried(self, name: str) -> bytes:
        """All bytes of one carried file.

        Raises:
            InputError: the checkpoint carries no such file, or it cannot be read any more.
        """
        if name not in self.carried:
            raise InputError(f"{self.path} carries no file {name!r}; it carries {', '.join(self.carried)}")
        return _read_small_file(self.path / name, MAX_CARRIED_BYTES)

    def _read_into(self, info: TensorInfo, buffer: memoryview, offset: int) -> None:
        with self._files.borrow(info.shard) as descriptor:
            while buffer:
                count = os.preadv(descriptor, [buffer], offset)
                if count == 0:
                    raise InputError(
                        f"{self.shards[info.shard].path} lost bytes of tensor {info.name!r} while it was "
                        "read; let nothing write to it and start again"
                    )
                buffer, offset = buffer[count:], offset + count

    def close(self) -> None:
        """Close every open file; reading again reopens what it needs."""
        self._files.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.path, self.is_folder, self.shards, tuple(self.tensors.values()))
        rest = (dict(self.carried), dict(self.ignored), self.index, self.config)
        return _revive, state + rest

    def __repr__(self) -> str:
        return f"<Checkpoint {str(self.path)!r}: {len(self.tensors)} tensors in {len(self.shards)} files>"


def _revive(
    path: Path,
    is_folder: bool,
    shards: Sequence[Shard],
    tensors: Sequence[TensorInfo],
    carried: Mapping[str, int],
    ignored: Mapping[str, str],
    index: tuple[str, bytes] | None,
    config: Mapping[str, Any] | None,
) -> Checkpoint:
    return Checkpoint(
        path,
        is_folder=is_folder,
        shards=shards,
        tensors=tensors,
        carried=carried,
        ignored=ignored,
        index=index,
        config=config,
    )


class _OpenFiles:
    """File descriptors by shard: opened on demand, shared by threads, few of them kept when idle."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._open: OrderedDict[int, tuple[int, int]] = OrderedDict()  # shard -> (descriptor, borrowers)

    @contextmanager
    def borrow(self, shard: int) -> Iterator[int]:
        with self._lock:
            descriptor, borrowers = self._open.pop(shard, (-1, 0))
            if descriptor < 0:
                descriptor = self._open_shard(self._shards[shard])
            self._open[shard] = (descriptor, borrowers + 1)
        try:
            yield descriptor
        finally:
            with self._lock:
                self._open[shard] = (descriptor, self._open[shard][1] - 1)
                self._close_idle(MAX_OPEN_FILES)

    def close(self) -> None:
        with self._lock:
            self._close_idle(0)

    def _close_idle(self, limit: int) -> None:
        for shard, (descriptor, borrowers) in list(self._open.items()):
            if len(self._open) <= limit:
                return
            if borrowers == 0:
                os.close(descriptor)
                del self._open[shard]

    @staticmethod
    def _open_shard(shard: Shard) -> int:
        descriptor = _open_regular(shard.path)
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != (shard.size, shard.modified_ns):
            os.close(descriptor)
            raise InputError(
                f"{shard.path} changed after it was opened; stop what writes to it and start again"
            )
        return descriptor

    def __del__(self) -> None:
        for descriptor, _ in self._open.values():
            os.close(descriptor)


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a safetensors file, a sharded folder, its index file, or a Hugging Face model folder.

    Reads and validates every header; reads no weights.

    Raises:
        InputError: the path holds no readable checkpoint; the sentence names the file, the fault, the remedy.
    """
    location = Path(path)
    if not location.exists():
        kind = "is a symbolic link to nothing" if location.is_symlink() else "does not exist"
        raise InputError(f"{location} {kind}; give a safetensors file or a model folder")
    if location.is_dir():
        return _open_folder(location, None)
    if location.name.endswith(_INDEX_SUFFIX):
        return _open_folder(location.parent, location.name)
    shard, tensors = read_shard(location, location.name, 0)
    return _checked(
        Checkpoint(
            location,
            is_folder=False,
            shards=[shard],
            tensors=tensors,
            carried={},
            ignored={},
            index=None,
            config=None,
        )
    )


def read_shard(path: Path, file: str, shard: int) -> tuple[Shard, tuple[TensorInfo, ...]]:
    """Read and validate the header of one safetensors file.

    Raises:
        InputError: it is another format, a pickle, a Git LFS pointer, truncated or inconsistent.
    """
    _refuse_by_suffix(path)
    descriptor = _open_regular(path)
    try:
        status = os.fstat(descriptor)
        start = os.pread(descriptor, 64, 0)
        length = int.from_bytes(start[:LENGTH_BYTES], "little")
        room = status.st_size - LENGTH_BYTES
        if not (start[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{" and length <= min(MAX_HEADER_BYTES, room)):
            _refuse_by_content(path, start)
        if room < 0:
            raise InputError(f"{path} is truncated: it has {status.st_size} bytes; download or copy it again")
        if length > MAX_HEADER_BYTES:
            raise InputError(
                f"{path} claims a header of {length} bytes, more than the {MAX_HEADER_BYTES} allowed, so "
                "it is not a safetensors file; check what it is"
            )
        if length > room:
            raise InputError(
                f"{path} is truncated inside its header: {length - room} bytes are missing; download it again"
            )
        header = _pread_exactly(descriptor, length, LENGTH_BYTES, path)
    finally:
        os.close(descriptor)
    parsed = parse_header(header, file=str(path), shard=shard)
    surplus = room - length - parsed.data_bytes
    if surplus < 0:
        raise InputError(f"{path} is truncated: {-surplus} bytes of data are missing; download it again")
    if surplus > 0:
        raise InputError(f"{path} has {surplus} bytes that belong to no tensor; download it again")
    names = tuple(info.name for info in parsed.tensors)
    modified = status.st_mtime_ns
    return Shard(file, path, status.st_size, header, names, parsed.metadata, modified), parsed.tensors


def read_json_object(path: Path) -> Mapping[str, Any]:
    """Decode a small JSON file, such as config.json.

    Raises:
        InputError: it cannot be read, is larger than 100 MB, or is not a JSON object.
    """
    document = strict_json(_read_small_file(path, MAX_JSON_BYTES), file=str(path))
    if not isinstance(document, dict):
        raise InputError(f"{path} is not a JSON object; download it again")
    return document


def find_tensor(source: Source, name: str) -> TensorInfo:
    """The entry of one tensor.

    Raises:
        InputError: there is none of that name.
    """
    info = source.tensors.get(name)
    if info is None:
        raise InputError(f"{source.path} holds no tensor {name!r}; check the name")
    return info


def check_rows(info: TensorInfo, start: int, stop: int) -> None:
    """Refuse a range of rows that does not lie inside the tensor.

    Raises:
        InputError: ``0 <= start <= stop <= rows`` does not hold.
    """
    if not 0 <= start <= stop <= info.rows:
        raise InputError(f"rows {start}:{stop} do not lie inside tensor {info.name!r} of {info.rows} rows")


def row_blocks(info: TensorInfo, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a tensor into runs of whole rows of about ``block_bytes``, at least one row each.

    A tensor without elements has no blocks.

    >>> list(row_blocks(TensorInfo("w", "F32", (5, 2), 0, 0, 40), 16))
    [(0, 2), (2, 4), (4, 5)]
    """
    if info.count == 0:
        return
    step = max(1, block_bytes // max(1, info.columns * info.itemsize))
    for start in range(0, info.rows, step):
        yield start, min(start + step, info.rows)


def tensor_sha256(info: TensorInfo, reader: Source) -> str:
    """Hex sha256 of a tensor's raw little-endian data, read in blocks of about 1 MiB.

    Type and shape are not part of it; :func:`fingerprint` adds them.
    """
    digest, buffer = hashlib.sha256(), ReadBuffer()
    for start, stop in row_blocks(info, DIGEST_BLOCK_BYTES):
        digest.update(reader.read_rows(info.name, start, stop, buffer).ravel().data)
    return digest.hexdigest()


def fingerprint(tensors: Mapping[str, TensorInfo], digests: Mapping[str, str]) -> str:
    """Hex sha256 that identifies a checkpoint whatever its files, order, metadata and padding.

    It is taken over the sorted lines ``name NUL dtype NUL shape NUL digest LF`` in UTF-8, where the shape is
    its sizes joined by commas (nothing for a scalar) and the digest is :func:`tensor_sha256`.

    >>> info = TensorInfo("w", "U8", (2, 1), 0, 0, 2)
    >>> fingerprint({"w": info}, {"w": hashlib.sha256(b"ab").hexdigest()})[:16]
    '1ee03ddece0dd3bd'
    """
    lines = sorted(
        "\0".join((name, info.dtype, ",".join(map(str, info.shape)), digests[name])) + "\n"
        for name, info in tensors.items()
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


# --- folders -------------------------------------------------------------------------------------------


def _open_folder(folder: Path, index_name: str | None) -> Checkpoint:
    names = sorted(os.listdir(folder))
    config = read_json_object(folder / "config.json") if "config.json" in names else None
    index_name = index_name or _choose_index(folder, names)
    index: tuple[str, bytes] | None = None
    weight_map: dict[str, str] | None = None
    if index_name is not None:
        raw = _read_small_file(folder / index_name, MAX_JSON_BYTES)
        index = (index_name, raw)
        weight_map = _parse_index(raw, folder / index_name)
        files = sorted(set(weight_map.values()))
        missing = [file for file in files if not (folder / file).is_file()]
        if missing:
            raise InputError(
                f"{folder / index_name} names the shard {missing[0]!r}, which is not there "
                f"({len(missing)} of {len(files)} are missing); download the missing shards"
            )
    else:
        files = [_choose_single_file(folder, names)]
    shards: list[Shard] = []
    tensors: list[TensorInfo] = []
    for number, file in enumerate(files):
        shard, found = read_shard(folder / file, file, number)
        shards.append(shard)
        tensors.extend(found)
    if weight_map is not None:
        _check_index(folder / str(index_name), weight_map, shards)
    carried, ignored = _sort_other_files(folder, [n for n in names if n not in files and n != index_name])
    return _checked(
        Checkpoint(
            folder,
            is_folder=True,
            shards=shards,
            tensors=tensors,
            carried=carried,
            ignored=ignored,
            index=index,
            config=config,
        )
    )


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    if not checkpoint.tensors:
        raise InputError(f"{checkpoint.path} holds no tensor at all; check that it is the model you mean")
    return checkpoint


def _choose_index(folder: Path, names: Sequence[str]) -> str | None:
    indices = [name for name in names if name.endswith(_INDEX_SUFFIX)]
    if "model" + _INDEX_SUFFIX in indices:
        return "model" + _INDEX_SUFFIX
    if len(indices) > 1:
        raise InputError(f"{folder} holds several indices ({', '.join(indices)}); give the one you mean")
    return indices[0] if indices else None


def _choose_single_file(folder: Path, names: Sequence[str]) -> str:
    weights = [name for name in names if name.endswith(".safetensors")]
    if "model.safetensors" in weights:
        return "model.safetensors"
    if "adapter_config.json" in names:
        raise InputError(f"{folder} is a PEFT adapter, not a model; give it as the fine-tuned side")
    if len(weights) == 1:
        return weights[0]
    if weights:
        pieces = any(re.search(r"-\d+-of-\d+\.safetensors$", name) for name in weights)
        way_out = f"add the missing *{_INDEX_SUFFIX}" if pieces else "give the one you mean"
        raise InputError(f"{folder} holds {len(weights)} safetensors files and no index; {way_out}")
    for name in names:
        _refuse_by_suffix(folder / name)
    raise InputError(f"{folder} holds no safetensors file; give a folder with model.safetensors or an index")


def _parse_index(raw: bytes, path: Path) -> dict[str, str]:
    document = strict_json(raw, file=str(path))
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{path} has no weight_map from tensor names to files; download it again")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not is_plain_file_name(file) or not file.endswith(".safetensors"):
            raise InputError(
                f"{path} places tensor {name[:80]!r} in {str(file)[:80]!r}, which is not the plain name of a "
                "safetensors file in the same folder; correct the index"
            )
    return weight_map


def is_plain_file_name(file: str) -> bool:
    """Whether a name that comes from a file names something inside one folder, and nothing hidden.

    >>> is_plain_file_name("model.safetensors"), is_plain_file_name("../model.safetensors")
    (True, False)
    """
    return (
        bool(file) and not file.startswith(".") and not re.search(r"[/\\:\x00-\x1f\x7f\ud800-\udfff]", file)
    )


def _check_index(index: Path, weight_map: Mapping[str, str], shards: Sequence[Shard]) -> None:
    place: dict[str, str] = {}
    for shard in shards:
        for name in shard.names:
            if name in place:
                raise InputError(f"{shard.path} and {place[name]} both hold tensor {name!r}; remove one copy")
            place[name] = shard.file
    for name, file in weight_map.items():
        if place.get(name) != file:
            raise InputError(
                f"{index} says that tensor {name[:80]!r} is in {file}, which does not hold it; "
                "download both again, they are of different versions"
            )
    for name, file in place.items():
        if name not in weight_map:
            raise InputError(
                f"{index.parent / file} holds tensor {name!r}, which {index.name} does not list; "
                "download both again, they are of different versions"
            )


def _sort_other_files(folder: Path, names: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
    """Split what is left of a folder into files to carry (name -> bytes) and reasons to ignore the rest.

    Subfolders are carried one level deep when nothing in them is weights: chat templates, pooling configs.
    """
    carried: dict[str, int] = {}
    ignored: dict[str, str] = {}
    for name in names:
        path = folder / name
        if path.is_dir() and is_plain_file_name(name):
            inside = sorted(os.listdir(path))
            if any(_reason_to_ignore(path / entry) is not None for entry in inside):
                ignored[name] = "subfolder that holds more than small files"
            else:
                carried |= {f"{name}/{entry}": (path / entry).stat().st_size for entry in inside}
            continue
        reason = _reason_to_ignore(path)
        if reason is None:
            carried[name] = path.stat().st_size
        else:
            ignored[name] = reason
    return carried, ignored


def _reason_to_ignore(path: Path) -> str | None:
    suffix = path.suffix.lower()
    if path.name.startswith("."):
        return HIDDEN
    if not is_plain_file_name(path.name):
        return "a name that not every system allows"
    if path.name == MARKER:
        return MARKS
    if path.is_dir():
        return "subfolder"
    if not path.is_file():
        return "not a regular file"
    if suffix == ".safetensors" or path.name.endswith(_INDEX_SUFFIX):
        return "weights outside the chosen index"
    if (suffix in _PICKLE_SUFFIXES and path.name != "training_args.bin") or suffix in _OTHER_FORMATS:
        return "weights or state in another format"
    if path.name.endswith((".bin.index.json", ".partial", ".journal")):
        return "belongs to weights in another format or to an unfinished output"
    if path.stat().st_size > MAX_CARRIED_BYTES:
        return f"larger than {MAX_CARRIED_BYTES} bytes"
    return None


# --- small reads and refusals --------------------------------------------------------------------------


def _open_regular(path: Path) -> int:
    try:
        # O_NONBLOCK: a pipe must be refused, not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path} is not a regular file; give a safetensors file or a model folder")
    return descriptor


def _read_small_file(path: Path, limit: int) -> bytes:
    descriptor = _open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise InputError(f"{path} has {size} bytes, more than the {limit} allowed here; check what it is")
        return _pread_exactly(descriptor, size, 0, path)
    finally:
        os.close(descriptor)


def _pread_exactly(descriptor: int, count: int, offset: int, path: Path) -> bytes:
    buffer = bytearray()
    while len(buffer) < count:
        piece = os.pread(descriptor, count - len(buffer), offset + len(buffer))
        if not piece:
            raise InputError(
                f"{path} became shorter while it was read; stop what writes to it and start again"
            )
        buffer += piece
    return bytes(buffer)


def _refuse_by_suffix(path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix in _PICKLE_SUFFIXES:
        raise InputError(f"{path} is a pickle, which can run code and is never read; {_CONVERT}")
    if suffix in _OTHER_FORMATS:
        raise InputError(f"{path} is in {_OTHER_FORMATS[suffix]} format, which is not supported; {_CONVERT}")


def _refuse_by_content(path: Path, start: bytes) -> None:
    """Say what a file is that does not begin like safetensors; return when it is nothing known."""
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        raise InputError(
            f"{path} is a pickle under another name, which can run code and is never read; {_CONVERT}"
        )
    if start.startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is a Git LFS pointer, not the weights; run 'git lfs pull' in its folder")
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        raise InputError(f"{path} is a web page, not the weights; download the file itself")
    for magic, kind in ((b"GGUF", "GGUF"), (b"\x89HDF", "HDF5"), (b"\x1f\x8b", "gzip")):
        if start.startswith(magic):
            raise InputError(f"{path} is in {kind} format, which is not supported; {_CONVERT}")


# --- what cannot be packed -----------------------------------------------------------------------------

#: suffix of a companion tensor -> suffix of the tensor it belongs to ("" when it alone tells)
_QUANTISED_COMPANIONS = (
    ("_scale", ""),
    ("_scale_inv", ""),
    ("_scale_2", ""),
    (".absmax", ""),
    (".SCB", ".weight"),
    ("_scales", "_blocks"),
    (".scales", ".qweight"),
)
_QUANTISED_ALONE = (".qweight", ".qzeros", ".weight_packed", ".quant_map", ".nested_absmax")


def refuse_quantised(checkpoint: Source) -> None:
    """Refuse a checkpoint whose numbers mean nothing without scales stored beside them.

    A difference of quantised codes is not a difference of weights, so packing one would be silently wrong.
    Plain fp8 tensors without scales are fine.

    Raises:
        InputError: config.json has a quantization_config, or a tensor has a scale companion in any shard.
    """
    config = checkpoint.config or {}
    way_out = "use the full-precision original, or dequantise to BF16 and save again (model.dequantize())"
    for part in (config, config.get("text_config")):
        settings = part.get("quantization_config") if isinstance(part, Mapping) else None
        if settings:
            method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
            raise InputError(f"{checkpoint.path} is quantised (method {str(method)[:40]!r}); {way_out}")
    for name in checkpoint.tensors:
        if name.endswith(_QUANTISED_ALONE) or ".quant_state." in name:
            raise InputError(f"{checkpoint.path} is quantised (it holds {name!r}); {way_out}")
        for companion, owner in _QUANTISED_COMPANIONS:
            weight = name.removesuffix(companion) + owner
            if name.endswith(companion) and weight in checkpoint.tensors:
                raise InputError(f"{checkpoint.path} is quantised ({name!r} scales {weight!r}); {way_out}")


def refuse_no_model(checkpoint: Source) -> None:
    """Refuse a file of assay's own, a delta or moments, where a model is asked for.

    Raises:
        InputError: what it is, and what is done with it.
    """
    for shard in checkpoint.shards:
        kind = shard.metadata.get("format", "")
        if kind.startswith("assay-"):
            raise InputError(
                f"{checkpoint.path} is an {kind} file, not a model; a delta becomes one by 'assay apply BASE DELTA'"
            )


@dataclass(frozen=True, slots=True)
class Layout:
    """How two checkpoints correspond, tensor by tensor; names in the order of the file they come from.

    Attributes:
        missing: only in the base.
        shrunk: in both, the fine-tuned one with fewer rows: name -> (rows in base, rows in fine-tuned).
        hint: a sentence when the mixture-of-experts layouts differ, else None.
    """

    missing: tuple[str, ...]
    shrunk: Mapping[str, tuple[int, int]]
    hint: str | None


def compare_layouts(base: Source, finetuned: Source) -> Layout:
    """Match two checkpoints by name, from their headers alone.

    Tensor rows are the truth about vocabulary sizes; no table of architectures and no tokenizer is consulted.

    Raises:
        InputError: a shape conflicts (other than in the number of rows), a type changes and is not floating point on
            both sides, or the two share no tensor.
    """
    shrunk: dict[str, tuple[int, int]] = {}
    for name, new in finetuned.tensors.items():
        old = base.tensors.get(name)
        if old is None:
            continue
        if len(old.shape) != len(new.shape) or old.shape[1:] != new.shape[1:]:
            raise InputError(_shape_conflict(base, finetuned, old, new))
        if new.shape < old.shape:
            shrunk[name] = (old.rows, new.rows)
        if old.dtype != new.dtype and not (old.is_float and new.is_float):
            raise InputError(
                f"tensor {name!r} is {old.dtype} in {base.path} and {new.dtype} in {finetuned.path}; "
                "only floating-point types may differ, so save both with the same type"
            )
    hint = _expert_hint(base, finetuned)
    if base.tensors.keys().isdisjoint(finetuned.tensors):
        examples = f"{next(iter(base.tensors))!r} against {next(iter(finetuned.tensors))!r}"
        raise InputError(
            f"{base.path} and {finetuned.path} share no tensor name ({examples}); "
            + (hint or "check that one was fine-tuned from the other and that no name prefix was added")
        )
    return Layout(
        tuple(name for name in base.tensors if name not in finetuned.tensors),
        MappingProxyType(shrunk),
        hint,
    )


def _shape_conflict(base: Source, finetuned: Source, old: TensorInfo, new: TensorInfo) -> str:
    sizes = []
    for key in ("hidden_size", "intermediate_size", "vocab_size"):
        pair = [(source.config or {}).get(key) for source in (base, finetuned)]
        if None not in pair:
            sizes.append(f"{key} {pair[0]} and {pair[1]}")
    said = f" (their configs say {', '.join(sizes)})" if sizes else ""
    return (
        f"tensor {old.name!r} has shape {list(old.shape)} in {base.path} and {list(new.shape)} in "
        f"{finetuned.path}{said}; give the base that this model was fine-tuned from"
    )


_ONE_EXPERT = re.compile(r"\.experts\.\d+\.")
_FUSED_EXPERTS = re.compile(r"\.experts\.(?!\d+\.)")


def _expert_hint(base: Source, finetuned: Source) -> str | None:
    def layout(source: Source) -> str | None:
        if any(_ONE_EXPERT.search(name) for name in source.tensors):
            return "one matrix per expert"
        if any(_FUSED_EXPERTS.search(name) and len(i.shape) == 3 for name, i in source.tensors.items()):
            return "all experts fused in one tensor"
        return None

    ours, theirs = layout(base), layout(finetuned)
    if ours is None or theirs is None or ours == theirs:
        return None
    return (
        f"{base.path} stores {ours} and {finetuned.path} {theirs}, so their experts do not correspond; "
        "save both with the same version of transformers"
    )
