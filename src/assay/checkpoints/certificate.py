"""The certificate of a pack: what was lost, expected and realised, tensor by tensor.

The quantities and the theorems behind them are named in ``docs/reference/certificate-format.md``.  The facts
are float64 sums over the tensors (`Facts`); everything else is computed from them in exact rationals and
rounded outward once, so the independent checker gets the same numbers from the same facts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from assay.checkpoints.factors import Factors
from assay.checkpoints.plan import LOSSY, TensorPlan
from assay.core.certificate import Certificate, canonical
from assay.core.number import encode_number
from assay.missions.dare.model import phi

CLAIMS = (
    "dare.quantised_moments",
    "dare.optimal_rescale",
    "dare.quantised_proxy",
    "dare.norm_tail",
    "dare.realised_tail",
)
ROUNDING = Fraction(1, 1 << 20)
"""Relative error that the float64 facts may carry: deltas are float32 differences, sums are float64."""

_OUTWARD = 1 + 2.0**-40
"""Tail thresholds are float64 evaluations, rounded up by this much to stay upper bounds."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Float64 sums over one tensor; m_j is the second moment of input j, or 1.

    Attributes:
        signal: A, the mean square of the delta's output; None where only the diagonal of the moments is known.
        energy: B = sum m_j d_ij^2.
        quantiser_variance: V = sum m_j V_ij over all entries.
        realised: sum m_j (d_ij - v_ij)^2 of the decoded values.
        row_proxy_max, row_proxy_sum, row_proxy_square_sum: of the outputs' sub-Gaussian proxies.
        delta_fourth: sum m_j^2 d_ij^4.
        step_fourth: sum m_j^2 h_ij^4, h_ij the quantiser's step.
    """

    signal: float | None
    energy: float
    quantiser_variance: float
    realised: float
    row_proxy_max: float
    row_proxy_sum: float
    row_proxy_square_sum: float
    delta_fourth: float
    step_fourth: float


@dataclass(frozen=True, slots=True)
class FactoredFacts:
    """The same for thresholds by row and column, where the variance is no function of two sums.

    Attributes:
        signal, energy, realised, row_proxy_max, row_proxy_sum, row_proxy_square_sum: as in `Facts`.
        variance: sum m_j (d_ij^2 (1 - k_ij) + V_ij)/k_ij, k_ij the keep probability.
    """

    signal: float | None
    energy: float
    variance: float
    realised: float
    row_proxy_max: float
    row_proxy_sum: float
    row_proxy_square_sum: float


@dataclass(frozen=True, slots=True)
class Expected:
    """Exact functions of the facts."""

    bias_square: Fraction
    variance: Fraction
    realised_mean: Fraction
    delete: Fraction | None
    optimal_rescale: Fraction | None
    optimal_mean_square: Fraction | None

    @property
    def mean_square(self) -> Fraction:
        """Bias squared plus variance."""
        return self.bias_square + self.variance


def expected(facts: Facts, drop_prob: Fraction, rescale: float) -> Expected:
    """Moments of the output error and of its alternatives (claim ``dare.quantised_moments``).

    >>> facts = Facts(14.0, 14.0, *[0.0] * 7)
    >>> result = expected(facts, Fraction(1, 2), 0.5)
    >>> result.bias_square, result.variance, result.optimal_mean_square
    (Fraction(0, 1), Fraction(14, 1), Fraction(7, 1))
    """
    p, q = drop_prob, Fraction(rescale)
    energy, spread = Fraction(facts.energy), Fraction(facts.quantiser_variance)
    bias = 1 - (1 - p) / q
    noise = p * energy + spread
    variance = (1 - p) * noise / q**2
    realised = (p + (1 - p) * (1 - 1 / q) ** 2) * energy + (1 - p) * spread / q**2
    if facts.signal is None:
        return Expected(Fraction(0), variance, realised, None, None, None)
    signal = Fraction(facts.signal)
    optimal = signal * noise / ((1 - p) * signal + noise) if signal else Fraction(0)
    best = (1 - p) + noise / signal if signal else None
    return Expected(bias**2 * signal, variance, realised, signal, best, optimal)


def row_proxies(energy: Any, step_proxy: Any, drop_prob: Fraction, rescale: float) -> Any:
    """Sub-Gaussian proxies v_i = (Phi B_i/2 + H_i)/q^2 of the outputs' errors (claim ``dare.quantised_proxy``)."""
    return (phi(float(drop_prob)) * energy / 2 + step_proxy) / rescale**2


