"""Tightness of issued tail thresholds: ratio to the true quantile, on the specification's table.

``true`` is the exact quantile for n = 16, else the middle of the lattice bracket.  ``python benchmarks/tails.py``
"""

from __future__ import annotations

import numpy as np

from assay.missions.dare.algorithm import tail_threshold

METHODS = ("ks", "signed", "chernoff", "chernoff-split", "lattice")


def main() -> None:
    """Print the table and the worst ratio of each method."""
    worst = dict.fromkeys(METHODS, 0.0)
    print(f"{'c':>6} {'n':>5} {'p':>5} {'gamma':>6} {'true':>10} " + " ".join(f"{m:>14}" for m in METHODS))
    for name in ("gauss", "heavy"):
        for n in (16, 256, 4096):
            rng = np.random.default_rng(1)
            c = rng.standard_normal(n) if name == "gauss" else rng.standard_t(2, n)
            for p in (0.5, 0.9, 0.99):
                for gamma in (0.05, 0.001):
                    bracket = tail_threshold(c, p, gamma, "lattice", bins=1 << 17)
                    true = (bracket.lower + bracket.threshold) / 2
                    if n == 16:
                        true = tail_threshold(c, p, gamma, "exact").threshold
                    ratios = {m: tail_threshold(c, p, gamma, m).threshold / true for m in METHODS}
                    worst = {m: max(worst[m], ratios[m]) for m in METHODS}
                    row = " ".join(f"{ratios[m]:14.4f}" for m in METHODS)
                    print(f"{name:>6} {n:5d} {p:5.2f} {gamma:6.3f} {true:10.5g} {row}", flush=True)
    print("worst ratio: " + ", ".join(f"{m} {r:.4f}" for m, r in worst.items()))


if __name__ == "__main__":
    main()
