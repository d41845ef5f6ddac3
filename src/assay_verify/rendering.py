"""The checker's report, for people and as JSON."""

from __future__ import annotations

import json

from assay_verify.outcome import Report

__all__ = ["as_json", "as_text"]

RESULTS = {0: "accepted", 1: "rejected", 2: "misuse", 3: "unsupported"}


def as_json(file: str, code: int, reason: str, report: Report) -> str:
    """One JSON object: file, result, exit code, reason, and the report's fields."""
    fields = {
        "file": file,
        "result": RESULTS[code],
        "exit_code": code,
        "reason": reason,
        "kind": report.kind,
        "id": report.id,
        "statement": report.statement,
        "checked": report.checked,
        "unchecked": report.unchecked,
        "assumed": report.assumed,
        "conditional": bool(report.assumed),
    }
    return json.dumps(fields, indent=2)


def as_text(file: str, code: int, reason: str, report: Report) -> str:
    """A few lines: the result, what was recomputed, what was not, and what it is conditional on."""
    if code != 0:
        return f"{RESULTS[code]}: {_printable(file)}\n  {_printable(reason)}"
    lines = [f"accepted: {_printable(file)}", f"  {_printable(report.statement)}", f"  id {report.id}"]
    for title, items in (
        ("checked", report.checked),
        ("NOT checked", report.unchecked),
        ("CONDITIONAL on what is only assumed", report.assumed),
    ):
        if items:
            lines.append(f"{title}:")
            lines += [f"  - {_printable(item)}" for item in items]
    return "\n".join(lines)


def _printable(text: str) -> str:
    """Names come from the file: no control sequence in them reaches the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
