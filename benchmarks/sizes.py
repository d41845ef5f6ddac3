"""Bytes per parameter of whole delta files, all metadata counted, against ``16 d`` and ``4.25 d`` bits.

``python benchmarks/sizes.py --folder FOLDER`` makes a pair of 469 M parameters there (once) and prints a table.
"""

from __future__ import annotations

import argparse
import tempfile
from fractions import Fraction
from pathlib import Path

import synthetic

from assay.checkpoints import pack


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    base, finetuned = synthetic.write_pair(folder, hidden=1024, layers=26, vocab=32000, ffn=3968)
    print(
        f"{'drop':>5} {'bits':>4} {'ideal':>8} {'raw':>8} {'over':>7} {'entropy':>8} {'over':>7}   (bits per parameter)"
    )
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for drop in (Fraction(1, 2), Fraction(9, 10), Fraction(99, 100)):
            for bits, ideal in ((16, 16.0), (4, 4.25)):
                target = ideal * float(1 - drop)
                found = []
                for coding in ("raw", "entropy"):
                    out = Path(scratch) / "delta.safetensors"
                    found.append(
                        pack(finetuned, base, out, drop=drop, bits=bits, coding=coding).bits_per_parameter
                    )
                ratios = [f"{value:8.4f} {value / target - 1:+7.2%}" for value in found]
                print(f"{float(drop):5.2f} {bits:4d} {target:8.4f} {' '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
