"""The safetensors header: parsing one that may be hostile, and writing one.

A safetensors file is ``N`` (8 bytes, unsigned, little-endian), ``N`` bytes of JSON, then the data.  The JSON
maps each tensor name to ``{"dtype", "shape", "data_offsets": [begin, end]}`` with offsets relative to the
data, and may hold a ``__metadata__`` object of strings.  A valid file has no hole, no overlap and no
trailing byte, so its meaning is a function of its bytes.

Source: the format description in the README of huggingface/safetensors; the limits below that go beyond it
(name length and characters, rank, element count) are ours and are stated in the messages.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from assay.core.errors import InputError

MAX_HEADER_BYTES = 100_000_000
MAX_NAME_CHARACTERS = 4096
MAX_RANK = 64
MAX_ELEMENTS = 2**48
LENGTH_BYTES = 8

#: safetensors name -> the numpy type that does arithmetic on it
DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
FLOAT_DTYPES = frozenset(name for name in DTYPES if name.startswith(("F", "BF")))
_BLOCK_SCALED_DTYPES = frozenset({"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0"})
_BITS: Mapping[int, np.dtype[Any]] = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values of a type of :data:`DTYPES`, rounded once, to nearest even, to another of them.

    >>> float(rounded(np.array([1 + 2.0**-8 + 2.0**-40]), "BF16")[0])
    1.0078125
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.dtype == np.float64 and dtype not in ("F16", "F32", "F64")
        return (to_odd_float32(values) if narrow else values).astype(DTYPES[dtype])


def to_odd_float32(values: np.ndarray) -> np.ndarray:
    """Round float64 to float32 towards zero, setting the last bit when inexact.

    ml_dtypes converts float64 by way of float32, which would round twice; after rounding to odd the second
    rounding is the only one that counts (Boldo and Melquiond, IEEE Trans. Computers 57(4), 2008).
    """
    nearest = values.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= np.abs(nearest.astype(np.float64)) > np.abs(values)
    bits |= bits.view(np.float32).astype(np.float64) != values
    return np.where(np.isnan(values), np.float32(np.nan), bits.view(np.float32))


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies and how to read it.

    Attributes:
        name: its name in the checkpoint.
        dtype: the safetensors name of its type, a key of :data:`DTYPES`.
        shape: its dimensions; ``()`` for a scalar.
        shard: index of its file in the checkpoint's ``shards``.
        begin: absolute offset of its first byte in that file.
        end: absolute offset one past its last byte.

    >>> info = TensorInfo("w", "BF16", (3, 4, 5), 0, 100, 220)
    >>> info.count, info.nbytes, info.rows, info.columns
    (60, 120, 3, 20)
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int
    begin: int
    end: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.count * self.itemsize

    @property
    def rows(self) -> int:
        """First dimension; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def columns(self) -> int:
        """Product of all dimensions but the first: the elements in a row."""
        return math.prod(self.shape[1:])

    @property
    def bits_dtype(self) -> np.dtype[Any]:
        """The unsigned little-endian integer type as wide as an element."""
        return _BITS[self.itemsize]

    @property
    def is_float(self) -> bool:
        """Whether the elements are real floating-point numbers."""
        return self.dtype in FLOAT_DTYPES


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header: tensors in data order, the ``__metadata__`` strings, and the bytes of the data."""

    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]
    data_bytes: int


def parse_header(raw: bytes, *, file: str, shard: int = 0) -> Header:
    """Parse and validate the JSON of a header, trusting nothing in it.

    Args:
        raw: the JSON bytes, without the eight bytes of length before them.
        file: how messages name the file.
        shard: the index given to every :class:`TensorInfo`.

    Raises:
        InputError: the header breaks a rule of the format; the sentence names the file, the tensor, the rule.

    >>> header = parse_header(b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', file="a.safetensors")
    >>> header.tensors[0].nbytes, header.data_bytes
    (8, 8)
    """
    if not raw.startswith(b"{"):
        raise InputError(f"{file}: the header does not begin with '{{', so this is not a safetensors file")
    entries = _load_json(raw, file)
    metadata = _parse_metadata(entries.pop("__metadata__", None), file)
    data_start = LENGTH_BYTES + len(raw)
    tensors = [_parse_entry(name, entry, file, shard, data_start) for name, entry in entries.items()]
    tensors.sort(key=lambda info: (info.begin, info.end))
    position, previous = data_start, None
    for info in tensors:
        if info.begin != position:
            fault = "overlaps" if info.begin < position else "leaves a hole after"
            neighbour = f"tensor {previous!r}" if previous is not None else "the header"
            raise InputError(
                f"{file}: tensor {info.name!r} {fault} {neighbour} in the data, which the format forbids; "
                "save the checkpoint again"
            )
        position, previous = info.end, info.name
    return Header(tuple(tensors), metadata, position - data_start)


def build_header(
    entries: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The JSON bytes of a header for tensors laid out one after another in the given order.

    Padded with spaces so that the data begins at a multiple of eight, as the stock library does.

    Args:
        entries: ``(name, dtype, shape)`` of each tensor.
        metadata: strings for ``__metadata__``; left out when None.

    Raises:
        InputError: a name, type or shape that :func:`parse_header` would refuse.

    >>> build_header([("w", "BF16", (2, 2))])
    b'{"w":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}       '
    """
    document: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for name, dtype, shape in entries:
        if name in document:
            raise InputError(f"the tensor name {name!r} is given twice; names must differ")
        size = math.prod(shape) * DTYPES[dtype].itemsize if dtype in DTYPES else 0
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    parse_header(raw, file="the header to be written")
    return raw


def check_name(name: str, *, file: str) -> None:
    """Refuse a tensor name that is empty, too long, unprintable or shaped like a path out of a folder.

    Raises:
        InputError: which of these it is.
    """
    if not name or len(name) > MAX_NAME_CHARACTERS:
        raise InputError(
            f"{file}: a tensor name has {len(name)} characters, but 1 to {MAX_NAME_CHARACTERS} are allowed; "
            "rename it"
        )
    if any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in name):
        raise InputError(f"{file}: the tensor name {name[:80]!r} holds control characters; rename it")
    if name[0] in "/\\" or ".." in re.split(r"[/\\]", name):
        raise InputError(f"{file}: the tensor name {name[:80]!r} is shaped like a file path; rename it")


