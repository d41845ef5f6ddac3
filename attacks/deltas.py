"""Attacks on deltas."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping

from forging import Attack, Delta, container, deflate, halved, opened, sealed

from assay.checkpoints import coder
from assay.checkpoints.coder import LARGEST
from assay.core.certificate import canonical

SIDES = {"base": "golden/base.safetensors", "finetuned": "golden/finetuned.safetensors"}
SWAPPED = {"base": "golden/finetuned.safetensors", "finetuned": "golden/finetuned.safetensors"}
BOMB = deflate(bytes((64 << 20) + 1))


def grid_attacks(golden: Mapping[str, bytes]) -> Iterator[Attack]:
    """Attacks on survivors that lie on a grid: on the step, on their stream, and on rows and columns."""

    def forge(
        name: str, code: int, reason: str, edit: Callable[[Delta], object], aim: str, *, sides: bool = False
    ) -> Attack:
        delta = Delta(golden["delta-grid.safetensors"])
        edit(delta)
        return Attack(
            f"delta-grid-{name}.safetensors", code, reason, delta.build(), aim, SIDES if sides else {}
        )

    # fmt: off
    # The step.
    yield forge("negative", 1, "step must be positive", lambda d: _set_step(d, "-0x1.0000000000000p-7"), "A negative step, in plan and certificate.")
    yield forge("zero", 1, "step must be positive", lambda d: _set_step(d, "0x0.0p+0"), "A step of 0.")
    yield forge("infinite", 1, "step must be a finite number", lambda d: _set_step(d, "inf"), "A step without end.")
    yield forge("nan", 1, "'nan' is no double in hexadecimal", lambda d: _set_step(d, "nan"), "A step that is no number.")
    yield forge("decimal", 1, "is no double in hexadecimal", lambda d: _set_step(d, "0.0078125"), "A step in decimal digits.")
    yield forge("number", 1, "double", lambda d: _set_step(d, 1), "A step that is an integer.")
    yield forge("plan", 1, "differ in 'step'", lambda d: d.record("embed").update(step="0x1.0000000000000p-3"), "Another step than the one certified.")
    yield forge("larger", 1, "not those that seed and differences give", lambda d: _set_step(d, "0x1.0000000000000p-3"), "Another step, in plan and certificate.", sides=True)
    yield forge("bits", 1, "both a step and bits", lambda d: _both(d, bits=4, span=64), "Survivors of four bits and on a grid at once.")
    yield forge("span", 1, "both a step and bits", lambda d: _both(d, span=64), "A grid with a span.")
    yield forge("instead", 1, "a block is of kind", _bits_instead, "Call a grid four bits.", sides=True)

    # The facts.
    yield forge("expected", 1, "is not what the facts give", lambda d: _scale(d, ("expected", "variance"), ("expected", "mean_square")), "Halve the expected error.")
    yield forge("variance", 1, "the fact variance", _halve_variance, "Halve it in every number that follows from it.", sides=True)

    # The stream.
    yield forge("count", 1, "survivors are certified", lambda d: _restream(d, lambda s: s, 2**32 - 1), "A block that says it holds 2^32 - 1 codes.")
    yield forge("count-certified", 1, "a stream of codes", _certified_count, "A block of 240 codes, certified, whose stream has fewer.", sides=True)
    yield forge("code", 1, "not those that seed and differences give", lambda d: _recode(d, 1), "One code larger by 1, coded again.", sides=True)
    yield forge("code-huge", 1, "not those that seed and differences give", lambda d: _recode(d, LARGEST), "One code as large as any may be.", sides=True)
    yield forge("detail", 1, "no proper head", lambda d: _restream(d, lambda s: b"\4" + s[1:]), "A detail that is none.", sides=True)
    yield forge("buckets", 1, "more buckets", lambda d: _restream(d, lambda s: b"\0\xff" + b"\1" * 255 + s[-4:]), "More buckets than there may be.", sides=True)
    yield forge("table", 1, "the table or the end", lambda d: _restream(d, lambda s: s[: 1 + s[1]] + b"\0" + s[2 + s[1] :]), "A table whose last weight is 0.", sides=True)
    yield forge("table-cut", 1, "no proper head", lambda d: _restream(d, lambda s: s[: 1 + s[1]]), "A table cut short.", sides=True)
    yield forge("words", 1, "something left", lambda d: _restream(d, lambda s: s[: 2 + s[1]] + b"\1\0\0\0" + s[2 + s[1] :]), "A word that nothing reads.", sides=True)
    yield forge("words-zero", 1, "the table or the end", lambda d: _restream(d, lambda s: s + bytes(4)), "A word of zeros at the end.", sides=True)
    yield forge("words-cut", 1, "no proper head", lambda d: _restream(d, lambda s: s[:-1]), "A word cut short.", sides=True)
    yield forge("tail", 1, "the streams of a block take", lambda d: (d.tensors.update(embed=d.tensors["embed"] + b"x"), d.seal_payload()), "A byte after the stream.", sides=True)
    yield forge("coding", 3, "has the coding 0", lambda d: (_set_byte(d, "embed", 6, 0), d.seal_payload()), "Codes as they are.", sides=True)

    # Rows and columns.
    yield forge("rows", 1, "are not the certified ones", lambda d: d.record("embed").update(row_codes="0" * 6), "Other keep probabilities than those certified.")
    yield forge("rows-certified", 1, "and its mask has", lambda d: _factors(d, row_codes="0" * 6), "The same, certified.", sides=True)
    yield forge("rows-few", 1, "must be 6 hexadecimal digits", lambda d: _factors(d, row_codes="0" * 5), "One row too few.", sides=True)
    yield forge("columns-digit", 1, "must be 40 hexadecimal digits", lambda d: _factors(d, column_codes="g" * 40), "Classes of columns that are no digits.", sides=True)
    # fmt: on


def attacks(golden: Mapping[str, bytes]) -> Iterator[Attack]:
    """Attacks on the container, on the plan, on the payload and on the facts."""
    original = golden["delta.safetensors"]
    header, data = opened(original)

    def raw(name: str, code: int, reason: str, file: bytes, aim: str) -> Attack:
        return Attack(f"{name}.safetensors", code, reason, file, aim)

    def moved(name: str, reason: str, edit: Callable[[dict[str, list[int]]], object], aim: str) -> Attack:
        """An attack on the offsets alone."""
        header, data = opened(original)
        offsets = {key: entry["data_offsets"] for key, entry in header.items() if key != "__metadata__"}
        edit(offsets)
        return raw(name, 1, reason, container(header, data), aim)

    def forge(
        name: str,
        code: int,
        reason: str,
        edit: Callable[[Delta], object],
        aim: str,
        subjects: Mapping[str, str] | None = None,
    ) -> Attack:
        """The delta taken apart, changed, and put together again with everything sealed that can be."""
        delta = Delta(original)
        edit(delta)
        return Attack(f"{name}.safetensors", code, reason, delta.build(), aim, subjects or {})

    def apart(name: str, reason: str, edit: Callable[[Delta], object], aim: str) -> Attack:
        """The certificate alone, changed and sealed, and checked against both checkpoints."""
        delta = Delta(original)
        edit(delta)
        return Attack(f"{name}.json", 1, reason, sealed(delta.certificate), aim, SIDES)

    def stored(name: str, reason: str, edit: Callable[[Delta], object], aim: str) -> Attack:
        """The same, with the stored tensors left as `edit` made them."""
        delta = Delta(original)
        edit(delta)
        return raw(name, 1, reason, delta.file(), aim)

    # fmt: off
    # The container.
    yield moved("delta-overlap", "overlaps the tensor before it", _overlap, "Two tensors that share bytes.")
    yield raw("delta-hole", 1, "leaves a hole", _with_hole(original), "Bytes that no tensor owns.")
    yield moved("delta-beyond", "data_offsets that do not fit", lambda o: o["embed"].__setitem__(1, 2**40), "A tensor that ends beyond the file.")
    yield raw("delta-truncated", 1, "is truncated", original[:-1], "A file cut short.")
    yield raw("delta-header-cut", 1, "its header does not fit", original[:100], "A header cut short.")
    yield raw("delta-trailing", 1, "something after its end", original + b"x", "Something after the end.")
    yield raw("delta-header-length", 1, "its header does not fit", (2**63).to_bytes(8, "little") + original[8:], "A header of 2^63 bytes.")
    yield raw("delta-duplicate", 1, "duplicate key in the header", container({**header, "embedX": header["embed"]}, data).replace(b'"embedX"', b'"embed" '), "A tensor described twice.")
    yield raw("delta-type", 1, "must have type U8", original.replace(b'"embed":{"dtype":"U8"', b'"embed":{"dtype":"I8"'), "A payload of another type.")
    yield forge("delta-major", 3, "version 2.0 of the delta format", lambda d: d.metadata.update(version="2.0"), "A later delta format.")
    yield forge("delta-format", 3, "is no assay delta", lambda d: d.metadata.update(format="other"), "Another format.")
    yield forge("delta-stray", 1, "is not in the plan", lambda d: d.tensors.update(hidden=b"x"), "A tensor that nothing speaks of.")

    # Inflations.
    yield stored("delta-plan-bomb", "inflates to more than 67108864", lambda d: d.tensors.update({"assay.plan": BOMB}), "A plan of 64 KiB that inflates to 64 MiB.")
    yield stored("delta-certificate-bomb", "inflates to more than 67108864", lambda d: d.tensors.update({"assay.certificate": BOMB}), "A certificate that does.")
    yield forge("delta-header-bomb", 1, "inflates to more than", lambda d: d.tensors.update({"assay.header.0": BOMB}), "An output header that does.")
    yield forge("delta-stream-bomb", 1, "inflates to the wrong length", _stream_bomb, "A stream of a block that does.", SIDES)
    yield stored("delta-plan-tail", "something after its end", lambda d: d.tensors.update({"assay.plan": d.tensors["assay.plan"] + b"x"}), "Something hidden after the plan.")
    yield stored("delta-plan-cut", "is cut short", lambda d: d.tensors.update({"assay.plan": d.tensors["assay.plan"][:-3]}), "Half a plan.")

    # The plan.
    yield forge("delta-path", 1, "could leave its folder", lambda d: d.plan["files"][0].update(name="../../evil.safetensors"), "Write outside the output folder.")
    yield forge("delta-path-absolute", 1, "could leave its folder", lambda d: d.plan["files"][0].update(name="/etc/evil"), "Write to an absolute path.")
    yield forge("delta-path-windows", 1, "could leave its folder", lambda d: d.plan["files"][0].update(name="c:evil"), "Write to another drive.")
    yield forge("delta-path-carried", 1, "could leave its folder", lambda d: d.plan["carried"].append({"name": "a/../../evil", "bytes": 0, "sha256": "0" * 64, "from": "base"}), "Copy a file outside the output folder.")
    yield forge("delta-relabelled", 1, "do not describe the tensors of the plan", lambda d: _relabel(d, "gain", "pain"), "An output header that names other tensors.")
    yield forge("delta-retyped", 1, "do not describe the tensors of the plan", lambda d: _relabel(d, "F32", "I32"), "An output header that reads the same bytes as another type.")
    yield forge("delta-reserved", 1, "are reserved", lambda d: d.record("new").update(name="assay.plan"), "A model tensor that poses as the plan.")
    yield forge("delta-alias-forward", 1, "does not come before it", lambda d: d.record("head").update(of="same"), "An alias of a later tensor.")
    yield forge("delta-blocks", 1, "length of its blocks", lambda d: d.record("embed").update(blocks=[1]), "Blocks that do not add up.")
    yield forge("delta-blocks-negative", 1, "block lengths are malformed", lambda d: d.record("embed").update(blocks=[-1, d.record("embed")["blocks"][0] + 1]), "A block of negative length.")
    yield forge("delta-base-rows", 1, "is not what the base has", lambda d: [d.record(n).update(base_rows=7) for n in ("embed", "head")], "More rows of the base than there are.", SIDES)
    yield forge("delta-base-rows-lossless", 1, "is not what the base has", lambda d: d.record("gain").update(base_rows=17), "The same of a tensor that is stored without loss.", SIDES)
    yield forge("delta-base-rows-negative", 1, "base_rows = -1 is outside", lambda d: d.record("embed").update(base_rows=-1), "Fewer than none.")
    yield forge("delta-alias-shape", 1, "cannot repeat", lambda d: d.record("head").update(of="gain"), "An alias of a tensor of another shape.")
    yield forge("delta-alias-alias", 1, "cannot repeat", _alias_of_alias, "An alias of an alias.")
    yield forge("delta-row-bomb", 1, "has more than", _many_rows, "A lossy tensor of 2^44 rows, in every place that says so.")
    yield forge("delta-treatment", 3, "treatment 'blessed'", lambda d: d.record("gain").update(treatment="blessed"), "A treatment that no checker knows.")

    # Plan and certificate.
    yield forge("delta-seed-plan", 1, "different seeds", lambda d: d.plan.update(seed="8"), "Another mask than the one certified.")
    yield forge("delta-threshold-plan", 1, "differ in 'threshold'", lambda d: d.record("embed").update(threshold=2**30), "Another drop probability than the one certified.")
    yield forge("delta-rescale-plan", 1, "differ in 'rescale'", lambda d: d.record("embed").update(rescale="0x1.0000000000000p+0"), "Another rescale than the one certified.")
    yield forge("delta-treatment-plan", 1, "differ in 'treatment'", lambda d: d.record("gain").update(treatment="exact"), "Another treatment than the one certified.")
    yield forge("delta-grid-dropped", 1, "goes with the treatment 'factored'", lambda d: _both(d, step="0x1.0000000000000p-7"), "A step where one keep probability holds for all, for which there is no rule.")
    yield forge("delta-order-plan", 1, "in the same order", lambda d: (d.plan["tensors"].insert(0, d.plan["tensors"].pop()), d.seal_payload()), "Another order than the one certified.")
    yield forge("delta-kind", 1, "must be of kind 'pack'", lambda d: d.__setattr__("certificate", _certificate(golden["exact.json"])), "A certificate of something else.")
    yield forge("delta-other-certificate", 1, "another payload", lambda d: d.__setattr__("certificate", _certificate(golden["pack.json"])), "The certificate of another delta.")
    yield forge("delta-kept", 1, "survivors are certified", _one_more_survivor, "Certify one survivor more.")

    yield forge("delta-payload-bytes", 1, "states a payload of", lambda d: d.certificate["subjects"][-1].update(bytes=1), "Certify a payload of another size.")

    # The payload.
    yield stored("delta-bit", "digest it was sealed with", _flip_code, "Flip one bit of the payload.")
    yield forge("delta-bit-id", 1, "another payload", lambda d: (_flip_code(d), d.seal_payload(), d.certificate["subjects"][-1].update(sha256="0" * 64)), "The same, with the delta's id made right.")
    yield forge("delta-bit-sealed", 1, "not those that seed and differences give", lambda d: (_flip_code(d), d.seal_payload()), "The same, with all digests made right.", SIDES)
    yield forge("delta-scale", 1, "scales of a block are not those", lambda d: (_flip_scale(d), d.seal_payload()), "Change a scale, with all digests made right.", SIDES)
    yield forge("delta-exact-bit", 1, "does not come back bit for bit", lambda d: (_flip_last(d, "new"), d.seal_payload()), "Change a tensor that is stored exactly.", SIDES)
    yield forge("delta-lossless-bit", 1, "does not come back bit for bit", lambda d: (_flip_last(d, "gain"), d.seal_payload()), "Change a tensor that is stored without loss.", SIDES)
    yield forge("delta-block-kind", 1, "a block is of kind", lambda d: (_set_byte(d, "embed", 0, 3), d.seal_payload()), "A block of another kind.", SIDES)
    yield forge("delta-coding", 3, "has the coding", lambda d: (_set_byte(d, "embed", 6, 9), d.seal_payload()), "A coding that no checker knows.", SIDES)

    # The subjects.
    yield forge("delta-wrong-base", 1, "does not have the digest certified", lambda d: None, "Check against another base.", SWAPPED)
    yield forge("delta-seed", 1, "and its mask has", lambda d: (d.plan.update(seed="8"), d.certificate["settings"].update(seed="8")), "Another seed, in plan and certificate.", SIDES)
    yield forge("delta-realised", 1, "the fact realised", _understate_realised, "Understate the realised error.", SIDES)
    yield forge("delta-halved", 1, "the fact energy", lambda d: halved(d.certified("embed"), d.certificate["totals"]), "Halve the delta in every number at once.", SIDES)
    yield forge("delta-digest", 1, "does not have the digest certified", lambda d: d.certified("gain").update(finetuned="0" * 64), "Certify another fine-tuned tensor.", SIDES)
    yield forge("delta-fingerprint", 1, "does not have the fingerprint certified", lambda d: d.certificate["subjects"][0].update(sha256="0" * 64), "Certify another base.", SIDES)
    yield apart("sides-kept", "and the mask has", _one_more_survivor, "Certify one survivor more, without the delta.")
    yield apart("sides-hidden", "is not in the certificate", lambda d: d.certificate["tensors"].remove(d.certified("same")), "Leave a tensor of the checkpoints out.")
    yield apart("sides-absent", "called absent", lambda d: d.certified("same").update(treatment="absent") or d.certified("same").pop("finetuned"), "Call a tensor absent that is there.")
    yield apart("sides-shape", "not that of the checkpoint", lambda d: d.certified("same").update(shape=[4, 3]), "Certify another shape.")
    # fmt: on


def _alias_of_alias(delta: Delta) -> None:
    delta.record("same").update(delta.record("head"), name="same", of="head")


def _certificate(data: bytes) -> dict[str, object]:
    return dict(json.loads(data))


def _overlap(offsets: dict[str, list[int]]) -> None:
    size = offsets["new"][1] - offsets["new"][0]
    offsets["new"][:] = [offsets["embed"][0], offsets["embed"][0] + size]


def _with_hole(original: bytes) -> bytes:
    header, data = opened(original)
    last = max(
        (entry for key, entry in header.items() if key != "__metadata__"), key=lambda e: e["data_offsets"]
    )
    begin, end = last["data_offsets"]
    last["data_offsets"] = [begin + 1, end + 1]
    return container(header, data[:begin] + b"x" + data[begin:])


def _relabel(delta: Delta, old: str, new: str) -> None:
    """Replace the first occurrence of a word in the output's header by one of the same length."""
    header = zlib.decompress(delta.tensors["assay.header.0"], -15)
    delta.tensors["assay.header.0"] = deflate(header.replace(old.encode(), new.encode(), 1))


