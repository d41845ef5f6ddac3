"""A pack's subjects: digests, facts and payload recomputed from the checkpoints themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from assay_verify import blocks, codec, exact, factors, fast, pack, philox
from assay_verify.blocks import Sums
from assay_verify.delta import Delta
from assay_verify.outcome import Rejected, Report
from assay_verify.pack import LOSSY_TREATMENTS, Record, quoted
from assay_verify.tensors import BYTES, Tensor, fingerprint

__all__ = ["check"]

OWN_ROUNDING = Fraction(1, 2**40)  # more than the checker's own float64 sums can lose, relatively

engine = fast if fast.AVAILABLE else blocks

MAX_BLOCKS = 1 << 22  # of a tensor; an empty one can claim any number of rows

Sides = Mapping[str, Mapping[str, Tensor]]


def check(document: Mapping[str, Any], report: Report, delta: Delta | None, sides: Sides) -> None:
    """Recompute what can be recomputed with the subjects given, and say in `report` what that was.

    Raises:
        Rejected: a subject is another one, or a fact is not what the subjects give.
        Unsupported: a type or a coding that this checker does not know.
    """
    records = {r.name: r for r in pack.read_records(document)}
    plans = {r["name"]: r for r in delta.plan["tensors"]} if delta is not None else {}
    if delta is not None:
        for name, record in records.items():
            if (kept := _coded(delta, plans[name], record)) != record.kept:
                raise Rejected(
                    f"{quoted(name)}: {record.kept} survivors are certified, and the delta codes {kept}"
                )
        report.checked.append("the number of survivors, from the blocks of the delta")
    for side, tensors in sides.items():
        _check_digests(document, side, tensors)
        report.checked.append(f"subject {side!r}: fingerprint and the sha256 of every tensor")
    if len(sides) < 2:
        return
    base, finetuned = sides["base"], sides["finetuned"]
    _check_sides(document["tensors"], base, finetuned)
    settings = pack.read_settings(document)
    for data in document["tensors"]:
        name, plan = data["name"], plans.get(data["name"])
        if data["treatment"] in LOSSY_TREATMENTS:
            _check_lossy(records[name], settings, base[name], finetuned[name], delta, plan)
        elif delta is not None and plan is not None:
            _check_exact(data, base.get(name), finetuned, delta, plan)
    report.checked.append(f"weights read with {'numpy' if fast.AVAILABLE else 'the standard library'}")
    report.unchecked = [line for line in report.unchecked if not line.startswith("the facts")]
    calibrated = sum(r.calibrated for r in records.values())
    hidden = 0
    if delta is None:
        hidden = sum(r.treatment == "factored" and not r.calibrated for r in records.values())
        if hidden:
            report.unchecked.append(
                f"the facts of {hidden} factored tensors: their thresholds are in the delta, give delta=PATH"
            )
    known = len(records) - calibrated - hidden
    report.checked.append(f"the facts of {known} lossy tensors, from the checkpoints")
    if calibrated:
        report.unchecked.append(f"the facts of {calibrated} calibrated tensors: their moments are not given")
    if delta is None:
        report.unchecked.append("the realised errors, and the number of survivors: give delta=PATH")
    else:
        report.checked.append("masks, scales, codes and realised errors, decoded from the delta")
        report.checked.append("tensors stored exactly, decoded and compared bit for bit")


def _check_digests(document: Mapping[str, Any], side: str, tensors: Mapping[str, Tensor]) -> None:
    digests = {name: tensor.sha256() for name, tensor in tensors.items()}
    subject = next(s for s in document["subjects"] if s["name"] == side)
    certified = {r["name"]: r[side] for r in document["tensors"] if side in r}
    for name, value in certified.items():
        if name not in digests:
            raise Rejected(f"the {side} checkpoint lacks {quoted(name)}")
        if digests[name] != value:
            raise Rejected(f"{quoted(name)} of the {side} checkpoint does not have the digest certified")
    if fingerprint(tensors, digests) != subject["sha256"]:
        raise Rejected(f"the {side} checkpoint does not have the fingerprint certified")


def _check_sides(
    records: Sequence[Mapping[str, Any]], base: Mapping[str, Tensor], finetuned: Mapping[str, Tensor]
) -> None:
    """Every tensor of both sides is in the records, with its type and shape, and is absent where it says so."""
    names = {r["name"] for r in records}
    for side in (base, finetuned):
        if stray := side.keys() - names:
            raise Rejected(f"{quoted(min(stray))} of the checkpoints is not in the certificate")
    for record in records:
        name = record["name"]
        absent = record["treatment"] == "absent"
        tensor = (base if absent else finetuned).get(name)
        if tensor is None or (absent and name in finetuned):
            raise Rejected(
                f"{quoted(name)} is called {record['treatment']}, which the checkpoints contradict"
            )
        if (record["dtype"], tuple(record["shape"])) != (tensor.dtype, tensor.shape):
            raise Rejected(f"{quoted(name)}: type or shape is not that of the checkpoint")


# --- lossy tensors ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """A block: its rows, and whether the base has them."""

    first: int
    last: int
    in_base: bool


def _places(rows: int, columns: int, base_rows: int) -> Iterator[_Place]:
    """The blocks of a tensor: whole rows, about `codec.BLOCK` elements, cut anew where the base's rows end."""
    step = max(1, codec.BLOCK // max(1, columns))
    if rows // step > MAX_BLOCKS:
        raise Rejected(f"a tensor of {rows} rows has more than {MAX_BLOCKS} blocks")
    for begin, end in ((0, base_rows), (base_rows, rows)):
        for first in range(begin, end, step):
            yield _Place(first, min(first + step, end), end == base_rows)


def _rows(tensor: Tensor) -> int:
    return tensor.shape[0] if tensor.shape else 1


def _read(tensor: Tensor, place: _Place) -> bytes:
    width = tensor.columns * BYTES[tensor.dtype]
    return tensor.read(place.first * width, place.last * width)


def _base_rows(base: Tensor, finetuned: Tensor, where: str) -> int:
    if base.shape[1:] != finetuned.shape[1:] or len(base.shape) != len(finetuned.shape):
        raise Rejected(f"{where}: base and fine-tuned differ in more than their number of rows")
    return min(_rows(base), _rows(finetuned))


def _check_rows(plan: Mapping[str, Any], base: Tensor, finetuned: Tensor, where: str) -> None:
    if plan.get("base_rows", _rows(finetuned)) != _rows(base):
        raise Rejected(f"{where}: base_rows in the plan is not what the base has")


def _coded(delta: Delta, plan: Mapping[str, Any], record: Record) -> int:
    """Survivors that the headers of the tensor's blocks count, rows beyond the base's left out."""
    columns = math.prod(record.shape[1:])
    places = list(_places(record.rows, columns, min(record.rows, plan.get("base_rows", record.rows))))
    payloads = list(delta.blocks(plan))
    if len(payloads) != len(places):
        raise Rejected(
            f"{quoted(record.name)} has {len(payloads)} blocks, and its shape asks for {len(places)}"
        )
    pairs = zip(places, payloads, strict=True)
    return sum(codec.coded_entries(payload) for place, payload in pairs if place.in_base)


def _check_lossy(
    record: Record,
    settings: pack.Settings,
    base: Tensor,
    finetuned: Tensor,
    delta: Delta | None,
    plan: Mapping[str, Any] | None,
) -> None:
    where = quoted(record.name)
    base_rows = _base_rows(base, finetuned, where)
    made = None
    if record.treatment == "factored":
        if plan is None:
            return  # the thresholds are in the delta's plan
        made = factors.read(plan, _rows(finetuned), finetuned.columns, where)
    scheme = codec.Scheme(
        record.bits,
        record.threshold,
        float(record.rescale),
        record.span,
        philox.key_for(settings.seed, record.name),
        record.treatment == "masked",
        made,
        record.step,
    )
    payloads = iter(()) if delta is None or plan is None else delta.blocks(plan)
    if plan is not None:
        _check_rows(plan, base, finetuned, where)
    kept, rows = 0, []
    for place in _places(_rows(finetuned), finetuned.columns, base_rows):
        payload = next(payloads, None)
        data = _read(finetuned, place)
        if not place.in_base:
            count = (place.last - place.first) * finetuned.columns
            if (
                payload is not None
                and codec.decode_planes(payload, codec.EXACT, BYTES[finetuned.dtype], count) != data
            ):
                raise Rejected(f"{where}: the rows that were added do not come back exactly")
            continue
        old = engine.recode(_read(base, place), base.dtype, finetuned.dtype)
        count = len(data) // BYTES[finetuned.dtype]
        stored = None if payload is None else codec.decode_survivors(payload, scheme, count)
        start = place.first * finetuned.columns
        try:
            found, sums = engine.measure(old, data, finetuned.dtype, finetuned.columns, start, scheme, stored)
        except Rejected as error:
            raise Rejected(f"{where}, rows {place.first}..{place.last - 1}: {error}") from None
        kept += found
        rows += sums
    drawn = delta is not None or not scheme.stored_mask
    if drawn and kept != record.kept:
        raise Rejected(f"{where}: {record.kept} survivors are certified, and the mask has {kept}")
    if not record.calibrated:
        _compare(record, settings, rows, realised=delta is not None)


def _compare(record: Record, settings: pack.Settings, rows: Sequence[Sums], *, realised: bool) -> None:
    """Compare the certified facts with the sums, within the rounding that both sides may have."""
    found = _factored_facts(rows) if record.treatment == "factored" else _uniform_facts(record, rows)
    if realised:
        found["realised"] = _total(r.realised for r in rows if r.realised is not None)
    # A variance is h^2 th (1 - th): next to the grid it is a difference, whose rounding scales with h^2.
    floor = {
        "quantiser_variance": _total(r.proxy for r in rows) * OWN_ROUNDING,
        "variance": found["row_proxy_sum"] * OWN_ROUNDING,
    }
    facts = {**record.facts, "signal": record.signal}
    found["signal"] = found["energy"]
    for key, value in found.items():
        fact = facts[key]
        slack = (settings.rounding + OWN_ROUNDING) * value + floor.get(key, 0)
        if fact is None or abs(fact - value) > slack:
            raise Rejected(
                f"{quoted(record.name)}: the fact {key} is not what the subjects give ({float(value):.9g})"
            )


def _uniform_facts(record: Record, rows: Sequence[Sums]) -> dict[str, Fraction]:
    q = record.rescale
    phi = exact.kearns_saul(record.keep).high
    proxies = [(phi * Fraction(r.energy) / 2 + Fraction(r.proxy)) / q**2 for r in rows]
    return {
        "energy": _total(r.energy for r in rows),
        "quantiser_variance": _total(r.variance for r in rows),
        "row_proxy_max": max(proxies, default=Fraction(0)),
        "row_proxy_sum": sum(proxies, Fraction(0)),
        "row_proxy_square_sum": sum((v * v for v in proxies), Fraction(0)),
        "delta_fourth": _total(r.fourth for r in rows),
        "step_fourth": _total(r.step_fourth for r in rows),
    }


def _factored_facts(rows: Sequence[Sums]) -> dict[str, Fraction]:
    proxies = [Fraction(r.sub_gaussian or 0.0) for r in rows]
    return {
        "energy": _total(r.energy for r in rows),
        "variance": _total(r.spread or 0.0 for r in rows),
        "row_proxy_max": max(proxies, default=Fraction(0)),
        "row_proxy_sum": sum(proxies, Fraction(0)),
        "row_proxy_square_sum": sum((v * v for v in proxies), Fraction(0)),
    }


def _total(values: Iterator[float]) -> Fraction:
    return Fraction(math.fsum(values))


# --- tensors stored exactly ---------------------------------------------------------------------------------


def _check_exact(
    record: Mapping[str, Any],
    base: Tensor | None,
    finetuned: Mapping[str, Tensor],
    delta: Delta,
    plan: Mapping[str, Any],
) -> None:
    """Decode a tensor that loses nothing, and compare it with the fine-tuned one bit for bit."""
    treatment, where = record["treatment"], quoted(record["name"])
    if treatment == "absent":
        return
    target = finetuned[record["name"]]
    if treatment == "alias":
        same = finetuned[plan["of"]]
        if (same.dtype, same.shape) != (target.dtype, target.shape) or same.sha256() != target.sha256():
            raise Rejected(f"{where} is called an alias of {plan['of'][:60]!r}, and they differ")
        return
    base_rows = 0
    if treatment in ("unchanged", "lossless"):
        if base is None:
            raise Rejected(f"{where} is called {treatment}, and the base lacks it")
        base_rows = _base_rows(base, target, where)
        _check_rows(plan, base, target, where)
    payloads = delta.blocks(plan)
    width = BYTES[target.dtype]
    for place in _places(_rows(target), target.columns, base_rows):
        data = _read(target, place)
        old = engine.recode(_read(base, place), base.dtype, target.dtype) if base and place.in_base else b""
        if treatment == "unchanged" and place.in_base:
            back = old
        else:
            payload = next(payloads, None)
            if payload is None:
                raise Rejected(f"{where} has too few blocks")
            kind = codec.LOSSLESS if place.in_base else codec.EXACT
            planes = codec.decode_planes(payload, kind, width, len(data) // width)
            back = engine.add_zigzag(old, planes, width) if place.in_base else planes
        if back != data:
            raise Rejected(f"{where} is called {treatment}, and does not come back bit for bit")
    if next(payloads, None) is not None:
        raise Rejected(f"{where} has more blocks than its shape asks for")
