"""Write the golden files and the attacks on the checker, from the same valid originals, deterministically.

``python attacks/make.py`` (with ``src`` on the path) rewrites the files beside it, ``README.md``, and
``manifest.json``, which lists for each file the exit code and the phrase that the checker's reason must
contain.  A test compares the committed files with what this script writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import certificates
import deltas
from forging import Attack
from originals import goldens

HERE = Path(__file__).parent
MAX_KEPT = 200_000  # bytes of a file that is kept in the repository


def write(folder: Path) -> None:
    """Write every golden file, every small attack and the manifest into `folder`."""
    golden = goldens()
    (folder / "golden").mkdir(exist_ok=True)
    for name, data in golden.items():
        (folder / "golden" / name).write_bytes(data)
    attacks = [*certificates.attacks(golden), *deltas.attacks(golden), *deltas.grid_attacks(golden)]
    for attack in attacks:
        (folder / attack.name).write_bytes(attack.data)
    rows = [
        {"file": a.name, "exit": a.exit, "reason": a.reason, "subjects": dict(a.subjects)} for a in attacks
    ]
    (folder / "manifest.json").write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "README.md").write_text(readme([*attacks, *certificates.large_attacks(golden)]))


README = """# Attacks on the checker

Hostile files, each made from a valid original (`golden/`) by `make.py`. Where a field was changed the `id` was
made right again, as a careful forger would; the exceptions say so. `python -m assay_verify FILE` must end with
the exit code given here (1 rejected, 3 unsupported) and a reason that contains the phrase; `manifest.json` says
the same to programs. Files marked * are too large to keep and are made when the tests run; those marked + need the
subjects, `--subject base=golden/base.safetensors --subject finetuned=golden/finetuned.safetensors` (for
`delta-wrong-base` the fine-tuned checkpoint is also the base).

| no. | file | tries to | exit | because |
| --- | --- | --- | --- | --- |
"""


def readme(attacks: Sequence[Attack]) -> str:
    """The table of all attacks, numbered."""
    rows = []
    for number, a in enumerate(attacks, 1):
        file = f"`{a.name}`" + ("*" if len(a.data) > MAX_KEPT else "") + ("+" if a.subjects else "")
        rows.append(f"| {number} | {file} | {a.aim} | {a.exit} | {a.reason} |\n")
    return README + "".join(rows)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
