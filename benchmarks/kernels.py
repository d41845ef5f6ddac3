"""Throughput of the delta codec's kernels, in million parameters per CPU-second and per second.

    python benchmarks/kernels.py [--rows 4096] [--columns 4096] [--drop 0.9]

Synthetic bfloat16 pair in memory: base N(0, 0.02), fine-tuned = base + N(0, 0.002).  "encode" reads both
sides, draws the mask, quantises, measures the moments and codes; "apply" draws the mask, decodes, adds and
rounds.  The best of the rounds is shown; on a busy machine shared cores and caches slow even CPU time, so
read the figures against the line of the plain mask words.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from assay.checkpoints.codec import Scheme, apply_block, decode_block, encode_block, rows_per_block
from assay.numerics.philox import key_for, words


def bfloat16_normal(seed: int, shape: tuple[int, int], scale: float) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)


def measure(job: Callable[[int], object], blocks: int, threads: int, rounds: int) -> tuple[float, float]:
    """Least CPU and wall seconds of running job(0) .. job(blocks - 1)."""
    cpu = wall = np.inf
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            begun, used = time.perf_counter(), time.process_time()
            for _ in pool.map(job, range(blocks)):
                pass
            cpu, wall = min(cpu, time.process_time() - used), min(wall, time.perf_counter() - begun)
    return cpu, wall


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--drop", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    shape = options.rows, options.columns
    base = bfloat16_normal(1, shape, 0.02)
    tuned = base + bfloat16_normal(2, shape, 0.002)
    base, tuned = ((side.view(np.uint32) >> 16).astype(np.uint16) for side in (base, tuned))
    height = rows_per_block(options.columns)
    starts = range(0, options.rows, height)
    millions = base.size / 1e6
    keep = 1 - options.drop
    key = key_for(0, "benchmark")
    print(f"{'job':<16}{'threads':>8}{'Mparam/CPU-s':>14}{'Mparam/s':>10}{'bits/param':>12}")
    for threads in (1, 2):
        cpu, wall = measure(
            lambda block: words(key, block << 20, 1 << 20), len(starts), threads, options.rounds
        )
        count = len(starts) * (1 << 20) / 1e6
        print(f"{'philox words':<16}{threads:>8}{count / cpu:>14.0f}{count / wall:>10.0f}")
        for coding in ("raw", "entropy"):
            for bits in (16, 4):
                scheme = Scheme(bits, round(keep * 2**32), keep, key, span=round(64 / keep), coding=coding)

                def encode(block: int, scheme: Scheme = scheme) -> bytes:
                    row = starts[block]
                    part = slice(row, row + height)
                    return encode_block(
                        base[part], tuned[part], "BF16", row * options.columns, scheme
                    ).payload

                payloads = [encode(block) for block in range(len(starts))]

                def apply(block: int, scheme: Scheme = scheme, payloads: list[bytes] = payloads) -> None:
                    row = starts[block]
                    part = base[row : row + height]
                    found = decode_block(payloads[block], row * options.columns, part.size, scheme)
                    apply_block(part, "BF16", *found)

                apply(0)
                rate = 8 * sum(map(len, payloads)) / base.size
                for name, job in (("encode", encode), ("apply", apply)):
                    cpu, wall = measure(job, len(starts), threads, options.rounds)
                    print(
                        f"{f'{name} {bits} {coding}':<16}{threads:>8}{millions / cpu:>14.0f}"
                        f"{millions / wall:>10.0f}{rate:>12.4f}"
                    )


if __name__ == "__main__":
    main()