def realised_proxy(facts: Facts, drop_prob: Fraction, rescale: float) -> float:
    """Sub-Gaussian proxy of the realised error about its mean (claim ``dare.realised_tail``).

    Entry (i, j) contributes m_j d^2 if it is dropped and m_j (d - (d + xi)/q)^2 if it is kept.  The first
    square root below bounds the norm of the two-point gaps, the second that of the quantiser's ranges, both by
    Minkowski's inequality.
    """
    shrink = 1 - 1 / rescale
    deltas, steps = math.sqrt(facts.delta_fourth), math.sqrt(facts.step_fourth)
    gap = abs(1 - shrink**2) * deltas + steps / (4 * rescale**2)
    spread = 2 * abs(shrink) * math.sqrt(deltas * steps) / rescale + steps / rescale**2
    return phi(float(drop_prob)) * gap**2 / 2 + spread**2 / 4


def tails(
    facts: Facts, exact: Expected, drop_prob: Fraction, rescale: float, gamma: Fraction
) -> list[dict[str, Any]]:
    """The three bounds that hold with probability at least 1 - gamma each."""
    proxy = realised_proxy(facts, drop_prob, rescale)
    realised = float(exact.realised_mean) + math.sqrt(2 * math.log(1 / float(gamma)) * proxy)
    return [*output_tails(facts, gamma), _tail("realised", "kearns-saul", realised)]


def output_tails(facts: Facts | FactoredFacts, gamma: Fraction) -> list[dict[str, Any]]:
    """The bounds of one output and of all together, from the proxies alone."""
    two_sided, one_sided = math.log(2 / float(gamma)), math.log(1 / float(gamma))
    norm = (
        facts.row_proxy_sum
        + 2 * math.sqrt(one_sided * facts.row_proxy_square_sum)
        + 2 * one_sided * facts.row_proxy_max
    )
    return [
        _tail("output", "kearns-saul", math.sqrt(2 * two_sided * facts.row_proxy_max)),
        _tail("norm", "quadratic-form", norm),
    ]


def _tail(what: str, method: str, value: float) -> dict[str, Any]:
    return {"what": what, "method": method, "threshold": encode_number(value * _OUTWARD)}


def tensor_record(
    plan: TensorPlan,
    treatment: str,
    digests: Mapping[str, str],
    *,
    kept: int = 0,
    facts: Facts | FactoredFacts | None = None,
    calibrated: bool = False,
    gamma: Fraction = Fraction(1, 100),
    more_tails: Sequence[Mapping[str, Any]] = (),
    guarantee: float | None = None,
) -> dict[str, Any]:
    """What the certificate says of one tensor."""
    record: dict[str, Any] = {
        "name": plan.name,
        "dtype": plan.info.dtype,
        "shape": list(plan.info.shape),
        "treatment": treatment,
        **digests,
    }
    if plan.base is not None and plan.base.dtype != plan.info.dtype:
        record["base_dtype"] = plan.base.dtype
    if treatment not in LOSSY or facts is None:
        return record
    values = {name: getattr(facts, name) for name in facts.__dataclass_fields__}
    stated = {name: None if value is None else encode_number(float(value)) for name, value in values.items()}
    common = {"kept": kept, "moments": "calibrated" if calibrated else "unit", "facts": stated}
    if isinstance(facts, FactoredFacts):
        assert plan.factors is not None
        return record | common | _factored_fields(plan, plan.factors, facts, gamma)
    assert plan.rescale is not None
    exact = expected(facts, plan.drop_prob, plan.rescale)
    record |= common | {
        "threshold": plan.threshold,
        "rescale": encode_number(float(plan.rescale)),
        "bits": plan.bits,
        "span": plan.span,
        "expected": {
            "bias_square": _rounded(exact.bias_square),
            "variance": _rounded(exact.variance),
            "mean_square": _rounded(exact.mean_square),
        },
        "alternatives": {
            "delete": _rounded(exact.delete),
            "optimal_rescale": _rounded(exact.optimal_rescale, None if facts.signal is None else "inf"),
            "optimal_mean_square": _rounded(exact.optimal_mean_square),
        },
        **({} if guarantee is None else {"guarantee": encode_number(guarantee)}),
        "tails": [*tails(facts, exact, plan.drop_prob, plan.rescale, gamma), *more_tails]
        if treatment == "dropped"
        else [],
    }
    return record