def _many_rows(delta: Delta) -> None:
    shape = [2**44]
    for name in ("embed", "head"):
        delta.record(name)["shape"] = delta.certified(name)["shape"] = shape
    delta.certificate["totals"]["count"] = str(shape[0])
    header = json.loads(zlib.decompress(delta.tensors["assay.header.0"], -15))
    position = 0
    for name, entry in header.items():
        if name != "__metadata__":
            entry["shape"] = shape if name in ("embed", "head") else entry["shape"]
            entry["data_offsets"] = [position, position + 4 * math.prod(entry["shape"])]
            position = entry["data_offsets"][1]
    raw = json.dumps(header).encode()
    delta.plan["files"][0]["bytes"] = len(raw)
    delta.tensors["assay.header.0"] = deflate(raw)


def _set_byte(delta: Delta, name: str, at: int, value: int) -> None:
    data = bytearray(delta.tensors[name])
    data[at] = value
    delta.tensors[name] = bytes(data)


def _flip_last(delta: Delta, name: str) -> None:
    _set_byte(delta, name, len(delta.tensors[name]) - 1, delta.tensors[name][-1] ^ 1)


def _streams(payload: bytes) -> list[int]:
    """Lengths of the streams of a block."""
    return [struct.unpack_from("<I", payload, 7 + 5 * stream)[0] for stream in range(payload[1])]


