"""Instances: frozen, serialisable values of a mission's model.

An instance type is a frozen dataclass whose fields are `Fraction`, `int`, `bool`, `str`, tuples of these,
or other instance types.  `typing.Annotated` says where a field lives, which is all that the audit needs to
propose values:

>>> from typing import Annotated
>>> Coin = dataclasses.make_dataclass("Coin", [
...     ("drop_prob", Annotated[Fraction, Range(0, 1)]),
...     ("coefficients", Annotated[tuple[Fraction, ...], Length(0, 6), Range(-4, 4)]),
... ], frozen=True)
>>> coin = Coin(Fraction(1, 3), (Fraction(2), Fraction(-1)))
>>> encode(coin)
{'drop_prob': '1/3', 'coefficients': ['2', '-1']}
>>> decode(Coin, encode(coin)) == coin
True
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

from assay.core.errors import InputError
from assay.core.number import as_float, decode_number

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """Where a number lives: ``low <= x <= high``, an end left out where `open_low` or `open_high` says so."""

    low: Fraction | int
    high: Fraction | int
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: Fraction | int) -> bool:
        above = self.low < value if self.open_low else self.low <= value
        below = value < self.high if self.open_high else value <= self.high
        return above and below


@dataclass(frozen=True, slots=True)
class Length:
    """How many elements a tuple has, from `low` to `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an instance type, its annotation taken apart: element `kind`, `range`, `length`.

    `length` is None for a scalar.  `kind` is `Fraction`, `int`, `bool`, `str` or another instance type.
    """

    name: str
    kind: type
    range: Range | None
    length: Length | None


def fields(kind: type) -> tuple[Field, ...]:
    """The fields of an instance type.

    Raises:
        InputError: the type is no frozen dataclass, or a field's annotation is none of those above.
    """
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise InputError(f"the instance type {kind.__name__} must be a frozen dataclass")
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(_field(kind, f.name, hints[f.name]) for f in dataclasses.fields(kind))


def _field(owner: type, name: str, hint: Any) -> Field:
    notes: tuple[Any, ...] = ()
    if typing.get_origin(hint) is typing.Annotated:
        hint, *rest = typing.get_args(hint)
        notes = tuple(rest)
    bounds = next((n for n in notes if isinstance(n, Range)), None)
    length = next((n for n in notes if isinstance(n, Length)), None)
    if typing.get_origin(hint) is tuple:
        arguments = typing.get_args(hint)
        if len(arguments) != 2 or arguments[1] is not Ellipsis:
            raise InputError(f"{owner.__name__}.{name} must be a tuple[X, ...], not {hint}")
        inner = _field(owner, name, arguments[0])
        if inner.length is not None:
            raise InputError(
                f"{owner.__name__}.{name} nests tuples: give the rows an instance type of their own"
            )
        return Field(name, inner.kind, bounds or inner.range, length or Length(0, 6))
    if isinstance(hint, types.UnionType) and Fraction in hint.__args__:
        hint = Fraction
    if hint in (Fraction, int, bool, str) or dataclasses.is_dataclass(hint):
        return Field(name, typing.cast(type, hint), bounds, None)
    raise InputError(
        f"{owner.__name__}.{name} has the type {hint}, which is no Fraction, int, bool, str, instance type or tuple"
    )


def encode(instance: Any) -> dict[str, Any]:
    """The instance as JSON: rationals as strings, integers as strings too, so that no size is lost."""
    return {f.name: _encode_value(getattr(instance, f.name)) for f in dataclasses.fields(instance)}


def _encode_value(value: Any) -> Any:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | Fraction):
        return str(Fraction(value))
    if isinstance(value, tuple):
        return [_encode_value(v) for v in value]
    if dataclasses.is_dataclass(value):
        return encode(value)
    raise InputError(f"an instance holds exact values only, and {value!r} is a {type(value).__name__}")


def decode(kind: type[T], data: Any) -> T:
    """The instance that `encode` wrote.

    Raises:
        InputError: a field is missing, unknown, of the wrong type or outside its range.
    """
    if not isinstance(data, dict):
        raise InputError(
            f"a {kind.__name__} is written as an object of its fields, not as {str(data)[:40]!r}"
        )
    known = {f.name: f for f in fields(kind)}
    for wrong, word in ((known.keys() - data.keys(), "lacks"), (data.keys() - known.keys(), "does not know")):
        if wrong:
            raise InputError(f"a {kind.__name__} {word} the field {sorted(wrong)[0]!r}")
    return kind(**{name: _decode_field(kind, known[name], data[name]) for name in known})


def _decode_field(owner: type, field: Field, data: Any) -> Any:
    if field.length is None:
        return _decode_value(owner, field, data)
    if not isinstance(data, list):
        raise InputError(f"{owner.__name__}.{field.name} is written as a list")
    return tuple(_decode_value(owner, field, item) for item in data)


def _decode_value(owner: type, field: Field, data: Any) -> Any:
    if dataclasses.is_dataclass(field.kind):
        return decode(field.kind, data)
    if field.kind in (bool, str):
        if type(data) is not field.kind:
            raise InputError(f"{owner.__name__}.{field.name} must be a {field.kind.__name__}")
        return data
    value = decode_number(data)
    if not isinstance(value, Fraction) or (field.kind is int and value.denominator != 1):
        raise InputError(
            f"{owner.__name__}.{field.name} must be an exact {field.kind.__name__}, not {data!r}"
        )
    if field.range is not None and value not in field.range:
        raise InputError(
            f"{owner.__name__}.{field.name} = {data} is outside {field.range.low}..{field.range.high}"
        )
    return int(value) if field.kind is int else value


def floated(instance: T) -> T:
    """The instance with its rationals as floats: for searches, which floats make fast and never prove."""
    changes = {f.name: _floated_value(getattr(instance, f.name)) for f in dataclasses.fields(instance)}  # type: ignore[arg-type]
    return dataclasses.replace(instance, **changes)  # type: ignore[type-var]


def _floated_value(value: Any) -> Any:
    if isinstance(value, Fraction):
        return as_float(value)
    if isinstance(value, tuple):
        return tuple(_floated_value(v) for v in value)
    return floated(value) if dataclasses.is_dataclass(value) else value
