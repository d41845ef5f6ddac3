"""``assay new``: a file with one working claim, to be edited."""

from __future__ import annotations

from pathlib import Path

import click

from assay.cli.options import FILE, reporting
from assay.cli.output import Output
from assay.core.errors import InputError

TEMPLATE = '''\
"""Claims of {name}: edit, then run ``assay audit {file}``."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from assay import Bound, Claim, Length, Premise, Range, Sides, Source


@dataclass(frozen=True)
class Numbers:
    """What the theorem speaks about; the annotations say where the audit looks."""

    values: Annotated[tuple[Fraction, ...], Length(1, 5), Range(-2, 2)]


def sides(x: Numbers) -> Sides:
    """The two sides.  Write + - * / ** and the functions of assay.numerics.arb (exp, log, sqrt, ...)."""
    n = len(x.values)
    return Sides(sum(x.values) ** 2, "<=", n * sum(v**2 for v in x.values))


square_of_the_sum = Claim(
    id="{name}.square_of_the_sum",
    title="The square of a sum",
    statement=r"(x_1 + \\dots + x_n)^2 \\le n (x_1^2 + \\dots + x_n^2)",
    instance=Numbers,
    form=Bound(sides),
    source=Source("the paper", "Theorem 1"),
    premises=(Premise("not all 0", lambda x: any(x.values)),),
)
'''


@click.command("new", short_help="Write a claim file to edit.")
@click.argument("name")
@click.option("-o", "--out", "target", type=FILE, help="The file to write; default: NAME.py.")
@reporting
def command(name: str, target: Path | None, out: Output) -> None:
    """Write NAME.py with one working claim, to be edited and audited."""
    if not name.isidentifier():
        raise InputError(
            f"the name {name!r} must be a Python identifier, since claims are called NAME.something"
        )
    file = target or Path(f"{name}.py")
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(TEMPLATE.format(name=name, file=file))
    except FileExistsError:
        raise InputError(f"{file} exists already; choose another name or -o") from None
    out.result({"file": str(file)}, lambda: iter([f"wrote {file}; edit it, then: assay audit {file}"]))
