"""Pictures: a pack certificate tensor by tensor, and the predicted frontier of plans."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.certificates import losses
from assay.cli.figures import number, size
from assay.core.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from assay.checkpoints import KeepPlan

SUFFIXES = (".svg", ".png", ".pdf")
NAMED = 80
"""Tensors up to which each has its name below the axis."""


def check(path: Path) -> None:
    """Refuse a picture that could not be drawn, before long work begins.

    Raises:
        InputError: the name ends in none of `SUFFIXES`, or its folder cannot be written to.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"the picture {path} must end in one of {', '.join(SUFFIXES)}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"the picture {path} cannot be written: its folder is missing or read-only")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtraError("plot", "a picture") from None


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draw the certificate `document` into `path`; the same certificate gives the same bytes.

    Errors are divided by what deleting the tensor's delta would cost, where that is known.
    """
    check(path)
    import matplotlib
    from matplotlib.figure import Figure

    lost = [loss for loss in losses(document) if loss.delete]
    if not lost:
        raise InputError(f"the certificate {document['id'][:16]} has no tensor to draw: nothing was lost")
    where = range(len(lost))
    scale = [loss.delete or 1.0 for loss in lost]
    share = f"{100 * number(document['settings']['gamma']):.3g} %"
    bounds = [
        (x, loss.bound / s) for x, loss, s in zip(where, lost, scale, strict=True) if loss.bound is not None
    ]
    with matplotlib.rc_context({"svg.hashsalt": document["id"], "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(max(5.0, 0.16 * len(lost) + 2), 4.4), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([x for x, _ in bounds], [y for _, y in bounds], "_", color="tab:red", markersize=7,
                  label=f"bound, broken by at most {share} of seeds")  # fmt: skip
        axes.plot(where, [loss.expected / s for loss, s in zip(lost, scale, strict=True)], "o", color="tab:blue",
                  markersize=6, fillstyle="none", label="expected")  # fmt: skip
        axes.plot(where, [loss.realised / s for loss, s in zip(lost, scale, strict=True)], ".", color="black",
                  markersize=4, label="realised")  # fmt: skip
        axes.axhline(1.0, color="grey", linewidth=0.8, label="deleting the delta")
        axes.set_yscale("log")
        axes.set_xlim(-0.8, len(lost) - 0.2)
        axes.set_ylabel("mean square of the layer output error,\nrelative to deleting the delta")
        if len(lost) <= NAMED:
            axes.set_xticks(
                list(where), [loss.name for loss in lost], rotation=90, fontsize=5, parse_math=False
            )
        else:
            axes.set_xlabel("tensors, in file order")
        axes.set_title(f"certificate {document['id'][:16]}", loc="left")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=7)
        _save(figure, path)


def draw_frontier(plans: Sequence[KeepPlan], path: Path) -> None:
    """Draw predicted drift against the size of the delta into `path`, a line for each keep map and number of bits."""
    check(path)
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    lines: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for plan in plans:
        lines.setdefault((plan.keep_map, plan.bits), []).append((plan.size, plan.drift))
    styles = dict(
        zip(
            sorted({bits for _, bits in lines}),
            ("-", "--", "-.", ":", (0, (1, 4)), (0, (5, 5))),
            strict=False,
        )
    )
    colours = {"uniform": "grey", "tensor": "tab:blue", "factored": "tab:red"}
    with matplotlib.rc_context({"svg.hashsalt": "frontier", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = figure.add_subplot()
        for (keep_map, bits), points in lines.items():
            sizes, drifts = zip(*sorted(points), strict=True)
            axes.plot(sizes, drifts, ".", linestyle=styles[bits], color=colours[keep_map], linewidth=1,
                      label=f"{keep_map}, {bits} bits" if bits else f"{keep_map}, grid")  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis, label in ((axes.xaxis, size), (axes.yaxis, "{:g}".format)):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _, label=label: label(value)))
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("bytes of the delta, estimated")
        axes.set_ylabel("drift of the outputs over the fine-tune's effect\n(predicted, first order)")
        axes.grid(which="both", linewidth=0.3)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=7)
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    """Write without a date, so that the same figure gives the same bytes."""
    dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[path.suffix.lower()[1:]]
    figure.savefig(path, dpi=160, metadata=dateless)
