"""Options that several verbs share, and the values they accept."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import click

from assay.cli.app import traceback_option
from assay.cli.output import Output

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)
"""A path; whether it exists is for the library to say, which says it better."""


class Exact(click.ParamType):
    """A number written ``0.9`` or ``9/10``, kept exactly.

    >>> Exact().convert("0.9", None, None), Exact().convert("9/10", None, None)
    (Fraction(9, 10), Fraction(9, 10))
    """

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """The rational that `value` spells."""
        try:
            return Fraction(value)
        except (ValueError, ZeroDivisionError):
            self.fail(f"{value!r} is no number; write 0.9 or 9/10", param, ctx)


class Rescale(click.ParamType):
    """``dare``, ``optimal`` or the divisor itself.

    >>> Rescale().convert("optimal", None, None), Rescale().convert("1/4", None, None)
    ('optimal', 0.25)
    """

    name = "dare|optimal|number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        """The word, or the number as a float."""
        if value in ("dare", "optimal"):
            return str(value)
        try:
            return float(Fraction(value))
        except (ValueError, ZeroDivisionError, OverflowError):
            self.fail(f"{value!r} is neither 'dare', 'optimal' nor a number", param, ctx)


class Bytes(click.ParamType):
    """A size as ``300000``, ``300kB`` or ``1.5MB``; decimal units.

    >>> Bytes().convert("300kB", None, None), Bytes().convert("1.5 MB", None, None)
    (300000, 1500000)
    """

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes, rounded down."""
        text = str(value).strip().lower().removesuffix("b").rstrip()
        unit = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}.get(text[-1:], 1)
        try:
            return int(Fraction(text.rstrip("kmgt").rstrip()) * unit)
        except (ValueError, ZeroDivisionError):
            self.fail(f"{value!r} is no size; write 300000, 300kB or 1.5MB", param, ctx)


class Shares(click.ParamType):
    """Shares in [0, 1) separated by commas.

    >>> Shares().convert("0.5,99/100", None, None)
    (0.5, 0.99)
    """

    name = "p,p,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """One float for each part."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(Fraction(part.strip())) for part in value.split(","))
        except (ValueError, ZeroDivisionError, OverflowError):
            self.fail(f"{value!r} is no list of shares; write 0.5,0.9", param, ctx)


class Weights(click.ParamType):
    """Numbers separated by commas.

    >>> Weights().convert("0.5,1/4", None, None)
    (0.5, 0.25)
    """

    name = "w,w,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """One float for each part."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(Fraction(part.strip())) for part in value.split(","))
        except (ValueError, ZeroDivisionError, OverflowError):
            self.fail(f"{value!r} is no list of numbers; write 0.5,0.5", param, ctx)


def max_length(function: F) -> F:
    """``--max-length``, of every verb that lets a model read texts."""
    return click.option(
        "--max-length",
        type=click.IntRange(min=1),
        default=256,
        show_default=True,
        help="Tokens kept of each text.",
    )(function)


def reporting(function: F) -> F:
    """``--json`` and ``--traceback``; the verb gets its `Output` as the argument ``out``."""

    def as_output(_ctx: click.Context, _param: click.Parameter, value: bool) -> Output:
        return Output(as_json=value)

    option = click.option(
        "--json", "out", is_flag=True, callback=as_output, help="Print the result as JSON, on stdout."
    )
    return traceback_option(option(function))


def writing(function: F) -> F:
    """What every verb that writes a checkpoint has in common."""
    options = (
        click.option("-o", "--out", "target", type=FILE, required=True, help="Where the result goes."),
        click.option("--workers", type=click.IntRange(min=1), help="Processors to use; default: all."),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="Where the work runs; the bytes are the same.",
        ),
        click.option(
            "--overwrite", is_flag=True, help="Replace an existing output, once the new one is whole."
        ),
        click.option(
            "--dry-run", is_flag=True, help="Say what would be done and how large it gets; write nothing."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function
