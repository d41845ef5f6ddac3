"""Time to a first refutation, and evaluations per second: the audit against plain Hypothesis and scipy alone.

``python benchmarks/audit_against_peers.py [--seeds N] [--seconds S]``

Every method sees the same claims, seeds and budget in one run, interleaved.  Plain Hypothesis asserts on exact
rationals drawn by ``st.fractions``; scipy minimises the float slack of the smallest shape by differential evolution.
A hit counts for all of them only if it is confirmed in exact arithmetic.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st
from scipy.optimize import differential_evolution

from assay import Claim, Truth, audit, evaluate
from assay.audits.space import build, leaves, shapes
from assay.audits.target import slack_of
from assay.core.catalog import load_file
from assay.core.instance import floated

QUALITY = Path(__file__).parents[1] / "tests" / "quality"
sys.path.insert(0, str(QUALITY.parent))


def claims() -> list[Claim]:
    """The false variants that were in print, and the two of the attack comparison."""
    from quality.test_attack_comparison import CORNER, POCKET

    return [CORNER, POCKET, *(c for c in load_file(QUALITY / "variants.py").claims if c.expect == "refuted")]


class Counted:
    """A claim that counts how often it is asked, in floats and exactly."""

    def __init__(self, claim: Claim, deadline: float) -> None:
        self.claim, self.deadline, self.count = claim, deadline, 0
        self.sides = claim.form.sides  # type: ignore[union-attr]

    def violated(self, instance: Any) -> bool:
        self.count += 1
        if time.monotonic() > self.deadline:
            raise TimeoutError
        try:
            return evaluate(self.claim, instance, max_precision=1024).truth is Truth.FALSE
        except (ArithmeticError, ValueError):
            return False

    def slack(self, instance: Any) -> float:
        self.count += 1
        if time.monotonic() > self.deadline:
            raise TimeoutError
        x = floated(instance)
        try:
            if not all(p.check is None or p.check(x) is True for p in self.claim.premises):
                return 4.0
            return slack_of(self.sides(x))
        except (ArithmeticError, ValueError):
            return 4.0


class Found(Exception):
    """A confirmed violation."""


def plain_hypothesis(counted: Counted, seed: int) -> bool:
    kind = counted.claim.instance
    number = {
        Fraction: lambda r: st.fractions(r.low, r.high, max_denominator=10**6).filter(lambda v: v in r),
        int: lambda r: st.integers(int(r.low), int(r.high)),
    }
    choices = [
        st.tuples(*(number[leaf.kind](leaf.range) for leaf in leaves(kind, shape))).map(
            lambda values, shape=shape: build(kind, shape, values)
        )
        for shape in shapes(kind)
    ]

    def check(instance: Any) -> None:
        if counted.violated(instance):
            raise Found

    settings = hypothesis.settings(
        max_examples=10**6,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        hypothesis.seed(seed)(settings(hypothesis.given(st.one_of(choices))(check)))()
    except Found:
        return True
    except TimeoutError:
        return False
    return False


def scipy_alone(counted: Counted, seed: int) -> bool:
    kind = counted.claim.instance
    shape = next(s for s in shapes(kind) if leaves(kind, s))
    parts = leaves(kind, shape)

    def landscape(position: np.ndarray) -> float:
        instance = build(kind, shape, [p.at(float(u)) for p, u in zip(parts, position, strict=True)])
        slack = counted.slack(instance)
        if slack < 0 and counted.violated(instance):
            raise Found
        return slack

    rng = np.random.default_rng(seed)
    try:
        while True:
            differential_evolution(landscape, [(0.0, 1.0)] * len(parts), rng=rng, polish=False, tol=1e-9)
    except Found:
        return True
    except TimeoutError:
        return False


def the_audit(counted: Counted, seed: int) -> bool:
    report = audit(counted.claim, seconds=counted.deadline - time.monotonic(), seed=seed)
    counted.count = report.effort.evaluations
    return report.outcome == "refuted"


METHODS: dict[str, Callable[[Counted, int], bool]] = {
    "audit": the_audit,
    "hypothesis": plain_hypothesis,
    "scipy": scipy_alone,
}


def main() -> None:
    """Print one row per claim, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    audit(claims()[0], seconds=0.5, attacks=["property", "evolve", "smt"])  # imports are nobody's merit
    totals: dict[str, list[float]] = {name: [0, 0, 0.0] for name in METHODS}
    print(f"{'claim':38s}" + "".join(f"{name:>24s}" for name in METHODS))
    for claim in claims():
        cells = []
        times: dict[str, list[float]] = {name: [] for name in METHODS}
        found = dict.fromkeys(METHODS, 0)
        for seed in range(options.seeds):
            for name, method in METHODS.items():
                begun = time.monotonic()
                counted = Counted(claim, begun + options.seconds)
                success = method(counted, seed)
                spent = time.monotonic() - begun
                times[name].append(spent)
                found[name] += success
                totals[name][0] += success
                totals[name][1] += counted.count
                totals[name][2] += spent
        for name in METHODS:
            cells.append(f"{found[name]}/{options.seeds} {statistics.median(times[name]):8.3f} s")
        print(f"{claim.id:38s}" + "".join(f"{c:>24s}" for c in cells), flush=True)
    runs = options.seeds * len(claims())
    for name, (hits, _, spent) in totals.items():
        print(f"{name}: {hits}/{runs} refuted in {spent:.1f} s in all")
    print("evaluations per second on claims that hold")
    for claim in (c for c in load_file(QUALITY / "variants.py").claims if c.expect == "survives"):
        rates = []
        for method in METHODS.values():
            begun = time.monotonic()
            counted = Counted(claim, begun + options.seconds)
            method(counted, 0)
            rates.append(f"{counted.count / (time.monotonic() - begun):.0f}")
        print(f"{claim.id:38s}" + "".join(f"{r:>24s}" for r in rates), flush=True)


if __name__ == "__main__":
    main()
