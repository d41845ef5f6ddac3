"""The rules for kind ``pack``: what was lost in a packed delta, recomputed from the facts in the certificate.

The facts are doubles (float64 sums, with a stated relative error).  Every other number of a record is a
function of them, of the threshold and of the rescale; it is computed here in rationals, and where a
logarithm, a square root or Phi is involved, in enclosures.  `assay_verify.delta` recomputes the facts
themselves where the subjects are given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from assay_verify import exact
from assay_verify.canonical import array, choice, digest, integer, mapping, name_of, text
from assay_verify.exact import Interval
from assay_verify.outcome import Rejected, Report, Unsupported

__all__ = [
    "EXACT_TREATMENTS",
    "FACTS",
    "LOSSY_TREATMENTS",
    "Record",
    "Settings",
    "check",
    "read_records",
    "read_settings",
]

EXACT_TREATMENTS = ("unchanged", "alias", "lossless", "exact", "absent")
LOSSY_TREATMENTS = ("dropped", "masked", "factored")
FACTS = (
    "energy",
    "quantiser_variance",
    "realised",
    "row_proxy_max",
    "row_proxy_sum",
    "row_proxy_square_sum",
    "delta_fourth",
    "step_fourth",
)
FACTORED_FACTS = (
    "energy",
    "variance",
    "realised",
    "row_proxy_max",
    "row_proxy_sum",
    "row_proxy_square_sum",
)
"""Of a tensor with keep thresholds by row and column."""
BITS = (2, 3, 4, 8, 16)
ONE = 1 << 32  # the threshold of keep probability 1
MAX_ROUNDING = Fraction(1, 2**20)
MAX_ELEMENTS = 1 << 48
ALTERNATIVES = ("delete", "optimal_rescale", "optimal_mean_square")
DERIVED = Fraction(1, 2**30)  # relative tolerance of a derived number
BELOW = Fraction(1, 2**40)  # how far a tail may be below what is computed here, relatively
ABOVE = Fraction(1, 2**20)  # and above

_SEED = re.compile(r"(0|[1-9][0-9]{0,999})\Z")
_MOMENTS = re.compile(r"sha256:[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a pack: seed, tail level, input moments (``unit`` or a digest), error of the facts."""

    seed: int
    gamma: Fraction
    moments: str
    rounding: Fraction


