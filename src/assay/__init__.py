"""Machine-learning algorithms that ship with their guarantees.

A *claim* is a published theorem made executable; `evaluate` asks what one instance says about it, `certify`
seals the answer so that a stranger can re-check it, and `catalog` lists the claims that are installed.
"""

__version__ = "0.1.0"

from assay.core.catalog import catalog
from assay.core.certificate import Certificate, Subject, certify
from assay.core.claim import Bound, Claim, Limit, Mean, Mission, Premise, Proof, Sides, Source, Tail, Witness
from assay.core.number import Ball, Strength, Truth
from assay.core.verdict import Counterexample, Verdict, evaluate

__all__ = [
    "Ball",
    "Bound",
    "Certificate",
    "Claim",
    "Counterexample",
    "Limit",
    "Mean",
    "Mission",
    "Premise",
    "Proof",
    "Sides",
    "Source",
    "Strength",
    "Subject",
    "Tail",
    "Truth",
    "Verdict",
    "Witness",
    "catalog",
    "certify",
    "evaluate",
]
