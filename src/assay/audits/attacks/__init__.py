"""Attacks: search states over one target.

An attack is made from a target and a random generator; `run` proposes instances to `Target.consider` until the
target stops it, and may be called again to go on.  It returns by itself only when it has nothing left to propose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Protocol

from assay.audits.attacks.corner import Corner
from assay.audits.attacks.evolve import Evolve
from assay.audits.attacks.gradient import Gradient
from assay.audits.attacks.property import Property
from assay.audits.attacks.smt import Smt
from assay.audits.target import Target


class Attack(Protocol):
    """What the engine needs of an attack."""

    def run(self) -> None:
        """Propose until stopped; return when there is nothing left."""


ATTACKS: Mapping[str, Callable[[Target, random.Random], Attack]] = {
    "corner": Corner,
    "property": Property,
    "evolve": Evolve,
    "gradient": Gradient,
    "smt": Smt,
}
"""By name, in the order in which an audit takes turns with them."""

LIBRARIES: Mapping[str, str] = {"property": "hypothesis", "smt": "z3"}
"""What an attack needs from the extra 'audit'."""


def missing_library(name: str) -> str | None:
    """The library that the attack needs and that is not installed."""
    library = LIBRARIES.get(name)
    return library if library is not None and find_spec(library) is None else None
