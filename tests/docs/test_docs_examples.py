"""Every example that a page marks as runnable runs, and prints what the page says.

A fenced block whose info string is ``console run`` holds commands behind ``$ `` and their output; one of
``python run`` holds a program or a doctest.  In expected output ``...`` stands for anything.  The blocks of
a page run in order, in one folder.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(console|python) run( torch)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    torch: bool
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(language, bool(torch), body) for language, torch, body in FENCE.findall(text)]


RUNNABLE = [page for page in PAGES if page.exists() and blocks(page)]


@pytest.fixture(autouse=True)
def no_progress(monkeypatch):
    """A busy machine must not put lines of progress between those that a page shows."""
    monkeypatch.setattr("assay.cli.output.SECONDS_BETWEEN_LINES", float("inf"))


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
def test_examples_of(page: Path, workshop: Path, command_path: Path):
    if any(block.torch for block in blocks(page)):
        pytest.importorskip("transformers")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "console":
            run_console(block.text, workshop, command_path)
        elif block.text.startswith(">>>"):
            run_doctest(block.text, page, workshop, namespace)
        else:
            with contextlib.chdir(workshop):
                exec(compile(block.text, str(page), "exec", dont_inherit=True), namespace)


def run_console(text: str, folder: Path, command_path: Path) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        while command.endswith("\\"):
            more, _, expected = expected.partition("\n")
            command = command[:-1] + more.lstrip("> ")
        plain = command.startswith("assay ") and not set(command) & set('|;&<>$`*"')
        printed, code = run_here(command, folder) if plain else run_in_shell(command, folder, command_path)
        if expected.strip():
            assert matches(expected, printed), f"$ {command}\n{printed}\n--- the page says\n{expected}"
        else:
            assert code == 0, f"$ {command}\n{printed}"


def run_here(command: str, folder: Path) -> tuple[str, int]:
    """An ``assay`` command without redirections: the same as in a shell, and seconds quicker."""
    with contextlib.chdir(folder):
        result = CliRunner().invoke(main, shlex.split(command)[1:], prog_name="assay")
    return result.output, result.exit_code


def run_in_shell(command: str, folder: Path, command_path: Path) -> tuple[str, int]:
    path = f"{command_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": path, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout, done.returncode


def matches(expected: str, printed: str) -> bool:
    """Whether `printed` is `expected`, runs of white space being equal and ``...`` standing for anything."""
    pieces = [r"\s+".join(map(re.escape, piece.split())) for piece in expected.split("...")]
    return (
        re.fullmatch(r"\s*" + r"(?:.*)".join(rf"\s*{p}\s*" for p in pieces) + r"\s*", printed, re.DOTALL)
        is not None
    )


def run_doctest(text: str, page: Path, folder: Path, namespace: dict[str, object]) -> None:
    test = doctest.DocTestParser().get_doctest(text, namespace, page.name, str(page), 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    with contextlib.chdir(folder):
        runner.run(test, out=report.append, clear_globs=False)
    namespace.update(test.globs)
    assert not report, "".join(report)


def test_the_matcher_can_say_no():
    assert matches("wrote a: ... bytes\n", "wrote a: 12\nbytes\n")
    assert not matches("wrote a: ... bytes\n", "wrote b: 12 bytes\n")
    assert not matches("0\n", "1\n")


@pytest.mark.parametrize("page", [p for p in PAGES if p.exists()], ids=lambda page: page.stem)
def test_relative_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"