def _flip_code(delta: Delta) -> None:
    """A code between -7 and 7 stays one: the lowest bit of the first that is not the highest changes."""
    payload = delta.tensors["embed"]
    codes = len(payload) - _streams(payload)[-1]
    at = next(i for i in range(codes, len(payload)) if payload[i] & 15 != 14)
    _set_byte(delta, "embed", at, payload[at] ^ 1)


def _flip_scale(delta: Delta) -> None:
    payload = delta.tensors["embed"]
    at = 6 + 5 * payload[1]
    _set_byte(delta, "embed", at, payload[at] ^ 1)


def _stream_bomb(delta: Delta) -> None:
    """The first stream of the block becomes raw DEFLATE of 64 MiB."""
    payload = delta.tensors["embed"]
    table, first = 6 + 5 * payload[1], _streams(payload)[0]
    head = payload[:6] + struct.pack("<BI", 1, len(BOMB)) + payload[11:table]
    delta.tensors["embed"] = head + BOMB + payload[table + first :]
    delta.seal_payload()


def _one_more_survivor(delta: Delta) -> None:
    record = delta.certified("embed")
    record["kept"] += 1
    delta.certificate["totals"]["kept"] = str(record["kept"])


def _understate_realised(delta: Delta) -> None:
    record = delta.certified("embed")
    record["facts"]["realised"] = (float.fromhex(record["facts"]["realised"]) / 2).hex()
    delta.certificate["totals"]["realised"] = record["facts"]["realised"]


