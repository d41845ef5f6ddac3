"""What is computed with the model: tail certificates, rescales, layers, masks and allocations."""

from assay.missions.dare.algorithm.allocation import (
    Allocation,
    allocate,
    allocate_entries,
    allocate_optimal_rescale,
)
from assay.missions.dare.algorithm.layers import (
    LayerError,
    expected_layer_error,
    norm_threshold,
    operator_norm_threshold,
    output_thresholds,
)
from assay.missions.dare.algorithm.masks import Mask, derandomise, fixed_size_expectation, layer_error
from assay.missions.dare.algorithm.rescale import (
    Energies,
    RescaleComparison,
    compare_rescales,
    layer_energies,
    mean_square,
    optimal_row_rescales,
    output_energies,
    refit_scalar,
    row_energies,
)
from assay.missions.dare.algorithm.tails import (
    TailProbability,
    TailThreshold,
    goal_threshold,
    quantile,
    quantised_threshold,
    tail_bound,
    tail_probability,
    tail_threshold,
)

__all__ = [
    "Allocation",
    "Energies",
    "LayerError",
    "Mask",
    "RescaleComparison",
    "TailProbability",
    "TailThreshold",
    "allocate",
    "allocate_entries",
    "allocate_optimal_rescale",
    "compare_rescales",
    "derandomise",
    "expected_layer_error",
    "fixed_size_expectation",
    "goal_threshold",
    "layer_energies",
    "layer_error",
    "mean_square",
    "norm_threshold",
    "operator_norm_threshold",
    "optimal_row_rescales",
    "output_energies",
    "output_thresholds",
    "quantile",
    "quantised_threshold",
    "refit_scalar",
    "row_energies",
    "tail_bound",
    "tail_probability",
    "tail_threshold",
]
