"""What holds for every verb: exit codes, one sentence for each error, nothing heavy before it is needed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from rich.text import Text

from assay.cli import app, main
from assay.cli.output import Output
from assay.core.errors import AssayError, BudgetError, InputError, RejectedError, UndecidedError

SRC = Path(__file__).parents[2] / "src"
HEAVY = ("numpy", "numba", "scipy", "torch", "flint", "rich", "matplotlib", "safetensors", "ml_dtypes")


def test_help_imports_nothing_heavy_and_is_quick():
    program = (
        "import sys; from assay.cli import main\n"
        "try: main(['--help'], prog_name='assay')\n"
        f"except SystemExit: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": str(SRC)},
            capture_output=True,
            text=True,
            check=True,
        )
        seconds.append(time.perf_counter() - start)
        assert done.stderr.strip() == "[]"
    assert min(seconds) < 1.0  # 0.2 s on a quiet machine; this one may be busy


def test_no_arguments_print_the_help_and_are_misuse(invoke):
    result = invoke()
    assert result.exit_code == 2
    assert "pack" in result.stderr
    assert result.stdout == ""


def test_version(invoke):
    assert invoke("--version").stdout.startswith("assay ")


@pytest.mark.parametrize("verb", app.VERBS)
def test_every_verb_has_help_with_json_and_traceback(invoke, verb):
    result = invoke(verb, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert "--traceback" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pck"], "did you mean 'pack'?"),
        (["zzzzz"], "there are calibrate, plan, pack"),
        (["pack", "--drp", "0.9"], "did you mean '--drop'?"),
        (["pack", "x"], "missing option '--base'"),
        (["pack", "x", "--base", "y", "-o", "z", "--drop", "ninety"], "write 0.9 or 9/10"),
        (["pack", "x", "--base", "y", "-o", "z", "--drop", "1/0"], "write 0.9 or 9/10"),
        (["pack", "x", "--base", "y", "-o", "z", "--bits", "5"], "'16', '8', '4', '3', '2'"),
        (
            ["pack", "x", "--base", "y", "-o", "z", "--rescale", "best"],
            "neither 'dare', 'optimal' nor a number",
        ),
        (["pack", "x", "--base", "y", "-o", "z", "--seed", "-1"], "--seed"),
        (
            ["pack", "x", "--base", "y", "-o", "z", "--no-certificate", "--certificate", "c.json"],
            "--no-certificate",
        ),
        (["pack", "x", "--base", "y", "-o", "z", "--picture", "p.bmp"], "must end in one of .svg, .png"),
        (["merge", "b", "-o", "z"], "missing argument"),
        (["merge", "b", "d", "-o", "z", "--weights", "half"], "write 0.5,0.5"),
        (["show", "no.such"], "no claim is called 'no.such'"),
        (["list", "nowhere"], "no mission is called 'nowhere'"),
        (["list", "--jsn"], "did you mean '--json'?"),
    ],
)
def test_misuse_is_one_sentence_on_stderr(invoke, arguments, words):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.startswith("assay: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


@pytest.fixture
def failing(monkeypatch, invoke):
    """A verb that raises what it is given."""

    def run(error: BaseException, *options: str):
        @click.command("list")
        @app.traceback_option
        def command() -> None:
            raise error

        monkeypatch.setattr("assay.cli.list.command", command)
        return invoke("list", *options)

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("no"), 2), (BudgetError("no"), 1), (RejectedError("no"), 1), (UndecidedError("no"), 3)],
)
def test_an_error_of_ours_gives_its_sentence_and_its_exit_code(failing, error, code):
    result = failing(error)
    assert (result.exit_code, result.stderr) == (code, "assay: no\n")


def test_every_error_class_has_an_exit_code_that_the_contract_knows():
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(k) for k in kind.__subclasses__()))

    assert {kind.exit_code for kind in below(AssayError)} == {1, 2, 3}


def test_an_unexpected_exception_is_called_an_internal_error(failing):
    result = failing(ValueError("odd"))
    assert result.exit_code == 2
    assert "internal error" in result.stderr
    assert "ValueError: odd" in result.stderr
    assert "--traceback" in result.stderr
    assert result.stderr.count("\n") == 1


def test_traceback_shows_where_it_arose(failing):
    result = failing(ValueError("odd"), "--traceback")
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("assay: internal error")


def test_an_error_of_the_operating_system_names_the_file(failing):
    assert (
        failing(PermissionError(13, "Permission denied", "a/b")).stderr == "assay: a/b: Permission denied\n"
    )


def test_interruption_says_how_to_go_on(failing):
    result = failing(KeyboardInterrupt())
    assert result.exit_code == 130
    assert result.stderr.strip() == "assay: interrupted; run the same command again to resume"


def test_control_characters_in_an_error_do_not_reach_the_terminal(failing):
    assert "\x1b" not in failing(InputError("bad name \x1b[2J")).stderr


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m assay list --json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        env={"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout == "141\n"


def test_standalone_mode_off_lets_errors_through():
    with pytest.raises(AssayError):
        main(["show", "no.such"], standalone_mode=False)


def test_json_is_all_that_stdout_holds(shell):
    done = shell("list", "--json")
    assert isinstance(json.loads(done.stdout), list)


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_on_a_terminal_only_and_never_against_no_color(monkeypatch, variables, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm-256color", **variables}.items():
        monkeypatch.setenv(name, value)
    pipe, terminal = io.StringIO(), io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    for stream in (pipe, terminal):
        monkeypatch.setattr("sys.stdout", stream)
        Output().result({}, lambda: iter([Text("x", style="red")]))
    assert pipe.getvalue() == "x\n"
    assert ("\x1b[31m" in terminal.getvalue()) is coloured


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    clock = iter([0.0, 1.0, 11.0, 11.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    monkeypatch.setattr("assay.cli.output.SECONDS_BETWEEN_LINES", 10.0)
    with Output().progress("pack") as report:
        report(1, 100, "early")
        report(50, 100, "half\x1b")
    assert capsys.readouterr() == ("", "pack: 50 %, half\N{REPLACEMENT CHARACTER}\n")
