"""Safetensors files and sharded folders, read with the standard library and trusted in nothing.

A file is N (8 bytes, little-endian), N bytes of JSON, then the data.  The JSON maps each name to
``{"dtype", "shape", "data_offsets"}``; the tensors' ranges must tile the data without hole or overlap.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay_verify.outcome import Misuse, Rejected, Unsupported

__all__ = [
    "BYTES",
    "MAX_HEADER",
    "PIECE",
    "File",
    "Tensor",
    "fingerprint",
    "is_plain_name",
    "is_shape",
    "looks_like_one",
    "open_checkpoint",
    "open_file",
    "parse_header",
]

MAX_HEADER = 100_000_000
MAX_RANK = 64
MAX_ELEMENTS = 1 << 48
PIECE = 1 << 20

BYTES: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its type, its shape, and where its bytes lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of data."""
        return self.end - self.begin

    @property
    def columns(self) -> int:
        """Elements in a row: the product of all dimensions but the first."""
        return math.prod(self.shape[1:])

    def read(self, start: int, stop: int) -> bytes:
        """Bytes start..stop of the data.

        Raises:
            Rejected: the file has become shorter.
        """
        with open(self.path, "rb") as stream:
            stream.seek(self.begin + start)
            data = stream.read(stop - start)
        if len(data) != stop - start:
            raise Rejected(f"{self.path} ends within the tensor {self.name[:60]!r}")
        return data

    def pieces(self) -> Iterator[bytes]:
        """The data, in pieces of bounded size."""
        with open(self.path, "rb") as stream:
            stream.seek(self.begin)
            left = self.size
            while left:
                data = stream.read(min(PIECE, left))
                if not data:
                    raise Rejected(f"{self.path} ends within the tensor {self.name[:60]!r}")
                left -= len(data)
                yield data

    def sha256(self) -> str:
        """The digest of the data."""
        h = hashlib.sha256()
        for piece in self.pieces():
            h.update(piece)
        return h.hexdigest()


@dataclass(frozen=True, slots=True)
class File:
    """A safetensors file: its tensors by name, and the strings of ``__metadata__``."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)


def looks_like_one(head: bytes) -> bool:
    """Whether a file that starts with these bytes is meant to be safetensors: no JSON text holds a zero byte."""
    return b"\0" in head[:8]


def open_file(path: Path) -> File:
    """The header of one file, checked.

    Raises:
        Rejected: truncated, malformed, or with offsets that overlap or leave holes.
    """
    size = path.stat().st_size
    with open(path, "rb") as stream:
        head = stream.read(8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or not 2 <= length <= min(MAX_HEADER, size - 8):
            raise Rejected(f"{path} is no safetensors file, or is truncated: its header does not fit")
        raw = stream.read(length)
    file, end = parse_header(raw, path)
    if end != size:
        word = "is truncated" if end > size else "has something after its end"
        raise Rejected(f"{path} {word}: its tensors end at byte {end} of {size}")
    return file


def parse_header(raw: bytes, path: Path) -> tuple[File, int]:
    """What a header says, and where the data that it describes ends.

    Raises:
        Rejected: malformed, or with offsets that overlap or leave holes.
    """
    entries = _header(raw, path)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise Rejected(f"{path}: __metadata__ must map strings to strings")
    position = 8 + len(raw)
    found = [_tensor(name, entry, path, position) for name, entry in entries.items()]
    for tensor in sorted(found, key=lambda t: (t.begin, t.end)):
        if tensor.begin != position:
            word = "overlaps the tensor before it" if tensor.begin < position else "leaves a hole before it"
            raise Rejected(f"{path}: the tensor {tensor.name[:60]!r} {word}")
        position = tensor.end
    return File(path, {t.name: t for t in found}, metadata), position


def _header(raw: bytes, path: Path) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            raise Rejected(f"{path}: a duplicate key in the header")
        return result

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        raise Rejected(f"{path}: the header is not JSON") from None
    if not isinstance(header, dict):
        raise Rejected(f"{path}: the header is not a JSON object")
    return header


def _tensor(name: str, entry: Any, path: Path, start: int) -> Tensor:
    where = f"{path}: the tensor {name[:60]!r}"
    if not isinstance(entry, dict):
        raise Rejected(f"{where} is not described by an object")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or not is_shape(shape) or not is_shape(offsets) or len(offsets) != 2:
        raise Rejected(f"{where} lacks its dtype, shape or data_offsets")
    if dtype not in BYTES:
        raise Unsupported(f"{where} has the type {dtype[:40]!r}, which is unknown to this checker")
    begin, end = offsets
    if end - begin != math.prod(shape) * BYTES[dtype]:
        raise Rejected(f"{where} has data_offsets that do not fit its shape")
    return Tensor(name, dtype, tuple(shape), path, start + begin, start + end)


def is_shape(value: Any) -> bool:
    """A list of at most 64 non-negative integers whose product is no absurd number."""
    return (
        isinstance(value, list)
        and len(value) <= MAX_RANK
        and all(type(n) is int and 0 <= n <= MAX_ELEMENTS for n in value)
        and math.prod(n for n in value if n) <= MAX_ELEMENTS * MAX_ELEMENTS
    )


def open_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, or of all files of a folder (those of its index, where it has one).

    Raises:
        Misuse: no such file, or nothing in the folder.
        Rejected: a file is malformed, or two hold the same tensor.
    """
    if not path.is_dir():
        if not path.is_file():
            raise Misuse(f"{path} does not exist")
        return dict(open_file(path).tensors)
    tensors: dict[str, Tensor] = {}
    for part in _parts(path):
        opened = open_file(part).tensors
        if twice := tensors.keys() & opened.keys():
            raise Rejected(f"{path}: two files hold the tensor {min(twice)[:60]!r}")
        tensors |= opened
    return tensors


def _parts(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            with open(index, "rb") as stream:
                names = set(json.loads(stream.read(MAX_HEADER))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise Rejected(f"{index} is no index of a sharded checkpoint") from None
        if not all(isinstance(n, str) and is_plain_name(n) for n in names):
            raise Rejected(f"{index} names a file outside its folder")
    elif (folder / "model.safetensors").is_file():
        names = {"model.safetensors"}
    else:
        names = {p.name for p in folder.glob("*.safetensors")}
    if not names:
        raise Misuse(f"{folder} holds no safetensors file")
    return [folder / name for name in sorted(names)]


def is_plain_name(name: str) -> bool:
    """A file name that stays in its folder, on any system.

    >>> [is_plain_name(n) for n in ("model.safetensors", "../x", "/x", "a\\\\b", "c:x", "..", "")]
    [True, False, False, False, False, False, False]
    """
    return (
        0 < len(name) <= 255
        and name not in (".", "..")
        and not any(c in "/\\:" or ord(c) < 32 or ord(c) == 127 for c in name)
    )


def fingerprint(tensors: Mapping[str, Tensor], digests: Mapping[str, str]) -> str:
    """sha256 over the lines name NUL dtype NUL shape NUL sha256 LF, sorted by name."""
    h = hashlib.sha256()
    for name in sorted(tensors):
        shape = ",".join(map(str, tensors[name].shape))
        h.update(f"{name}\0{tensors[name].dtype}\0{shape}\0{digests[name]}\n".encode())
    return h.hexdigest()
