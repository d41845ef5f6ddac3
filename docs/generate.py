"""Write the reference pages that are read off the code: ``python docs/generate.py``.

``python docs/generate.py --check`` writes nothing and fails if a page is out of date.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from assay import cli
from assay.cli.show import EXPECTED, FORMAL, REFUTED_BY
from assay.core import errors
from assay.core.catalog import catalog
from assay.core.claim import Claim, Limit

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py; do not edit. -->"
PACKAGES = (
    "assay",
    "assay.audits",
    "assay.checkpoints",
    "assay.checkpoints.calibrate",
    "assay.checkpoints.energies",
    "assay.checkpoints.drift",
    "assay.missions.dare",
    "assay.core.instance",
    "assay.core.replay",
    "assay.core.errors",
)
"""Where public names live: what each of these offers is documented."""


def pages() -> dict[str, str]:
    """The generated pages by file name."""
    return {
        "cli.md": _page(_cli()),
        "errors.md": _page(_errors()),
        "claims.md": _page(_claims()),
        "python.md": _page(_python()),
    }


def _page(parts: Iterable[str]) -> str:
    return NOTE + "\n\n" + "\n\n".join(part.strip() for part in parts) + "\n"


def _cli() -> Iterator[str]:
    yield "# Command line"
    yield (
        "Results go to stdout, progress and warnings to stderr. With `--json` stdout holds one JSON document and"
        " nothing else. There is no colour where the output is no terminal, or where `NO_COLOR` is set."
    )
    yield EXIT_CODES
    with click.Context(cli.main, info_name="assay", **cli.main.context_settings) as root:
        yield _options(cli.main, root, "## `assay`")
        for verb in cli.main.list_commands(root):
            command = cli.main.get_command(root, verb)
            assert command is not None
            with click.Context(command, info_name=verb, parent=root) as ctx:
                usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
                yield f"## `assay {verb}`"
                yield f"```text\n{usage}\n```"
                yield inspect.cleandoc(command.help or "")
                yield _options(command, ctx)


EXIT_CODES = """\
## Exit codes

