"""Valid certificates, deltas and checkpoints: the golden files, and what the attacks are forged from."""

from __future__ import annotations

import math
import random
import struct
import tempfile
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from forging import Document, layout

from assay.checkpoints.delta import source_fingerprint
from assay.checkpoints.energies import STEPS, Energies, TensorEnergy
from assay.checkpoints.factors import CLASSES, log_codes
from assay.checkpoints.io import open_checkpoint
from assay.checkpoints.pack import pack
from assay.checkpoints.plan import GRID
from assay.core.certificate import Certificate, certify
from assay.core.claim import Claim, Premise, Sides, Source, Tail, Witness
from assay.core.number import Ball, encode_number
from assay.missions._template.claims import amgm
from assay.missions._template.model import Numbers

INSTANCE = Numbers((Fraction(1), Fraction(2)))
SOURCE = Source("an example", "written for the attacks")


def _root_two(_: Numbers) -> Sides:
    """A rational enclosure of the square root of 2, against 3/2."""
    scale = 1 << 64
    root = math.isqrt(2 * scale * scale)
    return Sides(Ball(Fraction(root, scale), Fraction(root + 1, scale)), "<=", Fraction(3, 2))


def _conditional() -> Claim:
    premise = Premise("the black box is monotone", None, "assumed")
    return Claim(
        "_attacks.enclosed", "An enclosed side", "x", Numbers, _bound(_root_two), SOURCE, premises=(premise,)
    )


def _bound(sides: Callable[[Numbers], Sides]) -> Any:
    return type(amgm.form)(sides)


TAIL = Claim(
    "_attacks.tail",
    "A coin is rarely six sixes",
    "x",
    Numbers,
    Tail(delta=lambda _: Fraction(1, 2), event=lambda _, rng: rng.random() < 1 / 64),
    SOURCE,
)
WITNESS = Claim(
    "_attacks.witness",
    "A witness that fails",
    "x",
    Numbers,
    Witness(produce=lambda _: 2, sides=lambda _, w: Sides(w, "<=", 1)),
    SOURCE,
)
BROKEN = Numbers.__new__(Numbers)
object.__setattr__(BROKEN, "values", (Fraction(-1), Fraction(2)))


def _pack() -> Document:
    """A pack certificate of one lossy and two exact tensors, from the definitions on the format's page."""
    rows = [(0.75, 0.03125), (1.25, 0.0625), (0.5, 0.015625)]  # B_i and H_i of three outputs
    threshold, bits = 429496730, 4
    keep = threshold / 2**32
    q, p = keep, 1 - keep
    phi = (1 - 2 * p) / math.log((1 - p) / p)
    energy = sum(b for b, _ in rows)
    variance_q = 0.078125
    proxies = [(phi * b / 2 + h) / q**2 for b, h in rows]
    facts = {
        "signal": energy,
        "energy": energy,
        "quantiser_variance": variance_q,
        "realised": 21.5,
        "row_proxy_max": max(proxies),
        "row_proxy_sum": math.fsum(proxies),
        "row_proxy_square_sum": math.fsum(v * v for v in proxies),
        "delta_fourth": 0.5,
        "step_fourth": 0.01,
    }
    gamma = 0.01
    l2, l1 = math.log(2 / gamma), math.log(1 / gamma)
    bias = (1 - keep / q) ** 2 * energy
    variance = (p * keep * energy + keep * variance_q) / q**2
    noise = p * energy + variance_q
    best = energy * noise / (keep * energy + noise)
    mean = (p + keep * (1 - 1 / q) ** 2) * energy + keep * variance_q / q**2
    deltas, steps, shrink = math.sqrt(facts["delta_fourth"]), math.sqrt(facts["step_fourth"]), 1 - 1 / q
    gap = abs(1 - shrink**2) * deltas + steps / (4 * q**2)
    spread = 2 * abs(shrink) * math.sqrt(deltas * steps) / q + steps / q**2
    proxy = phi * gap**2 / 2 + spread**2 / 4
    tails = [
        ("output", "kearns-saul", math.sqrt(2 * l2 * facts["row_proxy_max"])),
        (
            "norm",
            "quadratic-form",
            facts["row_proxy_sum"]
            + 2 * math.sqrt(l1 * facts["row_proxy_square_sum"])
            + 2 * l1 * facts["row_proxy_max"],
        ),
        ("realised", "kearns-saul", mean + math.sqrt(2 * l1 * proxy)),
    ]

    def hexed(values: Mapping[str, float]) -> dict[str, Any]:
        return {key: encode_number(value) for key, value in values.items()}

    lossy = {
        "name": "layers.0.weight",
        "dtype": "F32",
        "shape": [3, 40],
        "treatment": "dropped",
        "base": "a" * 64,
        "finetuned": "b" * 64,
        "threshold": threshold,
        "rescale": encode_number(q),
        "bits": bits,
        "span": 640,
        "kept": 11,
        "moments": "unit",
        "facts": hexed(facts),
        "expected": hexed({"bias_square": bias, "variance": variance, "mean_square": bias + variance}),
        "alternatives": hexed(
            {"delete": energy, "optimal_rescale": keep + noise / energy, "optimal_mean_square": best}
        ),
        "tails": [
            *({"what": w, "method": m, "threshold": encode_number(t)} for w, m, t in tails),
            {"what": "largest-output", "row": 1, "method": "chernoff", "threshold": encode_number(9.5)},
        ],
    }
    plain = {"dtype": "F32", "shape": [40], "base": "c" * 64}
    return {
        "kind": "pack",
        "claims": ["dare.quantised_moments", "dare.tail"],
        "subjects": [
            {"name": "base", "sha256": "1" * 64, "bytes": 640},
            {"name": "finetuned", "sha256": "2" * 64, "bytes": 640},
            {"name": "payload", "sha256": "3" * 64, "bytes": 77},
        ],
        "premises": [],
        "settings": {
            "seed": "7",
            "gamma": "1/100",
            "moments": "unit",
            "rounding": encode_number(Fraction(1, 2**40)),
        },
        "tensors": [
            {"name": "bias", "treatment": "lossless", "finetuned": "d" * 64, **plain},
            lossy,
            {"name": "norm", "treatment": "unchanged", "finetuned": "c" * 64, **plain},
        ],
        "totals": {
            "count": "120",
            "kept": "11",
            **hexed(
                {
                    "bias_square": bias,
                    "variance": variance,
                    "mean_square": bias + variance,
                    "delete": energy,
                    "optimal_mean_square": best,
                    "realised": 21.5,
                }
            ),
        },
        "grade": "kernel",
    }


