"""Pack a fine-tuned checkpoint into a small delta, apply and merge deltas, and say what was lost.

>>> from assay.checkpoints import apply, inspect, merge, pack
"""

from assay.checkpoints.apply import ApplyReport, apply
from assay.checkpoints.inspect import Inspection, inspect
from assay.checkpoints.merge import MergeReport, merge
from assay.checkpoints.pack import PackReport, pack
from assay.checkpoints.plan import Settings

__all__ = [
    "ApplyReport",
    "Inspection",
    "MergeReport",
    "PackReport",
    "Settings",
    "apply",
    "inspect",
    "merge",
    "pack",
]