| code | meaning |
| --- | --- |
| 0 | done; holds; accepted |
| 1 | refuted; rejected; a budget cannot be met |
| 2 | misuse, bad input, internal error |
| 3 | undecided; a version, kind or rule that is not supported |
| 130 | interrupted; the same command resumes |
| 141 | the reader of stdout went away |"""


def _options(command: click.Command, ctx: click.Context, heading: str = "") -> str:
    rows = [
        r for p in command.get_params(ctx) if isinstance(p, click.Option) if (r := p.get_help_record(ctx))
    ]
    cells = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in rows]
    return "\n".join([*([heading, ""] if heading else []), "| option | meaning |", "| --- | --- |", *cells])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _errors() -> Iterator[str]:
    yield "# Errors"
    yield (
        "Every error that assay raises on purpose is an `AssayError`, importable from `assay.core.errors`. Its message is"
        " one sentence: what is wrong, where, and what to do. The command line prints it after `assay: ` and leaves with"
        " its exit code; `--traceback` also prints where it arose. Anything else that is raised is a defect: the command"
        " line calls it an internal error and leaves with 2."
    )
    table = ["| error | exit code | meaning |", "| --- | --- | --- |"]
    for kind in error_classes():
        table.append(f"| `{kind.__name__}` | {kind.exit_code} | {_cell(_first_paragraph(kind))} |")
    yield "\n".join(table)


def error_classes() -> list[type[errors.AssayError]]:
    """All error classes, the base first."""
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.AssayError)]
    return sorted(kinds, key=lambda kind: (kind is not errors.AssayError, kind.__name__))


def _claims() -> Iterator[str]:
    known = catalog()
    yield "# Claims"
    yield (
        f"Claims: {len(known)}; missions: {len(known.missions)}. `assay show CLAIM` prints the same"
        " page in the terminal. What a form can and cannot establish is said under *refuted by*."
    )
    for mission in known.missions.values():
        yield f"## {mission.id}: {mission.title}"
        if mission.summary:
            yield mission.summary
        for claim in mission.claims:
            yield from _claim(claim)


def _claim(claim: Claim) -> Iterator[str]:
    yield f"### `{claim.id}`"
    yield f"{claim.title}."
    yield f"```math\n{claim.statement}\n```"
    rows = [
        ("form", claim.form.name),
        ("instance", f"`{claim.instance.__name__}`"),
        ("premises", "; ".join(f"{p.name} ({p.basis})" for p in claim.premises) or "none"),
        ("source", str(claim.source)),
        (
            "formal",
            ", ".join(
                t for t in (FORMAL[claim.proof.status], claim.proof.name, claim.proof.environment) if t
            ),
        ),
        ("expected", EXPECTED[claim.expect]),
        ("refuted by", REFUTED_BY[claim.form.name]),
        ("uses", ", ".join(f"`{u}`" for u in claim.uses)),
        ("notes", claim.notes),
    ]
    if isinstance(claim.form, Limit):
        rows.append(("implied by", ", ".join(f"`{c}`" for c in claim.form.implied_by)))
    yield "\n".join(
        ["| | |", "| --- | --- |", *(f"| {name} | {_cell(text)} |" for name, text in rows if text)]
    )


def _python() -> Iterator[str]:
    yield "# Python"
    yield (
        "The public names. Everything else may change. Signatures name the drop probability `drop_prob` and the keep"
        " probability `keep_prob`; never a bare `p`."
    )
    for package in PACKAGES:
        yield f"## `{package}`"
        for name, value in public_names(package):
            yield _entry(name, value)


def public_names(package: str) -> list[tuple[str, Any]]:
    """What a package offers: its ``__all__``, or what it defines without an underscore."""
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            n for n, v in vars(module).items() if getattr(v, "__module__", None) == package and n[0] != "_"
        ]
    return [(name, getattr(module, name)) for name in sorted(names)]


def _entry(name: str, value: Any) -> str:
    if isinstance(value, type):
        methods = [
            n
            for n, v in vars(value).items()
            if n[0] != "_" and (callable(v) or isinstance(v, property | classmethod))
        ]
        members = (
            ""
            if issubclass(value, Exception) or not methods
            else f"\n\nMembers: {', '.join(f'`{m}`' for m in methods)}."
        )
        return f"### `{name}`\n\n```python\n{_signature(name, value)}\n```\n\n{_text(value)}{members}"
    if callable(value):
        return f"### `{name}`\n\n```python\n{_signature(name, value)}\n```\n\n{_text(value)}"
    return f"### `{name}`\n\n`{_cell(_stable(repr(value)))[:200]}`"


def _signature(name: str, value: Any) -> str:
    if isinstance(value, type) and issubclass(value, Exception):
        return f"class {name}"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    plain = [p.replace(annotation=_Unquoted.of(p.annotation)) for p in signature.parameters.values()]
    result = _Unquoted.of(signature.return_annotation)
    one_line = name + _stable(str(signature.replace(parameters=plain, return_annotation=result)))
    if len(one_line) <= 100:
        return one_line
    body, _, result = (
        one_line.rpartition(") -> ") if ") -> " in one_line else (one_line.removesuffix(")"), "", "")
    )
    head, _, parameters = body.partition("(")
    lines = "".join(f"    {p},\n" for p in _split(parameters))
    return f"{head}(\n{lines})" + (f" -> {result}" if result else "")


class _Unquoted(str):
    """An annotation that is written as it stands in the source."""

    @classmethod
    def of(cls, annotation: Any) -> Any:
        return cls(annotation) if isinstance(annotation, str) else annotation

    def __repr__(self) -> str:
        return str(self)


def _split(parameters: str) -> list[str]:
    """Parameters at the outermost commas."""
    parts, depth = [""], 0
    for character in parameters:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [p.strip() for p in parts if p.strip()]


def _stable(text: str) -> str:
    return re.sub(r"<(?:function|class|built-in function) '?([\w.<>]+)'?(?: at 0x[0-9a-f]+)?>", r"\1", text)


def _first_paragraph(value: Any) -> str:
    return inspect.cleandoc(value.__doc__ or "").split("\n\n")[0]


def _text(value: Any) -> str:
    """The docstring: its prose as it is, its sections and examples as code."""
    if isinstance(value, type) and "__doc__" not in vars(value):
        return ""
    return "\n\n".join(
        f"```text\n{part}\n```"
        if re.match(r"(Args|Attributes|Returns|Raises|Yields|>>>)", part)
        else part.replace("``", "`")
        for part in inspect.cleandoc(value.__doc__ or "").split("\n\n")
    )


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` say which are out of date."""
    stale = 0
    for name, text in pages().items():
        path = REFERENCE / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if arguments == ["--check"]:
            print(f"{path} is out of date; run python docs/generate.py", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 1 if stale and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
