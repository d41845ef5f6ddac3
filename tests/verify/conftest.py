"""The checker, run where nothing but the standard library can be imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ATTACKS = ROOT / "attacks"

DRIVER = """
import contextlib, io, json, sys
sys.path.insert(0, sys.argv[1])
from assay_verify.__main__ import main
results = []
for arguments in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*arguments, "--json"])
    results.append([code, json.loads(out.getvalue())])
foreign = sorted({name.partition(".")[0] for name in sys.modules} & {"assay", "numpy", "safetensors"})
json.dump([results, foreign], sys.stdout)
"""

Runs = list[tuple[int, dict[str, Any]]]


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a copy of assay_verify and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    shutil.copytree(ROOT / "src" / "assay_verify", folder / "assay_verify")
    return folder


@pytest.fixture(scope="session")
def isolated(alone: Path) -> Callable[[Sequence[Sequence[str]]], Runs]:
    """Run the checker once for each list of arguments, in one isolated interpreter without site-packages."""

    def run(arguments: Sequence[Sequence[str]]) -> Runs:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", DRIVER, str(alone)],
            input=json.dumps(arguments),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results, foreign = json.loads(done.stdout)
        assert foreign == []
        return [(code, report) for code, report in results]

    return run