# --- grids --------------------------------------------------------------------------------------------------


def _set_step(delta: Delta, step: object) -> None:
    _both(delta, step=step)


def _both(delta: Delta, **fields: object) -> None:
    """Change the record in the plan and the record in the certificate."""
    for record in (delta.record("embed"), delta.certified("embed")):
        record.update(fields)


def _bits_instead(delta: Delta) -> None:
    for record in (delta.record("embed"), delta.certified("embed")):
        del record["step"]
    _both(delta, bits=4, span=64)


def _scale(delta: Delta, *paths: tuple[str, str]) -> None:
    """Halve doubles of the certified record."""
    for group, key in paths:
        values = delta.certified("embed")[group]
        values[key] = (float.fromhex(values[key]) / 2).hex()


def _halve_variance(delta: Delta) -> None:
    _scale(delta, ("facts", "variance"), ("expected", "variance"), ("expected", "mean_square"))
    for key in ("variance", "mean_square"):
        delta.certificate["totals"][key] = delta.certified("embed")["expected"][key]


def _restream(delta: Delta, edit: Callable[[bytes], bytes], entries: int | None = None) -> None:
    """Change the stream of codes, and the number of entries of its block; everything is sealed again."""
    kind, streams, coded, coding, _ = struct.unpack_from("<BBIBI", delta.tensors["embed"])
    stream = edit(delta.tensors["embed"][11:])
    head = struct.pack("<BBIBI", kind, streams, coded if entries is None else entries, coding, len(stream))
    delta.tensors["embed"] = head + stream
    delta.seal_payload()


def _recode(delta: Delta, more: int) -> None:
    """Add to the first code, up to the largest."""
    kept = delta.certified("embed")["kept"]

    def edit(stream: bytes) -> bytes:
        codes = coder.decode(stream, kept, signed=True)
        codes[0] = min(LARGEST, codes[0] + more)
        return coder.encode(codes, signed=True)

    _restream(delta, edit)


def _certified_count(delta: Delta) -> None:
    delta.certified("embed")["kept"] = 240
    delta.certificate["totals"]["kept"] = "240"
    _restream(delta, lambda stream: stream, 240)


def _factors(delta: Delta, **fields: str) -> None:
    """Change the plan's rows and columns, and certify them."""
    record = delta.record("embed")
    record.update(fields)
    keys = ("row_codes", "column_codes", "row_grid", "column_grid", "shift", "floor")
    form = canonical({key: record[key] for key in keys})
    delta.certified("embed")["factors"] = hashlib.sha256(form).hexdigest()
