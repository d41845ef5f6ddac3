"""The delta file: a safetensors file that holds a plan, a certificate and the payloads.

The format is specified in ``docs/reference/delta-format.md``.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from assay.checkpoints.header import DTYPES
from assay.checkpoints.io import MAX_CARRIED_BYTES, Checkpoint, Source, is_plain_file_name, open_checkpoint
from assay.core.certificate import Certificate, canonical
from assay.core.errors import InputError, RejectedError

FORMAT = "assay-delta"
VERSION = "1.3"
PREFIX = "assay."
PLAN, CERTIFICATE, INDEX = "assay.plan", "assay.certificate", "assay.index"
BLOCK_ELEMENTS = 1 << 20
MAX_PLAN_BYTES = 64 << 20
TREATMENTS = ("dropped", "masked", "factored", "lossless", "exact", "unchanged", "alias", "absent")


def block_rows(rows: int, columns: int, base_rows: int | None = None) -> Iterator[tuple[int, int]]:
    """The blocks of a tensor as ranges of rows; the cut starts anew where the base's rows end, if they do.

    >>> list(block_rows(5, 1 << 19))
    [(0, 2), (2, 4), (4, 5)]
    >>> list(block_rows(5, 1 << 19, base_rows=3))
    [(0, 2), (2, 3), (3, 5)]
    """
    step = max(1, BLOCK_ELEMENTS // max(1, columns))
    middle = rows if base_rows is None else min(rows, base_rows)
    for first, last in ((0, middle), (middle, rows)):
        for start in range(first, last, step):
            yield start, min(start + step, last)


def quick_digest(block_digests: Iterable[bytes]) -> str:
    """xxh3-128, in hex, over the digests of a tensor's blocks."""
    return xxhash.xxh3_128_hexdigest(b"".join(block_digests))


def quick_fingerprint(checks: Mapping[str, str]) -> str:
    """The base's quick fingerprint: catches a wrong base early; the certificate's sha256 binds it."""
    lines = "".join(f"{name}\0{check}\n" for name, check in sorted(checks.items()))
    return "xxh3-128:" + xxhash.xxh3_128_hexdigest(lines.encode())


def source_fingerprint(source: Source) -> str:
    """The quick fingerprint of every tensor of a checkpoint, read once."""
    checks = {}
    for name, info in source.tensors.items():
        blocks = block_rows(info.rows, info.columns)
        checks[name] = quick_digest(
            xxhash.xxh3_128_digest(source.read_rows(name, start, stop).data) for start, stop in blocks
        )
    return quick_fingerprint(checks)