def _factored_fields(
    plan: TensorPlan, factors: Factors, facts: FactoredFacts, gamma: Fraction
) -> dict[str, Any]:
    """What is derived for thresholds by row and column; these are unbiased, and have no one rescale to improve."""
    variance, delete = encode_number(facts.variance), facts.signal
    quantiser = {"bits": plan.bits, "span": plan.span} if plan.step is None else {"step": plan.step.hex()}
    return {
        **quantiser,
        "factors": hashlib.sha256(canonical(factors.record())).hexdigest(),
        "expected": {"bias_square": encode_number(0.0), "variance": variance, "mean_square": variance},
        "alternatives": {
            "delete": None if delete is None else encode_number(delete),
            "optimal_rescale": None,
            "optimal_mean_square": None,
        },
        "tails": output_tails(facts, gamma),
    }


def _rounded(value: Fraction | None, absent: str | None = None) -> Any:
    """The nearest double: exact rationals of float facts would fill pages."""
    return absent if value is None else encode_number(float(value))


TOTALS = ("bias_square", "variance", "mean_square", "delete", "optimal_mean_square", "realised")


def totals(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums over the lossy records; a sum with an unknown part is unknown."""
    count = kept = 0
    sums: dict[str, float | None] = dict.fromkeys(TOTALS, 0.0)
    for record in records:
        if record["treatment"] not in LOSSY:
            continue
        count += math.prod(record["shape"])
        kept += record["kept"]
        parts = {**record["expected"], **record["alternatives"], "realised": record["facts"]["realised"]}
        for name in TOTALS:
            before = sums[name]
            sums[name] = (
                None if before is None or parts[name] is None else before + float.fromhex(parts[name])
            )
    return {"count": str(count), "kept": str(kept)} | {
        name: None if value is None else encode_number(value) for name, value in sums.items()
    }


def pack_certificate(
    records: Sequence[Mapping[str, Any]],
    subjects: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    gamma: Fraction,
    moments: str,
) -> Certificate:
    """Seal what a pack lost."""
    factored = any(record["treatment"] == "factored" for record in records)
    divisor = "their keep probability" if factored else "the recorded rescale"
    return Certificate.seal(
        {
            "kind": "pack",
            "claims": list(CLAIMS),
            "subjects": list(subjects),
            "settings": {
                "seed": str(seed),
                "gamma": encode_number(gamma),
                "moments": moments,
                "rounding": encode_number(ROUNDING),
            },
            "premises": [
                {"name": "the mask words are independent and uniform", "basis": "assumed", "truth": "TRUE"},
                {
                    "name": f"survivors were divided by {divisor}",
                    "basis": "constructed",
                    "truth": "TRUE",
                },
            ],
            "tensors": list(records),
            "totals": totals(records),
            "grade": "kernel",
        }
    )
