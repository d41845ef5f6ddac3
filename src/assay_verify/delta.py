"""The delta file: its container, its plan, and that both agree with the certificate.

The format is specified in ``docs/reference/delta-format.md``.  Nothing in the file is trusted: every inflation
is bounded, every name that could become a path is checked, and the plan must say of each tensor what the
certificate says.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay_verify import factors
from assay_verify.canonical import MAX_BYTES, array, digest, integer, mapping, name_of, parse, text
from assay_verify.outcome import Misuse, Rejected, Report, Unsupported
from assay_verify.tensors import (
    MAX_ELEMENTS,
    MAX_HEADER,
    PIECE,
    Tensor,
    is_plain_name,
    is_shape,
    open_file,
    parse_header,
)

__all__ = ["Delta", "check_against", "open_delta"]

FORMAT = "assay-delta"
MAJOR = 1
PLAN, CERTIFICATE, INDEX = "assay.plan", "assay.certificate", "assay.index"
MAX_CARRIED = 1 << 40
TREATMENTS = ("dropped", "masked", "factored", "lossless", "exact", "unchanged", "alias", "absent")
PAYLOAD = ("dropped", "masked", "factored", "lossless", "exact")  # treatments that may have a payload
SHARED = ("name", "dtype", "shape", "treatment", "threshold", "rescale", "bits", "span", "step")
"""Fields that plan and certificate have in common."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A delta open for reading: its tensors, its decoded plan, and the id of its payload."""

    path: Path
    tensors: Mapping[str, Tensor]
    plan: Mapping[str, Any]
    id: str

    def certificate(self) -> bytes:
        """The certificate inside, inflated.

        Raises:
            Misuse: there is none.
        """
        if CERTIFICATE not in self.tensors:
            raise Misuse(
                f"{self.path} holds no certificate: give the certificate as FILE, this as --subject delta="
            )
        return b"".join(inflated(self.tensors[CERTIFICATE], MAX_BYTES))

    def payload(self) -> Iterator[Tensor]:
        """The payload tensors, in the order of the plan."""
        return (self.tensors[r["name"]] for r in self.plan["tensors"] if r["name"] in self.tensors)

    def blocks(self, record: Mapping[str, Any]) -> Iterator[bytes]:
        """The payloads of a tensor's blocks."""
        start = 0
        for length in record.get("blocks", ()):
            yield self.tensors[record["name"]].read(start, start + length)
            start += length


def inflated(tensor: Tensor, limit: int) -> Iterator[bytes]:
    """The raw-DEFLATE content of a tensor, in pieces, and never more than `limit` bytes of it.

    Raises:
        Rejected: no raw DEFLATE, more than `limit` bytes, or something after its end.
    """
    coder, total = zlib.decompressobj(-15), 0
    what = f"{tensor.path}: {tensor.name!r}"
    for piece in tensor.pieces():
        full = False  # the coder may hold more output when it has eaten all input
        while piece or full:
            try:
                data = coder.decompress(piece, PIECE)
            except zlib.error:
                raise Rejected(f"{what} is not raw DEFLATE") from None
            total += len(data)
            if total > limit:
                raise Rejected(f"{what} inflates to more than {limit} bytes")
            yield data
            if coder.unused_data:
                raise Rejected(f"{what} has something after its end")
            piece, full = coder.unconsumed_tail, len(data) == PIECE
    if not coder.eof:
        raise Rejected(f"{what} is cut short")


