"""The audit: attacks that propose instances, until one refutes the claim or the budget is spent.

The function `assay.audit` is `assay.audits.engine.audit`; the room is called `audits` so that the two names do not
clash.  Hypothesis, scipy, cma and z3 are imported by the attacks that use them, when they run.
"""

from assay.audits.ablate import Ablation, ablate
from assay.audits.engine import audit
from assay.audits.report import AuditReport, Effort, Resolution
from assay.audits.sharpen import Sharpening, sharpen
from assay.audits.store import Store

__all__ = [
    "Ablation",
    "AuditReport",
    "Effort",
    "Resolution",
    "Sharpening",
    "Store",
    "ablate",
    "audit",
    "sharpen",
]