def _checkpoints() -> dict[str, bytes]:
    """A base and its fine-tuned sibling: a matrix and its tied copy, a gain, indices, one unchanged, one new."""
    rng = random.Random(7)

    def numbers(count: int, scale: float) -> list[float]:
        return [scale * rng.randrange(-512, 512) / 512 for _ in range(count)]

    def singles(values: list[float]) -> bytes:
        return struct.pack(f"<{len(values)}f", *values)

    matrix, gain, same = numbers(240, 1.0), numbers(16, 1.0), singles(numbers(12, 1.0))
    moved = [w + d for w, d in zip(matrix, numbers(240, 1 / 16), strict=True)]
    tuned_gain = [g + d for g, d in zip(gain, numbers(16, 1 / 64), strict=True)]
    indices = ("I32", [5], struct.pack("<5i", *range(5)))
    base = {
        "embed": ("F32", [6, 40], singles(matrix)),
        "gain": ("F32", [16], singles(gain)),
        "head": ("F32", [6, 40], singles(matrix)),
        "indices": indices,
        "same": ("F32", [3, 4], same),
    }
    finetuned = {
        "embed": ("F32", [6, 40], singles(moved)),
        "gain": ("F32", [16], singles(tuned_gain)),
        "head": ("F32", [6, 40], singles(moved)),
        "indices": indices,
        "new": ("F32", [2, 2], singles([1.0, -2.0, 0.5, 0.25])),
        "same": ("F32", [3, 4], same),
    }
    return {"base.safetensors": layout(base), "finetuned.safetensors": layout(finetuned)}


def _deltas(checkpoints: Mapping[str, bytes]) -> dict[str, bytes]:
    """The deltas that assay packs of the two: survivors of four bits, and survivors on a grid."""
    with tempfile.TemporaryDirectory() as folder:
        base, finetuned, out, energies = (
            Path(folder) / f"{n}.safetensors" for n in ("base", "finetuned", "delta", "energies")
        )
        for path in (base, finetuned):
            path.write_bytes(checkpoints[path.name])
        pack(finetuned, base, out, drop=Fraction(1, 2), bits=4, coding="raw", seed=7, tails="ks", workers=1)
        result = {"delta.safetensors": out.read_bytes()}
        _energies(base, finetuned).save(energies)
        pack(
            finetuned, base, out, bits=GRID, drop=Fraction(1, 2), keep_map="factored", energies=energies,
            coding="raw", seed=7, tails="ks", workers=1, overwrite=True,
        )  # fmt: skip
        return {**result, "delta-grid.safetensors": out.read_bytes()}


def _energies(base: Path, finetuned: Path) -> Energies:
    """Energies of the embedding, made up: each row and each column half as heavy as the one before it."""
    rows, columns = 0.5 ** np.arange(6.0), 0.5 ** (np.arange(40.0) // 8)
    (row_codes, _, _), (column_codes, _, _) = log_codes(rows), log_codes(columns)
    energy = np.zeros((CLASSES, CLASSES))
    np.add.at(energy, (row_codes[:, None], column_codes[None, :]), np.multiply.outer(rows, columns))
    steps = np.array(STEPS)
    tensor = TensorEnergy(
        (rows * columns.mean()).astype(np.float32),
        (columns * rows.mean()).astype(np.float32),
        energy,
        energy,
        np.ones((5, 3)),
        np.ones((5, 3)),
        1.0,
        1 / 32,
        energy.sum() * steps**2,
        np.log2(1 + 4 / steps),
    )
    with open_checkpoint(base) as old, open_checkpoint(finetuned) as new:
        prints = source_fingerprint(old), source_fingerprint(new)
    return Energies({"embed": tensor}, {"gain": 64, "new": 16}, 1.0, "encoder", 8, 2, 0, *prints, "texts")


def goldens() -> dict[str, bytes]:
    """Valid files by name: certificates of every kind and strength, a delta, and the checkpoints it speaks of."""
    checkpoints = _checkpoints()
    certificates = {
        "exact.json": certify(amgm, INSTANCE),
        "enclosed.json": certify(_conditional(), INSTANCE),
        "statistical.json": certify(TAIL, INSTANCE, draws=400),
        "witness.json": certify(WITNESS, INSTANCE),
        "premise-broken.json": certify(amgm, BROKEN),
        "pack.json": Certificate.seal(_pack()),
    }
    return {
        **{name: certificate.to_bytes() + b"\n" for name, certificate in certificates.items()},
        **checkpoints,
        **_deltas(checkpoints),
    }