def open_delta(path: Path) -> Delta:
    """Open a delta; check container, plan, carried files and the digest of the payload.

    Raises:
        Rejected: any of these is malformed, or the payload is not the one that was sealed.
        Unsupported: another format, major version or treatment.
    """
    file = open_file(path)
    if file.metadata.get("format") != FORMAT:
        raise Unsupported(
            f"{path} is no assay delta: its format is {file.metadata.get('format', 'not given')[:40]!r}"
        )
    version = file.metadata.get("version", "")
    major, dot, minor = version.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        raise Rejected(f"{path}: the version {version[:40]!r} is not MAJOR.MINOR")
    if major != str(MAJOR):
        raise Unsupported(f"version {version[:40]} of the delta format: this checker knows {MAJOR}.x")
    for tensor in file.tensors.values():
        if tensor.dtype != "U8":
            raise Rejected(f"{path}: the tensor {tensor.name[:60]!r} of a delta must have type U8")
    if PLAN not in file.tensors:
        raise Rejected(f"{path} holds no plan")
    plan = parse(b"".join(inflated(file.tensors[PLAN], MAX_BYTES)), "the plan")
    delta = Delta(path, file.tensors, plan, digest(file.metadata, "id", "__metadata__"))
    known = {PLAN, CERTIFICATE} | _check_tensors(delta) | _check_files(delta)
    if stray := file.tensors.keys() - known:
        raise Rejected(f"{path}: the tensor {min(stray)[:60]!r} is not in the plan")
    h = hashlib.sha256()
    for tensor in delta.payload():
        for piece in tensor.pieces():
            h.update(piece)
    if h.hexdigest() != delta.id:
        raise Rejected(f"{path}: the payload does not have the digest it was sealed with")
    return delta


def _check_tensors(delta: Delta) -> set[str]:
    """Check the records' treatment and block lengths; the names of the payload tensors."""
    names: dict[str, Mapping[str, Any]] = {}
    payload: set[str] = set()
    for record in array(delta.plan, "tensors", "plan", dict):
        name = name_of(record, "plan tensor")
        where = f"plan tensor {name[:60]!r}"
        if name in names:
            raise Rejected(f"{where} is listed twice")
        if name.startswith("assay."):
            raise Rejected(f"{where}: names that begin with 'assay.' are reserved")
        text(record, "dtype", where)
        if not is_shape(record.get("shape")):
            raise Rejected(f"{where}.shape is no shape")
        if "base_rows" in record:
            integer(record, "base_rows", where, 0, MAX_ELEMENTS)
        treatment = text(record, "treatment", where)
        if treatment not in TREATMENTS:
            raise Unsupported(f"{where}: the treatment {treatment[:40]!r} is unknown to this checker")
        if treatment == "alias" and text(record, "of", where) not in names:
            raise Rejected(f"{where} repeats a tensor that does not come before it")
        if treatment == "alias" and not _can_repeat(record, names[record["of"]]):
            raise Rejected(f"{where} repeats a tensor that it cannot repeat")
        names[name] = record
        blocks = array(record, "blocks", where, int) if "blocks" in record else []
        if any(length < 0 for length in blocks):
            raise Rejected(f"{where}: the block lengths are malformed")
        size = delta.tensors[name].size if name in delta.tensors else 0
        if sum(blocks) != size or (blocks and treatment not in PAYLOAD):
            raise Rejected(f"{where}: the payload does not have the length of its blocks")
        if name in delta.tensors:
            payload.add(name)
    return payload


def _can_repeat(record: Mapping[str, Any], original: Mapping[str, Any]) -> bool:
    """Whether a tensor can come out the same as another: it is made, and of the same type, shape and rows."""
    fields = ("dtype", "base_dtype", "shape", "base_rows")
    made = original["treatment"] not in ("alias", "absent")
    return made and all(record.get(key) == original.get(key) for key in fields)


