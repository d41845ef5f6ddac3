"""Attacks on certificates alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from forging import Attack, drop, edited, put, scaled, sealed

from assay.core.certificate import canonical

LOSSY = ("tensors", 1)


def attacks(golden: Mapping[str, bytes]) -> Iterator[Attack]:
    """Attacks on certificates alone."""
    exact, enclosed, statistical = (golden[f"{n}.json"] for n in ("exact", "enclosed", "statistical"))
    broken, pack = golden["premise-broken.json"], golden["pack.json"]

    def forge(name: str, code: int, reason: str, original: bytes, edit: Any, aim: str) -> Attack:
        return Attack(f"{name}.json", code, reason, edited(original, edit), aim)

    def raw(name: str, code: int, reason: str, data: bytes, aim: str) -> Attack:
        return Attack(f"{name}.json", code, reason, data, aim)

    # fmt: off
    # The verdict of a claim.
    yield forge("truth-flipped", 1, "the sides give TRUE", exact, put("conclusion", "truth", to="FALSE"), "Flip the truth.")
    yield forge("bound-lowered", 1, "the sides give FALSE", exact, put("conclusion", "rhs", to="1"), "Lower the bound below the left side.")
    yield forge("strength-raised", 1, "the sides give ENCLOSED", enclosed, put("conclusion", "strength", to="EXACT"), "Call an enclosure exact.")
    yield forge("float-as-exact", 1, "the sides give FLOAT", exact, put("conclusion", "lhs", to="0x1.0000000000000p+1"), "Pass a measured double as EXACT.")
    yield forge("float-as-enclosed", 1, "the sides give FLOAT", enclosed, put("conclusion", "lhs", to="0x1.0000000000000p+0"), "Pass a measured double as ENCLOSED.")
    yield forge("overlap-true", 1, "the sides give UNKNOWN", enclosed, put("conclusion", "lhs", to=["1", "2"]), "Call overlapping enclosures TRUE.")
    yield forge("enclosure-reversed", 1, "low end is above", enclosed, put("conclusion", "lhs", to=["2", "1"]), "An empty enclosure satisfies everything.")
    yield forge("premise-false-truth-true", 1, "truth must be UNKNOWN", exact, put("premises", 0, "truth", to="FALSE"), "Keep TRUE with a broken premise.")
    yield forge("premise-unknown-truth-true", 1, "truth must be UNKNOWN", exact, put("premises", 0, "truth", to="UNKNOWN"), "Keep TRUE with an undecided premise.")
    yield forge("true-without-sides", 1, "no sides were compared", broken, lambda d: (put("conclusion", "truth", to="TRUE")(d), put("premises", to=[])(d)), "Claim TRUE, compare nothing.")
    yield forge("alpha-missing", 1, "STATISTICAL needs alpha", statistical, drop("conclusion", "alpha"), "Hide the miss probability.")
    yield forge("alpha-one", 1, "strictly between 0 and 1", statistical, put("conclusion", "alpha", to="1"), "A miss probability of 1 proves anything.")
    yield forge("alpha-lowered", 1, "narrower than Hoeffding", statistical, put("conclusion", "alpha", to="1/" + "1" + "0" * 12), "Claim a smaller miss probability from the same draws.")
    yield forge("draws-understated", 1, "narrower than Hoeffding", statistical, put("draws", to=100), "Claim the same interval from fewer draws.")
    yield forge("statistical-as-enclosed", 1, "alpha belongs to STATISTICAL", statistical, put("conclusion", "strength", to="ENCLOSED"), "Call a confidence interval a proof.")
    yield forge("witness-refutes", 1, "strength is stated as EXACT", golden["witness.json"], lambda d: (put("conclusion", "truth", to="FALSE")(d), put("claim", "form", to="bound")(d), put("conclusion", "lhs", to=["2", "3"])(d)), "A failing witness passed off as a refuted bound.")
    yield forge("limit", 1, "a limit is never certified", exact, put("claim", "form", to="limit"), "Certify a limit.")
    yield forge("unknown-form", 3, "form 'oracle'", exact, put("claim", "form", to="oracle"), "A form of claim that no checker knows.")
    yield forge("grade-kernel", 1, "has grade 'replay'", exact, put("grade", to="kernel"), "Promise that everything was recomputed.")

    # Identity, versions, kinds.
    document = json.loads(exact)
    document["conclusion"]["rhs"] = "7/4"
    yield raw("id-stale", 1, "id does not match", canonical(document), "Change a side, leave the id.")
    yield raw("one-byte", 1, "id does not match", exact.replace(b'"9/4"', b'"8/4"'), "Change one byte.")
    yield forge("unknown-major", 3, "version 2.0", exact, put("version", to="2.0"), "A later format with other rules.")
    yield forge("version-words", 1, "not MAJOR.MINOR", exact, put("version", to="1.0 (checked)"), "A version that is no version.")
    yield forge("unknown-kind", 3, "kind 'theorem'", exact, put("kind", to="theorem"), "A kind that no checker knows.")
    yield forge("unknown-format", 3, "the format", exact, put("format", to="assay-certificate-2"), "Another format.")

    # JSON.
    body = exact.rstrip(b"\n")
    yield raw("duplicate-key", 1, "duplicate key", body[:-1] + b',"grade":"replay"}', "The same key twice: readers differ on which counts.")
    yield raw("json-float", 1, "JSON float", body.replace(b'"draws":0', b'"draws":0.5'), "A JSON float.")
    yield raw("json-nan", 1, "JSON float", body.replace(b'"draws":0', b'"draws":NaN'), "JSON's non-standard NaN.")
    yield raw("json-integer", 1, "beyond 2^53", body.replace(b'"draws":0', b'"draws":9007199254740992'), "An integer that JavaScript cannot hold.")
    yield raw("white-space", 1, "not in canonical form", body.replace(b'"draws":0', b'"draws": 0'), "A second spelling.")
    yield raw("escape", 1, "not in canonical form", body.replace(b'"grade"', b'"gr\\u0061de"'), "A key spelt with an escape.")
    yield raw("surrogate", 1, "surrogate", body.replace(b'"draws":0', b'"draws":"\\ud800"'), "Half of a surrogate pair.")
    yield raw("invalid-utf8", 1, "not valid UTF-8", body.replace(b"Cauchy", b"Cauch\xff"), "Bytes that are no UTF-8.")
    yield raw("trailing-garbage", 1, "not JSON", exact + b"{}", "Something after the end.")
    yield raw("two-line-feeds", 1, "not in canonical form", exact + b"\n", "White space after the end.")
    yield raw("empty", 1, "not JSON", b"", "An empty file.")
    yield raw("array", 1, "not a JSON object", b"[]", "No object.")
    yield raw("deep", 1, "32 levels", body[:-1] + b',"z":' + b"[" * 40 + b"]" * 40 + b"}", "Nesting just over the limit.")
    yield raw("abyss", 1, "32 levels", b'{"z":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "Nesting that exhausts a recursive reader.")

    # Numerals.
    yield forge("long-denominator", 1, "more than 100000 characters", exact, put("conclusion", "rhs", to="1/1" + "0" * 100_000), "A denominator that costs time.")
    yield forge("not-lowest-terms", 1, "lowest terms", exact, put("conclusion", "rhs", to="18/8"), "A second spelling of a number.")
    yield forge("denominator-one", 1, "lowest terms", exact, put("conclusion", "rhs", to="9/1"), "An integer as a fraction.")
    yield forge("denominator-zero", 1, "is no number", exact, put("conclusion", "rhs", to="1/0"), "Division by zero.")
    yield forge("signed-denominator", 1, "is no number", exact, put("conclusion", "rhs", to="1/-2"), "A sign on the denominator.")
    yield forge("nan-string", 1, "is no number", exact, put("conclusion", "lhs", to="nan"), "NaN compares false with everything.")
    yield forge("decimal-string", 1, "is no number", exact, put("conclusion", "lhs", to="2.0"), "A decimal float in a string.")
    yield forge("unicode-digits", 1, "is no number", exact, put("conclusion", "lhs", to="٢"), "Digits that only some readers read.")
    yield forge("rounded-double", 1, "would be rounded", exact, put("facts", to={"x": "0x1.8p-1075"}), "A hexadecimal that is no double.")
    yield forge("integer-side", 1, "written as a string", exact, put("conclusion", "lhs", to=2), "A JSON integer as a side.")

    # Packs.
    yield forge("pack-tail-lowered", 1, "output tail is below", pack, scaled(*LOSSY, "tails", 0, "threshold", by=1 - 1e-9), "Lower a tail by a billionth.")
    yield forge("pack-norm-lowered", 1, "norm tail is below", pack, scaled(*LOSSY, "tails", 1, "threshold", by=1 - 1e-9), "Lower the norm's tail by a billionth.")
    yield forge("pack-realised-lowered", 1, "realised tail is below", pack, scaled(*LOSSY, "tails", 2, "threshold", by=1 - 1e-9), "Lower the tail of the realised error by a billionth.")
    yield forge("pack-tail-raised", 1, "output tail is above", pack, scaled(*LOSSY, "tails", 0, "threshold", by=1.01), "A tail that is not what it says.")
    yield forge("pack-tail-nan", 1, "is no number", pack, put(*LOSSY, "tails", 0, "threshold", to="nan"), "NaN as a tail.")
    yield forge("pack-tail-infinite", 1, "must be a finite number", pack, put(*LOSSY, "tails", 0, "threshold", to="inf"), "A tail that says nothing.")
    yield forge("pack-tail-unknown", 3, "no rule for the tail", pack, put(*LOSSY, "tails", 0, "method", to="oracle"), "A tail by a method that no checker knows.")
    yield forge("pack-gamma-raised", 1, "tail is above", pack, put("settings", "gamma", to="1/2"), "The level of the tails is changed under them.")
    yield forge("pack-gamma-lowered", 1, "tail is below", pack, put("settings", "gamma", to="1/1000000"), "Claim a smaller miss probability.")
    yield forge("pack-totals", 1, "totals.mean_square", pack, scaled("totals", "mean_square", by=0.5), "Totals that do not sum.")
    yield forge("pack-total-kept", 1, "totals.kept", pack, put("totals", "kept", to="10"), "A count that does not sum.")
    yield forge("pack-variance", 1, "expected.variance", pack, scaled(*LOSSY, "expected", "variance", by=0.9), "Understate the variance.")
    yield forge("pack-variance-fact", 1, "row_proxy_sum is below", pack, lambda d: [scaled(*LOSSY, "facts", f"row_proxy_{k}", by=b)(d) for k, b in (("max", 1 / 4), ("sum", 1 / 4), ("square_sum", 1 / 16))], "Shrink all proxies together.")
    yield forge("pack-proxies-contradict", 1, "contradict one another", pack, scaled(*LOSSY, "facts", "row_proxy_max", by=0.2), "Shrink the largest proxy alone.")
    yield forge("pack-square-sum", 1, "contradict one another", pack, scaled(*LOSSY, "facts", "row_proxy_square_sum", by=100.0), "Proxies whose squares are too large for them.")
    yield forge("pack-delta-fourth", 1, "delta_fourth and energy", pack, scaled(*LOSSY, "facts", "delta_fourth", by=1e-6), "Shrink the spread of the realised error.")
    yield forge("pack-step-fourth", 1, "step_fourth is below", pack, scaled(*LOSSY, "facts", "step_fourth", by=1e-6), "Shrink the quantiser's steps below its variance.")
    yield forge("pack-signal", 1, "signal and energy", pack, scaled(*LOSSY, "facts", "signal", by=100.0), "Overstate the signal to make the loss look small.")
    yield forge("pack-negative-fact", 1, "is negative", pack, scaled(*LOSSY, "facts", "realised", by=-1.0), "A negative squared error.")
    yield forge("pack-rounding", 1, "settings.rounding", pack, put("settings", "rounding", to="1/2"), "Facts that are allowed to be half wrong.")
    yield forge("pack-threshold-range", 1, "threshold = 4294967297 is outside", pack, put(*LOSSY, "threshold", to=2**32 + 1), "A keep probability above 1.")
    yield forge("pack-drop-in-disguise", 1, "threshold must be an integer", pack, put(*LOSSY, "threshold", to="9/10"), "A drop probability where the keep threshold stands.")
    yield forge("pack-keep-swapped", 1, "is not what the facts give", pack, put(*LOSSY, "threshold", to=2**32 - 429496730), "The drop probability as the keep threshold.")
    yield forge("pack-rescale-zero", 1, "rescale must be positive", pack, put(*LOSSY, "rescale", to="0x0.0p+0"), "Division by zero.")
    yield forge("pack-kept", 1, "kept = 121 is outside", pack, put(*LOSSY, "kept", to=121), "More survivors than entries.")
    yield forge("pack-masked-tails", 1, "has no tails", pack, put(*LOSSY, "treatment", to="masked"), "Tails for a mask that was chosen.")
    yield forge("pack-unknown-treatment", 3, "treatment 'blessed'", pack, put(*LOSSY, "treatment", to="blessed"), "A treatment that no checker knows.")
    yield forge("pack-unchanged", 1, "two digests differ", pack, put("tensors", 2, "base", to="e" * 64), "Call a changed tensor unchanged.")
    yield forge("pack-twice", 1, "listed twice", pack, lambda d: d["tensors"].append(d["tensors"][2]), "List a tensor twice.")
    yield forge("pack-no-payload", 1, "lacks 'payload'", pack, drop("subjects", 2), "Speak of no payload.")
    yield forge("pack-huge-shape", 1, "is no shape", pack, put(*LOSSY, "shape", to=[2**50, 2**50]), "A shape that overflows.")
    yield forge("name-control", 1, "control characters", pack, put("tensors", 0, "name", to="bias\x1b[2J"), "A name that rewrites the terminal.")
    # fmt: on


def large_attacks(golden: Mapping[str, bytes]) -> Iterator[Attack]:
    """Attacks too large to keep in the repository; tests make them when they run."""
    document = json.loads(golden["exact.json"])
    document["conclusion"]["rhs"] = "1/" + "9" * 1_000_000
    yield Attack(
        "million-digits.json",
        1,
        "more than 100000 characters",
        sealed(document),
        "A denominator of a million digits.",
    )
    yield Attack("huge.json", 1, "larger than", b" " * ((64 << 20) + 2), "A file above the limit.")