def deflate(data: bytes) -> bytes:
    """Raw DEFLATE, as small as zlib makes it."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    return coder.compress(data) + coder.flush()


def inflate(data: bytes, limit: int, what: str) -> bytes:
    """The inverse of `deflate`, refusing to grow beyond `limit` bytes.

    Raises:
        InputError: not raw DEFLATE, longer than `limit`, or followed by other bytes.
    """
    coder = zlib.decompressobj(-15)
    try:
        result = coder.decompress(data, limit + 1)
    except zlib.error as error:
        raise InputError(f"{what} is damaged: {error}") from None
    if len(result) > limit or not coder.eof or coder.unused_data:
        raise InputError(f"{what} is damaged: it does not inflate to the size that it should have")
    return result


class Delta:
    """A delta open for reading.  Payloads are read block by block; nothing is held whole.

    Attributes:
        path: the file.
        plan: the decoded plan.
        records: the plan's tensor records by name.
        id: sha256 of the payload.
        plan_id: sha256 of the plan as it is stored.
        base: the base's quick fingerprint.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: Checkpoint = open_checkpoint(self.path)
        metadata = {} if self._file.is_folder else self._file.shards[0].metadata
        if metadata.get("format") != FORMAT:
            raise InputError(
                f"{self.path} is no assay delta; make one with 'assay pack FINETUNED --base BASE -o DELTA'"
            )
        if metadata.get("version", "").partition(".")[0] != VERSION.partition(".")[0]:
            raise InputError(
                f"{self.path} is a delta of version {metadata.get('version')}; this assay reads {VERSION}"
            )
        self.id, self.base = metadata.get("id", ""), metadata.get("base", "")
        self.plan_id = self._plan_digest(metadata.get("plan"))
        self.plan = self._json(PLAN, MAX_PLAN_BYTES)
        self.records = self._checked_records()
        self._check_files()
        self._offsets = {name: self._block_offsets(record) for name, record in self.records.items()}

    def _plan_digest(self, stated: str | None) -> str:
        if PLAN not in self._file.tensors:
            raise InputError(f"{self.path} lacks {PLAN!r}, so it is no whole delta")
        found = hashlib.sha256(self._file.read_bytes(PLAN)).hexdigest()
        if stated not in (None, found):
            raise RejectedError(
                f"{self.path} is damaged: its plan does not have the digest it was sealed with"
            )
        return found

    def _json(self, name: str, limit: int) -> dict[str, Any]:
        try:
            value = json.loads(self.inflated(name, limit))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.path}: {name} is not JSON ({error})") from None
        if not isinstance(value, dict):
            raise InputError(f"{self.path}: {name} is not a JSON object")
        return value

    def _checked_records(self) -> dict[str, dict[str, Any]]:
        records = self.plan.get("tensors")
        if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
            raise InputError(f"{self.path}: the plan lists no tensors")
        for record in records:
            shape = record.get("shape")
            good = (
                isinstance(record.get("name"), str)
                and record.get("treatment") in TREATMENTS
                and record.get("dtype") in DTYPES
                and isinstance(shape, list)
                and all(type(n) is int and 0 <= n < 1 << 48 for n in shape)
            )
            if not good or not _reads_its_base(record):
                raise InputError(
                    f"{self.path}: the plan's record of {str(record.get('name'))[:80]!r} is malformed"
                )
        by_name = {r["name"]: r for r in records}
        if len(by_name) != len(records):
            raise InputError(f"{self.path}: the plan names a tensor twice")
        for record in records:
            if record["treatment"] == "alias" and not _can_repeat(record, by_name.get(str(record.get("of")))):
                raise InputError(
                    f"{self.path} is damaged: {record['name']!r} repeats a tensor that it cannot repeat"
                )
        return by_name

    def source(self, name: str) -> dict[str, Any]:
        """The record that says how a tensor is made: its own, or that of the tensor it repeats."""
        record = self.records[name]
        return self.records[record["of"]] if record["treatment"] == "alias" else record

    def _block_offsets(self, record: Mapping[str, Any]) -> list[int]:
        lengths = record.get("blocks", [])
        if not isinstance(lengths, list) or not all(type(n) is int and 0 <= n < 1 << 48 for n in lengths):
            raise InputError(f"{self.path}: the block lengths of {record['name']!r} are malformed")
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        info = self._file.tensors.get(record["name"])
        if offsets[-1] != (info.nbytes if info else 0):
            raise InputError(
                f"{self.path}: the payload of {record['name']!r} does not have the length of its blocks"
            )
        return offsets

    def _check_files(self) -> None:
        """Names and sizes of the output's files, which decide where and what is written."""
        files, index, carried = (self.plan.get(key) for key in ("files", "index", "carried"))
        if not isinstance(files, list) or not files:
            raise InputError(f"{self.path}: the plan names no output file")
        if not isinstance(carried, list) or not isinstance(index, dict | None):
            raise InputError(f"{self.path}: the plan's index or its carried files are malformed")
        for entry in [*files, *([] if index is None else [index]), *carried]:
            good = (
                isinstance(entry, dict)
                and isinstance(entry.get("name"), str)
                and type(entry.get("bytes")) is int
                and 0 <= entry["bytes"] <= MAX_CARRIED_BYTES
            )
            if not good or not all(map(is_plain_file_name, entry["name"].split("/"))):
                name = entry.get("name") if isinstance(entry, dict) else entry
                raise InputError(f"{self.path}: the plan's output file {str(name)[:80]!r} is malformed")
        if not self.plan.get("folder") and (len(files) != 1 or index is not None):
            raise InputError(f"{self.path}: the plan puts {len(files)} files into one")

    def inflated(self, name: str, limit: int) -> bytes:
        """The content of one of the ``assay.*`` tensors."""
        if name not in self._file.tensors:
            raise InputError(f"{self.path} lacks {name!r}, so it is no whole delta")
        return inflate(self._file.read_bytes(name), limit, f"{name} of {self.path}")

    def block(self, name: str, number: int) -> bytes:
        """The payload of one block."""
        offsets = self._offsets[name]
        if not 0 <= number < len(offsets) - 1:
            raise InputError(f"{self.path}: {name!r} has no block {number}")
        return self._file.read_rows(name, offsets[number], offsets[number + 1]).tobytes()

    def blocks(self, name: str) -> int:
        """How many blocks a tensor's payload has."""
        return len(self._offsets[name]) - 1

    @property
    def certificate(self) -> Certificate | None:
        """The certificate inside, its id checked; None if the delta was packed without one."""
        if CERTIFICATE not in self._file.tensors:
            return None
        data = self.inflated(CERTIFICATE, MAX_PLAN_BYTES)
        return Certificate.from_bytes(data, f"the certificate in {self.path}")

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._file.shards[0].size

    def payload_digest(self) -> str:
        """sha256 of the payload as it is on disk."""
        digest = hashlib.sha256()
        for name in self.records:
            info = self._file.tensors.get(name)
            for start in range(0, info.nbytes if info else 0, 1 << 22):
                digest.update(
                    self._file.read_rows(name, start, min(start + (1 << 22), info.nbytes if info else 0)).data
                )
        return digest.hexdigest()

    def check_payload(self) -> None:
        """Refuse a delta whose payload is not the one it was sealed with.

        Raises:
            RejectedError: a bit changed.
        """
        if self.payload_digest() != self.id:
            raise RejectedError(
                f"{self.path} is damaged: its payload does not have the digest it was sealed with"
            )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Delta, (self.path,)