def _check_files(delta: Delta) -> set[str]:
    """Check output headers, index and carried files; the names of their tensors.

    The headers together must describe the plan's tensors, each once: they decide where its values are written.
    """
    plan = delta.plan
    headers = [(f"assay.header.{n}", entry) for n, entry in enumerate(array(plan, "files", "plan", dict))]
    others = [(f"assay.carried.{n}", entry) for n, entry in enumerate(array(plan, "carried", "plan", dict))]
    if plan.get("index") is not None:
        others.append((INDEX, mapping(plan, "index", "plan")))
    outputs: set[str] = set()
    for tensor_name, entry in headers + others:
        name = text(entry, "name", "plan file")
        # a carried file may lie in a subfolder, as 1_Pooling/config.json does
        parts = name.split("/") if tensor_name.startswith("assay.carried.") else [name]
        if not all(map(is_plain_name, parts)):
            raise Rejected(f"the file name {name[:60]!r} in the plan could leave its folder")
        if name in outputs:
            raise Rejected(f"the plan writes the file {name[:60]!r} twice")
        outputs.add(name)
    described: dict[str, Tensor] = {}
    for tensor_name, entry in headers:
        if integer(entry, "bytes", tensor_name, 0) > MAX_HEADER:
            raise Rejected(f"{tensor_name!r} is larger than a header may be")
        raw = b"".join(_content(delta, tensor_name, entry))
        file, _ = parse_header(raw, Path(entry["name"]))
        if twice := described.keys() & file.tensors.keys():
            raise Rejected(f"two output headers describe the tensor {min(twice)[:60]!r}")
        described |= file.tensors
    stated = {
        r["name"]: (r["dtype"], tuple(r["shape"])) for r in plan["tensors"] if r["treatment"] != "absent"
    }
    if {name: (t.dtype, t.shape) for name, t in described.items()} != stated:
        raise Rejected("the output headers do not describe the tensors of the plan")
    kept = [(name, entry) for name, entry in others if entry.get("from") != "base"]
    for name, entry in kept:
        for _ in _content(delta, name, entry):
            pass
    return {name for name, _ in headers + kept}


def _content(delta: Delta, name: str, entry: Mapping[str, Any]) -> Iterator[bytes]:
    """The content of a file that the plan describes, checked for its size and digest as it passes."""
    size = integer(entry, "bytes", name, 0, MAX_CARRIED)
    if name not in delta.tensors:
        raise Rejected(f"{delta.path} lacks {name!r}")
    h, length = hashlib.sha256(), 0
    for piece in inflated(delta.tensors[name], size):
        h.update(piece)
        length += len(piece)
        yield piece
    if length != size:
        raise Rejected(f"{name!r} does not inflate to the {size} bytes that the plan states")
    if "sha256" in entry and digest(entry, "sha256", name) != h.hexdigest():
        raise Rejected(f"{name!r} does not have the sha256 that the plan states")


def check_against(delta: Delta, document: Mapping[str, Any], report: Report) -> None:
    """Check that the certificate speaks of this delta: the payload's digest, the seed, and every record.

    Raises:
        Rejected: it does not.
    """
    payload = next(s for s in document["subjects"] if s["name"] == "payload")
    if payload["sha256"] != delta.id:
        raise Rejected("the certificate speaks of another payload than the delta's")
    size = sum(tensor.size for tensor in delta.payload())
    if payload["bytes"] != size:
        raise Rejected(
            f"the certificate states a payload of {payload['bytes']} bytes, and the delta has {size}"
        )
    if text(delta.plan, "seed", "plan") != document["settings"]["seed"]:
        raise Rejected("the plan and the certificate state different seeds")
    plans, records = delta.plan["tensors"], document["tensors"]
    if [r["name"] for r in plans] != [r["name"] for r in records]:
        raise Rejected("the plan and the certificate do not list the same tensors in the same order")
    for plan, record in zip(plans, records, strict=True):
        for key in SHARED:
            if plan.get(key) != record.get(key):
                raise Rejected(f"tensor {plan['name'][:60]!r}: plan and certificate differ in {key!r}")
        if plan["treatment"] == "factored" and factors.digest_of(plan) != record["factors"]:
            raise Rejected(f"tensor {plan['name'][:60]!r}: the plan's factors are not the certified ones")
    report.checked.append(
        f"the delta: container, plan, carried files and payload ({size} bytes), as certified"
    )