def strict_json(raw: bytes, *, file: str) -> Any:
    """Decode JSON in which no object repeats a key and every number is a plain integer or float.

    Raises:
        InputError: it is not UTF-8, not JSON, repeats a key, nests too deeply or holds NaN.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(items)
        if len(mapping) != len(items):
            twice, _ = Counter(key for key, _ in items).most_common(1)[0]
            raise InputError(f"{file}: {twice[:80]!r} appears twice in one JSON object; save the file again")
        return mapping

    def constant(text: str) -> NoReturn:
        raise InputError(f"{file}: holds {text}, which JSON does not allow; write it again")

    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError:
        raise InputError(f"{file}: the JSON is nested too deeply to be genuine; get the file again") from None
    except ValueError as error:
        raise InputError(
            f"{file}: is not valid JSON ({_first_line(error)}); the file is damaged, get it again"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120]


def _load_json(raw: bytes, file: str) -> dict[str, Any]:
    brackets = raw.count(b"[") + raw.count(b"{")
    if brackets > 16 + len(raw) // 8:
        raise InputError(
            f"{file}: the header is mostly brackets, so it is no list of tensors; get the file again"
        )
    document = strict_json(raw, file=f"{file} (header)")
    if not isinstance(document, dict):
        raise InputError(f"{file}: the header is not a JSON object; the file is damaged, get it again")
    return document


def _parse_metadata(value: Any, file: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InputError(f"{file}: __metadata__ must map strings to strings; save the file again")
    return value


def _parse_entry(name: str, entry: Any, file: str, shard: int, data_start: int) -> TensorInfo:
    check_name(name, file=file)
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise InputError(f"{file}: tensor {name!r} lacks dtype, shape or data_offsets; save the file again")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        way_out = (
            "belongs to a block-scaled quantisation; dequantise the checkpoint to BF16 first"
            if dtype in tuple(_BLOCK_SCALED_DTYPES)
            else f"is unknown; known are {', '.join(DTYPES)}"
        )
        raise InputError(f"{file}: the type {str(dtype)[:40]!r} of tensor {name!r} {way_out}")
    if not _is_list_of_sizes(shape) or len(shape) > MAX_RANK:
        raise InputError(
            f"{file}: tensor {name!r} has a shape that is not a list of at most {MAX_RANK} sizes"
        )
    # Zero dimensions must not hide absurd ones: numpy refuses such arrays too.
    if math.prod(size for size in shape if size) > MAX_ELEMENTS:
        raise InputError(
            f"{file}: tensor {name!r} has a shape of more than 2**48 elements; get the file again"
        )
    if not _is_list_of_sizes(offsets) or len(offsets) != 2:
        raise InputError(f"{file}: tensor {name!r} has data_offsets that are not two non-negative integers")
    begin, end = offsets
    size = math.prod(shape) * DTYPES[dtype].itemsize
    if end - begin != size:
        raise InputError(
            f"{file}: tensor {name!r} of type {dtype} and shape {list(shape)} takes {size} bytes, "
            f"but its data_offsets span {end - begin}; save the file again"
        )
    return TensorInfo(name, dtype, tuple(shape), shard, data_start + begin, data_start + end)


def _is_list_of_sizes(value: Any) -> bool:
    # type() and not isinstance: True is an int.  The bound keeps products and messages small.
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)
