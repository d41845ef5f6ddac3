"""Machine-learning algorithms that ship with their guarantees.

A *claim* is a published theorem made executable; `evaluate` asks what one instance says about it, `audit` looks
for an instance that refutes it, `certify` seals the answer so that a stranger can re-check it, and `catalog` lists
the claims that are installed.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from assay.core.catalog import catalog
from assay.core.certificate import Certificate, Subject, certify
from assay.core.claim import Bound, Claim, Limit, Mean, Mission, Premise, Proof, Sides, Source, Tail, Witness
from assay.core.instance import Length, Range
from assay.core.number import Ball, Strength, Truth
from assay.core.verdict import Counterexample, Verdict, evaluate

if TYPE_CHECKING:
    from assay.audits.engine import audit
    from assay.audits.report import AuditReport

_ON_DEMAND = {"audit": "assay.audits.engine", "AuditReport": "assay.audits.report"}
"""What needs numpy to be imported, which `import assay` alone must not wait for."""


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        import importlib

        return getattr(importlib.import_module(_ON_DEMAND[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AuditReport",
    "Ball",
    "Bound",
    "Certificate",
    "Claim",
    "Counterexample",
    "Length",
    "Limit",
    "Mean",
    "Mission",
    "Premise",
    "Proof",
    "Range",
    "Sides",
    "Source",
    "Strength",
    "Subject",
    "Tail",
    "Truth",
    "Verdict",
    "Witness",
    "audit",
    "catalog",
    "certify",
    "evaluate",
]
