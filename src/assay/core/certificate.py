"""Certificates: JSON statements about digested subjects that a stranger can re-check.

The format is specified in ``docs/reference/certificate-format.md``; `assay_verify` checks it without assay.
A certificate holds no JSON floats (see `assay.core.number.encode_number`), and its id is the sha256 of the
canonical form of everything else in it, so no field can change unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import assay
from assay.core import instance as instances
from assay.core.claim import Claim, Limit
from assay.core.errors import InputError
from assay.core.number import Number, encode_number
from assay.core.verdict import Verdict, evaluate

FORMAT = "assay-certificate"
VERSION = "1.0"
MAX_INTEGER = 2**53 - 1
MAX_BYTES = 64 << 20
MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Subject:
    """Something a certificate speaks about, bound by the sha256 of its bytes."""

    name: str
    sha256: str
    bytes: int

    @classmethod
    def of_file(cls, path: str | os.PathLike[str], name: str | None = None) -> Subject:
        """The digest of a file, read in a stream."""
        h, size = hashlib.sha256(), 0
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                h.update(block)
                size += len(block)
        return cls(name or Path(path).name, h.hexdigest(), size)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A sealed statement; `document` is the JSON object, its id included."""

    document: Mapping[str, Any]
    verdict: Verdict | None = None

    @classmethod
    def seal(cls, body: Mapping[str, Any], verdict: Verdict | None = None) -> Certificate:
        """Add format, version, producer and id to `body`.

        Raises:
            InputError: `body` holds a float, a huge integer or something that is no JSON.
        """
        document = {
            "format": FORMAT,
            "version": VERSION,
            "producer": {"name": "assay", "version": assay.__version__},
            **body,
        }
        document["id"] = digest_of(document)
        return cls(document, verdict)

    @property
    def id(self) -> str:
        """sha256 of the canonical form of all other fields."""
        return str(self.document["id"])

    def to_bytes(self) -> bytes:
        """The canonical form, which is what is written to files."""
        return canonical(self.document)

    def save(self, path: str | Path) -> None:
        """Write the certificate whole or not at all."""
        target = Path(path)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self.to_bytes() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a certificate and check its id.

        Raises:
            InputError: not a certificate of this major version, or its id does not match its content.
        """
        data = Path(path).read_bytes()
        if len(data) > MAX_BYTES:
            raise InputError(f"{path} has {len(data)} bytes, more than a certificate may have ({MAX_BYTES})")
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the certificate") -> Certificate:
        """`load`, from memory."""
        try:
            document = json.loads(data, object_pairs_hook=_no_duplicates, parse_float=_no_floats)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name} is not the JSON of a certificate: {error}") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"{name} is not an {FORMAT} file")
        if str(document.get("version", "")).partition(".")[0] != VERSION.partition(".")[0]:
            raise InputError(f"{name} has version {document.get('version')!r}; this assay reads {VERSION}")
        if document.get("id") != digest_of(document):
            raise InputError(f"{name} was changed after it was sealed: its id does not match its content")
        return cls(document)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _no_floats(text: str) -> None:
    raise ValueError(f"the JSON float {text[:20]} is not allowed")


def canonical(document: Mapping[str, Any]) -> bytes:
    """Sorted keys, no spaces, UTF-8.

    >>> canonical({"b": 1, "a": ["1/3", True]})
    b'{"a":["1/3",true],"b":1}'
    """
    _check(document, 0)
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _check(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InputError("a certificate may not be nested so deeply")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InputError(f"a certificate's keys are strings, not {key!r}")
            _check(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > MAX_INTEGER:
            raise InputError("an integer beyond 2^53 is written as a string in a certificate")
    elif not (value is None or isinstance(value, str | bool)):
        raise InputError(f"a certificate cannot hold a {type(value).__name__}: write numbers as strings")


def digest_of(document: Mapping[str, Any]) -> str:
    """The id that `document` must carry."""
    return hashlib.sha256(canonical({k: v for k, v in document.items() if k != "id"})).hexdigest()


def claim_record(claim: Claim) -> dict[str, Any]:
    """What a certificate says of the claim it instantiates."""
    return {
        "id": claim.id,
        "title": claim.title,
        "form": claim.form.name,
        "statement_sha256": hashlib.sha256(claim.statement.encode()).hexdigest(),
        "source": str(claim.source),
        "code_sha256": claim.digest(),
    }


def certify(
    claim: Claim,
    instance_or_run: Any,
    *,
    subjects: Iterable[Subject] = (),
    precision: int = 128,
    draws: int = 0,
) -> Certificate:
    """Evaluate `claim` on an instance, or on a run's ``.instance``, and seal what was found.

    The certificate says that this instance satisfies (or violates) the claim; never that the claim is true.
    Its comparison is re-checked by anyone (`assay_verify`); its sides are recomputed by re-running the named
    code, which is what grade ``replay`` means.

    Raises:
        InputError: the claim is a `Limit`, of which nothing finite can be certified.
    """
    instance = getattr(instance_or_run, "instance", instance_or_run)
    if isinstance(claim.form, Limit):
        raise InputError(f"{claim.id} is a limit: certify one of {', '.join(claim.form.implied_by)} instead")
    verdict = evaluate(claim, instance, precision=precision, draws=draws)
    conclusion: dict[str, Any] = {
        "truth": verdict.truth.value,
        "strength": verdict.strength.value,
        "reason": verdict.reason,
    }
    if verdict.sides is not None:
        conclusion |= {
            "lhs": encode_number(verdict.sides.lhs),
            "relation": verdict.sides.relation,
            "rhs": encode_number(verdict.sides.rhs),
        }
    if verdict.alpha is not None:
        conclusion["alpha"] = encode_number(verdict.alpha)
    body = {
        "kind": "claim-instance",
        "claim": claim_record(claim),
        "subjects": [{"name": s.name, "sha256": s.sha256, "bytes": s.bytes} for s in subjects],
        "instance": instances.encode(instance),
        "premises": [{"name": p.name, "basis": p.basis, "truth": p.truth.value} for p in verdict.premises],
        "conclusion": conclusion,
        "facts": _facts(verdict.facts),
        "precision": precision,
        "draws": draws,
        "grade": "replay",
    }
    return Certificate.seal(body, verdict)


def _facts(facts: Mapping[str, Number]) -> dict[str, Any]:
    return {name: encode_number(value) for name, value in facts.items()}
