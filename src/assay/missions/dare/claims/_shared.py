"""Sources and premises that several claims share."""

from __future__ import annotations

from typing import Any

from assay.core.claim import Premise, Proof, Source

LEAN = "Lean 4.30.0, Mathlib c5ea003"
OPEN = Proof("open", environment=LEAN)
PROVED_MOMENTS = Proof("proved", "DAREx.RescaledErrorMoments", LEAN)


def darex(locator: str) -> Source:
    """DAREx, at a place in it."""
    return Source("DAREx, arXiv 2410.09344", locator)


def derived(section: str) -> Source:
    """A statement derived in this project's specification."""
    return Source("assay specification", f"{section}, derived")


DROP_PROB = Premise("0 <= drop_prob <= 1", lambda x: 0 <= x.drop_prob <= 1)
INNER_DROP_PROB = Premise("0 < drop_prob < 1", lambda x: 0 < x.drop_prob < 1)
RESCALE = Premise("rescale > 0", lambda x: x.rescale > 0)
GAMMA = Premise("0 < gamma < 1", lambda x: 0 < x.gamma < 1)
LEVEL = Premise("level > 0", lambda x: x.level > 0)
SPREAD = Premise("some coefficient is not 0", lambda x: any(c != 0 for c in x.coefficients))
NOT_EMPTY = Premise("at least one coefficient", lambda x: len(x.coefficients) > 0)
INDEPENDENT = Premise("entries are dropped independently", basis="constructed")


def within(name: str, low: Any, high: Any) -> Premise:
    """low <= x.name <= high."""
    return Premise(f"{low} <= {name} <= {high}", lambda x: low <= getattr(x, name) <= high)