def _reads_its_base(record: Mapping[str, Any]) -> bool:
    """Whether a record says which part of which base tensor it reads, as its treatment demands."""
    rows, known = record.get("base_rows"), record.get("check")
    if rows is not None and not (record["shape"] and type(rows) is int and 0 <= rows < 1 << 48):
        return False
    if record.get("base_dtype", record["dtype"]) not in DTYPES:
        return False
    needs = record["treatment"] not in ("exact", "absent", "alias")
    lone = known is None and (rows is None or record["treatment"] == "alias")
    return isinstance(known, str) or (lone and not needs)


def _can_repeat(record: Mapping[str, Any], source: Mapping[str, Any] | None) -> bool:
    """Whether a tensor can be the same as another one of the plan."""
    if source is None or source["treatment"] in ("alias", "absent"):
        return False
    return all(source.get(key) == record.get(key) for key in ("dtype", "base_dtype", "shape", "base_rows"))


def is_delta(path: str | os.PathLike[str]) -> bool:
    """Whether the file says that it is a delta."""
    try:
        checkpoint = open_checkpoint(path)
    except InputError:
        return False
    with checkpoint:
        return not checkpoint.is_folder and checkpoint.shards[0].metadata.get("format") == FORMAT


def metadata(payload_id: str, plan: bytes, base: str) -> dict[str, str]:
    """The ``__metadata__`` of a delta; `plan` is the plan as it is stored."""
    plan_id = hashlib.sha256(plan).hexdigest()
    return {"format": FORMAT, "version": VERSION, "id": payload_id, "plan": plan_id, "base": base}


def encode_plan(plan: Mapping[str, Any]) -> bytes:
    """The plan as it is stored."""
    return deflate(canonical(plan))
