"""The command line as a user meets it: a process of its own, or click's runner where that is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import save_file

from assay.cli import main

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def no_progress(monkeypatch):
    """A busy machine must not put lines of progress between those that a test counts."""
    monkeypatch.setattr("assay.cli.output.SECONDS_BETWEEN_LINES", float("inf"))


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """`main` on the arguments given, in this process."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="assay")

    return run


@pytest.fixture
def shell() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``assay`` on the arguments given, in a process of its own."""

    def run(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command: Sequence[str] = [sys.executable, "-m", "assay", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(SRC), **(env or {})}
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=120, check=False
        )

    return run


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base and its fine-tune: two matrices that changed, a norm gain that did, an integer that did not."""
    folder = tmp_path_factory.mktemp("pair")
    rng = np.random.default_rng(0)
    base: dict[str, Any] = {
        "layer.weight": rng.normal(0, 0.05, (96, 64)).astype(np.float32),
        "head.weight": rng.normal(0, 0.05, (32, 96)).astype(np.float32),
        "norm.weight": np.ones(64, np.float32),
        "steps": np.array([3], np.int64),
    }
    tuned = {
        k: v if k == "steps" else v + rng.normal(0, 0.002, v.shape).astype(np.float32)
        for k, v in base.items()
    }
    save_file(base, folder / "base.safetensors")
    save_file(tuned, folder / "tuned.safetensors")
    return folder / "base.safetensors", folder / "tuned.safetensors"
