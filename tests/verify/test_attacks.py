"""Every attack is refused for the right reason, every golden file accepted, by the checker alone."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ATTACKS = ROOT / "attacks"
MANIFEST: list[dict[str, Any]] = json.loads((ATTACKS / "manifest.json").read_text())
GOLDEN = sorted((ATTACKS / "golden").glob("*.json"))
DELTAS = sorted((ATTACKS / "golden").glob("delta*.safetensors"))
SIDES = [
    word
    for side in ("base", "finetuned")
    for word in ("--subject", f"{side}={ATTACKS / 'golden' / side}.safetensors")
]


@pytest.fixture(scope="module")
def make() -> Iterator[ModuleType]:
    """The script that writes the attacks, imported from its folder."""
    sys.path.insert(0, str(ATTACKS))
    try:
        yield importlib.import_module("make")
    finally:
        sys.path.remove(str(ATTACKS))


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


@pytest.mark.parametrize("delta", DELTAS, ids=lambda path: path.stem)
def test_a_golden_delta_is_accepted_with_all_sets_of_subjects(
    isolated: Callable[..., Any], delta: Path
) -> None:
    pack = ["--subject", f"delta={delta}"]
    runs = isolated([[str(delta)], [str(delta), *SIDES[:2]], [str(delta), *SIDES], [str(delta), *pack]])
    assert [code for code, _ in runs] == [0, 0, 0, 2]
    alone, one_side, both, _ = (report for _, report in runs)
    assert any("the facts" in line for line in alone["unchecked"])
    assert any("'base'" in line for line in one_side["checked"])
    assert not any("the facts" in line for line in both["unchecked"])
    assert any("realised errors, decoded" in line for line in both["checked"])
    assert both["conditional"]


@pytest.mark.parametrize("delta", DELTAS, ids=lambda path: path.stem)
def test_a_certificate_and_its_delta_apart(isolated: Callable[..., Any], tmp_path: Path, delta: Path) -> None:
    header = json.loads(delta.read_bytes()[8 : 8 + int.from_bytes(delta.read_bytes()[:8], "little")])
    begin, end = header["assay.certificate"]["data_offsets"]
    start = 8 + int.from_bytes(delta.read_bytes()[:8], "little")
    path = tmp_path / "certificate.json"
    path.write_bytes(zlib.decompress(delta.read_bytes()[start + begin : start + end], -15))
    (code, report), (apart, _) = isolated(
        [[str(path), "--subject", f"delta={delta}", *SIDES], [str(path), *SIDES]]
    )
    assert (code, apart) == (0, 0)
    assert any("realised errors, decoded" in line for line in report["checked"])


def test_attacks_too_large_for_the_repository(
    isolated: Callable[..., Any], make: ModuleType, tmp_path: Path
) -> None:
    attacks = list(make.certificates.large_attacks(make.goldens()))
    for attack in attacks:
        (tmp_path / attack.name).write_bytes(attack.data)
    for attack, (code, report) in zip(
        attacks, isolated([[str(tmp_path / a.name)] for a in attacks]), strict=True
    ):
        assert code == attack.exit
        assert attack.reason in report["reason"]


def test_the_committed_files_are_what_the_script_writes(make: ModuleType, tmp_path: Path) -> None:
    """Deltas by name only: what DEFLATE writes depends on the build of zlib."""
    make.write(tmp_path)
    written = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    kept = {
        p.relative_to(ATTACKS): p.read_bytes()
        for p in ATTACKS.rglob("*")
        if p.is_file() and p.suffix not in (".py", ".pyc")
    }
    assert written.keys() == kept.keys()
    compared = [name for name in written if not name.name.startswith("delta")]
    assert [str(name) for name in compared if kept[name] != written[name]] == []


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
