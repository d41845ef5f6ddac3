"""DARE: random delta pruning with rescale, its exact error, its tail certificates and its masks.

Names are loaded when they are first used, so that reading the catalogue compiles no kernel.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.missions.dare.algorithm import (
        Allocation,
        Energies,
        LayerError,
        Mask,
        RescaleComparison,
        TailProbability,
        TailThreshold,
        allocate,
        allocate_entries,
        allocate_optimal_rescale,
        compare_rescales,
        derandomise,
        expected_layer_error,
        fixed_size_expectation,
        goal_threshold,
        layer_energies,
        layer_error,
        mean_square,
        norm_threshold,
        operator_norm_threshold,
        optimal_row_rescales,
        output_energies,
        output_thresholds,
        quantile,
        quantised_threshold,
        refit_scalar,
        row_energies,
        tail_bound,
        tail_probability,
        tail_threshold,
    )
    from assay.missions.dare.model import (
        Atom,
        Cumulants,
        LogMgf,
        Moments,
        cumulants,
        enumerate_law,
        essential_supremum,
        log_mgf,
        moments,
        phi,
        quantise_atoms,
        quantised_moments,
        quantiser_variance,
    )

__all__ = [
    "Allocation",
    "Atom",
    "Cumulants",
    "Energies",
    "LayerError",
    "LogMgf",
    "Mask",
    "Moments",
    "RescaleComparison",
    "TailProbability",
    "TailThreshold",
    "allocate",
    "allocate_entries",
    "allocate_optimal_rescale",
    "compare_rescales",
    "cumulants",
    "derandomise",
    "enumerate_law",
    "essential_supremum",
    "expected_layer_error",
    "fixed_size_expectation",
    "goal_threshold",
    "layer_energies",
    "layer_error",
    "log_mgf",
    "mean_square",
    "moments",
    "norm_threshold",
    "operator_norm_threshold",
    "optimal_row_rescales",
    "output_energies",
    "output_thresholds",
    "phi",
    "quantile",
    "quantise_atoms",
    "quantised_moments",
    "quantised_threshold",
    "quantiser_variance",
    "refit_scalar",
    "row_energies",
    "tail_bound",
    "tail_probability",
    "tail_threshold",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for room in ("model", "algorithm"):
            module = importlib.import_module(f"{__name__}.{room}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
