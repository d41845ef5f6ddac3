"""The rules that hold for every certificate, and the table of kinds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from assay_verify import claim_instance, pack
from assay_verify.canonical import array, choice, digest, identity, integer, mapping, name_of, parse, text
from assay_verify.outcome import Rejected, Report, Unsupported

__all__ = ["FORMAT", "KINDS", "check"]

FORMAT = "assay-certificate"
MAJOR = 1
BASES = ("checked", "constructed", "assumed")

KINDS: Mapping[str, Callable[[Mapping[str, Any], Report], None]] = {
    "claim-instance": claim_instance.check,
    "pack": pack.check,
}

_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\Z")


def check(data: bytes, what: str = "the certificate") -> tuple[dict[str, Any], Report]:
    """Check the certificate in `data`; its document, and what was and was not recomputed.

    Raises:
        Rejected: it is malformed, or something in it is not what the checker finds.
        Unsupported: its format, major version, kind or one of its rules is unknown.
    """
    document = parse(data, what)
    if text(document, "format", "certificate") != FORMAT:
        raise Unsupported(f"the format {document['format'][:40]!r} is not {FORMAT!r}")
    version = _VERSION.match(text(document, "version", "certificate"))
    if version is None:
        raise Rejected(f"certificate.version = {document['version'][:40]!r} is not MAJOR.MINOR")
    if int(version[1]) != MAJOR:
        raise Unsupported(f"version {version[0]} of the format: this checker knows {MAJOR}.x")
    if digest(document, "id", "certificate") != identity(document):
        raise Rejected("the id does not match the content: the certificate was changed after it was sealed")

    report = Report(id=document["id"])
    report.checked.append("canonical form, identity and version")
    _check_producer(document)
    _check_subjects(document)
    _check_premises(document, report)
    choice(document, "grade", "certificate", ("kernel", "replay"))
    report.kind = text(document, "kind", "certificate")
    if report.kind not in KINDS:
        raise Unsupported(f"the kind {report.kind[:40]!r} is unknown to this checker")
    KINDS[report.kind](document, report)
    return document, report


def _check_producer(document: Mapping[str, Any]) -> None:
    producer = mapping(document, "producer", "certificate")
    name_of(producer, "producer")
    text(producer, "version", "producer")


def _check_subjects(document: Mapping[str, Any]) -> None:
    names = set()
    for subject in array(document, "subjects", "certificate", dict):
        name = name_of(subject, "subject")
        if name in names:
            raise Rejected(f"two subjects have the name {name[:60]!r}")
        names.add(name)
        digest(subject, "sha256", f"subject {name[:60]!r}")
        integer(subject, "bytes", f"subject {name[:60]!r}", 0)


def _check_premises(document: Mapping[str, Any], report: Report) -> None:
    names = set()
    for premise in array(document, "premises", "certificate", dict):
        name = name_of(premise, "premise")
        if name in names:
            raise Rejected(f"two premises have the name {name[:60]!r}")
        names.add(name)
        basis = choice(premise, "basis", "premise", BASES)
        choice(premise, "truth", "premise", ("TRUE", "FALSE", "UNKNOWN"))
        if basis == "assumed":
            report.assumed.append(name)
    if any(p["basis"] == "checked" for p in document["premises"]):
        report.unchecked.append("the checked premises: their truth comes from the named code")