@dataclass(frozen=True, slots=True)
class Record:
    """One lossy tensor of a pack certificate, with its facts as exact rationals.

    `signal` is None where only the diagonal of the inputs' second moment is known.  A factored tensor has no one
    threshold and rescale: these are 0 and 1, and play no part.  One with a `step` has no bits and no span (16 and 1).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    treatment: str
    threshold: int
    rescale: Fraction
    bits: int
    span: int
    kept: int
    calibrated: bool
    facts: Mapping[str, Fraction]
    signal: Fraction | None
    data: Mapping[str, Any]
    step: float | None = None

    @property
    def keep(self) -> Fraction:
        """The keep probability 1 - p, exactly."""
        return Fraction(self.threshold, ONE)

    @property
    def count(self) -> int:
        """How many elements the tensor has."""
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """Outputs of the tensor read as a matrix: its first dimension."""
        return self.shape[0] if self.shape else 1


def check(document: Mapping[str, Any], report: Report) -> None:
    """Check settings, records and totals, and say in `report` what was and was not recomputed.

    Raises:
        Rejected: a field is malformed, or a number is not what the facts give.
        Unsupported: a treatment or a tail rule that this checker does not know.
    """
    if document["grade"] != "kernel":
        raise Rejected("a pack certificate has grade 'kernel'")
    broken = [p["name"] for p in document["premises"] if p["truth"] != "TRUE"]
    if broken:
        raise Rejected(f"the premise {broken[0][:60]!r} does not hold, so nothing is stated")
    claims = array(document, "claims", "certificate", str)
    if not claims or len(set(claims)) != len(claims):
        raise Rejected("certificate.claims must name the theorems used, each once")
    missing = {"base", "finetuned", "payload"} - {s["name"] for s in document["subjects"]}
    if missing:
        raise Rejected(f"certificate.subjects lacks {sorted(missing)[0]!r}")
    settings = read_settings(document)
    records = read_records(document)
    foreign = 0
    for record in records:
        _check_facts(record, settings)
        _check_derived(record)
        foreign += _check_tails(record, settings)
    _check_totals(mapping(document, "totals", "certificate"), records)
    report.checked.append(f"expectations and alternatives of {len(records)} lossy tensors, from their facts")
    report.checked.append("tail thresholds, by enclosures of logarithm and square root; the totals")
    report.unchecked.append(
        "the facts (energies, proxies, realised errors): give the subjects to recompute them"
    )
    if foreign:
        report.unchecked.append(
            f"tails of 'largest-output' ({foreign}): this checker has no rule that recomputes them"
        )
    if any("guarantee" in r.data for r in records):
        report.unchecked.append("the guarantees of chosen masks: they come from the named algorithm")
    if settings.moments != "unit":
        report.unchecked.append("the calibration moments: only their digest is in the file")
    total = sum((r.facts["realised"] for r in records), Fraction(0))
    report.statement = (
        f"a pack of {len(document['tensors'])} tensors, {len(records)} of them lossy: "
        f"realised squared error {float(total):.6g}"
    )


def read_settings(document: Mapping[str, Any]) -> Settings:
    """The settings, each in its range."""
    data = mapping(document, "settings", "certificate")
    seed = text(data, "seed", "settings")
    if not _SEED.match(seed):
        raise Rejected("settings.seed must be an integer >= 0, written as a string")
    gamma, rounding = (exact.finite(exact.field(data, k, "settings"), k) for k in ("gamma", "rounding"))
    if not 0 < gamma < 1:
        raise Rejected("settings.gamma must lie strictly between 0 and 1")
    if not 0 <= rounding <= MAX_ROUNDING:
        raise Rejected("settings.rounding must lie between 0 and 2^-20")
    moments = text(data, "moments", "settings")
    if moments != "unit" and not _MOMENTS.match(moments):
        raise Rejected("settings.moments must be 'unit' or 'sha256:' and a digest")
    return Settings(int(seed), gamma, moments, rounding)


def read_records(document: Mapping[str, Any]) -> list[Record]:
    """The lossy records, after a look at the fields of all."""
    names: set[str] = set()
    lossy = []
    for data in array(document, "tensors", "certificate", dict):
        name = name_of(data, "tensor")
        where = quoted(name)
        if name in names:
            raise Rejected(f"{where} is listed twice")
        names.add(name)
        treatment = text(data, "treatment", where)
        if treatment not in EXACT_TREATMENTS + LOSSY_TREATMENTS:
            raise Unsupported(f"{where}: the treatment {treatment[:40]!r} is unknown to this checker")
        shape = _shape(data, where)
        dtype = text(data, "dtype", where)
        _check_digests(data, treatment, where)
        if treatment in LOSSY_TREATMENTS:
            lossy.append(_record(data, name, dtype, shape, treatment, where))
    return lossy


def _shape(data: Mapping[str, Any], where: str) -> tuple[int, ...]:
    shape = array(data, "shape", where, int)
    if any(n < 0 for n in shape) or math.prod(shape) > MAX_ELEMENTS:
        raise Rejected(f"{where}.shape is no shape")
    return tuple(shape)


def _check_digests(data: Mapping[str, Any], treatment: str, where: str) -> None:
    sides = {side for side in ("base", "finetuned") if side in data}
    for side in sides:
        digest(data, side, where)
    needed = {
        "unchanged": {"base", "finetuned"},
        "lossless": {"base", "finetuned"},
        "dropped": {"base", "finetuned"},
        "masked": {"base", "finetuned"},
        "factored": {"base", "finetuned"},
        "exact": {"finetuned"},
        "absent": {"base"},
    }.get(treatment, set())
    if not needed <= sides:
        raise Rejected(f"{where} lacks the digest of its {sorted(needed - sides)[0]} side")
    if treatment == "unchanged" and "base_dtype" not in data and data["base"] != data["finetuned"]:
        raise Rejected(f"{where} is called unchanged, but its two digests differ")
    if treatment == "absent" and "finetuned" in sides:
        raise Rejected(f"{where} is called absent, but has a fine-tuned digest")


def _record(
    data: Mapping[str, Any], name: str, dtype: str, shape: tuple[int, ...], treatment: str, where: str
) -> Record:
    factored = treatment == "factored"
    rescale, threshold = Fraction(1), 0
    if factored:
        digest(data, "factors", where)
    else:
        rescale = exact.finite(exact.double(data.get("rescale"), f"{where}.rescale"), f"{where}.rescale")
        threshold = integer(data, "threshold", where, 0, ONE)
    if rescale <= 0:
        raise Rejected(f"{where}.rescale must be positive")
    calibrated = choice(data, "moments", where, ("unit", "calibrated")) == "calibrated"
    facts = mapping(data, "facts", where)
    values = {key: _fact(facts, key, where) for key in (FACTORED_FACTS if factored else FACTS)}
    signal = None
    if not calibrated or facts.get("signal", "") is not None:
        signal = _fact(facts, "signal", where)
    step = None
    if "step" in data:
        if not factored:
            raise Rejected(f"{where}.step goes with the treatment 'factored' alone")
        step = float(exact.finite(exact.double(data["step"], f"{where}.step"), f"{where}.step"))
        if step <= 0:
            raise Rejected(f"{where}.step must be positive")
        if "bits" in data or "span" in data:
            raise Rejected(f"{where} has both a step and bits or a span")
    bits = 16 if step else integer(data, "bits", where, 1)
    if bits not in BITS:
        raise Unsupported(f"{where}: no rule for survivors of {bits} bits")
    return Record(
        name,
        dtype,
        shape,
        treatment,
        threshold,
        rescale,
        bits,
        1 if step else integer(data, "span", where, 1),
        integer(data, "kept", where, 0, math.prod(shape)),
        calibrated,
        values,
        signal,
        data,
        step,
    )


def _fact(facts: Mapping[str, Any], key: str, where: str) -> Fraction:
    value = exact.field(facts, key, f"{where}.facts")
    if not isinstance(value, float):
        raise Rejected(f"{where}.facts.{key} must be a double")
    result = exact.finite(value, f"{where}.facts.{key}")
    if result < 0:
        raise Rejected(f"{where}.facts.{key} is negative")
    return result


# --- consistency of the facts -------------------------------------------------------------------------------


def _check_facts(record: Record, settings: Settings) -> None:
    """Inequalities that hold between true facts, up to the rounding that the settings allow."""
    slack = 1 + 8 * settings.rounding + BELOW
    f, q, where = record.facts, record.rescale, quoted(record.name)
    energy, factored = f["energy"], record.treatment == "factored"
    if record.calibrated and settings.moments == "unit":
        raise Rejected(f"{where} is calibrated, but settings.moments is 'unit'")
    if record.signal is None and not factored and q != record.keep:
        raise Rejected(f"{where}: without a signal the rescale must be the keep probability")
    if not record.calibrated:
        assert record.signal is not None
        if record.signal > slack * energy or energy > slack * record.signal:
            raise Rejected(f"{where}: with unit moments signal and energy are the same sum, and they differ")
    # A variance is at most the sub-Gaussian proxy; that of a quantiser at most a quarter of its squared step.
    if factored:
        least = f["variance"]
    else:
        least = (exact.kearns_saul(record.keep).low * energy / 2 + f["quantiser_variance"]) / q**2
    if f["row_proxy_sum"] * slack < least:
        raise Rejected(f"{where}: row_proxy_sum is below what the energy and the variance imply")
    top, total, squares = f["row_proxy_max"], f["row_proxy_sum"], f["row_proxy_square_sum"]
    if (
        top > total * slack
        or total > record.rows * top * slack
        or squares > top * total * slack
        or top * top > squares * slack
        or total * total > record.rows * squares * slack
    ):
        raise Rejected(f"{where}: the max, sum and square sum of the row proxies contradict one another")
    if factored:
        return
    variance = f["quantiser_variance"]
    fourth, steps = f["delta_fourth"], f["step_fourth"]
    if fourth > energy**2 * slack or energy**2 > record.count * fourth * slack:
        raise Rejected(f"{where}: delta_fourth and energy contradict one another")
    if (4 * variance) ** 2 > record.count * steps * slack:
        raise Rejected(f"{where}: step_fourth is below what quantiser_variance implies")


# --- derived numbers ----------------------------------------------------------------------------------------


def expectations(record: Record) -> dict[str, dict[str, Fraction | None]]:
    """``expected`` and ``alternatives`` of a record, exactly from its facts.

    None stands for what cannot be known without the signal, and `optimal_rescale` of a signal of 0 is absent.
    """
    if record.treatment == "factored":
        variance = record.facts["variance"]
        return {
            "expected": {"bias_square": Fraction(0), "variance": variance, "mean_square": variance},
            "alternatives": {**dict.fromkeys(ALTERNATIVES), "delete": record.signal},
        }
    a, b, v = record.signal, record.facts["energy"], record.facts["quantiser_variance"]
    keep, q = record.keep, record.rescale
    noise = (1 - keep) * b + v
    bias = Fraction(0) if a is None else (1 - keep / q) ** 2 * a
    variance = keep * noise / q**2
    expected: dict[str, Fraction | None] = {
        "bias_square": bias,
        "variance": variance,
        "mean_square": bias + variance,
    }
    if a is None:
        return {"expected": expected, "alternatives": dict.fromkeys(ALTERNATIVES)}
    alternatives: dict[str, Fraction | None] = {
        "delete": a,
        "optimal_mean_square": a * noise / (keep * a + noise) if a else Fraction(0),
    }
    if a:
        alternatives["optimal_rescale"] = keep + noise / a
    return {"expected": expected, "alternatives": alternatives}


def _check_derived(record: Record) -> None:
    where = quoted(record.name)
    for group, values in expectations(record).items():
        data = mapping(record.data, group, where)
        for key, value in values.items():
            _check_close(data, key, value, f"{where}.{group}")
    if (
        record.treatment != "factored"
        and record.signal == 0
        and record.data["alternatives"].get("optimal_rescale") != "inf"
    ):
        raise Rejected(f"{where}.alternatives.optimal_rescale must be 'inf'")


def _check_close(owner: Mapping[str, Any], key: str, value: Fraction | None, where: str) -> None:
    if value is None:
        if key not in owner or owner[key] is not None:
            raise Rejected(f"{where}.{key} must be null: it needs a signal")
        return
    stated = exact.finite(exact.field(owner, key, where), f"{where}.{key}")
    if abs(stated - value) > DERIVED * value:
        raise Rejected(f"{where}.{key} is not what the facts give ({float(value):.9g})")


# --- tails --------------------------------------------------------------------------------------------------


def _output(record: Record, gamma: Fraction) -> Interval:
    level, top = exact.log(2 / gamma), record.facts["row_proxy_max"]
    return Interval(exact.sqrt(2 * level.low * top).low, exact.sqrt(2 * level.high * top).high)


def _norm(record: Record, gamma: Fraction) -> Interval:
    level = exact.log(1 / gamma)
    top, total, squares = (
        record.facts[k] for k in ("row_proxy_max", "row_proxy_sum", "row_proxy_square_sum")
    )
    return Interval(
        total + 2 * exact.sqrt(level.low * squares).low + 2 * level.low * top,
        total + 2 * exact.sqrt(level.high * squares).high + 2 * level.high * top,
    )


def _realised(record: Record, gamma: Fraction) -> Interval:
    level, phi = exact.log(1 / gamma), exact.kearns_saul(record.keep)
    b, v = record.facts["energy"], record.facts["quantiser_variance"]
    keep, q = record.keep, record.rescale
    mean = (1 - keep + keep * (1 - 1 / q) ** 2) * b + keep * v / q**2
    deltas, steps = exact.sqrt(record.facts["delta_fourth"]), exact.sqrt(record.facts["step_fourth"])
    shrink = 1 - 1 / q

    def bound(d: Fraction, h: Fraction, coefficient: Fraction, log: Fraction, end: str) -> Fraction:
        """Increasing in every argument, so that low ends give a low end, and high ends a high one."""
        gap = abs(1 - shrink**2) * d + h / (4 * q**2)
        spread = 2 * abs(shrink) * getattr(exact.sqrt(d * h), end) / q + h / q**2
        proxy = coefficient * gap**2 / 2 + spread**2 / 4
        return mean + Fraction(getattr(exact.sqrt(2 * log * proxy), end))

    return Interval(
        bound(deltas.low, steps.low, phi.low, level.low, "low"),
        bound(deltas.high, steps.high, phi.high, level.high, "high"),
    )


TAILS: Mapping[tuple[str, str], Callable[[Record, Fraction], Interval]] = {
    ("output", "kearns-saul"): _output,
    ("norm", "quadratic-form"): _norm,
    ("realised", "kearns-saul"): _realised,
}
FOREIGN = ("signed", "chernoff", "lattice")


def _check_tails(record: Record, settings: Settings) -> int:
    """Check the tails of a record; how many of them have no rule here and were only read."""
    where = quoted(record.name)
    tails = array(record.data, "tails", where, dict)
    if record.treatment == "masked" and tails:
        raise Rejected(f"{where}: a mask that was chosen has no tails")
    if record.treatment == "factored" and any(tail.get("what") == "realised" for tail in tails):
        raise Unsupported(f"{where}: no rule for the realised error of thresholds by row and column")
    seen: set[tuple[Any, ...]] = set()
    foreign = 0
    for tail in tails:
        what, method = (text(tail, key, f"{where}.tails") for key in ("what", "method"))
        threshold = exact.finite(exact.field(tail, "threshold", f"{where}.tails"), f"{where}.tails.threshold")
        if threshold < 0:
            raise Rejected(f"{where}: the {what} tail is negative")
        key: tuple[Any, ...] = (what, method)
        if what == "largest-output" and method in FOREIGN:
            key += (integer(tail, "row", f"{where}.tails", 0, max(0, record.rows - 1)),)
            foreign += 1
        elif (rule := TAILS.get((what, method))) is None:
            raise Unsupported(f"{where}: no rule for the tail {what[:40]!r} by {method[:40]!r}")
        else:
            _check_threshold(threshold, rule(record, settings.gamma), f"{where}: the {what} tail")
        if key in seen:
            raise Rejected(f"{where}: the {what} tail is given twice")
        seen.add(key)
    return foreign


def _check_threshold(stated: Fraction, computed: Interval, where: str) -> None:
    if stated < computed.low * (1 - BELOW):
        raise Rejected(f"{where} is below the bound that the facts give ({float(computed.low):.9g})")
    if stated > computed.high * (1 + ABOVE):
        raise Rejected(f"{where} is above what the facts give ({float(computed.high):.9g})")


# --- totals -------------------------------------------------------------------------------------------------


def _check_totals(totals: Mapping[str, Any], records: Iterable[Record]) -> None:
    records = list(records)
    for key, count in (("count", sum(r.count for r in records)), ("kept", sum(r.kept for r in records))):
        stated = exact.rational(totals.get(key), f"totals.{key}")
        if stated != count:
            raise Rejected(f"totals.{key} = {stated} is not the sum over the lossy records, {count}")
    derived = [expectations(r) for r in records]
    for key in ("bias_square", "variance", "mean_square"):
        _check_close(totals, key, _sum(d["expected"][key] for d in derived), "totals")
    for key in ("delete", "optimal_mean_square"):
        _check_close(totals, key, _sum(d["alternatives"][key] for d in derived), "totals")
    _check_close(totals, "realised", _sum(r.facts["realised"] for r in records), "totals")


def _sum(values: Iterable[Fraction | None]) -> Fraction | None:
    """The sum; None where a part is unknown."""
    total = Fraction(0)
    for value in values:
        if value is None:
            return None
        total += value
    return total


def quoted(name: str) -> str:
    """How messages speak of a tensor."""
    return f"tensor {name[:60]!r}"
