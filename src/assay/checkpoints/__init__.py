"""Pack a fine-tuned checkpoint into a small delta, apply and merge deltas, and say what was lost.

>>> from assay.checkpoints import apply, inspect, merge, pack
"""

from assay.checkpoints.apply import ApplyReport, apply
from assay.checkpoints.inspect import Inspection, inspect
from assay.checkpoints.job import frontier
from assay.checkpoints.keep import KeepPlan
from assay.checkpoints.merge import MergeReport, merge
from assay.checkpoints.pack import PackReport, pack
from assay.checkpoints.plan import Settings

__all__ = [
    "ApplyReport",
    "Inspection",
    "KeepPlan",
    "MergeReport",
    "PackReport",
    "Settings",
    "apply",
    "frontier",
    "inspect",
    "merge",
    "pack",
]
