"""Long attacks: minutes of audit on every claim, a round at a time, to be resumed whenever there is time.

``python benchmarks/long_attacks.py OUT.jsonl [CLAIM|MISSION|FILE.py ...] [--round 60] [--total 600] [--workers 1]``

Each line of OUT is one round: claim, round, seconds, outcome and what was looked at.  Rounds go around the claims, so
that all of them have had the same time whenever it is stopped; each round searches with a seed of its own.  What is in
OUT already is not done again.  ``--summary`` prints what OUT holds, ``--page FILE`` writes it as a page of the reference,
and neither attacks anything.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from fractions import Fraction
from pathlib import Path
from typing import Any

from assay import Limit, audit
from assay.cli.audit import choose


def attack(names: tuple[str, ...], claim_id: str, round_: int, seconds: float) -> dict[str, Any]:
    """One round: an audit whose seed is the number of the round."""
    chosen = choose(names)
    claim = next(c for c in chosen.claims if c.id == claim_id)
    report = audit(claim, seconds=seconds, seed=round_, claims=chosen.known).to_dict()
    line = {key: report[key] for key in ("claim", "outcome", "expected", "reason", "seed")}
    line |= {"round": round_, "seconds": seconds, "acceptance": round(report["acceptance"], 4)}
    line |= {key: report["effort"][key] for key in ("evaluations", "exact_evaluations", "draws")}
    line |= {"exhaustive": report["exhaustive"], "counterexample": report["counterexample"]}
    return line | {"slack": (report["closest"] or {}).get("slack"), "resolution": report["resolution"]}


def todo(
    names: tuple[str, ...], done: list[dict[str, Any]], seconds: float, total: float
) -> Iterator[tuple[str, int]]:
    """Claim and round, round by round, of what OUT does not hold; an exhausted space needs no second look."""
    spent: dict[str, float] = defaultdict(float)
    seen = {(line["claim"], line["round"]) for line in done}
    whole = {line["claim"] for line in done if line["exhaustive"] or line["outcome"] == "refuted"}
    for line in done:
        spent[line["claim"]] += line["seconds"]
    claims = [c for c in choose(names).claims if not isinstance(c.form, Limit) and c.expect == "survives"]
    rounds = 1 + max((round_ for _, round_ in seen), default=0) + math.ceil(total / seconds)
    for round_ in range(rounds):
        for claim in claims:
            if (claim.id, round_) not in seen and claim.id not in whole and spent[claim.id] < total:
                spent[claim.id] += seconds
                yield claim.id, round_


def lines(path: Path) -> list[dict[str, Any]]:
    """What a file of rounds holds; a line that a crash cut short is left out."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


def summary(done: list[dict[str, Any]]) -> str:
    """Per claim: seconds, evaluations, draws, outcomes, closest approach and resolution."""
    by_claim: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in done:
        by_claim[line["claim"]].append(line)
    table = [
        "| claim | seconds | evaluations | outcome | closest relative slack | resolution |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for claim, rounds in sorted(by_claim.items()):
        slacks = [r["slack"] for r in rounds if r["slack"] is not None]
        noticed = [r["resolution"]["damage"] for r in rounds if r["resolution"] and r["resolution"]["damage"]]
        outcome = ", ".join(sorted({r["outcome"] for r in rounds}))
        outcome += " (every instance there is)" if any(r["exhaustive"] for r in rounds) else ""
        smallest = min(map(Fraction, noticed), default="none")
        table.append(
            f"| `{claim}` | {sum(r['seconds'] for r in rounds):g} | {sum(r['evaluations'] for r in rounds)} "
            f"| {outcome} | {f'{min(slacks):.3g}' if slacks else ''} | {smallest} |"
        )
    return "\n".join(table)


HEAD = """\
<!-- Written by benchmarks/long_attacks.py; do not edit. -->

# Long attacks on the claims

What the true claims of the catalogue have been through, added up over the rounds of `benchmarks/long_attacks.py`, each with
a seed of its own, on one core. It is resumable: the longer it runs, the more these figures say. "Survived" is no proof.
The resolution is the smallest share by which a right-hand side could be smaller without this having been noticed at the
closest approaches.

"""


def main() -> None:
    """Attack what is left, and write a line per round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("claims", nargs="*", default=["dare"])
    parser.add_argument("--round", dest="seconds", type=float, default=60)
    parser.add_argument("--total", type=float, default=600)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    if arguments.summary:
        print(summary(lines(arguments.out)))
        return
    if arguments.page is not None:
        arguments.page.write_text(f"{HEAD}{summary(lines(arguments.out))}\n")
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    names = tuple(arguments.claims)
    tasks = todo(names, lines(arguments.out), arguments.seconds, arguments.total)
    with ProcessPoolExecutor(arguments.workers) as pool, arguments.out.open("a") as out:
        running: set[Future[dict[str, Any]]] = set()
        while True:
            while len(running) < arguments.workers and (task := next(tasks, None)) is not None:
                running.add(pool.submit(attack, names, *task, arguments.seconds))
            if not running:
                return
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                line = future.result()
                out.write(json.dumps(line) + "\n")
                out.flush()
                print(f"{line['outcome']:>8} {line['claim']} round {line['round']}", flush=True)


if __name__ == "__main__":
    main()
