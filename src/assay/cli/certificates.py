"""A pack certificate in words and in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.cli.figures import figure, number, ratio, share

if TYPE_CHECKING:
    from rich.console import RenderableType

LOSSY = ("dropped", "masked", "factored")
ROWS = 8
"""Tensors shown where not all are asked for."""

NO_BIAS = 1e-12
"""Share of the mean square up to which a squared bias is rounding."""

NOT_SAID = "the rounding of base plus delta into the model's type when it is applied; the output of the whole network; a task"


@dataclass(frozen=True, slots=True)
class Loss:
    """What one tensor lost, as floats for display.

    Attributes:
        name: the tensor.
        count: its entries.
        kept: the survivors.
        expected: mean square of the output error over masks and quantiser draws.
        realised: the same error with the mask and the values that were stored.
        bound: what `realised` exceeds with probability at most gamma; None where no such bound is computed.
        chosen: whether the mask was chosen, not drawn.
        delete: the error of leaving the delta out; None where it is unknown.
        optimal: the error of the best divisor at the same drop probability; None where it is unknown.
    """

    name: str
    count: int
    kept: int
    expected: float
    realised: float
    bound: float | None
    delete: float | None
    optimal: float | None
    chosen: bool

    @property
    def against_delete(self) -> float:
        """Realised error over that of leaving the delta out; infinite where the latter is nothing or unknown."""
        return self.realised / self.delete if self.delete else float("inf")


def losses(document: Mapping[str, Any]) -> list[Loss]:
    """The tensors of a pack certificate that lost something, in file order."""
    return [_loss(record) for record in document["tensors"] if record["treatment"] in LOSSY]


def _loss(record: Mapping[str, Any]) -> Loss:
    count = 1
    for length in record["shape"]:
        count *= length
    bounds = [number(t["threshold"]) for t in record["tails"] if t["what"] == "realised"]
    return Loss(
        record["name"],
        count,
        int(record["kept"]),
        number(record["expected"]["mean_square"]),
        number(record["facts"]["realised"]),
        bounds[0] if bounds else None,
        _optional(record["alternatives"]["delete"]),
        _optional(record["alternatives"]["optimal_mean_square"]),
        record["treatment"] == "masked",
    )


def _optional(encoded: Any) -> float | None:
    return None if encoded is None else number(encoded)


def parts(document: Mapping[str, Any], every: bool = False) -> Iterator[RenderableType]:
    """What a pack certificate says: totals, the worst tensors, what is exact, measured and assumed.

    Args:
        document: the certificate.
        every: all tensors, not the worst `ROWS` alone.
    """
    from rich.text import Text

    lost = losses(document)
    yield Text(f"certificate {document['id'][:16]} (grade {document['grade']})", style="bold")
    treatments = Counter(record["treatment"] for record in document["tensors"])
    counts = ", ".join(f"{n} {treatment}" for treatment, n in treatments.most_common())
    yield f"  {treatments.total()} tensors: {counts}"
    if not lost:
        yield "Nothing is lost: every tensor comes back bit for bit."
        return
    gamma = number(document["settings"]["gamma"])
    totals = document["totals"]
    count, kept = int(totals["count"]), int(totals["kept"])
    yield f"  {kept:,} of the {count:,} entries that may be dropped survive ({share(kept, count)})"
    yield ""
    yield _totals(totals)
    yield ""
    yield from _reading(document, lost, gamma)
    yield ""
    yield _table(lost, every, gamma)
    if not every and len(lost) > ROWS:
        yield Text(f"the worst {ROWS} of {len(lost)} tensors; --all shows all", style="dim")
    yield ""
    yield _standing(document)


def _totals(totals: Mapping[str, Any]) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table

    delete = _optional(totals["delete"])
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("layer output error, all tensors together")
    table.add_column("mean square", justify="right")
    table.add_column("against deleting", justify="right")
    rows = (
        ("expected, over masks drawn at random", totals["mean_square"]),
        ("  of which bias, squared", totals["bias_square"]),
        ("realised by the stored bytes", totals["realised"]),
        ("if the delta were deleted (the base alone)", totals["delete"]),
        ("with the best divisor at this drop (biased)", totals["optimal_mean_square"]),
    )
    for label, encoded in rows:
        value = _optional(encoded)
        shown = ("unknown", "-") if value is None else (figure(value), ratio(value, delete or 0.0))
        table.add_row(label, *shown)
    return Padding.indent(table, 2)


def _reading(document: Mapping[str, Any], lost: list[Loss], gamma: float) -> Iterator[str]:
    totals = document["totals"]
    delete, realised = _optional(totals["delete"]), number(totals["realised"])
    bias, expected = number(totals["bias_square"]), number(totals["mean_square"])
    if delete and realised > delete:
        yield (
            f"Layer by layer, this delta is {realised / delete:.3g} times further from the fine-tuned model, in mean"
            " square, than the base alone is."
        )
    elif delete:
        yield (
            f"Layer by layer, this delta leaves {100 * realised / delete:.3g} % of the mean square by which the base"
            " alone differs from the fine-tuned model."
        )
    chosen = sum(loss.chosen for loss in lost)
    if chosen:
        yield (
            f"{chosen} masks were chosen, not drawn: no bound over seeds applies to them, and their error does not have"
            " expectation zero. It is small at the layer and can add up over a whole network."
        )
    elif bias > NO_BIAS * expected:
        yield "The error is biased, and a bias can add up over a whole network where an unbiased error tends to cancel."
    else:
        yield (
            "The error has expectation zero, entry by entry. Such errors tend to cancel over a whole network, which is"
            " not certified here."
        )
    yield "Compare the unpacked model with the fine-tuned one on your task."
    bounded = [loss for loss in lost if loss.bound is not None]
    if bounded:
        within = sum(loss.realised <= loss.bound for loss in bounded if loss.bound is not None)
        yield (
            f"Realised error within its bound in {within} of {len(bounded)} tensors; each bound is broken by at most"
            f" {100 * gamma:.3g} % of seeds."
        )


def _table(lost: list[Loss], every: bool, gamma: float) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table

    from assay.cli.output import printable

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("tensor, worst first", overflow="fold")
    headings = (
        "kept",
        "expected",
        "realised",
        f"bound ({100 * (1 - gamma):.4g} %)",
        "against deleting",
        "best divisor",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    worst = sorted(lost, key=lambda loss: -loss.against_delete)
    for loss in worst if every else worst[:ROWS]:
        table.add_row(
            printable(loss.name),
            share(loss.kept, loss.count),
            figure(loss.expected),
            figure(loss.realised),
            "-" if loss.bound is None else figure(loss.bound),
            ratio(loss.realised, loss.delete or 0.0),
            "-" if loss.optimal is None else ratio(loss.optimal, loss.delete or 0.0),
        )
    return Padding.indent(table, 2)


def _standing(document: Mapping[str, Any]) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table

    settings = document["settings"]
    lossy = [record for record in document["tensors"] if record["treatment"] in LOSSY]
    measured = sum(record.get("moments") == "calibrated" for record in lossy)
    inputs = "layer inputs of unit second moment, uncorrelated (no calibration text was given)"
    if settings["moments"] != "unit":
        inputs = f"layer inputs with the measured second moments {settings['moments'][:23]}"
        if measured < len(lossy):
            inputs += f" for {measured} of {len(lossy)} tensors, unit ones for the rest"
    names = [p["name"] for p in document["premises"] if p["basis"] == "assumed"]
    assumed = "; ".join([*names, inputs])
    rows = (
        (
            "exact",
            "drop probabilities, survivors, digests of both models and of the stored bytes, and the formulas",
        ),
        (
            "measured",
            f"energies and realised error, float64 sums with relative error at most {number(settings['rounding']):.1g}",
        ),
        ("assumed", assumed),
        ("not said", NOT_SAID),
    )
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return Padding.indent(table, 2)
