"""From files to a report: what FILE is, which subjects were given, and what is recomputed with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay_verify import certificate, delta, weights
from assay_verify.canonical import MAX_BYTES
from assay_verify.outcome import Misuse, Rejected, Report
from assay_verify.tensors import Tensor, looks_like_one, open_checkpoint

__all__ = ["check"]

PACK_SUBJECTS = ("base", "finetuned", "delta")
_PIECE = 1 << 20


def check(file: Path, given: Sequence[str]) -> Report:
    """Check `file`, a certificate or a delta, with the subjects `given`, each ``PATH`` or ``NAME=PATH``.

    Raises:
        Rejected: the file, or a subject, is not what it says.
        Unsupported: the file speaks of something this checker does not know.
        Misuse: no such file, or a subject that means nothing here.
        OSError: a file cannot be read.
    """
    if not file.is_file():
        raise Misuse(f"{file} is no file")
    with open(file, "rb") as stream:
        head = stream.read(8)
    if looks_like_one(head):
        opened = delta.open_delta(file)
        document, report = certificate.check(opened.certificate(), "the certificate inside")
        if document["kind"] != "pack":
            raise Rejected("the certificate inside a delta must be of kind 'pack'")
        _check_pack(document, report, opened, given)
        return report
    document, report = certificate.check(_read(file))
    if document["kind"] == "pack":
        _check_pack(document, report, None, given)
    else:
        _check_files(document, report, given)
    return report


def _read(file: Path) -> bytes:
    """The certificate's bytes: canonical JSON, and at most one line feed after it."""
    with open(file, "rb") as stream:
        data = stream.read(MAX_BYTES + 2)
    if len(data) > MAX_BYTES + 1:
        raise Rejected(f"the certificate is larger than {MAX_BYTES} bytes")
    return data.removesuffix(b"\n")


def _check_pack(
    document: Mapping[str, Any], report: Report, opened: delta.Delta | None, given: Sequence[str]
) -> None:
    paths: dict[str, Path] = {}
    for argument in given:
        name, equals, path = argument.partition("=")
        if not equals or name not in PACK_SUBJECTS or name in paths:
            raise Misuse(
                f"the subjects of a pack are base=PATH, finetuned=PATH and delta=PATH, each once; not {argument!r}"
            )
        paths[name] = Path(path)
    if "delta" in paths:
        if opened is not None:
            raise Misuse("FILE is itself the delta: give base=PATH and finetuned=PATH only")
        opened = delta.open_delta(paths["delta"])
    if opened is not None:
        delta.check_against(opened, document, report)
    sides: dict[str, dict[str, Tensor]] = {
        name: open_checkpoint(paths[name]) for name in ("base", "finetuned") if name in paths
    }
    weights.check(document, report, opened, sides)


def _check_files(document: Mapping[str, Any], report: Report, given: Sequence[str]) -> None:
    """Each file given must be a subject: of its digest, and of the name NAME where one is given."""
    names = [s["name"] for s in document["subjects"]]
    found = set()
    for argument in given:
        name, equals, path = argument.partition("=")
        named = bool(equals) and name in names
        found.add(_match(document, name if named else None, Path(path if named else argument), report))
    if missing := [name for name in names if name not in found]:
        report.unchecked.append(f"subjects that were not given: {', '.join(missing)}")


def _match(document: Mapping[str, Any], name: str | None, path: Path, report: Report) -> str:
    if not path.is_file():
        raise Misuse(f"{path} is no file")
    h, size = hashlib.sha256(), 0
    with open(path, "rb") as stream:
        while piece := stream.read(_PIECE):
            h.update(piece)
            size += len(piece)
    for subject in document["subjects"]:
        if (subject["sha256"], subject["bytes"]) == (h.hexdigest(), size) and name in (None, subject["name"]):
            report.checked.append(f"subject {subject['name']!r}: {size} bytes with the digest certified")
            return str(subject["name"])
    raise Rejected(f"{path} is no subject of this certificate: its sha256 is {h.hexdigest()}")
