"""Strict JSON: one spelling per document, and limits that make a hostile file cheap to refuse.

A certificate has exactly one spelling: keys sorted by code point, no white space, no escapes that JSON does
not require, no floats, no duplicate keys.  `parse` reads the bytes, writes what it read in that spelling, and
refuses a file whose bytes differ.  Then the fields of the document are read with the functions below, each of
which names the field that is missing or of the wrong type.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from assay_verify.outcome import Rejected

__all__ = ["array", "choice", "digest", "identity", "integer", "mapping", "name_of", "parse", "text"]

MAX_BYTES = 64 << 20
MAX_DEPTH = 32
MAX_INTEGER = 2**53 - 1

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def parse(data: bytes, what: str) -> dict[str, Any]:
    """The object that `data` spells canonically; `what` names it in messages.

    >>> parse(b'{"a":["1/3",true]}', "the example")
    {'a': ['1/3', True]}
    >>> parse(b'{"a": 1}', "the example")
    Traceback (most recent call last):
    assay_verify.outcome.Rejected: the example is not in canonical form

    Raises:
        Rejected: too large, no UTF-8, no JSON, or not in canonical form.
    """
    if len(data) > MAX_BYTES:
        raise Rejected(f"{what} is larger than {MAX_BYTES} bytes")
    try:
        document = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_float=_float,
            parse_constant=_float,
            parse_int=_int,
        )
    except UnicodeDecodeError:
        raise Rejected(f"{what} is not valid UTF-8") from None
    except RecursionError:
        raise Rejected(f"{what} is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise Rejected(f"{what} is not JSON: {_short(error)}") from None
    if not isinstance(document, dict):
        raise Rejected(f"{what} is not a JSON object")
    _check_depth(document, MAX_DEPTH, what)
    if canonical(document, what) != data:
        raise Rejected(f"{what} is not in canonical form")
    return document


def canonical(document: Mapping[str, Any], what: str = "the document") -> bytes:
    """The one spelling of a document.

    >>> canonical({"b": 1, "a": "é"}).decode()
    '{"a":"é","b":1}'
    """
    spelled = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        return spelled.encode("utf-8")
    except UnicodeEncodeError:
        raise Rejected(f"{what} holds half of a surrogate pair, which is no character") from None


def identity(document: Mapping[str, Any]) -> str:
    """The id that a certificate must carry: sha256 of the canonical form without ``id``."""
    return hashlib.sha256(canonical({k: v for k, v in document.items() if k != "id"})).hexdigest()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise Rejected("a duplicate key: an object holds the same key twice")
    return result


def _float(spelling: str) -> NoReturn:
    raise Rejected(f"a JSON float ({spelling[:20]}): numbers are written as strings")


def _int(spelling: str) -> int:
    if len(spelling) > 17 or abs(int(spelling)) > MAX_INTEGER:
        raise Rejected("a JSON integer beyond 2^53 - 1: write it as a string")
    return int(spelling)


def _check_depth(value: Any, levels: int, what: str) -> None:
    if not isinstance(value, dict | list):
        return
    if levels == 0:
        raise Rejected(f"{what} is nested more than {MAX_DEPTH} levels deep")
    for item in value.values() if isinstance(value, dict) else value:
        _check_depth(item, levels - 1, what)


def _short(error: object) -> str:
    return str(error)[:120]


def _take(owner: Mapping[str, Any], key: str, kind: type, word: str, where: str) -> Any:
    if key not in owner:
        raise Rejected(f"{where} lacks the field {key!r}")
    if type(owner[key]) is not kind:
        raise Rejected(f"{where}.{key} must be {word}")
    return owner[key]


def mapping(owner: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """The object ``owner[key]``."""
    return _take(owner, key, dict, "an object", where)


def array(owner: Mapping[str, Any], key: str, where: str, kind: type | None = None) -> list[Any]:
    """The list ``owner[key]``, all of whose items are of `kind`."""
    items = _take(owner, key, list, "a list", where)
    if kind is not None and any(type(item) is not kind for item in items):
        word = {dict: "objects", str: "strings", int: "integers"}[kind]
        raise Rejected(f"{where}.{key} must be a list of {word}")
    return items


def text(owner: Mapping[str, Any], key: str, where: str) -> str:
    """The string ``owner[key]``."""
    return _take(owner, key, str, "a string", where)


def name_of(owner: Mapping[str, Any], where: str) -> str:
    """The string ``owner["name"]``: not empty, and without control characters, since it is printed."""
    name = text(owner, "name", where)
    if not name or any(ord(c) < 32 or ord(c) == 127 for c in name):
        raise Rejected(f"{where}.name must be a name without control characters")
    return name


def integer(owner: Mapping[str, Any], key: str, where: str, low: int, high: int = MAX_INTEGER) -> int:
    """The integer ``owner[key]`` in low..high."""
    value = _take(owner, key, int, "an integer", where)
    if not low <= value <= high:
        raise Rejected(f"{where}.{key} = {value} is outside {low}..{high}")
    return value


def digest(owner: Mapping[str, Any], key: str, where: str) -> str:
    """The lower-case hex sha256 ``owner[key]``."""
    value = text(owner, key, where)
    if not _DIGEST.match(value):
        raise Rejected(f"{where}.{key} must be a sha256 in lower-case hex")
    return value


def choice(owner: Mapping[str, Any], key: str, where: str, allowed: Iterable[str]) -> str:
    """The string ``owner[key]``, one of `allowed`."""
    value = text(owner, key, where)
    if value not in allowed:
        raise Rejected(f"{where}.{key} = {value[:40]!r} is none of {', '.join(allowed)}")
    return value
