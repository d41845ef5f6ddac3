"""One picture of an audit: the slack of what was seen, against each field."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from assay.audits import AuditReport
from assay.audits.space import flatten, leaves
from assay.core.errors import InputError

COLUMNS = 3


def points(report: AuditReport) -> dict[str, list[tuple[float, float]]]:
    """Per field, (value, slack) of every instance in the trace; a tuple gives a point for each element."""
    by_field: dict[str, list[tuple[float, float]]] = {}
    for approach in report.trace:
        shape, values = flatten(approach.instance)
        for leaf, value in zip(leaves(type(approach.instance), shape), values, strict=True):
            if not isinstance(value, str):
                by_field.setdefault(leaf.name, []).append((float(Fraction(value)), approach.slack))
    return by_field


def draw(report: AuditReport, path: Path) -> None:
    """Draw into `path`; the same report gives the same bytes.

    Raises:
        InputError: nothing was evaluated.
    """
    import matplotlib
    from matplotlib.figure import Figure

    by_field = points(report)
    if not by_field:
        raise InputError(f"{report.claim.id}: there is nothing to draw, since {report.reason}")
    rows = -(-len(by_field) // COLUMNS)
    with matplotlib.rc_context({"svg.hashsalt": report.claim.id, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(3.2 * min(COLUMNS, len(by_field)), 2.6 * rows), layout="constrained")
        for i, (name, pairs) in enumerate(by_field.items(), 1):
            axes = figure.add_subplot(rows, min(COLUMNS, len(by_field)), i)
            axes.plot([x for x, _ in pairs], [y for _, y in pairs], ".", markersize=2, rasterized=True)
            axes.axhline(0.0, color="tab:red", linewidth=0.8)
            axes.set_xlabel(name)
            if i % COLUMNS == 1 or len(by_field) == 1:
                axes.set_ylabel("relative slack")
        figure.suptitle(f"{report.claim.id}: {report.outcome}", fontsize=9)
        dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[path.suffix.lower()[1:]]
        figure.savefig(path, dpi=160, metadata=dateless)
