"""Which premises carry the claims of a mission: ablates every one, and writes docs/reference/premises.md.

``python benchmarks/premises.py [--mission dare] [--seconds 6] [--out docs/reference/premises.md]``

Seconds are for each premise.  The page is measured, not derived: a test replays every witness in it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from assay import Claim, Limit, catalog
from assay.audits import Ablation, ablate
from assay.core.instance import encode

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "premises.md"

HEAD = """\
<!-- Written by benchmarks/premises.py; do not edit. -->

# Which premises carry the claims

Every premise of every claim of the mission `{mission}` was broken in turn while the others held, and the claim was
attacked there for {seconds:g} seconds (`assay audit CLAIM --ablate`). Where the ranges of the instance type imply a premise,
the fields it speaks of were widened by their own width on either side.

| role | premises | what it means |
| --- | --- | --- |
| needed | {needed} | the instance shown breaks this premise only, and the claim with it |
| defines | {defines} | no counterexample was found, but without it the claim is not defined somewhere: the reason says where |
| not needed as far as seen | {idle} | every instance looked at that breaks it satisfies the claim; how many is said |
| never broken | {never} | no instance was found that breaks it while the others hold: they imply it, as far as seen |
| undecided | {undecided} | the audit gave up: the reason says why |
| fixed | {fixed} | constructed by the instance type or assumed: there is nothing to drop |

A witness is looked at again with `assay audit CLAIM --without PREMISE --replay WITNESS`. A claim without premises and a
limit have no row.
"""

ERRATA = """
# Errata

These claims are false with all of their premises. A witness here says that the printed statement is false beyond them,
too.
"""


def rows(ablations: tuple[Ablation, ...]) -> Iterator[str]:
    """One row of the table per premise."""
    yield "| premise | role | witness or reason |"
    yield "| --- | --- | --- |"
    for a in ablations:
        if a.witness is not None:
            shown = f"`{json.dumps(encode(a.witness.instance), separators=(',', ':'))}`"
        else:
            shown = a.reason
        cells = (cell.replace("|", r"\|") for cell in (a.premise.name, a.role, shown))
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Ablate, count, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mission", default="dare")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    sections: dict[str, list[str]] = {"survives": [], "refuted": []}
    claims: tuple[Claim, ...] = catalog().missions[arguments.mission].claims
    for claim in claims:
        if isinstance(claim.form, Limit) or not claim.premises:
            continue
        checked = sum(p.check is not None for p in claim.premises)
        ablations = ablate(claim, seconds=arguments.seconds * max(1, checked))
        counts.update(a.role for a in ablations)
        sections[claim.expect] += ["", f"## `{claim.id}`", "", claim.title, "", *rows(ablations)]
        print(claim.id, *(f"{a.premise.name}: {a.role};" for a in ablations), flush=True)
    head = HEAD.format(
        mission=arguments.mission,
        seconds=arguments.seconds,
        needed=counts["needed"],
        defines=counts["defines"],
        idle=counts["not needed as far as seen"],
        never=counts["never broken"],
        undecided=counts["undecided"],
        fixed=counts["fixed"],
    )
    body = "\n".join([*sections["survives"], ERRATA, *sections["refuted"]])
    arguments.out.write_text(f"{head}{body}\n")


if __name__ == "__main__":
    main()
