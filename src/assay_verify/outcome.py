"""What a check ends in: a report of what was recomputed, or one of two refusals.

`Rejected` means that the file says something the checker finds false or malformed (exit 1); `Unsupported`
that it speaks of something this checker does not know (exit 3).  Nothing that is not understood is ever
accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Misuse", "Rejected", "Report", "Unsupported"]


class Rejected(Exception):
    """The file is malformed, or states something that the checker does not find; the message says which."""


class Unsupported(Exception):
    """A version, kind or rule that this checker does not know."""


class Misuse(Exception):
    """The command line asks for something that cannot be done; nothing is said about the file."""


@dataclass(slots=True)
class Report:
    """What was accepted: a line on the statement, what was recomputed, what was not, what is assumed."""

    kind: str = ""
    id: str = ""
    statement: str = ""
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
