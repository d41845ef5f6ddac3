"""One picture of a pack certificate: expected and realised error and bound, tensor by tensor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.cli.certificates import losses
from assay.cli.figures import number
from assay.core.errors import InputError, MissingExtraError

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
        dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[path.suffix.lower()[1:]]
        figure.savefig(path, dpi=160, metadata=dateless)
