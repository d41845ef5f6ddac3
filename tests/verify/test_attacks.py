"""Every attack is refused for the right reason, every golden file accepted, by the checker alone."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ATTACKS = ROOT / "attacks"
MANIFEST: list[dict[str, Any]] = json.loads((ATTACKS / "manifest.json").read_text())
GOLDEN = sorted((ATTACKS / "golden").glob("*.json"))


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attacks_make", ATTACKS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["attacks_make"] = module
    spec.loader.exec_module(module)
    return module


def arguments(row: dict[str, Any], folder: Path = ATTACKS) -> list[str]:
    subjects = [f"{name}={folder / path}" for name, path in row.get("subjects", {}).items()]
    return [str(folder / row["file"]), *(word for s in subjects for word in ("--subject", s))]


def test_every_attack_is_refused_for_its_reason(isolated: Callable[..., Any]) -> None:
    results = isolated([arguments(row) for row in MANIFEST])
    wrong = [
        (row["file"], code, report["reason"])
        for row, (code, report) in zip(MANIFEST, results, strict=True)
        if code != row["exit"] or row["reason"] not in report["reason"]
    ]
    assert wrong == []
    assert len(MANIFEST) >= 25
    assert all(row["exit"] in (1, 3) for row in MANIFEST)


def test_every_golden_file_is_accepted(isolated: Callable[..., Any]) -> None:
    results = isolated([[str(path)] for path in GOLDEN])
    assert [
        (path.name, report["reason"]) for path, (code, report) in zip(GOLDEN, results, strict=True) if code
    ] == []
    assert {report["kind"] for _, report in results} == {"claim-instance", "pack"}


def test_attacks_too_large_for_the_repository(
    isolated: Callable[..., Any], make: ModuleType, tmp_path: Path
) -> None:
    attacks = list(make.large_attacks(make.goldens()))
    for attack in attacks:
        (tmp_path / attack.name).write_bytes(attack.data)
    for attack, (code, report) in zip(
        attacks, isolated([[str(tmp_path / a.name)] for a in attacks]), strict=True
    ):
        assert code == attack.exit
        assert attack.reason in report["reason"]


def test_the_committed_files_are_what_the_script_writes(make: ModuleType, tmp_path: Path) -> None:
    make.write(tmp_path)
    written = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    kept = {
        p.relative_to(ATTACKS): p.read_bytes()
        for p in ATTACKS.rglob("*")
        if p.is_file() and p.suffix not in (".py", ".pyc")
    }
    assert written.keys() == kept.keys()
    assert [str(name) for name, data in written.items() if kept[name] != data] == []


def test_command_line(alone: Path, tmp_path: Path) -> None:
    """The real command, with its exit codes and its report."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        code = f"import sys; sys.path.insert(0, {str(alone)!r}); import runpy; runpy.run_module('assay_verify', run_name='__main__', alter_sys=True)"
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, *words], capture_output=True, text=True, check=False
        )

    accepted = run(str(ATTACKS / "golden" / "enclosed.json"))
    assert accepted.returncode == 0
    assert "NOT checked" in accepted.stdout
    assert "CONDITIONAL" in accepted.stdout
    assert "the black box is monotone" in accepted.stdout
    assert run(str(ATTACKS / "one-byte.json")).returncode == 1
    assert run(str(ATTACKS / "unknown-kind.json")).returncode == 3
    missing = run(str(tmp_path / "missing.json"))
    assert missing.returncode == 2
    assert "Traceback" not in missing.stderr
    assert run(str(tmp_path)).returncode == 2
    assert run("--no-such-option").returncode == 2
    assert run(str(GOLDEN[0]), "--subject", str(tmp_path / "missing")).returncode == 2
