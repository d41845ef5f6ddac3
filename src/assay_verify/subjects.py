"""From files to a report: what FILE is, which subjects were given, and what can be recomputed with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay_verify import certificate
from assay_verify.canonical import MAX_BYTES
from assay_verify.outcome import Misuse, Rejected, Report

__all__ = ["check"]

PACK_SUBJECTS = ("base", "finetuned", "delta", "moments")
_BLOCK = 1 << 20


def check(file: Path, given: Sequence[str]) -> Report:
    """Check `file` with the subjects `given`, each ``PATH`` or ``NAME=PATH``.

    Raises:
        Rejected: the file, or a subject, is not what it says.
        Unsupported: the file speaks of something this checker does not know.
        Misuse: no such file, or a subject that means nothing here.
        OSError: a file cannot be read.
    """
    document, report = certificate.check(_read(file))
    if document["kind"] == "claim-instance":
        for argument in given:
            _match(document, argument, report)
        missing = len(document["subjects"]) - len(given)
        if missing > 0:
            report.unchecked.append(f"{missing} subjects that were not given")
    return report


def _read(file: Path) -> bytes:
    """The certificate's bytes: canonical JSON, and at most one line feed after it."""
    if not file.is_file():
        raise Misuse(f"{file} is no file")
    with open(file, "rb") as stream:
        data = stream.read(MAX_BYTES + 2)
    if len(data) > MAX_BYTES + 1:
        raise Rejected(f"the certificate is larger than {MAX_BYTES} bytes")
    return data.removesuffix(b"\n")


def _match(document: Mapping[str, Any], argument: str, report: Report) -> None:
    """Find the subject whose digest is that of the file (and whose name is NAME, where one is given)."""
    name, path = _split(argument, [s["name"] for s in document["subjects"]])
    size, found = _digest(path)
    for subject in document["subjects"]:
        if (subject["sha256"], subject["bytes"]) == (found, size) and name in (None, subject["name"]):
            report.checked.append(f"subject {subject['name']!r}: {size} bytes, sha256 {found[:12]}...")
            return
    raise Rejected(f"{path} is no subject of this certificate: its sha256 is {found}")


def _split(argument: str, names: Sequence[str]) -> tuple[str | None, Path]:
    """``NAME=PATH`` for a known name, else ``PATH`` (which may hold an equals sign)."""
    name, equals, path = argument.partition("=")
    named = bool(equals) and name in names
    result = Path(path if named else argument)
    if not result.exists():
        raise Misuse(f"{result} does not exist")
    return (name if named else None), result


def _digest(path: Path) -> tuple[int, str]:
    h, size = hashlib.sha256(), 0
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            h.update(block)
            size += len(block)
    return size, h.hexdigest()
