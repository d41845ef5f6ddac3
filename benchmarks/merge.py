"""CPU seconds, memory and time of `assay pack` and `assay merge` against mergekit's dare_linear.

    python benchmarks/merge.py WORK --mergekit VENV/bin/mergekit-yaml [--rounds 3] [--json FILE]

WORK is a folder for the fixtures (made once) and the outputs: a bfloat16 pair of about 1 GB a side, and a tiny
one of the same kind, whose runs measure what each program costs before it does anything.  Both drop 0.9 of one
delta; assay quantises the survivors to 4 bits.  The programs take turns, so that a busy machine disturbs all alike,
and medians over the rounds are shown.  CPU seconds are user + system of the whole process with its threads, and
memory is its largest resident set, both as the kernel accounts them to the finished child (wait4).

A copy of the fine-tuned model by the safetensors library (load_file and save_file, file by file) is the yardstick
of what moving the bytes costs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from synthetic import write_pair

SIZES = {
    "large": {"hidden": 1024, "layers": 26, "vocab": 32000, "ffn": 3968, "shards": 4},
    "tiny": {"hidden": 64, "layers": 1, "vocab": 320, "ffn": 192, "heads": 4, "shards": 1},
}
COPY = """
import sys
from pathlib import Path
from safetensors.{library} import load_file, save_file
source, target = map(Path, sys.argv[1:])
target.mkdir()
for file in sorted(source.glob("*.safetensors")):
    save_file(load_file(file), target / file.name)
"""
MERGEKIT = """\
merge_method: dare_linear
base_model: {base}
models:
  - model: {finetuned}
    parameters: {{weight: 1.0, density: 0.1}}
dtype: bfloat16
"""


@dataclass(frozen=True)
class Run:
    """What one process cost."""

    cpu: float
    megabytes: float
    seconds: float


def run(command: Sequence[str | Path], log: Path) -> Run:
    """Run a command to its end; its output goes to `log`, and a failure ends the benchmark."""
    begun = time.perf_counter()
    with open(log, "wb") as output:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
    return Run(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, time.perf_counter() - begun)


def commands(work: Path, size: str, mergekit: Path | None, copy: str) -> dict[str, list[str | Path]]:
    """The commands to compare, in the order in which they run; each writes one path below WORK/out."""
    base, finetuned = write_pair(work / size, **SIZES[size])
    out = work / "out"
    assay: list[str | Path] = [sys.executable, "-m", "assay"]
    pack = [*assay, "pack", finetuned, "--base", base, "--bits", "4", "--drop", "0.9", "-o"]
    bare = [*assay, "pack", finetuned, "--base", base, "--bits", "16", "--drop", "0.9", "--coding", "raw"]
    bare += [
        "--no-certificate",
        "-o",
    ]  # the work that mergekit does too: no quantiser, entropy coder, certificate
    found: dict[str, list[str | Path]] = {
        "pack": [*pack, out / "certified"],
        "pack, no certificate": [*pack, out / "delta", "--no-certificate"],
        "merge": [*assay, "merge", base, out / "delta", "-o", out / "merged"],
        "apply": [*assay, "apply", base, out / "delta", "-o", out / "applied"],
        "pack, bare": [*bare, out / "bare"],
        "merge, bare": [*assay, "merge", base, out / "bare", "-o", out / "merged-bare"],
        "merge, direct": [*assay, "merge", base, finetuned, "--drop", "0.9", "-o", out / "direct"],
        "copy": [sys.executable, "-c", COPY.format(library=copy), finetuned, out / "copy"],
    }
    if mergekit is not None:
        recipe = work / f"{size}.yml"
        recipe.write_text(MERGEKIT.format(base=base, finetuned=finetuned))
        found["mergekit"] = [mergekit, recipe, out / "mergekit", "--random-seed", "1", "--no-copy-tokenizer"]
    return found


def measure(work: Path, mergekit: Path | None, copy: str, rounds: int) -> dict[str, dict[str, list[Run]]]:
    """All runs, by size and command; one round more than asked warms caches and is not counted."""
    runs: dict[str, dict[str, list[Run]]] = {}
    for number in range(rounds + 1):
        for size in SIZES:
            shutil.rmtree(work / "out", ignore_errors=True)
            (work / "out").mkdir(parents=True)
            for name, command in commands(work, size, mergekit, copy).items():
                cost = run(command, work / "log")
                if number:
                    runs.setdefault(size, {}).setdefault(name, []).append(cost)
                print(f"round {number} {size:<6}{name:<22}{cost.cpu:8.2f} CPU-s", file=sys.stderr)
    shutil.rmtree(work / "out", ignore_errors=True)
    return runs


def table(runs: Mapping[str, Mapping[str, Sequence[Run]]]) -> str:
    """Medians; and, with mergekit, the ratios to it of packing, of merging, and of both together."""

    def median(size: str, name: str, field: str) -> float:
        return statistics.median(getattr(run, field) for run in runs[size][name])

    lines = [f"{'':<24}{'CPU-s':>8}{'start-up':>10}{'net':>8}{'MB':>7}{'wall s':>8}"]
    for name in runs["large"]:
        whole, start = median("large", name, "cpu"), median("tiny", name, "cpu")
        lines.append(
            f"{name:<24}{whole:>8.2f}{start:>10.2f}{whole - start:>8.2f}"
            f"{median('large', name, 'megabytes'):>7.0f}{median('large', name, 'seconds'):>8.1f}"
        )
    if "mergekit" not in runs["large"]:
        return "\n".join(lines)
    lines.append("")
    whole, start = (median(size, "mergekit", "cpu") for size in ("large", "tiny"))
    alone = [(part,) for part in runs["large"] if part.split(",")[0] in ("pack", "merge")]
    pairs = [("pack", "merge"), ("pack, no certificate", "merge"), ("pack, bare", "merge, bare")]
    for parts in (*alone, *pairs):
        ours = sum(median("large", part, "cpu") for part in parts)
        net = ours - sum(median("tiny", part, "cpu") for part in parts)
        memory = max(median("large", part, "megabytes") for part in parts)
        lines.append(
            f"mergekit / ({' + '.join(parts)}): {whole / ours:.1f} times the CPU, "
            f"{(whole - start) / net:.1f} net of start-up, "
            f"{median('large', 'mergekit', 'megabytes') / memory:.1f} times the memory"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path, help="folder for fixtures and outputs; needs about 8 GB")
    parser.add_argument("--mergekit", type=Path, help="mergekit-yaml of an environment that has mergekit")
    parser.add_argument("--copy", choices=("numpy", "torch"), default="torch", help="library of the copy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run")
    options = parser.parse_args()
    runs = measure(options.work.resolve(), options.mergekit, options.copy, options.rounds)
    print(table(runs))
    if options.json is not None:
        document = {
            size: {name: [asdict(r) for r in rs] for name, rs in by.items()} for size, by in runs.items()
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
