"""Derandomised masks on one layer: realised error against the random mask's expectation, and the time it takes.

The peer is the random mask itself, in the same run.  ``python benchmarks/masks.py [--size 4096]``
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from assay.missions.dare.algorithm import derandomise
from assay.missions.dare.algorithm.masks import layer_error


def main() -> None:
    """Print a line for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--drop", type=float, default=0.9)
    options = parser.parse_args()
    size, drop = options.size, options.drop
    rng = np.random.default_rng(0)
    delta = 0.02 * rng.standard_normal((size, size))
    inputs = 0.5 * rng.standard_normal((2 * size, size)) + rng.standard_normal(
        (2 * size, 8)
    ) @ rng.standard_normal((8, size))
    moment = inputs.T @ inputs / len(inputs)
    random = rng.random(delta.shape) >= drop
    drawn = layer_error(delta, moment, random, 1 - drop)
    for method in ("d1", "d2"):
        wall, cpu = time.perf_counter(), time.process_time()
        mask = derandomise(delta, moment, drop, method=method)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(
            f"{method}: kept {mask.kept} of {delta.size} ({mask.kept / delta.size:.4%}), error / random expectation "
            f"{mask.layer_error / mask.expected_random:.4f}, one random draw {drawn / mask.expected_random:.3f}, "
            f"error / guarantee {mask.layer_error / mask.guarantee:.4f}, {wall:.0f} s wall, {cpu:.0f} CPU-s",
            flush=True,
        )


if __name__ == "__main__":
    main()
